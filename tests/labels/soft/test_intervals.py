"""Ranges that are excluded hold no answer, and a proof fails where there is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradleak.labels import PRIORS, recover_soft_labels
from gradleak.labels.soft import exact, intervals
from gradleak.labels.soft.equations import explains
from gradleak.labels.soft.intervals import excluded, proved
from gradleak.labels.soft.problem import Problem, reduce_gradients
from gradleak.labels.soft.single import Clients
from tests.labels.soft.test_single import DTYPES, sent


def problem(gradients: Tensor, weight: Tensor, noise: float = 0.0, bias: Tensor | None = None) -> Problem:
    reduced = reduce_gradients(gradients, weight)
    return Clients(gradients, weight, bias, None).problem(reduced, torch.full_like(reduced.size, noise))


@given(
    classes=st.sampled_from((3, 5, 10, 40)),
    spread=st.sampled_from((1e-3, 0.1, 1.0, 10.0, 100.0)),
    labels=st.sampled_from(tuple(PRIORS)),
    dtype=st.sampled_from(tuple(DTYPES)),
    noisy=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=30)
def test_no_range_with_an_answer_is_excluded(
    classes: int, spread: float, labels: str, dtype: str, noisy: bool, biased: bool, seed: int
) -> None:
    prior = PRIORS[labels]
    if prior.equations(classes) < 1:
        return
    made = sent(classes, 16, spread, labels, dtype, seed, 4)
    weight, lengths = made["weight"], made["hidden"].norm(dim=1)
    bias = torch.randn(classes, generator=torch.Generator().manual_seed(seed)).to(weight) if biased else None
    own = problem(made["gradients"], weight, 1e-4 if noisy else 0.0, bias)
    # Points near the true scalar, whether or not it is one with this bias, and far from it.
    generator = torch.Generator().manual_seed(seed)
    near = 1 + torch.randn(40, generator=generator, dtype=torch.float64) * 10 ** (
        -12 * torch.rand(40, generator=generator, dtype=torch.float64)
    )
    far = 10 ** (8 * torch.rand(40, generator=generator, dtype=torch.float64) - 1)
    points = lengths[:, None].clamp(min=1e-6) * torch.cat([near.abs().clamp(min=1e-3), far, near.new_ones(1)])
    accepted = explains(own, points, prior)
    # Every point is inside a range of its own, narrow or wide.
    width = 10 ** (-10 * torch.rand(points.shape, generator=generator, dtype=torch.float64))
    place = torch.rand(points.shape, generator=generator, dtype=torch.float64)
    begin, end = points * (1 - place * width), points * (1 + (1 - place) * width)
    for few in (intervals.TELLING, classes):
        flat = torch.stack([begin, end], dim=2).reshape(-1, 2)
        rows = torch.arange(len(own)).repeat_interleave(points.shape[1])
        out = excluded(own[rows], flat, prior, few)[:, 0].reshape(points.shape)
        assert not (out & accepted).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", PRIORS)
def test_a_proof_is_right_and_says_what_the_search_says(labels: str, dtype: str) -> None:
    for classes, spread in ((5, 1.0), (10, 20.0), (100, 3.0)):
        made = sent(classes, 16, spread, labels, dtype, 1, 20)
        gradients, weight = made["gradients"], made["weight"]
        searched = recover_soft_labels(gradients, weight, prior=labels)
        found = recover_soft_labels(gradients, weight, prior=labels, certify="proof")
        unique = found.where("unique")
        assert ((found.labels - made["label"]).abs().sum(dim=1)[unique] <= 1e-3).all()
        assert not (unique & ~searched.where("unique")).any()
        assert int(unique.sum()) >= 0.85 * searched.status.count("unique")
        left = searched.where("unique") & ~unique
        assert all("do not exclude" in reason for reason, one in zip(found.reasons, left, strict=True) if one)


def test_a_proof_tells_three_classes_and_sees_an_answer_that_was_missed() -> None:
    made = sent(3, 16, 2.0, "smoothing", "float64", 0, 60)
    gradients, weight = made["gradients"], made["weight"]
    assert recover_soft_labels(gradients, weight).status.count("unique") == 0
    found = recover_soft_labels(gradients, weight, certify="proof")
    unique = found.where("unique")
    assert unique.sum() > 10
    assert ((found.labels - made["label"]).abs().sum(dim=1)[unique] <= 1e-3).all()
    # Where two answers were found, each of them alone is proved to be the only one by nobody.
    own, prior = problem(gradients, weight), PRIORS["smoothing"]
    all_found = exact.solve(own, prior)
    several = torch.tensor([len(one) > 1 for one in found.candidates])
    assert several.sum() > 10
    for ends in (torch.amin, torch.amax):
        at = ends(all_found.scalars.where(all_found.accepted, all_found.scalars[:, :1]), dim=1)[:, None]
        alone = all_found.accepted & ((all_found.scalars / at - 1).abs() < 1e-6)
        assert not proved(own, all_found.scalars, alone, prior)[several].any()
    # Nor is it proved that there is none where there is one.
    assert not proved(own, all_found.scalars, torch.zeros_like(all_found.accepted), prior)[unique].any()


def test_what_cannot_be_proved_is_not_said_to_be() -> None:
    made = sent(10, 16, 1.0, "smoothing", "float32", 0, 5)
    # A single range is never split: with none left, nothing is proved.
    own, prior = problem(made["gradients"], made["weight"]), PRIORS["smoothing"]
    found = exact.solve(own, prior)
    assert proved(own, found.scalars, found.accepted, prior).all()
    loud = replace(own, noise=torch.full_like(own.noise, 0.1))
    assert not proved(loud, found.scalars, found.accepted, prior).any()


def test_many_classes_are_searched_in_few_places_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    for labels in PRIORS:
        made = sent(100, 16, 3.0, labels, "float32", 3, 12)
        few = recover_soft_labels(made["gradients"], made["weight"], prior=labels)
        with monkeypatch.context() as patched:
            patched.setattr(exact, "MANY", 10**9)
            every = recover_soft_labels(made["gradients"], made["weight"], prior=labels)
        assert few.status == every.status
        torch.testing.assert_close(few.labels, every.labels, rtol=0, atol=1e-9)
        torch.testing.assert_close(few.scalars, every.scalars, rtol=1e-7, atol=0)
