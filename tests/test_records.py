"""Records come back as they were written, and their digest is about results alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gradleak.book import records
from gradleak.book.records import Provenance, Record, Trial
from gradleak.errors import InputError

FACTS = Provenance(
    device="CPU", versions={"torch": "2"}, commit="abc", date="2026-01-01", seed=1, wall_seconds=2.0, data=["digits"]
)
VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5)


def record(rows: list[dict[str, object]], seconds: float = 1.0) -> Record:
    trials = [Trial(inputs={"n": 1}, rows=rows, seconds=seconds)]
    return Record(study="toy", profile="quick", parameters={"count": 1}, trials=trials, provenance=FACTS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(rows=st.lists(st.dictionaries(st.text(min_size=1, max_size=4), VALUES, max_size=4), max_size=4))
def test_round_trip(rows: list[dict[str, object]], tmp_path: Path) -> None:
    if any(value in ("nan", "inf", "-inf") for row in rows for value in row.values()):
        return
    written = record(rows)
    records.write(written, tmp_path / "r.json")
    assert records.read(tmp_path / "r.json") == written
    assert records.read(tmp_path / "r.json").digest() == written.digest()


def test_infinities_and_nan_come_back(tmp_path: Path) -> None:
    records.write(record([{"a": math.inf, "b": -math.inf, "c": math.nan}]), tmp_path / "r.json")
    row = records.read(tmp_path / "r.json").trials[0].rows[0]
    assert row["a"] == math.inf
    assert row["b"] == -math.inf
    assert math.isnan(row["c"])


def test_digest_leaves_out_times_and_nothing_else() -> None:
    assert record([{"a": 1}]).digest() == record([{"a": 1}], seconds=9).digest()
    assert record([{"a": 1}]).digest() != record([{"a": 2}]).digest()


def test_frame_joins_inputs_and_rows() -> None:
    frame = record([{"a": 1}, {"a": 2}]).frame()
    assert frame.to_dict("list") == {"n": [1, 1], "a": [1, 2]}


def test_unknown_fields_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        Trial(inputs={}, rows=[], seconds=1, host="here")  # type: ignore[call-arg]
    (tmp_path / "r.json").write_text('{"study": "toy"')
    with pytest.raises(InputError, match=r"r.json is not a record"):
        records.read(tmp_path / "r.json")


def test_provenance_table_says_all() -> None:
    text = repr(records.provenance_table(record([{"a": 1}])))
    for part in ("CPU", "torch 2", "abc", "2026-01-01", "digits", "count = 1"):
        assert part in text


def test_recorded_results_of_the_checkout_can_be_read() -> None:
    from gradleak import paths

    for file in paths.results().glob("*/*.json"):
        assert records.read(file).study == file.stem
        assert file == records.file_of(file.stem)
