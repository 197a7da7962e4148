"""Counts learned from simulated batches: right where other counts are no better than a guess, and honest about it."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak import data, defenses, metrics
from gradleak.errors import InputError
from gradleak.labels import Knowledge, count_heads, count_labels, expected_share
from gradleak.labels.hard.attacks import METHODS
from gradleak.leak import Defense, HeadLeaks, head_inputs, observe, observe_heads

SIZE, BATCHES, EACH = 6, 100, 12


@functools.cache
def trained() -> tuple[nn.Linear, data.Dataset, data.Dataset]:
    """Return the last layer of a network that was trained on digits until it was certain, and its inputs."""
    torch.manual_seed(0)
    seen, unseen = data.load("digits", "train"), data.load("digits", "test")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(seen.images), seen.labels).backward()
        optimizer.step()
    head = model[3]
    assert isinstance(head, nn.Linear)
    return head, *(replace(one, images=head_inputs(model, one.images)[0]) for one in (seen, unseen))


def auxiliary(each: int = EACH) -> tuple[Tensor, Tensor]:
    _, _, unseen = trained()
    chosen = torch.cat([(unseen.labels == label).nonzero()[:each, 0] for label in range(10)])
    return unseen.images[chosen], unseen.labels[chosen]


@functools.cache
def batches() -> tuple[HeadLeaks, Tensor]:
    head, seen, _ = trained()
    chosen = torch.randint(len(seen.labels), (BATCHES * SIZE,), generator=torch.Generator().manual_seed(1))
    labels = seen.labels[chosen]
    truth = torch.stack([one.bincount(minlength=10) for one in labels.split(SIZE)])
    return observe_heads(head, seen.images[chosen], labels, batch_size=SIZE), truth


@functools.cache
def known() -> Knowledge:
    return Knowledge(trained()[0], auxiliary(), (64,))


def share(method: str, heads: HeadLeaks | None = None, defense: Defense | None = None) -> float:
    """Return the share of labels that a method finds."""
    sent, truth = batches()
    knowledge = known() if defense is None else replace(known(), defense=defense)
    counts = count_heads(heads or sent, method, knowledge, whatever_holds=True)
    return float(metrics.count_overlap(counts, truth).mean())


def test_a_network_that_is_certain_gives_its_labels_away() -> None:
    others = {name: share(name) for name in METHODS if name not in ("idlg", "learned")}
    assert share("learned") > max(others.values()) + 0.1
    assert share("learned") > others["guess"] + 0.3


@pytest.mark.parametrize("bias", [True, False])
def test_the_scale_of_the_gradient_and_a_frozen_bias_do_not_matter(bias: bool) -> None:
    sent, _ = batches()
    assert sent.bias_gradients is not None
    sent = sent if bias else replace(sent, bias_gradients=None)
    half = replace(
        sent,
        weight_gradients=sent.weight_gradients / 2,
        bias_gradients=None if sent.bias_gradients is None else sent.bias_gradients / 2,
    )
    assert torch.equal(count_heads(sent, "learned", known()), count_heads(half, "learned", known()))
    assert share("learned", sent) > share("guess") + 0.25


def test_noise_that_hides_the_span_is_learned_too() -> None:
    sent, _ = batches()
    noise = defenses.named("gaussian/0.001", generator=torch.Generator().manual_seed(0))
    noisy = sent.defended(noise)
    assert share("learned", noisy, noise) > share("learned", noisy) + 0.02
    assert share("learned", noisy, noise) > share("guess") - 0.02


def test_what_is_expected_is_what_is_found() -> None:
    head, seen, _ = trained()
    leak = observe(head, seen.images[:SIZE], seen.labels[:SIZE])
    found = expected_share(leak, "learned", auxiliary=auxiliary(30), batches=100)
    assert found.share == pytest.approx(share("learned"), abs=0.1)


def test_what_cannot_be_learned_is_refused() -> None:
    head, seen, _ = trained()
    leak = observe(head, seen.images[:SIZE], seen.labels[:SIZE])
    with pytest.raises(InputError, match=r"at least 4 auxiliary samples of every class"):
        count_labels(leak, "learned", auxiliary=auxiliary(3))
    inputs, labels = auxiliary(4)
    with pytest.raises(InputError, match="the same features"):
        count_labels(leak, "learned", auxiliary=(torch.ones_like(inputs), labels))
    with pytest.raises(InputError, match="defences that treat tensors singly"):
        count_labels(leak, "learned", auxiliary=auxiliary(), defense=defenses.clip(0.1))
