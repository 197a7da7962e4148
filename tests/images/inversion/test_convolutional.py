"""Chains of convolutions run backwards: the image, honest claims about every layer, and clear refusals."""

from __future__ import annotations

import functools
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradleak import augment, data, metrics, models, observe
from gradleak.errors import GradleakWarning
from gradleak.images import invert_convolutional, trace_convolutional
from gradleak.images.inversion import convolutional
from gradleak.leak import Leak
from gradleak.studies.shared.samples import inputs_of


def small(activation: nn.Module, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 5, stride=2, padding=2), activation, nn.Conv2d(6, 8, 3, padding=1), activation,
        nn.Flatten(), nn.Linear(8 * 36, 10, bias=False),
    )  # fmt: skip
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model.double()


def sent(model: nn.Module, images: Tensor, seed: int = 0) -> tuple[Leak, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(len(images), generator=generator, dtype=torch.float64) / 2
    labels = augment.smooth(torch.randint(10, (len(images),), generator=generator), 10, share)
    dtype = next(model.parameters()).dtype
    return observe(model, images.to(dtype), labels.to(dtype)), labels


def noise(count: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(count, 2, 12, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.3), nn.ELU()])
def test_every_invertible_activation(activation: nn.Module) -> None:
    model, image = small(activation), noise()
    leak, labels = sent(model, image)
    known = None if isinstance(activation, nn.Sigmoid) else labels
    found = trace_convolutional(leak, known, prior="smoothing")
    assert found.status == "exact", found.reason
    assert (found.inputs - image).abs().max() < 1e-6
    assert [layer.unknowns for layer in found.layers] == [6 * 36, 2 * 144]
    assert [layer.equations for layer in found.layers] == [8 * 36 + 8 * 54, 6 * 36 + 6 * 50]


@functools.cache
def photo(seed: int, size: int = 32) -> Tensor:
    photos = data.load("photos", "test")
    index = torch.randint(len(photos), (1,), generator=torch.Generator().manual_seed(seed))
    return data.normalise(photos.images[index].double())[..., :size, :size]


def test_lenet_in_single_precision_with_honest_claims() -> None:
    ratios = []
    for seed in (1, 2):
        model = models.build("lenet", image_size=16, seed=seed)
        image = photo(seed, 16)
        leak, labels = sent(model, image, seed)
        found = trace_convolutional(leak)
        assert found.status == "exact", found.reason
        assert metrics.psnr(data.denormalise(found.inputs), data.denormalise(image)) > 60
        assert metrics.label_error(found.labels, labels) < 1e-4
        double = model.double()
        truth = [*inputs_of(nn.Conv2d, double, image).values()]
        for report, own in zip(reversed(found.layers), truth, strict=True):
            assert report.found is not None
            assert report.claimed is not None
            claimed = report.claimed * report.found.norm()
            ratios.append(float(claimed / (report.found - own[0]).norm()))
    # A claim is a bound of four standard deviations, and no more than the errors call for.
    assert min(ratios) > 1
    assert median(ratios) < 100


def test_a_batch_is_short_of_equations() -> None:
    model = models.build("lenet", seed=0)
    leak, _ = sent(model, torch.cat([photo(0), photo(1)]))
    found = trace_convolutional(leak)
    assert found.status == "failed"
    assert found.reason == "layer 'body.2' is 1008 equations short for 2 samples"
    assert found.inputs.shape == (2, 3, 32, 32)
    with pytest.warns(GradleakWarning, match="1008 equations short"):
        assert invert_convolutional(leak).isnan().all()


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.LeakyReLU(0.3)])
@pytest.mark.parametrize(("channels", "width", "kernel", "stride"), [(3, 4, 3, 2), (3, 2, 3, 1), (1, 4, 3, 3)])
def test_no_image_is_exact_with_a_direction_open(
    activation: nn.Module, channels: int, width: int, kernel: int, stride: int
) -> None:
    """Fewer equations than pixels, or as many that do not read every pixel: in float64 rounding hides what is open."""
    torch.manual_seed(0)
    side = (8 + 2 - kernel) // stride + 1
    convolution = nn.Conv2d(channels, width, kernel, stride, 1)
    model = nn.Sequential(convolution, activation, nn.Flatten(), nn.Linear(width * side**2, 10)).double()
    image = torch.rand(1, channels, 8, 8, dtype=torch.float64)
    found = trace_convolutional(observe(model, image, torch.tensor([1])), prior="onehot")
    assert found.status == "partial"
    assert f"of its {image.numel()} inputs are not determined" in found.reason
    assert found.layers[0].rank < image.numel()
    assert found.claimed > float((found.inputs - image).norm() / image.norm()) > 0.1


@pytest.mark.parametrize("settings", [(1, 0, 1), (2, 1, 1), (1, 2, 2)])
def test_normal_equations_are_those_of_the_whole_matrix(settings: tuple[int, int, int]) -> None:
    module, shape = nn.Conv2d(2, 5, 3, *settings, bias=False).double().requires_grad_(False), (2, 7, 6)
    matrix = torch.func.jacrev(lambda flat: module(flat.view(1, *shape)).flatten())(torch.zeros(84).double())
    weights = torch.rand(len(matrix), generator=torch.Generator().manual_seed(0)).double()
    layer: Any = SimpleNamespace(module=module)
    square = convolutional._square(module.weight, weights.view(5, -1), convolutional._places(layer, shape), 42)
    torch.testing.assert_close(square, matrix.T @ (weights[:, None] * matrix))
