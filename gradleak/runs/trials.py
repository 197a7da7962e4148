"""Finished trials, kept so that none runs twice: a JSON file each, written whole."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from gradleak import paths
from gradleak.errors import StorageError
from gradleak.runs import progress, sealing
from gradleak.runs.plain import Columns, restored, worded
from gradleak.runs.records import Trial
from gradleak.storage import storage_error, write_whole


class Trials:
    """The finished trials of a study, by their inputs and by `decides`, what else decides a result.

    They are read and written here and not where they run: the cache may be somewhere that a cluster does not see, and
    what goes wrong with it is said to the person who waits.
    """

    def __init__(self, study: str, decides: str) -> None:
        self.study, self.decides = study, decides
        self.folder = paths.cache() / "trials" / study
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass  # said now, and not after an hour's work
        except OSError as error:
            raise storage_error(self.folder.parent / "trials", error) from error

    def get(self, inputs: Columns) -> Trial | None:
        """Return a finished trial; a damaged or edited one counts as not run, and that is said."""
        file = self._file(inputs)
        try:
            stored = json.loads(file.read_text("utf-8"))
            sealing.check(stored, file.name)
            return Trial.model_validate({**restored(sealing.bare(stored)), "inputs": inputs})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            progress.warn(f"a cached trial of '{self.study}' is damaged and was computed again ({short(inputs)})")
            return None

    def put(self, trial: Trial) -> None:
        """Keep a finished trial. Where that fails the run goes on: what it finds is worth more than its cache."""
        text = json.dumps(sealing.sealed(worded(trial.model_dump()))).encode()
        try:
            write_whole(self._file(trial.inputs), lambda stream: stream.write(text))
        except StorageError as error:
            reason = getattr(error.__cause__, "strerror", None) or error
            told = f"a trial of '{self.study}' could not be stored in the cache ({short(trial.inputs)}): {reason}"
            progress.warn(told)

    def _file(self, inputs: Columns) -> Path:
        key = hashlib.sha256(f"{known(inputs)} {self.decides}".encode()).hexdigest()[:20]
        return self.folder / f"{key}.json"


def known(inputs: Columns) -> str:
    """Return the text by which a trial's inputs are told from others."""
    return json.dumps(inputs, sort_keys=True)


def short(inputs: Columns) -> str:
    """Return the first inputs of a trial, for a message."""
    plain = [f"{name}={value}" for name, value in inputs.items() if isinstance(value, str | int | float)]
    return ", ".join(plain[:5])
