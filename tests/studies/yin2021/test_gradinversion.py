"""GradInversion's study: rows, floors and controls, pairs of runs, and figures."""

from __future__ import annotations

import copy

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
from gradleak.studies.shared.restored_batches import (
    AVERAGED,
    FLOORS,
    KINDS,
    LATENT,
    OF_ANOTHER,
    chosen,
    drawn,
    gradient_norms,
    interval_of,
    unrelated,
    values_of,
)
from gradleak.studies.shared.shown_batches import rows_of
from gradleak.studies.yin2021 import gradinversion as study

STUDY = "gradinversion"
CHOSEN = {"steps": 40, "sizes": [1, 2, 4]}
ALSO = {"imagenet-sample": {"pictures": 4}}
LEARNED = (LATENT, study.DENOISED)


@pytest.mark.parametrize(
    ("part", "images", "more"),
    [
        ("rows", 4, FLOORS),
        ("seeds", 2, [run + AVERAGED for run in study.RUNS["seeds"]]),
        ("networks", 2, [*FLOORS, "small-cnn"]),
        ("baselines", 4, [*FLOORS, study.GREY, *(run + OF_ANOTHER for run in (study.EXACT, *LEARNED))]),
        ("few", 2, FLOORS),
        ("alone", 2, FLOORS),
    ],
)
def test_every_run_has_every_image(record: Record, part: str, images: int, more: list[str]) -> None:
    found = rows_of(record, "image", part).groupby("run")["image"].apply(sorted)
    assert found.to_dict() == {run: [*range(images)] for run in (*study.RUNS.get(part, ()), *more)}


def test_every_size_has_the_same_images_and_floors_are_told_once(record: Record) -> None:
    images = rows_of(record, "image", "sizes")
    for kind in KINDS:
        own = images[images["kind"] == kind]
        assert set(own["run"]) == {*FLOORS, *(study.named(kind, size) for size in (1, 2, 4))}
        assert own.groupby("run")["image"].apply(sorted).tolist() == [[0, 1, 2, 3]] * 6
        assert own.groupby("image")["loud"].nunique().eq(1).all()


def test_a_floor_does_not_depend_on_the_attack(record: Record) -> None:
    private = data.load("photos", "test")
    first = chosen(private, 2, 2, record.parameters["seed"]).flatten()
    flat = private.images[first].double().var(dim=(2, 3), correction=0).mean(dim=1)
    expected = (-10 * flat.log10()).tolist()
    for part in ("rows", "baselines"):
        images = rows_of(record, "image", part)
        assert images[images["run"] == "mean colour"]["psnr"].tolist() == pytest.approx(expected, abs=1e-4)


def test_attacks_see_something(record: Record) -> None:
    """More than noise does, and more than without a gradient."""
    runs = {
        "rows": [study.EXACT],
        "baselines": [study.EXACT, study.DENOISED, study.COARSE],
        "few": [study.EXACT],
        "alone": [study.EXACT, study.FEATURED],
        "sizes": [study.named("random", 1)],
    }
    for part, names in runs.items():
        means = rows_of(record, "image", part).groupby("run")["psnr"].mean()
        for name in names:
            assert means[name] > means["noise"] + 1
            if part == "baselines" or name == study.FEATURED:
                assert means[name] > means[study.DEEP] + 1
    assert means[study.named("random", 1)] > means["unrelated"]


def test_a_control_is_another_batch(record: Record) -> None:
    strips = {row["run"]: row["picture"] for row in rows_of(record, "picture", "baselines").to_dict("records")}
    assert strips[LATENT] != strips[LATENT + OF_ANOTHER]
    assert len({*strips.values()}) == len(strips)


def test_labels_and_features_are_recovered_and_chance_is_one_in_the_gallery(record: Record) -> None:
    batches = rows_of(record, "batches", "rows")
    assert batches["recovered"].tolist() == [100]
    assert batches["chance"].tolist() == [100 / 600]
    assert rows_of(record, "image", "few")["known_feature"].all()


def test_gains_are_differences_image_by_image(record: Record) -> None:
    images = rows_of(record, "image", "baselines")
    psnr = {run: group.sort_values("image")["psnr"].to_numpy() for run, group in images.groupby("run")}
    gains = rows_of(record, "gain", "baselines")
    gains = gains[gains["measure"] == "psnr"].set_index("run")
    for first, second in study.PAIRS["baselines"]:
        row = gains.loc[f"{first} against {second}"]
        assert row["gain"] == pytest.approx((psnr[first] - psnr[second]).mean())
        assert row["low"] <= row["gain"] <= row["high"]
        assert (row["count"], row["batches"]) == (4, 2)


def test_train_mode_is_another_gradient_of_the_same_images() -> None:
    case = drawn("small-cnn", "small-cnn", "photos", 2, 0, 1, 2023, "cpu")
    training = study.in_train_mode(case)
    assert torch.equal(training.truth, case.truth)
    own, other = (one.leaks[0].weight_gradient for one in (case, training))
    model = copy.deepcopy(case.model).train()
    inputs = data.normalise(case.truth)
    F.cross_entropy(model(inputs), data.load("photos", "test").labels[case.places]).backward()
    expected = model.get_submodule(case.leaks[0].head).weight.grad
    torch.testing.assert_close(other, expected, rtol=1e-4, atol=1e-7)
    assert (own - other).norm() > 0.05 * own.norm()
    # The attacked network itself stays in eval mode.
    assert any(
        isinstance(module, torch.nn.BatchNorm2d) and module.track_running_stats for module in case.model.modules()
    )


def test_batches_have_no_class_twice_and_more_of_them_leave_the_first_as_they_are() -> None:
    private = data.load("photos", "test")
    many = chosen(private, 4, 40, 5)
    assert all(len(set(private.labels[batch].tolist())) == 4 for batch in many)
    assert torch.equal(chosen(private, 4, 7, 5), many[:7])
    assert len(many.flatten().unique()) == 160
    assert all(torch.equal(private.labels[batch].sort().values, private.labels[batch]) for batch in many)


def test_an_unrelated_picture_is_none_of_the_private_ones() -> None:
    private = data.load("photos", "test")
    for seed in range(40):
        places = chosen(private, 4, 8, seed).flatten()
        others = unrelated(private, places, 0, seed)
        assert len(others.unique()) == len(places)
        assert not torch.isin(others, places).any()
        assert len(unrelated(private, places, 900, seed)) == len(places)


def test_gradients_are_as_long_as_autograd_says_and_the_loudest_come_first() -> None:
    private = data.load("photos", "test")
    few = data.Dataset("few", "test", private.images[:40], private.labels[:40], private.class_names, "")
    model = build("small-cnn", classes=private.classes, seed=3)
    lengths = gradient_norms(model, few)
    for n in (0, 35):
        loss = F.cross_entropy(model(data.normalise(few.images[n : n + 1])), few.labels[n : n + 1])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        torch.testing.assert_close(lengths[n], torch.cat([slope.flatten() for slope in slopes]).norm())
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
    low, high = interval_of(across, 4, 0)
    assert high - low == pytest.approx(4 * across.std() / 10, rel=0.25)
    rows = [{"what": "image", "run": "x", "image": n, "psnr": value} for n, value in ((1, np.inf), (0, -np.inf))]
    assert values_of(rows, "x", "psnr").tolist() == [0, 200]  # type: ignore[union-attr]
    assert values_of([row | {"lpips": None} for row in rows], "x", "lpips") is None


def test_louder_half_is_told_from_the_quieter() -> None:
    rows = [{"what": "image", "run": "x", "loud": n, "psnr": 10.0 + n, "identified": n > 1} for n in (3, 0, 2, 1)]
    gain = {"what": "loudness", "run": "x", "psnr_gain": 2.0, "identified_gain": 100.0}
    assert study.loudness(rows, "x") == [gain]
    assert study.loudness(rows, "y") == []


def test_definitions_agree_where_they_must() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 3, 64, 64, generator=generator)
    found = study.definitions(images, torch.randn(images.shape, generator=generator))
    assert {measure for measure, _ in found} >= {"FFT2D", "PSNR"}
    psnr = found["PSNR", "clipped pixels, range 1"]
    # Parseval: the relative distance of transforms is that of pixels.
    parseval = 10 ** (-psnr / 20) / images.double().square().flatten(1).mean(dim=1).sqrt()
    torch.testing.assert_close(found["FFT2D", "relative L2, clipped pixels"].double(), parseval, rtol=1e-5, atol=0)


def test_tables_and_figures(record: Record) -> None:
    table = study.table(record)
    assert table.groupby("images", sort=False).size().tolist() == [12, 6, 4, 15, 6, 6, 6, 7]
    assert table["paper: FFT2D / PSNR / LPIPS"].ne("–").sum() == 7 + 1 + 7
    assert study.noise_table(record).empty
    assert records.about(record).startswith("2 batches of 2 for Tables 2 and 4, 4 random and as many vulnerable images")
    drawn = [study.figure_images(record, part) for part in ("rows", "seeds", "alone", "baselines", "none")]
    drawn += [study.figure_images(record, "sizes", kind=kind) for kind in KINDS]
    drawn += [study.figure_quality(record, part) for part in ("rows", "networks", "baselines")]
    for figure in (*drawn, study.figure_sizes(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"judge": "resnet"}, "unknown network 'resnet'"),
        ({"network": "cifar10-resnet20"}, "the dataset is 'photos'"),
        ({"networks": ["cifar10-resnet56"]}, "the dataset is 'photos'"),
        ({"baseline_network": "cifar10-resnet56"}, "the dataset is 'photos'"),
        ({"sizes": [2, 3]}, "every batch size must divide the 3 images"),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        studies.parameters(STUDY, "quick", values)


def test_parts_can_be_left_out() -> None:
    counts = ("pictures", "group_batches", "network_batches", "few_batches", "singles")
    parameters = studies.parameters(STUDY, "quick", dict.fromkeys(counts, 0))
    assert [one.part for one in parameters.experiments()] == ["rows", "baselines", "sizes"]
