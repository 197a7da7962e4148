"""Find the layers of a convolutional network that can be peeled, from counts of equations and unknowns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gradleak.cases import DOUBLE, Reach
from gradleak.errors import first_line
from gradleak.images import peeling_counts
from gradleak.leak import Leak, evaluating, hooked

# Copies of a layer's equations that are in memory at the same time while they are solved.
COPIES = 5


def reach_of(leak: Leak) -> Reach:
    """Return the layers of a leak's network that can be peeled."""
    if not any(isinstance(layer, nn.Conv2d) for layer in leak.model.modules()):
        return Reach((), "the network has no convolutions")
    assert leak.input_shape is not None
    try:
        return _reach(leak, leak.input_shape)
    except (Exception, SystemExit) as error:  # from the code of the user's network
        return Reach((), first_line(error))


def _reach(leak: Leak, shape: tuple[int, ...]) -> Reach:
    counts = peeling_counts(leak.model, shape, leak.batch_size)
    end = next((place for place, layer in enumerate(counts) if layer.reason), len(counts))
    layers = tuple(layer.name for layer in counts[:end])
    why = f"'{counts[end].name}': {counts[end].reason}" if end < len(counts) else ""
    if not layers:
        return Reach((), why or "it has no layers that can be peeled")
    modules = [leak.model.get_submodule(name.partition("+")[0]) for name in layers]
    maps = _maps(leak, modules, shape)
    # A layer's equations: output channels × kernel positions, by the batch's input positions.
    weights = {module: module.get_parameter("weight").shape for module in modules}
    rows = {module: size[0] * math.prod(size[2:]) for module, size in weights.items()}
    entries = [rows[module] * leak.batch_size * math.prod(maps[module][0].shape[1:]) for module in modules]
    opening = leak.batch_size * math.prod(maps[modules[0]][1].shape[1:]) ** 2
    wanted, deepest = math.prod(shape), maps[modules[-1]][0].numel()
    refused = f"{why}, and the map above it has {deepest} numbers for {wanted}" if deepest < wanted else ""
    whole = COPIES * DOUBLE * max(*entries, opening**2)
    return Reach(layers, refused, whole + 2 * DOUBLE * sum(p.numel() for p in leak.model.parameters()), opening)


def _maps(leak: Leak, modules: list[nn.Module], shape: tuple[int, ...]) -> dict[nn.Module, tuple[Tensor, Tensor]]:
    """Return each module's input and output for one made-up sample."""
    maps: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        maps[module] = args[0][0], output[0]

    hooks = (module.register_forward_hook(keep) for module in modules)
    with hooked(hooks), torch.no_grad(), evaluating(leak.model):
        leak.model(torch.zeros(1, *shape).to(leak.weight))
    return maps
