"""Run and copy a user's model without changing it, whatever its code does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

T = TypeVar("T")


def called(
    model: nn.Module, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...], named: Mapping[str, Any] | None = None
) -> Any:
    """Return a model's outputs with other `values` of its parameters and buffers.

    The inputs are not copied, because a copy inside `vmap` would change the rounding of recorded searches.
    """
    return with_values(model, values, lambda: model(*inputs, **(named or {})))


def with_values(model: nn.Module, values: Mapping[str, Tensor], work: Callable[[], T]) -> T:
    """Return the result of `work`, during which a model has other `values` of its parameters and buffers.

    A network with activation checkpoints runs parts again in its backward pass, which then has to be in `work` as well.

    torch's own search for tied weights spoils a model in which one module has two names: it replaces the module's
    values twice, and keeps the second replacement. Here every module is given its values once.
    """
    own = {
        f"{prefix}.{name}".lstrip("."): tensor
        for prefix, module in model.named_modules()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }
    given = {id(tensor): values[name] for name, tensor in own.items() if name in values}
    replaced = {f"model.{name}": given[id(tensor)] for name, tensor in own.items() if id(tensor) in given}
    result: T = functional_call(_Work(model, work), replaced, (), tie_weights=False)
    return result


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
