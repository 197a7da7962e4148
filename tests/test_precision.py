"""Clients of a coarse precision: what they round, and that attacks who know it are right when they are certain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, data, devices, models
from gradleak.images import peel
from gradleak.images.inversion.convolutional import trace_convolutional
from gradleak.labels import recover_batch, recover_soft_labels
from gradleak.leak import Leak, observe
from gradleak.precision import PRECISIONS, computing, rounded, shown_rounding
from gradleak.studies.shared.samples import random_layer, soft_labels
from tests.images.peeling.test_attack import small

COARSE = ("tf32-matmul", "bfloat16", "float16")


def _photos(count: int, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    photos = data.load("photos", "test")
    chosen = torch.randperm(len(photos), generator=torch.Generator().manual_seed(seed))[:count]
    return data.normalise(photos.images[chosen]), photos.labels[chosen] % classes


def test_ten_bits_are_left_and_the_nearest_number_is_taken() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 10_000)
    found = rounded(values)
    assert float(((found - values) / values).abs().max()) <= 2.0**-11
    # Thirteen binary digits at the end are zero.
    assert int((found.view(torch.int32) & (2**13 - 1)).abs().max()) == 0
    assert torch.equal(rounded(found), found)
    assert rounded(torch.tensor([3e38])).isfinite().all()
    assert rounded(torch.tensor([0.0, 1.0, -2.0])).tolist() == [0.0, 1.0, -2.0]


def test_tf32_rounds_convolutions_forward_and_backward_and_nothing_else() -> None:
    torch.manual_seed(0)
    layer, head, inputs = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 5), torch.randn(2, 3, 8, 8)
    model = nn.Sequential(layer, nn.Flatten(), head)
    with computing("tf32", model):
        outputs = layer(inputs)
        loss = head(outputs.flatten(1)).square().sum()
        given = torch.autograd.grad(loss, [layer.weight, head.weight])
    assert layer.bias is not None
    expected = F.conv2d(rounded(inputs), rounded(layer.weight)) + layer.bias[:, None, None]
    torch.testing.assert_close(outputs, expected, rtol=1e-6, atol=1e-6)
    delta = ((2 * head(outputs.flatten(1))) @ head.weight).reshape(outputs.shape)
    by_hand = torch.nn.grad.conv2d_weight(rounded(inputs), layer.weight.shape, rounded(delta))
    torch.testing.assert_close(given[0], by_hand.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(given[1], (2 * head(outputs.flatten(1))).T @ outputs.flatten(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PRECISIONS)
def test_gradients_are_off_by_about_the_rounding_unit(name: str) -> None:
    inputs, classes = _photos(2)
    model = models.build("lenet5", activation="tanh", seed=0)
    truth = observe(models.build("lenet5", activation="tanh", seed=0).double(), inputs.double(), classes)
    if name == "float64":
        model, inputs = model.double(), inputs.double()
    with devices.ieee():
        leak = observe(model, inputs, classes, precision=name)
    assert {one.dtype for one in leak.gradients.values()} == {next(model.parameters()).dtype}
    off = (leak.weight_gradient.double() - truth.weight_gradient).norm() / truth.weight_gradient.norm()
    unit = max(PRECISIONS[name].products, PRECISIONS[name].convolutions)
    # In float32 the sums are rounded as well, and their errors add up along the layers: about 20 units.
    assert float(off) <= (100 if name == "float32" else 20) * unit
    assert name == "float64" or float(off) >= unit / 20


def _single(network: str, kind: str, name: str, count: int = 12) -> tuple[list[Leak], Tensor]:
    inputs, classes = _photos(count, seed=3)
    generator = torch.Generator().manual_seed(1)
    labels = augment.one_hot(classes, 10)
    if kind == "smoothing":
        labels = augment.smooth(classes, 10, torch.rand(count, generator=generator) / 2)
    elif kind == "mixup":
        inputs, labels = augment.mixup(inputs, labels, generator=generator)
    model = models.build(network, seed=2)
    with devices.ieee():
        return [observe(model, inputs[n : n + 1], labels[n : n + 1], precision=name) for n in range(count)], labels


@pytest.mark.parametrize("name", COARSE)
@pytest.mark.parametrize("kind", ["smoothing", "mixup", "onehot"])
def test_single_labels(kind: str, name: str) -> None:
    leaks, labels = _single("lenet", kind, name)
    gradients, weight = torch.stack([leak.weight_gradient for leak in leaks]), leaks[0].weight
    told = recover_soft_labels(gradients, weight, prior=kind, precision=name)
    error = (told.labels - labels).abs().sum(dim=1)
    assert torch.equal(told.labels.argmax(dim=1), labels.argmax(dim=1))
    assert bool((error <= told.open).all()), "a label is no further off than is said"
    assert set(told.status) <= ({"unique", "ambiguous"} if kind == "onehot" else {"ambiguous"})
    assert set(recover_soft_labels(gradients, weight, prior=kind).status) == {"failed"}


def test_a_factor_is_found_in_a_coarse_precision_or_said_to_be_open() -> None:
    leaks, labels = _single("lenet", "onehot", "float16")
    gradients = torch.stack([leak.weight_gradient for leak in leaks]) / 4
    found = recover_soft_labels(gradients, leaks[0].weight, prior="onehot", scale=None, precision="float16")
    for n, status in enumerate(found.status):
        assert status != "unique" or int(found.labels[n].argmax()) == int(labels[n].argmax())
        assert status != "unique" or float(found.scales[n]) == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("name", COARSE)
def test_batches_are_not_certain_in_a_coarse_precision(name: str) -> None:
    inputs, classes = _photos(2)
    model = models.build("resnet20", classes=50, seed=0)
    leak = observe(model, inputs, classes, precision=name)
    known = {"bias": leak.bias, "bias_gradient": leak.bias_gradient}
    for told in (None, name):
        found = recover_batch(leak.weight_gradient, leak.weight, batch_size=2, precision=told, rounds=4, **known)
        assert found.status in ("failed", "ambiguous")


def test_an_image_that_is_known_to_a_few_hundredths_is_not_exact() -> None:
    inputs, classes = _photos(1, seed=5)
    small = F.adaptive_avg_pool2d(inputs, 16)
    model = models.build("lenet", image_size=16, seed=0)
    plain = trace_convolutional(observe(model, small, classes), prior="onehot")
    assert plain.status == "exact"
    for told in (None, "tf32"):
        found = trace_convolutional(observe(model, small, classes, precision="tf32"), prior="onehot", precision=told)
        off, claimed = float((found.inputs - small).norm() / small.norm()), found.layers[-1].claimed
        assert claimed is not None
        assert found.status == ("exact" if claimed <= 1e-2 and not found.reason else "partial")
        assert off <= 3 * claimed


def test_peeling_in_tf32_finds_the_image_and_calls_it_no_more_than_found() -> None:
    model, label = small(width=48, seed=1), torch.tensor([3])
    inputs = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert peel(observe(model, inputs, label), prior="onehot").status == "unique"
    found = peel(observe(model, inputs, label, precision="tf32"), prior="onehot", steps=50, precision="tf32")
    assert found.status in ("found", "failed")


@pytest.mark.parametrize(
    ("made", "unit"),
    [
        (lambda values: values, 0.0),
        (lambda values: values.bfloat16().float(), 2.0**-8),
        (lambda values: values.half().float() / 1024, 2.0**-11),
        (lambda values: rounded(values), 2.0**-11),
        (lambda values: rounded(values) * rounded(values.roll(2, dims=1)), 2.0**-11),
        (lambda values: values.bfloat16().float() / 3, 0.0),
        (lambda values: values.double(), 0.0),
    ],
)
def test_rounding_is_seen_in_the_digits(made: Callable[[Tensor], Tensor], unit: float) -> None:
    values = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    values[:, ::2] = 0
    assert shown_rounding(made(values)).tolist() == [unit] * 3
    assert shown_rounding(torch.zeros(2, 40)).tolist() == [0, 0]


def test_saturated_gradients_that_show_eight_bits_are_not_certain() -> None:
    """Found by random heads: rows may be multiples of each other, however much they were rounded."""
    generator = torch.Generator().manual_seed(5)
    weight, features = random_layer(4, 64, 60, 65.0, generator)
    labels = soft_labels("mixup", torch.randint(4, (60,), generator=generator), 4, generator)
    model = nn.Linear(64, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(weight)
    doubted = 0
    for precision in ("bfloat16", "float32"):
        leaks = [observe(model, features[n : n + 1].float(), labels[n : n + 1], precision=precision) for n in range(60)]
        found = recover_soft_labels(
            torch.stack([leak.weight_gradient for leak in leaks]), leaks[0].weight, prior="mixup"
        )
        error = (found.labels - labels).abs().sum(dim=1)
        assert not (found.where("unique") & ~(error <= 1e-3)).any()
        shown = torch.tensor(["digits show" in reason for reason in found.reasons])
        assert bool((found.open[shown] == torch.inf).all()), "nothing bounds a label whose precision is not told"
        doubted += int(shown.sum())
        assert precision == "bfloat16" or not shown.any()
    assert doubted > 0
