"""Use residual joints: where a unit after x + f(x) is active, x is the unit's output minus f(x)."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.images.peeling.network import Network, Step

SUMS = (operator.add, operator.iadd, torch.add)
# Operations that copy some entries of a value, so that the transposed operation puts the entries back.
PICKED = (operator.getitem, F.pad)


@dataclass(frozen=True)
class Seen:
    """A step's value (B, …), and a mask (B, …) of the entries that are known."""

    value: Tensor
    there: Tensor


def seen(network: Network, values: Mapping[str, Tensor], name: str) -> Seen | None:
    """Return the entries of a step's value that follow from known values above, None if there are none."""
    known: Seen | None = None
    for user in network.steps[name].users:
        part = _below(network, values, network.steps[user], name)
        if part is not None and known is not None:
            part = Seen(torch.where(part.there, part.value, known.value), part.there | known.there)
        known = part or known
    return known if known is not None and bool(known.there.any()) else None


def _below(network: Network, values: Mapping[str, Tensor], user: Step, name: str) -> Seen | None:
    """Return the entries of the input `name` of a step that follow from the step's value."""
    if user.rectifies:
        if user.name not in values or user.activation is None:
            return None
        value = values[user.name]
        return Seen(value, user.activation.slope(value) == 1)
    if user.kind != "reshaped" and user.operation not in (*SUMS, *PICKED):
        return None
    output = seen(network, values, user.name)
    if output is None:
        return None
    if user.operation in SUMS:
        other_names = [one for one in user.inputs if one != name]
        other = forward(network, values, other_names[0]) if len(other_names) == 1 and len(user.inputs) == 2 else None
        return None if other is None else Seen(output.value - other, output.there)
    moved = [
        network.pushed(user.name, one)[name] for one in (output.value * output.there, output.there.to(output.value))
    ]
    return Seen(moved[0], moved[1] > 0)


def forward(network: Network, values: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return a step's value computed from known values, None if these do not suffice."""
    if name in values:
        return values[name]
    step = network.steps[name]
    if step.kind == "input":
        return None
    given = [forward(network, values, one) for one in step.inputs]
    known = [one for one in given if one is not None]
    return step.run(*known) if known and len(known) == len(given) else None


def may_show(network: Network, name: str) -> bool:
    """Return whether a joint above a step may give entries of the step's value."""
    for user in (network.steps[user_name] for user_name in network.steps[name].users):
        if user.operation in SUMS and len(user.inputs) == 2:
            return True
        if (user.kind == "reshaped" or user.operation in PICKED) and may_show(network, user.name):
            return True
    return False
