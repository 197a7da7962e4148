"""Run and copy a user's model without changing it, whatever its code does."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def called(
    model: nn.Module, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...], named: Mapping[str, Any] | None = None
) -> Any:
    """Return a model's outputs with other `values` of its parameters and buffers.

    torch's own search for tied weights spoils a model in which one module has two names: it replaces the module's
    values twice, and keeps the second replacement. Here every module is given its values once. The inputs are not
    copied, because a copy inside `vmap` would change the rounding of recorded searches.
    """
    own = {
        f"{prefix}.{name}".lstrip("."): tensor
        for prefix, module in model.named_modules()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }
    given = {id(tensor): values[name] for name, tensor in own.items() if name in values}
    replaced = {name: given[id(tensor)] for name, tensor in own.items() if id(tensor) in given}
    return functional_call(model, replaced, inputs, dict(named or {}), tie_weights=False)


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
