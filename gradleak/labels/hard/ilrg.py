"""Count labels by iLRG (ma2023): from the mean feature of each class and the network's prediction for it."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.labels.hard.knowledge import Knowledge
from gradleak.labels.hard.rounding import rounded
from gradleak.leak import HeadLeaks
from gradleak.losses import CrossEntropy

# A row divided by its bias entry is no feature if it is this many times longer than usual.
LONGEST = 2.0


def ilrg(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return the counts (N, C) of every label in N gradients.

    Threat model: gradients and the model. Known: batch size, one-hot labels, a last layer with a bias. A class's row
    divided by its bias entry is a feature. If the class is in the batch, this is close to the class's mean feature, and
    the network's prediction for it approximates the predictions in the batch. Counts are the least-squares solution of
    Σ_j k_j (p_j[i] − δ_ij) = B gb_i for every i, and Σ k = B. For a loss with derivative φ (p − y) the bracket is
    multiplied by φ_j. For smoothed labels, ε/(C − 1) for each wrong class, these replace δ.
    """
    assert heads.bias is not None
    assert heads.bias_gradients is not None
    gradients, biases = heads.weight_gradients.double(), heads.bias_gradients.double()
    count, classes = biases.shape
    size, epsilon = heads.batch_size, known.epsilon
    features = _features(gradients, biases)
    criterion = known.loss or CrossEntropy()
    predicted = criterion.probabilities(features @ heads.weight.double().T + heads.bias.double())
    slopes = criterion.weight(predicted.diagonal(dim1=1, dim2=2)).unsqueeze(2)
    identity = torch.eye(classes, dtype=biases.dtype, device=biases.device)
    targets = (1 - epsilon) * identity + epsilon / max(1, classes - 1) * (1 - identity)
    system = (slopes * (predicted - targets)).mT
    system = torch.cat([system, system.new_ones(count, 1, classes)], dim=1)
    target = torch.cat([size * biases, biases.new_full((count, 1), size)], dim=1)
    counts = (torch.linalg.pinv(system) @ target.unsqueeze(2)).squeeze(2)
    return rounded(counts, size)


def _features(gradients: Tensor, biases: Tensor) -> Tensor:
    """Return the feature (N, C, I) that represents each class.

    If a class's bias entry happens to be nearly zero, its quotient is much longer than a feature. It is then replaced
    by the mean of all quotients, weighted by their bias entries.
    """
    sizes = biases.abs().unsqueeze(2)
    total = sizes.sum(dim=1, keepdim=True).clamp(min=torch.finfo(biases.dtype).tiny)
    # The sum of sizes times quotients is the sum of rows, each with the sign of its bias entry.
    mean = (gradients * biases.sign().unsqueeze(2)).sum(dim=1, keepdim=True) / total
    lengths = gradients.norm(dim=2, keepdim=True)
    reliable = (sizes > 0) & (lengths * total <= LONGEST * lengths.sum(dim=1, keepdim=True) * sizes)
    return torch.where(reliable, gradients / torch.where(reliable, biases.unsqueeze(2), 1.0), mean)
