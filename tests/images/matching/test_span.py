"""Batches are found in the span of the first layer's gradient, exactly without noise and closely behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn

import gradleak
from gradleak import defenses
from gradleak.errors import InputError
from gradleak.images import match, match_span
from gradleak.leak import Leak, observe

SIGMA = 1e-4


def network(
    inputs: int = 24, activation: type[nn.Module] = nn.Sigmoid, first: list[nn.Module] | None = None
) -> nn.Module:
    torch.manual_seed(2)
    first = first or [nn.Linear(inputs, 40)]
    return nn.Sequential(*first, activation(), nn.Linear(40, 20), activation(), nn.Linear(20, 6)).double()


def batch(count: int, *shape: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, *shape, generator=Generator().manual_seed(count), dtype=torch.float64)
    return inputs, torch.arange(count)


def behind_noise(leak: Leak, sigma: float = SIGMA) -> Leak:
    defense = defenses.named(f"gaussian/{sigma}", generator=Generator().manual_seed(0))
    return replace(leak, gradients=defense(leak.gradients))


def errors(found: Tensor, inputs: Tensor) -> Tensor:
    """Return the root mean square error of the nearest that was found, for each input."""
    return (torch.cdist(inputs.flatten(1), found.flatten(1)).amin(dim=1)) / inputs[0].numel() ** 0.5


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.ReLU])
@pytest.mark.parametrize("count", [2, 4])
def test_a_batch_is_found_to_the_last_digits(count: int, activation: type[nn.Module]) -> None:
    inputs, labels = batch(count, 24)
    leak = observe(network(activation=activation), inputs, labels)
    # The order of the labels does not matter.
    found = match_span(leak, labels.flip(0), restarts=32)
    assert errors(found.inputs, inputs).max() < 1e-6
    assert found.noise < 1e-12
    (answer,) = found.answers
    assert (answer.status, answer.certified) == ("searched", 0)


def test_what_comes_before_the_first_layer_is_taken_into_account() -> None:
    class Standardised(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return (inputs - 3) / 2

    inputs, labels = batch(2, 1, 4, 6)
    model = network(first=[Standardised(), nn.Conv2d(1, 40, (4, 6)), nn.Flatten()])
    found = match_span(observe(model, inputs, labels), labels)
    assert found.inputs.shape == inputs.shape
    assert errors(found.inputs, inputs).max() < 1e-6


def test_behind_noise_the_error_is_about_as_large_as_stated_and_smaller_than_that_of_a_search() -> None:
    inputs, labels = batch(3, 400)
    model = network(400, nn.ReLU)
    leak = behind_noise(observe(model, inputs, labels))
    found = match_span(leak, labels)
    assert found.noise == pytest.approx(SIGMA, rel=0.1)
    own = errors(found.inputs, inputs)
    # The place within the span is not known exactly either.
    assert (own < 5 * found.deviations).all()
    assert (own > found.deviations / 3).all()
    assert own.mean() < errors(match(leak, labels, budget=200).images, inputs).mean() / 2


def test_images_behind_noise_are_smoothed() -> None:
    _, labels = batch(2, 1)
    rising = torch.linspace(0, 1, 20, dtype=torch.float64).expand(1, 20, 20)
    images = torch.stack([rising, rising.mT])
    leak = behind_noise(observe(network(first=[nn.Flatten(), nn.Linear(400, 40)]), images, labels), 3e-4)
    plain, smooth = (errors(match_span(leak, labels, box=box).inputs, images) for box in (None, (0.0, 1.0)))
    assert smooth.mean() < 0.8 * plain.mean()


@pytest.mark.parametrize(
    ("count", "first", "reason"),
    [
        (1, None, "it is tried for 2 to 8 samples, and a batch has 1"),
        (9, None, "it is tried for 2 to 8 samples, and a batch has 9"),
        (2, [nn.Linear(24, 40, bias=False)], "the first layer has no bias"),
        (8, [nn.Linear(24, 4), nn.Linear(4, 40)], "the gradient of '0' has no more than 4 singular values"),
    ],
)
def test_what_has_no_span_is_refused(count: int, first: list[nn.Module] | None, reason: str) -> None:
    inputs, labels = batch(count, 24)
    leak = observe(network(first=first), inputs, labels % 6)
    with pytest.raises(InputError, match=reason):
        match_span(leak, labels % 6)


def test_a_layer_may_have_no_more_units_than_there_are_samples() -> None:
    inputs, labels = batch(3, 24)
    leak = observe(network(first=[nn.Linear(24, 3), nn.Linear(3, 40)]), inputs, labels)
    found = match_span(leak, labels)
    assert found.noise == 0
    assert errors(found.inputs, inputs).max() < 1e-4


def test_labels_of_another_number_and_steps_along_a_path_are_refused() -> None:
    inputs, labels = batch(3, 24)
    leak = observe(network(), inputs, labels)
    with pytest.raises(InputError, match="one entry per sample, 3; got 2"):
        match_span(leak, labels[:2])
    with pytest.raises(InputError, match="the sum of 2 gradients"):
        match_span(replace(leak, local_steps=2), labels)


def test_an_audit_finds_a_batch_behind_noise() -> None:
    model = network(144).float()
    inputs, labels = batch(2, 144)
    report = gradleak.audit(model, inputs.float(), labels, batch_sizes=(2,), defenses=("gaussian/1e-06",), steps=20)
    (own,) = (one for one in report.findings if one.attack == "matching in the first layer's span")
    assert own.certified == 0
    assert own.measures["recognisable"] == 1
    assert "random starts end at the closest gradient" in own.sentence
