"""Write files atomically: a file is complete or does not exist."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from filelock import FileLock, Timeout

from gradleak.errors import StorageError


def parsed(text: str | bytes) -> Any:
    """Return the content of a JSON text; raise a ValueError if it is not valid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a temporary file, then move it to `path` atomically; raise a StorageError if this fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
            temporary = Path(stream.name)
            try:
                write(cast(BinaryIO, stream))
                stream.flush()
                os.fsync(stream.fileno())
                temporary.chmod(0o644)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        # torch.save reports a full disk as a RuntimeError.
        raise storage_error(path, error) from error


def check_folder(folder: Path) -> None:
    """Create a folder and check that files can be written to it; raise a StorageError if not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise storage_error(folder / "files", error) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the file at `path` against other processes, waiting for the lock; a dead process releases its lock."""
    with _lock(path.parent / f".{path.name}.lock", path, timeout=-1):
        yield


@contextmanager
def kept_alone(folder: Path) -> Iterator[None]:
    """Lock a folder for a single writer; raise a StorageError if it is locked. A dead process releases its lock."""
    with _lock(folder / ".gradleak.lock", folder / "files", timeout=0):
        yield


@contextmanager
def _lock(file: Path, path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock in a file, which protects writing to `path`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file)
        lock.acquire(timeout=timeout)
    except Timeout as error:
        raise StorageError(f"another process is writing to the folder '{file.parent.name}'") from error
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        yield
    finally:
        lock.release()


def storage_error(path: Path, error: BaseException) -> StorageError:
    """Return the error, with a message of one line, for a file or folder that cannot be written."""
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return StorageError(f"cannot write {path.name} into the folder '{path.parent.name}': {reason}")
