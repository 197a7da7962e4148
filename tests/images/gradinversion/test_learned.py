"""Attacks with what was learned of public images: the formulas, what they find, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from gradleak.images import project_batches
from gradleak.images.gradinversion.attack import Target, known_of
from gradleak.images.gradinversion.learned import PROJECTION, Denoised
from gradleak.leak import observe
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


def test_latent_projection_finds_what_a_generator_can_make() -> None:
    leaks, _, labels = batches()
    draw = torch.Generator().manual_seed(4)
    generator = Linear(torch.randn(WIDTH, 2, 8, 8, generator=draw).double())
    inputs = generator(torch.randn(4, WIDTH, generator=draw).double())
    leaks = [observe(leaks[0].model, *part) for part in zip(inputs.split(2), labels.split(2), strict=True)]
    settings = replace(PROJECTION, steps=150)
    found, again = (
        project_batches(leaks, labels, generator=generator, width=WIDTH, settings=settings, normal=0.0, seeds=2)
        for _ in range(2)
    )
    assert found.attempts.shape == (2, 2, 2, 2, 8, 8)
    assert (found.images - inputs).square().mean() < 0.05 * inputs.square().mean()
    assert torch.equal(found.attempts, again.attempts)


def test_a_denoisers_slope_is_what_it_takes_off() -> None:
    leaks, inputs, labels = batches()
    known = known_of(leaks, labels)
    plain = Target(leaks, known, NOTHING, None)
    places = inputs.reshape(2, -1)
    halved = nn.AvgPool2d(1, divisor_override=2)
    target = Denoised(leaks, known, NOTHING, None, halved, 0.6)
    losses, slopes = target.evaluate(places, torch.arange(2))
    others, before = plain.evaluate(places, torch.arange(2))
    torch.testing.assert_close(slopes - before, 0.6 * (places - places / 2) / places.shape[1])
    torch.testing.assert_close(losses - others, 0.3 * (places / 2).square().mean(dim=1))
