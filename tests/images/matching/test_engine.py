"""Gradient matching: the batched engine against plain loops, its guards, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradleak import augment, models
from gradleak.images import Adam, match, restore_batches
from gradleak.images.matching.objective import Objective
from gradleak.images.presets import MATCHING, PRESETS, preset
from gradleak.leak import Leak, observe
from tests.images.matching.attacked import observed, small


def test_labels_come_about_in_every_way() -> None:
    model = models.build("lenet", seed=1)
    torch.manual_seed(0)
    images = torch.randn(3, 3, 32, 32)
    soft = augment.smooth(torch.tensor([2, 7, 4]), 10, torch.tensor([0.1, 0.3, 0.2]))
    leaks = [observe(model, images[n : n + 1], soft[n : n + 1]) for n in range(3)]
    short = Adam(steps=2)
    torch.testing.assert_close(match(leaks, soft, optimizer=short).labels, soft)
    torch.testing.assert_close(match(leaks, optimizer=short).labels, soft, rtol=0, atol=1e-4)
    assert match(leaks, "idlg", optimizer=short).labels.argmax(dim=1).tolist() == [2, 7, 4]
    free = match(leaks, "dlg", optimizer=short, restarts=2)
    torch.testing.assert_close(free.labels.sum(dim=1), torch.ones(3))
    assert (free.labels - soft).abs().sum() > 0.1
    assert torch.equal(free.attempt_labels[torch.arange(3), free.chosen, 0], free.labels)
    assert (free.attempt_labels.diff(dim=1).abs() > 0.01).any(), "each start has a label of its own"
    started = match(leaks, "recovered-start", optimizer=Adam(steps=1, rate=1e-6)).labels
    torch.testing.assert_close(started, soft, rtol=0, atol=1e-4)
    hard = match(leaks, torch.tensor([2, 7, 4]), optimizer=short).labels
    assert hard.amax(dim=1).tolist() == [1, 1, 1]


def test_a_label_that_is_not_found_is_not_made_up() -> None:
    model = models.build("lenet", seed=1)
    # From seed 0 the search would start at the first leak's image.
    torch.manual_seed(1)
    leaks = [observe(model, torch.randn(1, 3, 32, 32), torch.tensor([label])) for label in (1, 2)]
    leaks[1] = replace(leaks[1], gradients={name: torch.zeros_like(g) for name, g in leaks[1].gradients.items()})
    found = match(leaks, "recovered", label_prior="onehot", optimizer=Adam(steps=2))
    assert found.status == (("stopped",), ("no label",))
    assert found.images[1].isnan().all()
    assert found.losses[1, 0] == torch.inf
    assert torch.isfinite(found.images[0]).all()
    none = match(leaks[1:], "recovered", label_prior="onehot", optimizer=Adam(steps=2))
    assert (none.status, bool(none.images.isnan().all())) == ((("no label",),), True)


def test_ctrl_c_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(3, 3, nn.Sigmoid(), False, False)
    leaks, _, labels = observed(model, 3, 1, 3, 2)
    evaluate, calls = Objective.evaluate, 0

    def interrupted(self: Objective, places: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return evaluate(self, places, owners)

    monkeypatch.setattr(Objective, "evaluate", interrupted)
    found = match(leaks, labels, optimizer=Adam(steps=50), chunk=2)
    assert found.status == (("interrupted",),) * 3
    assert torch.isfinite(found.losses[:2]).all()
    assert found.losses[2, 0] == torch.inf


# ------------------------------------------------------------------------------------------ published attacks by name
def leak() -> Leak:
    """Return the leak of one image."""
    model = models.build("lenet", image_size=16, seed=1)
    torch.manual_seed(0)
    return observe(model, torch.randn(1, 3, 16, 16), augment.smooth(torch.tensor([3]), 10, 0.2))


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
