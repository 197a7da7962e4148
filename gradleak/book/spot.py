"""Spot checks: some of a record's trials run again with today's code, compared, and the claims judged again."""

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
from gradleak.runs import confirmations, records, runner, sources, standing
from gradleak.runs.comparing import compare, tells_time, worst
from gradleak.runs.confirmations import Confirmation, Difference, Summary, Verdict
from gradleak.runs.kinds import Outcome
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record, Trial

# What was checked is written down as soon as this much time has passed since the last line.
SECONDS_A_LINE = 300.0
# A line names so many trials that raised an error, at most.
MOST_ERRORS = 5
# So many claims that are not touched yet are listed by their ids.
MOST_CLAIMS = 10


class Check:
    """One record's check on this machine: what was found so far, and what is still to be written to its file."""

    def __init__(self, record: Record, minutes: float) -> None:
        self.record, self.minutes = record, minutes
        self.study = studies.load(record.study)
        self.name = name_of(record)
        self.device = studies.resolve_device("auto") if record.accelerated else "cpu"
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
        """All that this machine has confirmed of the record, in this check and before."""
        return next((one for one in standing.confirmed_by(self.record) if one.machine == self.machine), None)

    @property
    def _before(self) -> dict[str, Outcome]:
        """The outcomes of the trials that this machine has checked and written down, by the digests of the trials."""
        summary = self.summary
        return summary.trials if summary else {}

    @property
    def done(self) -> set[int]:
        """The trials that this machine has run again with today's code, or that cannot be run here."""
        known = {digest: place for place, digest in enumerate(self.record.digests)}
        return {known[digest] for digest in self._before} | self.outcomes.keys() | self.unable.keys()

    @property
    def differing(self) -> list[int]:
        """The trials that came out otherwise when this machine checked them before, cheapest first."""
        before = self._before
        places = (place for place, digest in enumerate(self.record.digests) if before.get(digest) == "differs")
        return draws.cheapest_first(self.record, places)

    def run(self, places: Sequence[int], budget: Budget, jobs: int | None = None) -> int:
        """Run trials again until the time is over, and return how many ended.

        What was found is kept also where this is interrupted.
        """
        ended = 0
        inputs = [self._here(self.record.trials[place]) for place in places]
        written = time.monotonic()
        try:
            with contextlib.closing(runner.try_trials(self.study, inputs, jobs=jobs)) as finished:
                for number, found in finished:
                    self._take(places[number], found)
                    ended += 1
                    budget.spent += found.seconds if isinstance(found, Trial) else 0.0
                    if time.monotonic() - written > SECONDS_A_LINE:
                        self._write()
                        written = time.monotonic()
                    if budget.over:
                        break
        finally:
            self._write()
        return ended

    def _here(self, trial: Trial) -> Columns:
        """Return a trial's inputs with a device that is at hand: the recorded one, else the CPU."""
        return trial.inputs | ({"device": self.device} if records.on_gpu(trial.inputs) else {})

    def _take(self, place: int, found: Trial | GradleakError) -> None:
        """Compare a trial that ran again."""
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
        """Judge the claims again, and append what was found since the last line."""
        verdicts = self._judged()
        if not self._new:
            return
        named = self.record.digests
        trials: dict[Outcome, list[str]] = {}
        for place in sorted(self._new):
            trials.setdefault(self.outcomes[place], []).append(named[place])
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
                errors={named[place]: self.errors[place] for place in errors},
            ),
            standing.confirmations_of(self.record),
        )
        self._differences, self._new, self._spent = [], set(), 0.0

    def _judged(self) -> list[Verdict]:
        """Return the claims with another verdict once the new rows stand in the place of the recorded ones.

        A trial behind such a claim that was within its tolerance differs after all.
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
        """The parts of the study of which this machine has run no trial, and why, or nothing."""
        reasons = list(dict.fromkeys(self.unable.values()))
        summary = self.summary
        parts = summary.untouched if summary else sorted({records.part_of(t) for t in self.record.trials})
        if not parts:
            return ""
        named = ", ".join(part for part in parts if part) or "the whole study"
        return f"; not run again: {named}" + (f" ({'; '.join(reasons)})" if reasons else " (the time was too short)")

    @property
    def text(self) -> str:
        """What was found, in a line."""
        summary = self.summary
        told = summary.text if summary else "no trial was run again"
        return f"{self.name}: {standing.state(self.record)}: {told}{self.unchecked}"


def judged_again(
    record: Record, rows: dict[int, Trial], known: dict[str, Claim], behind: dict[str, frozenset[int]]
) -> list[Verdict]:
    """Return the claims whose verdict changes if some trials of a record are replaced by others."""
    if not rows:
        return []
    trials = [rows.get(place, trial) for place, trial in enumerate(record.trials)]
    # A new record: a copy would keep the lines of the old one.
    fields = {name: getattr(record, name) for name in Record.model_fields}
    replaced = Record.model_construct(**fields | {"trials": trials})
    found = []
    study = studies.load(record.study)
    for name, places in behind.items():
        # A time is not the same twice, and says nothing of whether the rows are.
        if places & rows.keys() and not tells_time(study, known[name].measure.column):
            before, after = (_verdict(known[name], one) for one in (record, replaced))
            if before != after:
                found.append(Verdict(claim=name, recorded=before, found=after))
    return found


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
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Check]:
    """Run trials of records again within so many minutes, and append what was found to their confirmations.

    First the trials that differed when this machine ran them before, and the cheapest trial of each part of every
    record that it has not run yet. Then the trials that touch most claims for their time. `say` is given a line for
    each record at its end, `progress` one for each group of trials.
    """
    if not minutes > 0:
        raise InputError(f"a spot check needs some minutes; got {minutes:g}")
    checks = [Check(record, minutes) for record in checked]
    budget = Budget(60 * minutes)
    parts = [
        (checked[number].trials[place].seconds, number, place)
        for number, one in enumerate(checks)
        for place in dict.fromkeys([*one.differing, *draws.for_parts(one.record, one.done)])
    ]
    chosen = draws.within(budget, [(number, place) for _, number, place in sorted(parts)], checked)
    for number in _cheapest_first(chosen, checked):
        if not budget.over:
            ran = checks[number].run(chosen[number], budget, jobs)
            progress(f"{checks[number].name}: {_trials(ran)} of its parts; {budget.text}")
    behind = [
        sorted((price, number, place) for price, place in draws.for_claims(one.record, one.behind, one.done))
        for number, one in enumerate(checks)
    ]
    more = draws.within(budget, draws.merged(behind), checked)
    for number in _cheapest_first({number: more.get(number, []) for number in range(len(checks))}, checked):
        if number in more and not budget.over:
            ran = checks[number].run(more[number], budget, jobs)
            progress(f"{checks[number].name}: {_trials(ran)} for its claims; {budget.text}")
        say(checks[number].text)
    return checks


def _cheapest_first(chosen: dict[int, list[int]], checked: Sequence[Record]) -> list[int]:
    """Sort records by the time of the trials that were chosen, so that none waits for a longer one."""
    seconds = {
        number: sum(checked[number].trials[place].seconds for place in places) for number, places in chosen.items()
    }
    return sorted(chosen, key=lambda number: (seconds[number], number))


def _trials(number: int) -> str:
    return f"{number} trial{'s' * (number != 1)}"


def untouched(checks: Sequence[Check]) -> list[str]:
    """Return, a line a record, the claims of whose rows this machine has run none again."""
    lines = []
    for one in checks:
        done = one.done - one.unable.keys()
        missing = [name for name, places in one.behind.items() if not places & done]
        if missing:
            more = f" and {len(missing) - MOST_CLAIMS} more" if len(missing) > MOST_CLAIMS else ""
            lines.append(f"  {one.name}: {', '.join(missing[:MOST_CLAIMS])}{more}")
    return [f"records with claims that are not touched yet: {len(lines)}", *lines] if lines else []


def differences(checks: Sequence[Check]) -> list[str]:
    """Return what differed on this machine, sorted by kind: changed verdicts, errors, and the columns."""
    found = [(one.name, summary) for one in checks if (summary := one.summary)]
    verdicts = [
        f"  {name}: {verdict.claim}: '{verdict.found}' where '{verdict.recorded}' is recorded"
        for name, summary in found
        for verdict in dict.fromkeys(summary.verdicts)
    ]
    errors = [f"  {name}: {text}" for name, summary in found for text in dict.fromkeys(summary.errors.values())]
    lines = [f"changed verdicts: {len(verdicts)}", *verdicts] if verdicts else []
    lines += [f"errors: {len(errors)}", *errors] if errors else []
    for outcome, where in (("differs", "beyond tolerance"), ("within", "within tolerance")):
        for kind in KINDS:
            told = [
                f"  {name}: {one.text}"
                for name, summary in found
                for one in worst(summary.differences)
                if (one.outcome, one.kind) == (outcome, kind)
            ]
            lines += [f"{kind} columns that differ {where}: {len(told)}", *told] if told else []
    return lines
