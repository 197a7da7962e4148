"""Which graphics card a process works on, where a machine has several: each process takes one."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from gradleak.errors import StorageError

VISIBLE = "CUDA_VISIBLE_DEVICES"
# The lock on this process's card: the operating system opens it when the process ends, however it ends.
_own: FileLock | None = None


def visible() -> list[str]:
    """Return the cards that this process may use, by the names that CUDA_VISIBLE_DEVICES has for them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE)
    return [str(number) for number in range(count)] if named is None else named.split(",")[:count]


def folder() -> Path:
    """Return where processes of this user on this machine say which card they have taken."""
    return Path(tempfile.gettempdir()) / f"gradleak-cards-{getattr(os, 'getuid', int)()}"


def take(cards: Sequence[str], place: Path) -> None:
    """Let this process work on one of the cards, the one with the fewest processes, for the rest of its life."""
    global _own
    if _own is not None or len(cards) < 2:
        return
    import torch

    for layer, (number, card) in ((layer, one) for layer in itertools.count() for one in enumerate(cards)):
        if lock := _locked(place / f"{card.strip()}-{layer}.lock"):
            _own = lock
            if torch.cuda.is_initialized():
                # CUDA has read the variable already.
                torch.cuda.set_device(number)
            else:
                os.environ[VISIBLE] = card.strip()
            return


def _locked(path: Path) -> FileLock | None:
    """Return a lock on a file, or nothing where another process holds it."""
    lock = FileLock(path)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except OSError as error:
        raise StorageError(f"cannot note which card a process has taken, in '{path.parent}': {error}") from error
    return lock
