"""The pretended GPU refuses what a GPU refuses, and counts operations and reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

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
    "a layer on the CPU": lambda: nn.Linear(4, 2)(there(3, 4)),
    "a CPU generator": lambda: torch.randn(3, device="pretended", generator=torch.Generator()),
    "a CPU tensor by GPU indices": lambda: torch.ones(4)[torch.tensor([0, 1]).to("pretended")],
    "values from the CPU": lambda: there(4).index_put_((torch.tensor([0, 1]),), torch.ones(2)),
    "least squares": lambda: torch.linalg.lstsq(there(3, 2), there(3, 1)),
    "gradients of a recurrent layer in eval mode": lambda: nn.LSTM(3, 4).to("pretended").eval()(there(5, 1, 3)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(gpu: Gpu, what: str) -> None:
    with pytest.raises(RefusedError):
        REFUSED[what]()


def test_a_draw_gives_other_numbers_than_on_the_cpu(gpu: Gpu) -> None:
    """So a page that draws on its device gives other rows there, and its test fails."""
    generators = torch.Generator(gpu.device).manual_seed(0), torch.Generator().manual_seed(0)
    own, here = torch.rand(4, device=gpu.device, generator=generators[0]), torch.rand(4, generator=generators[1])
    assert not torch.equal(own.cpu(), here)


@pytest.mark.parametrize(
    ("work", "operations", "reads"),
    [
        (lambda value: value.mT[1:].unsqueeze(0).detach(), 0, 0),
        (lambda value: (value @ value + 1).sum(), 3, 0),
        (lambda value: value.cpu(), 1, 1),
        (lambda value: bool((value > 0).all()), 2, 1),
        (lambda value: value[value > 0], 2, 1),
        (lambda value: value.where(value > 0, 0), 3, 0),
    ],
)
def test_it_counts(gpu: Gpu, work: Callable[[Tensor], object], operations: int, reads: int) -> None:
    value = there(2, 2)
    before = gpu.operations, gpu.reads
    work(value)
    assert (gpu.operations - before[0], gpu.reads - before[1]) == (operations, reads)
