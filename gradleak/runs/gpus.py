"""Assign GPUs to processes: on a machine with several GPUs, each process uses one of them."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

from gradleak.errors import StorageError

VISIBLE = "CUDA_VISIBLE_DEVICES"
# The lock on this process's GPU. The operating system releases the lock whenever the process ends, even in a crash.
_own: FileLock | None = None


def visible() -> list[str]:
    """Return the GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE)
    return [str(number) for number in range(count)] if named is None else named.split(",")[:count]


def folder() -> Path:
    """Return the folder of the lock files of this user's processes on this machine."""
    return Path(tempfile.gettempdir()) / f"gradleak-cards-{getattr(os, 'getuid', int)()}"


def take() -> None:
    """Assign the GPU with the fewest processes to this process until it ends."""
    global _own
    if _own is not None or len(cards := visible()) < 2:
        return
    import torch

    for layer, (number, card) in ((layer, numbered) for layer in itertools.count() for numbered in enumerate(cards)):
        if lock := _locked(folder() / f"{card.strip()}-{layer}.lock"):
            _own = lock
            if torch.cuda.is_initialized():
                # CUDA has already read the variable, so changing it would have no effect.
                torch.cuda.set_device(number)
            else:
                os.environ[VISIBLE] = card.strip()
            return


def _locked(path: Path) -> FileLock | None:
    """Return a lock on a file, or None if another process holds the lock."""
    lock = FileLock(path)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except OSError as error:
        raise StorageError(f"cannot write the lock file of a GPU in '{path.parent}': {error}") from error
    return lock
