"""The posterior attack's study: rows, losses, batches, scales and trained models."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

from gradleak import claims, data
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.posterior2023 import posterior_attack
from gradleak.studies.shared import counted_batches

STUDY = "posterior-attack"
CHOSEN = {
    "rows": ["photos/lenet5/tanh/16", "photos/lenet5/sigmoid/16"],
    "networks": 2,
    "batches": 3,
    "auxiliary": 5,
    "told": ["photos/lenet5/tanh/16"],
    "begun": ["photos/lenet5/tanh/16/kaiming"],
    "variants": ["ce/0.8/0", "ce/1/0.1", "focal/1.2/0"],
    "sizes": [16, 64],
    "shares": [0.5, 0.9],
    "scales": [1, 5],
    "optimizers": ["adam"],
}


def test_posteriors_count_whatever_the_sign_of_features(record: Record) -> None:
    own = record.rows(posterior_attack.OfRow).set_index(["activation", "attack"])["instances"]
    assert own["tanh", "posterior"] == 1
    assert own["sigmoid", "posterior"] == 1
    assert own["tanh", "LLG"] < 0.7
    assert own["sigmoid", "LLG"] > 0.9
    assert own["tanh", "guess"] < 0.8


def test_losses_are_told_to_the_attack(record: Record) -> None:
    variants = select(record.rows(posterior_attack.OfVariant), attack="posterior")
    assert list(variants["instances"]) == [1, 1, 1]


def test_who_is_told_the_loss_is_on_the_same_batches(record: Record) -> None:
    usual, told = record.rows(posterior_attack.OfVariant), record.rows(posterior_attack.Told)
    keys = ["activation", "loss", "temperature", "epsilon", "attack"]
    both = usual.merge(told, on=keys, suffixes=("", "_told")).set_index("attack")[["instances", "instances_told"]]
    guess, llg, ilrg = (both.loc[name].T.to_numpy() for name in ("guess", "LLG", "iLRG"))
    assert guess[0].tolist() == guess[1].tolist()
    assert (ilrg[1] >= ilrg[0]).all()
    assert llg[1].min() > 0.9


def test_tables_and_figures(record: Record) -> None:
    table = posterior_attack.table(record)
    assert list(table["initial weights"]) == ["layer default", "layer default", "He, fan-out"]
    variants = posterior_attack.variant_table(record)
    assert list(variants["loss"]) == ["cross-entropy", "cross-entropy", "focal"]
    assert variants["LLG, informed"].str.contains(" ± ").all()
    assert records.about(record) == "2 networks a row with 3 batches each; photos"
    trained = posterior_attack.trained_table(record)
    assert set(trained["trained by"]) == {"Adam"}
    assert list(trained["share of one class"]) == ["even", "50 %", "90 %"]
    figure = posterior_attack.figure_settings(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_the_attack_beats_the_guess_where_one_class_fills_the_batch(record: Record) -> None:
    frame = select(record.rows(posterior_attack.TrainedModel), series="settings")
    own = frame[(frame["share"] == 0.9)].groupby("attack")["instances"].mean()
    assert own["posterior"] > own["guess"] + 0.3
    assert frame["accuracy"].between(0, 100).all()


def test_more_auxiliary_samples_do_not_hurt(record: Record) -> None:
    rows = select(record.rows(posterior_attack.TrainedModel), series="scale", attack="posterior")
    own = rows.set_index("auxiliary")["instances"]
    assert own[5] > own[1] - 0.05


def test_the_papers_values_stand_beside_ours(record: Record) -> None:
    published = claims.published(STUDY, "instances", ["optimizer", "auxiliary"])
    figure = posterior_attack.figure_settings(record)
    *settings, _, size, share, amount = figure.axes
    plt.close(figure)
    for axis in (*settings, size, share):
        (bound,) = [line for line in axis.lines if line.get_label() == "the paper’s lower bound"]
        assert list(bound.get_ydata()) == [posterior_attack.PUBLISHED_BOUND] * 2
    (series,) = [line for line in amount.lines if line.get_label() == "the paper’s Figure 4"]
    assert list(series.get_ydata()) == [value for (name, _), value in published.items() if name == "adam"]


def test_the_page_does_not_open_with_the_stand_in_for_a_figure_that_it_repeats() -> None:
    recorded = records.recorded(STUDY)
    assert recorded is not None
    opening = posterior_attack.headline(recorded).sentence
    for name in ("posterior-sizes", "posterior-shares"):
        judged = claims.judgements(recorded)[name]
        assert judged.verdict.startswith("stand-in")
        assert judged.text not in opening


def test_a_share_of_one_class_is_that_share() -> None:
    private = data.load("digits", "train")
    generator = torch.Generator().manual_seed(0)
    for share in (0.1, 0.5, 0.9):
        counts = private.labels[counted_batches.skewed(private, 100, share, generator)].bincount(minlength=10)
        assert round(100 * share) in counts.tolist()
        assert int(counts.sum()) == 100
