"""The study of certificates: what is certified is right where assumptions hold, and a wrong certificate is shown."""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak import data, models, observe
from gradleak.hunting import BROKEN, FAMILIES, hunt
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
    assert kept["right"].sum() > kept["cases"].sum() / 2
    assert set(kept["family"]) == set(FAMILIES)
    counts = list(certificates.COUNTS.values())
    assert (frame[counts].sum(axis=1) == frame["cases"]).all()


def test_trials_are_the_hunt(record: Record) -> None:
    own = record.rows(certificates.Hunt).set_index(["family", "broken"]).loc[("connected", "signs of lower layers")]
    first = certificates.APART * record.parameters["seed"]
    tally = hunt(rounds=3, seed=first, families=("connected",))
    (counted,) = (one for one in tally if one.broken == "signs of lower layers")
    assert {name: own[column] for name, column in certificates.COUNTS.items()} == {
        name: counted.outcomes[name] for name in certificates.COUNTS
    }


def test_many_seeds_are_shared_out_to_trials() -> None:
    experiments = certificates.Parameters(broken=["clipped"], labels=60, batches=1).experiments()
    hunts = [one for one in experiments if isinstance(one, certificates.Hunt) and one.family == "labels"]
    seeds = [(one.first, one.seeds, one.seed) for one in hunts]
    assert seeds == [(0, 25, 2023), (25, 25, 2023), (50, 10, 2023)]


def test_tables_and_figures(record: Record) -> None:
    assert list(certificates.promises_table()["attack"]) == list(FAMILIES)
    assert list(certificates.broken_table()["broken assumption"]) == list(BROKEN)
    assert list(certificates.WORDS) == list(FAMILIES)
    assert len(certificates.kept_table(record)) == len(FAMILIES)
    noticed = certificates.noticed_table(record).set_index("broken assumption")
    assert noticed.loc["signs of lower layers", "connected"] in ("open", "failed")
    assert noticed.loc["signs of lower layers", "labels"] == "–"
    assert re.fullmatch("0 of [123] wrong", noticed.loc["none", "convolutional"])
    assert len(certificates.unnoticed_table(record)) == 0
    assert len(certificates.cost_table(record)) == len(certificates.TIMED)
    drawn = certificates.figure_outcomes(record)
    assert figures.gray_table(drawn).std() > 0.02
    plt.close(drawn)


def test_a_wrong_certificate_is_shown_with_its_seed(record: Record) -> None:
    trial = next(one for one in record.trials if one.inputs.get("family") == "peeling")
    row = trial.rows[0] | {
        "cases": 10,
        "right": 4,
        "wrong": 2,
        "failed": 4,
        "examples": "7 (12 classes); 9 (12 classes)",
    }
    rows = [{**trial.model_dump(), "rows": [row]} if one is trial else one.model_dump() for one in record.trials]
    changed = record.model_copy(update={"trials": [type(trial)(**one) for one in rows]})
    changed = Record.model_construct(**{name: getattr(changed, name) for name in Record.model_fields})
    (line,) = certificates.unnoticed_table(changed).to_dict(orient="records")
    assert (line["certified and wrong"], line["certified"], line["example: seed (setting)"]) == (
        "2",
        "6",
        "7 (12 classes)",
    )
    assert "2 of 6 wrong" in certificates.noticed_table(changed)["peeling"].tolist()


def test_signs_leave_the_layers_equations_met_and_no_certificate() -> None:
    image = data.normalise(data.load("photos", "test").images[:1])
    model = models.build("fcn4", classes=10, image_size=image.shape[-1], seed=0)
    leak = observe(model, image, torch.tensor([3]))
    found = trace_fully_connected(certificates.signs_of(model, leak))
    assert found.status != "exact"


def test_an_unknown_assumption_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of none, clipped"):
        certificates.Parameters(broken=["nothing"])
