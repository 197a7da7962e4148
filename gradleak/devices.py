"""What differs between a CPU and a GPU, in one place: memory, precision, drivers, and derivatives that cuDNN lacks."""

from __future__ import annotations

import contextlib
import functools
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

T = TypeVar("T")

# Share of a GPU's free memory that one chunk of work may take.
GPU_SHARE = 0.4
# A search on a GPU reads its state once in so many steps.
STEPS_A_READ = 10


def accelerated(device: torch.device | str) -> bool:
    """Return whether a device is a GPU or another accelerator."""
    return torch.device(device).type not in ("cpu", "meta")


def model_of(device: torch.device | str) -> str:
    """Return "cpu", or the model of a GPU: what one computes differs from another's by rounding."""
    if not accelerated(device):
        return "cpu"
    name = getattr(torch.get_device_module(torch.device(device)), "get_device_name", None)
    return str(name(device)) if name else torch.device(device).type


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


def in_chunks(total: int, size: int, work: Callable[[slice], T]) -> Iterator[T]:
    """Give what `work` returns for consecutive chunks of `total` items, each of `size` items at most.

    Where the GPU's memory is too small for a chunk, the chunk is halved and run again, and all later chunks are as
    small. A single item that does not fit raises torch.OutOfMemoryError.
    """
    start = 0
    while start < total:
        chunk = slice(start, min(start + size, total))
        try:
            result, fits = work(chunk), True
        except torch.OutOfMemoryError:
            if chunk.stop - chunk.start == 1:
                raise
            fits = False
        # After the except clause, since the exception's traceback holds the chunk's tensors.
        if fits:
            start = chunk.stop
            yield result
        else:
            size = max(1, (chunk.stop - chunk.start) // 2)
            torch.cuda.empty_cache()


def steps_a_read(device: torch.device | str) -> int:
    """Return after how many steps a search reads which of its attacks have ended.

    On a CPU after every step, since reading is free and an attack that has ended need not be computed. On a GPU the
    host would wait for all that was launched, so that ended attacks are masked until the next read.
    """
    return STEPS_A_READ if accelerated(device) else 1


def least_squares(matrix: Tensor, target: Tensor, driver: str | None = None) -> Tensor:
    """Return the X that minimises ‖matrix X − target‖, the shortest one where there are several.

    CUDA's only driver takes matrices of full rank. The systems that are solved here are small: from a GPU they go to
    the CPU and back.
    """
    here = not accelerated(matrix.device)
    both = (matrix, target) if here else (matrix.cpu(), target.cpu())
    found: Tensor = torch.linalg.lstsq(*both, driver=driver).solution
    return found if here else found.to(matrix.device)


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


def _precisions() -> dict[str, Any]:
    """Return the places where torch keeps how float32 is computed, by name, the general ones first."""
    backends: Any = torch.backends
    return {
        "all": backends,
        "matmul": backends.cuda.matmul,
        "cudnn": backends.cudnn,
        "convolutions": backends.cudnn.conv,
        "recurrent layers": backends.cudnn.rnn,
        "oneDNN": backends.mkldnn,
        "oneDNN matmul": backends.mkldnn.matmul,
        "oneDNN convolutions": backends.mkldnn.conv,
        "oneDNN recurrent layers": backends.mkldnn.rnn,
    }


@contextlib.contextmanager
def ieee() -> Iterator[None]:
    """Compute float32 as IEEE 754 has it, and put every setting back as it was.

    Left to itself torch rounds the operands of convolutions to ten bits (TF32) on GPUs since Ampere: too few for any
    result here that is called exact. Half-precision products are summed in float32.
    """
    # torch has an older and a newer set of switches. Where they contradict each other the older cannot be read.
    older: list[tuple[Any, str, bool]] = []
    for owner, name in (
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    ):
        with contextlib.suppress(RuntimeError):
            older.append((owner, name, getattr(owner, name)))
    newer = {name: owner.fp32_precision for name, owner in _precisions().items()}
    try:
        for owner, name, _ in older:
            setattr(owner, name, False)
        for owner in _precisions().values():
            owner.fp32_precision = "ieee"
        yield
    finally:
        for owner, name, value in older:
            setattr(owner, name, value)
        for name, owner in _precisions().items():
            owner.fp32_precision = newer[name]


def precision() -> str:
    """Return in a few words how float32 is computed now: "IEEE", or what is not."""
    odd = {name: owner.fp32_precision for name, owner in _precisions().items()}
    told = [f"{name} {value}" for name, value in odd.items() if value not in ("ieee", "none")]
    return ", ".join(told) or "IEEE"


def described(device: str) -> str:
    """Return a GPU's name, its driver, and the versions of CUDA and cuDNN."""
    name = torch.cuda.get_device_name(device)
    cudnn = torch.backends.cudnn.version()
    return f"{name}, driver {_driver()}, CUDA {torch.version.cuda}, cuDNN {cudnn}"


def _driver() -> str:
    """Return the version of NVIDIA's driver, which torch does not tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        found = []
    return found[0] if found else "unknown"


@functools.cache
def processor() -> str:
    """Return the model of this machine's processor, as the system names it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine() or "unknown"


def instructions() -> str:
    """Return the set of vector instructions that torch uses on the CPU: AVX512, AVX2 or DEFAULT, say.

    Processors that have more can be held to less by the variable ATEN_CPU_CAPABILITY.
    """
    return str(torch.backends.cpu.get_cpu_capability())
