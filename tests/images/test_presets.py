"""The published attacks as settings of the one engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradleak import augment, models
from gradleak.errors import UnknownName
from gradleak.images import match
from gradleak.images.presets import PRESETS, preset
from gradleak.leak import observe


def test_presets_run() -> None:
    model = models.build("lenet", seed=1)
    torch.manual_seed(0)
    label = augment.smooth(torch.tensor([3]), 10, 0.2)
    leak = observe(model, torch.randn(1, 3, 32, 32), label)
    for name in PRESETS:
        options = preset(name)
        found = match(leak, **options | {"optimizer": replace(options["optimizer"], steps=2)})
        assert found.images.shape == (1, 3, 32, 32), name
        assert torch.isfinite(found.losses).all(), name
    with pytest.raises(UnknownName, match="did you mean 'dlg'"):
        preset("dlgg")
