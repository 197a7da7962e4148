"""Load datasets and texts by name, and report their sources."""

from gradleak.data.base import NORMALISATION, Dataset, DatasetState, denormalise, normalise
from gradleak.data.registry import classes, load, names, shape, sizes, source, states, title
from gradleak.data.text import Vocabulary, build_vocabulary, texts, vocabulary

__all__ = [
    "NORMALISATION",
    "Dataset",
    "DatasetState",
    "Vocabulary",
    "build_vocabulary",
    "classes",
    "denormalise",
    "load",
    "names",
    "normalise",
    "shape",
    "sizes",
    "source",
    "states",
    "texts",
    "title",
    "vocabulary",
]
