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
