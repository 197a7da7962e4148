"""Figures 3 and 4 of posterior2023, on a trained model."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.posterior2023 import posterior_trained

STUDY = "posterior-trained"
CHOSEN = {"sizes": [16, 64], "shares": [0.0, 0.9], "scales": [1, 20], "batches": 6, "optimizers": ["adam"]}


def test_the_attack_beats_the_guess_where_one_class_fills_the_batch(record: Record) -> None:
    frame = select(record.rows(posterior_trained.TrainedModel), part="settings")
    own = frame[(frame["share"] == 0.9)].groupby("attack")["instances"].mean()
    assert own["posterior"] > own["guess"] + 0.3
    assert frame["accuracy"].between(0, 100).all()


def test_more_auxiliary_samples_do_not_hurt(record: Record) -> None:
    rows = select(record.rows(posterior_trained.TrainedModel), part="scale", attack="posterior")
    own = rows.set_index("given")["instances"]
    assert own[20] > own[1] - 0.05


def test_tables_and_figures(record: Record) -> None:
    assert list(posterior_trained.models_table(record)["trained by"]) == ["Adam"]
    assert len(posterior_trained.settings_table(record)) == 2
    assert list(posterior_trained.scale_table(record).columns) == ["trained by", "1", "20"]
    assert records.about(record) == "6 batches a setting, 1 epoch of lenet5, photos"
    figure = posterior_trained.figure_trained(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)
