"""Cache finished trials, so that no trial runs twice; each is a JSON file that is written completely or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from gradleak import paths, reporting
from gradleak.errors import StorageError
from gradleak.runs.plain import Columns, restored, worded
from gradleak.runs.records import Trial
from gradleak.storage import check_folder, parsed, write_whole


class Trials:
    """The cache of a study's finished trials.

    The main process reads and writes the cache, not the workers. A cluster may have no access to its folder, and
    problems with the cache are reported to the user.

    Attributes:
        study: The name of the study.
        decides: Returns a hash of everything that determines a trial's result besides its inputs.
        folder: The folder of the files.
    """

    def __init__(self, study: str, decides: Callable[[Columns], str]) -> None:
        self.study, self.decides = study, decides
        self.folder = paths.cache() / "trials" / study
        check_folder(self.folder)  # now, and not after an hour's work

    def get(self, inputs: Columns) -> Trial | None:
        """Return a finished trial, or None; a damaged file causes a warning and counts as missing."""
        file = self._file(inputs)
        try:
            stored = parsed(file.read_text("utf-8"))
            return Trial.model_validate({**restored(stored), "inputs": inputs})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            reporting.warn(f"a cached trial of '{self.study}' is damaged and was computed again ({short(inputs)})")
            return None

    def put(self, trial: Trial) -> None:
        """Store a finished trial; a failure only causes a warning, since the run can continue without its cache."""
        text = json.dumps(worded(trial.model_dump())).encode()
        try:
            write_whole(self._file(trial.inputs), lambda stream: stream.write(text))
        except StorageError as error:
            reason = getattr(error.__cause__, "strerror", None) or error
            where = f"({short(trial.inputs)}): {reason}"
            reporting.warn(f"a trial of '{self.study}' could not be stored in the cache {where}")

    def forget(self, inputs: Columns) -> None:
        """Remove a trial from the cache."""
        with contextlib.suppress(OSError):
            self._file(inputs).unlink()

    def _file(self, inputs: Columns) -> Path:
        key = hashlib.sha256(f"{known(inputs)} {self.decides(inputs)}".encode()).hexdigest()[:20]
        return self.folder / f"{key}.json"


def known(inputs: Columns) -> str:
    """Return a trial's inputs as canonical JSON, by which they are compared."""
    return json.dumps(inputs, sort_keys=True)


def without_device(inputs: Columns) -> str:
    """Return a trial's inputs as canonical JSON without its device, which should not change its result."""
    return known({name: value for name, value in inputs.items() if name != "device"})


def short(inputs: Columns) -> str:
    """Return the first five inputs of a trial that are texts or numbers, for a message."""
    plain = [f"{name}={value}" for name, value in inputs.items() if isinstance(value, str | int | float)]
    return ", ".join(plain[:5])
