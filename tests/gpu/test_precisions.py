"""A client of any precision sends from a GPU what it sends from a CPU."""

from __future__ import annotations

import pytest
import torch

from gradleak import data, models
from gradleak.leak import observe
from gradleak.precision import PRECISIONS
from tests.pretended import NAME, pretended_gpu


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "float64"])
@pytest.mark.parametrize("network", ["lenet", "resnet20"])
def test_a_client(network: str, precision: str) -> None:
    photos = data.load("photos", "test")
    model, inputs, labels = models.build(network, seed=1), data.normalise(photos.images[:2]), photos.labels[:2]
    expected = observe(model, inputs, labels, precision=precision).gradients
    with pretended_gpu():
        found = observe(model.to(NAME), inputs.to(NAME), labels.to(NAME), precision=precision).gradients
        assert all(torch.equal(found[name].cpu(), one) for name, one in expected.items())
