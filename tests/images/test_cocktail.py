"""Features that were unmixed are certified where a label explains each one's share of the gradient, and only there."""

from __future__ import annotations

import torch
from torch import nn

from gradleak import augment, observe
from gradleak.images import certify_features
from gradleak.leak import Leak

WIDTH = 60


def sent(seed: int, classes: int = 12) -> tuple[Leak, torch.Tensor, torch.Tensor]:
    """Return a batch's leak from one Linear layer, its features and its labels."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(WIDTH, classes, bias=bool(seed % 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    features = torch.rand(3, WIDTH, generator=generator, dtype=torch.float64)
    chosen = torch.randperm(classes, generator=generator)[:3]
    labels = augment.smooth(chosen, classes, torch.full((3,), 0.3).double())
    return observe(model, features, labels), features, labels


def test_a_certificate_needs_as_many_equations_as_mixtures() -> None:
    """Three smoothed labels of four classes give six equations for nine entries of the mixing matrix."""
    leak, features, labels = sent(0, classes=4)
    found = certify_features(leak.weight_gradient, leak.weight, features)
    assert found.status == ("ambiguous",) * 3
    assert "mixture" in found.reasons[0]
    assert (found.labels - labels).abs().max() < 1e-6


def test_mixtures_of_many_samples_are_not_excluded() -> None:
    model = nn.Linear(80, 60).double()
    features = torch.rand(49, 80, dtype=torch.float64)
    leak = observe(model, features, torch.arange(49))
    found = certify_features(leak.weight_gradient, leak.weight, features, bias=leak.bias, prior="onehot")
    assert "unique" not in found.status
    assert "48 samples" in " ".join(found.reasons)
