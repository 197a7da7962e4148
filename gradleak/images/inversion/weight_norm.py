"""Compute the gradients of weights that weight norm composes of lengths and directions."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from gradleak.calling import copy_of
from gradleak.leak import Leak


def without_weight_norm(leak: Leak) -> Leak:
    """Return the leak of the same network without weight norm, with the gradients of its weights W = g v / ‖v‖.

    The gradients of v and g are the parts of the gradient of W across v and along v, so they give all of it. The sum
    over several local steps, whose v differ, is returned as it is.
    """
    parameters = dict(leak.model.named_parameters())
    named = [(name, [f"{name}.{own}".lstrip(".") for own in _parts(it)]) for name, it in leak.model.named_modules()]
    found = [(name, own) for name, own in named if own and leak.local_steps == 1 and not any(map(leak.withheld, own))]
    if not found:
        return leak
    model, gradients = copy_of(leak.model), dict(leak.gradients)
    for name, names in found:
        layer = model.get_submodule(name)
        if parametrize.is_parametrized(layer):
            # torch's own removal changes the class, which the client's layer shares.
            weight = nn.Parameter(torch.as_tensor(layer.weight).detach())
            layer.__class__ = parametrize.type_before_parametrizations(layer)
            del layer.parametrizations
            layer.weight = weight
        else:
            nn.utils.remove_weight_norm(layer)
        length, direction = (parameters[own].detach().double() for own in names)
        along, across = (gradients.pop(own).double() for own in names)
        # Every row has its length, or every column, or the whole weight.
        axes = [axis for axis, size in enumerate(length.shape) if size == 1] or None
        norm = torch.linalg.vector_norm(direction, dim=axes, keepdim=length.ndim > 0)
        gradient = across * norm / length + along * direction / norm
        gradients[f"{name}.weight".lstrip(".")] = gradient.to(layer.get_parameter("weight").dtype)
    return replace(leak, model=model, gradients=gradients)


def _parts(layer: nn.Module) -> tuple[str, ...]:
    """Return the names of the lengths g and the directions v of a layer's weight; () without weight norm."""
    if any(isinstance(hook, WeightNorm) and hook.name == "weight" for hook in layer._forward_pre_hooks.values()):
        return "weight_g", "weight_v"
    own = dict(layer.get_submodule("parametrizations").named_children()) if parametrize.is_parametrized(layer) else {}
    normed = own.keys() == {"weight"} and [type(one) for one in own["weight"].children()] == [_WeightNorm]
    return tuple(f"parametrizations.weight.original{part}" for part in (0, 1)) if normed else ()
