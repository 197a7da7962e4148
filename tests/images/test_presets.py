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


@pytest.mark.parametrize("name", MATCHING)
def test_what_matching_runs(name: str) -> None:
    own = preset(name)
    assert own.engine is match
    short = replace(own["optimizer"], steps=2)
    found, again = own.run(leak(), optimizer=short), match(leak(), **{**own, "optimizer": short})
    assert found.images.shape == (1, 3, 32, 32)
    assert torch.isfinite(found.losses).all()
    assert torch.equal(found.images, again.images)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in MATCHING])
def test_what_restores_batches(name: str) -> None:
    own = preset(name)
    assert own.engine is restore_batches
    # Statistics are those of batch norms, and this network has none.
    short = replace(own["settings"], steps=2, statistics=0.0)
    assert own.run(leak(), settings=short).images.shape == (1, 3, 32, 32)
    assert own["labels"] == ("recovered" if name.endswith("features") else "counted")


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'dlg'"):
        preset("dlgg")
    with pytest.raises(UnknownName, match="gradinversion"):
        preset("gradinversio")
