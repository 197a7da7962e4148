"""Labels and batches as clients make them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.augment import balanced, mixup, one_hot, smooth, unbalanced


@settings(max_examples=20)
@given(classes=st.integers(2, 30), epsilon=st.floats(0, 1), seed=st.integers(0, 99))
def test_both_smoothings_are_probabilities_and_each_the_others_rescaling(
    classes: int, epsilon: float, seed: int
) -> None:
    labels = torch.randint(classes, (5,), generator=torch.Generator().manual_seed(seed))
    ours = smooth(labels, classes, epsilon)
    others = smooth(labels, classes, epsilon * (classes - 1) / classes, convention="posterior2023")
    torch.testing.assert_close(ours.sum(dim=1), torch.ones(5))
    torch.testing.assert_close(ours, others)
    assert float(ours[0, labels[0]]) == pytest.approx(1 - epsilon + epsilon / classes, abs=1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 99))
def test_mixtures_hold_two_different_classes(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(4), torch.randint(4, (8,), generator=generator)])
    inputs = torch.rand(12, 3, generator=generator)
    mixed, targets = mixup(inputs, one_hot(labels, 4), generator=seed)
    assert ((targets > 0).sum(dim=1) == 2).all()
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(12))
    assert mixed.min() >= inputs.min()
    assert mixed.max() <= inputs.max()
    again = mixup(inputs, one_hot(labels, 4), generator=seed)
    assert torch.equal(mixed, again[0])


def test_inputs_are_mixed_with_the_weights_of_their_labels() -> None:
    hot = one_hot(torch.arange(5), 5)
    mixed, targets = mixup(hot.clone(), hot, generator=1)
    torch.testing.assert_close(mixed, targets)


def test_balanced_batches_visit_all_classes() -> None:
    labels = torch.arange(10).repeat(6)
    batch = balanced(labels, 25, generator=0)
    counts = labels[batch].bincount(minlength=10)
    assert counts.min() == 2
    assert counts.max() == 3
    assert len(batch.unique()) == 25
    assert not torch.equal(batch, balanced(labels, 25, generator=1))


def test_unbalanced_batches_are_half_and_a_quarter() -> None:
    labels = torch.arange(10).repeat(60)
    counts = labels[unbalanced(labels, 64, generator=0)].bincount(minlength=10).sort(descending=True).values
    assert counts[0] >= 32
    assert counts[1] >= 16
    assert counts.sum() == 64
    assert len(unbalanced(labels, 1, generator=0)) == 1
