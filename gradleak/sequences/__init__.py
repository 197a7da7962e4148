"""Words and sentences out of gradients."""

from gradleak.sequences.observed import observe_speech
from gradleak.sequences.transcripts import Transcripts, read_transcripts
from gradleak.sequences.words import Words, reveal_words

__all__ = ["Transcripts", "Words", "observe_speech", "read_transcripts", "reveal_words"]
