"""List every attack of the book that an audit runs, the cheap and certain ones first."""

from __future__ import annotations

from gradleak.cases import Attack
from gradleak.images.gradinversion import attack as gradinversion
from gradleak.images.inversion import convolutional, fully_connected, transformer, units
from gradleak.images.matching import engine as matching
from gradleak.images.matching import span
from gradleak.images.peeling import attack as peeling
from gradleak.labels.hard import counting
from gradleak.labels.soft import single
from gradleak.labels.soft.batch import jointly, recover
from gradleak.sequences import read, transformers, words

ATTACKS: tuple[Attack, ...] = (
    single.ATTACK,
    *counting.ATTACKS,
    counting.REVEALED,
    words.EMBEDDING_ROWS,
    words.WORDS_SAID,
    transformers.ATTACK,
    units.ATTACK,
    recover.ATTACK,
    jointly.ATTACK,
    fully_connected.ATTACK,
    convolutional.ATTACK,
    transformer.ATTACK,
    peeling.ATTACK,
    read.ATTACK,
    span.ATTACK,
    matching.ATTACK,
    gradinversion.ATTACK,
)


def attacks() -> tuple[Attack, ...]:
    """Return every attack, with what it recovers, what it needs, what it costs, and how it is run."""
    return ATTACKS
