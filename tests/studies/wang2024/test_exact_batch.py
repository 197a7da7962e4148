"""The study of whole batches of images: exact, beside a bias attack that mixes, and honest under defences."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.wang2024 import exact_batch

STUDY = "exact-batch"
CHOSEN = {"sizes": [4], "shown": 4, "classes": 100, "defenses": list(exact_batch.DEFENSES)}
# Golden rows hold these as well.
MORE = {"precisions": ["float32", "float64"]}


def test_the_batch_comes_back(record: Record) -> None:
    frame = record.frame()
    closed = select(frame, attack=exact_batch.CLOSED_FORM)
    assert closed["certified"].all()
    assert closed["lowest_psnr"].min() > 80
    # The weakest noise is as small as rounding errors: an attacker who expects none is exact, or notices the noise.
    unaware = select(frame, attacker="unaware")
    assert (select(unaware, status="exact")["lowest_psnr"] > 80).all()
    changed = unaware[unaware["utility"] < 1 - 1e-11]
    assert len(changed) == 6, "all but clipping, which keeps the direction, and the weakest noise"
    assert (changed["status"] != "exact").all()
    assert (select(frame, defense="clip")["status"] == "failed").all()


def test_units_are_chosen_for_the_bias_attack() -> None:
    said = torch.tensor([[1.0, 0.0], [0.0, 1.0], [torch.nan, 0.0]]).double()
    truth = torch.tensor([[0.1, 0.9], [0.8, 0.0]]).double()
    assert exact_batch.nearest(said, truth).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_table_and_figures(record: Record) -> None:
    defences = list(exact_batch.table(record)["defence"])
    assert defences == ["none", *["gaussian"] * 5, "clip", "quantize", "float16 numbers"]
    for figure in (exact_batch.figure_batch(record), exact_batch.figure_sizes(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
