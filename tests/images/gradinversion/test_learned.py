"""Attacks with what was learned of public images: the formulas, what they find, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak.errors import InputError
from gradleak.images import project_batches, restore_denoised
from gradleak.images.gradinversion.attack import Target, known_of
from gradleak.images.gradinversion.learned import PROJECTION, Denoised, Projection
from gradleak.images.gradinversion.settings import OURS
from gradleak.leak import Leak, observe
from tests.images.gradinversion.test_attack import NOTHING, batches

WIDTH = 5


class Linear(nn.Module):
    """Images that are sums of a few."""

    def __init__(self, basis: Tensor) -> None:
        super().__init__()
        self.basis = basis

    def forward(self, latents: Tensor) -> Tensor:
        """Return images (N, C, H, W)."""
        return torch.einsum("nk,kchw->nchw", latents, self.basis)


class Halved(nn.Module):
    """A denoiser that takes half of everything."""

    def forward(self, images: Tensor) -> Tensor:
        """Return what is left."""
        return images / 2


def in_range() -> tuple[list[Leak], Tensor, Tensor, Linear, Tensor]:
    """Return leaks of two batches that a generator can make, their images, labels, the generator and its latents."""
    leaks, _, labels = batches()
    draw = torch.Generator().manual_seed(4)
    generator = Linear(torch.randn(WIDTH, 2, 8, 8, generator=draw).double())
    latents = torch.randn(4, WIDTH, generator=draw).double()
    inputs = generator(latents)
    parts = zip(inputs.split(2), labels.split(2), strict=True)
    return [observe(leaks[0].model, *part) for part in parts], inputs, labels, generator, latents


def test_latents_of_the_private_images_have_no_loss_but_their_own_size() -> None:
    leaks, inputs, labels, generator, latents = in_range()
    settings = replace(NOTHING, distance="l2")
    places = latents.reshape(2, -1)
    for normal in (0.0, 0.7):
        target = Projection(leaks, known_of(leaks, labels), settings, generator, WIDTH, normal)
        torch.testing.assert_close(target.inputs(places).flatten(0, 1), inputs)
        expected = normal * places.square().mean(dim=1)
        torch.testing.assert_close(target.losses(places, torch.arange(2)), expected, rtol=0, atol=1e-12)


def test_latent_projection_finds_what_a_generator_can_make() -> None:
    leaks, inputs, labels, generator, _ = in_range()
    settings = replace(PROJECTION, steps=150)
    found = project_batches(leaks, labels, generator=generator, width=WIDTH, settings=settings, normal=0.0, seeds=2)
    assert found.attempts.shape == (2, 2, 2, 2, 8, 8)
    error = (found.images - inputs).square().mean() / inputs.square().mean()
    assert error < 0.05
    again = project_batches(leaks, labels, generator=generator, width=WIDTH, settings=settings, normal=0.0, seeds=2)
    assert torch.equal(found.attempts, again.attempts)


def test_a_denoisers_slope_is_what_it_takes_off() -> None:
    leaks, inputs, labels = batches()
    known = known_of(leaks, labels)
    plain = Target(leaks, known, NOTHING, None)
    places = inputs.reshape(2, -1)
    target = Denoised(leaks, known, NOTHING, None, Halved(), 0.6)
    losses, slopes = target.evaluate(places, torch.arange(2))
    others, before = plain.evaluate(places, torch.arange(2))
    torch.testing.assert_close(slopes - before, 0.6 * (places - places / 2) / places.shape[1])
    torch.testing.assert_close(losses - others, 0.3 * (places / 2).square().mean(dim=1))


def test_wrong_settings_are_told() -> None:
    leaks, _, labels, generator, _ = in_range()
    with pytest.raises(InputError, match="weights of statistics and features must be 0"):
        project_batches(leaks, labels, generator=generator, width=WIDTH, settings=OURS)
    with pytest.raises(InputError, match="the statistics of each batch, 2"):
        restore_denoised(leaks, labels, denoiser=nn.Identity())
