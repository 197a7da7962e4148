"""LLG (wainakh2021): how often each label occurs, from the sign and size of its row of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.hard.rounding import raised
from gradleak.losses import CrossEntropy, Loss


@dataclass(frozen=True)
class Estimate:
    """What one occurrence does to a row's sum, `impact` < 0, and what predictions add to it, `offset` (C,).

    `shift`: what smoothed labels add to every row.
    """

    impact: float
    offset: Tensor
    shift: float = 0.0


def llg(weight_gradient: Tensor, batch_size: int, estimate: Estimate | None = None, *, local_steps: int = 1) -> Tensor:
    """Return the counts (N, C) of every label in N gradients (N, C, I) of so many samples.

    Threat model: gradients only (LLG); with an `estimate` from dummy inputs a white box (LLG*), from inputs of the same
    kind auxiliary data (LLG+). Known: batch size, one-hot labels, features of one sign, a network that predicts next to
    nothing.
    The published impact is larger than what one occurrence does by the factor 1 + 1/C, so that a class with C samples
    more than another loses one to it.
    Gradients of `local_steps` steps, summed, are those of so many batches: their counts are of all samples.
    """
    sums = weight_gradient.double().sum(dim=2)
    classes, samples = sums.shape[1], batch_size * local_steps
    if estimate is None:
        impact = sums.clamp(max=0).sum(dim=1) / samples * (1 + 1 / classes)
        offset = sums.new_zeros(classes)
    else:
        # Features whose sum is negative turn every sign around; who has an estimate knows.
        turn = -1.0 if estimate.impact > 0 else 1.0
        sums = turn * (sums - local_steps * estimate.shift)
        impact = sums.new_full((len(sums),), turn * estimate.impact)
        offset = turn * local_steps * estimate.offset.to(sums)
    # A gradient has no more negative rows than samples, unless features change sign: then the most negative count.
    place = sums.argsort(dim=1).argsort(dim=1)
    present = (sums < 0) & (place < samples)
    levels = sums - impact.unsqueeze(1) * present - offset
    return present + raised(levels, -impact, samples - present.sum(dim=1))


def llg_estimate(
    scores: Tensor,
    features: Tensor,
    labels: Tensor | None,
    batch_size: int,
    *,
    loss: Loss | None = None,
    epsilon: float = 0.0,
) -> Estimate:
    """Estimate impact and offset from the logits (M, C) and last-layer inputs (M, I) of samples that one has.

    `labels` (M,): their classes; None where every sample may stand for every class, as dummy inputs do. A batch full of
    one class is the mean of its samples, so all batches come out of one forward pass. A `loss` with the slope φ (p − y)
    and smoothed labels, ε/(C − 1) for each wrong class, are followed; the paper's are cross-entropy and one-hot.
    """
    known, classes = loss or CrossEntropy(), scores.shape[1]
    predicted = known.probabilities(scores.double())
    if labels is None:
        shares = torch.full_like(predicted, 1 / len(predicted))
    else:
        own = torch.nn.functional.one_hot(labels, classes).to(predicted)
        counts = own.sum(dim=0)
        if (counts == 0).any():
            missing = ", ".join(map(str, (counts == 0).nonzero()[:5, 0].tolist()))
            raise InputError(f"auxiliary samples of every class are needed; there are none of {missing}")
        shares = own / counts
    # What each sample counts for in the batch of each class, by its size and by how steep the loss is there.
    weights = shares * known.weight(predicted) * features.double().sum(dim=1, keepdim=True)
    sizes = weights.sum(dim=0)
    # The row sums (C, C) of batches full of one class, a line a class, labels one-hot.
    sums = weights.mT @ predicted - sizes.diag()
    wrong, size = epsilon / max(1, classes - 1), float(sizes.mean())
    # Smoothing makes every occurrence lighter, and lowers all rows alike.
    impact = (float(sums.diagonal().mean()) * (1 + 1 / classes) + (epsilon + wrong) * size) / batch_size
    # What a class gets when all samples are of others.
    offset = (sums.sum(dim=0) - sums.diagonal()) / max(1, classes - 1)
    return Estimate(impact, offset, -wrong * size)
