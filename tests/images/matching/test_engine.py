"""Gradient matching: the batched engine against plain loops, its guards, and what it promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradleak import augment, models
from gradleak.errors import InputError
from gradleak.images import Adam, LevenbergMarquardt, match
from gradleak.images.matching.objective import Objective
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
    free = match(leaks, "dlg", optimizer=short).labels
    torch.testing.assert_close(free.sum(dim=1), torch.ones(3))
    assert (free - soft).abs().sum() > 0.1
    started = match(leaks, "recovered-start", optimizer=Adam(steps=1, rate=1e-6)).labels
    torch.testing.assert_close(started, soft, rtol=0, atol=1e-4)
    hard = match(leaks, torch.tensor([2, 7, 4]), optimizer=short).labels
    assert hard.amax(dim=1).tolist() == [1, 1, 1]


def test_a_label_that_is_not_found_is_not_made_up() -> None:
    model = models.build("lenet", seed=1)
    torch.manual_seed(0)
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


def test_a_part_that_does_not_fit_into_memory_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(3, 3, nn.Sigmoid(), False, False)
    leaks, _, labels = observed(model, 5, 1, 3, 2)
    expected = match(leaks, labels, optimizer=Adam(steps=3), chunk=2)
    evaluate, sizes = Objective.evaluate, []

    def full(self: Objective, places: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(places))
        if len(places) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return evaluate(self, places, owners)

    monkeypatch.setattr(Objective, "evaluate", full)
    found = match(leaks, labels, optimizer=Adam(steps=3))
    assert sizes[0] == 5
    assert set(sizes[1:]) == {2, 1}
    torch.testing.assert_close(found.images, expected.images)
    assert found.status == expected.status


LEAKS, _, LABELS = observed(small(1, 3, nn.Sigmoid(), True, False), 2, 1, 3, 0)


def one(classes: int, channels: int, size: int) -> list[Leak]:
    return observed(small(channels, classes, nn.Sigmoid(), True, False), 1, size, classes, 0)[0]


@pytest.mark.parametrize(
    ("leaks", "changes", "message"),
    [
        ([*one(3, 1, 1), *one(3, 2, 1)], {}, "another model"),
        (one(3, 1, 1), {"distance": "cosine", "optimizer": LevenbergMarquardt()}, "plain L2"),
        (one(3, 1, 2), {"labels": "idlg"}, "iDLG finds the label of a single"),
        (one(3, 1, 2), {"labels": torch.ones(1, 3) / 3}, r"one entry per private sample, 2; got \(1, 3\)"),
        (one(3, 1, 1), {"start": torch.zeros(2, 2, 8, 8)}, "start must be inputs"),
    ],
)
def test_bad_input_is_refused_before_the_first_step(leaks: list[Leak], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        match(leaks, **{"optimizer": Adam(steps=1)} | changes)
