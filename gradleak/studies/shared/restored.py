"""How near restored images are to the private ones, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gradleak import metrics


def quality(images: Tensor, truth: Tensor) -> list[dict[str, Any]]:
    """Return how near each of N images (N, C, H, W) is to the truth, by all measures; what is not finite is lost."""
    distance = metrics.lpips(images, truth)
    columns = {
        "psnr": metrics.psnr(images, truth),
        "eight_bit": metrics.wrapped_psnr(images, truth),
        "ssim": metrics.ssim(images, truth),
    }
    rows: list[dict[str, Any]] = [
        {key: float(values[n]) for key, values in columns.items()} for n in range(len(images))
    ]
    for n, row in enumerate(rows):
        row["lpips"] = None if distance.values is None else float(distance.values[n])
    return rows


def clock(device: str) -> Callable[[], float]:
    """Return what tells the seconds: on a CPU the process's own, which others at work on the machine do not stretch."""
    return time.process_time if device == "cpu" else time.perf_counter
