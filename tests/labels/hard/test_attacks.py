"""Label attacks on batches: right on batches whose labels are known, and refusals that name what fails."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import defenses, metrics
from gradleak.errors import InputError
from gradleak.labels import Knowledge, count_heads, count_labels
from gradleak.labels.hard.rounding import raised, rounded
from gradleak.leak import HeadLeaks, observe, observe_heads
from gradleak.losses import CrossEntropy, Focal


def network(classes: int, *, bias: bool = True, activation: type[nn.Module] = nn.Sigmoid, seed: int = 0) -> nn.Module:
    """Return a network whose predictions are nearly uniform, with features of one sign or of both."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 40), activation(), nn.Linear(40, classes, bias=bias))
    with torch.no_grad():
        model[3].weight.mul_(0.02)
    return model


def batch(counts: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(len(labels), 1, 3, 4, generator=generator)
    return inputs, labels[torch.randperm(len(labels), generator=generator)]


def auxiliary(classes: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    return batch(torch.full((classes,), 20), seed)


# A quotient so many times as long as any feature is none.
LONGEST = 5
BATCHES = {
    "one sample": [0, 1, 0],
    "distinct": [1, 0, 0, 1, 0, 1],
    "all classes": [1, 1, 1, 1],
    "one class": [0, 0, 7],
    "two classes": [3, 2],
    "more than classes": [5, 9, 2],
}
KINDS: dict[str, dict[str, Any]] = {
    "no bias": {"bias": False}, "signed": {"activation": nn.Tanh}, "negative": {"activation": nn.LogSigmoid},
}  # fmt: skip
ONE, TWICE, FEWER, BIAS = "label of one sample", "no class twice", "fewer samples than features", "must have a bias"
# An attack on a network: of each batch the share of its labels that are found at least, or why it refuses. Gradients
# alone do not tell what predictions add: where classes occur alike, LLG has next to nothing to see.
EXPECTED: dict[tuple[str, str], list[float | str]] = {
    ("guess", "biased"): [0, 0, 1, 0, 0, 0],
    ("draw", "biased"): [0, 0, 0.25, 0, 0, 0],
    ("idlg", "biased"): [1, ONE, ONE, ONE, ONE, ONE],
    ("gradinversion", "biased"): [1, 1, 1, TWICE, TWICE, TWICE],
    ("row sums", "biased"): [1, 1, 1, TWICE, TWICE, TWICE],
    ("llg", "biased"): [1, 1, 0.5, 1, 0.5, 0.5],
    ("llg*", "biased"): [1, 1, 1, 1, 1, 1],
    ("llg+", "biased"): [1, 1, 1, 1, 1, 1],
    ("llg+", "no bias"): [1, 1, 1, 1, 1, 1],
    ("llg+", "negative"): [1, 1, 1, 1, 1, 1],
    ("ilrg", "biased"): [1, 1, 1, 1, 1, 1],
    ("ilrg", "signed"): [1, 1, 1, 1, 1, 1],
    ("ilrg", "no bias"): [BIAS, BIAS, BIAS, BIAS, BIAS, BIAS],
    ("posterior", "biased"): [1, 1, 1, 1, 1, 1],
    ("posterior", "no bias"): [BIAS, BIAS, BIAS, BIAS, BIAS, BIAS],
    ("shadow", "biased"): [1, 1, 1, 1, 1, 1],
    ("shadow", "no bias"): [1, 1, 1, 1, 1, 1],
    **{("learned", kind): [1, 1, 1, 1, 1, 1] for kind in ("biased", *KINDS)},
    ("rlg", "biased"): [1, 1, FEWER, FEWER, FEWER, FEWER],
    ("rlg", "signed"): [1, 1, FEWER, FEWER, FEWER, FEWER],
}


@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.parametrize(("method", "kind"), EXPECTED)
def test_what_each_attack_counts(method: str, kind: str, case: str) -> None:
    truth = torch.tensor(BATCHES[case])
    model = network(len(truth), **KINDS.get(kind, {}))
    leak = observe(model, *batch(truth, 1))
    expected = EXPECTED[method, kind][list(BATCHES).index(case)]
    known = Knowledge(model, auxiliary(len(truth)), (1, 3, 4))
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            count_heads(leak.heads, method, known)
        return
    found = count_heads(leak.heads, method, known)
    assert float(metrics.count_overlap(found, truth[None])) >= expected
    assert int(found.sum()) == int(truth.sum())


@settings(max_examples=20)
@example(counts=[1, 1], seed=39970)
@given(counts=st.lists(st.integers(0, 6), min_size=2, max_size=12).filter(any), seed=st.integers(0, 2**16))
def test_counts_are_right_where_the_assumptions_hold(counts: list[int], seed: int) -> None:
    truth = torch.tensor(counts)
    inputs, labels = batch(truth, seed)
    model = network(len(counts), seed=seed)
    leak = observe(model, inputs, labels)
    others = auxiliary(len(counts), seed + 1)
    # iLRG takes a row over its bias entry for a feature. Of two classes both rows give the same quotient, and where
    # their errors cancel it is none: it was right as long as one quotient was less than 30 times a feature's length.
    quotients = (leak.weight_gradient / leak.bias_gradient[:, None]).norm(dim=1).nan_to_num(math.inf)
    feature = bool(quotients.min() < LONGEST * model[:3](inputs).norm(dim=1).max())
    # The estimated impact is too small by a share of 1/C²: one sample too many where counts differ by about C².
    even = max(counts) - min(counts) <= len(counts) ** 2 / 2
    for method in (*("llg*", "llg+") * even, *("ilrg",) * feature, "posterior"):
        found = count_labels(leak, method, auxiliary=others)
        assert found.tolist() == counts, method
    found = count_labels(leak, "llg")
    assert int(found.sum()) == len(labels)
    # Every negative row's class occurs.
    negative = leak.weight_gradient.sum(dim=1) < 0
    assert (truth[negative] > 0).all()
    if max(counts) == 1:
        for method in ("gradinversion", "row sums"):
            assert count_labels(leak, method).tolist() == counts
    if sum(counts) == 1:
        assert count_labels(leak, "idlg").tolist() == counts


def test_batches_are_counted_all_at_once() -> None:
    model, others = network(5), auxiliary(5)
    inputs, labels = batch(torch.tensor([4, 8, 0, 6, 6]), 3)
    heads = observe_heads(model, inputs, labels, batch_size=6, chunk=12)
    known = Knowledge(model=model, auxiliary=others, input_shape=(1, 3, 4))
    for method in ("llg", "llg*", "llg+", "ilrg", "posterior"):
        together = count_heads(heads, method, known)
        assert together.shape == (4, 5)
        for n in range(4):
            part = slice(6 * n, 6 * n + 6)
            leak = observe(model, inputs[part], labels[part])
            assert torch.equal(together[n], count_labels(leak, method, auxiliary=others)), method


@pytest.mark.parametrize(("steps", "size"), [(3, 4), (4, 1)])
def test_gradients_summed_over_local_steps(steps: int, size: int) -> None:
    model, truth = network(4), torch.tensor([1, 0, steps * size - 3, 2])
    inputs, labels = batch(truth, 5)
    leak = observe(model, inputs, labels, local_steps=steps, rate=0.01)
    assert (leak.batch_size, leak.local_steps) == (size, steps)
    for method in ("llg*", "llg+"):
        assert torch.equal(count_labels(leak, method, auxiliary=auxiliary(4)), truth), method
    for method in ("ilrg", "posterior"):
        with pytest.raises(InputError, match=f"sum of {steps} along a path"):
            count_labels(leak, method, auxiliary=auxiliary(4))


@pytest.mark.parametrize("method", ["llg*", "llg+", "ilrg", "posterior"])
@pytest.mark.parametrize(
    ("loss", "epsilon"),
    [(Focal(1.0, 2.0, 0.8), 0.0), (Focal(2.0), 0.0), (CrossEntropy(0.5), 0.0), (CrossEntropy(), 0.3)],
)
def test_counting_follows_the_loss_where_it_is_told(method: str, loss: CrossEntropy | Focal, epsilon: float) -> None:
    counts = torch.tensor([3, 0, 6, 4])
    model, (inputs, labels) = network(4), batch(counts, 4)
    hot = F.one_hot(labels, 4).float()
    leak = observe(model, inputs, hot * (1 - epsilon) + (1 - hot) * epsilon / 3, loss=loss)
    assert torch.equal(count_labels(leak, method, auxiliary=auxiliary(4), loss=loss, epsilon=epsilon), counts)
    assert not torch.equal(count_labels(leak, method, auxiliary=auxiliary(4)), counts)


def test_the_guess_is_as_even_as_can_be() -> None:
    inputs, labels = batch(torch.tensor([7, 0, 4]), 1)
    leak = observe(network(3), inputs, labels)
    guesses = {tuple(count_labels(leak, "guess", seed=seed).tolist()) for seed in range(20)}
    assert guesses == {(4, 4, 3), (4, 3, 4), (3, 4, 4)}


@pytest.mark.parametrize("method", ["idlg", "row sums", "llg"])
def test_features_that_change_sign_are_refused(method: str) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = -torch.rand(3, 6, 8, generator=generator)
    gradients[1] = gradients[1].abs()
    heads = HeadLeaks(torch.randn(6, 8, generator=generator), None, gradients, None, 1)
    with pytest.raises(InputError, match="1 of 3 gradients sums to less than 0"):
        count_heads(heads, method)
    with pytest.raises(InputError, match="features change sign"):
        count_heads(replace(heads, weight_gradients=gradients[1:2]), method)
    assert count_heads(heads, method, whatever_holds=True).shape == (3, 6)


@pytest.mark.parametrize("bias", [True, False])
def test_the_shadow_attack_learns_what_a_defence_does(bias: bool) -> None:
    model, truth = network(4, bias=bias), torch.tensor([6, 0, 7, 3])
    leak = observe(model, *batch(truth, 8), defense=defenses.quantize(6))
    found = count_labels(leak, "shadow", auxiliary=auxiliary(4), defense=defenses.quantize(6))
    assert torch.equal(found, truth)


def test_who_knows_a_defence_finds_more_than_who_does_not() -> None:
    model, others = network(4), auxiliary(4)
    for defense in (defenses.grad_drop(0.8), defenses.clip(0.05)):
        generator = torch.Generator().manual_seed(5)
        shares: dict[str, list[float]] = {"shadow": [], "llg+": []}
        for seed in range(12):
            truth = torch.bincount(torch.randint(4, (16,), generator=generator) % (1 + seed % 4), minlength=4)
            leak = observe(model, *batch(truth, seed), defense=defense)
            for method, found in shares.items():
                counts = count_labels(leak, method, auxiliary=others, defense=defense)
                found.append(float(metrics.count_overlap(counts[None], truth[None])))
        assert sum(shares["shadow"]) > sum(shares["llg+"]), defense


# ----------------------------------------------------------------------------------------------------------- rounding
def test_raising_the_lowest_again_and_again() -> None:
    generator = torch.Generator().manual_seed(0)
    for count in range(12):
        levels = 5 * torch.randn(3, 4, generator=generator, dtype=torch.float64)
        step = 3 * torch.rand(3, generator=generator, dtype=torch.float64)
        heights, rows = levels.clone(), torch.arange(3)
        for _ in range(count):
            heights[rows, heights.argmin(dim=1)] += step
        found = raised(levels, step, torch.full((3,), count))
        torch.testing.assert_close(levels + step[:, None] * found, heights)


def test_rounding_keeps_the_sum_and_stays_near() -> None:
    values = torch.tensor([[1.3, 0.3, 2.4], [-1.0, 5.2, 0.1], [0.4, 0.5, 9.0]], dtype=torch.float64)
    assert rounded(values, 4).tolist() == [[1, 0, 3], [0, 4, 0], [0, 0, 4]]
