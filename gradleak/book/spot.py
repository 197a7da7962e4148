"""Spot-check records: run some trials again with today's code, compare their rows, and judge the claims again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from gradleak import claims, studies
from gradleak.book import draws
from gradleak.book.checked import KINDS, name_of
from gradleak.book.draws import Budget
from gradleak.claims import Claim
from gradleak.claims.behind import trials_behind
from gradleak.errors import GradleakError, InputError, MissingData, first_line
from gradleak.runs import confirmations, experiments, records, runner, sources, standing
from gradleak.runs.comparing import compare, tells_time, worst
from gradleak.runs.confirmations import Confirmation, Difference, Summary, Verdict
from gradleak.runs.kinds import Outcome
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record, Trial
from gradleak.wording import counted

# The time (s) after which the results of a running check are written to the file.
SECONDS_A_LINE = 300.0
# The most trials with errors that a line of the file names.
MOST_ERRORS = 5
# The most untouched claims of a record that are listed by their ids.
MOST_CLAIMS = 10


class Check:
    """The check of one record on this machine: the results so far, and those that are not written to its file yet."""

    def __init__(self, record: Record, minutes: float, device: str | None = None) -> None:
        self.record, self.minutes = record, minutes
        self.study = studies.load(record.study)
        self.name = name_of(record)
        recorded = experiments.resolve_device("auto") if record.accelerated else "cpu"
        # The parts whose trials run on this device: all but those that stay on the CPU.
        self.moving = {part for part, kind in self.study.experiments.items() if not kind.stays_on_cpu}
        self.device = experiments.resolve_device(device) if device and self.moving else recorded
        self.machine = confirmations.this_machine(self.study.threads, accelerated=self.device != "cpu")
        self.sources = sources.of_trials(self.study).digest
        self.claims = {claim.id: claim for claim in claims.load(record.study)}
        self.behind = trials_behind(self.claims.values(), record)
        self.outcomes: dict[int, Outcome] = {}
        self.rows: dict[int, Trial] = {}
        self.errors: dict[int, str] = {}
        self.unable: dict[int, str] = {}
        self._differences: list[Difference] = []
        self._new: set[int] = set()
        self._spent = 0.0

    @property
    def summary(self) -> Summary | None:
        """All that this machine has confirmed of the record, in this check and in earlier ones."""
        return next(
            (summary for summary in standing.confirmed_by(self.record) if summary.machine == self.machine), None
        )

    @property
    def _before(self) -> dict[str, Outcome]:
        """The outcomes of the trials that this machine has checked and written to the file, by the trials' digests."""
        summary = self.summary
        return summary.trials if summary else {}

    @property
    def done(self) -> set[int]:
        """The indices of the trials that this machine has run again with today's code, or that cannot be run here."""
        indices = {digest: index for index, digest in enumerate(self.record.digests)}
        return {indices[digest] for digest in self._before} | self.outcomes.keys() | self.unable.keys()

    @property
    def differing(self) -> list[int]:
        """The indices of the trials that differed when this machine checked them before, cheapest first."""
        before = self._before
        places = (index for index, digest in enumerate(self.record.digests) if before.get(digest) == "differs")
        return draws.cheapest_first(self.record, places)

    def run(self, places: Sequence[int], budget: Budget, jobs: int | None = None) -> int:
        """Run trials again until the budget is used up, and return the number of trials that ended.

        The results are written to the file even if the check is interrupted.

        Args:
            places: The indices of the trials.
            budget: The budget, which this call reduces.
            jobs: The number of processes.
        """
        ended = 0
        inputs = [self._here(self.record.trials[place]) for place in places]
        written = time.monotonic()
        try:
            with contextlib.closing(runner.try_trials(self.study, inputs, jobs=jobs)) as finished:
                for number, result in finished:
                    self._take(places[number], result)
                    ended += 1
                    budget.spent += result.seconds if isinstance(result, Trial) else 0.0
                    if time.monotonic() - written > SECONDS_A_LINE:
                        self._write()
                        written = time.monotonic()
                    if budget.over:
                        break
        finally:
            self._write()
        return ended

    def _here(self, trial: Trial) -> Columns:
        """Return a trial's inputs with the device of this check."""
        moves = "device" in trial.inputs and (records.on_gpu(trial.inputs) or records.part_of(trial) in self.moving)
        return trial.inputs | ({"device": self.device} if moves else {})

    def _take(self, place: int, found: Trial | GradleakError) -> None:
        """Compare a trial that was run again with the recorded trial, and store the outcome."""
        if isinstance(found, MissingData | runner.MemoryLack):
            self.unable[place] = first_line(found)
            return
        self._new.add(place)
        if isinstance(found, GradleakError):
            self.outcomes[place], self.errors[place] = "differs", first_line(found)
            return
        recorded = self.record.trials[place]
        comparison = compare(self.study, recorded, found)
        self.outcomes[place] = comparison.outcome
        self.rows[place] = recorded.model_copy(update={"rows": found.rows})
        self._differences += comparison.differences
        self._spent += found.seconds

    def _write(self) -> None:
        """Judge the claims again, and append a line with the new results to the file, if there are any."""
        verdicts = self._judged()
        if not self._new:
            return
        digests = self.record.digests
        trials: dict[Outcome, list[str]] = {}
        for place in sorted(self._new):
            trials.setdefault(self.outcomes[place], []).append(digests[place])
        summary = self.summary
        touched = {name for name, places in self.behind.items() if places & self._new}
        errors = [place for place in sorted(self._new) if place in self.errors][:MOST_ERRORS]
        confirmations.append(
            Confirmation(
                date=records.now(),
                commit=records.commit(),
                machine=self.machine,
                sources=self.sources,
                minutes=round(self.minutes, 2),
                seconds=round(self._spent, 1),
                trials=trials,
                differences=worst(self._differences),
                claims=sorted(touched - (summary.claims if summary else set())),
                all_claims=len(self.behind),
                verdicts=verdicts,
                errors={digests[place]: self.errors[place] for place in errors},
            ),
            standing.confirmations_of(self.record),
        )
        self._differences, self._new, self._spent = [], set(), 0.0

    def _judged(self) -> list[Verdict]:
        """Return the claims whose verdict changes if the new rows replace the recorded rows.

        A trial that such a claim selects and that was within its tolerance then counts as "differs".
        """
        changed = judged_again(self.record, self.rows, self.claims, self.behind)
        for verdict in changed:
            for place in self.behind[verdict.claim]:
                if self.outcomes.get(place) == "within":
                    self.outcomes[place] = "differs"
                    self._new.add(place)
        return changed

    @property
    def unchecked(self) -> str:
        """A text on the parts of the study without a trial that this machine has run again, with reasons, or ""."""
        reasons = list(dict.fromkeys(self.unable.values()))
        summary = self.summary
        parts = summary.untouched if summary else sorted({records.part_of(trial) for trial in self.record.trials})
        if not parts:
            return ""
        part_names = ", ".join(part for part in parts if part) or "the whole study"
        return f"; not run again: {part_names}" + (
            f" ({'; '.join(reasons)})" if reasons else " (the time was too short)"
        )

    @property
    def text(self) -> str:
        """The state of the record and the results of the check, in one line."""
        summary = self.summary
        result = summary.text if summary else "no trial was run again"
        return f"{self.name}: {standing.state(self.record)}: {result}{self.unchecked}"


def judged_again(
    record: Record, rows: dict[int, Trial], known: dict[str, Claim], behind: dict[str, frozenset[int]]
) -> list[Verdict]:
    """Return the claims whose verdict changes if some trials of a record are replaced.

    Args:
        record: The record.
        rows: The new trials, by the indices of the trials that they replace.
        known: The claims, by id.
        behind: The indices of the trials whose rows a claim selects, by the claim's id.
    """
    if not rows:
        return []
    trials = [rows.get(place, trial) for place, trial in enumerate(record.trials)]
    replaced = record.model_copy(update={"trials": trials})
    verdicts = []
    study = studies.load(record.study)
    for name, places in behind.items():
        # Claims about run times are left out: times differ from run to run even if the code is the same.
        if places & rows.keys() and not tells_time(study, known[name].measure.column):
            before, after = (_verdict(known[name], version) for version in (record, replaced))
            if before != after:
                verdicts.append(Verdict(claim=name, recorded=before, found=after))
    return verdicts


def _verdict(claim: Claim, record: Record) -> str:
    try:
        return str(claims.judge(claim, record).verdict)
    except InputError as error:
        return f"cannot be judged: {first_line(error)}"


def check(
    checked: Sequence[Record],
    minutes: float,
    *,
    jobs: int | None = None,
    device: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Check]:
    """Run trials of records again within a time budget, and append the results to the records' confirmations.

    First comes the cheapest trial of every part of a record that this machine has not run yet, then the trials that
    differed when this machine ran them before. Then come the trials that touch the most claims for their run time.

    Args:
        checked: The records.
        minutes: The time budget.
        jobs: The number of processes.
        device: The device on which trials run; by default the recorded one if it is available, or else the CPU.
        say: Called with a line about each record at the end of its check.
        progress: Called with a line after each group of trials.
    """
    if not minutes > 0:
        raise InputError(f"the minutes of a spot check must be positive; got {minutes:g}")
    checks = [Check(record, minutes, device) for record in checked]
    budget = Budget(60 * minutes)
    parts = [
        (again, checked[number].trials[place].seconds, number, place)
        for number, record_check in enumerate(checks)
        for again, places in (
            (False, draws.for_parts(record_check.record, record_check.done)),
            (True, record_check.differing),
        )
        for place in places
    ]
    chosen = draws.within(budget, [(number, place) for *_, number, place in sorted(parts)], checked)
    for number in _cheapest_first(chosen, checked):
        if not budget.over:
            ran = checks[number].run(chosen[number], budget, jobs)
            progress(f"{checks[number].name}: {counted(ran, 'trial')} of its parts; {budget.text}")
    behind = [
        sorted(
            (price, number, place)
            for price, place in draws.for_claims(record_check.record, record_check.behind, record_check.done)
        )
        for number, record_check in enumerate(checks)
    ]
    further = draws.within(budget, draws.merged(behind), checked)
    for number in _cheapest_first({number: further.get(number, []) for number in range(len(checks))}, checked):
        if number in further and not budget.over:
            ran = checks[number].run(further[number], budget, jobs)
            progress(f"{checks[number].name}: {counted(ran, 'trial')} for its claims; {budget.text}")
        say(checks[number].text)
    return checks


def _cheapest_first(chosen: dict[int, list[int]], checked: Sequence[Record]) -> list[int]:
    """Sort the indices of records by the run time of their chosen trials, so that none waits for a longer record."""
    seconds = {
        number: sum(checked[number].trials[place].seconds for place in places) for number, places in chosen.items()
    }
    return sorted(chosen, key=lambda number: (seconds[number], number))


def untouched(checks: Sequence[Check]) -> list[str]:
    """Return a line for each record with the claims of which this machine has run no trial again."""
    lines = []
    for record_check in checks:
        done = record_check.done - record_check.unable.keys()
        missing = [name for name, places in record_check.behind.items() if not places & done]
        if missing:
            rest = f" and {len(missing) - MOST_CLAIMS} more" if len(missing) > MOST_CLAIMS else ""
            lines.append(f"  {record_check.name}: {', '.join(missing[:MOST_CLAIMS])}{rest}")
    return [f"records with claims that are not touched yet: {len(lines)}", *lines] if lines else []


def differences(checks: Sequence[Check]) -> list[str]:
    """Return lines on all differences on this machine: changed verdicts, errors, then columns by kind."""
    summaries = [(one.name, summary) for one in checks if (summary := one.summary)]
    verdicts = [
        f"  {name}: {verdict.claim}: '{verdict.found}' where '{verdict.recorded}' is recorded"
        for name, summary in summaries
        for verdict in summary.verdicts
    ]
    errors = [f"  {name}: {text}" for name, summary in summaries for text in dict.fromkeys(summary.errors.values())]
    lines = [f"changed verdicts: {len(verdicts)}", *verdicts] if verdicts else []
    lines += [f"errors: {len(errors)}", *errors] if errors else []
    for outcome, where in (("differs", "beyond tolerance"), ("within", "within tolerance")):
        for kind in KINDS:
            texts = [
                f"  {name}: {one.text}"
                for name, summary in summaries
                for one in worst(summary.differences)
                if (one.outcome, one.kind) == (outcome, kind)
            ]
            lines += [f"{kind} columns that differ {where}: {len(texts)}", *texts] if texts else []
    return lines
