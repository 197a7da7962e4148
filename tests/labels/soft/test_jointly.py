"""All samples of a batch at once: beyond half the number of classes, and never more than it says."""

from __future__ import annotations

import pytest
from torch import Tensor

from gradleak import metrics
from gradleak.labels import recover_batch, recover_jointly
from gradleak.labels.priors import KNOWN
from tests.labels.soft.test_batch import batch, errors_of


def pairs(made: dict[str, Tensor]) -> Tensor:
    """The two classes of every mixed label, the lesser number first, whichever has the larger share."""
    return made["label"].topk(2, dim=1).indices.sort(dim=1).values


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-4), ("float64", 1e-10)])
@pytest.mark.parametrize("kind", ["smoothing", "onehot", "mixup"])
def test_six_of_ten_classes(dtype: str, near: float, kind: str) -> None:
    made = batch(10, 6, kind=kind, dtype=dtype, repeated=kind == "onehot")
    assert recover_batch(made["gradient"], made["weight"], batch_size=6, prior=kind).status == "failed"
    told = pairs(made) if kind == "mixup" else made["label"].argmax(dim=1)
    found = recover_jointly(made["gradient"], made["weight"], classes=told, prior=kind, starts=64)
    assert found.status == "found", found.reason
    labels, features = errors_of(found, made)
    assert labels.max() < near
    assert features.max() < 10 * near


def test_classes_are_found_as_well() -> None:
    made = batch(8, 3)
    found = recover_jointly(made["gradient"], made["weight"], batch_size=3, starts=100)
    assert found.status == "found", found.reason
    assert errors_of(found, made)[0].max() < 1e-9
    # The size is the gradient's rank where nothing is said.
    assert len(recover_jointly(made["gradient"], made["weight"], starts=8, steps=1)) == 3


@pytest.mark.parametrize("kind", ["smoothing", "mixup"])
def test_wrong_classes_explain_nothing(kind: str) -> None:
    made = batch(10, 5, kind=kind)
    told = pairs(made) if kind == "mixup" else made["label"].argmax(dim=1)
    wrong = told.clone()
    wrong[-1] = (told[-1] + 1) % 10
    found = recover_jointly(made["gradient"], made["weight"], classes=wrong, prior=kind, starts=64)
    assert found.status == "failed"
    assert "none of 64 starts" in found.reason
    assert found.labels.isnan().all()


def test_with_nothing_to_spare_answers_are_ambiguous() -> None:
    statuses = []
    for seed in range(3):
        made = batch(6, 4, seed=seed)
        found = recover_jointly(made["gradient"], made["weight"], classes=made["label"].argmax(dim=1), starts=64)
        statuses.append(found.status)
    assert "found" not in statuses
    assert "ambiguous" in statuses


def test_what_is_called_found_is_right() -> None:
    for seed in range(6):
        made = batch(8, 4 + seed % 2, seed=seed, repeated=seed % 3 == 0, dtype="float32", spread=0.3 + seed)
        found = recover_jointly(made["gradient"], made["weight"], classes=made["label"].argmax(dim=1), starts=32)
        if found.status == "found":
            order = metrics.match_batch(found.features, made["hidden"])
            assert metrics.label_error(found.labels[order], made["label"]).max() < KNOWN


def test_too_many_samples_are_refused() -> None:
    made = batch(10, 6)
    found = recover_jointly(made["gradient"], made["weight"], batch_size=9)
    assert found.status == "failed"
    assert "8 at most are" in found.reason
