"""Replayed CUDA graphs give the same results as the functions that were recorded, on the pretended GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradleak import devices
from tests.pretended import Graph, pretended_gpu

State = tuple[Tensor, ...]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Graph]]:
    """Yield a list to which every graph is added that is recorded."""
    made: list[Graph] = []

    def graph() -> Graph:
        made.append(Graph())
        return made[-1]

    with pretended_gpu() as gpu:
        monkeypatch.setattr(torch.get_device_module(gpu.device), "CUDAGraph", graph)
        yield made


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to("pretended")


def _powers(at: Tensor, which: Tensor) -> State:
    return at.square().sum(dim=1) * which, at**3


def test_a_replayed_function_gives_its_own_results(graphs: list[Graph]) -> None:
    replayed = devices.Replayed(_powers)
    for number, count in enumerate((4, 3, 2), 1):
        which, places = drawn(count), [drawn(count, 2, seed=seed) for seed in range(5)]
        found = [replayed(at, which) for at in places]
        assert len(graphs) == number, "other attacks are recorded anew"
        for results, at in zip(found, places, strict=True):
            for result, expected in zip(results, _powers(at, which), strict=True):
                assert torch.equal(result, expected), "a later replay overwrites no earlier result"


def test_a_function_that_reads_is_called_and_not_recorded(graphs: list[Graph]) -> None:
    replayed, which, at = devices.Replayed(lambda at, which: (at * float(which.sum()),)), drawn(3), drawn(3, 2)
    for _ in range(5):
        assert torch.equal(replayed(at, which)[0], at * which.sum())
    assert not replayed.able
    assert graphs == []


@pytest.mark.parametrize("times", [0, 4, 5, 12])
def test_repeated_steps_give_what_a_loop_gives(graphs: list[Graph], times: int) -> None:
    def swapped(first: Tensor, second: Tensor) -> State:
        return second.flip(0), first[:2] + second.sum()

    state = expected = drawn(2), drawn(2, seed=1)
    for _ in range(times):
        expected = swapped(*expected)
    found = devices.repeated(swapped, state, times)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(state[0], drawn(2)), "the start is left alone"
    assert len(graphs) == (times > devices.FEW_STEPS)


def test_a_recording_that_fails_leaves_stream_and_draws(graphs: list[Graph]) -> None:
    def drawing(at: Tensor) -> State:
        return (at + torch.rand(3, device="pretended"),)

    assert (devices.repeated(drawing, (drawn(3),), 10)[0] > drawn(3)).all()
    assert [graph.broken for graph in graphs] == [True]
    assert torch.get_device_module("pretended").current_stream().name == "usual"
    assert torch.rand(3, device="pretended").cpu().isfinite().all()
