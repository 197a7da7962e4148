"""The study of peeling: small batches to their end, sure samples, defences, and the layers at which networks end."""

from __future__ import annotations

import pytest
import torch

from gradleak import data
from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.shared.peeled import batches
from gradleak.studies.wang2024 import peeling

STUDY = "peeling"
CHOSEN = {"matching": 1, "defenses": ["clip-share"], "networks": ["resnet20", "lenet"]}
# Golden rows hold these as well.
MORE = {"precisions": ["float32", "float64"], "large": [2], "rivals": [{"size": 1, "steps": 2}]}
ALSO = {"flowers17": {"trained": [{"side": 8, "epochs": 1, "size": 1}]}}


def test_batches_are_peeled_to_their_end_and_none_is_wrong_but_certified(record: Record) -> None:
    rows = record.rows(peeling.Peeling)
    batch, layers = select(rows, what="batch").iloc[0], select(rows, what="layer")
    assert batch["status"] == "unique"
    assert batch["lowest_psnr"] > 100
    assert layers["honest"].tolist() == [True] * 17
    sure = batches(record.rows(peeling.SureSample)).iloc[0]
    assert sure["status"] == "unique"
    assert min(sure["sure"], sure["other"]) > 60
    assert not batches(record.frame())["silently"].eq(True).any()


def test_an_attacker_who_expects_clipping_finds_its_factor(record: Record) -> None:
    clipped = select(batches(record.rows(peeling.Defended)), defense="clip-share").set_index("attacker")
    assert clipped.loc["aware", "back"]
    assert clipped.loc["unaware", "status"] == "failed"


def test_the_attack_ends_where_equations_do(record: Record) -> None:
    rows = batches(record.rows(peeling.Reach)).set_index("network")
    assert rows.loc["lenet", "reason"] == "layer 'body.2': 48 equations for 64 unknowns in each channel"
    assert "rank" in rows.loc["resnet20", "reason"]


def test_local_steps_of_a_small_rate_are_one_step() -> None:
    local = peeling.Defended(defense="local", level=1e-9, defended=1, seed=3, device="cpu", dataset="photos")
    batch = next(local.run())
    assert batch["attacker"] == "as one step"
    assert isinstance(batch["layers"], int)
    assert batch["layers"] > 10


def test_the_factor_that_makes_a_network_sure_changes_nothing_for_the_other() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 16, 16, generator=generator, dtype=torch.float64)
    model = peeling._network(images, 0).double()
    with torch.no_grad():
        before = model(data.normalise(images))
        peeling._sure_of(model, images, 7, 1e-9)
        after = model(data.normalise(images))
    torch.testing.assert_close(after[1], before[1])
    unsure = peeling._unsure(model, images, torch.tensor([7, 0]))
    assert float(unsure[0]) == pytest.approx(1e-9, rel=1e-6)
