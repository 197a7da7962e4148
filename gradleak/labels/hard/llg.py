"""Count labels by LLG (wainakh2021): from the sign and size of each label's row of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.hard.knowledge import Knowledge
from gradleak.labels.hard.rounding import raised
from gradleak.leak import HeadLeaks
from gradleak.losses import CrossEntropy, Loss


@dataclass(frozen=True)
class Estimate:
    """How labels and predictions change row sums.

    Attributes:
        impact: The change of a row's sum by one occurrence of its class, negative.
        offset: The contribution of the predictions to each row's sum (C,).
        shift: The contribution of label smoothing to every row's sum.
    """

    impact: float
    offset: Tensor
    shift: float = 0.0


def llg(heads: HeadLeaks, known: Knowledge, estimate: Estimate | None = None) -> Tensor:
    """Return the counts (N, C) of every label in N gradients.

    Threat model: gradients only (LLG). With an `estimate` it is a white box if the estimate is from dummy inputs
    (LLG*), or auxiliary data if it is from inputs of the same kind (LLG+). Known: batch size, one-hot labels, features
    of one sign, and predictions close to zero. An estimated impact is too small by the factor 1 − 1/C² if the
    predictions hardly differ between samples, so a class with about C² samples more than another gets one of its
    samples. Gradients that are summed over several local steps give the counts of all their batches together.
    """
    sums, steps = heads.weight_gradients.double().sum(dim=2), known.local_steps
    classes, samples = sums.shape[1], heads.batch_size * steps
    if estimate is None:
        impact = sums.clamp(max=0).sum(dim=1) / samples * (1 + 1 / classes)
        offset = sums.new_zeros(classes)
    else:
        # Features with a negative sum reverse all signs, which the estimate shows.
        sign = -1.0 if estimate.impact > 0 else 1.0
        sums = sign * (sums - steps * estimate.shift)
        impact = sums.new_full((len(sums),), sign * estimate.impact)
        offset = sign * steps * estimate.offset.to(sums)
    # A gradient has at most as many negative rows as samples, unless features change sign; then take the most negative.
    rank = sums.argsort(dim=1).argsort(dim=1)
    present = (sums < 0) & (rank < samples)
    levels = sums - impact.unsqueeze(1) * present - offset
    return present + raised(levels, -impact, samples - present.sum(dim=1))


def llg_estimated(
    heads: HeadLeaks, known: Knowledge, features: Tensor, scores: Tensor, labels: Tensor | None = None
) -> Tensor:
    """Return LLG's counts with an estimate from samples with these last-layer inputs, logits and classes."""
    size = heads.batch_size
    return llg(heads, known, llg_estimate(scores, features, labels, size, loss=known.loss, epsilon=known.epsilon))


def llg_estimate(
    scores: Tensor,
    features: Tensor,
    labels: Tensor | None,
    batch_size: int,
    *,
    loss: Loss | None = None,
    epsilon: float = 0.0,
) -> Estimate:
    """Estimate impact and offset from samples that the attacker has.

    A batch full of one class has the mean gradient of its samples, so all batches follow from one forward pass. The
    paper covers cross-entropy and one-hot labels.

    Args:
        scores: The samples' logits (M, C).
        features: The samples' last-layer inputs (M, I).
        labels: The samples' classes (M,); None if every sample may represent every class, as for dummy inputs.
        batch_size: The number of samples in a client's batch.
        loss: The client's loss, with derivative φ (p − y) by the logits; cross-entropy by default.
        epsilon: The smoothing of the client's labels, ε/(C − 1) for each wrong class.
    """
    criterion, classes = loss or CrossEntropy(), scores.shape[1]
    predicted = criterion.probabilities(scores.double())
    if labels is None:
        shares = torch.full_like(predicted, 1 / len(predicted))
    else:
        one_hot = torch.nn.functional.one_hot(labels, classes).to(predicted)
        counts = one_hot.sum(dim=0)
        if (counts == 0).any():
            missing = ", ".join(map(str, (counts == 0).nonzero()[:5, 0].tolist()))
            raise InputError(f"auxiliary samples of every class are needed; there are none of {missing}")
        shares = one_hot / counts
    # Weight of each sample in the batch of each class, by the sum of its feature and the slope of the loss.
    weights = shares * criterion.weight(predicted) * features.double().sum(dim=1, keepdim=True)
    sizes = weights.sum(dim=0)
    # The row sums (C, C) of batches full of one class, one line for each class, with one-hot labels.
    sums = weights.mT @ predicted - sizes.diag()
    wrong, size = epsilon / max(1, classes - 1), float(sizes.mean())
    # Smoothing reduces the effect of every occurrence, and lowers all rows by the same amount.
    impact = (float(sums.diagonal().mean()) * (1 + 1 / classes) + (epsilon + wrong) * size) / batch_size
    # The sum of a class's row when all samples have other classes.
    offset = (sums.sum(dim=0) - sums.diagonal()) / max(1, classes - 1)
    return Estimate(impact, offset, -wrong * size)
