"""How far down a convolutional network can be peeled: what its counts say, before anything is tried."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.errors import first_line
from gradleak.images import peeling_counts
from gradleak.leak import Leak, evaluating

DOUBLE = 8
# The machine's speed is measured with a matrix of this side; eigenvectors take time with the cube of it.
SIDE = 256
# So many copies of a layer's equations stand beside one another while they are solved.
COPIES = 5


@dataclass(frozen=True)
class Reach:
    """The `layers` whose inputs follow from a batch's gradient, from the last down, and the `bytes` that takes.

    `refused`: why no image follows from them, "" where one may. `opening`: the side of the matrix whose eigenvectors
    open the last map.
    """

    layers: tuple[str, ...]
    refused: str
    bytes: int = 0
    opening: int = 0

    @property
    def seconds(self) -> float:
        """How long the last map takes to be opened, on this machine as it is now."""
        if self.opening <= SIDE:
            return 0.0
        matrix, started = torch.eye(SIDE, dtype=torch.float64) + 1 / SIDE, time.monotonic()
        torch.linalg.eigh(matrix)
        return (time.monotonic() - started) * (self.opening / SIDE) ** 3

    def told(self, leak: Leak) -> list[str]:
        """Return what this proves of a leak whose last layer tells labels and features (`subject.proofs`)."""
        size = leak.batch_size
        parameters = [f"{name}.weight" for names in self.layers for name in names.split("+")]
        if not self.layers or any(leak.withheld(name) for name in parameters):
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
