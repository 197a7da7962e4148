"""The published attacks by their names, whatever engine runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    # Statistics are those of batch norms, and this network has none.
    changes = {"optimizer": {}, "settings": {"statistics": 0.0}}
    short = {part: replace(own[part], steps=2, **changes[part]) for part in changes if part in own}
    engine: Callable[..., Any] = match if name in MATCHING else restore_batches
    found, again = own.run(leak(), **short), engine(leak(), **{**own, **short})
    assert torch.isfinite(found.losses).all()
    assert torch.equal(found.images, again.images)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'dlg'"):
        preset("dlgg")
