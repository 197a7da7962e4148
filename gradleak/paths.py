"""Where things lie: the checkout's folders, and those that environment variables name."""

from __future__ import annotations

import os
from pathlib import Path

from gradleak.errors import MissingData


def _named(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None


def root() -> Path:
    """Return the checkout that holds notebooks/, book/ and results/."""
    here = _named("GRADLEAK_ROOT") or Path(__file__).resolve().parent.parent
    if not (here / "notebooks").is_dir():
        raise MissingData(
            "gradleak runs its pages from a checkout and found no notebooks/ folder beside the package: "
            "install it with `pip install -e .` in the checkout, or point $GRADLEAK_ROOT at one"
        )
    return here


def cache() -> Path:
    """Return the folder of everything that can be computed again: trials, trained networks."""
    return _named("GRADLEAK_CACHE") or root() / ".cache" / "gradleak"


def data_folder() -> Path | None:
    """Return the folder of .npz datasets, if $GRADLEAK_DATA names one."""
    return _named("GRADLEAK_DATA")


def text_folder() -> Path | None:
    """Return the folder of texts: $GRADLEAK_TEXT, else the folder `text` beside $GRADLEAK_DATA, if there is one."""
    if (named := _named("GRADLEAK_TEXT")) is not None:
        return named
    data = data_folder()
    beside = data.resolve().parent / "text" if data is not None else None
    return beside if beside is not None and beside.is_dir() else None


def weights_folder() -> Path | None:
    """Return the folder of pretrained networks, if $GRADLEAK_WEIGHTS names one."""
    return _named("GRADLEAK_WEIGHTS")


def runs() -> Path:
    """Return the folder into which `gradleak run` writes executed pages and their records."""
    return _named("GRADLEAK_RUNS") or root() / "runs"


def notebooks() -> Path:
    """Return the folder of the pages, without outputs."""
    return root() / "notebooks"


def results() -> Path:
    """Return the folder of the recorded results at the papers' scale."""
    return root() / "results"


def book() -> Path:
    """Return the folder of the book's prose."""
    return root() / "book"


def executed() -> Path:
    """Return the folder of the executed pages that the book shows."""
    return book() / "executed"
