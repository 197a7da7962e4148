"""Define, write and read records: the result of a run of a study, with its provenance."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

import gradleak
from gradleak import devices, paths
from gradleak.errors import GradleakError, InputError, MissingData, StorageError
from gradleak.runs import sealing, studies
from gradleak.runs.plain import Columns, restored, worded
from gradleak.storage import write_whole

if TYPE_CHECKING:
    import pandas as pd

    from gradleak.runs.experiments import Experiment, Parameters

Stated = TypeVar("Stated", bound="Parameters")
PACKAGES = ("torch", "torchvision", "numpy", "scipy", "scikit-image", "scikit-learn", "pyswarms")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Trial(_Strict):
    """A finished experiment: a small, seeded, independent piece of work.

    Attributes:
        inputs: The inputs of the experiment.
        rows: The rows that it returned.
        seconds: The time that it took.
        date: When it ended, in UTC; None in old records.
        commit: The commit of the code; None in old records.
        peak: The most memory that its process held, in bytes; None in old records.
    """

    inputs: Columns
    rows: list[Columns]
    seconds: float
    date: str | None = None
    commit: str | None = None
    peak: float | None = None


def part_of(trial: Trial) -> str:
    """Return the part of the study to which a trial belongs; "" if the study has no parts."""
    return str(trial.inputs.get("part", ""))


def _distinct(value: Hashable) -> tuple[bool, Hashable]:
    """Return a key for a value that is not the same for true and 1, which Python considers equal."""
    return isinstance(value, bool), value


def digest_of(trial: Trial) -> str:
    """Return a short digest of a trial's inputs and recorded rows."""
    text = json.dumps(worded({"inputs": trial.inputs, "rows": trial.rows}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Provenance(_Strict):
    """The origin of a result; it contains no host, user or path.

    Attributes:
        device: The kind of device and how it computes float32.
        processor: The processor's model; None in old records.
        instructions: The vector instructions that torch used on the processor; None in old records.
        versions: The versions of the packages, by name.
        commit: The commit of the code.
        date: The day of the run.
        seed: The seed of the run.
        wall_seconds: The elapsed time of the run.
        data: The origin of each dataset.
    """

    device: str
    processor: str | None = None
    instructions: str | None = None
    versions: dict[str, str]
    commit: str
    date: str
    seed: int
    wall_seconds: float
    data: list[str]


class Record(_Strict):
    """The result of one run of a study.

    Attributes:
        study: The name of the study.
        profile: "quick", "paper", or "custom" for other parameters.
        parameters: The parameters of the run.
        provenance: The origin of the result.
        sources: The digest of the code that computed the trials; None in old records.
        rules: The rules of the study's claims at the time of the run.
        trials: The trials.
    """

    study: str
    profile: Literal["quick", "paper", "custom"]
    parameters: Columns
    provenance: Provenance
    sources: str | None = None
    rules: Columns | None = None
    trials: list[Trial]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some values replaced, which computes its lines, digests and frame anew."""
        copied = super().model_copy(update=update, deep=deep)
        for name in vars(copied).keys() - Record.model_fields.keys():
            del vars(copied)[name]
        return copied

    @functools.cached_property
    def accelerated(self) -> bool:
        """Whether any of the trials ran on a GPU."""
        return any(on_gpu(trial.inputs) for trial in self.trials)

    @property
    def where(self) -> str:
        """The kind of device on which the trials ran, in words."""
        return "a GPU" if self.accelerated else "a CPU"

    @functools.cached_property
    def lines(self) -> tuple[Columns, ...]:
        """All rows, each joined with its trial's inputs; the dicts are shared between callers: do not change them."""
        return tuple(trial.inputs | row for trial in self.trials for row in trial.rows)

    @functools.cached_property
    def digests(self) -> tuple[str, ...]:
        """The short digest of each trial's inputs and rows."""
        return tuple(map(digest_of, self.trials))

    @functools.cached_property
    def columns(self) -> frozenset[str]:
        """The names of all columns that occur in `lines`."""
        return frozenset(name for line in self.lines for name in line)

    @functools.cached_property
    def _places(self) -> dict[str, dict[tuple[bool, Hashable], set[int]]]:
        return {}

    def places(self, name: str, values: Iterable[Hashable]) -> set[int]:
        """Return the indices of the lines whose column `name` equals one of these values; true does not equal 1."""
        if name not in self._places:
            indices = self._places[name] = {}
            for index, line in enumerate(self.lines):
                if isinstance(value := line.get(name), Hashable):
                    indices.setdefault(_distinct(value), set()).add(index)
        return set().union(*(self._places[name].get(_distinct(value), set()) for value in values))

    def frame(self) -> pd.DataFrame:
        """Return all rows, each joined with its trial's inputs, as a copy that may be changed."""
        return self._frame.copy()

    @functools.cached_property
    def _frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.lines)

    def part(self, name: str) -> pd.DataFrame:
        """Return the rows of the trials of a part, in the form of `frame`."""
        return self._frame[self._frame["part"] == name].copy()

    def rows(self, experiment: type[Experiment]) -> pd.DataFrame:
        """Return the rows of all experiments of one kind, in the form of `frame`."""
        return self.part(experiment.part) if experiment.part else self.frame()

    def stated(self, parameters: type[Stated]) -> Stated:
        """Return the parameters of the run as an instance of the study's class of parameters."""
        return parameters(**self.parameters)

    def digest(self) -> str:
        """Return a hash of the study, its parameters, inputs and rows, without run times, dates and machines."""
        content = {
            "study": self.study,
            "parameters": self.parameters,
            "trials": [{"inputs": trial.inputs, "rows": trial.rows} for trial in self.trials],
        }
        return hashlib.sha256(json.dumps(worded(content), sort_keys=True).encode()).hexdigest()


def about(record: Record) -> str:
    """Return the size of a recorded run in a few words, such as "45 images, CIFAR-10"."""
    study = studies.load(record.study)
    return study.about(record.stated(study.Parameters))


def write(record: Record, path: Path) -> None:
    """Write a record completely or not at all, with one line of text for each row, so that versions can be compared.

    The file states the SHA-256 of its content, from which `read` notices later edits.
    """
    content = worded(record.model_dump(include=set(Record.model_fields)))
    trials, rules = content.pop("trials"), content.pop("rules")
    content["provenance"] = {name: value for name, value in content["provenance"].items() if value is not None}
    content = {name: value for name, value in content.items() if value is not None}
    head = json.dumps(content, indent=1, ensure_ascii=False)
    body = ",\n".join(
        f'  {{"inputs": {json.dumps(trial["inputs"])}, "seconds": {trial["seconds"]:.4g}, {_when(trial)}"rows": [\n   '
        + ",\n   ".join(json.dumps(row) for row in trial["rows"])
        + "\n  ]}"
        for trial in trials
    )
    rule_lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rule)}" for name, rule in (rules or {}).items())
    rules_text = f' "rules": {{\n{rule_lines}\n }},\n' if rules else ""
    tail = f' "trials": [\n{body}\n ]\n}}\n'
    start = f"{head[:-2]},\n{rules_text}"
    sha256 = sealing.sealed(json.loads(start + tail))[sealing.FIELD]
    text = f'{start} "{sealing.FIELD}": "{sha256}",\n{tail}'
    write_whole(path, lambda stream: stream.write(text.encode()))


def _when(trial: Columns) -> str:
    return "".join(
        f'"{name}": {json.dumps(trial[name])}, ' for name in ("date", "commit", "peak") if trial[name] is not None
    )


def read(path: Path) -> Record:
    """Read a record from its file, in which words stand for NaN and infinities.

    A file that has not changed since it was last read gives the same object, so do not change a record's values.

    Raises:
        MissingData: There is no such file.
        InputError: The file is not a record, or it was edited.
        StorageError: The file cannot be read.
    """
    try:
        state = path.stat()
        return _read(path, (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    except FileNotFoundError as error:
        raise MissingData(f"there is no record {path.name}") from error
    except OSError as error:
        raise StorageError(f"cannot read the record {path.name}: {error.strerror or error}") from error


@functools.lru_cache(maxsize=128)
def _read(path: Path, state: tuple[int, ...]) -> Record:
    """Read a record from a file in this state; an error is raised again at every call."""
    try:
        content = json.loads(path.read_text("utf-8"))
        record = Record.model_validate(restored(sealing.bare(content)))
    except ValidationError as error:
        problem = error.errors()[0]
        location = ".".join(str(part) for part in problem["loc"])
        raise InputError(f"{path.name} is not a record: {location or 'the whole'}: {problem['msg']}") from error
    except ValueError as error:
        raise InputError(f"{path.name} is not a record: {str(error).splitlines()[0]}") from error
    sealing.check(content, path.name)
    return record


def recorded(study: str) -> Record | None:
    """Return the record of a study that pages, claims and `gradleak verify` use, or None if there is no record.

    A study may have a record from a CPU and one from a GPU. The CPU's record is used, unless the GPU's run was larger:
    none of its parameters is smaller, and at least one is larger.
    """
    existing = all_recorded(study)
    return (
        existing[-1]
        if len(existing) == 2 and _larger(existing[1].parameters, existing[0].parameters)
        else next(iter(existing), None)
    )


def beside(record: Record) -> Record | None:
    """Return the record of the same study from the other kind of device (CPU or GPU), or None."""
    path = file_of(record.study, accelerated=not record.accelerated)
    return read(path) if path.is_file() else None


def all_recorded(study: str) -> list[Record]:
    """Return the existing records of a study: first the CPU's, then the GPU's."""
    return [read(path) for path in files_of(study) if path.is_file()]


def _larger(one: Columns, other: Columns) -> bool:
    """Whether `one` holds the parameters of a larger run: none is smaller than in `other`, and some are larger."""
    left, right = (
        {name: parameters[name] for name in parameters if name not in ("device", "seed")} for parameters in (one, other)
    )
    return left != right and left.keys() == right.keys() and all(_covers(left[name], right[name]) for name in left)


def _covers(one: Any, other: Any) -> bool:
    """Whether a value is at least as large as another: a number not smaller, or a list with all its elements."""
    if isinstance(one, list) and isinstance(other, list):
        return all(value in one for value in other)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return bool(one >= other) if numbers else bool(one == other)


def file_of(study: str, *, accelerated: bool = False) -> Path:
    """Return the file of a study's record from a CPU, or from a GPU if `accelerated`; both lie in one folder."""
    return paths.results() / studies.paper_of(study) / f"{study}{'.gpu' * accelerated}.json"


def files_of(study: str) -> tuple[Path, Path]:
    """Return the files of a study's records from a CPU and from a GPU, which need not exist."""
    return file_of(study), file_of(study, accelerated=True)


def on_gpu(inputs: Columns) -> bool:
    """Whether a trial with these inputs runs on a GPU."""
    return devices.accelerated(str(inputs.get("device", "cpu")))


def provenance(device: str, seed: int, wall_seconds: float, data: list[str]) -> Provenance:
    """Return the provenance of a run that ends now.

    Args:
        device: "cpu" or "cuda".
        seed: The seed of the run.
        wall_seconds: The elapsed time of the run.
        data: The origin of each dataset.
    """
    return Provenance(
        device=_device(device),
        processor=devices.processor(),
        instructions=devices.instructions(),
        versions=versions(),
        commit=commit(),
        date=datetime.date.today().isoformat(),
        seed=seed,
        wall_seconds=round(wall_seconds, 1),
        data=data,
    )


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of this package, of Python and of the packages on which results depend, by name."""
    installed = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"gradleak": gradleak.__version__, "python": platform.python_version(), **installed}


def span(record: Record) -> list[str]:
    """Return the day on which a record's trials ran, or the first and the last day."""
    days = {(trial.date or record.provenance.date)[:10] for trial in record.trials} or {record.provenance.date}
    return sorted({min(days), max(days)})


def now() -> str:
    """Return the date and time in UTC, such as "2026-01-31T09:30:00Z"."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _device(device: str) -> str:
    if devices.accelerated(device):
        # The precision is a setting, so ask for it under the setting with which trials run.
        with devices.ieee():
            return f"{devices.described(device)}, float32 by {devices.precision()}"
    return f"CPU, {platform.machine()}"


def commit() -> str:
    """Return the checkout's short commit, with "+changes" if its code differs from it, or "unknown"."""

    def git(*words: str) -> str:
        result = subprocess.run(["git", *words], cwd=paths.root(), capture_output=True, text=True, check=True)
        return result.stdout.strip()

    try:
        # A page's results depend only on these two folders. New files in results/ are not a change of the code.
        changed = git("--no-optional-locks", "status", "--porcelain", "--", "gradleak", "notebooks")
        return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError, GradleakError):
        return "unknown"
