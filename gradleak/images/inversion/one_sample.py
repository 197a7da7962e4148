"""Read a single sample from a first layer's gradient that a defence has changed.

The gradient of a first Linear layer for one sample x is δ (x, 1)ᵀ: every row is a multiple of the sample. Behind noise
or rounding each row alone is poor, and the least-squares fit of one such product to all rows averages over the units.
The errors of the fitted entries are then independent, with a known standard deviation, so an image can be smoothed by
total variation (rudin1992). Where a defence has removed entries, the others still have the same product, and each of
them is exact; a pixel without any entry is small, because the largest δ would have kept it otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.images.inversion.again import TINY

# Alternating least squares: the number of rounds, and the relative change of δ after which it ends.
ROUNDS, SETTLED = 60, 1e-9
# Zeros are entries that a defence removed if one product fits all other entries up to this share of their size.
FITS = 1e-3
# The weight of total variation, relative to the standard deviation of a pixel: the best of seven on training images.
SMOOTHING = 0.5
# The number of levels of a pixel. Less noise than one level is not smoothed.
LEVELS = 255


@dataclass(frozen=True)
class OneSample:
    """The sample whose product with some errors comes closest to a gradient.

    Attributes:
        values: The sample (D,), 0 where no entry of the gradient is left.
        deviation: The estimated standard deviation of each value.
        bounds: The largest absolute value (D,) that each value may have where no entry is left; inf elsewhere.
    """

    values: Tensor
    deviation: float
    bounds: Tensor

    def filled(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the sample with missing values in the middle of what a range (D,), from low to high, leaves."""
        middle = (torch.minimum(self.bounds, high) + torch.maximum(-self.bounds, low)) / 2
        return torch.where(self.bounds.isfinite(), middle, self.values)


def closest(weight: Tensor, bias: Tensor) -> OneSample:
    """Return the sample x whose products δ (x, 1) fit the rows of a gradient best, weights (O, D) and biases (O,).

    Examples:
        >>> errors, sample = torch.tensor([1.0, -2.0, 3.0]).double(), torch.tensor([0.5, 0.25]).double()
        >>> closest(errors[:, None] * sample, errors).values
        tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    rows = torch.cat([weight, bias[:, None]], dim=1)
    kept = rows != 0
    rows, kept = rows[kept.any(dim=1)], kept[kept.any(dim=1)]
    missing = torch.zeros_like(kept[0])
    errors, values, missed = _alternated(rows, None)
    if not bool(kept.all()):
        own = _alternated(rows, kept.to(rows))
        if own[2] <= FITS * float(rows[kept].square().mean().sqrt()):
            (errors, values, missed), missing = own, ~kept.any(dim=0)
    scale = values[-1]
    least = rows[:, :-1].abs().where(kept[:, :-1], torch.inf).min() if bool(missing.any()) else rows.new_zeros(())
    length, largest = (errors * scale).norm(), (errors * scale).abs().max()
    bounds = torch.where(missing[:-1], least / largest.clamp(min=TINY), torch.inf)
    return OneSample(values[:-1] / scale, missed / float(length.clamp(min=TINY)), bounds)


def _alternated(rows: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor, float]:
    """Return δ (O,) and values (D + 1,) whose product fits the rows, and the root mean square of what it misses.

    Entries where `kept` (O, D + 1) is 0 do not count, and rows are 0 there.
    """

    def fitted(entries: Tensor, known: Tensor, count: Tensor | None) -> Tensor:
        size = known.square().sum() if count is None else count @ known.square()
        return (entries @ known) / size.clamp(min=TINY)

    turned = None if kept is None else kept.T
    errors = rows[:, -1] if bool(rows[:, -1].any()) else rows.sum(dim=1)
    for _ in range(ROUNDS):
        values = fitted(rows.T, errors, turned)
        before, errors = errors, fitted(rows, values, kept)
        if float((errors - before).norm()) <= SETTLED * float(errors.norm()):
            break
    misses = rows - errors[:, None] * values
    if kept is not None:
        misses = misses * kept
    count = rows.numel() if kept is None else float(kept.sum())
    return errors, values, float((misses.square().sum() / count).sqrt())


def smoothed(images: Tensor, deviation: float, low: float, high: float) -> Tensor:
    """Return images (N, C, H, W) without white noise of this standard deviation, with values from `low` to `high`."""
    from skimage.restoration import denoise_tv_chambolle

    if not deviation > (high - low) / LEVELS:
        return images
    smooth = [denoise_tv_chambolle(image, SMOOTHING * deviation, channel_axis=0) for image in images.cpu().numpy()]
    return torch.stack([torch.from_numpy(image) for image in smooth]).to(images).clamp(low, high)
