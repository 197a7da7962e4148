"""The study of batches: the same images at every size, the loudest ones, several networks, and what it draws."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from gradleak import data, studies
from gradleak.errors import InputError
from gradleak.models import build
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.restored_batches import FLOORS, KINDS, chosen, gradient_norms, interval_of, values_of
from gradleak.studies.shared.shown_batches import rows_of
from gradleak.studies.yin2021 import gradinversion_batches as study

STUDY = "gradinversion-batches"
CHOSEN = {"steps": 40, "sizes": [1, 2, 4], "network_steps": 10}


def test_every_size_has_the_same_images_and_floors_are_told_once(record: Record) -> None:
    images = rows_of(record, "image", "sizes")
    for kind in KINDS:
        own = images[images["kind"] == kind]
        assert set(own["run"]) == {*FLOORS, *(study.named(kind, size) for size in (1, 2, 4))}
        assert own.groupby("run")["image"].apply(sorted).tolist() == [[0, 1, 2, 3]] * 6
        assert own.groupby("image")["loud"].nunique().eq(1).all()


def test_an_image_alone_is_seen(record: Record) -> None:
    images = rows_of(record, "image", "sizes")
    means = images[images["kind"] == "random"].groupby("run")["psnr"].mean()
    assert means[study.named("random", 1)] > means["noise"] + 1
    assert means[study.named("random", 1)] > means["unrelated"]


def test_gradients_are_as_long_as_autograd_says_and_the_loudest_come_first() -> None:
    private = data.load("photos", "test")
    few = data.Dataset("few", "test", private.images[:40], private.labels[:40], private.class_names, "")
    model = build("small-cnn", classes=private.classes, seed=3)
    lengths = gradient_norms(model, few)
    for n in (0, 35):
        loss = F.cross_entropy(model(data.normalise(few.images[n : n + 1])), few.labels[n : n + 1])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        expected = torch.cat([slope.flatten() for slope in slopes]).norm()
        torch.testing.assert_close(lengths[n], expected)
    loudness = torch.rand(len(private), generator=torch.Generator().manual_seed(0))
    places = chosen(private, 4, 3, 9, loudness)
    random = chosen(private, 4, 3, 9)
    assert torch.equal(private.labels[places], private.labels[random]), "only which images of the classes differ"
    for label in private.labels[places[0]].tolist():
        members = (private.labels == label).nonzero()[:, 0]
        assert members[loudness[members].argmax()] in places[0]


def test_a_bootstrap_draws_batches_and_images() -> None:
    generator = np.random.default_rng(0)
    within = generator.normal(size=400)
    low, high = interval_of(within, 4, 0)
    assert low < within.mean() < high
    assert high - low == pytest.approx(4 * within.std() / 20, rel=0.5)
    # Where a batch's images are alike, only batches count.
    across = np.repeat(generator.normal(size=100), 4)
    wide = interval_of(across, 4, 0)
    assert wide[1] - wide[0] == pytest.approx(4 * across.std() / 10, rel=0.25)
    rows = [{"what": "image", "run": "x", "image": n, "psnr": value} for n, value in ((1, np.inf), (0, -np.inf))]
    assert values_of(rows, "x", "psnr").tolist() == [0, 200]  # type: ignore[union-attr]
    assert values_of([row | {"lpips": None} for row in rows], "x", "lpips") is None


def test_tables_and_figures(record: Record) -> None:
    table = study.sizes_table(record)
    assert len(table) == 2 * (3 + 3)
    assert table["batch size, or baseline"].tolist()[-3:] == ["1", "2", "4"]
    assert len(study.networks_table(record)) == 4
    assert records.about(record).startswith("4 random and as many vulnerable images in batches of 1, 2, 4, 40 steps")
    drawn = [study.figure_images(record, kind) for kind in KINDS]
    for figure in (*drawn, study.figure_sizes(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InputError, match="every batch size must divide the 3 images"):
        studies.parameters(STUDY, "quick", {"sizes": [2, 3]})
    with pytest.raises(InputError, match=r"got 2 and 3: take together from .1, 3., or groups a multiple of 2"):
        studies.parameters(STUDY, "quick", {"groups": 3, "together": 2})
    parameters = studies.parameters(STUDY, "quick", {"groups": 4, "together": 2, "network_batches": 0})
    assert [one.first for one in parameters.experiments()] == [0, 2]
