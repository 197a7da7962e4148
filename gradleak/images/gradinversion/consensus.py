"""Compute the consensus of a leak's seeds: their pixel mean, with or without registration of the images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Shifts by more than this share of the image's side are rejected as failed registrations.
FARTHEST = 0.25


def pixel_mean(images: Tensor) -> Tensor:
    """Return the mean over the R seeds of images (N, R, …), repeated for each seed: yin2021's lazy registration."""
    return images.mean(dim=1, keepdim=True).expand_as(images)


def registered_mean(images: Tensor) -> Tensor:
    """Register images (N, R, B, C, H, W) with the pixel mean over the R seeds, then return their mean.

    yin2021 uses RANSAC-Flow. Here scikit-image's phase correlation estimates the shift of the whole image, and TV-L1
    optical flow the remaining displacement. An image is moved only if this brings it nearer to the mean.
    """
    moved = torch.empty_like(images)
    for n, group in enumerate(images):
        for b in range(group.shape[1]):
            mean = group[:, b].mean(dim=0)
            for r in range(len(group)):
                moved[n, r, b] = registered(group[r, b], mean)
    return pixel_mean(moved)


def registered(image: Tensor, onto: Tensor) -> Tensor:
    """Return an image (C, H, W) registered with another, or unchanged if no registration brings it nearer."""
    source, reference = (array.detach().cpu().double().numpy() for array in (image, onto))
    candidates = [source]
    # Registration is undefined for images that are constant or not finite.
    if all(np.isfinite(array).all() and np.ptp(array.mean(axis=0)) > 0 for array in (source, reference)):
        candidates.append(_shifted(source, reference))
        candidates.append(_flowed(candidates[-1], reference))
    nearest = min(candidates, key=lambda moved: float(np.square(moved - reference).sum()))
    return torch.from_numpy(nearest).to(image)


def _shifted(image: np.ndarray, onto: np.ndarray) -> np.ndarray:
    from scipy.ndimage import shift
    from skimage.registration import phase_cross_correlation

    offset = phase_cross_correlation(onto.mean(axis=0), image.mean(axis=0), upsample_factor=4)[0]
    if np.abs(offset).max() > FARTHEST * min(image.shape[1:]):
        return image
    return np.asarray(shift(image, (0, *offset), order=1, mode="nearest"))


def _flowed(image: np.ndarray, onto: np.ndarray) -> np.ndarray:
    from skimage.registration import optical_flow_tvl1
    from skimage.transform import warp

    reference, moving = (_unit(array.mean(axis=0)) for array in (onto, image))
    flow = optical_flow_tvl1(reference, moving, num_warp=3, num_iter=5)
    places = np.stack(np.meshgrid(*map(np.arange, reference.shape), indexing="ij")) + flow
    return np.stack([warp(channel, places, order=1, mode="edge", preserve_range=True) for channel in image])


def _unit(image: np.ndarray) -> np.ndarray:
    return np.asarray((image - image.min()) / max(float(np.ptp(image)), 1e-12))
