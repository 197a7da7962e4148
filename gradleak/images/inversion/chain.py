"""Describe networks as chains of linear layers and activations, which can be inverted in closed form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gradleak.calling import applied, called, first_false, random_states, watched
from gradleak.errors import InputError
from gradleak.leak import COMPUTED, Leak, Mode, TwoOutputs, hooked, running


@dataclass(frozen=True)
class Activation:
    """An activation x = σ(z): its slope σ′ as a function of x, and its inverse σ⁻¹, None if there is none."""

    slope: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor] | None


def _inverse_sigmoid(x: Tensor) -> Tensor:
    return x.log() - torch.log1p(-x)


def activation_of(module: nn.Module) -> Activation | None:
    """Return the slope and inverse of an activation module, None if the module is not supported."""
    match module:
        case nn.ReLU():
            return Activation(lambda x: (x > 0).to(x), None)
        case nn.LeakyReLU(negative_slope=slope) if slope > 0:
            return Activation(
                lambda x: torch.ones_like(x).where(x > 0, slope), lambda x: torch.where(x > 0, x, x / slope)
            )
        case nn.ELU(alpha=alpha) if alpha > 0:
            return Activation(
                lambda x: torch.ones_like(x).where(x > 0, x + alpha),
                lambda x: torch.where(x > 0, x, torch.log1p(x.clamp(max=0) / alpha)),
            )
        case nn.Sigmoid():
            return Activation(lambda x: x * (1 - x), _inverse_sigmoid)
        case nn.Tanh():
            return Activation(lambda x: 1 - x.square(), torch.atanh)
    return None


LINEAR_ACTIVATION = Activation(torch.ones_like, lambda x: x)


@dataclass(frozen=True)
class Layer:
    """One linear layer of a chain, and the activation that follows it."""

    name: str
    module: nn.Linear | nn.Conv2d
    activation: Activation
    activation_module: nn.Module

    @property
    def weight(self) -> Tensor:
        """The layer's weight, in float64."""
        return self.module.weight.detach().double()

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias, in float64, None if it has none."""
        return None if self.module.bias is None else self.module.bias.detach().double()


DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# Values that a network computes in another order differ by at most this number of rounding units of the largest.
ROUNDED = 1e3
# Modules without effect on the values. Dropout is inactive because the model runs in eval mode.
PASSED = (nn.Flatten, nn.Identity, *DROPOUTS)


def layers(model: nn.Module, kinds: tuple[type[nn.Module], ...], shape: tuple[int, ...], size: int = 1) -> list[Layer]:
    """Return the layers of a network that is a chain of layers of these kinds and supported activations.

    Made-up batches of the given shape and size check that the network applies the layers in this order. Raise
    `InputError` if the network is not such a chain.
    """
    chain: list[Layer] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if parametrize.is_parametrized(module):
            raise InputError(f"the weight of '{name}' is {COMPUTED}")
        if next(module.children(), None) is not None or isinstance(module, PASSED):
            continue
        if isinstance(module, nn.Linear | nn.Conv2d) and isinstance(module, kinds):
            chain.append(Layer(name, module, LINEAR_ACTIVATION, nn.Identity()))
            continue
        if chain and isinstance(chain[-1].module, TwoOutputs):
            # The model returns the outputs of this layer, not their sigmoid.
            continue
        activation = activation_of(module)
        if activation is None or not chain or not isinstance(chain[-1].activation_module, nn.Identity):
            expected = " and ".join(kind.__name__ for kind in kinds)
            raise InputError(
                f"'{name}' is {type(module).__name__}: closed-form inversion needs {expected} layers, each followed by "
                "ReLU, LeakyReLU, ELU, Sigmoid, Tanh or nothing"
            )
        chain[-1] = Layer(chain[-1].name, chain[-1].module, activation, module)
    if not chain or not isinstance(chain[-1].module, nn.Linear) or chain[-1].activation is not LINEAR_ACTIVATION:
        raise InputError("closed-form inversion needs a network that ends in a Linear layer, its outputs the logits")
    _check_order(model, chain, shape, size)
    return chain


def check_sent(leak: Leak, found: list[Layer]) -> None:
    """Refuse an update that lacks the gradient of a layer's weight, or whose last layer is not that of the chain."""
    if leak.head != found[-1].name:
        raise InputError(f"the update's last layer is '{leak.head}', but the network ends in '{found[-1].name}'")
    for layer in found:
        leak.gradient(f"{layer.name}.weight".lstrip("."))


class _Seen(Exception):
    """Ends a pass of a model before its first layer: what this sees, and whether random numbers were drawn."""

    def __init__(self, layer: nn.Module, inputs: Tensor, drawn: bool) -> None:
        super().__init__()
        self.layer, self.inputs, self.drawn = layer, inputs, drawn


def in_front(leak: Leak) -> str:
    """Return what changes a network's inputs before its first layer in train mode, "" if nothing is known to do so."""
    what = "these are the inputs of the first layer; in train mode"
    for name, module in leak.model.named_modules():
        if isinstance(module, DROPOUTS) and module.p > 0:
            return f"{what} {type(module).__name__} '{name}' changes the network's inputs before it"
        if next(module.parameters(recurse=False), None) is not None:
            break
    own = [module for module in leak.model.modules() if next(module.parameters(recurse=False), None) is not None]
    for batch in probes(leak.input_shape, leak.batch_size) if leak.input_shape else []:
        plain, trained = (_seen(leak.model, own, batch.to(leak.weight, copy=True), mode) for mode in get_args(Mode))
        if trained and (trained.drawn or not plain or not torch.equal(plain.inputs, trained.inputs)):
            return f"{what} the network changes its own before it"
    return ""


def first_called(leak: Leak, layers: list[nn.Module]) -> nn.Module | None:
    """Return which of these layers a pass of the leak's model calls first, None if this is not known."""
    with contextlib.suppress(Exception):  # from the model's own code, which may take other inputs
        example = torch.ones(1, *(leak.input_shape or ())).to(leak.weight)
        seen = _seen(leak.model, layers, example, "eval") if leak.input_shape else None
        return seen.layer if seen else None
    return None


def _seen(model: nn.Module, layers: list[nn.Module], batch: Tensor, mode: Mode) -> _Seen | None:
    """Return what the first of these layers sees of a batch, None if none is called."""
    states = random_states()

    def stop(layer: nn.Module, args: tuple[Any, ...]) -> None:
        if args and torch.is_tensor(args[0]):
            raise _Seen(layer, args[0].detach().clone(), random_states() != states)

    # In train mode a batch norm without parameters changes its statistics.
    buffers = {name: own.clone() for name, own in model.named_buffers()}
    hooks = (own.register_forward_pre_hook(stop) for own in layers)
    with torch.no_grad(), hooked(hooks), running(model, batch.shape, mode):
        try:
            called(model, buffers, (batch,))
        except _Seen as seen:
            return seen
    return None


def probes(shape: tuple[int, ...], size: int) -> list[Tensor]:
    """Return batches of made-up inputs, all 0, all 1, and in several ranges, of the client's size or, at most, four.

    A network may treat inputs by their range, or by the other inputs of a batch. Each batch takes a pass of its own, as
    a client's does.
    """
    count, generator = min(size, 4), torch.Generator().manual_seed(0)
    drawn = torch.rand(7, count, *shape, generator=generator, dtype=torch.float64)
    ranges = ((0, 0), (0, 1), (1, 0), (1, 0), (-1, 0), (-3, 1), (255, 0), (100, -50))
    return [factor * one + shift for (factor, shift), one in zip(ranges, (drawn[0], *drawn), strict=True)]


@contextlib.contextmanager
def inputs_seen(layers: Iterable[nn.Module]) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """Collect the inputs of layers, pass after pass."""
    seen: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}

    def keep(layer: nn.Module, args: tuple[Any, ...]) -> None:
        seen[layer] += [args[0].detach().clone()] if args else []

    with hooked(layer.register_forward_pre_hook(keep) for layer in seen):
        yield seen


def same(values: Tensor, expected: Tensor) -> Tensor:
    """Return whether values are the expected ones up to the rounding of their type; both may be infinite or NaN."""
    if values.numel() != expected.numel():
        return torch.zeros((), dtype=torch.bool, device=expected.device)
    given, share = values.reshape(expected.shape).to(expected), ROUNDED * torch.finfo(values.dtype).eps
    near = (given - expected).abs() <= share * expected.nan_to_num(0.0, 0.0, 0.0).abs().max()
    return (near | (given == expected) | (given.isnan() & expected.isnan())).all()


def _check_order(model: nn.Module, found: list[Layer], shape: tuple[int, ...], size: int) -> None:
    for example in probes(shape, size):
        value, checks = example.to(found[0].module.weight), list[tuple[str, Tensor]]()
        with running(model, example.shape), watched(model) as odd:
            with inputs_seen([layer.module for layer in found]) as seen:
                expected = model(value.clone())
            for layer in found:
                if isinstance(layer.module, nn.Linear):
                    value = value.flatten(1)
                own = seen[layer.module].pop(0) if seen[layer.module] else value[:0]
                checks.append((f"'{layer.name}' sees other inputs than the layers before it give", same(own, value)))
                value = layer.activation_module(applied(layer.module, value))
        logits = expected if torch.is_tensor(expected) and value.shape == expected.shape else value[:0]
        checks.append(("its layers, applied in their order, give other logits than the network", same(logits, value)))
        if odd := odd + first_false(checks):
            raise InputError(f"{type(model).__name__} is not a plain chain: {odd[0]}")
