"""The identifiability study: what a gradient tells, by spread, classes and precision; no wrong answer called right."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak import studies
from gradleak.errors import InputError
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import identifiability

STUDY = "identifiability"
CHOSEN = identifiability.Parameters.at("smallest")


def test_nothing_that_is_called_unique_is_wrong(record: Record) -> None:
    frame = record.frame()
    asked = frame[frame["part"].isin(["map", "trouble", "clipped"])]
    assert (asked["wrong"] == 0).all()
    assert asked["unique"].sum() > 0


def test_what_is_proved_is_right_and_three_classes_are_told(record: Record) -> None:
    frame = record.frame()
    proved = frame[frame["part"] == "proof"]
    assert (proved["wrong"] == 0).all()
    ordinary = proved[(proved["classes"] == 10) & (proved["spread"] == 1.0) & (proved["dtype"] != "float16")]
    assert (ordinary["confirmed"] == ordinary["searched"]).all()
    three = proved[(proved["classes"] == 3) & (proved["labels"] == "smoothing") & (proved["dtype"] == "float64")]
    assert three["searched"].max() == 0 < three["unique"].max()


def test_the_map_shows_the_borders(record: Record) -> None:
    frame = record.frame()
    mapped = frame[(frame["part"] == "map") & (frame["labels"] == "smoothing") & (frame["classes"] == 10)]
    flat = mapped[(mapped["spread"] == 1e-3) & (mapped["dtype"] == "float32")].set_index("known")["unique"]
    assert flat[True] >= 90
    assert flat[False] <= 20
    ordinary = mapped[(mapped["spread"] == 1.0) & (mapped["dtype"] != "float16")]
    assert (ordinary["unique"] >= 90).all()
    three = frame[(frame["part"] == "map") & (frame["labels"] == "smoothing") & (frame["classes"] == 3)]
    assert (three.loc[three["known"].eq(False), "unique"] == 0).all()


def test_clipping_hides_nothing(record: Record) -> None:
    frame = record.frame()
    clipped = frame[(frame["part"] == "clipped") & (frame["norm"] == 0.1)]
    assert (clipped["touched"] == 100).all()
    assert (clipped["right"] >= 90).all()
    assert (clipped.loc[clipped["labels"] == "smoothing", "unaware"] <= 10).all()


def test_broken_assumptions_are_told_where_an_equation_is_left(record: Record) -> None:
    frame = record.frame()
    broken = frame[(frame["part"] == "broken") & (frame["classes"] == 10) & (frame["spread"] == 1.0)]
    assert len(broken) == len(identifiability.BROKEN)
    assert (broken["wrong"] == 0).all()


def test_a_case_is_the_same_each_time_and_cases_are_nasty() -> None:
    for number in range(5):
        one, two = identifiability.case(number, 7), identifiability.case(number, 7)
        assert torch.equal(one.weight, two.weight)
        assert torch.equal(one.targets, two.targets)
    drawn = [identifiability.case(number, 7) for number in range(300)]
    assert {one.kind for one in drawn} == set(identifiability.KINDS)
    assert {one.weight.dtype for one in drawn} == set(identifiability.DTYPES.values())
    assert max(len(one.hidden) for one in drawn) > 8
    assert min(one.factor for one in drawn) < 0.01
    assert max(one.factor for one in drawn) > 100


def test_two_classes_are_refused_before_any_work() -> None:
    for short in ({"classes": [2, 10]}, {"proved": [2]}):
        with pytest.raises(InputError, match="3 classes or more"):
            studies.parameters(STUDY, "quick", short)


def test_tables_and_figures(record: Record) -> None:
    assert set(identifiability.trouble_table(record)["gradient scale"]) == {"known", "unknown"}
    assert len(identifiability.clipped_table(record)) == 2
    assert len(identifiability.broken_table(record)) >= 6
    assert set(identifiability.proof_table(record)["proved, but wrong"]) == {"0"}
    for draw in (identifiability.figure_map, identifiability.figure_classes, identifiability.figure_broken):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
