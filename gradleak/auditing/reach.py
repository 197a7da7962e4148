"""How far down a convolutional network can be peeled: what its counts say, before anything is tried."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.errors import first_line
from gradleak.images import peeling_counts
from gradleak.leak import Leak, evaluating

DOUBLE = 8
# So many copies of a layer's equations stand beside one another while they are solved.
COPIES = 5


@dataclass(frozen=True)
class Reach:
    """The `layers` whose inputs follow from a batch's gradient, from the last down, and the `bytes` that takes.

    `refused`: why no image follows from them, "" where one may.
    """

    layers: tuple[str, ...]
    refused: str
    bytes: int = 0

    def told(self, size: int) -> list[str]:
        """Return what this proves of batches of so many samples."""
        if not self.layers:
            return []
        last = f"; {self.refused}" if self.refused else "; the images are looked for in front of that"
        many = (
            "the inputs of 1 layer follow" if len(self.layers) == 1 else f"inputs of {len(self.layers)} layers follow"
        )
        return [f"B = {size}, layer by layer from the last: {many}, down to '{self.layers[-1]}'{last} (peeling)"]


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
    modules = {name: leak.model.get_submodule(name.partition("+")[0]) for name in layers}
    maps = _maps(leak, list(modules.values()))
    needed = max(_bytes(module, maps[module], leak.batch_size) for module in modules.values())
    wanted, deepest = math.prod(leak.input_shape), maps[modules[layers[-1]]].numel()
    refused = f"{why}, and the map above it has {deepest} numbers for {wanted}" if deepest < wanted else ""
    return Reach(layers, refused, needed + 2 * DOUBLE * sum(p.numel() for p in leak.model.parameters()))


def _maps(leak: Leak, modules: list[nn.Module]) -> dict[nn.Module, Tensor]:
    """Return what each module takes of one made-up sample."""
    told: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        told[module] = args[0][0]

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
