"""Figures 3 and 4 of posterior2023, on a trained model."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak import claims
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show.summaries import select
from gradleak.studies.posterior2023 import posterior_trained

STUDY = "posterior-trained"
CHOSEN = {"sizes": [16, 64], "shares": [0.0, 0.9], "scales": [1, 20], "batches": 6, "optimizers": ["adam"]}


def test_the_attack_beats_the_guess_where_one_class_fills_the_batch(record: Record) -> None:
    frame = select(record.rows(posterior_trained.TrainedModel), part="settings")
    own = frame[(frame["share"] == 0.9)].groupby("attack")["instances"].mean()
    assert own["posterior"] > own["guess"] + 0.3
    assert frame["accuracy"].between(0, 100).all()


def test_the_table_shows_every_setting(record: Record) -> None:
    table = posterior_trained.table(record)
    assert list(table["trained by"]) == ["Adam", "Adam"]
    assert list(table["share of one class"]) == ["even", "90 %"]
    assert records.about(record) == "6 batches a setting, 1 epoch of lenet5, photos"


def test_more_auxiliary_samples_do_not_hurt(record: Record) -> None:
    rows = select(record.rows(posterior_trained.TrainedModel), part="scale", attack="posterior")
    own = rows.set_index("given")["instances"]
    assert own[20] > own[1] - 0.05


def test_the_papers_values_stand_beside_ours(record: Record) -> None:
    published = claims.published("posterior-trained", "instances", ["optimizer", "given"])
    figure = posterior_trained.figure_trained(record)
    size, share, amount = figure.axes
    plt.close(figure)
    for axis in (size, share):
        (bound,) = [line for line in axis.lines if line.get_label() == "the paper’s lower bound"]
        assert list(bound.get_ydata()) == [posterior_trained.PUBLISHED_BOUND] * 2
    (series,) = [line for line in amount.lines if line.get_label() == "the paper’s Figure 4"]
    assert list(series.get_ydata()) == [value for (name, _), value in published.items() if name == "adam"]
