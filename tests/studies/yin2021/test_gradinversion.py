"""GradInversion's study: attacks see more than baselines, controls, gains of pairs of runs, and the batches."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from gradleak import data, studies
from gradleak.errors import InputError
from gradleak.models import build
from gradleak.runs.records import Record
from gradleak.studies.shared.restored_batches import (
    LATENT,
    OF_ANOTHER,
    OnBatches,
    chosen,
    gradient_norms,
    interval_of,
    named,
    unrelated,
)
from gradleak.studies.shared.shown_batches import rows_of
from gradleak.studies.yin2021 import gradinversion as study

STUDY = "gradinversion"
CHOSEN = {"steps": 10, "sizes": [1, 2]}
ALSO = {"imagenet-sample": {"pictures": 4}}


def test_attacks_see_more_than_noise_and_than_an_attack_without_a_gradient(record: Record) -> None:
    runs = {
        "rows": [study.EXACT],
        "baselines": [study.EXACT, study.DENOISED, study.COARSE],
        "few": [study.EXACT],
        "alone": [study.EXACT, study.FEATURED],
        "sizes": [named("random", 1)],
    }
    for part, names in runs.items():
        means = rows_of(record, "image", part).groupby("run")["psnr"].mean()
        for name in names:
            # Of so few steps the pyramid spends most on small images.
            margin = 0.0 if name == study.COARSE else 1.0
            assert means[name] > means["noise"] + margin
            if part == "baselines" or name == study.FEATURED:
                assert means[name] > means[study.DEEP] + margin
    assert means[named("random", 1)] > means["unrelated"]


def test_a_control_is_another_batch_and_the_flat_image_is_the_private_ones(record: Record) -> None:
    strips = rows_of(record, "picture", "baselines").set_index("run")["picture"]
    assert strips[LATENT] != strips[LATENT + OF_ANOTHER]
    assert strips.is_unique
    images = data.load("photos", "test").images[_places(record)]
    flat = -10 * images.double().var(dim=(2, 3), correction=0).mean(dim=1).log10()
    found = rows_of(record, "image", "baselines").set_index("run").loc["mean colour"]["psnr"]
    assert found.tolist() == pytest.approx(flat.tolist(), abs=1e-4)


def _places(record: Record) -> torch.Tensor:
    return chosen(data.load("photos", "test"), 2, 2, record.parameters["seed"]).flatten()


def test_gains_are_differences_image_by_image(record: Record) -> None:
    images = rows_of(record, "image", "baselines").pivot(index="image", columns="run", values="psnr")
    gains = rows_of(record, "gain", "baselines")
    gains = gains[gains["measure"] == "psnr"].set_index("run")
    for first, second in study.PAIRS["baselines"]:
        row = gains.loc[f"{first} against {second}"]
        assert row["gain"] == pytest.approx((images[first] - images[second]).mean())
        assert row["low"] <= row["gain"] <= row["high"]


def test_train_mode_is_another_gradient_of_the_same_images() -> None:
    network, run = {"network": "small-cnn", "judge": "small-cnn", "dataset": "photos"}, {"seed": 2023, "device": "cpu"}
    case = OnBatches(**network, first=0, batches=1, **run).drawn(2)
    own, other = (one.leaks[0].weight_gradient for one in (case, study.of_training_clients(case)))
    model = copy.deepcopy(case.model).train()
    F.cross_entropy(model(data.normalise(case.truth)), data.load("photos", "test").labels[case.places]).backward()
    expected = model.get_submodule(case.leaks[0].head).weight.grad
    torch.testing.assert_close(other, expected, rtol=1e-4, atol=1e-7)
    assert (own - other).norm() > 0.05 * own.norm(), "the attacked network itself stays in eval mode"


def test_batches_have_no_class_twice_and_more_batches_leave_the_first_as_they_are() -> None:
    private = data.load("photos", "test")
    many = chosen(private, 4, 40, 5)
    assert all(len(set(private.labels[batch].tolist())) == 4 for batch in many)
    assert torch.equal(chosen(private, 4, 7, 5), many[:7])
    assert len(many.flatten().unique()) == 160
    others = unrelated(private, many[:8].flatten(), 0, 5)
    assert len(others.unique()) == 32
    assert not torch.isin(others, many[:8]).any()


def test_vulnerable_images_have_the_largest_gradients_of_their_class() -> None:
    private = data.load("photos", "test")
    few = data.Dataset("few", "test", private.images[:40], private.labels[:40], private.class_names, "")
    model = build("small-cnn", classes=private.classes, seed=3)
    norms = gradient_norms(model, few)
    for n in (0, 35):
        loss = F.cross_entropy(model(data.normalise(few.images[n : n + 1])), few.labels[n : n + 1])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        torch.testing.assert_close(norms[n], torch.cat([slope.flatten() for slope in slopes]).norm())
    values = torch.rand(len(private), generator=torch.Generator().manual_seed(0))
    places = chosen(private, 4, 1, 9, values)[0]
    assert all(values[place] == values[private.labels == private.labels[place]].max() for place in places)


def test_a_bootstrap_draws_batches_and_images() -> None:
    generator = np.random.default_rng(0)
    within = generator.normal(size=400)
    low, high = interval_of(within, 4, 0)
    assert low < within.mean() < high
    assert high - low == pytest.approx(4 * within.std() / 20, rel=0.5)
    # If a batch's images are alike, only batches count.
    across = np.repeat(generator.normal(size=100), 4)
    low, high = interval_of(across, 4, 0)
    assert high - low == pytest.approx(4 * across.std() / 10, rel=0.25)


def test_definitions_agree_by_parsevals_theorem() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 3, 64, 64, generator=generator)
    found = study.definitions(images, torch.randn(images.shape, generator=generator))
    relative = 10 ** (-found["PSNR", "clipped pixels, range 1"] / 20) / images.double().square().mean((1, 2, 3)).sqrt()
    torch.testing.assert_close(found["FFT2D", "relative L2, clipped pixels"].double(), relative, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"judge": "resnet"}, "unknown network 'resnet'"),
        ({"networks": ["cifar10-resnet56"]}, "the dataset is 'photos'"),
        ({"sizes": [2, 3]}, "every batch size must divide the 3 images"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        studies.parameters(STUDY, "quick", values)
