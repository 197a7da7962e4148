"""Model the precision in which a client computes: float64, float32, TF32, or mixed precision by autocast.

A client with a GPU may round more coarsely than float32. The server then receives the gradient of rounded numbers, and
an attacker only knows a bound on their relative error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradleak.errors import InputError, unknown

aten = torch.ops.aten
CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}
PRODUCTS = {aten.mm.default, aten.mv.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}
# The first operand of these operations is added to the product of the rest, and is not rounded.
ADDED = {aten.addmm.default, aten.baddbmm.default}
TEN_BITS = 2.0**-11
# Multiplying by 2¹³ + 1 and subtracting leaves 11 of float32's 24 binary digits.
SPLIT = float(2**13 + 1)
# The largest factor on the loss, which keeps small gradients from vanishing in float16.
LARGEST_SCALE = 2.0**16
# The least number of nonzero values from which their common number of digits is inferred.
ENOUGH = 4
# The integer type with the same bits as each floating-point type, and the number of binary digits of the latter.
DIGITS = {torch.float32: (torch.int32, 24), torch.float64: (torch.int64, 53)}
# Root mean square error of rounding to nearest, as a share of its bound, over all leading digits.
USUAL = 0.425
# The smallest factor that a gradient scaler is expected to use.
LEAST_SCALE = 2.0**8


@dataclass(frozen=True)
class Precision:
    """Bounds on the relative error of the numbers that a client rounds.

    Attributes:
        name: A key of `PRECISIONS`.
        products: The bound for operands and results of Linear layers.
        convolutions: The bound for operands and results of convolutions.
        least: The size below which a gradient underflows to zero.
        autocast: The type to which the forward pass is cast, None if it is not.
    """

    name: str
    products: float
    convolutions: float
    least: float = 0.0
    autocast: torch.dtype | None = None

    def rounded(self, values: Tensor) -> Tensor:
        """Return the weights or biases of a convolution after the client's rounding."""
        if self.autocast is not None:
            return values.to(self.autocast).to(values.dtype)
        return rounded(values) if self.convolutions == TEN_BITS and values.dtype == torch.float32 else values

    @property
    def rounds(self) -> set[Any]:
        """The operations whose operands are rounded to ten bits."""
        if self.autocast is not None:
            return set()
        return (CONVOLUTIONS if self.convolutions == TEN_BITS else set()) | (
            PRODUCTS if self.products == TEN_BITS else set()
        )


PRECISIONS: dict[str, Precision] = {
    "float64": Precision("float64", 2.0**-53, 2.0**-53),
    "float32": Precision("float32", 2.0**-24, 2.0**-24),
    # The default of torch on a GPU: convolutions in TF32, Linear layers in float32.
    "tf32": Precision("tf32", 2.0**-24, TEN_BITS),
    # With `torch.set_float32_matmul_precision("high")`, Linear layers use TF32 too.
    "tf32-matmul": Precision("tf32-matmul", TEN_BITS, TEN_BITS),
    "bfloat16": Precision("bfloat16", 2.0**-8, 2.0**-8, autocast=torch.bfloat16),
    "float16": Precision("float16", 2.0**-11, 2.0**-11, 2.0**-25 / LEAST_SCALE, torch.float16),
}
SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "single": "float32", "double": "float64"}


def precision_of(name: str | Precision, dtype: torch.dtype | None = None) -> Precision:
    """Return a precision by its full or short name, such as "bfloat16" or "bf16".

    Raises:
        InputError: If the precision is float64 but the gradients' type `dtype` is coarser.
    """
    precision = name if isinstance(name, Precision) else PRECISIONS.get(SHORT.get(name, name))
    if precision is None:
        raise unknown("precision", str(name), tuple(PRECISIONS))
    if precision.name == "float64" and dtype is not None and torch.finfo(dtype).bits < 64:
        raise InputError(f"gradients of type {dtype} cannot have been computed in float64")
    return precision


def rounding_unit(precision: str | Precision | None, dtype: torch.dtype, *, convolutions: bool = False) -> float:
    """Return the bound on the relative error of a client's numbers.

    Args:
        precision: The client's precision; None if it is the gradients' type.
        dtype: The gradients' type.
        convolutions: Whether to return the bound for convolutions instead of Linear layers.

    Examples:
        >>> rounding_unit("bf16", torch.float32) == 2.0**-8
        True
    """
    unit = torch.finfo(dtype).eps / 2
    if precision is None:
        return unit
    resolved = precision_of(precision, dtype)
    return max(unit, resolved.convolutions if convolutions else resolved.products)


def coarser(precision: str | Precision | None, dtype: torch.dtype, *, convolutions: bool = False) -> bool:
    """Return whether a client is known to round more coarsely than the type of its gradients."""
    return rounding_unit(precision, dtype, convolutions=convolutions) > torch.finfo(dtype).eps / 2


def shown_rounding(values: Tensor) -> Tensor:
    """Return the rounding unit (N,) that is visible in the digits of numbers (N, …), 0 if all digits are used.

    The product of two numbers with few binary digits has few digits too, so its last bits are zero. The last two bits
    of four numbers without such rounding are all zero with probability 1/256.
    """
    flat = values.flatten(1).contiguous()
    if values.dtype not in DIGITS:
        return flat.new_zeros(len(flat), dtype=torch.float64)
    integer, digits = DIGITS[values.dtype]
    leading = 2 ** (digits - 1)
    bits = flat.view(integer) | leading
    # The lowest bit that is set in any of the numbers.
    lowest = (bits & -bits).amin(dim=1)
    # The binary digits of a product of two TF32 or float16 numbers, of one such number, and of a bfloat16 number, show
    # a coarser rounding if the lowest bit is at least as large as these edges.
    edges = torch.tensor([2 ** (digits - significant) for significant in (22, 11, 8)], device=flat.device)
    units = torch.tensor([0.0, 2.0**-11, 2.0**-11, 2.0**-8], dtype=torch.float64, device=flat.device)
    if not (lowest >= edges[0]).any():
        return flat.new_zeros(len(flat), dtype=torch.float64)
    return units[torch.bucketize(lowest, edges, right=True)].masked_fill_(flat.count_nonzero(dim=1) < ENOUGH, 0)


def rounded(values: Tensor) -> Tensor:
    """Return float32 numbers rounded to the nearest number of TF32, with ten bits after the leading bit."""
    product = values * SPLIT
    high = product - (product - values)
    # Numbers so large that the product overflows stay unchanged.
    return torch.where(high.isfinite(), high, values)


class _TenBits(TorchDispatchMode):
    """A mode that rounds the operands of given operations, in the forward and in the backward pass."""

    def __init__(self, operations: set[Any]) -> None:
        super().__init__()
        self.operations = operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.operations:
            first = int(func in ADDED)
            count = 3 if func is aten.convolution_backward.default else first + 2
            args = tuple(
                rounded(operand) if first <= index < count and _is_single(operand) else operand
                for index, operand in enumerate(args)
            )
        return func(*args, **(kwargs or {}))


def _is_single(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32


@contextlib.contextmanager
def computing(precision: str | Precision | None, model: nn.Module) -> Iterator[None]:
    """Compute the model's forward and backward passes inside the block in the client's precision.

    TF32 is simulated by rounding operands, so a CPU and a GPU give the same. bfloat16 and float16 use torch's autocast.
    """
    resolved = None if precision is None else precision_of(precision)
    if resolved is None or not (resolved.autocast or resolved.rounds):
        yield
        return
    with contextlib.ExitStack() as stack:
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            # oneDNN runs a recurrent layer as one operation, whose operands cannot be rounded; it also lacks float16.
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False, allow_tf32=None, fp32_precision=None))
        if resolved.autocast is not None:
            stack.enter_context(torch.autocast(next(model.parameters()).device.type, dtype=resolved.autocast))
        else:
            stack.enter_context(_TenBits(resolved.rounds))
        yield


def scaled_gradients(
    precision: str | Precision | None, take: Callable[[float], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the gradients of a loss, computed with a gradient scaler if the precision is float16.

    `take` returns the gradients of the loss times a factor, and the result is divided by this factor. The factor is
    the largest power of two up to 2¹⁶ with which no gradient overflows.
    """
    if precision is None or precision_of(precision).autocast is not torch.float16:
        return take(1.0)
    factor = LARGEST_SCALE
    while True:
        gradients = take(factor)
        if factor <= 1 or all(bool(value.isfinite().all()) for value in gradients.values()):
            return {name: value / factor for name, value in gradients.items()}
        factor /= 2
