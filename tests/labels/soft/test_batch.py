"""A batch's labels and features out of one averaged gradient: found, certified, or said not to be."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data, metrics, models, observe
from gradleak.labels import BatchLabels, recover_batch
from gradleak.labels.soft.batch import recover as recovery
from gradleak.labels.soft.batch.rounds import Search
from gradleak.labels.soft.batch.whole import Whole
from gradleak.labels.soft.single import BIAS_MISSING
from gradleak.studies.shared.samples import soft_labels
from tests.labels.soft.test_single import sent


def batch(
    classes: int, size: int, *, kind: str = "smoothing", seed: int = 0, repeated: bool = False, **options: Any
) -> dict[str, Tensor]:
    """The averaged gradient of a random last layer, and the truth; for the options see `sent`."""
    draws = torch.Generator().manual_seed(seed)
    few = max(2, size // 2)
    first = (
        torch.randint(few, (size,), generator=draws) if repeated else torch.randperm(classes, generator=draws)[:size]
    )
    known = {"features": 256, "spread": 1.0, "dtype": "float64"} | options
    made = sent(classes, labels=kind, seed=seed, count=size, first=first, **known)
    return made | {"gradient": made["gradients"].mean(dim=0), "bias_gradient": made["delta"].mean(dim=0)}


def errors_of(found: BatchLabels, made: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return label errors (L1) and relative feature errors of what was found, each beside the nearest truth."""
    truth = made["hidden"]
    order = metrics.match_batch(found.features, truth)
    apart = metrics.label_error(found.labels[order], made["label"])
    return apart, (found.features[order] - truth).norm(dim=1) / truth.norm(dim=1)


@pytest.mark.parametrize("kind", ["smoothing", "onehot", "mixup"])
@pytest.mark.parametrize(("dtype", "least"), [("float32", 1e-4), ("float64", 1e-11)])
@pytest.mark.parametrize(("classes", "size", "repeated"), [(10, 3, False), (30, 8, True)])
def test_every_sample_is_found(kind: str, dtype: str, least: float, classes: int, size: int, repeated: bool) -> None:
    made = batch(classes, size, kind=kind, dtype=dtype, repeated=repeated)
    found = recover_batch(made["gradient"], made["weight"], batch_size=size, prior=kind)
    assert found.status == "unique", found.reason
    labels, features = errors_of(found, made)
    assert labels.max() < least
    assert features.max() < least
    assert found.residual < (1e-5 if dtype == "float32" else 1e-13)
    assert found.found.all()


@pytest.mark.parametrize("known", [True, False])
def test_a_long_feature_with_a_vanishing_error_is_no_sample(known: bool) -> None:
    """Such an explanation lies in the span of the gradient by itself, but contributes nothing to the gradient."""
    photos, model = data.load("photos", "test"), models.build("fcn4", seed=2023)
    chosen = torch.randperm(len(photos.images), generator=torch.Generator().manual_seed(2027))[:4]
    labels = photos.labels[chosen]
    leak = observe(model, data.normalise(photos.images)[chosen], labels)
    given = F.one_hot(labels, 10).float() if known else None
    found = recover_batch(leak, prior="onehot", labels=given, rounds=16)
    assert found.status == "unique", found.reason
    assert found.labels.argmax(dim=1).tolist() == labels.sort().values.tolist()


def test_features_that_are_nearly_alike_are_two_samples_if_their_labels_differ() -> None:
    made = batch(20, 2, kind="onehot")
    hidden = made["hidden"][:1] + torch.tensor([[0.0], [2e-3]]) * made["hidden"][1:]
    errors = (hidden @ made["weight"].T).softmax(dim=1) - made["label"]
    found = recover_batch(errors.T @ hidden / 2, made["weight"], batch_size=2)
    assert found.status == "unique", found.reason
    assert float(errors_of(found, made)[0].max()) < 1e-6


def test_the_batch_size_is_the_rank_and_a_wrong_one_is_told() -> None:
    made = batch(40, 7)
    assert len(recover_batch(made["gradient"], made["weight"])) == 7
    for size in (6, 8):
        found = recover_batch(made["gradient"], made["weight"], batch_size=size)
        assert (found.status, found.residual, len(found)) == ("failed", math.inf, size)
        assert "has rank 7" in found.reason
        assert not found.found.any()


def test_a_bias_is_a_feature_that_is_always_one() -> None:
    made = batch(40, 7, bias=True)
    found = recover_batch(made["gradient"], made["weight"], bias=made["bias"], bias_gradient=made["bias_gradient"])
    assert found.status == "unique", found.reason
    labels, features = errors_of(found, made)
    assert found.features.shape == (7, 256)
    assert labels.max() < 1e-10
    assert features.max() < 1e-10


def test_a_leak_gives_the_bias_and_the_size_of_the_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 20)).double()
    labels = 0.7 * torch.eye(20).double()[[3, 7, 11]] + 0.3 / 20
    leak = observe(model, torch.rand(3, 12).double(), labels)
    found = recover_batch(leak)
    assert found.status == "unique", found.reason
    assert float(torch.cdist(labels, found.labels, p=1).amin(dim=1).max()) < 1e-8
    assert "has rank 3, but 4 samples" in recover_batch(replace(leak, batch_size=4)).reason
    assert recover_batch(leak.weight_gradient, leak.weight, rounds=4).reason.endswith(BIAS_MISSING)


def test_a_feature_that_should_be_one_and_is_not_is_told() -> None:
    made = batch(40, 3, features=33)
    weight, hidden = made["weight"], made["hidden"].clone()
    hidden[:, -1] = 2
    gradient = ((hidden @ weight.T).softmax(dim=1) - made["label"]).T @ hidden / 3
    found = recover_batch(gradient[:, :-1], weight[:, :-1], bias=weight[:, -1], bias_gradient=gradient[:, -1])
    assert found.status == "failed"
    assert "a bias of 2.0e+00 where it is 1" in found.reason


def test_samples_so_large_that_their_rounding_explains_any_gradient_are_not_unique(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted = recovery.fitted

    def far(search: Search) -> Whole:
        # Predictions that agree with their labels leave a gradient of zero, and large features much rounding.
        whole = fitted(search)
        certain = F.one_hot((whole.places @ search.span.logits.T).argmax(dim=1), 10).double()
        return replace(whole, labels=certain, places=1e3 * whole.places, scale=1e4)

    made = batch(10, 2, dtype="float32")
    assert recover_batch(made["gradient"], made["weight"], scale=None).status == "unique"
    monkeypatch.setattr(recovery, "fitted", far)
    found = recover_batch(made["gradient"], made["weight"], scale=None)
    assert found.residual > 0.9
    assert found.status == "ambiguous"
    assert "hides the gradient" in found.reason
    assert found.open.min() == 2


def test_known_labels_give_the_features_and_wrong_ones_nothing() -> None:
    made = batch(40, 7)
    found = recover_batch(made["gradient"], made["weight"], labels=made["label"].flip(0))
    assert found.status == "unique", found.reason
    assert errors_of(found, made)[1].max() < 1e-10
    wrong = recover_batch(made["gradient"], made["weight"], labels=made["label"].roll(1, dims=1), rounds=5)
    assert wrong.status == "failed"
    assert wrong.reason == "none of the 7 samples was found in 5 rounds of the search" + BIAS_MISSING


def test_features_of_any_sign() -> None:
    made = batch(60, 6, signed=True)
    found = recover_batch(made["gradient"], made["weight"], nonnegative=False)
    assert found.status == "unique", found.reason
    assert errors_of(found, made)[0].max() < 1e-10


@pytest.mark.parametrize(
    ("size", "noise", "options", "reason"),
    [
        (6, 0.0, {}, "too few to look for them one by one"),
        (3, 0.0, {"prior": "onehot", "rounds": 6}, "none of the 3 samples was found in 6 rounds"),
        (2, 0.0, {"prior": "mixup", "rounds": 6}, "found"),
        (2, 1e-4, {}, "has rank 10"),
        (0, 0.0, {}, "the gradient is zero: nothing is known of the samples"),
    ],
)
def test_what_no_search_can_find_has_a_reason(size: int, noise: float, options: dict[str, Any], reason: str) -> None:
    made = batch(10, max(size, 1), dtype="float32")
    draws = noise * torch.randn(made["gradient"].shape, generator=torch.Generator().manual_seed(0))
    found = recover_batch(bool(size) * made["gradient"] + draws, made["weight"], batch_size=size or None, **options)
    assert found.status == "failed"
    assert reason in found.reason


def test_the_others_are_known_beside_a_saturated_sample() -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(40, 200, generator=generator, dtype=torch.float64)
    hidden = torch.randn(4, 200, generator=generator, dtype=torch.float64).relu()
    hidden = hidden / (hidden @ weight.T).std() * torch.tensor([[1.0], [1.0], [1.0], [60.0]]).double()
    chosen = torch.cat([torch.tensor([3, 5, 8]), (hidden[3:] @ weight.T).argmax(dim=1)])
    labels = soft_labels("smoothing", chosen, 40, generator)
    gradient = ((hidden @ weight.T).softmax(dim=1) - labels).T @ hidden / 4
    found = recover_batch(gradient, weight, batch_size=4)
    assert found.status in ("ambiguous", "failed")
    known = found.labels[found.found]
    apart = (known[:, None] - labels[None, :3]).abs().sum(dim=2).amin(dim=0)
    assert apart.max() < 1e-6


@pytest.mark.parametrize(("kind", "factor"), [("smoothing", 1e-3), ("onehot", 40.0), ("mixup", 0.3)])
def test_an_unknown_factor_is_found_with_the_samples(kind: str, factor: float) -> None:
    made = batch(40, 4, kind=kind)
    rescaled = factor * made["gradient"]
    found = recover_batch(rescaled, made["weight"], prior=kind, scale=None)
    assert found.status == "unique", found.reason
    assert found.scale == pytest.approx(factor, rel=1e-9)
    labels, features = errors_of(found, made)
    assert labels.max() < 1e-9
    assert features.max() < 1e-9
    told = recover_batch(rescaled, made["weight"], prior=kind, scale=factor)
    assert told.status == "unique", told.reason
    assert recover_batch(rescaled, made["weight"], prior=kind, rounds=6).status == "failed"


@pytest.mark.parametrize("kind", ["smoothing", "mixup"])
@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_a_label_is_as_near_as_it_is_said_to_be(kind: str, noise: float) -> None:
    """A few residuals may be small by chance, and say nothing of the error then."""
    certain = 0
    for seed in range(6):
        made = batch(10, 1 + seed % 2, kind=kind, dtype="float32", seed=seed, features=16)
        draws = torch.randn(made["gradient"].shape, generator=torch.Generator().manual_seed(seed))
        found = recover_batch(
            made["gradient"] + noise * draws, made["weight"], batch_size=1 + seed % 2, prior=kind, noise=noise, rounds=6
        )
        if found.status == "unique":
            order = metrics.match_batch(found.features, made["hidden"])
            off = metrics.label_error(found.labels[order], made["label"])
            assert (off <= found.open[order]).all()
            certain += 1
    assert certain >= 4
