"""Check what an audit rests on: that a model computes the same in every pass, and that its layers send something."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradleak.cases import EMBEDDINGS
from gradleak.errors import InputError
from gradleak.leak import Gradients, Leak
from gradleak.wording import counted

# Two gradients of one batch differ if their relative distance is larger, in rounding units of their type.
SAME = 200
# A layer is named if at least this share of its units was idle.
IDLE = 0.9


def state_of(model: nn.Module) -> Gradients:
    """Return copies of a model's parameters and buffers."""
    return {name: value.detach().clone() for name, value in (*model.named_parameters(), *model.named_buffers())}


def unsteady(model: nn.Module, states: Sequence[Gradients], first: Gradients, second: Gradients | None) -> list[str]:
    """Return what changes from pass to pass, in one line each.

    Args:
        model: The model, after a second pass on the first batch.
        states: The model's states before and after the first pass.
        first: The gradients of the first pass.
        second: The gradients of the second pass, None if the model failed.

    Raises:
        InputError: Each pass changes the parameters, so the server cannot know the weights of a client's gradient.
    """
    parameters, network = dict(model.named_parameters()), type(model).__name__
    moved, changed = _changed(*states), _changed(states[1], state_of(model))
    if own := [name for name in changed if name in parameters]:
        raise InputError(
            f"each forward pass of {network} changes its own parameters ('{own[0]}'), so a server does not know the "
            "weights at which a client computes its gradient"
        )
    lines = []
    if own := [name for name in moved if name in parameters]:
        lines.append(f"the first forward pass changed '{own[0]}', and the audit is of the network with these weights")
    if second is not None and (apart := distance(first, second)):
        lines.append(
            f"a second pass on the same batch gives another gradient, which differs by {apart:.1g} of its norm: "
            f"{network} draws random numbers or keeps a state, and attacks that run it see another network than the "
            "client's"
        )
    elif changed:
        lines.append(f"each forward pass changes '{changed[0]}', but a second pass gives the same gradient")
    return lines


def silent(leak: Leak) -> list[str]:
    """Return what an update does not show, whatever the attack: zero gradients, frozen layers and idle units."""
    empty = [name for name, value in leak.gradients.items() if not bool(value.any())]
    if len(empty) == len(leak.gradients):
        return [f"the gradient of all {len(empty)} parameters is zero: this update shows nothing"]
    lines = []
    if empty:
        why = ""
        if not bool(leak.weight.any()):
            why = ", because the last layer's weight is zero and passes nothing back: audit a later round as well"
        lines.append(f"the gradient of {_named(empty)} is zero{why}")
    if frozen := [name for name, value in leak.model.named_parameters() if not value.requires_grad]:
        verb = "is" if len(frozen) == 1 else "are"
        lines.append(f"{_named(frozen)} {verb} frozen and not in the update")
    for name, value in leak.gradients.items():
        idle = int((value.flatten(1) == 0).all(dim=1).sum()) if value.ndim > 1 else 0
        embedding = isinstance(leak.model.get_submodule(name.rpartition(".")[0]), EMBEDDINGS)
        if IDLE * len(value) <= idle < len(value) and not embedding:
            lines.append(
                f"{idle} of {len(value)} units of '{name}' were idle for the whole batch: their gradient is zero"
            )
    return lines


def _named(names: Sequence[str]) -> str:
    """Return the first of some parameters, and the number of the others."""
    return f"'{names[0]}'" if len(names) == 1 else f"'{names[0]}' and {counted(len(names) - 1, 'more parameter')}"


def _changed(before: Gradients, now: Gradients) -> list[str]:
    """Return the names of parameters and buffers whose values are others than before, beyond rounding."""
    return [name for name, value in now.items() if name in before and not _equal(before[name], value)]


def _equal(one: Tensor, other: Tensor) -> bool:
    # Weights that are normalised in each pass change in their last digit.
    unit = torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, rtol=2 * unit, atol=0, equal_nan=True)


def distance(first: Gradients, second: Gradients) -> float:
    """Return the relative distance of two gradients, 0 if it is as small as rounding errors."""
    missed = sum(float((first[name].double() - second[name].double()).square().sum()) for name in first)
    size = sum(float(value.double().square().sum()) for value in first.values())
    unit = max(torch.finfo(value.dtype).eps for value in first.values())
    apart = (missed / size) ** 0.5 if size else float(missed > 0)
    return 0.0 if apart <= SAME * unit else apart
