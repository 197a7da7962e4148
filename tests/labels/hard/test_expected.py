"""How much of a count is right, as simulated batches say, beside what it gets of real ones."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

import gradleak
from gradleak import data, defenses
from gradleak.labels import count_labels, expected_share
from gradleak.leak import Leak

SIZE, BATCHES = 16, 40


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    found = data.load("digits", "train")
    return found.images, found.labels


@functools.cache
def network(steps: int) -> nn.Sequential:
    """Return a network that was trained on digits for so many steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    images, labels = digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


@functools.cache
def leaks(steps: int) -> list[tuple[Leak, Tensor]]:
    images, labels = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))[: SIZE * BATCHES].split(SIZE)
    return [
        (gradleak.observe(network(steps), images[own], labels[own]), torch.bincount(labels[own], minlength=10))
        for own in order
    ]


def right(steps: int, method: str) -> float:
    """Return the share of labels that a count has right of real batches."""
    return sum(int(torch.minimum(count_labels(leak, method), truth).sum()) for leak, truth in leaks(steps)) / (
        SIZE * BATCHES
    )


@pytest.mark.parametrize(("steps", "method"), [(0, "ilrg"), (100, "llg"), (100, "llg*"), (100, "ilrg")])
def test_simulated_batches_say_whether_a_count_beats_an_even_guess(steps: int, method: str) -> None:
    found = expected_share(leaks(steps)[0][0], method)
    assert abs(found.share - found.guess) > 0.15
    assert (found.share > found.guess) == (right(steps, method) > right(steps, "guess")) == (steps == 0)


@pytest.mark.parametrize("method", ["llg", "llg*", "ilrg"])
@pytest.mark.parametrize("steps", [0, 100])
def test_auxiliary_samples_show_the_share_as_it_is(method: str, steps: int) -> None:
    found = expected_share(leaks(steps)[0][0], method, auxiliary=digits(), batches=100)
    assert found.share == pytest.approx(right(steps, method), abs=0.06)
    assert found.guess == pytest.approx(right(steps, "guess"), abs=0.03)


def test_noise_and_local_steps_are_simulated() -> None:
    leak = leaks(0)[0][0]
    noise = defenses.named("gaussian/1.0", generator=torch.Generator().manual_seed(0))
    assert expected_share(leak, "llg", defense=noise).share < expected_share(leak, "llg").share - 0.1
    images, labels = digits()
    summed = gradleak.observe(network(0), images[:SIZE], labels[:SIZE], local_steps=4)
    assert summed.batch_size == 4
    assert expected_share(summed, "llg").share == pytest.approx(expected_share(leak, "llg").share, abs=0.05)
