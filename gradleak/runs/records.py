"""Define, write and read records: the result of a run of a study, in which every trial states where it ran."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

import gradleak
from gradleak import paths
from gradleak.errors import GradleakError, InputError, MissingData, StorageError, first_line
from gradleak.runs import studies
from gradleak.runs.plain import Columns, restored, worded
from gradleak.storage import parsed, write_whole
from gradleak.wording import counted

if TYPE_CHECKING:
    import pandas as pd

    from gradleak.runs.experiments import Experiment, Parameters

Stated = TypeVar("Stated", bound="Parameters")
PACKAGES = ("torch", "torchvision", "numpy", "scipy", "scikit-image", "scikit-learn", "pyswarms")


class Strict(BaseModel):
    """Base class of values that do not change and refuse unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(Strict):
    """The machine on which a trial ran; it contains no host, user or path.

    Attributes:
        device: The kind of CPU, or the model of the GPU and how it computes float32.
        processor: The processor's model; None if it was not recorded.
        instructions: The vector instructions that torch used on the processor; None if they were not recorded.
        versions: The versions of the packages, by name.
    """

    device: str = "CPU"
    processor: str | None = None
    instructions: str | None = None
    versions: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The machine in a few words: "AMD EPYC, AVX512, torch 2.11.0"."""
        kind = self.device.partition(",")[0]
        device = kind if kind != "CPU" or not self.processor else ""
        torch = f"torch {self.versions['torch']}" if "torch" in self.versions else ""
        return ", ".join(filter(None, (device, self.processor, self.instructions, torch)))


class Trial(Strict):
    """A finished experiment: a small, seeded, independent piece of work.

    Attributes:
        inputs: The inputs of the experiment.
        rows: The rows that it returned.
        seconds: The time that it took.
        date: When it ended, in UTC.
        commit: The commit of the code.
        golden: The digest of the page's golden rows in that code.
        peak: The most memory that its process held, in bytes; None if it was not recorded.
        under: The parameters in which its run differed from the record's, if it spent less effort than the record's run
            plans; a trial with more effort takes its place.
        machine: Where it ran.
    """

    inputs: Columns
    rows: list[Columns]
    seconds: float
    date: str = ""
    commit: str = "unknown"
    golden: str = ""
    peak: float | None = None
    under: Columns = {}
    machine: Machine = Machine()


def part_of(trial: Trial) -> str:
    """Return the part of the study to which a trial belongs; "" if the study has no parts."""
    return str(trial.inputs.get("part", ""))


class Accepted(Strict):
    """The statement that a record's rows stand although the golden rows of its page have changed.

    Attributes:
        golden: The digest of the golden rows for which the rows stand.
        why: Why they stand.
    """

    golden: str
    why: str


class Places(dict[str, dict[Any, set[int]]]):
    """The places of the lines with a value in a column, by the column and the `exactly` of the value.

    A column is read when it is first asked for; lines without it have None there.
    """

    def __init__(self, lines: Sequence[Columns]) -> None:
        super().__init__()
        self._lines = lines

    def __missing__(self, column: str) -> dict[Any, set[int]]:
        found: dict[Any, set[int]] = {}
        for place, line in enumerate(self._lines):
            found.setdefault(exactly(line.get(column)), set()).add(place)
        self[column] = found
        return found


def exactly(value: Any) -> tuple[Any, bool]:
    """Return what tells a value from others; in Python True equals 1, which is another value of a row."""
    return (repr(value) if isinstance(value, list | dict) else value), isinstance(value, bool)


class Record(Strict):
    """The result of a run of a study, which grows trial by trial.

    Attributes:
        study: The name of the study.
        profile: "quick", "paper", or "custom" for other parameters.
        parameters: The parameters of the run.
        data: The origin of each dataset.
        planned: The number of trials of the whole run.
        accepted: The statement that the rows stand for other golden rows than those of the trials, or None.
        rules: The rules of the study's claims when the first trial ran.
        waiting: The inputs of the trials of the run of which there is no result yet.
        trials: The finished trials, which may come from several machines.
    """

    study: str
    profile: Literal["quick", "paper", "custom"]
    parameters: Columns
    data: list[str] = []
    planned: int = 0
    accepted: Accepted | None = None
    rules: Columns | None = None
    waiting: list[Columns] = []
    trials: list[Trial]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some values replaced, which computes its lines and its frame anew."""
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
        """The kinds of devices on which the trials ran, in words."""
        gpus = {on_gpu(trial.inputs) for trial in self.trials}
        return "CPUs and GPUs" if len(gpus) == 2 else "a GPU" if gpus == {True} else "a CPU"

    @property
    def machines(self) -> list[Machine]:
        """The machines on which the trials ran."""
        distinct = {trial.machine.model_dump_json(): trial.machine for trial in self.trials}
        return list(distinct.values())

    @property
    def seconds(self) -> float:
        """The sum of the trials' run times."""
        return sum(trial.seconds for trial in self.trials)

    @property
    def size(self) -> str:
        """The number of trials, and the number that the run plans if it is not finished: "412 of 900 trials"."""
        finished = sum(not trial.under for trial in self.trials)
        if finished == len(self.trials) and not self.waiting:
            return counted(finished, "trial")
        return f"{finished:,} of {self.planned:,} trials"

    @property
    def days(self) -> list[str]:
        """The day on which the trials ran, or the first and the last day."""
        days = {trial.date[:10] for trial in self.trials if trial.date}
        return sorted({min(days), max(days)}) if days else []

    @functools.cached_property
    def lines(self) -> tuple[Columns, ...]:
        """All rows, each joined with its trial's inputs; the dicts are shared between callers: do not change them."""
        return tuple(trial.inputs | row for trial in self.trials for row in trial.rows)

    @functools.cached_property
    def places(self) -> Places:
        """The places of the lines with a value in a column, by the column and the value."""
        return Places(self.lines)

    @functools.cached_property
    def under(self) -> Mapping[int, Columns]:
        """The parameters in which the run of a line differed from the record's, by the `id` of the line."""
        numbered = zip(self.lines, (trial for trial in self.trials for _ in trial.rows), strict=True)
        return {id(line): trial.under for line, trial in numbered if trial.under}

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
    return record.stated(studies.load(record.study).Parameters).about()


def write(record: Record, path: Path) -> None:
    """Write a record completely or not at all, with one line of text for each row, so that versions can be compared.

    Each machine is written once; a trial states its number.
    """
    machines = record.machines
    content = worded(
        record.model_dump(exclude_none=True, include=set(Record.model_fields) - {"trials", "rules", "waiting"})
    )
    head = json.dumps(content, indent=1, ensure_ascii=False)[:-2]
    named = [machine.model_dump(exclude_none=True) for machine in machines]
    text = f'{head},\n "machines": [\n{_lines(named)}\n ],\n'
    if record.rules:
        rules = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rule)}" for name, rule in worded(record.rules).items())
        text += f' "rules": {{\n{rules}\n }},\n'
    if record.waiting:
        text += f' "waiting": [\n{_lines(worded(record.waiting))}\n ],\n'
    trials = ",\n".join(_written(trial, machines.index(trial.machine)) for trial in record.trials)
    text += f' "trials": [\n{trials}\n ]\n}}\n'
    write_whole(path, lambda stream: stream.write(text.encode()))


def _lines(values: Iterable[Any]) -> str:
    return ",\n".join(f"  {json.dumps(value, ensure_ascii=False)}" for value in values)


def _written(trial: Trial, machine: int) -> str:
    named = ("date", "commit", "golden", "peak", "under")
    facts = {name: value for name in named if (value := worded(getattr(trial, name)))}
    stated = json.dumps({"seconds": float(f"{trial.seconds:.4g}"), **facts, "machine": machine})
    rows = ",\n   ".join(json.dumps(row) for row in worded(trial.rows))
    return f'  {{"inputs": {json.dumps(worded(trial.inputs))}, {stated[1:-1]}, "rows": [\n   {rows}\n  ]}}'


def read(path: Path) -> Record:
    """Read a record from its file, in which words stand for NaN and infinities.

    A file that has not changed since it was last read gives the same object, so do not change a record's values.

    Raises:
        MissingData: There is no such file.
        InputError: The file is not a record.
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
        content = parsed(path.read_text("utf-8"))
        machines = content.pop("machines", [])
        for trial in content.get("trials", ()):
            trial["machine"] = machines[trial.pop("machine")]
        return Record.model_validate(restored(content))
    except ValidationError as error:
        problem = error.errors()[0]
        location = ".".join(str(part) for part in problem["loc"])
        raise InputError(f"{path.name} is not a record: {location or 'the whole'}: {problem['msg']}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path.name} is not a record: {first_line(error)}") from error


def recorded(study: str) -> Record | None:
    """Return the record of a study that pages, claims and `gradleak verify` use, or None if there is no record."""
    path = file_of(study)
    return read(path) if path.is_file() else None


def file_of(study: str) -> Path:
    """Return the file of a study's record."""
    return paths.results() / studies.paper_of(study) / f"{study}.json"


def on_gpu(inputs: Columns) -> bool:
    """Whether a trial with these inputs runs on a GPU."""
    from gradleak import devices

    return devices.accelerated(str(inputs.get("device", "cpu")))


@functools.cache
def this_machine(device: str) -> Machine:
    """Describe the machine on which this process runs trials on a device, "cpu" or "cuda"."""
    from gradleak import devices  # loads torch, which a list of pages does not need

    kind = f"CPU, {platform.machine()}"
    if devices.accelerated(device):
        # The precision is a setting, so ask for it under the setting with which trials run.
        with devices.ieee():
            kind = f"{devices.described(device)}, float32 by {devices.precision()}"
    facts = {"processor": devices.processor(), "instructions": devices.instructions()}
    return Machine(device=kind, **facts, versions=versions())


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of this package, of Python and of the packages on which results depend, by name."""
    installed = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"gradleak": gradleak.__version__, "python": platform.python_version(), **installed}


def now() -> str:
    """Return the date and time in UTC, such as "2026-01-31T09:30:00Z"."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
