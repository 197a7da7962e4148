"""Peeling: whole batches out of residual networks, exact where it says so, and stopped where the count says so."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import models
from gradleak.images import Peeled, peel, peeling_counts
from gradleak.images.peeling.network import Network, Step
from gradleak.images.peeling.sweep import Sweep
from gradleak.leak import Leak, observe
from tests.images.matching.attacked import noisy

CLASSES, SIDE = 20, 8


class Block(nn.Module):
    """A residual block; `stride` 2 takes every second pixel, its shortcut too."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


def small(*, width: int = 32, pool: bool = False, seed: int = 0) -> nn.Sequential:
    """Return a residual network of few channels, its batch norms away from where they start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(2) if pool else nn.Identity(), Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES, bias=False),
        )  # fmt: skip
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0, 0.2)
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 1.5)
    return network.eval()


def sent(model: nn.Module, size: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Leak]:
    """Return a batch of random inputs and the leak of its gradient."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
    labels = torch.randperm(CLASSES, generator=generator)[:size]
    return inputs, observe(model.to(dtype), inputs.to(dtype), labels)


def off(found: Peeled, inputs: Tensor) -> Tensor:
    """Return each true input's distance to the nearest that was found, root mean square."""
    return torch.cdist(inputs.flatten(1), found.images.flatten(1)).amin(dim=1) / inputs[0].numel() ** 0.5


@pytest.mark.parametrize(
    ("size", "dtype", "exact"), [(1, torch.float32, 1e-4), (3, torch.float32, 1e-4), (3, torch.float64, 1e-11)]
)
def test_a_batch_comes_out_of_a_small_residual_network(size: int, dtype: torch.dtype, exact: float) -> None:
    inputs, leak = sent(small(width=48, seed=1), size, dtype)
    found = peel(leak)
    assert found.status == "unique", found.reason
    error = off(found, inputs)
    assert float(error.max()) < exact
    # The claim bounds each error, and is no more than the rounding calls for.
    assert bool((found.relative > error / inputs.flatten(1).square().mean(dim=1).sqrt()).all())
    assert float(found.errors.mean() / error.mean()) < 20
    assert all(not layer.reason for layer in found.layers)
    assert found.residual < 100 * exact


class Picked(Block):
    """The same with a shortcut that takes every second pixel as it is, and zeros for the channels it lacks."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.conv2.out_channels - self.conv1.in_channels))
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + short)


def joined(seed: int) -> nn.Sequential:
    """Return a network with a joint of which the layer below has as many equations as unknowns, and no more."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), Picked(8, 16, 2), nn.Conv2d(16, 40, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, CLASSES, bias=False),
        ).eval()  # fmt: skip


def capped() -> nn.Module:
    model = small(width=48, seed=1)
    model[2] = nn.ReLU6()
    return model


def leaky() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(16, 64, 5, stride=2, padding=2), nn.LeakyReLU(0.1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES, bias=False),
    )  # fmt: skip


def smooth() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(24 * 16, 40), nn.Sigmoid(),
        nn.Linear(40, CLASSES, bias=False),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("build", "size", "dtype"),
    [
        (capped, 2, torch.float32),
        (leaky, 2, torch.float64),
        (smooth, 1, torch.float64),
    ],
    ids=["ReLU with a ceiling", "two slopes and a stride", "smooth activations before Linear layers"],
)
def test_other_operations_are_peeled_too(build: Callable[[], nn.Module], size: int, dtype: torch.dtype) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs, leak = sent(build(), size, dtype)
    found = peel(leak)
    assert found.status == "unique", found.reason
    assert float(off(found, inputs).max()) < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_a_joint_shows_what_the_count_leaves_open(seed: int) -> None:
    inputs, leak = sent(model := joined(seed), 1, torch.float32)
    count = next(one for one in peeling_counts(model, (3, SIDE, SIDE), 1) if one.reason)
    assert (count.name, count.equations, count.unknowns) == ("2.conv1", 16, 16)
    assert count.reason == "16 equations for 16 unknowns in each channel, without the entries that residual sums give"
    found = peel(leak)
    layer = next(one for one in found.layers if one.name == "2.conv1")
    assert not layer.reason
    assert layer.found is not None
    true = model[1](model[0](inputs.float())).detach().double()
    error = float((layer.found - true).norm() / true.norm())
    assert error < 1e-4
    assert 0.1 < (layer.claimed or 0) / error < 10


@pytest.mark.parametrize(("loudness", "status"), [(1e-3, "unique"), (1e-5, "found")])
def test_an_image_that_is_not_known_well_is_not_called_unique(loudness: float, status: str) -> None:
    model = small(width=48)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model[0] = nn.Conv2d(3, 48, 1, bias=False)
    with torch.no_grad():
        # One colour hardly enters the map that is matched.
        model[0].weight[:, 2] *= loudness
    inputs, leak = sent(model, 1, torch.float32)
    assert peeling_counts(model, (3, SIDE, SIDE), 1)[-1].reason == "48 equations for 64 unknowns in each channel"
    found = peel(leak)
    assert found.status == status, found.reason
    assert found.matched == "_2"
    assert 0.1 < float(found.errors / off(found, inputs)) < 10
    if status == "found":
        assert found.reason == "an image is known to 2e-02 only"


def test_the_count_says_beforehand_who_gives_up() -> None:
    twenty = peeling_counts(models.build("resnet20", classes=CLASSES), (3, 32, 32), 2)
    assert twenty[0].reason == "128 output positions (B = 2), but only 64 channels"
    eighteen = peeling_counts(models.build("resnet18-cifar", classes=CLASSES), (3, 32, 32), 4)
    stops = next(count for count in eighteen if count.reason)
    assert stops.name == "body.layer2.0.conv1+body.layer2.0.downsample.0"
    fifty = peeling_counts(models.build("resnet50-cifar", classes=CLASSES), (3, 32, 32), 1)
    assert "do not overlap" in fifty[0].reason
    # With a stride, positions of odd rows and columns have four of nine offsets, of even ones a single one.
    layer = next(count for count in eighteen if count.name.startswith("body.layer4.0.conv1"))
    assert (layer.equations, layer.unknowns) == (1024, 4 * 16)


def test_a_pool_is_named_that_cannot_be_walked_back() -> None:
    _, leak = sent(small(pool=True), 1, torch.float64)
    stops = next(count for count in peeling_counts(leak.model, (3, SIDE, SIDE), 1) if count.reason)
    assert stops.reason == "MaxPool2d '3' cannot be walked back"
    found = peel(leak, steps=50)
    # What the pool gave out is known. What it took in is searched, and said not to be found.
    assert found.layers[-1].name == "4.conv1+4.shortcut"
    assert not found.layers[-1].reason
    assert found.matched == "_3"
    assert found.status == "failed"
    assert found.reason == "the final search for the image did not reproduce the maps at '_3'"
    assert bool(found.images.isnan().all())
    assert found.errors.tolist() == [float("inf")]


def test_another_gradient_is_never_called_unique() -> None:
    _, leak = sent(small(), 1, torch.float32)
    assert peel(noisy(leak, 1e-5, torch.Generator().manual_seed(0)), steps=50).status != "unique"


def test_a_factor_on_the_gradient_is_found() -> None:
    inputs, leak = sent(small(width=48, seed=1), 1, torch.float32)
    clipped = replace(leak, gradients={name: value * 0.3 for name, value in leak.gradients.items()})
    assert peel(clipped, steps=1).status == "failed"
    found = peel(clipped, scale=None)
    assert found.status == "unique", found.reason
    assert float(off(found, inputs).max()) < 1e-4


def test_weak_noise_leaves_what_its_claimed_error_says() -> None:
    inputs, leak = sent(small(width=48, seed=1), 1, torch.float64)
    found = peel(noisy(leak, 1e-9, torch.Generator().manual_seed(0)), noise=1e-9)
    error = off(found, inputs)
    assert 1e-10 < float(error) < 1e-2
    assert 0.1 < float(found.errors / error) < 10


def test_every_sample_has_an_error_of_its_own() -> None:
    rest, dtype, lost = 1e-2, torch.float32, []
    for seed in range(5):
        model = small(width=48, seed=1).double()
        inputs, _ = sent(model, 2, torch.float64, seed)
        last = model[-1]
        with torch.no_grad():
            features = model[:-1](inputs)
            own, other = features
            apart = own - (own @ other) / (other @ other) * other
            # The network is sure of the first sample's class, and knows as little of the second's as before.
            sure = torch.logsumexp(last(own)[1:], 0) - last(own)[0] - math.log(rest)
            last.weight[0] += sure * apart / (apart @ own)
        found = peel(observe(model.to(dtype), inputs.to(dtype), torch.tensor([0, 1])))
        assert found.status == "unique", found.reason
        distances = torch.cdist(inputs.flatten(1), found.images.flatten(1))
        claimed = found.relative[distances.argmin(dim=1)] * inputs.flatten(1).norm(dim=1) / inputs[0].numel() ** 0.5
        error = distances.amin(dim=1) / inputs[0].numel() ** 0.5
        assert bool((claimed > error).all())
        # The bound takes the weight's longest row, here that of the class of which the network was made sure.
        assert float(claimed[0] / error[0]) < 2000
        assert float(claimed[1] / error[1]) < 200
        lost.append(float(error[0] / error[1]))
    # The sure one's digits are gone, the other's are not. Both are rounding errors, so it is said of several batches.
    assert median(lost) > 0.01 / rest


# ----------------------------------------------------------------------------------------- slopes that are read wrong
WRONG = (0, 3, 2, 1)


class Misread(Sweep):
    """A sweep that reads one unit of an activation wrong; `read`: its slopes before that."""

    def __init__(self, *given: object, at: str) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.at, self.read = at, torch.zeros(0)

    def _visit(self, step: Step) -> None:
        super()._visit(step)
        if step.name == self.at:
            self.read = self.slopes[step.name].clone()
            low, high = self.read.min(), self.read.max()
            self.slopes[step.name][WRONG] = low if self.read[WRONG] == high else high


def _network(activation: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), activation, nn.Conv2d(16, 24, 3, padding=1), copy.copy(activation),
            nn.Flatten(), nn.Linear(24 * 16, 12, bias=False),
        ).double()  # fmt: skip


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(0.05)])
def test_a_unit_read_wrong_is_set_right_at_either_slope(activation: nn.Module) -> None:
    model = _network(activation)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    leak = observe(model, inputs, torch.tensor([1, 5]))
    network = Network(model, (3, 4, 4))
    with torch.no_grad():
        features = network.values_at(["_4"], inputs)["_4"]
        errors = model(inputs).softmax(dim=1) - F.one_hot(torch.tensor([1, 5]), 12)
        sweep = Misread(network, leak, features, errors, errors.new_zeros(2), 1e-16, at="_3")
        sweep.run()
    torch.testing.assert_close(sweep.slopes["_3"], sweep.read)
    torch.testing.assert_close(sweep.values["input_1"].value, inputs, atol=1e-8, rtol=0)
