"""A pretended GPU: tensors that lie on a device of their own, compute on the CPU, and refuse what CUDA refuses.

    with pretended_gpu() as gpu:
        weight = torch.ones(3, 4, device=gpu.device)
        weight + torch.ones(4)  # raises, as it does on a GPU: operands on two devices

It refuses operands on two devices (numbers without a dimension aside), a CPU generator for a draw on the GPU, a CPU
tensor indexed by a GPU tensor, reading as numpy, least squares by CUDA's driver (it takes matrices of full rank only),
and gradients of cuDNN's recurrent layers in eval mode. A draw on the GPU gives other numbers than on the CPU. It counts
the operations launched (a view launches nothing) and the reads for which the host would wait. It has CUDA's graphs:
while one is recorded nothing is computed, and reads, draws and copies from the CPU are refused; a replay computes the
recorded operations again in the same memory, and counts as one launch.

Code that cuts its work by free memory (`gradleak.devices.entries_at_once`) sees the `memory` that the block is given.
With none, the default, it cuts the work as on the CPU, so that results are the CPU's to the last bit. With as much as
`LARGE` it works in large chunks, as on a real GPU: sums then round differently, and counts of operations are a GPU's.

What it does not pretend: CUDA's rounding, cuBLAS, cuDNN's convolutions, memory that runs out, time, and warnings about
operations that are not deterministic. It rests on torch's experimental backend in Python.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"
# Bytes of a GPU of usual size.
LARGE = 64 * 2**30
aten = torch.ops.aten
# Operations that may take tensors of two devices: copies from one to the other, and questions about shapes.
MOVING = {aten._to_copy.default, aten.copy_.default, aten._copy_from.default, aten.is_same_size.default}
# Their indices may lie on the CPU.
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
# The host waits for these: a number is read, a shape follows from values, or a routine reports success.
READING = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
    aten._linalg_check_errors.default,
}
# These launch nothing, though torch does not call them views: memory is asked for, or a number is copied to the host.
IDLE = {
    aten._local_scalar_dense.default,
    aten._unsafe_view.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
MATMUL = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__}
# torch takes recurrent layers apart for GPUs alone, so they are computed on the CPU as a whole.
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
CELLS = {"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
# What autocast computes in half precision, by the names of torch's functions.
CAST = {"linear", "conv1d", "conv2d", "conv3d", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm"}
CAST |= {"scaled_dot_product_attention"}


class RefusedError(RuntimeError):
    """What a GPU would not do."""


class Stream:
    """Where operations are launched; on the pretended GPU each ends before the next begins."""

    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, other: Stream) -> None:
        """Wait until all operations of another stream have ended."""


class Gpu:
    """The pretended GPU: the name of its `device`, the `operations` launched so far, and the `reads` waited for.

    `memory`: how many bytes it says are free. `graph`: the graph that is being recorded. `sync_debug_mode`: with 2 a
    read raises an error, as torch's setting "error" has it. `stream`: where operations are launched. `spoiled`: whether
    a recording failed, after which nothing can be drawn until the state of the random numbers is set.
    """

    device = NAME

    def __init__(self, memory: int = 0) -> None:
        self.memory = memory
        self.operations = 0
        self.reads = 0
        self.draws = 0
        self.graph: Graph | None = None
        self.sync_debug_mode = 0
        self.stream = Stream("usual")
        self.spoiled = False

    def read(self) -> None:
        """Count a read, or refuse it."""
        if self.graph is not None:
            raise self.graph.refused("the host waits for the GPU")
        if self.sync_debug_mode == 2:
            raise RefusedError("the host waits for the GPU, which is an error now")
        self.reads += 1

    def count(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Count one operation that has run on the GPU."""
        if not func.is_view and func not in IDLE and self.graph is None:
            self.operations += 1
        masked = func in INDEXING and any(
            isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1]
        )
        moved = func is aten._to_copy.default and isinstance(result, torch.Tensor) and result.device.type == "cpu"
        copied = func is aten.copy_.default and args[0].device.type == "cpu"
        if func in READING or masked or moved or copied:
            self.read()


class Pretended(torch.Tensor):
    """A tensor on the pretended GPU; `held` is the same tensor on the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Pretended:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=f"{NAME}:0",
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Graph:
    """A pretended CUDA graph: the operations of a block, which a replay computes again in the same memory."""

    def __init__(self) -> None:
        # For each operation: the function, its operands, and its results that have memory of their own.
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor | None]]] = []
        self.changed: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.broken = False

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record an operation that is about to be computed, and remember what it overwrites."""
        kwargs = _on_cpu(kwargs)
        self.operations.append((func, args, kwargs, []))
        given = dict(zip((about.name for about in func._schema.arguments), args, strict=False)) | kwargs
        for about in func._schema.arguments:
            if about.alias_info is not None and about.alias_info.is_write:
                self.changed += [(one, one.clone()) for one in _tensors([given.get(about.name)])]

    def refused(self, what: str) -> RefusedError:
        """Return the error with which the recording fails."""
        self.broken = True
        return RefusedError(f"{what} while a graph is recorded")

    def after(self, result: Any) -> None:
        """Record the results of the operation; a view is there already when the graph is replayed."""
        func, args, kwargs, results = self.operations[-1]
        if func.is_view:
            self.operations.pop()
            return
        known = {one.untyped_storage().data_ptr() for one in _tensors([*args, *kwargs.values()])}
        for one in _tensors([result]):
            results.append(None if one.untyped_storage().data_ptr() in known else one)

    def capture_begin(self) -> None:
        """Begin to record all operations; until the end of the recording nothing can be drawn."""
        if _gpu.stream.name == "usual":
            raise RefusedError("a graph is recorded on a stream of its own")
        _gpu.graph, _gpu.spoiled = self, True

    def capture_end(self) -> None:
        """End the recording, and undo what was computed, because recording computes nothing."""
        _gpu.graph = None
        with _disable_current_modes():
            for _, _, _, results in self.operations:
                for one in results:
                    if one is not None and one.is_floating_point():
                        one.fill_(torch.nan)
            while self.changed:
                changed, earlier = self.changed.pop()
                changed.copy_(earlier)
        if self.broken:
            raise RefusedError("the recording failed before its end")
        _gpu.spoiled = False

    def replay(self) -> None:
        """Compute all recorded operations."""
        _gpu.operations += 1
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch._C._AutoDispatchBelowAutograd():
            for func, args, kwargs, results in self.operations:
                made = func(*args, **kwargs)
                if any(into is not None for into in results):
                    for into, new in zip(results, _tensors([made]), strict=True):
                        if into is not None:
                            into.copy_(new)


_Generator = torch.Generator
# Where each generator is: torch hands generators on without their Python attributes.
_places: dict[int, str] = {}
_gpu = Gpu()


class Generator(_Generator):
    """A generator that may lie on the pretended GPU."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        return super().__new__(cls, "cpu")

    def __init__(self, device: Any = "cpu") -> None:
        _places[self._cdata] = self.place = torch.device(device).type

    @property
    def device(self) -> torch.device:
        """The device that its numbers are drawn on."""
        return torch.device(f"{NAME}:0" if self.place == NAME else "cpu")


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operation of torch: refuse it, or compute it on the CPU and say that its results are on the GPU."""
    tensors = _tensors(args) + _tensors(kwargs.values()) if kwargs else _tensors(args)
    ours = [one for one in tensors if isinstance(one, Pretended)]
    asked = kwargs.get("device")
    there = bool(ours) if asked is None else torch.device(asked).type == NAME
    if not ours and not there:
        return func(*args, **kwargs)
    _check(func, args, ours, [one for one in tensors if not isinstance(one, Pretended)])
    if "generator" in kwargs and kwargs["generator"] is not None:
        place = _places.get(kwargs["generator"]._cdata, "cpu")
        if place != NAME:
            raise RefusedError(f"{func}: expected a generator on {NAME}, found one on {place}")
    held, named = _mapped(_held, args), {name: _mapped(_held, one) for name, one in kwargs.items()}
    if _gpu.graph is not None:
        _check_recorded(_gpu.graph, func, args)
        _gpu.graph.before(func, held, named)
    if func is aten.copy_.default:
        held[0].copy_(held[1])
        _gpu.count(func, args, args[0])
        return args[0]
    result = _computed(func, held, named)
    if _gpu.graph is not None:
        _gpu.graph.after(result)
    if func._schema.is_mutable and any(one.size() != one.held.size() for one in ours):
        raise RefusedError(f"{func} changes a shape in place, which is not pretended")
    if there:
        # An operation in place hands back the tensor that it was given.
        same = {id(one.held): one for one in ours}
        result = _mapped(functools.partial(_wrapped, same), result)
    _gpu.count(func, args, result)
    return result


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among an operation's arguments; torch's own walk takes as long as most operations."""
    found: list[torch.Tensor] = []
    for one in values:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += _tensors(one)
    return found


def _mapped(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Return an operation's arguments or result with its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)([_mapped(change, one) for one in value])
    assert not isinstance(value, list | tuple | dict), f"a {type(value)} is not walked through"
    return value


def _check(func: Any, args: tuple[Any, ...], ours: list[Pretended], others: list[torch.Tensor]) -> None:
    if func is aten.linalg_lstsq.default:
        raise RefusedError("CUDA's least squares take matrices of full rank only: use gradleak.devices.least_squares")
    if func in MOVING or not ours:
        return
    strange = [tuple(one.shape) for one in others if one.dim() > 0]
    if func in INDEXING:
        if not isinstance(args[0], Pretended):
            raise RefusedError(f"{func}: a tensor on the CPU is indexed by one on the GPU")
        values = args[2] if len(args) > 2 else args[0]
        strange = [] if isinstance(values, Pretended) or values.dim() == 0 else [tuple(values.shape)]
    if strange:
        raise RefusedError(f"{func}: tensors on the GPU, and on the CPU of shapes {strange}")


def _check_recorded(graph: Graph, func: Any, args: tuple[Any, ...]) -> None:
    """Refuse what a CUDA graph cannot hold: a draw, and a copy from the CPU, for which the host would wait."""
    source = {aten._to_copy.default: 0, aten.copy_.default: 1}.get(func)
    moved = source is not None and not isinstance(args[source], Pretended)
    if moved or torch.Tag.nondeterministic_seeded in func.tags:
        raise graph.refused(str(func))


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU; what is drawn are other numbers than a CPU's generator gives."""
    kwargs = _on_cpu(kwargs)
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return func(*args, **kwargs)
    if _gpu.spoiled:
        raise RefusedError(f"{func}: the random numbers are still those of a recording that failed")
    _gpu.draws += 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2**40 + _gpu.draws)
        if kwargs.get("generator") is not None:
            kwargs = kwargs | {"generator": _Generator().manual_seed(2**40 + _gpu.draws)}
        return func(*args, **kwargs)


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation that shall not compute on the GPU which it names."""
    there = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == NAME
    return kwargs | {"device": torch.device("cpu")} if there else kwargs


def _held(value: torch.Tensor) -> torch.Tensor:
    return value.held if isinstance(value, Pretended) else value


def _wrapped(same: dict[int, Pretended], value: torch.Tensor) -> torch.Tensor:
    if isinstance(value, Pretended):
        return value
    known = same.get(id(value))
    return Pretended(value) if known is None else known


class _Operations(TorchDispatchMode):
    """Sees every operation, those that make tensors from nothing among them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Sees torch's functions before they are taken apart, where a wrapped tensor alone would not do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.is_autocast_enabled(NAME) and getattr(func, "__name__", "") in CAST:
            args, kwargs = _mapped(_cast, args), {name: _mapped(_cast, one) for name, one in kwargs.items()}
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is torch.Tensor.new_tensor:
            device = kwargs.pop("device", args[0].device)
            return torch.tensor(*args[1:], **({"dtype": args[0].dtype} | kwargs)).to(device)
        if func is torch.Tensor.tolist and isinstance(args[0], Pretended):
            _gpu.read()
            return args[0].held.tolist()
        if func is torch.Tensor.numpy and isinstance(args[0], Pretended):
            raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first")
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            return func(args[0], _indexed(args[1]), *args[2:])
        if func in MATMUL and args[0].dim() == 1 and args[1].dim() == 2:
            # torch changes the product's shape in place, which a wrapped tensor cannot.
            return (args[0].unsqueeze(0) @ args[1]).squeeze(0)
        name = getattr(func, "__name__", "")
        if name in RECURRENT | CELLS and any(isinstance(one, Pretended) for one in tree_leaves(args)):
            return _recurrent(func, args, checked=name in RECURRENT)
        return func(*args, **kwargs)


def _cast(value: Any) -> Any:
    """Return a number of float32 in the type of the autocast that is on."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return value
    return value.to(torch.get_autocast_dtype(NAME))


def _indexed(index: Any) -> Any:
    """Return an index whose lists are tensors."""
    whole = isinstance(index, tuple)
    parts = tuple(
        torch.tensor(part, dtype=None if part else torch.long) if isinstance(part, list) else part
        for part in (index if whole else (index,))
    )
    return parts if whole else parts[0]


def _recurrent(func: Any, args: tuple[Any, ...], *, checked: bool) -> Any:
    """Run a recurrent layer on the CPU; refuse what cuDNN refuses: gradients of a layer that is not in train mode."""
    tensors = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
    if any(not isinstance(one, Pretended) and one.is_floating_point() for one in tensors):
        raise RefusedError(f"{func}: tensors on the GPU and on the CPU")
    # The flags are `has_biases`, then, after the numbers, `train`.
    flags = [one for one in args if isinstance(one, bool)]
    learning = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    if checked and learning and not flags[1] and torch.backends.cudnn.enabled:
        raise RefusedError("cudnn RNN backward can only be called in training mode")
    result = func(*_mapped(torch.Tensor.cpu, args))
    return _mapped(lambda one: one.to(NAME), result)


class _DefaultGenerator:
    """The generator of the GPU's own random numbers; a failed recording leaves it unusable until its state is set."""

    def clone_state(self) -> _DefaultGenerator:
        return _DefaultGenerator()

    def graphsafe_set_state(self, state: _DefaultGenerator) -> None:
        _gpu.spoiled = False


class _Module:
    """What torch asks a device's module for."""

    default_generators = (_DefaultGenerator(),)

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def get_device_name(self, device: Any = None) -> str:
        return "a pretended GPU"

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        return None

    CUDAGraph = Graph

    def Stream(self, device: Any = None) -> Stream:
        return Stream("another")

    def current_stream(self, device: Any = None) -> Stream:
        return _gpu.stream

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        usual, _gpu.stream = _gpu.stream, stream
        try:
            yield
        finally:
            _gpu.stream = usual

    def get_sync_debug_mode(self) -> int:
        return _gpu.sync_debug_mode

    def set_sync_debug_mode(self, mode: int | str) -> None:
        _gpu.sync_debug_mode = 2 if mode == "error" else int(mode)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return _gpu.memory, _gpu.memory


# Here and not when it is first used: autograd counts the devices at the first backward pass of a process.
_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
# torch's own autocast knows no such device: `_Functions` casts, and torch passes on.
_autocast = torch.library.Library("_", "IMPL")
_autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


@contextlib.contextmanager
def pretended_gpu(memory: int = 0) -> Iterator[Gpu]:
    """Let there be a GPU with so many free bytes, until the end of the block; gives what it counts."""
    global _gpu
    _gpu = Gpu(memory)
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    inference = torch.inference_mode

    def without_inference(mode: Any = True) -> Any:
        if callable(mode):
            return torch.no_grad()(mode)
        return torch.no_grad() if mode else contextlib.nullcontext()

    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch.Generator, torch.inference_mode = Generator, without_inference
    try:
        with _Functions(), _Operations():
            yield _gpu
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
        torch.Generator, torch.inference_mode = _Generator, inference
        _places.clear()
