"""iLRG (ma2023): counts from the mean feature of each class and what the network makes of it."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.labels.rounding import rounded


def ilrg(weight_gradient: Tensor, bias_gradient: Tensor, weight: Tensor, bias: Tensor, batch_size: int) -> Tensor:
    """Return the counts (N, C) of every label in N gradients (N, C, I), bias gradients (N, C).

    Threat model: gradients and the model. Known: batch size, one-hot labels, a last layer with a bias.
    A class's row over its bias entry is a feature, near the class's own where it is in the batch; what the network
    predicts there stands for what it predicted in the batch. Counts are the least-squares solution of
    Σ_j k_j (p_j[i] − δ_ij) = B gb_i for every i, and Σ k = B.
    """
    gradients, biases = weight_gradient.double(), bias_gradient.double()
    count, classes = biases.shape
    some = biases.abs() > torch.finfo(bias_gradient.dtype).eps * biases.abs().amax(dim=1, keepdim=True)
    features = torch.where(some.unsqueeze(2), gradients / torch.where(some, biases, 1.0).unsqueeze(2), 0.0)
    predicted = (features @ weight.double().T + bias.double()).softmax(dim=2)
    system = predicted.mT - torch.eye(classes, dtype=biases.dtype, device=biases.device)
    system = torch.cat([system, system.new_ones(count, 1, classes)], dim=1)
    target = torch.cat([batch_size * biases, biases.new_full((count, 1), batch_size)], dim=1)
    found = (torch.linalg.pinv(system) @ target.unsqueeze(2)).squeeze(2)
    return rounded(found, batch_size)
