"""Features that were unmixed are certified where a label explains each one's share of the gradient, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak import augment, observe
from gradleak.errors import InputError
from gradleak.images import certify_features, unmix_features
from gradleak.leak import Leak

CLASSES, WIDTH = 12, 60


def sent(seed: int, size: int = 3) -> tuple[Leak, torch.Tensor, torch.Tensor]:
    """Return a batch's leak from one Linear layer, its features and its labels."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(WIDTH, CLASSES, bias=bool(seed % 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    features = torch.rand(size, WIDTH, generator=generator, dtype=torch.float64)
    labels = augment.smooth(
        torch.randperm(CLASSES, generator=generator)[:size], CLASSES, torch.full((size,), 0.3).double()
    )
    return observe(model, features, labels), features, labels


def test_true_features_are_certified_with_their_labels_whatever_their_length() -> None:
    for seed in range(4):
        leak, features, labels = sent(seed)
        unit = features / features.norm(dim=1, keepdim=True)
        found = certify_features(leak.weight_gradient, leak.weight, unit, bias=leak.bias)
        assert found.status == ("unique",) * 3
        assert (found.labels - labels).abs().max() < 1e-6
        assert (found.features - features).abs().max() < 1e-6


def test_mixtures_are_not() -> None:
    for seed in range(4):
        leak, features, _ = sent(seed)
        mixed = torch.stack([features[0] + 0.01 * features[1], features[1], features[2]])
        found = certify_features(leak.weight_gradient, leak.weight, mixed, bias=leak.bias)
        # The second sample's share of the gradient is mixed with the first one's; the third is as it was.
        assert "unique" not in found.status[:2]
        assert found.status[2] == "unique"


def test_independent_components_hold_too_few_digits() -> None:
    leak, features, _ = sent(0)
    unmixed = unmix_features(leak.weight_gradient, 3)
    assert "unique" not in certify_features(leak.weight_gradient, leak.weight, unmixed, bias=leak.bias).status
    with pytest.raises(InputError, match="features must be"):
        certify_features(leak.weight_gradient, leak.weight, features[:, 1:])
