"""How far down a convolutional network can be peeled: what its counts say, before anything is tried."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gradleak.cases import DOUBLE, Reach
from gradleak.errors import first_line
from gradleak.images import peeling_counts
from gradleak.leak import Leak, evaluating

# So many copies of a layer's equations stand beside one another while they are solved.
COPIES = 5


def reach_of(leak: Leak) -> Reach:
    """Return how far a leak's network can be peeled."""
    if not any(isinstance(one, nn.Conv2d) for one in leak.model.modules()):
        return Reach((), "the network has no convolutions")
    assert leak.input_shape is not None
    try:
        counts = peeling_counts(leak.model, leak.input_shape, leak.batch_size)
    except Exception as error:  # a network is traced by running code that is not ours
        return Reach((), first_line(error))
    ends = next((place for place, one in enumerate(counts) if one.reason), len(counts))
    layers = tuple(one.name for one in counts[:ends])
    why = f"'{counts[ends].name}': {counts[ends].reason}" if ends < len(counts) else ""
    if not layers:
        return Reach((), why or "it has no layers that can be peeled")
    modules = [leak.model.get_submodule(name.partition("+")[0]) for name in layers]
    maps = _maps(leak, modules)
    taken = [_bytes(module, maps[module][0], leak.batch_size) for module in modules]
    positions = math.prod(maps[modules[0]][1].shape[1:])
    opening = leak.batch_size * positions**2
    wanted, deepest = math.prod(leak.input_shape), maps[modules[-1]][0].numel()
    refused = f"{why}, and the map above it has {deepest} numbers for {wanted}" if deepest < wanted else ""
    whole = max(*taken, COPIES * DOUBLE * opening**2)
    return Reach(layers, refused, whole + 2 * DOUBLE * sum(p.numel() for p in leak.model.parameters()), opening)


def _maps(leak: Leak, modules: list[nn.Module]) -> dict[nn.Module, tuple[Tensor, Tensor]]:
    """Return what each module takes, and what it gives, of one made-up sample."""
    told: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        told[module] = args[0][0], output[0]

    hooks = [one.register_forward_hook(keep) for one in modules]
    try:
        with torch.no_grad(), evaluating(leak.model):
            leak.model(torch.zeros(1, *(leak.input_shape or ())).to(leak.weight))
    finally:
        for hook in hooks:
            hook.remove()
    return told


def _bytes(module: nn.Module, inputs: Tensor, size: int) -> int:
    """Return what a layer's equations take: a row an output channel and kernel's place, a column a position."""
    weight = module.get_parameter("weight")
    rows = weight.shape[0] * math.prod(weight.shape[2:])
    columns = size * math.prod(inputs.shape[1:])
    return COPIES * DOUBLE * rows * columns
