"""Label attacks on batches: right on batches whose labels are known, and refusals that name what fails."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import defenses, metrics
from gradleak.errors import InputError, UnknownName
from gradleak.labels import METHODS, Knowledge, count_heads, count_labels
from gradleak.labels.hard.llg import llg_estimate
from gradleak.labels.hard.posterior import posterior_values, posteriors
from gradleak.leak import HeadLeaks, Leak, head_inputs, observe, observe_heads
from gradleak.losses import CrossEntropy, Focal


def network(classes: int, width: int = 40, *, bias: bool = True, relu: bool = True, seed: int = 0) -> nn.Sequential:
    """A network that predicts next to nothing, with features that are not negative or that change sign."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(12, width), nn.Sigmoid() if relu else nn.Tanh(), nn.Linear(width, classes, bias=bias)
    )
    with torch.no_grad():
        model[3].weight.mul_(0.02)
    return model


class Negative(nn.Module):
    """Turns every feature's sign."""

    def forward(self, x: Tensor) -> Tensor:
        """Return −x."""
        return -x


def batch(counts: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(labels), 1, 3, 4, generator=generator), labels[
        torch.randperm(len(labels), generator=generator)
    ]


def auxiliary(classes: int, seed: int = 1, each: int = 20) -> tuple[Tensor, Tensor]:
    inputs, labels = batch(torch.full((classes,), each), seed)
    return inputs, labels


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
ONE, TWICE, FEWER, BIAS = "label of one sample", "no class twice", "fewer samples than features", "must have a bias"
# An attack on a network: of each batch the share of its labels that are found at least, or why it refuses. Gradients
# alone do not tell what predictions add: where classes occur alike, LLG has next to nothing to see.
EXPECTED: dict[tuple[str, str], list[float | str]] = {
    ("guess", "biased"): [0, 0, 1, 0, 0, 0],
    ("draw", "biased"): [0, 0, 0.25, 0, 0, 0],
    ("idlg", "biased"): [1, ONE, ONE, ONE, ONE, ONE],
    ("idlg", "no bias"): [1, ONE, ONE, ONE, ONE, ONE],
    ("gradinversion", "biased"): [1, 1, 1, TWICE, TWICE, TWICE],
    ("gradinversion", "no bias"): [1, 1, 1, TWICE, TWICE, TWICE],
    ("row sums", "biased"): [1, 1, 1, TWICE, TWICE, TWICE],
    ("row sums", "no bias"): [1, 1, 1, TWICE, TWICE, TWICE],
    ("llg", "biased"): [1, 1, 0.5, 1, 0.5, 0.5],
    ("llg", "no bias"): [1, 1, 0.5, 1, 0.5, 0.5],
    ("llg*", "biased"): [1, 1, 1, 1, 1, 1],
    ("llg*", "no bias"): [1, 1, 1, 1, 1, 1],
    ("llg+", "biased"): [1, 1, 1, 1, 1, 1],
    ("llg+", "no bias"): [1, 1, 1, 1, 1, 1],
    ("ilrg", "biased"): [1, 1, 1, 1, 1, 1],
    ("ilrg", "signed"): [1, 1, 1, 1, 1, 1],
    ("ilrg", "no bias"): [BIAS, BIAS, BIAS, BIAS, BIAS, BIAS],
    ("posterior", "biased"): [1, 1, 1, 1, 1, 1],
    ("posterior", "signed"): [1, 1, 1, 1, 1, 1],
    ("posterior", "no bias"): [BIAS, BIAS, BIAS, BIAS, BIAS, BIAS],
    ("shadow", "biased"): [1, 1, 1, 1, 1, 1],
    ("shadow", "signed"): [1, 1, 1, 1, 1, 1],
    ("shadow", "no bias"): [1, 1, 1, 1, 1, 1],
    ("rlg", "biased"): [1, 1, FEWER, FEWER, FEWER, FEWER],
    ("rlg", "signed"): [1, 1, FEWER, FEWER, FEWER, FEWER],
}


@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.parametrize(("method", "kind"), EXPECTED)
def test_what_each_attack_counts(method: str, kind: str, case: str) -> None:
    truth = torch.tensor(BATCHES[case])
    model = network(len(truth), bias=kind != "no bias", relu=kind != "signed")
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


def test_every_attack_has_a_line_in_the_table() -> None:
    assert {method for method, _ in EXPECTED} == set(METHODS)


@settings(max_examples=40)
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
            torch.testing.assert_close(heads.weight_gradients[n], leak.weight_gradient, rtol=1e-4, atol=1e-7)
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


@pytest.mark.parametrize(
    ("loss", "epsilon"),
    [
        (Focal(1.0, 2.0, 0.8), 0.0),
        (Focal(), 0.0),
        (CrossEntropy(1.2), 0.0),
        (CrossEntropy(), 0.1),
        (CrossEntropy(), 0.25),
    ],
)
def test_the_posterior_attack_knows_losses_and_smoothing(loss: CrossEntropy | Focal, epsilon: float) -> None:
    counts = torch.tensor([3, 0, 9, 4])
    model, (inputs, labels) = network(4), batch(counts, 4)
    hot = F.one_hot(labels, 4).float()
    soft = hot * (1 - epsilon) + (1 - hot) * epsilon / 3
    leak = observe(model, inputs, soft, loss=loss)
    found = count_labels(leak, "posterior", auxiliary=auxiliary(4), loss=loss, epsilon=epsilon)
    assert torch.equal(found, counts)


@pytest.mark.parametrize("method", ["llg*", "llg+", "ilrg"])
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


def test_smoothed_labels_make_no_class_of_many_seem_present() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 40), nn.Sigmoid(), nn.Linear(40, 4))
    with torch.no_grad():
        model[3].weight.mul_(0.02)
        # Of absent classes the model predicts less than what smoothing gives them.
        model[3].bias.copy_(torch.tensor([4.0, 0.0, 0.0, 0.0]))
    counts = torch.tensor([8, 4, 0, 0])
    inputs, labels = batch(counts, 4)
    hot = F.one_hot(labels, 4).float()
    leak = observe(model, inputs, hot * 0.7 + (1 - hot) * 0.1)
    assert (leak.weight_gradient.sum(dim=1)[2:] < 0).all()
    found = count_labels(leak, "llg*", epsilon=0.3)
    assert float(metrics.count_overlap(found[None], counts[None])) > float(
        metrics.count_overlap(count_labels(leak, "llg*")[None], counts[None])
    )


def test_posterior_values_are_exact_with_exact_posteriors() -> None:
    generator = torch.Generator().manual_seed(3)
    scores, labels = torch.randn(30, 5, generator=generator).double(), torch.arange(5).repeat_interleave(6)
    known = posteriors(scores, labels)
    gradient = (scores.softmax(dim=1) - F.one_hot(labels, 5)).mean(dim=0)
    values = posterior_values(gradient[None], 30, known)
    torch.testing.assert_close(values[0], torch.full((5,), 6.0, dtype=torch.float64))


def test_estimates_equal_running_the_batches() -> None:
    model, (inputs, labels) = network(4, seed=2), auxiliary(4, each=3)
    features, scores = head_inputs(model, inputs)
    estimate = llg_estimate(scores, features, labels, batch_size=3)
    sums = torch.stack(
        [observe(model, inputs[labels == c], labels[labels == c]).weight_gradient.sum(dim=1) for c in range(4)]
    ).double()
    assert estimate.impact == pytest.approx(float(sums.diagonal().mean()) * (1 + 1 / 4) / 3, rel=1e-5)
    others = (sums.sum(dim=0) - sums.diagonal()) / 3
    torch.testing.assert_close(estimate.offset, others, rtol=1e-4, atol=1e-6)
    with pytest.raises(InputError, match="none of 3"):
        llg_estimate(scores[labels < 3], features[labels < 3], labels[labels < 3], 3)


def test_features_that_sum_to_less_than_nothing_are_known_to_who_has_an_estimate() -> None:
    model, truth = network(6), torch.tensor([3, 0, 2, 1, 0, 2])
    inputs, labels = batch(truth, 3)
    turned = nn.Sequential(*list(model)[:3], Negative(), model[3])
    leak = observe(turned, inputs, labels)
    assert torch.equal(count_heads(leak.heads, "llg+", Knowledge(turned, auxiliary(6)))[0], truth)
    assert not torch.equal(count_heads(leak.heads, "llg")[0], truth)


def test_where_the_published_impact_is_too_large() -> None:
    leak = observe(network(2, seed=1), *batch(torch.tensor([1, 4]), 1))
    others = auxiliary(2, 2)
    assert count_labels(leak, "llg+", auxiliary=others).tolist() == [0, 5]
    assert count_labels(leak, "posterior", auxiliary=others).tolist() == [1, 4]


def test_the_guess_is_as_even_as_can_be() -> None:
    inputs, labels = batch(torch.tensor([7, 0, 4]), 1)
    leak = observe(network(3), inputs, labels)
    guesses = {tuple(count_labels(leak, "guess", seed=seed).tolist()) for seed in range(20)}
    assert guesses == {(4, 4, 3), (4, 3, 4), (3, 4, 4)}


def test_refusals_name_what_fails() -> None:
    inputs, labels = batch(torch.tensor([2, 1, 3]), 1)
    plain = observe(network(3, bias=False), inputs, labels)
    for method in ("llg+", "posterior"):
        with pytest.raises(InputError, match="auxiliary"):
            count_labels(observe(network(3), inputs, labels), method)
    with pytest.raises(UnknownName, match="unknown method 'lgl'"):
        count_labels(plain, "lgl")
    with pytest.raises(UnknownName, match="unknown kind of dummy"):
        count_labels(plain, "llg*", dummy="blue")
    turned = Leak(plain.model, {name: value.abs() for name, value in plain.gradients.items()}, plain.head, 6)
    with pytest.raises(InputError, match="features change sign"):
        count_labels(turned, "llg")
    with pytest.raises(InputError, match="cannot be shared out"):
        observe_heads(network(3), inputs, labels, batch_size=4)


@pytest.mark.parametrize("bias", [True, False])
def test_the_shadow_attack_learns_what_a_defence_does(bias: bool) -> None:
    model, others = network(4, bias=bias), auxiliary(4)
    truth = torch.tensor([6, 0, 7, 3])
    inputs, labels = batch(truth, 8)
    for defense in (None, defenses.quantize(6)):
        leak = observe(model, inputs, labels, defense=defense)
        assert torch.equal(count_labels(leak, "shadow", auxiliary=others, defense=defense), truth)
    with pytest.raises(InputError, match="shadow needs samples"):
        count_labels(leak, "shadow")


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


def test_the_shadow_attack_survives_a_draw_of_nothing() -> None:
    seed = 28_587  # its first uniform draws hold a zero, whose logarithm is not finite
    assert torch.rand(200, 4, generator=torch.Generator().manual_seed(seed)).eq(0).any()
    truth = torch.tensor([6, 0, 7, 3])
    leak = observe(network(4), *batch(truth, 8))
    assert torch.equal(count_labels(leak, "shadow", auxiliary=auxiliary(4), seed=seed), truth)


@pytest.mark.parametrize("method", ["idlg", "row sums", "llg"])
def test_many_gradients_are_checked_as_one_is(method: str) -> None:
    generator = torch.Generator().manual_seed(0)
    good = -torch.rand(3, 6, 8, generator=generator)
    good[1] = good[1].abs()
    heads = HeadLeaks(torch.randn(6, 8, generator=generator), None, good, None, 1)
    with pytest.raises(InputError, match="1 of 3 gradients sums to less than 0"):
        count_heads(heads, method)
    assert count_heads(heads, method, whatever_holds=True).shape == (3, 6)
