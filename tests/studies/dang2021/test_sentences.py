"""The study of sentences from one gradient: read exactly, hidden by noise and full spans, and its page."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak import studies
from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.sequences import Sentences
from gradleak.show import figures
from gradleak.studies.dang2021 import sentences
from gradleak.studies.shared.read import reading_of
from gradleak.studies.shared.sentence_clients import Cell, ClientDefense

STUDY = "sentences"
CHOSEN = {
    "cells": ["lstm/64/1/untrained/4/2", "gru/64/1/trained/4/2"],
    "free": 1,
    "epochs": 1,
    "defended": "lstm/64/1/untrained/2/2",
    "defenses": ["noise/0.001", "noise/3", "sign/0"],
    "dp_cells": ["lstm/64/1/untrained/3/2"],
    "noise": [0, 1e-6, 1],
    "sizes": ["lstm/64/1/untrained/2/1", "lstm/64/1/untrained/32/1"],
    "withheld": ["embedding", "head", "recurrent"],
}
# Golden rows hold these as well.
MORE = {"cells": [*CHOSEN["cells"], "transformer/64/2/untrained/2/1"]}


def test_batches_are_read_exactly(record: Record) -> None:
    frame = record.frame()
    read = frame[frame["part"] == "read"]
    assert read["exact"].all()
    assert set(read["words"]) == {"all", "free"}
    assert not frame["wrongly_sure"].dropna().any()
    strong = frame[(frame["defense"] == "noise") & (frame["level"] == 3)]
    assert not strong["exact"].any(), "the check can fail: noise three times as large leaves nothing"


def test_clipping_stops_counts_and_noise_prefixes(record: Record) -> None:
    frame = record.frame()
    frame = frame[frame["part"] == "dp"]
    counts = frame[frame["reader"] == "counts"]
    assert len(counts) == 2
    assert not counts["exact"].any()
    assert not counts["status"].eq("unique").any()
    prefixes = frame[frame["reader"] == "prefixes"].groupby("multiplier")["right"].mean()
    assert prefixes[0] == 1
    assert prefixes[1] == 0
    assert not frame["wrongly_sure"].any()


def test_more_prefixes_than_the_span_holds_are_not_read(record: Record) -> None:
    frame = record.frame()
    right = frame[frame["part"] == "size"].groupby("size")["right"].mean()
    assert right[2] == 1
    assert right[32] == 0


def test_layers_that_are_not_sent(record: Record) -> None:
    frame = record.frame()
    right = frame[frame["part"] == "layers"].groupby(["withheld", "reader"])["right"].mean()
    assert right["embedding", "counts"] == 1
    assert right["head", "counts"] == 0
    assert right["head", "prefixes"] == 1
    assert right["recurrent", "prefixes"] == 0


def test_tables_and_figures(record: Record) -> None:
    table = sentences.table(record)
    assert list(table["model"]) == ["LSTM", "GRU"]
    assert list(table["exact with the words known"]) == ["1 of 1"] * 2
    protections = list(sentences.protections_table(record)["protection"])
    assert len(protections) == 11
    assert protections[2] == "sign"
    assert protections[3:6] == ["clipped, noise 0 (ε ∞)", "clipped, noise 1e-06 (ε 5e11)", "clipped, noise 1 (ε 4.4)"]
    assert protections[6:9] == ["batches of 2", "batches of 32", "all but the embedding"]
    assert records.about(record) == "8 batches in 5 settings, 3 levels of noise, sentences of our own"
    for draw in (sentences.figure_reading, sentences.figure_frontier):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


def test_judging() -> None:
    read = Sentences([[1, 2], [3]], [1, 2], "unique", "")
    assert reading_of(read, [[1, 2], [3], [3]])["exact"]
    wrong = reading_of(read, [[1, 2], [3], [4]])
    assert wrong["wrongly_sure"]
    assert wrong["right"] == pytest.approx(2 / 3)


def test_parameters_that_make_no_sense() -> None:
    for name, value in {"noise": [-1], "withheld": ["ear"]}.items():
        with pytest.raises(InputError, match=name):
            studies.parameters(STUDY, "quick", {name: value})
    with pytest.raises(InputError, match="'blur': choose one of none, noise"):
        ClientDefense.of("blur/1")
    with pytest.raises(InputError, match="'rnn': choose one of lstm"):
        Cell.of("rnn/64/1/untrained/4/2")
