"""What is learned of pictures is better than nothing, and stays in range."""

from __future__ import annotations

import torch

from gradleak import data
from gradleak.models.picture_training import PictureRecipe, learned
from gradleak.models.pictures import Autoencoder, Denoiser

TINY = PictureRecipe(kind="generator", dataset="photos", width=16, depth=8, epochs=2, batch_size=32)


def test_a_generator_makes_images_in_range_and_knows_unseen_ones() -> None:
    model = learned(TINY)
    assert isinstance(model, Autoencoder)
    assert not model.training
    unseen = data.normalise(data.load("photos", "test").images[:100])
    again = model(unseen)
    # Better than one image for all of them.
    assert (again - unseen).square().mean() < 0.7 * (unseen - unseen.mean(dim=0)).square().mean()
    made = model.generator(3 * torch.randn(7, 16, generator=torch.Generator().manual_seed(0)))
    assert made.shape == (7, 3, 32, 32)
    pixels = data.denormalise(made)
    assert pixels.min() > -1e-6
    assert pixels.max() < 1 + 1e-6


def test_a_denoiser_takes_noise_off() -> None:
    model = learned(PictureRecipe(kind="denoiser", dataset="photos", depth=12, epochs=1, batch_size=16))
    assert isinstance(model, Denoiser)
    unseen = data.normalise(data.load("photos", "test").images[:100])
    noise = torch.randn(unseen.shape, generator=torch.Generator().manual_seed(0))
    left = (model(unseen + noise) - unseen).square().mean()
    assert left < 0.8 * noise.square().mean()
