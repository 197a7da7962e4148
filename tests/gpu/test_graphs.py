"""Replayed CUDA graphs give the same results as the functions that were recorded, on the pretended GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gradleak import devices
from gradleak.labels.soft.batch.span import Span, descended
from tests.pretended import Gpu, Graph, RefusedError, pretended_gpu

State = tuple[Tensor, ...]


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with pretended_gpu() as found:
        yield found


@pytest.fixture
def graphs(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Returns a list to which every graph is added that is recorded."""
    made: list[Graph] = []

    def graph() -> Graph:
        made.append(Graph())
        return made[-1]

    monkeypatch.setattr(torch.get_device_module(gpu.device), "CUDAGraph", graph)
    return made


def drawn(*shape: int, seed: int = 0, device: str = "pretended") -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


def recorded(work: Callable[[], Any]) -> tuple[Graph, Any]:
    module = torch.get_device_module("pretended")
    graph = module.CUDAGraph()
    with module.stream(module.Stream()):
        graph.capture_begin()
        try:
            result = work()
        finally:
            graph.capture_end()
    return graph, result


def test_a_replay_computes_all_again_in_one_launch(gpu: Gpu) -> None:
    at, total = drawn(2, 3), torch.zeros(2, 3, dtype=torch.float64, device=gpu.device)

    def work() -> Tensor:
        total.add_(at)
        rows = at.softmax(dim=1)
        rows[0].mul_(2)  # through a view
        return torch.cat([rows.T, at.new_ones(3, 1)], dim=1)

    graph, result = recorded(work)
    for seed in (1, 2):
        at.copy_(drawn(2, 3, seed=seed))
        before = gpu.operations
        graph.replay()
        assert gpu.operations == before + 1
        expected = drawn(2, 3, seed=seed, device="cpu").softmax(dim=1)
        expected[0] *= 2
        assert torch.equal(result.cpu(), torch.cat([expected.T, torch.ones(3, 1)], dim=1))
    both = drawn(2, 3, seed=1, device="cpu") + drawn(2, 3, seed=2, device="cpu")
    assert torch.equal(total.cpu(), both), "each replay adds once more"


NOT_RECORDED: dict[str, Callable[[], object]] = {
    "a read": lambda: drawn(3).sum().item(),
    "a list": lambda: drawn(3).tolist(),
    "a mask": lambda: drawn(3)[drawn(3) > 0],
    "a draw": lambda: torch.rand(3, device="pretended"),
    "a copy from the CPU": lambda: torch.ones(3).to("pretended"),
    "values from the CPU": lambda: drawn(3).copy_(torch.ones(3)),
}


@pytest.mark.parametrize("what", NOT_RECORDED)
def test_a_recording_refuses(gpu: Gpu, what: str) -> None:
    with pytest.raises(RefusedError):
        recorded(NOT_RECORDED[what])
    module = torch.get_device_module(gpu.device)
    with pytest.raises(RefusedError, match="recording that failed"):
        torch.rand(3, device=gpu.device)
    module.default_generators[0].graphsafe_set_state(module.default_generators[0].clone_state())
    assert NOT_RECORDED[what]() is not None, "the same is computed where nothing is recorded"


def _powers(at: Tensor, which: Tensor) -> State:
    return at.square().sum(dim=1) * which, at**3


def test_a_replayed_function_gives_what_it_gives_itself(graphs: list[Graph]) -> None:
    replayed, which = devices.Replayed(_powers), drawn(3)
    places = [drawn(3, 2, seed=seed) for seed in range(6)]
    found = [replayed(at, which) for at in places]
    assert len(graphs) == 1
    for results, at in zip(found, places, strict=True):
        for result, expected in zip(results, _powers(at, which), strict=True):
            assert torch.equal(result, expected), "a later replay overwrites no earlier result"


def test_other_attacks_are_recorded_anew(graphs: list[Graph]) -> None:
    replayed = devices.Replayed(_powers)
    for count in (4, 3, 2):
        at, which = drawn(count, 2), drawn(count)
        for _ in range(4):
            assert torch.equal(replayed(at, which)[0], _powers(at, which)[0])
    assert len(graphs) == 3


def test_what_reads_is_called_and_not_recorded(graphs: list[Graph]) -> None:
    def reading(at: Tensor, which: Tensor) -> State:
        return (at * float(which.sum()),)

    replayed, which, at = devices.Replayed(reading), drawn(3), drawn(3, 2)
    for _ in range(5):
        assert torch.equal(replayed(at, which)[0], at * which.sum())
    assert not replayed.able
    assert graphs == []


def _swapped(first: Tensor, second: Tensor) -> State:
    """A step in which each result depends on the other argument."""
    return second.flip(0), first[:2] + second.sum()


@pytest.mark.parametrize("times", [0, 1, 4, 5, 12])
def test_repeated_steps_give_what_a_loop_gives(graphs: list[Graph], gpu: Gpu, times: int) -> None:
    state = drawn(2), drawn(2, seed=1)
    first = tuple(one.clone() for one in state)
    expected = state
    for _ in range(times):
        expected = _swapped(*expected)
    before = gpu.operations
    found = devices.repeated(_swapped, state, times)
    launched = gpu.operations - before
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(state, first, strict=True)), "the start is left alone"
    assert len(graphs) == (times > devices.FEW_STEPS)
    if graphs:
        taken = len(gpu_operations(_swapped, state))
        # Two copies to the step's own memory, one step and its two copies back, and a launch for each further step.
        assert launched == 2 + taken + 2 + (times - 1)


def gpu_operations(step: Callable[..., State], state: State) -> list[Any]:
    graph, _ = recorded(lambda: step(*state))
    return [func for func, *_ in graph.operations if not func.is_view]


@pytest.mark.parametrize("fails_at", [1, 2])
def test_steps_that_cannot_be_recorded_are_taken(graphs: list[Graph], fails_at: int) -> None:
    """Trying fails on the first call, and recording, for instance for want of memory, on the second."""
    calls = 0

    def step(at: Tensor) -> State:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (at * 2,)

    found = devices.repeated(step, (drawn(3),), 10)
    assert torch.equal(found[0], drawn(3) * 2**10)
    assert calls == 10 + fails_at


def test_a_recording_that_fails_leaves_stream_and_draws(graphs: list[Graph]) -> None:
    def drawing(at: Tensor) -> State:
        return (at + torch.rand(3, device="pretended"),)

    assert (devices.repeated(drawing, (drawn(3),), 10)[0] > drawn(3)).all()
    assert [graph.broken for graph in graphs] == [True]
    assert torch.get_device_module("pretended").current_stream().name == "usual"
    assert torch.rand(3, device="pretended").cpu().isfinite().all()


def test_a_descent_is_the_same_from_a_graph(gpu: Gpu) -> None:
    """Levenberg-Marquardt steps on the GPU, replayed, end to the last bit where the CPU's end."""
    span = [drawn(6, 2, device="cpu"), drawn(6, 2, seed=1, device="cpu"), drawn(2, seed=2, device="cpu")]
    span[0] = torch.linalg.qr(span[0])[0]
    rest = torch.eye(6, dtype=torch.float64)[:5], torch.full((5, 6), 1 / 6, dtype=torch.float64)
    starts, shares = drawn(5, 2, seed=3, device="cpu"), torch.full((5,), 0.2, dtype=torch.float64)

    def ends(device: str) -> State:
        errors, logits, mean = (one.to(device) for one in span)
        own = Span(errors, logits, mean, torch.ones(6, dtype=torch.float64, device=device))
        base, step = (one.to(device) for one in rest)
        return descended(own, base, step - base, starts.to(device), shares.to(device), 1, 20)

    before = gpu.operations
    found = ends("pretended")
    assert gpu.operations - before < 200, "twenty steps of some fifty operations"
    for one, other in zip(found, ends("cpu"), strict=True):
        assert torch.equal(one.cpu(), other)
