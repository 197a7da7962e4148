"""What leaks: every number of the first page's table comes from a record, and so do the defences that it names."""

from __future__ import annotations

import re
from functools import cache

import pytest

from gradleak import studies
from gradleak.book import landing
from gradleak.book.generated import summaries
from gradleak.book.stopping import LEAST, stopping
from gradleak.runs import records
from gradleak.show.summary import Leaks
from gradleak.studies.shared.outcomes import AXES, KINDS, RESCALING, Outcome, family
from tests.recorded import record_of, summary_of

# Each page of the table, a column of its record, another value for it, and the words that the row then shows.
ROWS = [
    ("label-accuracy", "accuracy", 12.5, "12.5 % of 9000 smoothed labels"),
    ("batches", "largest_error", 0.25, "label error (L1) at most 2.5e-01"),
    ("fcn-inversion", "psnr", 11.0, "11.0 ± 0.0 dB"),
    ("batches", "seconds", 42.0, "42 s elapsed"),
    ("cnn-inversion", "psnr", 13.0, "13.0 ± 0.0 dB trained"),
    ("cnn-reconstruction", "eight_bit", 9.0, "9.0 dB trained"),
    ("llg-attack", "success", 21.0, "21.0 % of labels"),
    ("posterior-attack", "instances", 0.5, "instance accuracy (Jaccard index) 0.500"),
    ("reveal-labels", "exact", False, "0 % of sets"),
    ("batch-restoration", "accuracy", 33.0, "33.00 ± "),
    ("sentences", "exact", False, "0 of 100"),
    ("transcripts", "exact", False, "0 of "),
    ("peeling", "lowest_psnr", 12.0, "lowest PSNR 12.0 dB"),
]
WITH_LEAKS = sorted({page for page, *_ in ROWS})


@cache
def outcomes() -> list[Outcome]:
    """Return the outcomes of all records."""
    return [one for name in studies.names() for one in summary_of(name).outcomes]


def row(page: str) -> Leaks:
    """Return a page's row."""
    found = summary_of(page).leaks
    assert found is not None
    return found


@pytest.mark.parametrize(("page", "column", "value", "shown"), ROWS)
def test_a_row_says_what_its_record_says(page: str, column: str, value: object, shown: str) -> None:
    kept = record_of(page)
    trials = [
        trial.model_copy(update={"rows": [line | ({column: value} if column in line else {}) for line in trial.rows]})
        for trial in kept.trials
    ]
    with pytest.MonkeyPatch.context() as patch:
        recorded, other = records.recorded, kept.model_copy(update={"trials": trials})
        patch.setattr(records, "recorded", lambda name: other if name == page else recorded(name))
        summary = studies.load(page).summary(other)
    assert summary is not None
    assert summary.leaks is not None
    assert summary.leaks != row(page)
    assert shown in f"{summary.leaks.exactness} {summary.leaks.time}"


@pytest.mark.parametrize("name", WITH_LEAKS)
def test_a_row_says_how_many_cases_it_counts_and_its_page_measured_the_defences_in_it(name: str) -> None:
    own = row(name)
    assert re.search(r"\d (batches|images|transcripts|(smoothed |mixed )?labels)\b", own.exactness), "how many cases"
    assert any((one.leak, one.attack) == (own.kind, own.attack) for one in outcomes()), "the row names an attack"
    for stop in stopping(own, name, outcomes()):
        assert own.network in ("", stop.network)
        assert stop.family != RESCALING
        assert stop.severity == 0
        assert stop.count >= LEAST or stop.page == name


def test_every_row_leads_to_its_page_and_says_what_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [studies.load(name) for name in studies.names()]
    assert [study.name for study in pages if summary_of(study.name).leaks] == WITH_LEAKS
    text = landing.text({study.name: summary_of(study.name) for study in pages})
    for name in WITH_LEAKS:
        assert f"<executed/{studies.paper_of(name)}/{name}>`" in text
    assert text.count("not recorded") < 5
    monkeypatch.setattr(records, "recorded", lambda name: None)
    assert summaries(pages) == {}
    assert "{doc}" not in landing.text({}).split(":::\n")[1]


def test_outcomes_are_numbers_with_their_intervals_each_in_its_own_setting() -> None:
    settings = [(one.page, one.measure, *(getattr(one, axis) for axis in ("leak", *AXES))) for one in outcomes()]
    assert len(settings) == len(set(settings))
    assert {one.leak for one in outcomes()} == set(KINDS)
    for one in outcomes():
        assert min(one.count, one.batch) >= 1
        assert all((one.attack, one.network, family(one.defense)))
        assert one.training in ("trained", "untrained")
        assert not one.low > one.value
        assert not one.high < one.value
        assert one.unit == "dB" or (0 <= one.value <= 100 and one.low <= one.high)
