"""Confirmations of a record: which of its trials were run again, on which machine, and how their rows came out.

They lie in a file beside the record, a line of JSON a check, and a check only appends to it. Each trial is named by a
digest of its inputs and recorded rows: a trial whose rows were edited since, or that was added, is not confirmed. Each
line states the SHA-256 of its content: one that was edited is refused.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from gradleak import devices
from gradleak.errors import InputError, StorageError
from gradleak.runs import kinds, sealing
from gradleak.runs.kinds import Outcome
from gradleak.runs.plain import restored, worded
from gradleak.runs.records import Record, part_of
from gradleak.storage import storage_error

# What counts as a trial that was confirmed.
GOOD: frozenset[Outcome] = frozenset({"same", "within"})


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(_Strict):
    """What trials were run again on: the processor's model, its vector instructions, torch, threads a trial, device."""

    processor: str
    instructions: str
    torch: str
    threads: int
    device: str

    @property
    def name(self) -> str:
        """The machine in a few words: "AMD EPYC, AVX512, torch 2.11.0"."""
        where = "" if self.device == "cpu" else f", {self.device}"
        return f"{self.processor}, {self.instructions}{where}, torch {self.torch}"


class Difference(_Strict):
    """How a column of the checked trials differs from the recorded one, shown by the largest difference.

    `values`: how many values differ; `apart`: the relative difference of a measured number, or how many times one
    rounding error is the other; `row`: its number in the trial, from 1; `about`: the first inputs of the trial.
    """

    column: str
    kind: kinds.Name
    outcome: Outcome
    values: int
    apart: float | None
    recorded: Any
    found: Any
    row: int
    trial: str
    about: str

    @property
    def text(self) -> str:
        """The difference in a line."""
        apart = ""
        if self.apart is not None and math.isfinite(self.apart):
            apart = f", a factor of {self.apart:.3g}" if self.kind == "rounding" else f", {self.apart:.1e} of it"
        more = f"; {self.values} values differ" if self.values > 1 else ""
        values = f"{self.found!r} where {self.recorded!r} is recorded{apart}"
        return f"{self.column}: {values}, row {self.row} ({self.about}){more}"


class Verdict(_Strict):
    """A claim whose verdict is another one with the new rows in the place of the recorded ones."""

    claim: str
    recorded: str
    found: str


class Confirmation(_Strict):
    """Some trials of a record that were run again on one machine: a line of the file.

    `sources`: the digest of the code that they ran with; `minutes`: the budget; `seconds`: CPU time spent; `trials`:
    their digests by outcome; `claims`: the claims that they touch, of the `all_claims` that the record's rows measure;
    `errors`: what trials raised, by their digests.
    """

    date: str
    commit: str
    machine: Machine
    sources: str
    minutes: float
    seconds: float
    trials: dict[Outcome, list[str]]
    differences: list[Difference]
    claims: list[str]
    all_claims: int
    verdicts: list[Verdict]
    errors: dict[str, str]


@dataclass(frozen=True)
class Summary:
    """All that one machine has confirmed of a record as it is now, with today's code.

    `trials`: the outcome of each by its digest; `seconds`: what these trials took when they were recorded.
    """

    machine: Machine
    date: str
    trials: dict[str, Outcome]
    of: int
    seconds: float
    share: float
    parts: frozenset[str]
    all_parts: frozenset[str]
    claims: frozenset[str]
    all_claims: int
    differences: tuple[Difference, ...]
    verdicts: tuple[Verdict, ...]
    errors: dict[str, str]

    @property
    def differs(self) -> bool:
        """Whether a trial came out otherwise than recorded, beyond the tolerance of its columns."""
        return "differs" in self.trials.values()

    @property
    def untouched(self) -> list[str]:
        """The parts of the study of which no trial was run again."""
        return sorted(self.all_parts - self.parts)

    @property
    def text(self) -> str:
        """What was confirmed, in a line."""
        outcomes = list(self.trials.values())
        named: dict[Outcome, str] = {"same": "the same", "within": "within tolerance", "differs": "different"}
        counts = ", ".join(f"{outcomes.count(one)} {word}" for one, word in named.items() if one in outcomes)
        parts, claims = f"{len(self.parts)} of {len(self.all_parts)}", f"{len(self.claims)} of {self.all_claims}"
        trials = f"{len(self.trials)} of {self.of} trials ({self.share:.2g}% of the time)"
        text = f"{trials}, {parts} parts and {claims} claims: {counts}"
        return text + f", {_counted(len(self.verdicts), 'verdict')} changed" * bool(self.verdicts)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def this_machine(threads: int, *, accelerated: bool = False) -> Machine:
    """Describe the machine on which trials run now, by `threads` threads each."""
    return Machine(
        processor=devices.processor(),
        instructions=devices.instructions(),
        torch=str(torch.__version__).partition("+")[0],
        threads=threads,
        device=devices.model_of("cuda") if accelerated else "cpu",
    )


def file_beside(record: Path) -> Path:
    """Return the file of a record's confirmations."""
    return record.with_suffix(".confirmed.jsonl")


def read(path: Path) -> list[Confirmation]:
    """Return the confirmations in a file, oldest first; a line whose writing was interrupted is left out."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read the confirmations {path.name}: {error.strerror or error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
        except ValueError:
            continue
        try:
            found.append(Confirmation.model_validate(restored(sealing.bare(content))))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the whole"
            raise InputError(f"{path.name}, line {number}, is no confirmation: {place}: {first['msg']}") from error
        sealing.check(content, f"{path.name}, line {number},")
    return found


def append(confirmation: Confirmation, path: Path) -> None:
    """Add a confirmation to a file; what a writer that died left of a line is ended first."""
    text = json.dumps(sealing.sealed(worded(confirmation.model_dump())), ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as stream:
            whole = not stream.tell()
            if not whole:
                stream.seek(-1, os.SEEK_END)
                whole = stream.read(1) == b"\n"
            # In one piece, so that two checks at once do not mix their lines.
            line = ("" if whole else "\n").encode() + text.encode()
            if stream.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(stream.fileno())
    except OSError as error:
        raise storage_error(path, error) from error


def summaries(record: Record, lines: Sequence[Confirmation], sources: str) -> list[Summary]:
    """Return what each machine has confirmed of a record with code of this digest, in the order of their first checks.

    The latest check of a trial counts. Trials that the record does not hold any more are left out.
    """
    machines = dict.fromkeys(line.machine for line in lines if line.sources == sources)
    found = (
        _summary(record, [line for line in lines if (line.machine, line.sources) == (machine, sources)])
        for machine in machines
    )
    return [summary for summary in found if summary is not None]


def _summary(record: Record, lines: Iterable[Confirmation]) -> Summary | None:
    """Join a machine's confirmations of a record."""
    known = {digest: place for place, digest in enumerate(record.digests)}
    latest: dict[str, tuple[Outcome, Confirmation]] = {}
    claims: set[str] = set()
    last = None
    for line in lines:
        last = line
        named = {digest: outcome for outcome, digests in line.trials.items() for digest in digests}
        latest |= {digest: (outcome, line) for digest, outcome in named.items() if digest in known}
        # Which of the trials touches a claim is not kept: the line counts where all of them are as they were.
        if named.keys() <= known.keys():
            claims.update(line.claims)
    if last is None or not latest:
        return None
    trials = [record.trials[known[digest]] for digest in latest]
    seconds, total = sum(trial.seconds for trial in trials), sum(trial.seconds for trial in record.trials)
    used = {id(line): line for _, line in latest.values()}.values()
    return Summary(
        machine=last.machine,
        date=last.date,
        trials={digest: outcome for digest, (outcome, _) in latest.items()},
        of=len(record.trials),
        seconds=seconds,
        share=100 * seconds / total if total else 100.0,
        parts=frozenset(map(part_of, trials)),
        all_parts=frozenset(map(part_of, record.trials)),
        claims=frozenset(claims),
        all_claims=last.all_claims,
        differences=tuple(
            one for line in used for one in line.differences if one.trial in latest and latest[one.trial][1] is line
        ),
        verdicts=tuple(
            verdict
            for line in used
            if any(outcome == "differs" and own is line for outcome, own in latest.values())
            for verdict in line.verdicts
        ),
        errors={
            digest: text
            for line in used
            for digest, text in line.errors.items()
            if digest in latest and latest[digest][1] is line
        },
    )


def confirmed_parts(record: Record, found: Iterable[Summary]) -> frozenset[str]:
    """Return the parts of a record of which a trial was run again on some machine and gave the recorded rows."""
    good = {digest for summary in found for digest, outcome in summary.trials.items() if outcome in GOOD}
    return frozenset(
        part_of(trial) for digest, trial in zip(record.digests, record.trials, strict=True) if digest in good
    )
