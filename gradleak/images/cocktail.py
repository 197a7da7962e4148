"""Recover a batch's features as independent components of a layer's gradient: cocktail-party attack (kariyappa2023)."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from gradleak.arguments import checked_arguments
from gradleak.errors import InputError
from gradleak.labels.priors import LabelPrior
from gradleak.labels.soft.single import SoftLabels, recover_soft_labels
from gradleak.precision import Precision, rounding_unit

ROUNDS, TOLERANCE = 500, 1e-6
# Combined error of a gradient's entry and of the inverse of the features, in rounding units.
ROUNDED = 8.0


@checked_arguments(weight_gradient="C I")
def unmix_features(weight_gradient: Tensor, batch_size: int, *, seed: int = 0) -> Tensor:
    """Return the inputs (B, I) of a linear layer, in arbitrary order and scaled to length 1.

    Threat model: gradients only. Known: batch size. The gradient (C, I) is Σ_b (p_b − y_b) x_bᵀ / B, so its rows are
    mixtures of the inputs. Two assumptions, which the gradient cannot confirm: the samples' inputs are statistically
    independent of each other, and each sample's input has a positive sum.

    Args:
        weight_gradient: The gradient of the layer's weight (C, I).
        batch_size: The number of samples B.
        seed: The seed of the random start of FastICA.

    Examples:
        >>> draws = torch.Generator().manual_seed(0)
        >>> inputs = torch.rand(2, 400, generator=draws) ** 8
        >>> unmixed = unmix_features(torch.tensor([[1.0, 2.0], [2.0, 1.0]]) @ inputs, 2)
        >>> cosines = unmixed @ (inputs / inputs.norm(dim=1, keepdim=True)).T
        >>> bool((cosines.amax(dim=1) > 0.99).all())
        True
    """
    if not 1 <= batch_size <= min(weight_gradient.shape):
        shape = tuple(weight_gradient.shape)
        raise InputError(
            f"{batch_size} inputs cannot be unmixed from a gradient of shape {shape}: "
            "it needs at least one input, and as many rows and columns as inputs"
        )
    # On a GPU singular vectors may have other signs, and FastICA would start elsewhere.
    rows = torch.linalg.svd(weight_gradient.double().cpu(), full_matrices=False)[2][:batch_size]
    mixtures = rows.T.numpy() * math.sqrt(rows.shape[1])
    analysis = FastICA(batch_size, whiten="unit-variance", random_state=seed % 2**32, max_iter=ROUNDS, tol=TOLERANCE)
    with warnings.catch_warnings():
        # Where the data have no independent directions FastICA does not converge; return its last components.
        warnings.simplefilter("ignore", ConvergenceWarning)
        analysis.fit(mixtures)
    # FastICA subtracts the mean of each mixture; apply the components to the mixtures with their means.
    components = analysis.components_ @ mixtures.T
    components *= np.where(components.sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
    unmixed: Tensor = torch.from_numpy(components / np.linalg.norm(components, axis=1, keepdims=True)).to(
        weight_gradient
    )
    return unmixed


@checked_arguments(weight_gradient="C I", weight="C I", features="B I", bias="C")
def certify_features(
    weight_gradient: Tensor,
    weight: Tensor,
    features: Tensor,
    *,
    bias: Tensor | None = None,
    prior: str | LabelPrior = "smoothing",
    precision: str | Precision | None = None,
) -> SoftLabels:
    """Check for each feature from `unmix_features` whether a label explains the feature's share of the gradient.

    The features divide the gradient into one outer product per sample. If a feature belongs to a single sample, its
    product is the gradient of that sample, and `recover_soft_labels` finds a "unique" label. No label explains the
    product of a mixture of samples, so its status is "failed". Independent components are accurate to a few digits
    only, so a feature that is almost right may fail as well.

    Args:
        weight_gradient: Gradient of the last layer's weight (C, I).
        weight: The last layer's weight (C, I).
        features: The features (B, I) from `unmix_features`.
        bias: The last layer's bias (C,).
        prior: The shape of the labels: "smoothing", "onehot", "mixup" or a `LabelPrior`.
        precision: The precision in which the client computes.

    Returns:
        The label and the status for each feature.
    """
    inputs = features.double()
    inverse = torch.linalg.pinv(inputs)
    errors = len(inputs) * (weight_gradient.double() @ inverse).T
    products = (errors.unsqueeze(2) * inputs.unsqueeze(1)).to(weight_gradient.dtype)
    # The rounding error of the whole gradient reaches each product, amplified by the inverse of the features.
    rounding = ROUNDED * rounding_unit(precision, weight_gradient.dtype) * float(weight_gradient.abs().max())
    amplification = len(inputs) * float((inverse.norm(dim=0) * inputs.abs().amax(dim=1)).max())
    return recover_soft_labels(
        products, weight, bias=bias, prior=prior, noise=rounding * amplification, precision=precision
    )
