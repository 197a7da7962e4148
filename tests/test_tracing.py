"""A recorded list of operations gives the function's own results to the last bit, or there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradleak import devices, observe
from gradleak.images import Adam, match
from gradleak.tracing import traced

Results = tuple[Tensor, ...]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _slope(at: Tensor) -> Results:
    own = at.detach().requires_grad_()
    with torch.enable_grad():
        loss = (own.tanh() * torch.arange(1.0, 4.0).sqrt()).square().sum()
        return loss.detach(), *torch.autograd.grad(loss, [own])


def _summed(at: Tensor) -> Results:
    # Operations change a value in place that depends on no operand, a view of it, and what is computed from it.
    total = torch.arange(3.0).mul(2)
    twice = total.view(3, 1)
    twice += at.sum()
    return total, twice * 2, (total + 1).add_(at)


@pytest.mark.parametrize("function", [_slope, _summed])
def test_a_recording_gives_the_same_bits_each_time(function: Callable[[Tensor], Results]) -> None:
    replay = traced(function, [drawn(3)])
    assert replay is not None
    for seed in range(4):
        at = drawn(3, seed=seed)
        results = replay(at)
        assert all(map(torch.equal, results, function(at)))
        results[0].add_(1)


def test_what_depends_on_no_operand_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx import experimental

    modules, make = [], experimental.proxy_tensor.make_fx

    def kept(function: Callable[..., Results]) -> Callable[..., torch.fx.GraphModule]:
        return lambda *given: modules.append(make(function)(*given)) or modules[-1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(experimental.proxy_tensor, "make_fx", kept)
    assert traced(_slope, [drawn(3)]) is not None
    names = {str(node.target) for node in modules[0].graph.nodes if node.op == "call_function"}
    assert "aten.tanh.default" in names
    assert not names & {"aten.arange.start", "aten.sqrt.default"}


def test_what_cannot_be_repeated_is_not_recorded() -> None:
    count = 0

    def counted(at: Tensor) -> Results:
        nonlocal count
        count += 1
        return (at * count,)

    def decided(at: Tensor) -> Results:
        return (at if at.sum() > 0 else -at,)

    def outside(at: Tensor) -> Results:
        return (at + torch.from_numpy(at.numpy() ** 2),)

    def random(at: Tensor) -> Results:
        return (at + torch.rand(3),)

    for function in (counted, decided, outside, random):
        assert traced(function, [drawn(3)]) is None


class Counted(nn.Module):
    """A network that counts how often it and its copies are called."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        Counted.calls += 1
        logits: Tensor = self.last(self.body(inputs[:, 0]))
        return logits


class Convolutional(Counted):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten())
        self.last = nn.Linear(64, 3)


class Recurrent(Counted):
    """A network whose second derivative cannot be recorded on a CPU, since torch does not describe its results."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def body(self, inputs: Tensor) -> Tensor:
        last: Tensor = self.cells(inputs)[0][:, -1]
        return last


@pytest.mark.parametrize(("network", "count", "recorded"), [(Convolutional, 2, True), (Recurrent, 1, False)])
def test_a_search_finds_the_same_with_a_recording(
    monkeypatch: pytest.MonkeyPatch, network: Callable[[], nn.Module], count: int, recorded: bool
) -> None:
    torch.manual_seed(0)
    model, labels = network(), torch.tensor([0, 2])[:count]
    leaks = [observe(model, drawn(1, 1, 6, 6, seed=n), labels[n : n + 1]) for n in range(count)]
    found, calls = [], []
    for most in (1000, 5):
        monkeypatch.setattr(devices, "ALONE", most)
        monkeypatch.setattr(devices, "TOGETHER", most)
        Counted.calls = 0
        found.append(match(leaks, labels, optimizer=Adam(steps=20), seed=1))
        calls.append(Counted.calls)
    if recorded:
        assert calls[1] < calls[0], "the network's code runs only until it is recorded"
    assert torch.equal(found[0].images, found[1].images)
    assert torch.equal(found[0].losses, found[1].losses)
