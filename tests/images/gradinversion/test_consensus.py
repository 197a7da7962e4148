"""What seeds agree on: their mean, and their mean after a shifted one was moved back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradleak import data
from gradleak.images.gradinversion.consensus import registered


def photograph() -> torch.Tensor:
    return data.load("photos", "test", size=64).images[130].double()


@pytest.mark.parametrize("move", [(3, -5), (-4, 2)])
def test_a_shifted_image_is_moved_back(move: tuple[int, int]) -> None:
    image = photograph()
    shifted = image.roll(move, dims=(1, 2))
    found = registered(shifted, image)
    inner = (slice(None), slice(8, -8), slice(8, -8))
    before, after = ((side - image)[inner].square().mean() for side in (shifted, found))
    assert after < before / 20


def test_registration_never_moves_a_seed_away_from_the_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    image = photograph()
    for _ in range(3):
        noise = torch.randn(image.shape, generator=generator).double()
        assert (registered(noise, image) - image).norm() <= (noise - image).norm()
    flat = torch.full_like(image, 0.5)
    assert torch.equal(registered(flat, image), flat)
    lost = torch.full_like(image, np.nan)
    assert registered(lost, image).isnan().all()
