"""Compute the normal equations of all samples of a batch together, without their Jacobian.

Sample b contributes d_b q_bᵀ to the weighted gradient R B G V. Its unknown j changes this by T_bj q_bᵀ + d_b e_jᵀ. T_b
is the derivative of d_b, and e_j is zero for the share. Products of two such matrices need only those of their factors,
a B-th of the work. All functions take S sets of samples at once.
"""

from __future__ import annotations

import torch
from torch import Tensor


def derivatives(rows: Tensor, logits: Tensor, p: Tensor, lift: Tensor | None) -> Tensor:
    """Return T (S, B, C, J): the derivatives of d by q, and by the share if labels change by `lift` (S, B, C) with it.

    `rows` (C,), `logits` (C, B), `p` (S, B, C): the weights of the rows, the logits per unit of q, and the predictions.
    """
    slopes: Tensor = (rows * p).unsqueeze(3) * (logits - (p @ logits).unsqueeze(2))
    return slopes if lift is None else torch.cat([slopes, (-rows * lift).unsqueeze(3)], dim=3)


def projected(slopes: Tensor, places: Tensor, errors: Tensor, matrix: Tensor) -> Tensor:
    """Return the inner products (S, B J) of a matrix (S, C, B) with the changes by all unknowns.

    `slopes`: T; `places` (S, B, B): q; `errors` (S, B, C): d.
    """
    product = (slopes.mT @ (matrix.unsqueeze(1) @ places.unsqueeze(3)))[:, :, :, 0]
    product[:, :, : places.shape[2]] += errors @ matrix
    return product.flatten(1)


def squared(slopes: Tensor, places: Tensor, errors: Tensor) -> Tensor:
    """Return the inner products (S, B J, B J) of the changes by all pairs of unknowns."""
    count, size = places.shape[:2]
    flat = slopes.permute(0, 2, 1, 3).flatten(2)
    square = (flat.mT @ flat).reshape(count, size, -1, size, slopes.shape[3])
    square *= (places @ places.mT)[:, :, None, :, None]
    crossed = (flat.mT @ errors.mT).reshape(count, size, -1, size, 1) * places[:, :, None, None, :]
    square[..., :size] += crossed
    square[:, :, :size] += crossed.permute(0, 3, 4, 1, 2)
    square[:, :, :size, :, :size].diagonal(dim1=2, dim2=4).add_((errors @ errors.mT).unsqueeze(3))
    return square.flatten(3).flatten(1, 2)
