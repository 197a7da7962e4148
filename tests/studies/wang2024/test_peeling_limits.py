"""The study of how far peeling goes: every part small, and what it says of where it ends."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak import data
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.peeled import batches
from gradleak.studies.wang2024 import peeling_limits

STUDY = "peeling-limits"
CHOSEN = {"confident": [1e-1], "defenses": ["clip-share", "prune"], "networks": ["resnet20", "lenet"]}
# Golden rows hold these as well.
MORE = {"precisions": ["float32", "float64"], "large": [2], "rivals": ["1/2"]}
ALSO = {"flowers17": {"trained": ["8/1/1/1"]}}


def test_a_sure_sample_comes_back_beside_another(record: Record) -> None:
    row = batches(record.rows(peeling_limits.SureSample)).iloc[0]
    assert row["unsure"] == pytest.approx(0.1, rel=1e-3)
    assert row["status"] == "unique"
    assert row["sure"] > 60
    assert row["other"] > 60


def test_a_factor_is_seen_through_by_who_looks_for_it(record: Record) -> None:
    frame = batches(record.rows(peeling_limits.Defended))
    clipped = frame[frame["defense"] == "clip-share"].set_index("attacker")
    assert clipped.loc["aware", "back"]
    assert clipped.loc["unaware", "status"] == "failed"
    assert not frame["silently"].any()


def test_what_ends_the_way_is_named(record: Record) -> None:
    ends = peeling_limits.reach_table(record).set_index("network")["why peeling ended"]
    assert ends["LeNet, sigmoid"] == "48 equations for 64 unknowns in each channel"
    assert "rank" in ends["ResNet20"]
    layers = batches(record.rows(peeling_limits.Reach)).set_index("network")["layers"]
    assert layers["lenet"] == 1


def test_local_steps_of_a_small_rate_are_one_step() -> None:
    local = peeling_limits.Defended(defense="local", level=1e-9, repeats=1, seed=3, device="cpu", dataset="photos")
    batch = next(local.run())
    assert batch["attacker"] == "as one step"
    assert isinstance(batch["layers"], int)
    assert batch["layers"] > 10


def test_the_factor_that_makes_a_network_sure_changes_nothing_for_the_other() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 16, 16, generator=generator, dtype=torch.float64)
    model = peeling_limits._network(images, 0).double()
    with torch.no_grad():
        before = model(data.normalise(images))
        peeling_limits._sure_of(model, images, 7, 1e-9)
        after = model(data.normalise(images))
    torch.testing.assert_close(after[1], before[1])
    unsure = peeling_limits._unsure(after, torch.tensor([7, 0]))
    assert float(unsure[0]) == pytest.approx(1e-9, rel=1e-6)
    assert float(unsure[1]) == pytest.approx(1 - float(after[1].softmax(dim=0)[0]), rel=1e-9)


def test_the_count_is_of_depthwise_convolutions_too() -> None:
    said = peeling_limits.counted("lenet")
    assert list(said["size"]) == list(peeling_limits.COUNTED)
    assert list(said["possible"][:5]) == [1, 1, 1, 1, 0]


def test_tables_and_figures(record: Record) -> None:
    assert len(peeling_limits.defended_table(record)) == 6
    assert len(peeling_limits.reach_table(record)) == 2
    for figure in (peeling_limits.figure_counts(record), peeling_limits.figure_confident(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
