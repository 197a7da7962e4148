"""Words and sentences out of gradients."""

from gradleak.models.language import batch_of
from gradleak.sequences.read import Sentences, read_sentences

__all__ = ["Sentences", "batch_of", "read_sentences"]
