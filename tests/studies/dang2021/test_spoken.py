"""The study of speech that is heard: what is read of it, and what stands in where nobody speaks."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.dang2021 import spoken

STUDY = "spoken"
CHOSEN = {"voices": ["en-us/175/50", "en-gb/140/35"], "utterances": 4, "stages": [0, 2]}


def test_what_is_heard_is_read(record: Record) -> None:
    frame = record.frame()
    assert len(frame) == 8
    assert frame["exact"].all()
    assert frame["bag_exact"].all()
    assert (frame["length_error"] == 0).all()
    assert not frame["wrongly_sure"].any()
    if spoken.can_speak():
        assert set(frame["voice"]) == {"en-us/175/50", "en-gb/140/35"}


def test_table_and_figure(record: Record) -> None:
    assert list(spoken.table(record)["transcripts exact"]) == ["4 of 4"] * 2
    assert "4 synthesised utterances" in records.about(record)
    figure = spoken.figure_misses(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_speech_is_made_up_only_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spoken, "can_speak", lambda: False)
    assert _voices(spoken.Parameters()) == {spoken.MADE_UP}
    assert _voices(spoken.Parameters(stand_in=False)) == {"en-us/175/50", "en-gb/140/35", "en-us+f3/210/65"}


def _voices(parameters: spoken.Parameters) -> set[str]:
    experiments = list(parameters.experiments())
    assert all(isinstance(one, spoken.SynthesisedTexts) for one in experiments)
    return {voice for one in experiments if isinstance(one, spoken.SynthesisedTexts) for voice in one.voices}


def test_digits_are_drawn_again_alike() -> None:
    assert spoken.digits_of(3, 2023) == spoken.digits_of(3, 2023)
    assert [len(spoken.digits_of(number, 0).split()) for number in range(7)] == [2, 3, 4, 5, 6, 7, 2]
