"""The losses a client may train with: what each says of its slope is its slope."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from gradleak.losses import BinaryCrossEntropy, CrossEntropy, Focal


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(0.8), CrossEntropy(1.2), Focal(), Focal(0.5, 1.0, 1.2), BinaryCrossEntropy()]
)
def test_slopes_are_as_steep_as_each_loss_says(loss: CrossEntropy | Focal | BinaryCrossEntropy) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = F.one_hot(torch.randint(4, (6,), generator=generator), 4).double()
    (slopes,) = torch.autograd.grad(loss(logits, labels).sum(), [logits])
    probabilities = loss.probabilities(logits.detach())
    own = (labels * probabilities).sum(dim=1, keepdim=True)
    torch.testing.assert_close(slopes, loss.weight(own) * (probabilities - labels))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("label", [0, 1])
def test_a_focal_loss_has_a_slope_where_the_network_is_sure(gamma: float, label: int) -> None:
    logits = torch.tensor([[200.0, 0.0, -1.0]], requires_grad=True)
    labels = F.one_hot(torch.tensor([label]), 3).float()
    loss = Focal(gamma=gamma)
    (slopes,) = torch.autograd.grad(loss(logits, labels).sum(), [logits])
    torch.testing.assert_close(slopes, logits.detach().softmax(dim=1) - labels)
