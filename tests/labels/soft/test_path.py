"""The label as a function of one scalar: Theorem 1, the true scalar, the valid interval and the minima of the loss."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradleak.labels import LabelPath, find_minima, label_loss, label_path, nonnegative_intervals
from tests.labels.soft.test_single import sent


def truth_of(path: LabelPath, error: Tensor) -> Tensor:
    return 1 / error.gather(1, path.row[:, None])


@settings(max_examples=30)
@given(
    classes=st.integers(2, 40),
    features=st.integers(1, 50),
    spread=st.floats(0.01, 8),
    labels=st.sampled_from(["smoothing", "mixup", "onehot"]),
    bias=st.booleans(),
    columns=st.sampled_from(["all", "one"]),
    seed=st.integers(0, 2**20),
)
def test_true_scalar_gives_the_true_label_and_any_scalar_a_sum_of_one(
    classes: int, features: int, spread: float, labels: str, bias: bool, columns: str, seed: int
) -> None:
    made = sent(classes, features, spread, labels, "float64", seed, 6, bias=bias)
    gradients, error = made["gradients"], made["delta"]
    path = label_path(gradients, made["weight"], bias=made.get("bias"), columns=columns)  # type: ignore[arg-type]
    truth = truth_of(path, error)
    worst = truth.abs().max().item()
    torch.testing.assert_close(path.labels(truth)[:, 0], made["label"], rtol=0, atol=1e-11 * worst)
    torch.testing.assert_close(path.features(truth) * error.unsqueeze(2), gradients, rtol=1e-7, atol=1e-11)
    scalars = torch.tensor([[0.3, -0.7, 11.0, -400.0]], dtype=torch.float64).expand(6, -1)
    sums = path.labels(scalars).sum(dim=2)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-11 * worst)
    assert (path.least <= truth[:, 0].abs() * (1 + 1e-9)).all()


@settings(max_examples=15)
@given(
    classes=st.integers(3, 20),
    spread=st.floats(0.05, 6),
    labels=st.sampled_from(["smoothing", "mixup", "onehot"]),
    seed=st.integers(0, 2**20),
)
@example(classes=3, spread=3.8984375, labels="onehot", seed=3)  # an interval narrower than a grid step
def test_intervals_hold_exactly_the_valid_labels(classes: int, spread: float, labels: str, seed: int) -> None:
    made = sent(classes, 30, spread, labels, "float64", seed, 4)
    path = label_path(made["gradients"], made["weight"])
    truth = truth_of(path, made["delta"])[:, 0]
    found = nonnegative_intervals(path)
    magnitude = torch.logspace(-1, 3, 1500, dtype=torch.float64)
    scan = torch.cat([-magnitude, magnitude]).expand(4, -1)
    lowest = path.labels(scan).amin(dim=2)
    for n, own in enumerate(found):
        inside = torch.zeros_like(scan[n], dtype=torch.bool)
        for low, high in own:
            assert abs(low) < abs(high)
            assert low * high > 0
            near, far = sorted((low, high))
            inside |= (scan[n] >= near) & (scan[n] <= far)
            ends = torch.tensor([[low, high]], dtype=torch.float64)
            ends = ends[:, :1] if math.isinf(high) else ends
            assert path[n : n + 1].labels(ends).amin() >= -1e-12
        assert (lowest[n][inside] >= -1e-12).all()
        assert (lowest[n][~inside] < 1e-9).all()
        if labels == "smoothing":
            assert any(min(pair) <= float(truth[n]) <= max(pair) for pair in own)


def test_minima_agree_with_a_fine_scan() -> None:
    made = sent(10, 30, 4.0, "smoothing", "float64", 5, 3)
    path = label_path(made["gradients"], made["weight"])
    scan = torch.logspace(0, 3, 200_000, dtype=torch.float64)
    for n, own in enumerate(find_minima(path, span=1e3)):
        for sign in (1.0, -1.0):
            loss = label_loss(path[n : n + 1].labels(sign * scan[None]))[0]
            dips = (loss[1:-1] < torch.minimum(loss[:-2], loss[2:]) * (1 - 1e-12)).nonzero()[:, 0] + 1
            side = own.side(sign)
            assert len(side.scalars) == len(dips)
            torch.testing.assert_close(side.scalars.abs(), scan[dips], rtol=4e-5, atol=0)


def test_losses_by_hand() -> None:
    label = torch.tensor([0.6, 0.1, 0.2, 0.1], dtype=torch.float64)
    rest = label[1:]
    assert float(label_loss(label)) == pytest.approx(float(rest.var(correction=0)))
    assert float(label_loss(label, "mixup")) == pytest.approx(0.0, abs=1e-18)
    assert float(label_loss(label, kind="square")) == pytest.approx(float(rest.square().mean()))
    signed = torch.tensor([1.2, -0.3, 0.1, 0.0], dtype=torch.float64)
    assert float(label_loss(signed, kind="negative")) == pytest.approx(0.6)
    assert float(label_loss(label, kind="negative")) == pytest.approx(0.0)
