"""The transcripts' study: utterances alone and together, other kinds of speech, searches, and the last layer."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.data import text
from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.dang2021 import transcripts as study
from gradleak.studies.shared.recognisers import tokens_of
from gradleak.studies.shared.transcript_errors import edits

STUDY = "transcripts"
CHOSEN = {
    "rows": ["small/0/6", "small-2/0/2"],
    "batches": ["2/3"],
    "voices": ["en-us/175/50", "en-gb/140/35"],
    "utterances": 4,
    "stages": [0, 2],
    "searches": ["sentences/printed/0/2/1", "sentences/softmax/0/1/2"],
    "steps": 30,
    "training": ["small/0/3", "small/2/2"],
    "lengths": ["3/1", "9/1"],
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


def test_words_that_were_said_lie_in_the_span(record: Record) -> None:
    alone, heard, last = (record.part(part) for part in ("alone", "synthesised", "last layer"))
    assert (alone["word_errors"] == 0).all()
    assert (alone["worst"] < 1e-5).all()
    assert (alone["other"] > 1e-3).all()
    assert (heard["length_error"] == 0).all()
    assert list(last["length"]) == [3, 9]
    if study.can_speak():
        assert set(heard["voice"]) == {"en-us/175/50", "en-gb/140/35"}


def test_nothing_wrong_is_called_unique(record: Record) -> None:
    assert not record.frame()["wrongly_sure"].dropna().any()
    together = record.part("together")
    assert together[together["shared"] == False]["exact"].all()  # noqa: E712


def test_every_search_has_its_rows_and_gains(record: Record) -> None:
    matching = [trial for trial in record.trials if trial.inputs["part"] == "matching"]
    for trial, expected in zip(
        matching, [["without 1", "with 1", "with 2"], *[["without 1", "with 1"]] * 2], strict=True
    ):
        *rows, gains = trial.rows
        exact = {f"{row['bag']} {row['best_of']}": row["exact"] for row in rows}
        assert list(exact) == expected
        assert gains["bag_gains"] == exact["with 1"] - exact["without 1"]
        assert gains["starts_gain"] == exact[expected[-1]] - exact["with 1"]
        if trial.inputs["search"] == "softmax":
            assert all(row["exact"] and row["word_errors"] == 0 for row in rows)
            assert rows[1]["variables"] < rows[0]["variables"]


def test_texts_are_the_shortest_and_of_a_length() -> None:
    chosen = [len(one) for one in tokens_of("sentences", study.short("sentences", 80))]
    assert chosen == sorted(chosen)
    tokens = study.tokens_long("sentences", 7, 2)
    assert len(tokens) == 7
    assert tokens[-1] == text.vocabulary("sentences").end
    with pytest.raises(InputError, match="there are 80 utterances to attack; 81"):
        study.short("sentences", 81)
    with pytest.raises(InputError, match="no text of 'sentences' has 99 tokens"):
        study.tokens_long("sentences", 99, 0)


@pytest.mark.parametrize(
    ("found", "truth", "count"), [("a b c", "a b c", 0), ("a c", "a b c", 1), ("", "a b", 2), ("x b y z", "a b c", 3)]
)
def test_words_in_error(found: str, truth: str, count: int) -> None:
    assert edits(found.split(), truth.split()) == count


def test_tables_and_figures(record: Record) -> None:
    table = study.table(record)
    assert list(table["read exactly"]) == ["6 of 6", "2 of 2", "0 of 2", "1 of 1", "4 of 4", "4 of 4"]
    assert "6 utterances per recogniser" in records.about(record)
    for draw in (study.figure_steps, study.figure_misses, study.figure_ways, study.figure_stages):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


def test_speech_is_artificial_only_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "can_speak", lambda: False)
    for parameters, voices in (
        (study.Parameters(), {study.ARTIFICIAL}),
        (study.Parameters(stand_in=False), {"en-us/175/50", "en-gb/140/35", "en-us+f3/210/65"}),
    ):
        heard = [one for one in parameters.experiments() if isinstance(one, study.SynthesisedTexts)]
        assert {voice for one in heard for voice in one.voices} == voices


def test_digits_are_drawn_again_alike() -> None:
    assert study.digits_of(3, 2023) == study.digits_of(3, 2023)
    assert [len(study.digits_of(number, 0).split()) for number in range(7)] == [2, 3, 4, 5, 6, 7, 2]
