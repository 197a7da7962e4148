"""Check that a model computes the same in every pass: its weights, its buffers, and its gradient of one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from gradleak.errors import InputError
from gradleak.leak import Gradients

# Two gradients of one batch differ if their relative distance is larger, in rounding units of their type.
SAME = 200


def state_of(model: nn.Module) -> Gradients:
    """Return copies of a model's parameters and buffers."""
    return {name: value.detach().clone() for name, value in _held(model)}


def unsteady(model: nn.Module, before: Gradients, first: Gradients, again: Callable[[], Gradients | None]) -> list[str]:
    """Return what changes from pass to pass, in one line each.

    Args:
        model: The model, after its first pass.
        before: Its state before this pass.
        first: The gradients of this pass.
        again: Computes the gradients of a second pass on the same batch, None if the model fails.

    Raises:
        InputError: Each pass changes the parameters, so the server cannot know the weights of a client's gradient.
    """
    between, network = state_of(model), type(model).__name__
    moved = _changed(model, before)
    second = again()
    changed = _changed(model, between)
    parameters = dict(model.named_parameters())
    if own := [name for name in changed if name in parameters]:
        raise InputError(
            f"each forward pass of {network} changes its own parameters ('{own[0]}'), so a server does not know the "
            "weights at which a client computes its gradient"
        )
    lines = []
    if own := [name for name in moved if name in parameters]:
        lines.append(f"the first forward pass changed '{own[0]}', and the audit is of the network with these weights")
    if second is not None and (distance := _distance(first, second)):
        lines.append(
            f"a second pass on the same batch gives another gradient, which differs by {distance:.1g} of its norm: "
            f"{network} draws random numbers or keeps a state, and attacks that run it see another network than the "
            "client's"
        )
    elif changed:
        lines.append(f"each forward pass changes '{changed[0]}', but a second pass gives the same gradient")
    return lines


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _changed(model: nn.Module, before: Gradients) -> list[str]:
    """Return the names of parameters and buffers whose values are not as before."""
    now = dict(_held(model))
    return [name for name in now | before if not _equal(now.get(name), before.get(name))]


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | (one != one) & (other != other)).all())  # NaN is like NaN


def _distance(first: Gradients, second: Gradients) -> float:
    """Return the relative distance of two gradients, 0 if it is as small as rounding errors."""
    missed = sum(float((first[name].double() - second[name].double()).square().sum()) for name in first)
    size = sum(float(value.double().square().sum()) for value in first.values())
    unit = max(torch.finfo(value.dtype).eps for value in first.values())
    distance = (missed / size) ** 0.5 if size else float(missed > 0)
    return 0.0 if distance <= SAME * unit else distance
