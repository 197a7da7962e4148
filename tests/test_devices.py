"""What differs between a CPU and a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak import devices


@pytest.mark.parametrize("chosen", ["none", "tf32"])
def test_float32_is_ieee_inside_and_as_it_was_after(chosen: str) -> None:
    def settings() -> list[str]:
        return [owner.fp32_precision for owner in devices._precisions().values()]

    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = chosen
    try:
        at_first = settings()
        with devices.ieee():
            assert set(settings()) == {"ieee"}
            assert devices.precision() == "IEEE"
            assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        assert settings() == at_first
        with pytest.raises(ZeroDivisionError), devices.ieee():
            raise ZeroDivisionError
        assert settings() == at_first
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_recurrent_layers_are_not_cudnns_while_they_are_differentiated() -> None:
    for model, used in ((nn.Sequential(nn.LSTM(2, 3)), False), (nn.Linear(2, 3), True)):
        with devices.differentiable(model):
            assert torch.backends.cudnn.enabled is used
        assert torch.backends.cudnn.enabled
        with pytest.raises(ZeroDivisionError), devices.differentiable(model):
            raise ZeroDivisionError
        assert torch.backends.cudnn.enabled


def test_attention_has_a_second_derivative_where_it_is_asked_for() -> None:
    model = nn.MultiheadAttention(4, 2, batch_first=True).double()
    inputs = torch.randn(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    attend = nn.functional.scaled_dot_product_attention

    def second() -> torch.Tensor:
        (slope,) = torch.autograd.grad(attend(inputs, inputs, inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), inputs)[0]

    with devices.differentiable(model, twice=True):
        assert second().abs().sum() > 0


def test_least_squares_take_the_shortest_where_there_are_several() -> None:
    matrix = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    found = devices.least_squares(matrix, torch.tensor([[2.0], [2.0], [5.0]], dtype=torch.float64), driver="gelsd")
    assert torch.allclose(found, torch.ones(2, 1, dtype=torch.float64))


@pytest.mark.parametrize(("total", "size", "room"), [(10, 4, 4), (10, 100, 3), (7, 7, 1), (1, 5, 1), (0, 3, 1)])
def test_a_chunk_that_does_not_fit_is_halved_and_none_is_lost(total: int, size: int, room: int) -> None:
    tried = []

    def work(part: slice) -> list[int]:
        tried.append(part.stop - part.start)
        if tried[-1] > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return list(range(total))[part]

    found = list(devices.in_chunks(total, size, work))
    assert [one for part in found for one in part] == list(range(total))
    fitting = [count for count in tried if count <= room]
    assert [len(part) for part in found] == fitting, "what was finished is not run again"
