"""Words and sentences out of gradients."""

from gradleak.models.language import batch_of
from gradleak.sequences.observed import observe_speech
from gradleak.sequences.read import Sentences, read_sentences
from gradleak.sequences.transcripts import Transcripts, read_transcripts
from gradleak.sequences.words import Words, reveal_words

__all__ = [
    "Sentences",
    "Transcripts",
    "Words",
    "batch_of",
    "observe_speech",
    "read_sentences",
    "read_transcripts",
    "reveal_words",
]
