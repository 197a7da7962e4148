"""GradInversion's study: its rows, its floors, its pairs, and what it draws."""

from __future__ import annotations

import copy

import matplotlib.pyplot as plt
import pytest
import torch
from torch.nn import functional

from gradleak import data, studies
from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.restored_batches import AVERAGED, FLOORS, chosen, drawn, unrelated
from gradleak.studies.shared.shown_batches import rows_of
from gradleak.studies.yin2021 import gradinversion

STUDY = "gradinversion"
CHOSEN = {"steps": 40, "alone_steps": 40}
ALSO = {"imagenet-sample": {"pictures": 4}}


def test_every_row_is_there_and_floors_do_not_depend_on_the_attack(record: Record) -> None:
    images = rows_of(record, "image", "rows")
    names = [*FLOORS, *gradinversion.ROWS, gradinversion.TRAINING, *gradinversion.BASELINES]
    assert sorted(images["run"].unique()) == sorted(names)
    assert images.groupby("run").size().eq(2).all()
    private = data.load("photos", "test")
    first = chosen(private, 2, 1, record.parameters["seed"])[0]
    flat = private.images[first].double().var(dim=(2, 3), correction=0).mean(dim=1)
    expected = (-10 * flat.log10()).tolist()
    assert images[images["run"] == "mean colour"]["psnr"].tolist() == pytest.approx(expected, abs=1e-4)


def test_attacks_see_something(record: Record) -> None:
    """More than noise does, and a single image more than none of its gradient gives."""
    for part in ("rows", "few", "alone"):
        images = rows_of(record, "image", part).groupby("run")["psnr"].mean()
        assert images["+ BN, exact"] > images["noise"] + 1
    alone = rows_of(record, "image", "alone").groupby("run")["psnr"].mean()
    assert alone["+ features"] > alone["DeepInversion"] + 1


def test_labels_and_features_are_recovered_and_chance_is_one_in_the_gallery(record: Record) -> None:
    batches = rows_of(record, "batches", "rows")
    assert batches["recovered"].tolist() == [100]
    assert batches["chance"].tolist() == [100 / 600]
    images = rows_of(record, "image", "few")
    assert images["known_feature"].all()


def test_train_mode_is_another_gradient_of_the_same_images() -> None:
    case = drawn("small-cnn", "small-cnn", "photos", 2, 0, 1, 2023, "cpu")
    training = gradinversion.in_train_mode(case)
    assert torch.equal(training.truth, case.truth)
    own, other = (one.leaks[0].weight_gradient for one in (case, training))
    model = copy.deepcopy(case.model).train()
    inputs = data.normalise(case.truth)
    functional.cross_entropy(model(inputs), data.load("photos", "test").labels[case.places]).backward()
    expected = model.get_submodule(case.leaks[0].head).weight.grad
    torch.testing.assert_close(other, expected, rtol=1e-4, atol=1e-7)
    assert (own - other).norm() > 0.05 * own.norm()
    # The attacked network itself stays in eval mode.
    assert any(
        isinstance(module, torch.nn.BatchNorm2d) and module.track_running_stats for module in case.model.modules()
    )


def test_every_group_has_a_first_seed_and_an_average(record: Record) -> None:
    seeds = rows_of(record, "image", "seeds")
    assert set(seeds["run"]) == {name + more for name in gradinversion.GROUPS for more in ("", AVERAGED)}


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
        more = unrelated(private, places, 900, seed)
        assert len(more) == len(places)


def test_louder_half_is_told_from_the_quieter() -> None:
    rows = [{"what": "image", "run": "x", "loud": n, "psnr": 10.0 + n, "identified": n > 1} for n in (3, 0, 2, 1)]
    gain = {"what": "loudness", "run": "x", "psnr_gain": 2.0, "identified_gain": 100.0}
    assert gradinversion.loudness(rows, "x") == [gain]
    assert gradinversion.loudness(rows, "y") == []


def test_definitions_agree_where_they_must() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 3, 64, 64, generator=generator)
    found = gradinversion.definitions(images, torch.randn(images.shape, generator=generator))
    assert {measure for measure, _ in found} >= {"FFT2D", "PSNR"}
    psnr = found["PSNR", "clipped pixels, range 1"]
    # Parseval: the relative distance of transforms is that of pixels.
    parseval = 10 ** (-psnr / 20) / images.double().square().flatten(1).mean(dim=1).sqrt()
    torch.testing.assert_close(found["FFT2D", "relative L2, clipped pixels"].double(), parseval, rtol=1e-5, atol=0)


def test_tables_and_figures(record: Record) -> None:
    table = gradinversion.table(record)
    assert len(table) == 12 + 6 + 6 + 7
    assert table["paper: FFT2D / PSNR / LPIPS"].ne("–").sum() == 7
    assert gradinversion.noise_table(record).empty
    assert records.about(record) == "1 batches of 2, 1 of 2, 40 steps, and 2 images alone, 40 steps, photos, small-cnn"
    drawn = [gradinversion.figure_images(record, part) for part in ("rows", "seeds", "alone", "none")]
    drawn.append(gradinversion.figure_quality(record))
    for figure in drawn:
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


@pytest.mark.parametrize("page", [STUDY, "gradinversion-baselines"])
def test_networks_and_data_go_together(page: str) -> None:
    with pytest.raises(InputError, match="unknown network 'resnet'"):
        studies.parameters(page, "quick", {"judge": "resnet"})
    with pytest.raises(InputError, match="the dataset is 'photos'"):
        studies.parameters(page, "quick", {"network": "cifar10-resnet20"})
    with pytest.raises(InputError, match="the dataset is 'photos'"):
        studies.parameters("gradinversion-batches", "quick", {"networks": ["cifar10-resnet56"]})
