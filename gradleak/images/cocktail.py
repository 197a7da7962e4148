"""Recover a batch's features as independent components of a layer's gradient: cocktail-party attack (kariyappa2023)."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gradleak.arguments import checked_arguments
from gradleak.errors import InputError
from gradleak.labels.priors import KNOWN, LabelPrior, resolve
from gradleak.labels.soft.explanations import BOUND, KNOWN_FEATURE
from gradleak.labels.soft.single import SoftLabels, recover_soft_labels
from gradleak.precision import Precision, rounding_unit

ROUNDS, TOLERANCE = 500, 1e-6
# Combined error of a gradient's entry and of the inverse of the features, in rounding units.
ROUNDED = 8.0
# Eigenvalues of normal equations below this share of the largest are rounding errors; their directions are open.
LOST, OPEN = 1e-12, 1e20
# Mixtures of more samples are not looked for: the time grows with the sixth power of their number.
MOST = 48
# Why a label that fits is not certain.
TOO_MANY = f"mixtures with other samples are not excluded for more than {MOST} samples"
MIXED = "a mixture with another sample explains its share of the gradient as well"


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
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

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
    product is the gradient of that sample, and `recover_soft_labels` finds a label. No label explains the product of
    most mixtures of samples, so their status is "failed". Independent components are accurate to a few digits only, so
    a feature that is almost right may fail as well. A label is "unique" only if the labels of all samples together
    exclude mixtures: saturated predictions, for example, do not depend on the features.

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
    unit = rounding_unit(precision, weight_gradient.dtype)
    rounding = ROUNDED * unit * float(weight_gradient.abs().max())
    amplification = len(inputs) * float((inverse.norm(dim=0) * inputs.abs().amax(dim=1)).max())
    noise = rounding * amplification
    found = recover_soft_labels(products, weight, bias=bias, prior=prior, noise=noise, precision=precision)
    shape = resolve(prior, len(weight))
    assert isinstance(shape, LabelPrior)
    opened, loose = _mixed(found, errors, inputs, weight.double(), bias, shape, noise, unit)
    opened, loose = found.open + opened, found.loose + loose
    mixed = ((opened > KNOWN) | (loose > KNOWN_FEATURE)).tolist()
    pairs = tuple(zip(found.status, mixed, strict=True))
    status = tuple("ambiguous" if one == "unique" and other else one for one, other in pairs)
    doubt = MIXED if len(inputs) <= MOST else TOO_MANY
    reasons = tuple(why or doubt if other else why for why, other in zip(found.reasons, mixed, strict=True))
    return replace(found, open=opened, loose=loose, status=status, reasons=reasons)


def _mixed(
    found: SoftLabels,
    errors: Tensor,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    prior: LabelPrior,
    noise: float,
    unit: float,
) -> tuple[Tensor, Tensor]:
    """Return how far mixing the samples may change each label (N,), L1, and each feature (N,), relative to it.

    For any matrix M near zero, the features (1 + M) X with the errors (1 − Mᵀ) E give the same gradient. They change
    the label y = p − e of sample b by p′ W ∑ M_bc x_c + ∑ M_cb e_c. Only the shape of the labels determines M.
    """
    if len(inputs) > MOST:
        return torch.full_like(found.open, torch.inf), torch.full_like(found.loose, torch.inf)
    known = found.features.isfinite().all(dim=1)
    # The features and errors at the scale of the labels; those of a sample without a label have any scale.
    scale = torch.where(known, (found.features * inputs).sum(dim=1) / inputs.square().sum(dim=1), 1.0)[:, None]
    features, errors = inputs * scale, errors / scale
    scores = features @ weight.T
    logits = scores if bias is None else scores + bias.double()
    probability = logits.softmax(dim=1)
    count, classes = errors.shape
    # The change of each label (N, C, 2 N) by M_bc and by M_cb.
    slopes = probability[:, :, None] * (scores.T - (probability @ scores.T)[:, None])
    change = torch.cat([slopes, errors.T.expand(count, classes, count)], dim=2)
    labels = found.labels.nan_to_num(0.0)
    rest = torch.ones_like(labels).scatter_(1, labels.topk(prior.free, dim=1).indices, 0.0)[:, :, None]
    shown = change * rest
    if prior.rest == "equal":
        shown = (shown - shown.sum(dim=1, keepdim=True) / rest.sum(dim=1, keepdim=True)) * rest
    # The errors of the labels: noise on the gradient, and rounding of the probabilities.
    growth = 1 + (1 - probability) * logits.abs().amax(dim=1, keepdim=True)
    level = noise / features.norm(dim=1, keepdim=True) + unit * (probability * growth + labels.abs())
    shown = torch.where(known[:, None, None], shown / level[:, :, None], 0.0)
    # M_bc has the number b N + c.
    numbers = torch.arange(count * count, device=errors.device).view(count, count)
    numbers = torch.cat([numbers, numbers.T], dim=1)
    square = errors.new_zeros(count**4)
    places = numbers[:, :, None] * count**2 + numbers[:, None, :]
    square.index_add_(0, places.flatten(), (shown.mT @ shown).flatten())
    values, vectors = torch.linalg.eigh(square.view(count**2, count**2))
    variance = torch.where(values > LOST * values.amax(), 1 / values, OPEN)
    spread = (vectors * variance) @ vectors.T
    own = spread[numbers[:, :, None], numbers[:, None, :]]
    # Covariances of M_bc for each sample b give the variance of its feature.
    gram = features @ features.T
    loose = (own[:, :count, :count] * gram).sum(dim=(1, 2)).clamp(min=0).sqrt() / features.norm(dim=1)
    opened = ((change @ own) * change).sum(dim=2).clamp(min=0).sqrt().sum(dim=1)
    opened, loose = (torch.where(known, BOUND * one, torch.inf) for one in (opened, loose))
    return opened, loose
