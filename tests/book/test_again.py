"""Recorded trials that run again: what differs is listed by column and by verdict, and nothing is stored."""

from __future__ import annotations

import pytest

from gradleak import claims
from gradleak.book import again
from gradleak.errors import InputError, MissingData
from gradleak.runs import recording, records
from tests.checkout import PARTS, Toy

VALUE = "value=self.scale * self.number"


def test_other_rows_are_listed_and_the_claims_judged_with_them(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    recording.record(checkout.load(), checkout.parameters(), rules=claims.rules("toy"), jobs=1)
    before = records.file_of("toy").read_bytes()
    outcomes = []
    for change in ("", " * (1 + 1e-9)", " * 2"):
        checkout.edit(VALUE, VALUE + change)
        found = again.again("toy", jobs=1)
        outcomes.append((found.lines[0].partition("ran again: ")[2], found.differs))
    assert outcomes == [
        ("4 with the same rows, 0 within the tolerance of their columns, 0 different", False),
        ("1 with the same rows, 3 within the tolerance of their columns, 0 different", False),
        ("1 with the same rows, 0 within the tolerance of their columns, 3 different", True),
    ]
    assert found.changed == {"toy-sum": ("reproduced", "not reproduced")}
    assert "  toy-sum: 'not reproduced' where 'reproduced' is recorded" in found.lines
    assert any(line.startswith("  differs, value: ") and "6 values differ" in line for line in found.lines)
    monkeypatch.setenv("TOY_FAILS", "2")
    found = again.again("toy", jobs=1)
    assert found.errors == ["ValueError: the toy broke"]
    assert len(found.compared) == 3, "a trial that fails stops no other"
    assert records.file_of("toy").read_bytes() == before


def test_the_cheapest_trial_of_every_part_comes_first(checkout: Toy) -> None:
    checkout.rewrite(*PARTS)
    record = recording.record(checkout.load(), checkout.parameters(), jobs=1)
    times = {0: 3.0, 1: 9.0, 2: 1.0, 3: 8.0}
    trials = [one.model_copy(update={"seconds": times[place]}) for place, one in enumerate(record.trials)]
    records.write(record.model_copy(update={"trials": trials}), records.file_of("toy"))
    begun = len(checkout.traced)
    assert len(again.again("toy", most=3, jobs=1).compared) == 3
    assert checkout.traced[begun:] == [2, 3, 0]


def test_without_a_record_or_time_nothing_runs(checkout: Toy) -> None:
    with pytest.raises(MissingData, match="'toy' has no record: `gradleak record toy` makes one"):
        again.again("toy")
    with pytest.raises(InputError, match="must be positive; got 0"):
        again.again("toy", minutes=0)
    assert checkout.traced == []
