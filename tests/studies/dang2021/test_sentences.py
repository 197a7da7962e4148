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


def test_tables_and_figures(record: Record) -> None:
    assert list(sentences.table(record)["model"]) == ["LSTM", "GRU"]
    assert len(sentences.free_table(record)) == 2
    assert list(sentences.defense_table(record)["defence"])[-1] == "sign"
    assert list(sentences.training_table(record)["model"]) == ["GRU"]
    assert records.about(record) == "4 batches in 2 settings, sentences of our own"
    for figure in (sentences.figure_reading(record), sentences.figure_noise(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


def test_what_a_span_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "private_of", lambda *_: [[5, 6, 7], [5, 6], [5, 8], [6, 6], []])
    monkeypatch.setattr(sentences, "ROOM", (("narrow", 7), ("wide", 8)))
    table = sentences.limits_table("sentences", 1)
    # The start, 5, 56, 567, 58, 6, 66; and of words at their places one is shared.
    assert set(table["distinct prefixes, median"]) == {"7"}
    assert set(table["distinct pairs of word and position, median"]) == {"6"}
    assert set(table["fits narrow (7 dimensions)"]) == {"0%"}
    assert set(table["fits wide (8 dimensions)"]) == {"100%"}


def test_judging() -> None:
    read = Sentences([[1, 2], [3]], [1, 2], "unique", "")
    assert reading_of(read, [[1, 2], [3], [3]]).exact
    wrong = reading_of(read, [[1, 2], [3], [4]])
    assert wrong.wrongly_sure
    assert wrong.right == pytest.approx(2 / 3)


def test_defences_are_told() -> None:
    with pytest.raises(InputError, match="'blur': choose one of none, noise"):
        ClientDefense.of("blur/1")
    with pytest.raises(InputError, match="'rnn': choose one of lstm"):
        Cell.of("rnn/64/1/untrained/4/2")
