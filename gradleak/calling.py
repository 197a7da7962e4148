"""Run and copy a user's model without changing it, whatever its code does."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

# A layer whose outputs differ from its weight times its inputs by more than this share computes something else.
SHARE = 1e-4

T = TypeVar("T")


def called(
    model: nn.Module, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...], named: Mapping[str, Any] | None = None
) -> Any:
    """Return a model's outputs with other `values` of its parameters and buffers.

    The inputs are not copied, because a copy inside `vmap` would change the rounding of recorded searches.
    """
    return functional_call(model, _replaced(model, values), inputs, dict(named or {}), tie_weights=False)


def with_values(model: nn.Module, values: Mapping[str, Tensor], work: Callable[[], T]) -> T:
    """Return the result of `work`, during which a model has other `values` of its parameters and buffers.

    A network with activation checkpoints runs parts again in its backward pass, which then has to be in `work` as well.
    """
    given = {f"model.{name}": value for name, value in _replaced(model, values).items()}
    result: T = functional_call(_Work(model, work), given, (), tie_weights=False)
    return result


def _replaced(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of parameters and buffers, once for every module.

    torch's own search for tied weights spoils a model in which one module has two names: it replaces the module's
    values twice, and keeps the second replacement.
    """
    own = {
        f"{prefix}.{name}".lstrip("."): tensor
        for prefix, module in model.named_modules()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }
    given = {id(tensor): values[name] for name, tensor in own.items() if name in values}
    return {name: given[id(tensor)] for name, tensor in own.items() if id(tensor) in given}


class _Work(nn.Module):
    """Any work with a model, as a forward pass without inputs."""

    def __init__(self, model: nn.Module, work: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self.work = model, work

    def forward(self) -> Any:
        return self.work()


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the network that `DataParallel` or `DistributedDataParallel` runs, and any other network as it is."""
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    return model.get_submodule("module") if parallel else model


def copy_of(model: nn.Module, copies: Mapping[int, Tensor] = MappingProxyType({})) -> nn.Module:
    """Return a copy of a model. Tensors that it stored in a pass are copied without their history.

    Args:
        model: The model.
        copies: The copies of some of its tensors, by the tensors' ids.
    """
    stored = (value for module in model.modules() for value in vars(module).values() if torch.is_tensor(value))
    return copy.deepcopy(model, {id(own): own.detach().clone() for own in stored if not own.is_leaf} | dict(copies))


def client_copy_of(model: nn.Module) -> nn.Module:
    """Return a copy of a client's model with the hooks by which the client changes gradients of parameters."""
    copied = copy_of(model)
    for own, other in zip(model.parameters(), copied.parameters(), strict=True):
        keep_hooks(own, other)
    return copied


def keep_hooks(own: Tensor, other: Tensor) -> None:
    """Change the gradient of another tensor as that of a parameter."""
    for hook in (own._backward_hooks or {}).values() if own.requires_grad else ():
        other.register_hook(hook)


def applied(layer: nn.Linear | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return what torch's own layer of this weight and bias gives, without the code of a subclass and without hooks."""
    if isinstance(layer, nn.Linear):
        return F.linear(inputs, layer.weight, layer.bias)
    outputs: Tensor = nn.Conv2d._conv_forward(layer, inputs, layer.weight, layer.bias)
    return outputs


def computes(layer: nn.Linear | nn.Conv2d, inputs: Tensor, outputs: Any, share: float = SHARE) -> Tensor:
    """Return whether a layer's outputs are its weight times its inputs plus its bias, up to a share of their size."""
    expected = applied(layer, inputs.to(layer.weight))
    if not torch.is_tensor(outputs) or outputs.shape != expected.shape:
        return torch.zeros((), dtype=torch.bool, device=expected.device)
    missed = (outputs.detach() - expected).double().norm()
    near: Tensor = (missed <= share * expected.double().norm()) | expected.isnan().any()
    return near


def first_false(checks: Sequence[tuple[str, Tensor]]) -> list[str]:
    """Return the text of the first check that is false, in a list, or an empty list; all are read at once."""
    passed = torch.stack([check for _, check in checks]).tolist() if checks else []
    return [text for (text, _), own in zip(checks, passed, strict=True) if not own][:1]


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[list[str]]:
    """Collect why the passes of a model in this block say nothing about others.

    Either it draws random numbers, or a Linear layer or convolution, which may be a subclass or have hooks, computes
    something else than torch's.
    """
    odd, checks, given = list[str](), list[tuple[str, Tensor]](), dict[nn.Module, Tensor]()

    def hooks_of(name: str, layer: nn.Module) -> tuple[Any, Any]:
        def before(_: nn.Module, args: tuple[Any, ...]) -> None:
            # A copy, because the layer may change its inputs in place.
            given.update({layer: args[0].detach().clone()} if args else {})

        def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            if layer in given:
                own = computes(layer, given[layer], output)  # type: ignore[arg-type]
                checks.append((f"{type(layer).__name__} '{name}' changes its inputs or outputs", own))

        return layer.register_forward_pre_hook(before, prepend=True), layer.register_forward_hook(after)

    drawn = random_states()
    with torch.no_grad(), contextlib.ExitStack() as stack:
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                for handle in hooks_of(name, layer):
                    stack.enter_context(handle)
        yield odd
    odd += first_false(checks)
    if random_states() != drawn:
        odd.append(f"{type(model).__name__} draws random numbers in each pass")


def random_states() -> tuple[Any, ...]:
    """Return the states of the generators of random numbers, which change when a number is drawn."""
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]
    numpy = repr(np.random.get_state())  # noqa: NPY002
    return (*(state.cpu().numpy().tobytes() for state in states), random.getstate(), numpy)
