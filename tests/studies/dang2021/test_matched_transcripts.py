"""The study of matching: every way to search, stages of training, the last layer alone."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.data import text
from gradleak.errors import InputError
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.dang2021 import matched_transcripts as study
from gradleak.studies.shared.recognisers import tokens_of

STUDY = "matched-transcripts"
CHOSEN = {
    "rows": ["sentences/printed/0/2/1", "sentences/softmax/0/1/2"],
    "steps": 30,
    "stages": ["0/3", "2/2"],
    "lengths": ["3/1", "9/1"],
}


def test_every_way_has_its_rows(record: Record) -> None:
    matched = record.part("matching")
    matched = matched[matched["best_of"] > 0]
    assert sorted(zip(matched["search"], matched["bag"], matched["best_of"], strict=True)) == [
        ("printed", "with", 1),
        ("printed", "with", 2),
        ("printed", "without", 1),
        ("softmax", "with", 1),
        ("softmax", "with", 1),
        ("softmax", "without", 1),
        ("softmax", "without", 1),
    ]
    softmax = matched[matched["search"] == "softmax"]
    assert softmax["exact"].all()
    assert (softmax["word_errors"] == 0).all()
    with_bag = softmax[softmax["bag"] == "with"]["variables"].to_numpy()
    assert (with_bag < softmax[softmax["bag"] == "without"]["variables"].to_numpy()).all()


def test_what_is_gained_follows_from_the_rows(record: Record) -> None:
    for trial in record.trials:
        if trial.inputs["part"] == "matching":
            exact = {(row["bag"], row["best_of"]): row.get("exact") for row in trial.rows}
            (gains,) = [row for row in trial.rows if row["best_of"] == 0]
            assert gains["bag_gains"] == exact["with", 1] - exact["without", 1]
            assert gains["starts_gain"] == exact["with", trial.inputs["starts"]] - exact["with", 1]


def test_closed_forms_are_exact(record: Record) -> None:
    stages, last = record.part("stages"), record.part("last layer")
    assert len(stages) == 5
    assert stages["exact"].all()
    assert stages["bag_exact"].all()
    assert list(last["length"]) == [3, 9]
    assert last["exact"].all()
    assert last["unique"].all()


def test_texts_are_the_shortest_and_of_a_length() -> None:
    chosen = [len(one) for one in tokens_of("sentences", study.short("sentences", 80))]
    assert chosen == sorted(chosen)
    end = text.vocabulary("sentences").end
    for number in range(3):
        tokens = study.tokens_long("sentences", 7, number)
        assert len(tokens) == 7
        assert tokens[-1] == end
    with pytest.raises(InputError, match="there are 80 utterances to attack; 81"):
        study.short("sentences", 81)
    with pytest.raises(InputError, match="no text of 'sentences' has 99 tokens"):
        study.tokens_long("sentences", 99, 0)


def test_tables_and_figures(record: Record) -> None:
    table = study.table(record)
    assert list(table["runs"]) == ["1", "1", "2", "1", "1"]
    assert table["transcripts exact"].iloc[-1].startswith("2 of 2 (")
    assert list(study.bag_table(record)["search"]) == ["as printed", "labels by softmax"]
    for draw in (study.figure_ways, study.figure_stages):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
