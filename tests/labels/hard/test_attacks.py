"""Label attacks on batches: right on batches whose labels are known, and refusals that name what fails."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import defenses, metrics
from gradleak.errors import InputError, UnknownName
from gradleak.labels import METHODS, Knowledge, count_heads, count_labels, reveal_labels
from gradleak.labels.hard.llg import llg_estimate
from gradleak.labels.hard.posterior import posterior_values, posteriors
from gradleak.labels.hard.rlg import candidates, numerical_rank, rlg
from gradleak.labels.hard.rounding import raised, rounded
from gradleak.leak import HeadLeaks, Leak, head_inputs, observe, observe_heads
from gradleak.losses import BinaryCrossEntropy, CrossEntropy, Focal

COUNTING = [name for name in METHODS if name != "idlg"]


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


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 6), min_size=2, max_size=12).filter(any), seed=st.integers(0, 2**16))
def test_counts_are_right_where_the_assumptions_hold(counts: list[int], seed: int) -> None:
    truth = torch.tensor(counts)
    inputs, labels = batch(truth, seed)
    leak = observe(network(len(counts), seed=seed), inputs, labels)
    others = auxiliary(len(counts), seed + 1)
    # The published factor 1 + 1/C on the impact is one too many where counts differ by about C.
    even = max(counts) - min(counts) <= len(counts) / 2
    for method in ("llg*", "llg+", "ilrg", "posterior") if even else ("ilrg", "posterior"):
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


def test_local_steps_are_those_of_plain_gradient_descent() -> None:
    model, (inputs, labels) = network(4).double(), batch(torch.tensor([2, 2, 1, 1]), 2)
    inputs = inputs.double()
    leak = observe(model, inputs, labels, local_steps=3, rate=0.5)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for part, own in zip(inputs.split(2), labels.split(2), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(part), own).backward()
        optimizer.step()
    for (name, after), start in zip(model.named_parameters(), before, strict=True):
        torch.testing.assert_close(leak.gradients[name], (start - after.detach()) / 0.5)
    with pytest.raises(InputError, match="6 samples cannot be cut into 4"):
        observe(model, inputs, labels, local_steps=4)


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(0.8), CrossEntropy(1.2), Focal(), Focal(0.5, 1.0, 1.2), BinaryCrossEntropy()]
)
def test_slopes_are_as_steep_as_each_loss_says(loss: CrossEntropy | Focal | BinaryCrossEntropy) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = F.one_hot(torch.randint(4, (6,), generator=generator), 4).double()
    (slopes,) = torch.autograd.grad(loss(logits, labels).sum(), [logits])
    probabilities = loss.probabilities(logits.detach())
    own = (labels * probabilities).sum(dim=1, keepdim=True)
    torch.testing.assert_close(slopes, loss.weight(own) * (probabilities - labels))


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


@settings(max_examples=60, deadline=None)
@given(
    levels=st.lists(st.floats(-5, 5), min_size=1, max_size=6),
    step=st.floats(0.01, 3),
    count=st.integers(0, 12),
)
def test_raising_the_lowest_again_and_again(levels: list[float], step: float, count: int) -> None:
    tensor = torch.tensor([levels], dtype=torch.float64)
    found = raised(tensor, torch.tensor([step], dtype=torch.float64), torch.tensor([count]))[0]
    assert int(found.sum()) == count
    heights = np.array(levels)
    for _ in range(count):
        heights[heights.argmin()] += step
    # Ties may be broken either way; the heights are the same then.
    assert sorted(tensor[0].numpy() + step * found.numpy()) == pytest.approx(sorted(heights), abs=1e-9)


def test_rounding_keeps_the_sum_and_stays_near() -> None:
    values = torch.tensor([[1.4, 0.3, 2.3], [-1.0, 5.2, 0.1], [0.5, 0.5, 9.0]], dtype=torch.float64)
    assert rounded(values, 4).tolist() == [[1, 0, 3], [0, 4, 0], [0, 0, 4]] or rounded(values, 4).tolist()[0] in (
        [2, 0, 2],
        [1, 0, 3],
    )
    assert rounded(values, 4).sum(dim=1).tolist() == [4, 4, 4]
    assert rounded(torch.tensor([[2.0, 0.0, 1.0]]), 3).tolist() == [[2, 0, 1]]


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


@pytest.mark.parametrize("case", ["one sample", "one class", "all classes", "two classes", "more than classes"])
def test_corner_cases(case: str) -> None:
    counts = {
        "one sample": [0, 1, 0],
        "one class": [0, 0, 7],
        "all classes": [1, 1, 1, 1],
        "two classes": [3, 2],
        "more than classes": [5, 9, 2],
    }[case]
    truth = torch.tensor(counts)
    leak = observe(network(len(counts)), *batch(truth, 1))
    for method in ("llg*", "llg+", "ilrg", "posterior"):
        assert torch.equal(count_labels(leak, method, auxiliary=auxiliary(len(counts))), truth), method
    # Gradients alone do not tell what predictions add: where all classes occur alike, LLG has next to nothing to see.
    overlap = float(metrics.count_overlap(count_labels(leak, "llg")[None], truth[None]))
    assert overlap == 1 if min(counts) == 0 else overlap >= 0.5
    if max(counts) > 1 and sum(counts) > len(counts):
        with pytest.raises(InputError, match="no class twice"):
            count_labels(leak, "gradinversion")
    if sum(counts) > 1:
        with pytest.raises(InputError, match="label of one sample"):
            count_labels(leak, "idlg")


def test_the_guess_is_as_even_as_can_be() -> None:
    inputs, labels = batch(torch.tensor([7, 0, 4]), 1)
    leak = observe(network(3), inputs, labels)
    guesses = {tuple(count_labels(leak, "guess", seed=seed).tolist()) for seed in range(20)}
    assert guesses == {(4, 4, 3), (4, 3, 4), (3, 4, 4)}


def test_refusals_name_what_fails() -> None:
    inputs, labels = batch(torch.tensor([2, 1, 3]), 1)
    plain = observe(network(3, bias=False), inputs, labels)
    for method, message in (("ilrg", "must have a bias"), ("posterior", "must have a bias")):
        with pytest.raises(InputError, match=message):
            count_labels(plain, method, auxiliary=auxiliary(3))
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


def synthetic(
    classes: int, width: int, size: int, seed: int, dtype: torch.dtype, relu: bool
) -> tuple[Tensor, set[int]]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, width, generator=generator, dtype=torch.float64)
    features = features.relu() if relu else features
    weight = torch.randn(classes, width, generator=generator, dtype=torch.float64) / width**0.5
    labels = torch.randint(classes, (size,), generator=generator)
    errors = (features @ weight.T).softmax(dim=1) - F.one_hot(labels, classes)
    return (errors.T @ features / size).to(dtype), set(labels.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("relu", [False, True])
def test_rlg_reveals_classes_whatever_the_sign_of_features(dtype: torch.dtype, relu: bool) -> None:
    for seed in range(10):
        gradient, truth = synthetic(60, 40, 1 + seed, seed, dtype, relu)
        assert reveal_labels(gradient) == truth


def test_rlg_screening_drops_no_class_that_can_be_parted() -> None:
    for seed in range(6):
        gradient, truth = synthetic(80, 30, 8, seed, torch.float64, relu=False)
        rows, singular, _ = torch.linalg.svd(gradient, full_matrices=False)
        rank = numerical_rank(singular, gradient)
        assert rank == 8
        kept = candidates(rows[:, :rank].numpy())
        assert len(kept) <= 2 * rank
        assert truth <= set(kept.tolist())


def test_rlg_tells_one_label_from_none_and_refuses_full_rank() -> None:
    gradient, truth = synthetic(10, 12, 1, 0, torch.float64, relu=True)
    assert rlg(gradient) == truth
    assert rlg(torch.zeros(5, 4)) == set()
    with pytest.raises(InputError, match="than classes less one"):
        rlg(synthetic(6, 12, 30, 0, torch.float64, relu=True)[0])
    with pytest.raises(InputError, match="one gradient"):
        rlg(torch.zeros(2, 5, 4))
    with pytest.raises(UnknownName, match="unknown method"):
        reveal_labels(gradient, "glr")


def test_rlg_is_fast_with_many_classes() -> None:
    gradient, truth = synthetic(16_000, 256, 40, 0, torch.float32, relu=False)
    started = time.perf_counter()
    assert rlg(gradient) == truth
    assert time.perf_counter() - started < 60


def test_overlap_and_jaccard_of_counts() -> None:
    found, truth = torch.tensor([[2, 0, 2], [1, 1, 2]]), torch.tensor([[2, 1, 1], [1, 1, 2]])
    assert metrics.count_overlap(found, truth).tolist() == [0.75, 1.0]
    assert metrics.count_jaccard(found, truth).tolist() == [3 / 5, 1.0]
    assert metrics.class_jaccard(found, truth).tolist() == [2 / 3, 1.0]


def test_heads_hold_their_batch_size() -> None:
    inputs, labels = batch(torch.tensor([2, 2]), 0)
    heads = observe_heads(network(2), inputs, labels, batch_size=2)
    assert isinstance(heads, HeadLeaks)
    assert heads.batch_size == 2
    assert heads.weight_gradients.shape == (2, 2, 40)


@pytest.mark.parametrize("bias", [True, False])
def test_the_shadow_attack_learns_what_a_defence_does(bias: bool) -> None:
    model, others = network(4, bias=bias), auxiliary(4)
    truth = torch.tensor([6, 0, 7, 3])
    inputs, labels = batch(truth, 8)
    for defense in (None, defenses.quantize(6)):
        leak = observe(model, inputs, labels, defense=defense)
        assert torch.equal(count_labels(leak, "shadow", auxiliary=others, defense=defense), truth)
    with pytest.raises(InputError, match="shadow attack needs samples"):
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
