"""The transcripts' study: utterances alone and together, other kinds of speech, searches, and the last layer."""

from __future__ import annotations

import pytest

from gradleak.runs.records import Record
from gradleak.studies.dang2021 import transcripts as study
from gradleak.studies.dang2021.experiments import edits
from gradleak.studies.shared.recognisers import AttackedRecogniser

STUDY = "transcripts"
CHOSEN = {
    "rows": AttackedRecogniser.listed(("small", 0, 6), ("small-2", 0, 2)),
    "batches": study.Counted.listed((2, 3)),
    "voices": ["en-us/175/50", "en-gb/140/35"],
    "utterances": 4,
    "stages": [0, 2],
    "searches": study.SearchedTexts.listed(("sentences", "printed", 0, 2, 1), ("sentences", "softmax", 0, 1, 1)),
    "steps": 20,
    "training": AttackedRecogniser.listed(("small", 0, 3), ("small", 2, 2)),
    "lengths": study.Counted.listed((3, 1), (9, 1)),
}


@pytest.mark.parametrize(
    ("part", "count", "true"),
    [
        ("alone", 8, ["exact", "unique"]),
        ("synthesised", 8, ["exact", "bag_exact"]),
        ("stages", 5, ["exact", "bag_exact"]),
        ("last layer", 2, ["exact", "unique"]),
    ],
)
def test_closed_forms_are_exact(part: str, count: int, true: list[str], record: Record) -> None:
    rows = record.part(part)
    assert len(rows) == count
    assert rows[true].all(axis=None)


def test_nothing_wrong_is_called_unique(record: Record) -> None:
    assert not record.frame()["wrongly_sure"].dropna().any()
    together = record.part("together")
    assert together[together["shared"] == False]["exact"].all()  # noqa: E712


@pytest.mark.parametrize(
    ("found", "truth", "count"), [("a b c", "a b c", 0), ("a c", "a b c", 1), ("", "a b", 2), ("x b y z", "a b c", 3)]
)
def test_words_in_error(found: str, truth: str, count: int) -> None:
    assert edits(found.split(), truth.split()) == count


def test_speech_is_artificial_only_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "can_speak", lambda: False)
    for parameters, voices in (
        (study.Parameters(), {study.ARTIFICIAL}),
        (study.Parameters(stand_in=False), {"en-us/175/50", "en-gb/140/35", "en-us+f3/210/65"}),
    ):
        heard = [one for one in parameters.experiments() if isinstance(one, study.SynthesisedTexts)]
        assert {voice for one in heard for voice in one.voices} == voices
