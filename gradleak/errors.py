"""Define the errors that gradleak raises on purpose: one line that says what is wrong and what would be right."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class GradleakError(Exception):
    """The base class of all errors whose message is meant for the user: one line, whatever names it repeats."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class InputError(GradleakError, ValueError):
    """An invalid argument or parameter."""


class ForeignError(InputError):
    """An error raised by the user's code, such as a model or a function that makes a model."""


class UnknownName(InputError, LookupError):
    """A name that is not in the list of known names."""


class MissingData(GradleakError, FileNotFoundError):
    """A dataset or a pretrained network that is not available."""


class StorageError(GradleakError, OSError):
    """A folder or a file that cannot be read or written."""


class GradleakWarning(UserWarning):
    """A warning about a problem that was solved, such as a damaged cache entry that was computed again."""


def check_count(what: str, count: int | None, least: int = 1) -> None:
    """Raise an InputError unless `count` is None or a whole number of at least `least`."""
    if count is not None and not (count >= least and count % 1 == 0):
        raise InputError(f"{what} must be a whole number, at least {least}; got {count}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 300 characters, or the error's class if it has none."""
    try:
        text = str(error)
    except Exception:  # raised by the error's own class
        text = "it cannot be shown"
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), type(error).__name__)


def printable(text: str) -> str:
    """Return a text on one line, with line breaks and other control characters replaced by spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


@contextlib.contextmanager
def foreign(what: str) -> Iterator[None]:
    """Turn any exception of the user's code in this block, even `sys.exit`, into a ForeignError of one line.

    The message begins with `what`. Errors of gradleak and Ctrl-C are passed on unchanged.
    """
    try:
        yield
    except (GradleakError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ForeignError(f"{what}: {type(error).__name__}: {printable(first_line(error))}") from error


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Return an error for an unknown name that suggests the most similar known name and lists all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else "."
    listing = ", ".join(names) if names else "none"
    return UnknownName(f"unknown {kind} '{name}'{hint} Known: {listing}")
