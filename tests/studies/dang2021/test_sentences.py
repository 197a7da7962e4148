"""The study of sentences from one gradient: exact, honest behind defences, and its page."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

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


def test_tables_and_figure(record: Record) -> None:
    table = sentences.table(record)
    assert list(table["model"]) == ["LSTM", "GRU"]
    assert list(table["exact with the words known"]) == ["1 of 1"] * 2
    assert list(sentences.defense_table(record)["defence"])[-1] == "sign"
    assert records.about(record) == "4 batches in 2 settings, sentences of our own"
    figure = sentences.figure_reading(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_judging() -> None:
    read = Sentences([[1, 2], [3]], [1, 2], "unique", "")
    assert reading_of(read, [[1, 2], [3], [3]])["exact"]
    wrong = reading_of(read, [[1, 2], [3], [4]])
    assert wrong["wrongly_sure"]
    assert wrong["right"] == pytest.approx(2 / 3)


def test_defences_are_told() -> None:
    with pytest.raises(InputError, match="'blur': choose one of none, noise"):
        ClientDefense.of("blur/1")
    with pytest.raises(InputError, match="'rnn': choose one of lstm"):
        Cell.of("rnn/64/1/untrained/4/2")
