"""Record the operations of a function, to run them again without its Python code and without autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# A function of tensors.
Function = Callable[..., tuple[Tensor, ...]]
# The operands of the calls that a recording must repeat to the last bit are scaled by these numbers.
PROOFS = (0.9, 1.1)


def traced(function: Function, given: Sequence[Tensor]) -> Function | None:
    """Return a function with the same results for tensors like the given ones, from the recorded operations alone.

    A recording has no decisions in it: a function that reads a number of a tensor cannot be recorded. What it does
    outside of torch's operations, such as a step in NumPy, would be repeated with the old values. So other operands
    must give the function's own results, to the last bit.

    Returns:
        The function; None if the given one cannot be recorded, or if its recording has other results.
    """
    try:
        return _proven(function, given)
    except Exception:
        # The code of any model runs here, and may fail with any error where it meets a tensor that is recorded; so may
        # the recording of an operation whose results torch does not describe, such as the slope of oneDNN's LSTM.
        return None


def _proven(function: Function, given: Sequence[Tensor]) -> Function | None:
    """Record a function, and return the recording if it gives the results of two further calls."""
    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(function)(*given)
    _fold(module)

    def replayed(*operands: Tensor) -> tuple[Tensor, ...]:
        with torch.inference_mode():
            results = module(*operands)
        # Copies, because tensors made in inference mode can't be changed in place later.
        return tuple(result.clone() for result in results)

    for scale in PROOFS:
        others = [value * scale if value.is_floating_point() else value for value in given]
        if not all(map(torch.equal, replayed(*others), function(*others))):
            return None
    return replayed


def _fold(module: Any) -> None:
    """Compute what depends on no operand once, and remove what no result depends on."""
    values: dict[Any, Any] = {}
    changed: set[int] = set()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            values[node] = getattr(module, node.target)
        elif node.op == "call_function" and _in_place(node):
            changed |= {_memory(values[before]) for before in node.all_input_nodes if before in values}
        elif node.op == "call_function" and all(before in values for before in node.all_input_nodes):
            args, named = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **named)
    # What an operation changes in place must be as new for each run, and so must what is computed from it.
    fixed: dict[Any, Any] = {}
    for node, value in values.items():
        if _memory(value) not in changed and all(before in fixed for before in node.all_input_nodes):
            fixed[node] = value
    for number, (node, value) in enumerate(fixed.items()):
        if node.op == "call_function" and isinstance(value, Tensor) and any(user not in fixed for user in node.users):
            module.register_buffer(f"fixed{number}", value)
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(f"fixed{number}"))
    module.graph.eliminate_dead_code()
    module.recompile()


def _in_place(node: Any) -> bool:
    """Return whether a node stands for an operation that changes an operand in place."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _memory(value: Any) -> int:
    """Return where a tensor's numbers lie, which all views of it share; 0 for other values."""
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0
