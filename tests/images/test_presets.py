"""The published attacks by their names, whatever engine runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradleak import augment, models
from gradleak.errors import UnknownName
from gradleak.images import match, restore_batches
from gradleak.images.presets import MATCHING, PRESETS, preset
from gradleak.leak import Leak, observe


def leak() -> Leak:
    """Return the leak of one image."""
    model = models.build("lenet", seed=1)
    torch.manual_seed(0)
    return observe(model, torch.randn(1, 3, 32, 32), augment.smooth(torch.tensor([3]), 10, 0.2))


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_stands_for_its_engine_with_its_settings(name: str) -> None:
    own = preset(name)
    if name in MATCHING:
        engine, short = match, {"optimizer": replace(own["optimizer"], steps=2)}
    else:  # statistics are those of batch norms, and this network has none
        engine, short = restore_batches, {"settings": replace(own["settings"], steps=2, statistics=0.0)}
    found, again = own.run(leak(), **short), engine(leak(), **{**own, **short})
    assert torch.isfinite(found.losses).all()
    assert torch.equal(found.images, again.images)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'dlg'"):
        preset("dlgg")
