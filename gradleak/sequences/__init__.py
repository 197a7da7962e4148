"""Words and sentences out of gradients."""

from gradleak.sequences.observed import observe_speech
from gradleak.sequences.transcripts import Transcripts, read_transcripts

__all__ = ["Transcripts", "observe_speech", "read_transcripts"]
