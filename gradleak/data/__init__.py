"""Datasets by name, and where they came from."""

from gradleak.data.base import NORMALISATION, Dataset, DatasetState, denormalise, normalise
from gradleak.data.registry import load, names, source, states

__all__ = ["NORMALISATION", "Dataset", "DatasetState", "denormalise", "load", "names", "normalise", "source", "states"]
