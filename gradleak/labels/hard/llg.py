"""LLG (wainakh2021): how often each label occurs, from the sign and size of its row of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.hard.rounding import raised


@dataclass(frozen=True)
class Estimate:
    """What one occurrence does to a row's sum, `impact` < 0, and what predictions add to it, `offset` (C,)."""

    impact: float
    offset: Tensor


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
        sums = turn * sums
        impact = sums.new_full((len(sums),), turn * estimate.impact)
        offset = turn * local_steps * estimate.offset.to(sums)
    # A gradient has no more negative rows than samples, unless features change sign: then the most negative count.
    place = sums.argsort(dim=1).argsort(dim=1)
    present = (sums < 0) & (place < samples)
    levels = sums - impact.unsqueeze(1) * present - offset
    return present + raised(levels, -impact, samples - present.sum(dim=1))


def llg_estimate(scores: Tensor, features: Tensor, labels: Tensor | None, batch_size: int) -> Estimate:
    """Estimate impact and offset from the logits (M, C) and last-layer inputs (M, I) of samples that one has.

    `labels` (M,): their classes; None where every sample may stand for every class, as dummy inputs do. A batch full of
    one class is the mean of its samples, so all batches come out of one forward pass.
    """
    sizes = features.double().sum(dim=1)
    products = scores.double().softmax(dim=1) * sizes.unsqueeze(1)
    classes = scores.shape[1]
    if labels is None:
        pushes, size = products.mean(dim=0).expand(classes, classes), sizes.mean().expand(classes)
    else:
        counts = torch.bincount(labels, minlength=classes).to(sizes)
        if (counts == 0).any():
            missing = ", ".join(map(str, (counts == 0).nonzero()[:5, 0].tolist()))
            raise InputError(f"auxiliary samples of every class are needed; there are none of {missing}")
        pushes = torch.zeros_like(products[:classes].new_zeros(classes, classes)).index_add_(0, labels, products)
        pushes = pushes / counts.unsqueeze(1)
        size = sizes.new_zeros(classes).index_add_(0, labels, sizes) / counts
    own = pushes.diagonal() - size
    impact = float(own.mean()) * (1 + 1 / classes) / batch_size
    # What a class gets when all samples are of others.
    offset = (pushes.sum(dim=0) - pushes.diagonal()) / max(1, classes - 1)
    return Estimate(impact, offset)
