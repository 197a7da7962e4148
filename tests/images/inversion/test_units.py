"""Samples that single units show: what is guaranteed is right, and mixtures that agree are not guaranteed."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from gradleak import defenses, observe
from gradleak.errors import InputError
from gradleak.hunting import BROKEN
from gradleak.images import Units, bias_attack, invert_units
from gradleak.images.inversion import units
from gradleak.leak import Leak
from gradleak.losses import Focal

Build = Callable[[], nn.Module]


def mlp(widths: tuple[int, ...] = (12, 80, 5), activation: Build = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def batch(build: Build, count: int, *shape: int, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network in float64, and a batch of one class after the other."""
    torch.manual_seed(seed)
    model = build().double()
    inputs = torch.randn(count, *shape, dtype=torch.float64)
    return model, inputs, torch.arange(count) % len(model(inputs)[0])


def nearest(found: Units, inputs: Tensor) -> Tensor:
    """Return the relative error (M,) of each quotient as its nearest sample."""
    rows, truth = found.inputs.flatten(1), inputs.flatten(1)
    return ((rows[:, None] - truth).norm(dim=2) / truth.norm(dim=1)).amin(dim=1)


def updated(model: nn.Module, inputs: Tensor, labels: Tensor, rate: float, epochs: int, parts: int = 1) -> Leak:
    after = copy.deepcopy(model)
    optimiser = torch.optim.SGD(after.parameters(), rate)
    for _ in range(epochs):
        for own, target in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(after(own), target).backward()
            optimiser.step()
    return Leak.from_update(
        model, model.state_dict(), after.state_dict(), rate=rate, batch_size=len(inputs) // parts,
        local_steps=epochs * parts,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [2, 5])
def test_samples_are_shown_and_guaranteed_without_labels(dtype: torch.dtype, count: int) -> None:
    shown, sure = 0, 0
    for seed in range(4):
        model, inputs, labels = batch(mlp, count, 12, seed=seed)
        found = invert_units(observe(model.to(dtype), inputs.to(dtype), labels))
        errors = nearest(found, inputs.to(dtype).double())
        right = errors < 1e-2
        assert (errors[found.guaranteed] <= found.claimed).all()
        assert found.guaranteed.tolist() == sorted(found.guaranteed.tolist(), reverse=True)
        shown, sure = shown + int(right.sum()), sure + int(found.guaranteed.sum())
        assert (found.status == "exact") == (found.reason == "")
        if found.status == "exact":
            assert len(found.inputs) == count
            assert found.guaranteed.all()
            assert sorted(found.labels.tolist()) == sorted(labels.tolist())
    assert shown >= 2 * count
    assert sure >= 0.9 * shown


def test_a_single_sample_needs_no_relu() -> None:
    for activation in (nn.ReLU, nn.GELU, nn.Sigmoid):
        model, inputs, labels = batch(lambda kind=activation: mlp(activation=kind), 1, 12)  # type: ignore[misc]
        found = invert_units(observe(model, inputs, labels))
        assert found.status == "exact"
        assert nearest(found, inputs).max() < 1e-12
        changed = BROKEN["clipped by tensor"].sent(
            lambda own, x=inputs, y=labels: observe(own, x, y), model, torch.Generator().manual_seed(0)  # type: ignore[misc]
        )  # fmt: skip
        assert not invert_units(changed).guaranteed.any()


def test_a_frozen_last_layer_leaves_a_single_sample_without_a_guarantee() -> None:
    model, inputs, labels = batch(lambda: mlp((12, 80, 40, 5)), 1, 12)
    model[-1].weight.requires_grad_(False)
    found = invert_units(observe(model, inputs, labels), precision="bf16")
    assert (found.status, found.guaranteed.tolist()) == ("partial", [False])
    assert found.reason == "the last layer cannot confirm it: '4.weight' is frozen"
    assert nearest(found, inputs) < 1e-9


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.GELU, lambda: nn.LeakyReLU(0.1)])
def test_units_that_are_never_silent_mix_all_samples(activation: Build) -> None:
    model, inputs, labels = batch(lambda: mlp(activation=activation), 3, 12)
    found = invert_units(observe(model, inputs, labels))
    assert found.status == "partial"
    assert not found.guaranteed.any()
    assert "no unit of the first layer is ever silent" in found.reason


class Bottleneck(nn.Sequential):
    """A network whose second layer has one unit, so the errors of all samples are proportional."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 80), nn.ReLU(), nn.Linear(80, 1), nn.Linear(1, 5))


class Alike(nn.Sequential):
    """A network whose units are equal in pairs."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 80), nn.ReLU(), nn.Linear(80, 5))
        with torch.no_grad():
            for value in (self[0].weight, self[0].bias, self[2].weight.T):
                value[40:] = value[:40]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "build", [lambda: mlp((12, 80, 2)), Bottleneck, Alike], ids=["two classes", "one unit", "alike"]
)
def test_mixtures_that_agree_are_not_guaranteed(build: Build, dtype: torch.dtype) -> None:
    agreeing = 0
    for seed in range(6):
        model, inputs, labels = batch(build, 6, 12, seed=seed)
        found = invert_units(observe(model.to(dtype), inputs.to(dtype), labels))
        errors = nearest(found, inputs.to(dtype).double())
        agreeing += int(((errors > 0.1) & (found.shown_by > 1)).sum())
        assert (errors[found.guaranteed] <= found.claimed).all()
    assert agreeing >= 10


def test_the_tests_that_refuse_mixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    """By agreement alone, mixtures would be guaranteed."""
    monkeypatch.setattr(units._Fit, "passed", True)
    monkeypatch.setattr(units, "NOTICED", math.inf)
    monkeypatch.setattr(units, "_sure", lambda layer, group, *_: len(group.units) > 1)
    model, inputs, labels = batch(Bottleneck, 6, 12)
    found = invert_units(observe(model, inputs, labels))
    assert (nearest(found, inputs)[found.guaranteed] > 0.1).any()


def test_samples_with_one_pattern_are_one_mixture() -> None:
    """Every unit is active for all samples: the quotients agree for two classes, and are no sample."""
    model, inputs, labels = batch(lambda: mlp((12, 40, 2)), 4, 12)
    with torch.no_grad():
        model.get_parameter("0.bias").fill_(30)
    found = invert_units(observe(model, inputs, labels))
    assert len(found.inputs) == 1
    assert not found.guaranteed.any()


def test_equal_samples_and_saturated_predictions() -> None:
    for scale in (1.0, 1e2):
        for seed in range(4):
            model, inputs, labels = batch(mlp, 6, 12, seed=seed)
            inputs[1], labels[1] = inputs[0], labels[0]
            with torch.no_grad():
                model.get_parameter("2.weight").mul_(scale)
            found = invert_units(observe(model, inputs, labels))
            assert (nearest(found, inputs)[found.guaranteed] <= found.claimed).all()


class Positions(nn.Module):
    """A network whose first layer is applied to four positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 30), nn.Linear(30, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.last(self.first(x.view(len(x), 4, 12)).relu().mean(dim=1))
        return logits


class Constants(nn.Module):
    """A network that normalises its inputs by constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 80), nn.Linear(80, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.last(self.first((x.flatten(1) - 0.3) / 0.2).relu())
        return logits


class Normalised(Constants):
    """A network that normalises each sample by itself."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.last(self.first(x / (1 + x.norm(dim=1, keepdim=True))).relu())
        return logits


def test_what_stands_before_the_first_layer() -> None:
    model, inputs, labels = batch(Constants, 3, 3, 4)
    found = invert_units(observe(model, inputs, labels))
    assert found.guaranteed.any()
    assert found.inputs.shape[1:] == (3, 4)
    assert nearest(found, inputs)[found.guaranteed].max() < 1e-9
    model, inputs, labels = batch(Normalised, 3, 12)
    found = invert_units(observe(model, inputs, labels))
    assert not found.guaranteed.any()
    assert "which the network computes from its own" in found.reason
    model, inputs, labels = batch(Positions, 3, 48)
    with pytest.raises(InputError, match="'first' does not see the whole input"):
        invert_units(observe(model, inputs, labels))


def test_a_convolution_with_one_position() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 60, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(60, 5))

    model, inputs, labels = batch(build, 3, 2, 4, 4)
    found = invert_units(observe(model, inputs, labels))
    assert found.guaranteed.any()
    assert nearest(found, inputs)[found.guaranteed].max() < 1e-9


@pytest.mark.parametrize("parts", [1, 2])
def test_updates_of_several_local_steps(parts: int) -> None:
    sure = 0
    for seed in range(4):
        model, inputs, labels = batch(lambda: mlp((12, 120, 8)), 4, 12, seed=seed)
        found = invert_units(updated(model, inputs, labels, 1e-3, 2, parts))
        errors = nearest(found, inputs)
        assert (errors[found.guaranteed] <= found.claimed).all()
        assert (errors < 1e-6).any()
        sure += int(found.guaranteed.sum())
        blurred = invert_units(updated(model, inputs, labels, 1.0, 2, parts))
        assert not blurred.guaranteed.any()
    assert sure >= 4


def test_the_steps_of_a_single_output_are_simulated() -> None:
    # A few samples fit their labels. None would, if the output that was added moved along with the other one.
    found = []
    for seed in range(10):
        torch.manual_seed(seed)
        model = mlp((12, 64, 1)).double()
        inputs, labels = torch.randn(4, 12).double(), torch.randint(2, (4,))
        shown = invert_units(observe(model, inputs, labels, local_steps=2, rate=0.1))
        near = torch.cdist(shown.inputs, inputs)
        fit = (shown.labels >= 0) & (near.amin(dim=1) < 1e-6)
        found += (shown.labels == labels[near.argmin(dim=1)])[fit].tolist()
        assert not shown.guaranteed.any()
    assert found
    assert all(found)


def rows_apart(layer: nn.Module) -> nn.Module:
    return parametrizations.weight_norm(layer)


def as_a_whole(layer: nn.Module) -> nn.Module:
    return parametrizations.weight_norm(layer, dim=None)


def by_hooks(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch replaces this form by parametrisations
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize("norm", [rows_apart, as_a_whole, by_hooks])
def test_weight_norm_of_the_first_layer_changes_nothing(norm: Callable[[nn.Module], nn.Module]) -> None:
    model, inputs, labels = batch(mlp, 3, 12)
    norm(model[0])
    with torch.no_grad():
        for name, value in model.named_parameters():
            value *= 1.3 if name.endswith(("0", "g")) else 0.7
    leak = observe(model, inputs, labels)
    found = invert_units(leak)
    assert found.status == "exact"
    assert (nearest(found, inputs) < 1e-9).all()
    assert nearest(invert_units(observe(model, inputs[:1], labels[:1])), inputs[:1]) < 1e-9
    assert bias_attack(leak).shape == (80, 12)
    with pytest.raises(InputError, match="computed from other parameters"):
        invert_units(leak, noise=0.1)


def test_steps_that_cannot_be_simulated_guarantee_nothing() -> None:
    model, inputs, labels = batch(mlp, 4, 12)
    leak = updated(model, inputs, labels, 1e-3, 17)
    assert "at most 16 local steps" in invert_units(leak).reason
    leak = Leak(leak.model, leak.gradients, leak.head, 4, (12,), 2)
    assert "the learning rate of the local steps is not known" in invert_units(leak).reason
    assert "this is Focal" in invert_units(observe(model, inputs, labels), loss=Focal()).reason


@pytest.mark.parametrize("broken", [name for name in BROKEN if BROKEN[name].changed is not None])
def test_nothing_wrong_is_guaranteed_of_a_changed_gradient(broken: str) -> None:
    for seed in range(3):
        model, inputs, labels = batch(mlp, 4, 12, seed=seed)
        inputs = inputs.abs()
        leak = BROKEN[broken].sent(
            lambda own, x=inputs, y=labels: observe(own, x, y), model, torch.Generator().manual_seed(seed)  # type: ignore[misc]
        )  # fmt: skip
        found = invert_units(leak)
        assert (nearest(found, inputs)[found.guaranteed] <= 1e-2).all()


@pytest.mark.parametrize("defense", [defenses.quantize(8), defenses.prune(0.5), defenses.sign()])
def test_defences_leave_no_guarantee(defense: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    model, inputs, labels = batch(mlp, 3, 12)
    assert not invert_units(observe(model, inputs, labels, defense=defense)).guaranteed.any()


def test_a_coarse_precision_leaves_no_guarantee() -> None:
    model, inputs, labels = batch(mlp, 3, 12)
    leak = observe(model.float(), inputs.float(), labels, precision="bf16")
    assert "rounded more coarsely" in invert_units(leak, precision="bf16").reason
    assert not invert_units(leak).guaranteed.any()


def test_a_dead_layer_shows_nothing() -> None:
    model, inputs, labels = batch(mlp, 3, 12)
    with torch.no_grad():
        model.get_parameter("0.bias").fill_(-100)
    found = invert_units(observe(model, inputs, labels))
    assert (found.status, len(found.inputs)) == ("failed", 0)


class Gated(nn.Module):
    """A network whose first layer is declared after another, behind a factor that is a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.later, self.gate, self.head = nn.Linear(12, 40), nn.Linear(12, 12), nn.Linear(40, 5)
        self.factor = nn.Parameter(torch.linspace(1, 2, 12))

    def forward(self, inputs: Tensor) -> Tensor:
        scaled = inputs * self.factor
        hidden: Tensor = self.head(self.later(scaled * self.gate(scaled).sigmoid()).relu())
        return hidden


def test_the_first_layer_is_the_one_that_runs_first() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1, 12)
    found = invert_units(observe(Gated(), inputs, torch.tensor([3])))
    assert found.status == "exact"
    torch.testing.assert_close(found.inputs.float(), inputs)
