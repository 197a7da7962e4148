"""The study of peeling: small batches to their end, honest about layers and noise."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.wang2024 import peeling

STUDY = "peeling"
CHOSEN = {"matching": 1}


def test_the_batch_is_peeled_to_its_end(record: Record) -> None:
    rows = record.rows(peeling.Peeling)
    batch = select(rows, what="batch").iloc[0]
    assert batch["status"] == "unique"
    assert batch["lowest_psnr"] > 100
    assert batch["back"]
    assert not batch["silently"]
    assert batch["matched"] == "x"
    layers = select(rows, what="layer")
    assert len(layers) == 17
    assert layers["honest"].all()


def test_noise_is_never_called_unique(record: Record) -> None:
    noisy = record.rows(peeling.FromNoise)
    assert len(noisy) == 2
    assert not noisy["silently"].any()


def test_table_and_figures(record: Record) -> None:
    assert list(peeling.table(record)["B"]) == ["1"]
    for figure in (peeling.figure_batch(record), peeling.figure_layers(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
