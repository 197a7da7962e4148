"""Restore batches with a learned prior: a generator or a denoiser that was trained on public images.

Such a prior adds plausible details that the gradient does not contain. As a control, restore also from the gradient of
another batch, and trust only details that are absent from the control.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradleak.arguments import checked_arguments
from gradleak.errors import InputError, check_count
from gradleak.images.gradinversion.attack import Known, Target, expected_statistics, known_of, restored
from gradleak.images.gradinversion.settings import OURS, GradInversion
from gradleak.images.gradinversion.statistics import Statistics
from gradleak.images.matching.engine import Reconstruction, check_leaks
from gradleak.leak import Leak

# The cosine distance is the only term; Adam starts from latents of the distribution that the generator was trained on.
PROJECTION = replace(OURS, variation=0.0, statistics=0.0, levels=1, signed=False, rate=0.3, spread=1.0)


class Projection(Target):
    """The loss of A attacks as a function of a generator's latents, with `normal` times the latents' mean square."""

    def __init__(
        self, leaks: list[Leak], known: Known, settings: GradInversion, generator: nn.Module, width: int, normal: float
    ) -> None:
        super().__init__(leaks, known, settings, None)
        self.generator, self.width, self.normal = generator, width, normal
        self.size = self.shape[0] * width
        self.sizes = [self.size]

    def inputs(self, places: Tensor) -> Tensor:
        """Return the images (A, B, C, H, W) that the generator makes of latents (A, B·width)."""
        images: Tensor = self.generator(places.reshape(-1, self.width))
        return images.reshape(-1, *self.shape)

    def losses(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the loss (A,) at latents (A, B·width)."""
        return super().losses(places, owners) + self.normal * places.square().mean(dim=1)


class Denoised(Target):
    """The loss of A attacks plus `weight` / 2 times the mean square of an image's difference from its denoised copy."""

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
        """Return the loss (A,); the denoised image D(x) counts as constant, so that the prior's slope is x − D(x)."""
        images = self.inputs(places)
        with torch.no_grad():
            denoised: Tensor = self.denoiser(images.flatten(0, 1)).reshape(images.shape)
        return super().losses(places, owners) + self.weight / 2 * (images - denoised).square().flatten(1).mean(dim=1)


@checked_arguments()
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
    """Restore the batches of N leaks of one model as images of a generator, by a search for latents.

    Args:
        leaks: One leak or N leaks of the same model.
        labels: As in `restore_batches`.
        generator: Maps latents (M, width) from N(0, I) to inputs of the model.
        width: The length of a latent.
        settings: The objective and the optimizer, without weights of statistics and features.
        normal: The weight of the latents' mean square.
        seeds: The number of random starts for each leak.
        seed: The seed of the random numbers.
    """
    all_leaks = [leaks] if isinstance(leaks, Leak) else list(leaks)
    check_leaks(all_leaks, seeds, None)
    check_count("width", width)
    if settings.statistics or settings.feature:
        raise InputError("latent projection uses the gradient alone: the weights of statistics and features must be 0")
    return restored(Projection(all_leaks, known_of(all_leaks, labels), settings, generator, width, normal), seeds, seed)


@checked_arguments()
def restore_denoised(
    leaks: Leak | Sequence[Leak],
    labels: Tensor | str = "counted",
    *,
    denoiser: nn.Module,
    weight: float = 4.0,
    settings: GradInversion = OURS,
    statistics: Statistics | Sequence[Statistics] | None = None,
    seeds: int = 1,
    seed: int = 0,
) -> Reconstruction:
    """Restore the batches of N leaks of one model with a denoiser as an additional prior.

    Args:
        leaks: One leak or N leaks of the same model.
        labels: As in `restore_batches`.
        denoiser: Maps inputs of the model (M, …) to inputs without noise.
        weight: The weight of the denoiser's prior.
        settings: The objective and the optimizer.
        statistics: As in `restore_batches`.
        seeds: The number of random starts for each leak.
        seed: The seed of the random numbers.
    """
    all_leaks = [leaks] if isinstance(leaks, Leak) else list(leaks)
    check_leaks(all_leaks, seeds, None)
    expected = expected_statistics(all_leaks, statistics, settings)
    return restored(Denoised(all_leaks, known_of(all_leaks, labels), settings, expected, denoiser, weight), seeds, seed)
