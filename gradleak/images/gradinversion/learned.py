"""Batches that look like public images: those of a generator, or those that a denoiser leaves as they are.

What such a prior makes plausible was not leaked: whoever uses one should restore from the gradient of another batch as
well, and believe only what that does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradleak.errors import InputError
from gradleak.images.gradinversion.attack import Known, Target, descend, known_of
from gradleak.images.gradinversion.settings import OURS, GradInversion
from gradleak.images.gradinversion.statistics import Statistics, stacked
from gradleak.images.matching.engine import Reconstruction, check_leaks, gathered
from gradleak.images.matching.optimizers import Track
from gradleak.leak import Leak

# Cosine distance alone, Adam on latents that begin as the generator knows them.
PROJECTION = replace(OURS, variation=0.0, statistics=0.0, levels=1, signed=False, rate=0.3, spread=1.0)


class Projection(Target):
    """The loss of A attacks whose images are a generator's; their places are its latents, `normal` their weight."""

    def __init__(
        self, leaks: list[Leak], known: Known, settings: GradInversion, generator: nn.Module, width: int, normal: float
    ) -> None:
        super().__init__(leaks, known, settings, None)
        self.generator, self.width, self.normal = generator, width, normal
        self.size = self.shape[0] * width
        self.sizes = [self.size]

    def inputs(self, places: Tensor) -> Tensor:
        """Return the images (A, B, C, H, W) of latents."""
        images: Tensor = self.generator(places.reshape(-1, self.width))
        return images.reshape(-1, *self.shape)

    def losses(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the loss (A,) at places."""
        return super().losses(places, owners) + self.normal * places.square().mean(dim=1)


class Denoised(Target):
    """The loss of A attacks with half of what a denoiser takes off an image's pixels, squared, weighed by `weight`."""

    def __init__(
        self,
        leaks: list[Leak],
        known: Known,
        settings: GradInversion,
        statistics: Statistics | None,
        denoiser: nn.Module,
        weight: float,
    ) -> None:
        super().__init__(leaks, known, settings, statistics)
        self.denoiser, self.weight = denoiser, weight

    def losses(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the loss (A,) at places; what the denoiser leaves is held fixed, so that its slope is x − D(x)."""
        images = self.inputs(places)
        with torch.no_grad():
            left: Tensor = self.denoiser(images.flatten(0, 1)).reshape(images.shape)
        return super().losses(places, owners) + self.weight / 2 * (images - left).square().flatten(1).mean(dim=1)


def project_batches(
    leaks: Leak | Sequence[Leak],
    labels: Tensor | str = "counted",
    *,
    generator: nn.Module,
    width: int,
    settings: GradInversion = PROJECTION,
    normal: float = 0.1,
    seeds: int = 1,
    seed: int = 0,
) -> Reconstruction:
    """Restore the batches of N leaks of one model, `seeds` times each, as images of a generator: latent projection.

    `generator` makes images, in the space of the model's inputs, of latents (N, width) from N(0, I); `normal` weighs
    how far from there they are. `labels` as in `restore_batches`.
    """
    many = [leaks] if isinstance(leaks, Leak) else list(leaks)
    check_leaks(many, seeds, None)
    if settings.statistics or settings.feature:
        raise InputError("latent projection looks at the gradient: statistics and features must weigh nothing")
    return _searched(Projection(many, known_of(many, labels), settings, generator, width, normal), seeds, seed)


def restore_denoised(
    leaks: Leak | Sequence[Leak],
    labels: Tensor | str = "counted",
    *,
    denoiser: nn.Module,
    weight: float = 4.0,
    settings: GradInversion = OURS,
    statistics: Sequence[Statistics] | None = None,
    seeds: int = 1,
    seed: int = 0,
) -> Reconstruction:
    """Restore the batches of N leaks of one model, `seeds` times each, with a denoiser as a prior beside all others.

    `denoiser` takes noise off inputs of the model. `statistics` are each batch's own. `labels` as in `restore_batches`.
    """
    many = [leaks] if isinstance(leaks, Leak) else list(leaks)
    check_leaks(many, seeds, None)
    if settings.statistics and (statistics is None or len(statistics) != len(many)):
        raise InputError(f"a weight of statistics needs those of each batch, {len(many)}")
    held = stacked(statistics) if statistics and settings.statistics else None
    return _searched(Denoised(many, known_of(many, labels), settings, held, denoiser, weight), seeds, seed)


def _searched(target: Projection | Denoised, seeds: int, seed: int) -> Reconstruction:
    like = next(iter(target.observed.values()))
    generator = torch.Generator().manual_seed(seed)
    places = target.settings.spread * torch.randn(len(like) * seeds, target.size, generator=generator).to(like)
    owners = torch.arange(len(like), device=places.device).repeat_interleave(seeds)
    track = Track.start(places, target.settings.steps, None)
    interrupted = False
    try:
        descend(target.settings, target, places, owners, seeds, track, generator)
    except KeyboardInterrupt:
        interrupted = True
    return gathered(target, places, owners, [(torch.arange(len(places)), track)], interrupted, seeds)
