"""Fully connected networks run backwards: exact where the gradient says enough, and said where it does not."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from gradleak import augment, metrics, observe
from gradleak.errors import GradleakWarning, InputError
from gradleak.hunting import BROKEN
from gradleak.images import bias_attack, invert_fully_connected, trace_fully_connected
from gradleak.leak import Leak

ACTIVATIONS = {
    "relu": nn.ReLU, "leaky": lambda: nn.LeakyReLU(0.2), "elu": nn.ELU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh,
}  # fmt: skip


def network(widths: list[int], activation: str, bias: bool, seed: int, dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def sent(model: nn.Module, count: int, width: int, classes: int, seed: int = 0) -> tuple[Leak, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(count, width, generator=generator, dtype=torch.float64)
    chosen = torch.randperm(classes, generator=generator)[:count]
    labels = augment.smooth(chosen, classes, torch.rand(count, generator=generator, dtype=torch.float64) / 2)
    dtype = next(model.parameters()).dtype
    return observe(model, inputs.to(dtype), labels.to(dtype)), inputs, labels


def error(found: Tensor, truth: Tensor) -> float:
    return float((found[metrics.match_batch(found, truth)] - truth).norm() / truth.norm())


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize(("count", "bias"), [(1, True), (4, False)])
def test_every_activation(activation: str, bias: bool, count: int) -> None:
    model = network([48, 96, 64, 20], activation, bias, 3, torch.float64)
    leak, inputs, labels = sent(model, count, 48, 20)
    found = trace_fully_connected(leak)
    assert found.status == "exact", found.reason
    assert error(found.inputs, inputs) < 1e-8
    assert error(found.labels, labels) < 1e-8
    assert [layer.rank for layer in found.layers] == [count, count]
    assert max(layer.misfit for layer in found.layers) < 1e-10
    assert error(invert_fully_connected(leak, labels), inputs) < 1e-8


def test_the_bias_attack_gives_a_single_sample_and_mixes_a_batch() -> None:
    model = network([30, 50, 10], "relu", True, 0, torch.float64)
    leak, inputs, _ = sent(model, 1, 30, 10)
    said = bias_attack(leak)
    told = said[~said[:, 0].isnan()]
    assert len(told) > 10
    assert (told - inputs).abs().max() < 1e-10
    mixed = bias_attack(sent(model, 3, 30, 10)[0])
    assert torch.cdist(inputs, mixed[~mixed[:, 0].isnan()]).median() > 0.1
    with pytest.raises(InputError, match="the first layer has no bias"):
        bias_attack(sent(network([30, 50, 10], "relu", False, 0, torch.float64), 1, 30, 10)[0])


def test_a_bias_in_the_first_layer_needs_no_label() -> None:
    """A saturated one-hot prediction leaves the label open, and the input is there all the same."""
    model = network([30, 50, 10], "relu", True, 0, torch.float64)
    leak, inputs, _ = sent(model, 1, 30, 10)
    hidden = {name: gradient for name, gradient in leak.gradients.items() if not name.startswith(leak.head)}
    head = {
        f"{leak.head}.{kind}": torch.zeros_like(leak.gradients[f"{leak.head}.{kind}"]) for kind in ("weight", "bias")
    }
    found = trace_fully_connected(Leak(model, hidden | head, leak.head, 1, leak.input_shape))
    assert error(found.inputs, inputs) < 1e-10
    assert found.labels.isnan().all()


def test_a_dead_layer_is_named() -> None:
    model = network([20, 30, 30, 10], "relu", True, 0, torch.float64)
    with torch.no_grad():
        model[3].bias.fill_(-100)
    leak, _, labels = sent(model, 1, 20, 10)
    found = trace_fully_connected(leak, labels)
    assert found.status == "failed"
    assert "layer '3': dead for 1 of 1 samples" in found.reason
    with pytest.warns(GradleakWarning, match="inversion failed: layer '3': dead"):
        assert invert_fully_connected(leak).isnan().all()


def test_a_narrow_layer_is_named_and_gives_mixtures() -> None:
    """δ of two units holds two samples' inputs at most; a bias lets the head see all three."""
    model = nn.Sequential(
        nn.Linear(20, 2, bias=False), nn.Tanh(), nn.Linear(2, 40, bias=False), nn.Tanh(), nn.Linear(40, 30, bias=False)
    ).double()
    leak, inputs, _ = sent(model, 3, 20, 30)
    found = trace_fully_connected(leak)
    assert found.status == "partial", found.reason
    assert "layer '0': its δ has rank 2, for 3 samples" in found.reason
    assert found.inputs.isfinite().all()
    assert error(found.inputs, inputs) > 0.05


def test_wrong_labels_are_told() -> None:
    model = network([48, 96, 64, 20], "relu", False, 3, torch.float64)
    for count in (1, 4):
        leak, _, labels = sent(model, count, 48, 20)
        found = trace_fully_connected(leak, labels.roll(1, dims=1))
        assert found.status == "failed"
        which = "the sample was not" if count == 1 else "none of the 4 samples was"
        assert f"last layer '5': {which} found in" in found.reason


# -------------------------------------------------------------------------------------- changed gradients and weights


def test_a_network_of_one_layer_has_no_other_that_confirms_its_input() -> None:
    """The only layer's bias gives an input whatever was done to it; a label must stand behind it."""
    leak, _, _ = sent(network([48, 10], "relu", True, 0, torch.float32), 1, 48, 10)
    clipped = BROKEN["clipped by tensor"].sent(lambda _: leak, leak.model, torch.Generator().manual_seed(0))
    assert trace_fully_connected(leak).status == "exact"
    assert trace_fully_connected(clipped).status != "exact"
