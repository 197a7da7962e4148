"""Handle the differences between CPU and GPU: memory, precision, drivers and derivatives that cuDNN lacks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradleak.tracing import Function, traced

T = TypeVar("T")

# The share of a GPU's free memory that one chunk of work may use.
GPU_SHARE = 0.4
# The number of steps after which a search on a GPU reads its state.
STEPS_A_READ = 10
# So few steps are not worth the recording of a CUDA graph.
FEW_STEPS = 4
# On a CPU a function is traced after this number of calls for a single attack, after fewer for several attacks, but not
# before the second number of calls: what a recording costs is saved by about as many further calls.
ALONE, TOGETHER = 1000, 200
# The C library's names for the number of separately mapped blocks, and for the free memory that it keeps.
M_MMAP_MAX, M_TRIM_THRESHOLD = -4, -1


def accelerated(device: torch.device | str) -> bool:
    """Return whether a device is a GPU or another accelerator."""
    return torch.device(device).type not in ("cpu", "meta")


def model_of(device: torch.device | str) -> str:
    """Return "cpu" or the model of a GPU, because results of different GPU models differ by rounding."""
    if not accelerated(device):
        return "cpu"
    name = getattr(torch.get_device_module(torch.device(device)), "get_device_name", None)
    return str(name(device)) if name else torch.device(device).type


def free_memory(device: torch.device | str) -> int:
    """Return the free memory of an accelerator in bytes."""
    free, _ = torch.get_device_module(torch.device(device)).mem_get_info(device)
    return int(free)


def entries_at_once(device: torch.device | str, on_cpu: int, bytes_each: int = 8) -> int:
    """Return how many numbers, of `bytes_each` bytes, to process at a time.

    On a CPU this is `on_cpu`, since speed depends on the caches. On a GPU a share of the free memory is used, since
    every chunk repeats the cost of launching kernels.
    """
    if not accelerated(device):
        return on_cpu
    return max(on_cpu, int(GPU_SHARE * free_memory(device)) // bytes_each)


def in_chunks(total: int, size: int, work: Callable[[slice], T]) -> Iterator[T]:
    """Yield the results of `work` for consecutive chunks of `total` items, with at most `size` items in each.

    If a chunk does not fit in the GPU's memory, it is halved and run again, and later chunks are as small. A single
    item that does not fit raises torch.OutOfMemoryError.
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
        # Continue after the except clause, because the exception's traceback keeps the chunk's tensors alive.
        if fits:
            start = chunk.stop
            yield result
        else:
            size = max(1, (chunk.stop - chunk.start) // 2)
            torch.cuda.empty_cache()


def steps_a_read(device: torch.device | str) -> int:
    """Return after how many steps a search checks which of its attacks have ended.

    On a CPU it checks after every step, because this is free and saves the work for ended attacks. On a GPU each check
    waits for all launched kernels, so ended attacks are only masked until the next check.
    """
    return STEPS_A_READ if accelerated(device) else 1


class Replayed:
    """Record the kernels of a function, where it is called again and again for the same attacks, and replay them.

    A call of `function(*given, which)` launches hundreds of small kernels, and on a GPU the launches take longer than
    the kernels. A CUDA graph records them once, and replays them on the same memory by a single launch. It is recorded
    when the function is called for the third time with the same object `which`. On a CPU the Python code and autograd
    take up to a quarter of the time, and a list of the operations saves that; because its recording takes seconds, it
    is made only after many calls, and only if asked for. A function that cannot be recorded, because the host must wait
    for a number or memory is short, is called as before.

    Args:
        function: A function that returns tensors. The last of its operands, `which`, is not copied. Tensors that the
            function changes must be the same after one call and after two calls with the same operands.
        traced: Whether the function is recorded on a CPU too; it must not change tensors then.
    """

    # The number of plain calls before a CUDA graph is recorded, which also warm up cuDNN and cuBLAS.
    PLAIN = 2

    def __init__(self, function: Function, *, traced: bool = False) -> None:
        self.function, self.traced = function, traced
        self.able = True
        self._which: Tensor | None = None
        self._calls = 0
        self._replay: Function | None = None

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results."""
        *given, which = operands
        graphs = has_graphs(which.device)
        if not (self.able and (graphs or self.traced)):
            return self.function(*operands)
        if which is not self._which:
            self._which, self._calls, self._replay = which, 0, None
        self._calls += 1
        first = self.PLAIN if graphs else max(ALONE // max(len(which), 1), TOGETHER)
        if self._replay is None and self._calls > first:
            self._replay = self._graph(given, which) if graphs else self._list(given, which)
            self.able = self._replay is not None
        return self.function(*operands) if self._replay is None else self._replay(*given)

    def _graph(self, given: Sequence[Tensor], which: Tensor) -> Function | None:
        """Record a CUDA graph, and return a function that replays it; None if this is impossible."""
        own = [one.clone() for one in given]
        # A graph keeps memory of its own, as much as the plain calls have used.
        torch.get_device_module(which.device).empty_cache()
        recorded = _graph_of(lambda: self.function(*own, which), which.device)
        if recorded is None:
            return None
        graph, results = recorded

        def replay(*operands: Tensor) -> tuple[Tensor, ...]:
            for kept, new in zip(own, operands, strict=True):
                kept.copy_(new)
            graph.replay()
            # The next replay overwrites the results.
            return tuple(result.clone() for result in results)

        return replay

    def _list(self, given: Sequence[Tensor], which: Tensor) -> Function | None:
        """Record a list of operations, and return a function that runs it; None if this is impossible."""
        return traced(lambda *operands: self.function(*operands, which), given)


def repeated(step: Function, state: tuple[Tensor, ...], times: int) -> tuple[Tensor, ...]:
    """Return the state after `times` steps, each of which computes the next state from the last one.

    On a GPU the kernels of a step are recorded as one CUDA graph, and each further step is a single launch. A step that
    cannot be recorded is taken as it is, see `Replayed`.

    Args:
        step: A function that takes the tensors of a state one by one and returns the next state in new tensors of the
            same shapes.
        state: The first state.
        times: The number of steps.
    """
    device = state[0].device
    if times > FEW_STEPS and has_graphs(device):
        own = tuple(one.clone() for one in state)

        def advance() -> None:
            for one, new in zip(own, step(*own), strict=True):
                one.copy_(new)

        recorded = _graph_of(advance, device)
        if recorded is not None:
            # Trying the recording has taken one step.
            for _ in range(times - 1):
                recorded[0].replay()
            return own
    for _ in range(times):
        state = step(*state)
    return state


def has_graphs(device: torch.device) -> bool:
    """Return whether a device can record kernels as a CUDA graph."""
    return accelerated(device) and hasattr(torch.get_device_module(device), "CUDAGraph")


def _graph_of(work: Callable[[], T], device: torch.device) -> tuple[Any, T] | None:
    """Do some work once, then record its kernels as a CUDA graph.

    Returns:
        The graph and the work's result, whose tensors a replay overwrites; None if the work cannot be recorded.
    """
    module = torch.get_device_module(device)
    draws = module.default_generators[device.index or 0]
    draws_before = draws.clone_state()
    try:
        # Most work that cannot be recorded makes the host wait, which a first try shows without harm.
        with _unread(module):
            work()
        usual, own, graph = module.current_stream(device), module.Stream(device), module.CUDAGraph()
        # torch.cuda.graph does the same, but frees all unused memory first, which takes longer than a short recording.
        own.wait_stream(usual)
        with module.stream(own):
            graph.capture_begin()
            try:
                result = work()
            finally:
                graph.capture_end()
        usual.wait_stream(own)
    except RuntimeError:
        # This may be a torch.OutOfMemoryError. After a failed recording torch refuses to draw random numbers.
        draws.graphsafe_set_state(draws_before)
        module.empty_cache()
        return None
    return graph, result


@contextlib.contextmanager
def _unread(module: Any) -> Iterator[None]:
    """Raise a RuntimeError inside the block if the host waits for the GPU of torch's `module`."""
    before = module.get_sync_debug_mode()
    module.set_sync_debug_mode("error")
    try:
        yield
    finally:
        module.set_sync_debug_mode(before)


def least_squares(matrix: Tensor, target: Tensor, driver: str | None = None) -> Tensor:
    """Return the X of least norm that minimises ‖matrix X − target‖.

    CUDA's only driver needs matrices of full rank. Systems on a GPU are therefore solved on the CPU; they are small.
    """
    on_cpu = not accelerated(matrix.device)
    operands = (matrix, target) if on_cpu else (matrix.cpu(), target.cpu())
    solution: Tensor = torch.linalg.lstsq(*operands, driver=driver).solution
    return solution if on_cpu else solution.to(matrix.device)


@contextlib.contextmanager
def differentiable(model: nn.Module, *, twice: bool = False) -> Iterator[None]:
    """Use kernels that have gradients in eval mode and, with `twice`, second derivatives.

    cuDNN's recurrent layers have gradients only in train mode and no second derivatives, so cuDNN is switched off for
    models with recurrent layers. Fused attention has no second derivatives. The plain kernels compute the same values.
    """
    enabled = torch.backends.cudnn.enabled
    recurrent = enabled and any(isinstance(module, nn.RNNBase) for module in model.modules())
    if recurrent:
        torch.backends.cudnn.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH) if twice else contextlib.nullcontext():
            yield
    finally:
        if recurrent:
            torch.backends.cudnn.enabled = enabled


def _precisions() -> dict[str, Any]:
    """Return, by name, the objects whose `fp32_precision` sets how torch computes float32, general ones first."""
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
    """Compute float32 as IEEE 754 defines it inside the block, and restore all settings afterwards.

    By default torch rounds the operands of convolutions to ten bits (TF32) on GPUs since Ampere, which is too coarse
    for exact results. Half-precision products are summed in float32.
    """
    # torch has an older and a newer set of switches. The older set cannot be read if the two contradict each other.
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    switches: list[tuple[Any, str, Any]] = [
        (matmul, "allow_tf32", False),
        (cudnn, "allow_tf32", False),
        (matmul, "allow_fp16_reduced_precision_reduction", False),
        (matmul, "allow_bf16_reduced_precision_reduction", False),
        *((owner, "fp32_precision", "ieee") for owner in _precisions().values()),
    ]
    before = []
    for owner, name, _ in switches:
        with contextlib.suppress(RuntimeError):
            before.append((owner, name, getattr(owner, name)))
    try:
        for switch in switches:
            setattr(*switch)
        yield
    finally:
        for switch in before:
            setattr(*switch)


def precision() -> str:
    """Return how float32 is computed now: "IEEE", or a list of the operations that differ from IEEE 754."""
    settings = {name: owner.fp32_precision for name, owner in _precisions().items()}
    deviations = [f"{name} {value}" for name, value in settings.items() if value not in ("ieee", "none")]
    return ", ".join(deviations) or "IEEE"


def described(device: str) -> str:
    """Return a GPU's name and the versions of its driver, CUDA and cuDNN."""
    name = torch.cuda.get_device_name(device)
    cudnn = torch.backends.cudnn.version()
    return f"{name}, driver {_driver()}, CUDA {torch.version.cuda}, cuDNN {cudnn}"


def _driver() -> str:
    """Return the version of NVIDIA's driver, which torch does not report."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        versions = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        versions = []
    return versions[0] if versions else "unknown"


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep up to 1 GiB of memory that tensors freed, for its next tensors.

    Otherwise the C library on Linux returns large blocks at once, and the system zeroes new ones: half the time of an
    attack on a large network.
    """
    if platform.system() == "Linux":
        set_option = ctypes.CDLL(None).mallopt
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**30)):
            set_option(option, value)


@functools.cache
def processor() -> str:
    """Return the model of this machine's processor, as the operating system reports it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine() or "unknown"


def instructions() -> str:
    """Return the set of vector instructions that torch uses on the CPU, such as AVX512, AVX2 or DEFAULT.

    The environment variable ATEN_CPU_CAPABILITY can select a smaller set than the processor has.
    """
    return str(torch.backends.cpu.get_cpu_capability())
