"""Convolutions by patches compute what torch's convolutions compute, with all derivatives that matching needs."""

from __future__ import annotations

import copy
import itertools
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gradleak.images.matching.patches import PatchConv2d, patched

SHAPES = [
    dict(zip(("kernel_size", "stride", "padding", "bias"), values, strict=True))
    for values in itertools.product((1, 3, (2, 5)), (1, 2, (3, 1)), (0, 2, (1, 0)), (True, False))
]


def _layer(options: dict[str, object]) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(2, 3, **options).double()  # type: ignore[arg-type]


def _inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_values_and_first_derivatives_are_the_convolutions(options: dict[str, object]) -> None:
    layer, inputs = _layer(options), _inputs(4, 2, 7, 9).requires_grad_()
    by_patches = PatchConv2d(layer)
    found, expected = by_patches(inputs), layer(inputs)
    torch.testing.assert_close(found, expected)
    wanted = [inputs, *layer.parameters()]
    for own, other in zip(
        torch.autograd.grad(found.sin().sum(), wanted), torch.autograd.grad(expected.sin().sum(), wanted), strict=True
    ):
        torch.testing.assert_close(own, other)


def _slope_of_matching(model: nn.Module, images: Tensor) -> Tensor:
    """Return the derivative, by the images (A, …), of the squared norm of each image's gradient."""
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], image: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, values, (image.unsqueeze(0),))
        return logits.logsumexp(dim=1).sum()

    images = images.clone().requires_grad_()
    gradients = vmap(grad(loss), (None, 0))(parameters, images)
    size = torch.stack([value.square().sum() for value in gradients.values()]).sum()
    (slope,) = torch.autograd.grad(size, [images])
    return slope


def test_second_derivatives_of_many_attacks_are_the_convolutions_without_a_loop() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 4, 5, stride=2, padding=2), nn.Sigmoid(), nn.Conv2d(4, 3, 3, padding=1), nn.Sigmoid())
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 5)).double()
    images = _inputs(6, 2, 8, 8)
    expected = _slope_of_matching(model, images)
    with warnings.catch_warnings():
        # torch warns where it falls back to a loop over the attacks.
        warnings.simplefilter("error")
        found = _slope_of_matching(patched(copy.deepcopy(model)), images)
    torch.testing.assert_close(found, expected)


def test_names_of_parameters_stay_and_other_convolutions_are_left_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.Sequential(
            nn.Conv2d(4, 4, 3, groups=2),
            nn.Conv2d(4, 4, 3, dilation=2),
            nn.Conv2d(4, 4, 3, padding="same"),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
            nn.Conv2d(4, 2, 1),
        ),
    )
    names = [name for name, _ in model.named_parameters()]
    kinds = [type(layer) for layer in patched(model).modules() if isinstance(layer, nn.Conv2d | PatchConv2d)]
    assert [name for name, _ in model.named_parameters()] == names
    assert kinds == [PatchConv2d, *[nn.Conv2d] * 4, PatchConv2d]
