"""Show the progress of long work by tqdm's bars, in a terminal or in a notebook that someone has opened."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import TypeVar

from gradleak import reporting

T = TypeVar("T")
# Work of at most so many seconds has no bar in a notebook.
SHORT = 0.5

_quiet = False


def progress(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Yield the items, and show how many of `total` are done and the estimated remaining time.

    Args:
        items: The items; working on one of them is a step of the progress.
        total: The number of items.
        description: The text beside the bar.
    """
    notebook = _in_notebook()
    if _quiet or os.environ.get("TQDM_DISABLE") or not (notebook or sys.stderr.isatty()):
        yield from items
        return
    with warnings.catch_warnings():
        # Without ipywidgets tqdm warns in a notebook, and draws its bar as text.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    # Bars within bars need a terminal.
    with quiet() if notebook else contextlib.nullcontext():
        yield from tqdm(items, total=total, desc=description, leave=False, delay=SHORT if notebook else 0)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Draw no bars within this context: parallel processes of a run share its terminal."""
    global _quiet
    before, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = before


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


# Attacks and training do not import the book. They report to `gradleak.reporting`, which passes steps on to here.
reporting.to(progress)
