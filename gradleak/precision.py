"""The precision in which a client computes: float64, float32, TF32, or mixed precision by autocast.

A client with a GPU rounds more than float32 does. What a server receives is then the gradient of rounded numbers, and
all that an attacker knows of it is a bound on their relative error.
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
# Of these the first operand is added to the product of the others, and is not rounded.
ADDED = {aten.addmm.default, aten.baddbmm.default}
TEN_BITS = 2.0**-11
# Multiply by 2¹³ + 1, and subtract: of float32's 24 binary digits 11 are left.
SPLIT = float(2**13 + 1)
# The loss is multiplied by at most this much, so that small gradients are numbers in float16.
LARGEST_SCALE = 2.0**16
# So many numbers that are not zero tell how many digits all of them have.
ENOUGH = 4
# The whole numbers that floating-point numbers are read as, and how many binary digits those have.
DIGITS = {torch.float32: (torch.int32, 24), torch.float64: (torch.int64, 53)}
# Rounding to nearest is off by this share of its bound, in the root mean square over all leading digits.
USUAL = 0.425
# The smallest factor that a gradient scaler is expected to come to.
LEAST_SCALE = 2.0**8


@dataclass(frozen=True)
class Precision:
    """Bounds on the relative error of the numbers that a client rounds.

    `products`: operands and results of Linear layers; `convolutions`: those of convolutions; `least`: the smallest
    gradient that is told from zero; `autocast`: the type that the forward pass is cast to, if any.
    """

    name: str
    products: float
    convolutions: float
    least: float = 0.0
    autocast: torch.dtype | None = None

    def rounded(self, values: Tensor) -> Tensor:
        """Return the weights or biases of a convolution as the client uses them."""
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
    # What torch does on a GPU unless told otherwise: convolutions in TF32, Linear layers in float32.
    "tf32": Precision("tf32", 2.0**-24, TEN_BITS),
    # What `torch.set_float32_matmul_precision("high")` adds.
    "tf32-matmul": Precision("tf32-matmul", TEN_BITS, TEN_BITS),
    "bfloat16": Precision("bfloat16", 2.0**-9, 2.0**-9, autocast=torch.bfloat16),
    "float16": Precision("float16", 2.0**-11, 2.0**-11, 2.0**-25 / LEAST_SCALE, torch.float16),
}
SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "single": "float32", "double": "float64"}


def precision_of(name: str | Precision, dtype: torch.dtype | None = None) -> Precision:
    """Return a precision by its full or short name: "bfloat16" or "bf16".

    `dtype`: the type that gradients have. The client cannot have computed in a finer one.
    """
    found = name if isinstance(name, Precision) else PRECISIONS.get(SHORT.get(name, name))
    if found is None:
        raise unknown("precision", str(name), tuple(PRECISIONS))
    if found.name == "float64" and dtype is not None and torch.finfo(dtype).bits < 64:
        raise InputError(f"gradients of {dtype} were not computed in float64")
    return found


def rounding_unit(precision: str | Precision | None, dtype: torch.dtype, *, convolutions: bool = False) -> float:
    """Return the bound on the relative error of what a client computed: that of `dtype` where no precision is told."""
    own = torch.finfo(dtype).eps / 2
    if precision is None:
        return own
    told = precision_of(precision, dtype)
    return max(own, told.convolutions if convolutions else told.products)


def coarser(precision: str | Precision | None, dtype: torch.dtype, *, convolutions: bool = False) -> bool:
    """Whether a client is known to round more coarsely than the type of its gradients does."""
    return rounding_unit(precision, dtype, convolutions=convolutions) > torch.finfo(dtype).eps / 2


def shown_rounding(values: Tensor) -> Tensor:
    """Return the rounding unit (N,) that numbers (N, …) show by their digits, 0 where they use their type in full.

    The product of two numbers that are rounded to few binary digits has few as well: its last bits are zero. Of four
    numbers that are not rounded so, the last two bits are all zero with a chance of 1 in 256.
    """
    flat = values.flatten(1).contiguous()
    if values.dtype not in DIGITS:
        return flat.new_zeros(len(flat), dtype=torch.float64)
    whole, digits = DIGITS[values.dtype]
    leading = 2 ** (digits - 1)
    bits = flat.view(whole) | leading
    # The lowest bit that any of the numbers has.
    lowest = (bits & -bits).amin(dim=1)
    found = torch.zeros(len(flat), dtype=torch.float64, device=flat.device)
    # Binary digits of a product of two TF32 or float16 numbers, of one such number, and of a bfloat16 number.
    for kept, unit in ((22, 2.0**-11), (11, 2.0**-11), (8, 2.0**-9)):
        if kept < digits:
            found = found.masked_fill(lowest >= 2 ** (digits - kept), unit)
    return found.masked_fill((flat != 0).sum(dim=1) < ENOUGH, 0)


def rounded(values: Tensor) -> Tensor:
    """Return float32 numbers rounded to TF32's ten bits behind the leading one, to the nearest."""
    product = values * SPLIT
    high = product - (product - values)
    # Numbers so large that the product is infinite are left as they are.
    return torch.where(high.isfinite(), high, values)


class _TenBits(TorchDispatchMode):
    """Rounds the operands of some operations, in the forward pass and in the backward pass."""

    def __init__(self, operations: set[Any]) -> None:
        super().__init__()
        self.operations = operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.operations:
            first = int(func in ADDED)
            count = 3 if func is aten.convolution_backward.default else first + 2
            args = tuple(
                rounded(one) if first <= place < count and _is_single(one) else one for place, one in enumerate(args)
            )
        return func(*args, **(kwargs or {}))


def _is_single(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32


@contextlib.contextmanager
def computing(precision: str | Precision | None, model: nn.Module) -> Iterator[None]:
    """Compute a model's forward and backward passes as a client of this precision does, until the end of the block.

    TF32 is made by rounding operands, so that it is the same on a CPU as on a GPU. bfloat16 and float16 are torch's
    own autocast.
    """
    told = None if precision is None else precision_of(precision)
    if told is None or not (told.autocast or told.rounds):
        yield
        return
    with contextlib.ExitStack() as stack:
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            # oneDNN's recurrent layers are one operation, whose operands cannot be rounded, and lack float16.
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False, allow_tf32=None, fp32_precision=None))
        if told.autocast is not None:
            stack.enter_context(torch.autocast(next(model.parameters()).device.type, dtype=told.autocast))
        else:
            stack.enter_context(_TenBits(told.rounds))
        yield


def scaled_gradients(
    precision: str | Precision | None, take: Callable[[float], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the gradients that `take` gives for a factor on the loss, divided by it, as a gradient scaler has them.

    Only float16 needs a factor: the largest power of two up to 2¹⁶ with which no gradient overflows.
    """
    if precision is None or precision_of(precision).autocast is not torch.float16:
        return take(1.0)
    factor = LARGEST_SCALE
    while True:
        found = take(factor)
        if factor <= 1 or all(bool(value.isfinite().all()) for value in found.values()):
            return {name: value / factor for name, value in found.items()}
        factor /= 2
