"""The study of certificates: what is certified is right where assumptions hold, and a wrong certificate is shown."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak import data, models, observe
from gradleak.hunting import FAMILIES, hunt
from gradleak.images import trace_fully_connected
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import certificates

STUDY = "certificates"
CHOSEN = {"broken": ["none", "signs of lower layers"], "labels": 3, "inversions": 3, "repeats": 1}


def test_nothing_certified_is_wrong_where_every_assumption_holds(record: Record) -> None:
    frame = record.rows(certificates.Hunt)
    kept = frame[frame["broken"] == "none"]
    assert kept["wrong"].sum() == 0
    assert kept["right_count"].sum() > kept["cases"].sum() / 2
    assert set(kept["family"]) == set(FAMILIES)
    counts = list(certificates.COUNTS.values())
    assert (frame[counts].sum(axis=1) == frame["cases"]).all()


def test_trials_count_what_the_hunt_counts(record: Record) -> None:
    own = record.rows(certificates.Hunt).set_index(["family", "broken"]).loc[("connected", "signs of lower layers")]
    first = certificates.APART * record.parameters["seed"]
    tally = hunt(rounds=3, seed=first, families=("connected",))
    (counted,) = (one for one in tally if one.broken == "signs of lower layers")
    assert {name: own[column] for name, column in certificates.COUNTS.items()} == {
        name: counted.outcomes[name] for name in certificates.COUNTS
    }


def test_many_seeds_are_distributed_over_trials() -> None:
    experiments = certificates.Parameters(broken=["clipped"], labels=60, batches=1).experiments()
    hunts = [one for one in experiments if isinstance(one, certificates.Hunt) and one.family == "labels"]
    seeds = [(one.first, one.seeds, one.seed) for one in hunts]
    assert seeds == [(0, 25, 2023), (25, 25, 2023), (50, 10, 2023)]


def test_tables_and_figures(record: Record) -> None:
    assert list(certificates.attacks_table(record)["attack"]) == list(FAMILIES)
    (line,) = certificates.broken_table(record).to_dict(orient="records")
    assert (line["broken assumption"], line["wrong certificates"]) == ("signs of lower layers", "0")
    assert len(certificates.cost_table(record)) == len(certificates.TIMED)
    drawn = certificates.figure_outcomes(record)
    assert figures.gray_table(drawn).std() > 0.02
    plt.close(drawn)


def test_a_wrong_certificate_is_counted_for_its_attack(record: Record) -> None:
    wrong = {"family": "peeling", "broken": "signs of lower layers"}
    trials = [
        trial.model_copy(update={"rows": [row | {"right_count": 4, "wrong": 2} for row in trial.rows]})
        if wrong.items() <= trial.inputs.items()
        else trial
        for trial in record.trials
    ]
    (line,) = certificates.broken_table(record.model_copy(update={"trials": trials})).to_dict(orient="records")
    assert (line["wrong certificates"], line["attacks with wrong certificates"]) == ("2", "peeling 2")


def test_signs_meet_the_equations_of_each_layer_but_give_no_certificate() -> None:
    image = data.normalise(data.load("photos", "test").images[:1])
    model = models.build("fcn4", classes=10, image_size=image.shape[-1], seed=0)
    leak = observe(model, image, torch.tensor([3]))
    found = trace_fully_connected(certificates.signs_of(model, leak))
    assert found.status != "exact"


def test_an_unknown_assumption_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of none, clipped"):
        certificates.Parameters(broken=["nothing"])
