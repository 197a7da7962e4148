"""What differs between a CPU and a GPU, in one place: memory, precision, and derivatives that cuDNN does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# Share of a GPU's free memory that one chunk of work may take.
GPU_SHARE = 0.4


def accelerated(device: torch.device | str) -> bool:
    """Return whether a device is a GPU or another accelerator."""
    return torch.device(device).type not in ("cpu", "meta")


def free_memory(device: torch.device | str) -> int:
    """Return how many bytes are free on an accelerator."""
    free, _ = torch.get_device_module(torch.device(device)).mem_get_info(device)
    return int(free)


def entries_at_once(device: torch.device | str, on_cpu: int, bytes_each: int = 8) -> int:
    """Return how many numbers to work on at a time.

    On a CPU `on_cpu`, since its caches decide what is fast; on a GPU as many as a share of its free memory holds, since
    there every further chunk costs its launches again.
    """
    if not accelerated(device):
        return on_cpu
    return max(on_cpu, int(GPU_SHARE * free_memory(device)) // bytes_each)


def least_squares(matrix: Tensor, target: Tensor, driver: str | None = None) -> Tensor:
    """Return the X that minimises ‖matrix X − target‖, the shortest one where there are several.

    CUDA's only driver takes matrices of full rank. The systems that are solved here are small: from a GPU they go to
    the CPU and back.
    """
    if not accelerated(matrix.device):
        return torch.linalg.lstsq(matrix, target, driver=driver).solution
    return torch.linalg.lstsq(matrix.cpu(), target.cpu(), driver=driver).solution.to(matrix.device)


@contextlib.contextmanager
def differentiable(model: nn.Module, *, twice: bool = False) -> Iterator[None]:
    """Choose kernels whose gradients can be taken in eval mode and, if asked, differentiated again (`twice`).

    cuDNN's recurrent layers give gradients in train mode only and have no second derivative, so they are switched off
    for models that hold such layers. Fused attention has no second derivative. The plain kernels compute the same.
    """
    before = torch.backends.cudnn.enabled
    recurrent = before and any(isinstance(module, nn.RNNBase) for module in model.modules())
    if recurrent:
        torch.backends.cudnn.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH) if twice else contextlib.nullcontext():
            yield
    finally:
        if recurrent:
            torch.backends.cudnn.enabled = before
