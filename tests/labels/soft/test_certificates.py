"""Where a gradient says little: flat, faint and saturated ones, hardly told labels, and assumptions that are broken."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels import SoftLabels, recover_batch, recover_soft_labels
from gradleak.labels.priors import KNOWN
from gradleak.labels.soft.explanations import KNOWN_FEATURE
from tests.labels.soft.test_single import sent, wrong


def gradients(weight: Tensor, hidden: Tensor, label: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the gradients of the last layer's weight (N, C, I) and bias (N, C), in the inputs' precision."""
    delta = (hidden @ weight.T + (0 if bias is None else bias)).softmax(dim=1) - label
    return delta.unsqueeze(2) * hidden.unsqueeze(1), delta


def holds(found: SoftLabels, label: Tensor, n: int) -> bool:
    """Whether the true label is among those that an answer leaves possible."""
    apart = (found.candidates[n] - label[n]).abs().sum(dim=1)
    return bool((apart <= 2 * KNOWN).any()) or float(apart[0]) <= float(found.open[n]) + KNOWN


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("spread", [1e-9, 1e-8])
def test_flat_logits_name_the_class_and_the_range_of_its_share(classes: int, spread: float) -> None:
    made = sent(classes, 64, spread, "smoothing", "float32", 1, 30)
    found = recover_soft_labels(made["gradients"], made["weight"])
    assert set(found.status) == {"ambiguous"}
    share, named = made["label"].max(dim=1)
    assert torch.equal(found.labels.argmax(dim=1), named)
    for n, own in enumerate(found.candidates):
        assert own.amax(dim=1).min() - KNOWN <= share[n] <= own.amax(dim=1).max() + KNOWN
        assert f"all labels found name class {int(named[n])}, with a share from" in found.reasons[n]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_label_that_is_the_same_for_all_classes_is_found_with_an_unknown_factor(dtype: str) -> None:
    made = sent(10, 64, 1.0, "smoothing", dtype, 2, 50)
    label = torch.full_like(made["label"], 0.1).to(made["weight"])
    sent_gradients, _ = gradients(made["weight"], made["hidden"].to(made["weight"]), label)
    found = recover_soft_labels(0.3 * sent_gradients, made["weight"], scale=None)
    assert set(found.status) == {"unique"}
    assert ((found.labels - label.double()).abs().sum(dim=1) < KNOWN).all()
    assert ((found.scales / 0.3 - 1).abs() < 1e-3).all()


@pytest.mark.parametrize(("kind", "classes"), [("smoothing", 3), ("smoothing", 10), ("mixup", 10), ("onehot", 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saturated_logits_with_an_unknown_factor_leave_the_true_label_possible(
    kind: str, classes: int, dtype: torch.dtype
) -> None:
    made = sent(classes, 64, 1.0, kind, "float64", 1, 200)
    # The logits' spread is 100: all but one or two probabilities vanish.
    weight, hidden, label = (made[name].to(dtype) for name in ("weight", "hidden", "label"))
    sent_gradients, _ = gradients(100 * weight, hidden, label)
    found = recover_soft_labels(sent_gradients, 100 * weight, prior=kind, scale=None)
    label = label.double()
    assert not wrong(found, label).any()
    # Of numbers around the least normal one nothing can be said.
    told = sent_gradients.flatten(1).double().norm(dim=1) > 1e-36
    failed = found.where("failed") & told
    assert not failed.any()
    assert all(holds(found, label, n) for n in found.where("ambiguous").nonzero()[:, 0].tolist())
    assert max(map(len, found.reasons)) < 150


def test_a_gradient_of_the_smallest_numbers_is_lost_and_not_fitted() -> None:
    made = sent(10, 64, 1.0, "onehot", "float32", 0, 5)
    for scale in (1.0, None):
        found = recover_soft_labels(1e-38 * made["gradients"], made["weight"], prior="onehot", scale=scale)
        assert set(found.status) == {"failed"}
        assert all("lost in the smallest numbers" in reason for reason in found.reasons)


def test_two_answers_side_by_side_are_two() -> None:
    """The label is all but flat: which class has more than the others changes within a grid cell."""
    weight = torch.tensor([[-0.7], [0.3], [1.42], [0.98]])
    label = torch.full((1, 4), 0.2499881386756897)
    label[0, 3] = 0.2500355839729309
    for length in (3.0, 6.0, 12.0):
        own, _ = gradients(weight, torch.tensor([[length]]), label)
        found = recover_soft_labels(own, weight)
        if found.status[0] == "unique":
            assert not wrong(found, label.double()).any()
        else:
            assert holds(found, label.double(), 0)


def test_classes_with_one_logit_tell_one_thing_of_an_unknown_factor() -> None:
    """Eighteen classes that are equally unlikely do not make up for a share and a factor that nobody knows."""
    weight = torch.eye(20, 1, dtype=torch.float64)
    label = torch.zeros(1, 20, dtype=torch.float64)
    label[0, 0], label[0, 7] = 0.97, 0.03
    own, _ = gradients(weight, torch.full((1, 1), 450.0, dtype=torch.float64), label)
    found = recover_soft_labels(0.3 * own, weight, prior="mixup", scale=None)
    assert found.status == ("ambiguous",)
    assert holds(found, label, 0)


@pytest.mark.parametrize("broken", ["weights one step old", "weight gradients clipped", "both clipped"])
def test_without_a_prior_nothing_is_unique_and_the_assumptions_are_named(broken: str) -> None:
    made = sent(10, 64, 4.0, "smoothing", "float32", 3, 100, bias=True)
    weight, bias, own, delta = (made[name] for name in ("weight", "bias", "gradients", "delta"))
    size = own.flatten(1).norm(dim=1)
    factor = (size.median() / size).clamp(min=0.9, max=1)[:, None]
    if broken == "weights one step old":
        weight, bias = weight + 0.1 * own.mean(dim=0), bias + 0.1 * delta.mean(dim=0)
    else:
        own, delta = own * factor[:, :, None], delta * factor if broken == "both clipped" else delta
    found = recover_soft_labels(own, weight, bias=bias, bias_gradient=delta, prior=None)
    off = (found.labels - made["label"]).abs().sum(dim=1) > KNOWN
    assert (found.where("found") & off).any(), "nothing tells these labels from true ones"
    assert set(found.status) <= {"found", "failed"}
    for reason in (one for one, status in zip(found.reasons, found.status, strict=True) if status == "found"):
        assert "these very weights" in reason
        assert "unchanged" in reason
    # The prior is a check: with it hardly one of these is accepted.
    checked = recover_soft_labels(own, weight, bias=bias, bias_gradient=delta, prior="smoothing")
    assert not (checked.where("unique") & off).any()


def confident(
    classes: int, features: int, factor: float, dtype: torch.dtype, seed: int, count: int = 60
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weights (C, I), a bias (C,), features (N, I) and the one-hot labels that the network predicts (N, C)."""
    generator = torch.Generator().manual_seed(seed)
    weight = factor * torch.randn(classes, features, generator=generator, dtype=torch.float64) / math.sqrt(features)
    hidden = torch.rand(count, features, generator=generator, dtype=torch.float64)
    bias = 0.3 * torch.randn(classes, generator=generator, dtype=torch.float64)
    weight, hidden, bias = weight.to(dtype), hidden.to(dtype), bias.to(dtype)
    label = torch.eye(classes, dtype=dtype)[(hidden @ weight.T + bias).argmax(dim=1)]
    return weight, bias, hidden, label


def disturbed(values: Tensor, noise: float, seed: int) -> Tensor:
    draws = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values + (noise * draws).to(values)


def features_off(found: SoftLabels, hidden: Tensor) -> Tensor:
    """Samples that are said to be known and whose features are off by more than the promise."""
    apart = (found.features - hidden.double()).norm(dim=1) / hidden.double().norm(dim=1)
    return found.where("unique") & ~(apart <= KNOWN_FEATURE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("classes", "features", "factor", "noise"),
    [(10, 64, 240.0, 1e-8), (4, 1, 100.0, 1e-8), (4, 1, 100.0, 1e-4), (10, 8, 30.0, 1e-6), (2, 2, 30.0, 1e-7)],
)
def test_noise_may_give_a_saturated_probability_to_another_class(
    classes: int, features: int, factor: float, noise: float, dtype: torch.dtype
) -> None:
    certain = 0
    for seed in range(2):
        weight, bias, hidden, label = confident(classes, features, factor, dtype, seed)
        own, delta = gradients(weight, hidden, label, bias)
        sent_bias = disturbed(delta, noise, seed + 100)
        for level in (noise, None):
            found = recover_soft_labels(
                disturbed(own, noise, seed), weight, bias=bias, bias_gradient=sent_bias, prior="onehot", noise=level
            )
            assert not wrong(found, label.double()).any()
            assert not features_off(found, hidden).any()
            certain += int(found.where("unique").sum())
    # Samples whose errors p − y exceed the noise by far are known.
    assert certain >= 5


@pytest.mark.parametrize("prior", ["smoothing", "mixup", "onehot", None])
@pytest.mark.parametrize("noise", [1e-7, 1e-5, 1e-4])
def test_a_label_by_its_bias_is_as_near_as_it_says(prior: str | None, noise: float) -> None:
    for classes, spread in ((3, 1.0), (5, 10.0), (10, 3.0)):
        if prior == "mixup" and classes == 3:
            continue
        made = sent(classes, 8, spread, prior or "smoothing", "float64", 5, 200, bias=True)
        found = recover_soft_labels(
            disturbed(made["gradients"], noise, 1),
            made["weight"],
            bias=made["bias"],
            bias_gradient=disturbed(made["delta"], noise, 2),
            prior=prior,
            noise=noise,
        )
        off = (found.labels - made["label"]).abs().sum(dim=1)
        assert (off <= found.open + 1e-12).all()


@pytest.mark.parametrize("signed", [False, True])
def test_a_class_is_not_certified_with_another_feature(signed: bool) -> None:
    """Rounding to eight digits leaves the class of a confident sample, and not always its feature."""
    for factor in (30.0, 100.0):
        weight, bias, hidden, label = confident(40, 6, factor, torch.bfloat16, 0, 200)
        hidden = hidden - 0.5 if signed else hidden
        label = torch.eye(40, dtype=torch.bfloat16)[(hidden @ weight.T + bias).argmax(dim=1)]
        own, _ = gradients(weight, hidden, label, bias)
        leaks = own.flatten(1).any(dim=1)
        found = recover_soft_labels(
            own[leaks].float(), weight.float(), bias=bias.float(), prior="onehot", precision="bfloat16",
            nonnegative=not signed,
        )  # fmt: skip
        assert not wrong(found, label[leaks].double()).any()
        assert not features_off(found, hidden[leaks]).any()


def test_noise_that_nothing_shows_is_not_estimated() -> None:
    weight, bias, hidden, label = confident(3, 1, 3.0, torch.float64, 0)
    own, delta = gradients(weight, hidden, label, bias)
    with pytest.raises(InputError, match="noise cannot be estimated"):
        recover_soft_labels(own, weight, prior="onehot", noise=None)
    with pytest.raises(InputError, match="noise cannot be estimated"):
        recover_batch(own[0], weight, prior="onehot", noise=None, batch_size=1)
    found = recover_soft_labels(own, weight, bias=bias, bias_gradient=delta, prior="onehot", noise=None)
    assert not wrong(found, label.double()).any()
