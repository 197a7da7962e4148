"""The study of sentences from one gradient: read exactly, hidden by noise and full spans, and its page."""

from __future__ import annotations

import pytest

from gradleak.runs.records import Record
from gradleak.sequences import Sentences
from gradleak.studies.shared.read import reading_of
from gradleak.studies.shared.sentence_clients import Cell

STUDY = "sentences"
CHOSEN = {
    "cells": Cell.listed(("lstm", 64, 1, "untrained", 4, 2), ("gru", 64, 1, "trained", 4, 2)),
    "free": 1,
    "epochs": 1,
    "defended": Cell.listed(("lstm", 64, 1, "untrained", 2, 2))[0],
    "defenses": ["noise/0.001", "noise/3", "sign/0"],
    "dp_cells": Cell.listed(("lstm", 64, 1, "untrained", 3, 2)),
    "noise": [0, 1e-6, 1],
    "sizes": Cell.listed(("lstm", 64, 1, "untrained", 2, 1), ("lstm", 64, 1, "untrained", 32, 1)),
    "withheld": ["embedding", "head", "recurrent"],
}
# Golden rows hold these as well.
MORE = {"cells": [*CHOSEN["cells"], *Cell.listed(("transformer", 64, 2, "untrained", 2, 1))]}


def test_batches_are_read_exactly(record: Record) -> None:
    frame = record.frame()
    read = frame[frame["part"] == "read"]
    assert read["exact"].all()
    assert set(read["words"]) == {"all", "free"}
    assert not frame["wrongly_sure"].dropna().any()
    strong = frame[(frame["defense"] == "noise") & (frame["level"] == 3)]
    assert not strong["exact"].any(), "the check can fail: noise three times as large leaves nothing"


def test_judging() -> None:
    read = Sentences([[1, 2], [3]], [1, 2], "unique", "")
    assert reading_of(read, [[1, 2], [3], [3]])["exact"]
    wrong = reading_of(read, [[1, 2], [3], [4]])
    assert wrong["wrongly_sure"]
    assert wrong["right"] == pytest.approx(2 / 3)
