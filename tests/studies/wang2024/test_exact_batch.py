"""The study of whole batches of images: exact, beside a bias attack that mixes, and honest under defences."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import exact_batch

STUDY = "exact-batch"
CHOSEN = {"sizes": [4], "shown": 4, "classes": 100, "defenses": list(exact_batch.DEFENSES)}
# Golden rows hold these as well.
MORE = {"precisions": ["float32", "float64"]}


def test_the_batch_comes_back(record: Record) -> None:
    frame = record.frame()
    closed = frame[(frame["attack"] == "closed form")]
    assert (closed["status"] == "exact").all()
    assert closed["least"].min() > 80
    defended = frame[frame["part"] == "defense"]
    # Noise of the rounding's own size is none: who does not expect it either notices, or is as exact as without.
    unaware = defended[defended["attacker"] == "unaware"]
    assert (unaware.loc[unaware["status"] == "exact", "least"] > 80).all()
    loud = unaware[unaware["utility"] < 1 - 1e-11]
    assert len(loud) == 6, "all but clipping, which turns nothing, and the least noise"
    assert (loud["status"] != "exact").all()
    clipped = defended[defended["defense"] == "clip"]
    assert (clipped["status"] == "failed").all()


def test_units_are_chosen_for_the_bias_attack() -> None:
    said = torch.tensor([[1.0, 0.0], [0.0, 1.0], [torch.nan, 0.0]]).double()
    truth = torch.tensor([[0.1, 0.9], [0.8, 0.0]]).double()
    assert exact_batch.nearest(said, truth).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_tables_and_figures(record: Record) -> None:
    assert list(exact_batch.table(record)["B"]) == ["4"]
    assert len(exact_batch.defense_table(record)) == 8
    for figure in (exact_batch.figure_batch(record), exact_batch.figure_sizes(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
