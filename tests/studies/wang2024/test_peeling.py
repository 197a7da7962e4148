"""The study of peeling: small batches to their end, sure samples, defences, and the layers at which networks end."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak import data
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.shared.peeled import batches
from gradleak.studies.wang2024 import peeling

STUDY = "peeling"
CHOSEN = {"matching": 1, "defenses": ["clip-share", "prune"], "networks": ["resnet20", "lenet"]}
# Golden rows hold these as well.
MORE = {"precisions": ["float32", "float64"], "large": [2], "rivals": ["1/2"]}
ALSO = {"flowers17": {"trained": ["8/1/1/1"]}}


def test_the_batch_is_peeled_to_its_end(record: Record) -> None:
    rows = record.rows(peeling.Peeling)
    batch = select(rows, what="batch").iloc[0]
    assert batch["status"] == "unique"
    assert batch["lowest_psnr"] > 100
    assert batch["back"]
    assert batch["matched"] == "x"
    layers = select(rows, what="layer")
    assert len(layers) == 17
    assert layers["honest"].all()


def test_no_wrong_batch_is_called_unique(record: Record) -> None:
    assert len(record.rows(peeling.FromNoise)) == 2
    assert not batches(record.frame())["silently"].eq(True).any()


def test_a_sure_sample_is_restored_beside_another(record: Record) -> None:
    row = batches(record.rows(peeling.SureSample)).iloc[0]
    assert row["unsure"] == pytest.approx(0.1, rel=1e-3)
    assert row["status"] == "unique"
    assert min(row["sure"], row["other"]) > 60


def test_an_attacker_who_expects_clipping_finds_its_factor(record: Record) -> None:
    clipped = select(batches(record.rows(peeling.Defended)), defense="clip-share").set_index("attacker")
    assert clipped.loc["aware", "back"]
    assert clipped.loc["unaware", "status"] == "failed"


def test_the_reason_names_the_layer_at_which_peeling_ends(record: Record) -> None:
    rows = batches(record.rows(peeling.Reach)).set_index("network")
    assert rows.loc["lenet", "reason"] == "layer 'body.2': 48 equations for 64 unknowns in each channel"
    assert "rank" in rows.loc["resnet20", "reason"]
    assert rows.loc["lenet", "layers"] == 1


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
    assert float(unsure[1]) == pytest.approx(1 - float(after[1].softmax(dim=0)[0]), rel=1e-9)


def test_the_count_ends_where_equations_do() -> None:
    counted = peeling.counted("lenet")
    assert list(counted["size"]) == list(peeling.COUNTED)
    assert list(counted["possible"][:5]) == [1, 1, 1, 1, 0]


def test_tables_and_figures(record: Record) -> None:
    assert list(peeling.table(record)["B"]) == ["1"]
    assert len(peeling.defended_table(record)) == 8
    assert "certified batches" in peeling.coverage(record)
    for draw in (peeling.figure_batch, peeling.figure_errors, peeling.figure_counts, peeling.figure_confident):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
