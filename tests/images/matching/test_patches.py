"""Convolutions by patches compute what torch's convolutions compute, with all derivatives that matching needs."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gradleak.images.matching.patches import patched


def _derivatives(model: nn.Module, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return the gradients of each of the images (A, …), and by the images the slope of the gradients' squared norm."""
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], image: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, values, (image.unsqueeze(0),))
        return logits.logsumexp(dim=1).sum()

    images = images.clone().requires_grad_()
    gradients = vmap(grad(loss), (None, 0))(parameters, images)
    size = torch.stack([value.square().sum() for value in gradients.values()]).sum()
    return gradients, torch.autograd.grad(size, [images])[0]


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 1, "stride": 2, "padding": 2},
        {"kernel_size": 3, "stride": 1, "padding": 0, "bias": False},
        {"kernel_size": 3, "stride": (3, 1), "padding": (1, 0)},
        {"kernel_size": (2, 5), "stride": 1, "padding": 2, "bias": False},
        {"kernel_size": (2, 5), "stride": (3, 1), "padding": (1, 0)},
    ],
    ids=str,
)
def test_derivatives_of_many_attacks_are_the_convolutions_without_a_loop(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    first = nn.Conv2d(2, 3, **options)
    last = (nn.Sigmoid(), nn.Conv2d(3, 3, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.LazyLinear(5))
    model, images = nn.Sequential(first, *last).double(), torch.randn(4, 2, 7, 9).double()
    logits = model(images)
    by_patches = patched(copy.deepcopy(model))
    torch.testing.assert_close(by_patches(images), logits)
    with warnings.catch_warnings():
        # torch warns where it falls back to a loop over the attacks.
        warnings.simplefilter("error")
        found = _derivatives(by_patches, images)
    torch.testing.assert_close(found, _derivatives(model, images))
