"""Locate folders: those of the checkout and those that environment variables name."""

from __future__ import annotations

import os
from pathlib import Path

from gradleak.errors import MissingData

# The environment variables that name folders.
VARIABLES = (
    "GRADLEAK_ROOT", "GRADLEAK_CACHE", "GRADLEAK_DATA", "GRADLEAK_TEXT", "GRADLEAK_WEIGHTS", "GRADLEAK_RUNS",
)  # fmt: skip


def _named(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None


def root() -> Path:
    """Return the folder of the checkout, which contains notebooks/, book/ and results/."""
    folder = _named("GRADLEAK_ROOT") or Path(__file__).resolve().parent.parent
    if not (folder / "notebooks").is_dir():
        raise MissingData(
            "gradleak runs its pages from a checkout and found no notebooks/ folder beside the package: "
            "install it with `pip install -e .` in the checkout, or set $GRADLEAK_ROOT to the checkout"
        )
    return folder


def cache() -> Path:
    """Return the cache folder, for results that can be computed again such as trials and trained networks."""
    return _named("GRADLEAK_CACHE") or root() / ".cache" / "gradleak"


def data_folder() -> Path | None:
    """Return the folder of .npz datasets that $GRADLEAK_DATA names, or None."""
    return _named("GRADLEAK_DATA")


def text_folder() -> Path | None:
    """Return the folder of texts: $GRADLEAK_TEXT, or else the folder "text" next to $GRADLEAK_DATA, or None."""
    if (named := _named("GRADLEAK_TEXT")) is not None:
        return named
    data = data_folder()
    beside = data.resolve().parent / "text" if data is not None else None
    return beside if beside is not None and beside.is_dir() else None


def weights_folder() -> Path | None:
    """Return the folder of pretrained networks that $GRADLEAK_WEIGHTS names, or None."""
    return _named("GRADLEAK_WEIGHTS")


def runs() -> Path:
    """Return the folder to which `gradleak run` writes executed pages and their records."""
    return _named("GRADLEAK_RUNS") or root() / "runs"


def notebooks() -> Path:
    """Return the folder of the notebooks, which have no outputs."""
    return root() / "notebooks"


def results() -> Path:
    """Return the folder of the results that were recorded at the papers' scale."""
    return root() / "results"


def book() -> Path:
    """Return the folder of the book's text."""
    return root() / "book"


def executed() -> Path:
    """Return the folder of the executed pages that the book shows."""
    return book() / "executed"
