"""A result with its provenance, and how it is written and read."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.metadata
import json
import math
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

import gradleak
from gradleak import paths, studies
from gradleak.errors import GradleakError, InputError, MissingData, StorageError
from gradleak.storage import write_whole

if TYPE_CHECKING:
    import pandas as pd

    from gradleak.book.tables import Table

PACKAGES = ("torch", "torchvision", "numpy", "scikit-image", "scikit-learn")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Trial(_Strict):
    """A small, seeded, independent piece of work: its inputs, its rows, the seconds it took."""

    inputs: dict[str, Any]
    rows: list[dict[str, Any]]
    seconds: float


class Provenance(_Strict):
    """What a result came from; never a host, a user or a path."""

    device: str
    versions: dict[str, str]
    commit: str
    date: str
    seed: int
    wall_seconds: float
    data: list[str]


class Record(_Strict):
    """The result of one run of a study."""

    study: str
    profile: Literal["quick", "paper", "custom"]
    parameters: dict[str, Any]
    trials: list[Trial]
    provenance: Provenance

    def frame(self) -> pd.DataFrame:
        """Return a line a row, with its trial's inputs beside it."""
        import pandas as pd

        lines = [trial.inputs | row for trial in self.trials for row in trial.rows]
        return pd.DataFrame(lines)

    def digest(self) -> str:
        """Return a hash of what was asked and found; times, dates and machines are left out."""
        content = {
            "study": self.study,
            "parameters": self.parameters,
            "trials": [{"inputs": trial.inputs, "rows": trial.rows} for trial in self.trials],
        }
        return hashlib.sha256(json.dumps(_plain(content), sort_keys=True).encode()).hexdigest()


class Shown(Record):
    """The run that a page's tables and figures are drawn from: the recorded one, or this one.

    Shown by itself it says which, in a sentence or two.
    """

    recorded: bool
    this: Record

    def caption(self, text: str) -> str:
        """Return a caption that says what is shown: "…  Recorded: 45 images, CIFAR-10." """
        return f"{text} {'Recorded' if self.recorded else 'This run'}: {scale(self)}."

    def _repr_markdown_(self) -> str:
        run = f"This run ({scale(self.this)}) took {sum(trial.seconds for trial in self.this.trials):.0f} s"
        if self.recorded:
            return (
                f"Tables and figures below are drawn from the recorded run: {scale(self)}. {run}; it shows that the "
                "code on this page works, and its values stand in the column *this run* of the verdicts."
            )
        reason = "other parameters than the page's own" if recorded(self.study) else "nothing is recorded"
        return f"Tables and figures below are drawn from this very run: {reason}. {run}."


def shown(record: Record) -> Shown:
    """Return what a page shows: the recorded run where the page stands at its own parameters, else this run."""
    kept = recorded(record.study) if record.profile == "quick" else None
    own = kept or record
    return Shown.model_construct(**dict(own), recorded=kept is not None, this=record)


def scale(record: Record) -> str:
    """Return in a few words how many samples of what a run is about, as its study puts it."""
    study = studies.load(record.study)
    return str(study.module.scale(study.Parameters.model_construct(**record.parameters)))


def write(record: Record, path: Path) -> None:
    """Write a record, whole or not at all: one line a row, so that it can be read and compared."""
    content = _plain(record.model_dump())
    trials = content.pop("trials")
    head = json.dumps(content, indent=1, ensure_ascii=False)
    body = ",\n".join(
        f'  {{"inputs": {json.dumps(t["inputs"])}, "seconds": {t["seconds"]:.4g}, "rows": [\n   '
        + ",\n   ".join(json.dumps(row) for row in t["rows"])
        + "\n  ]}"
        for t in trials
    )
    text = f'{head[:-2]},\n "trials": [\n{body}\n ]\n}}\n'
    write_whole(path, lambda stream: stream.write(text.encode()))


def read(path: Path) -> Record:
    """Read a record; NaN and infinities are stored as words, since JSON has none."""
    try:
        return Record.model_validate(_restored(json.loads(path.read_text("utf-8"))))
    except FileNotFoundError as error:
        raise MissingData(f"there is no record {path.name}") from error
    except OSError as error:
        raise StorageError(f"cannot read the record {path.name}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path.name} is not a record: {place or 'the whole'}: {first['msg']}") from error
    except ValueError as error:
        raise InputError(f"{path.name} is not a record: {str(error).splitlines()[0]}") from error


def recorded(study: str) -> Record | None:
    """Return the recorded result of a study at the paper's scale, if there is one."""
    path = file_of(study)
    return read(path) if path.is_file() else None


def file_of(study: str) -> Path:
    """Return the file of a study's recorded result."""
    return paths.results() / studies.paper_of(study) / f"{study}.json"


def provenance(device: str, seed: int, wall_seconds: float, data: list[str]) -> Provenance:
    """Describe this run, in general words."""
    return Provenance(
        device=_device(device),
        versions=versions(),
        commit=_commit(),
        date=datetime.date.today().isoformat(),
        seed=seed,
        wall_seconds=round(wall_seconds, 1),
        data=data,
    )


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    installed = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"gradleak": gradleak.__version__, "python": platform.python_version(), **installed}


def provenance_table(record: Record) -> Table:
    """Return where a record came from, beside what is recorded, as a table for the foot of a page."""
    import pandas as pd

    from gradleak.book.tables import Table

    kept = recorded(record.study)
    columns = {"this run": _described(record)} | ({"recorded": _described(kept)} if kept else {})
    frame = pd.DataFrame(columns).rename_axis("").reset_index()
    return Table(
        frame,
        caption="Provenance of this page.",
        notes="Wall time is of the run that wrote the record, for which cached trials take none; the trials' own times"
        " are of when they ran.",
        name=f"tab-{record.study}-provenance",
    )


def _described(record: Record) -> dict[str, str]:
    facts = record.provenance
    return {
        "profile": record.profile,
        "data": "; ".join(facts.data) or "none",
        "device": facts.device,
        "wall time": f"{facts.wall_seconds:.1f} s",
        "trials": f"{len(record.trials)}, {sum(trial.seconds for trial in record.trials):.1f} s in all",
        "date": facts.date,
        "commit": facts.commit,
        "seed": str(facts.seed),
        "versions": ", ".join(f"{name} {version}" for name, version in facts.versions.items()),
        "digest": record.digest()[:16],
        "parameters": ", ".join(f"{name} = {value}" for name, value in record.parameters.items()),
    }


def _device(device: str) -> str:
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    return f"CPU, {platform.machine()}"


def _commit() -> str:
    def git(*words: str) -> str:
        result = subprocess.run(["git", *words], cwd=paths.root(), capture_output=True, text=True, check=True)
        return result.stdout.strip()

    try:
        # What a page computes hangs on these two; a new result beside the old ones is no change.
        changed = git("--no-optional-locks", "status", "--porcelain", "--", "gradleak", "notebooks")
        return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError, GradleakError):
        return "unknown"


def plain(value: Any, where: str) -> Any:
    """Return what a record can hold of a value: numbers of numpy and torch become Python's own, tuples lists."""
    if value is None or isinstance(value, str | bool):
        return value
    # numpy's float64 is a float, and would be written with its type's name.
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), where)
    raise InputError(f"{where} is a {type(value).__name__}: a record holds text, numbers, true, false, lists and dicts")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
