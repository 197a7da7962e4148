"""Read and write confirmations of a record: which of its trials were run again, on which machine, with which outcome.

A file beside the record holds the confirmations, one line of JSON for each check; a check only appends a line. A trial
is named by a digest of its inputs and recorded rows. So a trial that was edited or added after the check does not count
as confirmed. Each line states the SHA-256 of its content, and a line that was edited is refused.
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
from gradleak.wording import counted

# The outcomes with which a trial counts as confirmed.
GOOD: frozenset[Outcome] = frozenset({"same", "within"})


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(_Strict):
    """The machine on which trials were run again.

    Attributes:
        processor: The processor's model.
        instructions: The vector instructions that torch uses on it.
        torch: The version of torch.
        threads: The number of threads for each trial.
        device: "cpu" or the model of the GPU.
    """

    processor: str
    instructions: str
    torch: str
    threads: int
    device: str

    @property
    def name(self) -> str:
        """The machine in a few words: "AMD EPYC, AVX512, torch 2.11.0"."""
        device = "" if self.device == "cpu" else f", {self.device}"
        return f"{self.processor}, {self.instructions}{device}, torch {self.torch}"


class Difference(_Strict):
    """The largest difference between recorded values of a column and those of trials that were run again.

    Attributes:
        column: The column, with the place of the value in its lists and mappings.
        kind: The kind of value as which the two were compared.
        outcome: "within" the tolerance, or "differs".
        values: The number of values that differ.
        apart: The relative difference of measured numbers, or the ratio of two rounding errors.
        recorded: The recorded value.
        found: The value of the trial that was run again.
        row: The number of the row in its trial, from 1.
        trial: The digest of the trial.
        about: The first inputs of the trial.
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
        """The difference in one line."""
        apart = ""
        if self.apart is not None and math.isfinite(self.apart):
            apart = f", a factor of {self.apart:.3g}" if self.kind == "rounding" else f", {self.apart:.1e} of it"
        count = f"; {self.values} values differ" if self.values > 1 else ""
        values = f"{self.found!r} where {self.recorded!r} is recorded{apart}"
        return f"{self.column}: {values}, row {self.row} ({self.about}){count}"


class Verdict(_Strict):
    """A claim whose verdict changes if the new rows replace the recorded rows, with both verdicts."""

    claim: str
    recorded: str
    found: str


class Confirmation(_Strict):
    """One line of the file: trials of a record that were run again on one machine.

    Attributes:
        date: The time of the check, in UTC.
        commit: The commit of the code.
        machine: The machine.
        sources: The digest of the code with which the trials ran.
        minutes: The time budget.
        seconds: The sum of the trials' run times.
        trials: The digests of the trials, by outcome.
        differences: The largest differences of the columns.
        claims: The claims that select rows of these trials, without those that an earlier check has counted.
        all_claims: The number of claims that the record's rows measure.
        verdicts: The claims whose verdict changed.
        errors: The errors that trials raised, by the trial's digest.
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
    """All that one machine has confirmed of a record in its present state, with today's code.

    Attributes:
        machine: The machine.
        date: The time of its latest check.
        trials: The outcome of each trial that was run again, by digest.
        of: The number of trials in the record.
        seconds: The recorded run time of the trials that were run again.
        share: This time as a percentage of the recorded time of all trials.
        parts: The parts of the study of which a trial was run again.
        all_parts: All parts of the study in the record.
        claims: The claims that select rows of the trials that were run again.
        all_claims: The number of claims that the record's rows measure.
        differences: The differences that were found.
        verdicts: The claims whose verdict changed, each change once.
        errors: The errors that trials raised, by the trial's digest.
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
        """Whether a trial differs from the recorded one beyond the tolerance of its columns."""
        return "differs" in self.trials.values()

    @property
    def untouched(self) -> list[str]:
        """The parts of the study without a trial that was run again."""
        return sorted(self.all_parts - self.parts)

    @property
    def text(self) -> str:
        """The numbers of trials, parts and claims that were checked, with the outcomes, in one line."""
        outcomes = list(self.trials.values())
        words: dict[Outcome, str] = {"same": "the same", "within": "within tolerance", "differs": "different"}
        counts = ", ".join(
            f"{outcomes.count(outcome)} {word}" for outcome, word in words.items() if outcome in outcomes
        )
        parts, claims = f"{len(self.parts)} of {len(self.all_parts)}", f"{len(self.claims)} of {self.all_claims}"
        trials = f"{len(self.trials)} of {self.of} trials ({percent(self.share)}% of the time)"
        text = f"{trials}, {parts} parts and {claims} claims: {counts}"
        return text + f", {counted(len(self.verdicts), 'verdict')} changed" * bool(self.verdicts)


def percent(share: float) -> str:
    """Return a share in per cent with two digits and without an exponent.

    Examples:
        >>> percent(0.0591), percent(99.7)
        ('0.059', '100')
    """
    return f"{share:.0f}" if share >= 99.5 else f"{share:.2g}"


def this_machine(threads: int, *, accelerated: bool = False) -> Machine:
    """Describe this machine, on which trials run with `threads` threads each, on the GPU if `accelerated`."""
    return Machine(
        processor=devices.processor(),
        instructions=devices.instructions(),
        torch=str(torch.__version__).partition("+")[0],
        threads=threads,
        device=devices.model_of("cuda") if accelerated else "cpu",
    )


def file_beside(record: Path) -> Path:
    """Return the file of the confirmations that belongs to a record's file."""
    return record.with_suffix(".confirmed.jsonl")


def read(path: Path) -> list[Confirmation]:
    """Return the confirmations in a file, oldest first; a line that was not written completely is skipped."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read the confirmations {path.name}: {error.strerror or error}") from error
    confirmations = []
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
        except ValueError:
            continue
        try:
            confirmations.append(Confirmation.model_validate(restored(sealing.bare(content))))
        except ValidationError as error:
            problem = error.errors()[0]
            location = ".".join(str(part) for part in problem["loc"]) or "the whole"
            raise InputError(f"{path.name}, line {number}, is no confirmation: {location}: {problem['msg']}") from error
        sealing.check(content, f"{path.name}, line {number},")
    return confirmations


def append(confirmation: Confirmation, path: Path) -> None:
    """Append a confirmation to a file; if an interrupted check left an incomplete last line, start a new line first."""
    text = json.dumps(sealing.sealed(worded(confirmation.model_dump())), ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as stream:
            complete = not stream.tell()
            if not complete:
                stream.seek(-1, os.SEEK_END)
                complete = stream.read(1) == b"\n"
            # The line is written in a single call, so that two simultaneous checks do not mix their lines.
            line = ("" if complete else "\n").encode() + text.encode()
            if stream.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(stream.fileno())
    except OSError as error:
        raise storage_error(path, error) from error


def summaries(record: Record, lines: Sequence[Confirmation], sources: str) -> list[Summary]:
    """Return a summary of each machine's confirmations of a record, in the order of the machines' first checks.

    The latest check of a trial counts. Trials that the record no longer holds are left out.

    Args:
        record: The record.
        lines: The confirmations in the record's file.
        sources: The digest of the code; confirmations with other code are left out.
    """
    machines = dict.fromkeys(line.machine for line in lines if line.sources == sources)
    candidates = (
        _summary(record, [line for line in lines if (line.machine, line.sources) == (machine, sources)])
        for machine in machines
    )
    return [summary for summary in candidates if summary is not None]


def _summary(record: Record, lines: Iterable[Confirmation]) -> Summary | None:
    """Summarise one machine's confirmations of a record."""
    indices = {digest: index for index, digest in enumerate(record.digests)}
    latest: dict[str, tuple[Outcome, Confirmation]] = {}
    claims: set[str] = set()
    last = None
    for line in lines:
        last = line
        outcomes = {digest: outcome for outcome, digests in line.trials.items() for digest in digests}
        latest |= {digest: (outcome, line) for digest, outcome in outcomes.items() if digest in indices}
        # A line does not say which of its trials touches a claim. So its claims count only if all its trials still
        # are in the record.
        if outcomes.keys() <= indices.keys():
            claims.update(line.claims)
    if last is None or not latest:
        return None
    trials = [record.trials[indices[digest]] for digest in latest]
    seconds, total = sum(trial.seconds for trial in trials), sum(trial.seconds for trial in record.trials)
    used_lines = {id(line): line for _, line in latest.values()}.values()
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
            difference
            for line in used_lines
            for difference in line.differences
            if difference.trial in latest and latest[difference.trial][1] is line
        ),
        verdicts=tuple(
            dict.fromkeys(
                verdict
                for line in used_lines
                if any(outcome == "differs" and latest_line is line for outcome, latest_line in latest.values())
                for verdict in line.verdicts
            )
        ),
        errors={
            digest: text
            for line in used_lines
            for digest, text in line.errors.items()
            if digest in latest and latest[digest][1] is line
        },
    )


def confirmed_parts(record: Record, found: Iterable[Summary]) -> frozenset[str]:
    """Return the parts of a record with a confirmed trial: run again on any machine, with the recorded rows."""
    confirmed = {digest for summary in found for digest, outcome in summary.trials.items() if outcome in GOOD}
    return frozenset(
        part_of(trial) for digest, trial in zip(record.digests, record.trials, strict=True) if digest in confirmed
    )
