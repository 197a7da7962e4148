"""Every error gradleak raises on purpose: one clear line that says what was wrong and what would be right."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class GradleakError(Exception):
    """Base of all errors whose message is meant for the person at the keyboard."""


class InputError(GradleakError, ValueError):
    """A value that was passed in does not make sense."""


class ForeignError(InputError):
    """An error that somebody's own code raised: a model's, or that of a function which makes one."""


class UnknownName(GradleakError, LookupError):
    """A name that is not in the list of known ones."""


class MissingData(GradleakError, FileNotFoundError):
    """A dataset or a pretrained network that is not at hand."""


class StorageError(GradleakError, OSError):
    """A folder or a file that cannot be read or written."""


class GradleakWarning(UserWarning):
    """Something went wrong and was put right: a damaged cache entry that was computed again, say."""


def check_count(what: str, count: int | None, least: int = 1) -> None:
    """Refuse a number of samples, steps or the like that is not a whole number of at least `least`; None passes."""
    if count is not None and not (count >= least and count % 1 == 0):
        raise InputError(f"{what} must be a whole number, at least {least}; got {count}")


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, cut where it is endless; its kind where it says nothing."""
    return next((line.strip()[:300] for line in str(error).splitlines() if line.strip()), type(error).__name__)


def printable(text: str) -> str:
    """Return a text on one line: line breaks and other control characters, as a name may hold them, become spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


@contextlib.contextmanager
def foreign(what: str) -> Iterator[None]:
    """Run somebody's own code inside: whatever it raises, `sys.exit` too, becomes one line after `what`.

    Our own errors and Ctrl-C go through.
    """
    try:
        yield
    except (GradleakError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ForeignError(f"{what}: {type(error).__name__}: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """Return the first line of what somebody's own error says, if it can say anything."""
    try:
        return printable(first_line(error))
    except Exception:
        return "it cannot be shown"


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Return the error for an unknown name, with the nearest known one suggested and all of them listed."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else "."
    listing = ", ".join(names) if names else "none"
    return UnknownName(f"unknown {kind} '{name}'{hint} Known: {listing}")
