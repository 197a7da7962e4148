"""The similarity of restored images to the private ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradleak import metrics


def quality(images: Tensor, truth: Tensor) -> list[dict[str, Any]]:
    """Compare each of N images (N, C, H, W) with the true image.

    Returns:
        For each image: `psnr` (dB), minus infinity if a pixel is not finite; `eight_bit`, the PSNR of 8-bit pixels that
        overflow, as wang2024's code computes it; `ssim`; and `lpips`, None if there is no pretrained network for it.
    """
    distances = metrics.lpips(images, truth).values
    columns = [values(images, truth).tolist() for values in (metrics.psnr, metrics.wrapped_psnr, metrics.ssim)]
    lpips = [None] * len(images) if distances is None else distances.tolist()
    return [
        {"psnr": psnr, "eight_bit": eight_bit, "ssim": ssim, "lpips": distance}
        for psnr, eight_bit, ssim, distance in zip(*columns, lpips, strict=True)
    ]
