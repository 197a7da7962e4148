"""The papers' networks, and how they are trained."""

from gradleak.models.registry import INITS, build, names

__all__ = ["INITS", "build", "names"]
