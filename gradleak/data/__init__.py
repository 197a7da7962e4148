"""Datasets by name, and where they came from."""

from gradleak.data.base import NORMALISATION, Dataset, DatasetState, denormalise, normalise
from gradleak.data.registry import load, names, shape, source, states, title

__all__ = [
    "NORMALISATION",
    "Dataset",
    "DatasetState",
    "denormalise",
    "load",
    "names",
    "normalise",
    "shape",
    "source",
    "states",
    "title",
]
