"""How near restored images are to the private ones, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from gradleak import metrics
from gradleak.studies import Row


class Quality(Row):
    """How near a restored image is to the private one; one with a number that is not finite is lost.

    `eight_bit`: the PSNR of 8-bit pixels that wrap, as wang2024's code has it; `lpips`: None if there is no pretrained
    trunk.
    """

    psnr: float
    eight_bit: float
    ssim: float
    lpips: float | None


def quality(images: Tensor, truth: Tensor) -> list[Quality]:
    """Return how near each of N images (N, C, H, W) is to the truth."""
    distances = metrics.lpips(images, truth).values
    columns = [values(images, truth).tolist() for values in (metrics.psnr, metrics.wrapped_psnr, metrics.ssim)]
    lpips = [None] * len(images) if distances is None else distances.tolist()
    return [
        Quality(psnr=psnr, eight_bit=eight_bit, ssim=ssim, lpips=distance)
        for psnr, eight_bit, ssim, distance in zip(*columns, lpips, strict=True)
    ]


def clock(device: str) -> Callable[[], float]:
    """Return what tells the seconds: on a CPU the process's own, which others at work on the machine do not stretch."""
    return time.process_time if device == "cpu" else time.perf_counter
