"""Recover words, sentences and transcripts from the gradients of language models and speech recognisers."""

from gradleak.models.language import batch_of
from gradleak.sequences.defended import read_defended
from gradleak.sequences.matching import Matched, match_transcript
from gradleak.sequences.observed import observe_speech
from gradleak.sequences.output import read_output
from gradleak.sequences.read import Sentences, read_prefixes, read_sentences
from gradleak.sequences.shared import read_sharing
from gradleak.sequences.transcripts import Transcripts, read_transcripts
from gradleak.sequences.transformers import Bag, read_bag
from gradleak.sequences.words import Words, reveal_words

__all__ = [
    "Bag",
    "Matched",
    "Sentences",
    "Transcripts",
    "Words",
    "batch_of",
    "match_transcript",
    "observe_speech",
    "read_bag",
    "read_defended",
    "read_output",
    "read_prefixes",
    "read_sentences",
    "read_sharing",
    "read_transcripts",
    "reveal_words",
]
