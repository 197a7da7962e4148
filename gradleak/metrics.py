"""Measure the quality of reconstructions.

Images are (N, C, H, W) of a floating type in [0, 1], and the data range is 1. Reconstructions are clipped to [0, 1]
first. A reconstruction with NaN or infinite values is a failure and is never left out: its PSNR is −inf and its SSIM 0.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradleak import paths
from gradleak.devices import in_chunks
from gradleak.errors import InputError, unknown

SSIM_WINDOW = 7  # scikit-image's default size of its uniform window
# The scale on which the book grades restored images: the least PSNR (dB) for each word.
RECOGNISABLE, INDISTINGUISHABLE, EXACT = 20.0, 40.0, 60.0
SCALE = {"recognisable": RECOGNISABLE, "indistinguishable": INDISTINGUISHABLE, "exact": EXACT}
TRUNKS = {"alex": "alexnet_features.pt", "squeeze": "squeezenet1_1.pt"}


@dataclass(frozen=True)
class Lpips:
    """LPIPS distances (N,), or None and the reason why they cannot be computed."""

    values: Tensor | None
    reason: str = ""


def psnr(recovered: Tensor, truth: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in dB (N,), inf for equal images.

    Examples:
        >>> truth = torch.full((1, 3, 8, 8), 0.5)
        >>> psnr(truth + 0.1, truth).round(decimals=1)
        tensor([20.], dtype=torch.float64)
    """
    first, second, finite = _pair(recovered, truth)
    error = (first - second).square().flatten(1).mean(dim=1)
    return (-10 * error.log10()).masked_fill(~finite, -math.inf)


def grade(decibels: float) -> str:
    """Return the word of the book's scale for an image with a PSNR of `decibels`.

    Examples:
        >>> grade(45.2), grade(9.8)
        ('indistinguishable', 'not recognisable')
    """
    return next((word for word, least in reversed(SCALE.items()) if decibels >= least), "not recognisable")


def wrapped_psnr(recovered: Tensor, truth: Tensor) -> Tensor:
    """Return the PSNR in dB (N,) as wang2024's code computes it.

    The images are converted to 8 bits by truncation, and values out of range wrap around instead of being clipped: a
    pixel slightly brighter than white becomes black. The data range is 256. Use this only to compare with published
    numbers.
    """
    _check(recovered, truth)
    eight_bit = [(images.double().nan_to_num(0) * 255).trunc().remainder(256) for images in (recovered, truth)]
    error = (eight_bit[0] - eight_bit[1]).square().flatten(1).mean(dim=1)
    value = 10 * (65536 / error).log10()
    return value.masked_fill(~torch.isfinite(recovered).flatten(1).all(dim=1), -math.inf)


def ssim(recovered: Tensor, truth: Tensor) -> Tensor:
    """Return the structural similarity (N,) by scikit-image with its default uniform 7×7 window."""
    from skimage.metrics import structural_similarity

    first, second, finite = _pair(recovered, truth)
    if min(first.shape[-2:]) < SSIM_WINDOW:
        raise InputError(f"SSIM needs images of at least {SSIM_WINDOW}×{SSIM_WINDOW}; got {tuple(first.shape[-2:])}")
    values = [
        structural_similarity(image, true_image, data_range=1.0, channel_axis=0) if valid else 0.0
        for image, true_image, valid in zip(first.cpu().numpy(), second.cpu().numpy(), finite.tolist(), strict=True)
    ]
    return torch.tensor(values, dtype=torch.float64, device=recovered.device)


def lpips(recovered: Tensor, truth: Tensor, trunk: str = "alex") -> Lpips:
    """Return LPIPS distances with the heads of lpips 0.1 on a pretrained `trunk`, "alex" or "squeeze".

    A reconstruction that is not finite has distance 1. Without a file of the trunk's weights the reason is returned.
    """
    if trunk not in TRUNKS:
        raise unknown("LPIPS trunk", trunk, TRUNKS)
    first, second, finite = _pair(recovered, truth)
    folder = paths.weights_folder()
    file = folder / TRUNKS[trunk] if folder else None
    if file is None or not file.is_file():
        return Lpips(None, f"LPIPS needs a pretrained trunk: {TRUNKS[trunk]} in $GRADLEAK_WEIGHTS")
    model = _lpips_model(trunk, str(file)).to(first.device)
    with torch.no_grad():
        parts = in_chunks(
            len(first), 64, lambda part: model(first[part].float() * 2 - 1, second[part].float() * 2 - 1).flatten()
        )
        values = torch.cat(list(parts)).double()
    return Lpips(values.masked_fill(~finite, 1.0))


def label_error(recovered: Tensor, truth: Tensor, order: int = 1) -> Tensor:
    """Return the distance (N,) of labels (N, C) from the truth in the norm `order`, by default L1: wang2024's L_r."""
    if recovered.shape != truth.shape or recovered.ndim != 2:
        raise InputError(
            f"labels must be two (N, C) of one shape; got {tuple(recovered.shape)} and {tuple(truth.shape)}"
        )
    distance: Tensor = torch.linalg.vector_norm(recovered.double() - truth.double(), ord=order, dim=1)
    return distance


def label_accuracy(recovered: Tensor, truth: Tensor, tolerance: float = 1e-3) -> float:
    """Return the share of labels with an L1 error below `tolerance`; labels with NaN count as wrong."""
    return float((label_error(recovered, truth) < tolerance).double().mean())


def oracle_success(scalars: Tensor, truth: Tensor, coefficient: float, tolerance: float = 0.01) -> Tensor:
    """Return whether wang2024's code counts each recovered scalar λ as a success (N,).

    That code compares its unknown, `coefficient` times λ, with the true value, up to the absolute `tolerance`.
    """
    return (coefficient * (scalars - truth)).abs() < tolerance


def count_overlap(found: Tensor, truth: Tensor) -> Tensor:
    """Return the share (N,) of each batch's labels that are found, from counts (N, C): LLG's success rate."""
    return torch.minimum(found, truth).sum(dim=1).double() / truth.sum(dim=1)


def count_jaccard(found: Tensor, truth: Tensor) -> Tensor:
    """Return the Jaccard index (N,) of found and true counts (N, C): posterior2023's instance accuracy."""
    return torch.minimum(found, truth).sum(dim=1).double() / torch.maximum(found, truth).sum(dim=1)


def class_jaccard(found: Tensor, truth: Tensor) -> Tensor:
    """Return the Jaccard index (N,) of the sets of found and true classes: posterior2023's class accuracy."""
    return count_jaccard((found > 0).long(), (truth > 0).long())


def match_batch(recovered: Tensor, truth: Tensor) -> Tensor:
    """Return the order (N,) for which `recovered[order]` (N, …) has the least squared error to `truth`.

    The Hungarian algorithm finds the order. `recovered` (M, …) may have more rows than `truth`.
    """
    from scipy.optimize import linear_sum_assignment

    if recovered.ndim < 2 or recovered.shape[1:] != truth.shape[1:] or len(recovered) < len(truth):
        raise InputError(
            "the recovered batch (M, …) must have rows like those of the true one (N, …), and not fewer; "
            f"got {tuple(recovered.shape)}, {tuple(truth.shape)}"
        )
    finite = torch.isfinite(recovered).flatten(1).all(dim=1)
    cost = torch.cdist(truth.double().flatten(1), recovered.double().nan_to_num(0, 0, 0).flatten(1)).square()
    # A reconstruction that is not finite costs the same everywhere, so it does not affect the order of the rest.
    cost[:, ~finite] = 0
    return torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1], device=recovered.device)


def fft2d(recovered: Tensor, truth: Tensor) -> Tensor:
    """Return the distance (N,) of 2-D frequency responses: 1 minus the cosine similarity of their amplitudes.

    yin2021's FFT2D is a cosine similarity of frequency responses for which less is better. That paper does not say
    whether it compares amplitudes; this function assumes so.
    """
    first, second, finite = _pair(recovered, truth)
    ours, theirs = (torch.fft.fft2(images, norm="ortho").abs().flatten(1) for images in (first, second))
    distance = 1 - torch.nn.functional.cosine_similarity(ours, theirs)
    return distance.masked_fill(~finite, math.inf)


def relative_l2(recovered: Tensor, truth: Tensor) -> Tensor:
    """Return the L2 distance (N,) of images, divided by the norm of the true image.

    By Parseval's theorem, the Fourier transforms of the images have the same relative distance.
    """
    first, second, finite = _pair(recovered, truth)
    distance: Tensor = (first - second).flatten(1).norm(dim=1) / second.flatten(1).norm(dim=1)
    return distance.masked_fill(~finite, math.inf)


def registered_psnr(recovered: Tensor, truth: Tensor, *, reach: int = 4) -> Tensor:
    """Return the PSNR in dB (N,) at the best of all shifts by up to `reach` pixels in each direction.

    Only pixels where the shifted images overlap are compared. A shift by zero pixels is among the candidates, so the
    result is at least the plain PSNR.
    """
    first, second, finite = _pair(recovered, truth)
    images, (height, width) = len(first), first.shape[-2:]
    reach = min(reach, height - 1, width - 1)
    least = torch.full((images,), math.inf, dtype=first.dtype, device=first.device)
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            ours = first[..., max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)]
            theirs = second[..., max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)]
            least = torch.minimum(least, (ours - theirs).square().flatten(1).mean(dim=1))
    return (-10 * least.log10()).masked_fill(~finite, -math.inf)


def identified(recovered: Tensor, gallery: Tensor, places: Tensor) -> Tensor:
    """Return whether the nearest image in a gallery is the private one (N,): yin2021's IIP.

    Features are compared by their cosine similarity. A random guess is right with probability 1 / M.

    Args:
        recovered: The features of the reconstructions (N, I). One that is not finite counts as not identified.
        gallery: The features of the gallery's images (M, I).
        places: The indices of the private images in the gallery (N,).
    """
    if recovered.ndim != 2 or gallery.ndim != 2 or recovered.shape[1] != gallery.shape[1]:
        raise InputError(f"features must be (N, I) and (M, I); got {tuple(recovered.shape)}, {tuple(gallery.shape)}")
    if len(places) != len(recovered) or not ((places >= 0) & (places < len(gallery))).all():
        raise InputError(f"each of {len(recovered)} images needs an index in the gallery of {len(gallery)}")
    finite = torch.isfinite(recovered).all(dim=1)
    ours, theirs = (torch.nn.functional.normalize(features.double(), dim=1) for features in (recovered, gallery))
    return finite & ((ours.nan_to_num(0) @ theirs.T).argmax(dim=1) == places)


@functools.cache
def _lpips_model(trunk: str, file: str) -> Any:
    import lpips as package

    # lpips prints a greeting and calls torchvision with deprecated arguments: hide both the greeting and the warning.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torchvision.*")
        model = package.LPIPS(net=trunk, pnet_rand=True, verbose=False)
    state = torch.load(file, weights_only=True)
    features = {key.removeprefix("features."): value for key, value in state.items() if key.startswith("features.")}
    model_state = model.net.state_dict()
    # lpips splits the trunk into slices but keeps the layers' numbers: slice2.3.weight is features.3.weight.
    model.net.load_state_dict({key: features[key.split(".", 1)[1]] for key in model_state})
    return model.eval()


def _pair(recovered: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _check(recovered, truth)
    finite = torch.isfinite(recovered).flatten(1).all(dim=1)
    return recovered.double().nan_to_num(0).clamp(0, 1), truth.double(), finite


def _check(recovered: Tensor, truth: Tensor) -> None:
    if recovered.shape != truth.shape or recovered.ndim != 4 or len(truth) == 0:
        raise InputError(
            f"images must be two (N, C, H, W) of one shape; got {tuple(recovered.shape)} and {tuple(truth.shape)}"
        )
    if not (recovered.is_floating_point() and truth.is_floating_point()):
        raise InputError(f"images must be of a floating type in [0, 1]; got {recovered.dtype} and {truth.dtype}")
    if not torch.isfinite(truth).all() or truth.min() < -1e-6 or truth.max() > 1 + 1e-6:
        raise InputError(
            f"true images must lie in [0, 1]; they reach from {float(truth.min()):.3g} to {float(truth.max()):.3g}"
        )
