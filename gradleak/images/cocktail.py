"""The cocktail-party attack (kariyappa2023): features of a batch as independent components of a layer's gradient."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.priors import LabelPrior
from gradleak.labels.soft.single import SoftLabels, recover_soft_labels
from gradleak.precision import Precision, rounding_unit

ROUNDS, TOLERANCE = 500, 1e-6
# How many rounding units a gradient's entry and the inverse of the features are off by, together.
ROUNDED = 8.0


def unmix_features(weight_gradient: Tensor, batch_size: int, *, seed: int = 0) -> Tensor:
    """Return a linear layer's inputs (B, I) of so many samples, in no order and each of length 1.

    Threat model: gradients only. Known: batch size. Taken for granted: that inputs, position by position, are
    statistically independent of each other, which nothing in the gradient confirms; and that each sums to more than
    nothing. The gradient (C, I) is Σ_b (p_b − y_b) x_bᵀ / B, so that its rows mix the inputs.
    """
    if weight_gradient.ndim != 2 or not 1 <= batch_size <= min(weight_gradient.shape):
        shape = tuple(weight_gradient.shape)
        raise InputError(f"{batch_size} inputs are not mixed in a gradient of shape {shape}: it has fewer rows")
    rows = torch.linalg.svd(weight_gradient.double(), full_matrices=False)[2][:batch_size]
    mixed = rows.T.cpu().numpy() * math.sqrt(rows.shape[1])
    analysis = FastICA(batch_size, whiten="unit-variance", random_state=seed, max_iter=ROUNDS, tol=TOLERANCE)
    with warnings.catch_warnings():
        # Components that go on turning have no independent directions to settle in; they are returned as they are.
        warnings.simplefilter("ignore", ConvergenceWarning)
        analysis.fit(mixed)
    # Means are unmixed as well: independence is about what is around them.
    found = analysis.components_ @ mixed.T
    found *= np.where(found.sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
    unmixed: Tensor = torch.from_numpy(found / np.linalg.norm(found, axis=1, keepdims=True)).to(weight_gradient)
    return unmixed


def certify_features(
    weight_gradient: Tensor,
    weight: Tensor,
    features: Tensor,
    *,
    bias: Tensor | None = None,
    prior: str | LabelPrior = "smoothing",
    precision: str | Precision | None = None,
) -> SoftLabels:
    """Say of each of a last layer's unmixed features (B, I) whether a label explains its share of the gradient.

    `unmix_features` gives no certificate; this is one. The features divide the gradient (C, I) into one outer product a
    sample. Where a feature is a sample's, its product is a gradient of that sample alone: `recover_soft_labels` finds a
    label of the `prior`'s shape, and calls it "unique". No label explains the product of a mixture of samples: it is
    "failed". As independent components hold to a few digits only, one that is nearly right fails as well.
    """
    if features.ndim != 2 or features.shape[1:] != weight_gradient.shape[1:]:
        raise InputError(f"features must be (B, {weight_gradient.shape[1]}); got {tuple(features.shape)}")
    found = features.double()
    inverse = torch.linalg.pinv(found)
    errors = len(found) * (weight_gradient.double() @ inverse).T
    alone = (errors.unsqueeze(2) * found.unsqueeze(1)).to(weight_gradient.dtype)
    # Each product takes its share of the rounding of the whole gradient, and of its inverse.
    rounding = ROUNDED * rounding_unit(precision, weight_gradient.dtype) * float(weight_gradient.abs().max())
    taken = len(found) * float((inverse.norm(dim=0) * found.abs().amax(dim=1)).max())
    return recover_soft_labels(alone, weight, bias=bias, prior=prior, noise=rounding * taken, precision=precision)
