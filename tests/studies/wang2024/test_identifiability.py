"""The identifiability study: what a gradient tells, by spread, classes and precision; no wrong answer called right."""

from __future__ import annotations

from itertools import product

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
    asked = frame[frame["part"].isin(["map", "trouble", "clipped", "proof"])]
    assert (asked["wrong"] == 0).all()
    assert (frame["proved_wrong"].dropna() == 0).all()
    assert frame["unique"].sum() > 0 < frame["unique_count"].sum()


def test_a_proof_confirms_the_search_and_finds_labels_of_three_classes(record: Record) -> None:
    proved = record.rows(identifiability.Proved)
    ordinary = proved[(proved["classes"] == 10) & (proved["spread"] == 1.0) & (proved["dtype"] != "float16")]
    assert (ordinary["confirmed"] == ordinary["unique_searched"]).all()
    three = proved[(proved["classes"] == 3) & (proved["labels"] == "smoothing") & (proved["dtype"] == "float64")]
    assert three["unique_searched"].max() == 0 < three["unique"].max()


def test_the_map_shows_the_borders(record: Record) -> None:
    mapped = record.rows(identifiability.Mapped)
    mapped = mapped[mapped["labels"] == "smoothing"].set_index(["classes", "dtype", "spread", "known"])["unique"]
    assert mapped[10, "float32", 1e-3, True] >= 90
    assert mapped[10, "float32", 1e-3, False] <= 20
    for dtype, known in product(("float32", "float64"), (True, False)):
        assert mapped[10, dtype, 1.0, known] >= 90
    assert (mapped[3].xs(False, level="known") == 0).all()


def test_clipping_hides_nothing(record: Record) -> None:
    clipped = record.rows(identifiability.Clipped)
    clipped = clipped[clipped["norm"] == 0.1]
    assert (clipped["touched"] == 100).all()
    assert (clipped["unique_right"] >= 90).all()
    assert (clipped.loc[clipped["labels"] == "smoothing", "unaware"] <= 10).all()


def test_broken_assumptions_are_noticed_if_an_equation_is_left(record: Record) -> None:
    broken = record.rows(identifiability.Broken)
    broken = broken[(broken["classes"] == 10) & (broken["spread"] == 1.0)]
    assert set(broken["what"]) == set(identifiability.BROKEN)
    assert (broken["wrong"] == 0).all()


def test_a_case_is_the_same_each_time_and_cases_are_difficult() -> None:
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
    assert len(identifiability.clipped_table(record)) == 1
    for draw in (identifiability.figure_map, identifiability.figure_broken):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
