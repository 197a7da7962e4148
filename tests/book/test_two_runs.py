"""Two runs of a page, compared: by name, by parameters, by claim and by row."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gradleak.book import two_runs
from gradleak.errors import InputError, MissingData
from gradleak.runs import records, runner
from gradleak.runs.records import Machine, Record
from tests.checkout import Toy


def changed(record: Record, trial: int, **values: object) -> Record:
    """Return a record in which the first row of a trial has other values."""
    trials = list(record.trials)
    rows = [trials[trial].rows[0] | values, *trials[trial].rows[1:]]
    trials[trial] = trials[trial].model_copy(update={"rows": rows})
    return record.model_copy(update={"trials": trials})


def test_equal_runs_differ_in_nothing(checkout: Toy) -> None:
    record = runner.run_study("toy", checkout.parameters())
    found = two_runs.compare(record, record)
    assert (found.parameters, found.provenance, found.unequal) == ([], [], [])
    assert (found.matched, found.only_first, found.only_second) == (4, 0, 0)
    assert all((column.same, column.within, column.differs) == (8, 0, 0) for column in found.columns)
    assert [claim.change for claim in found.claims] == ["none"]
    assert (
        found.sentences[-1]
        == f"{len(found.columns)} of {len(found.columns)} columns are the same in every row of these trials."
    )


def test_columns_count_what_agrees_and_name_the_largest_difference(checkout: Toy) -> None:
    record = runner.run_study("toy", checkout.parameters())
    value = record.trials[2].rows[0]["value"]
    assert isinstance(value, float)
    other = changed(changed(record, 2, value=value * (1 + 1e-6), nothing=math.nan), 3, value=7.5)
    by_name = {column.column: column for column in two_runs.compare(record, other).columns}
    assert (by_name["value"].same, by_name["value"].within, by_name["value"].differs) == (6, 1, 1)
    largest = by_name["value"].largest
    assert largest is not None
    assert (largest.first, largest.second, largest.row) == ("3", "7.5", 1)
    assert largest.apart == pytest.approx(1.5)
    assert "number=3" in largest.text
    assert by_name["nothing"].same == 8
    assert two_runs.compare(record, other).columns[0].column == "value", "what differs comes first"


def test_rows_of_one_run_only_and_claims_that_change(checkout: Toy) -> None:
    first = runner.run_study("toy", checkout.parameters())
    second = runner.run_study("toy", checkout.parameters(samples=3, words=["a", "b"]))
    found = two_runs.compare(first, second)
    assert [(pair.what, pair.first, pair.second) for pair in found.parameters] == [("samples", "4", "3")]
    assert (found.matched, found.only_first, found.only_second) == (3, 2, 0)
    (claim,) = found.claims
    assert (claim.verdict_first, claim.verdict_second) == ("holds", "disagrees, not judged")
    assert claim.change == "other verdict"
    larger = two_runs.compare(first, runner.run_study("toy", checkout.parameters(scale=2)))
    assert larger.matched == 0
    assert larger.sentences[-1] == "No rows can be compared one by one, since the inputs of all trials differ (scale)."


def test_the_device_does_not_part_trials_and_missing_rows_are_named(checkout: Toy) -> None:
    record = runner.run_study("toy", checkout.parameters())
    trials = [one.model_copy(update={"inputs": one.inputs | {"device": "cuda"}}) for one in record.trials]
    trials[0] = trials[0].model_copy(update={"rows": trials[0].rows[:1]})
    card = Machine(device="A card, driver 1", versions={"torch": "0"})
    other = record.model_copy(update={"trials": [one.model_copy(update={"machine": card}) for one in trials]})
    found = two_runs.compare(record, other)
    assert found.matched == 4
    assert found.unequal[0].startswith("2 and 1 in number=0")
    facts = {pair.what: pair.second for pair in found.provenance}
    assert facts["machine"] == "A card, torch 0"
    assert facts["version of torch"] == "0"


def test_runs_are_named_in_four_ways(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_RUNS", str(checkout.root / "runs"))
    with pytest.raises(MissingData, match="there is no run of 'toy': `gradleak run toy` makes one"):
        two_runs.read_both("toy", "recorded")
    run = runner.run_study("toy", checkout.parameters(samples=2))
    file = checkout.root / "runs" / "toy" / "toy.json"
    records.write(run, file)
    with pytest.raises(MissingData, match="'toy' has no recorded run"):
        two_runs.read_both("toy", "recorded")
    records.write(runner.run_study("toy", checkout.parameters()), records.file_of("toy"))
    for name in ("toy", str(file), str(file.parent)):
        first, second = two_runs.read_both(name, "recorded")
        assert (len(first.trials), len(second.trials)) == (2, 4)
    first, second = two_runs.read_both("recorded", "toy")
    assert (len(first.trials), len(second.trials)) == (4, 2)


def test_names_that_are_no_run(checkout: Toy, tmp_path: Path) -> None:
    for names, error, message in (
        (("recorded", "recorded"), InputError, "only one of them can be 'recorded'"),
        (("nowhere", "recorded"), MissingData, "there is no run 'nowhere': give a record's file"),
        ((str(checkout.root), "recorded"), InputError, "must have one record of a run; it has none"),
    ):
        with pytest.raises(error, match=message):
            two_runs.read_both(*names)
    record = runner.run_study("toy", checkout.parameters())
    records.write(record, tmp_path / "toy.json")
    records.write(record.model_copy(update={"study": "other"}), tmp_path / "other.json")
    with pytest.raises(InputError, match="runs of two pages cannot be compared: 'toy' and 'other'"):
        two_runs.read_both(str(tmp_path / "toy.json"), str(tmp_path / "other.json"))
