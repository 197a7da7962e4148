"""Recordings: resumed after a kill, stopped in time, merged with trials made elsewhere, judged by what they have."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gradleak import claims, studies
from gradleak.errors import InputError, UnknownName
from gradleak.runs import forecast, golden, recording, records, runner
from gradleak.runs.records import Accepted, Record, Trial
from tests.checkout import PARTS, Toy
from tests.recorded import record_of


def record(checkout: Toy, **options: Any) -> Record:
    parameters = checkout.parameters(**options.pop("changes", {}))
    return recording.record(checkout.load(), parameters, rules=claims.rules("toy"), jobs=1, **options)


def text_of(trials: Iterable[Trial]) -> str:
    """Return the inputs and rows of trials as text, in which NaN equals itself."""
    return repr([(trial.inputs, trial.rows) for trial in trials])


def kept() -> str:
    """Return the text of the record in the checkout."""
    return text_of(record_of("toy").trials)


def write_golden(text: str) -> None:
    golden.file_of("toy").parent.mkdir(parents=True, exist_ok=True)
    golden.file_of("toy").write_text(text)


def test_a_finished_record_runs_nothing_again_and_a_larger_run_only_what_is_new(checkout: Toy) -> None:
    first = record(checkout)
    assert kept() == text_of(first.trials)
    assert (len(first.trials), first.planned, first.waiting) == (4, 4, [])
    checkout.forget_trials()
    assert record(checkout).digest() == first.digest()
    assert checkout.traced == [0, 1, 2, 3]
    larger = record(checkout, changes={"samples": 6})
    assert checkout.traced == [0, 1, 2, 3, 4, 5]
    assert text_of(larger.trials[:4]) == text_of(first.trials)
    smaller = record(checkout, changes={"samples": 2})
    assert [trial.inputs["number"] for trial in smaller.trials] == [0, 1], "other trials are no part of the run"


def test_a_recording_stops_in_time_and_says_how_far_it_is(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    record(checkout, changes={"samples": 3})
    checkout.edit("if os.environ.get", "if self.number == 3: time.sleep(3600)\n        if os.environ.get")
    monkeypatch.setattr(recording, "SECONDS_A_WRITE", 0.0)
    partial = record(checkout, minutes=0.05)
    assert partial.size == "3 of 4 trials"
    assert [inputs["number"] for inputs in partial.waiting] == [3]
    assert kept() == text_of(partial.trials)
    (judged,) = claims.judgements(partial).values()
    assert judged.value == 3.0, "judged by what it has"
    assert judged.verdict == "trend: disagrees", "and not decided before the run has ended"
    checkout.claims.write_text(checkout.claims.read_text().replace("{word: a}", "{word: a, number: 3}"))
    assert claims.judgements(partial)["toy-sum"].verdict == "not run"
    with pytest.raises(InputError, match="must be positive; got -1"):
        record(checkout, minutes=-1.0)


def test_one_part_is_recorded_anew_and_the_others_stay(checkout: Toy) -> None:
    checkout.rewrite(*PARTS)
    record(checkout)
    checkout.rewrite(*PARTS, ('float("nan")', "1.0"))
    checkout.forget_trials()
    growing = recording.Recording(checkout.load(), checkout.parameters())
    asked = [growing.missing(), growing.missing("a")]
    texts = [forecast.forecast(checkout.load(), checkout.parameters(), todo=todo, jobs=1) for todo in asked]
    assert [text.partition("finished already, ")[2][:1] for text in texts] == ["0", "2"]
    second = record(checkout, part="a")
    assert kept() == text_of(second.trials)
    assert [trial.rows[0]["nothing"] for trial in second.trials[::2]] == [1.0, 1.0]
    assert all(math.isnan(trial.rows[0]["nothing"]) for trial in second.trials[1::2])
    with pytest.raises(UnknownName, match="part 'c'"):
        record(checkout, part="c")


def test_a_record_is_current_while_its_golden_rows_are_the_same(checkout: Toy) -> None:
    write_golden("[]")
    first = record(checkout)
    assert golden.state(first) == "current"
    checkout.edit("self.scale * self.number,", "self.scale * self.number + 0.0,  # reworded")
    assert golden.state(first) == "current", "the text of the code does not matter"
    write_golden("[1]")
    assert golden.state(first) == "outdated"
    assert golden.outdated(first) == 4
    accepted = first.model_copy(update={"accepted": Accepted(golden=golden.digest("toy"), why="only a name changed")})
    assert golden.state(accepted) == "current"
    records.write(accepted, records.file_of("toy"))
    begun = len(checkout.traced)
    assert golden.state(record(checkout)) == "current"
    assert len(checkout.traced) == begun, "accepted rows do not run again"
    write_golden("[2]")
    again = record(checkout)
    assert golden.state(again) == "current"
    assert len(checkout.traced) == begun + 4


def test_trials_made_elsewhere_are_merged(checkout: Toy, tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"

    def merge(**changes: Any) -> Record:
        (merged,) = recording.merge([file], claims.rules, lambda study: checkout.parameters(**changes))
        return merged

    elsewhere = runner.run_study("toy", checkout.parameters()).trials
    for trial in elsewhere[1:]:
        recording.append(trial, "toy", file)
    whole = file.read_bytes()
    assert len(whole.splitlines()) == 3
    file.write_bytes(whole + b'{"study": "toy", "tri')  # cut off by a kill
    record(checkout, changes={"samples": 1})
    merged = merge()
    assert kept() == text_of(merged.trials)
    assert [trial.inputs["number"] for trial in merged.trials] == [0, 1, 2, 3]
    assert text_of(merged.trials[1:]) == text_of(elsewhere[1:])
    assert text_of(merge().trials) == kept(), "merging twice changes nothing"
    before = records.file_of("toy").read_bytes()
    with pytest.raises(InputError, match="1 trials of 'toy' are no part of the run with these parameters"):
        merge(samples=3)
    write_golden("[1]")
    with pytest.raises(InputError, match="3 trials of 'toy' were made by other code"):
        merge()
    assert records.file_of("toy").read_bytes() == before
    file.write_bytes(b"{}\n" + whole)
    with pytest.raises(InputError, match=r"trials\.jsonl, line 1, is no trial"):
        merge()


def test_every_record_is_current() -> None:
    recorded = [record for name in studies.names() if (record := records.recorded(name))]
    old = [record.study for record in recorded if golden.state(record) != "current"]
    assert not old, (
        f"today's code changes the rows of {', '.join(old)}: record these pages anew, or state in their records why "
        'the rows stand, as {"accepted": {"golden": …, "why": …}}'
    )
