"""The pretended GPU refuses what a GPU refuses, lets through what it lets through, and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from gradleak import devices
from tests.pretended import Gpu, RefusedError, pretended_gpu


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with pretended_gpu() as found:
        yield found


def there(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to("pretended")


REFUSED: dict[str, Callable[[], object]] = {
    "two devices": lambda: there(3, 4) + torch.ones(4),
    "two devices in a product": lambda: there(3, 4) @ torch.ones(4, 2),
    "two devices side by side": lambda: torch.cat([there(2), torch.ones(2)]),
    "a layer on the CPU": lambda: nn.Linear(4, 2)(there(3, 4)),
    "a CPU generator": lambda: torch.randn(3, device="pretended", generator=torch.Generator()),
    "a CPU generator in place": lambda: there(3).normal_(generator=torch.Generator()),
    "a CPU tensor by GPU indices": lambda: torch.ones(4)[torch.tensor([0, 1]).to("pretended")],
    "a CPU tensor by a GPU mask": lambda: torch.ones(4)[there(4) > 2],
    "values from the CPU": lambda: there(4).index_put_((torch.tensor([0, 1]),), torch.ones(2)),
    "least squares": lambda: torch.linalg.lstsq(there(3, 2), there(3, 1)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(gpu: Gpu, what: str) -> None:
    with pytest.raises(RefusedError):
        REFUSED[what]()


def test_what_is_drawn_there_is_not_what_is_drawn_on_the_cpu(gpu: Gpu) -> None:
    """So a page that draws on its device gives other rows there, and its test fails."""
    torch.manual_seed(0)
    here = torch.rand(4)
    torch.manual_seed(0)
    assert not torch.equal(torch.rand(4, device=gpu.device).cpu(), here)
    own = torch.rand(4, device=gpu.device, generator=torch.Generator(gpu.device).manual_seed(0)).cpu()
    assert not torch.equal(own, torch.rand(4, generator=torch.Generator().manual_seed(0)))


def test_recurrent_layers_have_no_gradient_in_eval_mode(gpu: Gpu) -> None:
    layer, inputs = nn.LSTM(3, 4).to(gpu.device), there(5, 1, 3)
    layer.train()(inputs)
    with torch.no_grad():
        layer.eval()(inputs)
    with pytest.raises(RefusedError, match="training mode"):
        layer(inputs)


def test_it_counts_operations_but_no_views(gpu: Gpu) -> None:
    matrix = there(4, 4)
    before = gpu.operations
    matrix.mT[1:].unsqueeze(0).detach()
    assert gpu.operations == before
    torch.empty_like(matrix)
    assert gpu.operations == before
    (matrix @ matrix + 1).sum()
    assert gpu.operations == before + 3
    torch.ones(3) + 1  # on the CPU
    assert gpu.operations == before + 3


@pytest.mark.parametrize(
    ("read", "count"),
    [
        (lambda value: value.sum().item(), 1),
        (lambda value: bool((value > 0).all()), 1),
        (lambda value: value.cpu(), 1),
        (lambda value: value.tolist(), 1),
        (lambda value: value[value > 0], 1),
        (lambda value: (value > 0).nonzero(), 1),
        (lambda value: value.unique(), 1),
        (lambda value: torch.equal(value, value), 1),
        (lambda value: torch.ones(2, 2).copy_(value), 1),
        (lambda value: value.where(value > 0, 0), 0),
        (lambda value: value[torch.tensor([0])], 0),
        (lambda value: value.to(torch.float64), 0),
    ],
)
def test_it_counts_reads(gpu: Gpu, read: Callable[[Tensor], object], count: int) -> None:
    value = there(2, 2)
    before = gpu.reads
    read(value)
    assert gpu.reads == before + count


def test_it_says_how_much_memory_is_free() -> None:
    with pretended_gpu() as gpu:
        assert devices.entries_at_once(gpu.device, 1000) == 1000, "none, by default: chunks as on a CPU"
    with pretended_gpu(memory=8_000_000) as gpu:
        assert devices.entries_at_once(gpu.device, 1000) == 400_000


def test_the_end_of_the_block_is_the_end_of_the_gpu() -> None:
    generator, inference = torch.Generator, torch.inference_mode
    with pretended_gpu():
        assert torch.Generator is not generator
    assert (torch.Generator, torch.inference_mode) == (generator, inference)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones(2, device="pretended") + 1


def test_random_numbers_of_the_process_are_put_back_though_the_gpu_is_registered() -> None:
    torch.manual_seed(0)
    with torch.random.fork_rng():
        torch.rand(1)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), expected)
