"""Find how a vision transformer turns an image into tokens, by running the network on made-up images.

No names of models or parameters are used. The first convolution or Linear layer is taken as the patch embedding. Runs
on a few images must then confirm every statement about it: which pixels its inputs are, that the tokens are its outputs
plus constants, which parameter these constants are, and what normalises the tokens before the first attention.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from gradleak.calling import called, watched
from gradleak.errors import InputError
from gradleak.images.inversion.again import TINY
from gradleak.leak import Gradients, Leak, hooked, running

# In float64, a normalisation is recognised if it explains the inputs of the attention up to this share.
EXPLAINED = 1e-6
# The numbers that are usually added to variances; 0 stands for no normalisation.
EPSILONS = (0.0, 1e-5, 1e-6, 1e-12, 1e-8, 1e-3)
# The number of made-up images whose tokens determine the normalisation.
IMAGES = 4


@dataclass(frozen=True)
class Embedding:
    """The patch embedding of a transformer with N patches of P numbers, T tokens and width D.

    Attributes:
        name: The name of the layer whose outputs are the patches' tokens.
        pixels: The index in the flat image of each number of a patch (N, P).
        factor: The factor (N, P) by which the network multiplies that pixel.
        shift: What it adds to the product (N, P).
        places: The index of each patch among the tokens (N,).
        tokens: The number of tokens T.
        positions: The name of the learned positions, "" if the update has no gradient of learned positions.
        axis: The axis of the positions that has the width D.
        rows: The row of the positions that is added to each patch (N,).
        unlike: What the layer sees in place of the pixels, "" if it sees them with these factors and shifts.
    """

    name: str
    pixels: Tensor
    factor: Tensor
    shift: Tensor
    places: Tensor
    tokens: int
    positions: str
    axis: int
    rows: Tensor
    unlike: str = ""

    @property
    def size(self) -> float:
        """The root mean square of a patch's numbers, if that of the pixels is 1."""
        return float((self.factor.double().square() + self.shift.double().square()).mean().sqrt())

    def image(self, patches: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the image (1, C, H, W) of patches (N, P)."""
        image = patches.new_empty(math.prod(shape))
        image[self.pixels] = (patches - self.shift.to(patches)) / self.factor.to(patches)
        return image.view(1, *shape)

    def token_gradients(self, leak: Leak) -> Tensor:
        """Return the loss's gradient with respect to the patches' tokens (N, D): that of their learned positions."""
        return rows_along(leak.gradient(self.positions).double(), self.axis)[self.rows]


@dataclass(frozen=True)
class Attention:
    """The first attention, whose inputs are weight ∘ n(token) + bias.

    Attributes:
        parameters: The names of the weights of its queries, keys and values, then of their biases if all have one.
        start: The patches' tokens (N, D) of the image whose embedded numbers are all zero.
        weight: (D,).
        bias: (D,).
        centred: Whether n subtracts the token's mean.
        normalised: Whether n divides the token by its length.
    """

    parameters: tuple[str, ...]
    start: Tensor
    weight: Tensor
    bias: Tensor
    centred: bool
    normalised: bool


def rows_along(values: Tensor, axis: int) -> Tensor:
    """Return a tensor as rows, which lie along an axis."""
    return values.movedim(axis, -1).reshape(-1, values.shape[axis])


class _Stop(Exception):
    """Ends a forward pass when all that is needed has been seen."""


@dataclass
class _Run:
    """What one image's forward pass shows, up to the first attention.

    Attributes:
        embedding: The name of the first convolution or Linear layer.
        odd: Why this layer's gradient is not that of its inputs, "" if it is.
        entries: Its inputs (N, P).
        shape: The shape (C, H, W) of a convolution's inputs.
        cut: Cuts such inputs (1, C, H, W) into patches (1, P, N); None without a convolution.
        embedded: Its outputs (N, D).
        inputs: The inputs of the modules after it that have its width, (T, D) each.
        attended: The inputs of the first attention (T, D), None if there is none.
        attention: The names of the attention, or of the layers of its queries, keys and values.
    """

    embedding: str = ""
    odd: str = ""
    shape: tuple[int, ...] = ()
    cut: Callable[[Tensor], Tensor] | None = None
    entries: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    embedded: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    inputs: list[Tensor] = field(default_factory=list)
    attended: Tensor | None = None
    attention: list[str] = field(default_factory=list)

    def embeds(self, name: str, module: nn.Module, inputs: Tensor, outputs: Tensor) -> None:
        """Record the patch embedding."""
        self.embedding = name
        if isinstance(module, nn.Conv2d):
            if module.stride != module.kernel_size or module.groups != 1:
                raise _Stop
            padding = (0, 0) if isinstance(module.padding, str) else module.padding
            cut = partial(
                F.unfold, kernel_size=module.kernel_size, dilation=module.dilation, padding=padding,
                stride=module.stride,
            )  # fmt: skip
            self.cut, self.shape = cut, tuple(inputs.shape[1:])
            self.entries, self.embedded = cut(inputs)[0].T, outputs[0].flatten(1).T
        elif inputs.ndim > 2:
            self.entries, self.embedded = inputs.flatten(0, -2), outputs.flatten(0, -2)
        else:
            raise _Stop

    def receives(self, name: str, module: nn.Module, inputs: Tensor) -> None:
        """Record the inputs of a later module; end the run after the first attention's queries, keys and values."""
        if inputs.ndim < 3 or inputs.shape[-1] != self.embedded.shape[1]:
            return
        rows = inputs.reshape(-1, inputs.shape[-1])
        if len(rows) < len(self.embedded):
            return
        if self.attended is None:
            self.inputs.append(rows)
        if not isinstance(module, nn.Linear | nn.MultiheadAttention):
            return
        if self.attended is None:
            self.attended = rows
        elif rows.shape != self.attended.shape or not torch.equal(rows, self.attended):
            raise _Stop
        self.attention.append(name)
        if isinstance(module, nn.MultiheadAttention):
            raise _Stop


def embedding_of(leak: Leak) -> Embedding:
    """Return the patch embedding of a leak's model; raise an InputError that says why there is none."""
    shape = leak.input_shape
    if shape is None or len(shape) != 3:
        raise InputError("the leak has no shape (C, H, W) of the clients' images")
    sent = {name: leak.model.get_parameter(name).detach().requires_grad_() for name in leak.gradients}
    size, (first, second) = math.prod(shape), _made_up(leak, 2)
    zero, one = (_run(leak.model, sent, torch.full_like(first, value)) for value in (0, 1))
    count = _run(leak.model, sent, torch.arange(size).view(first.shape).to(first))
    run, other = _run(leak.model, sent, first), _run(leak.model, sent, second)
    name, shift, factor = zero.embedding, zero.entries, one.entries - zero.entries
    pixels = ((count.entries - shift) / factor).nan_to_num(-1, -1, -1).round().long()
    scaled, unlike = factor * first.flatten()[pixels.clamp(0, size - 1)] + shift, ""
    if bool(((pixels < 0) | (pixels >= size)).any()) or not _equal(scaled, run.entries):
        unlike = f"the inputs of '{name}' are not the image's pixels, each with a constant factor and shift"
    unlike = unlike or run.odd
    if unlike:
        if run.cut is None or run.shape != shape:
            raise InputError(unlike)
        # They are still worth having: the network may round or limit pixels.
        numbered = torch.arange(size, dtype=torch.float64, device=first.device).view(first.shape)
        pixels, factor, shift = run.cut(numbered)[0].T.long(), torch.ones_like(factor), torch.zeros_like(shift)
    if pixels.numel() != size or len(pixels.unique()) != size:
        raise InputError(f"the inputs of '{name}' are not patches that contain each pixel once")
    number, places = _tokens(run, other)
    tokens = run.inputs[number]
    found = Embedding(name, pixels, factor.detach(), shift.detach(), places, len(tokens), "", 0, places, unlike)
    # The gradient of a position that is added to a token is the random weight of that token.
    weights = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0)).to(tokens)
    gradients = torch.autograd.grad((tokens * weights).sum(), list(sent.values()), allow_unused=True)
    for own, gradient in zip(sent, gradients, strict=True):
        for axis in range(0 if gradient is None or leak.withheld(own) else gradient.ndim):
            if gradient.shape[axis] == tokens.shape[1]:
                rows = _matched(weights[places], rows_along(gradient, axis))
                if rows is not None:
                    return replace(found, positions=own, axis=axis, rows=rows)
    return found


def attention_of(leak: Leak) -> Attention:
    """Return the first attention of a leak's model; raise an InputError if its inputs are not understood."""
    model = leak.model
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = {name: value.detach().double() if value.is_floating_point() else value for name, value in own.items()}
    runs = [_run(model, values, image.double()) for image in _made_up(leak, IMAGES)]
    number, places = _tokens(*runs[:2])
    if any(run.attended is None or run.attended.shape != run.inputs[number].shape for run in runs):
        raise InputError("no Linear layer or nn.MultiheadAttention receives all tokens at once")
    tokens = torch.cat([run.inputs[number] for run in runs])
    attended = torch.cat([run.attended for run in runs if run.attended is not None])
    fits = [_fitted(tokens, attended, centred, epsilon) for epsilon in EPSILONS for centred in (True, False)]
    missed, weight, bias, centred, epsilon = min(fits, key=lambda fit: fit[0])
    if not missed <= EXPLAINED:
        raise InputError(f"what changes the tokens before '{runs[0].attention[0]}' is no known normalisation")
    patches = runs[0].entries @ model.get_parameter(f"{runs[0].embedding}.weight").detach().double().flatten(1).T
    start = runs[0].inputs[number][places] - patches
    return Attention(_projections(model, runs[0].attention), start, weight, bias, centred, epsilon > 0)


def _projections(model: nn.Module, names: list[str]) -> tuple[str, ...]:
    """Return the names of the weights of queries, keys and values, and of their biases if all have one."""
    modules = {name: model.get_submodule(name) for name in names}
    prefix = {name: "in_proj_" if isinstance(module, nn.MultiheadAttention) else "" for name, module in modules.items()}
    weights, biases = ([f"{name}.{prefix[name]}{kind}" for name in names] for kind in ("weight", "bias"))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return (*weights, *biases) if all(name in parameters for name in biases) else tuple(weights)


def _fitted(
    tokens: Tensor, attended: Tensor, centred: bool, epsilon: float
) -> tuple[float, Tensor, Tensor, bool, float]:
    """Fit weight ∘ n(token) + bias to the inputs of an attention; return the relative error first."""
    normal = tokens - tokens.mean(dim=1, keepdim=True) if centred else tokens
    if epsilon:
        normal = normal / (normal.square().mean(dim=1, keepdim=True) + epsilon).sqrt()
    deviation = normal - normal.mean(dim=0)
    weight = (deviation * attended).sum(dim=0) / deviation.square().sum(dim=0).clamp(min=TINY)
    bias = attended.mean(dim=0) - weight * normal.mean(dim=0)
    missed = float((weight * normal + bias - attended).norm() / attended.norm().clamp(min=TINY))
    return missed, weight, bias, centred, epsilon


def _made_up(leak: Leak, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, *(leak.input_shape or ()), generator=generator).to(leak.weight) for _ in range(count)]


def _run(model: nn.Module, values: Gradients, image: Tensor) -> _Run:
    """Run a model with these parameters and buffers on an image, up to its first attention."""
    run = _Run()

    def watch(name: str, module: nn.Module) -> None:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensors = [one for one in (*args, *kwargs.values()) if torch.is_tensor(one)]
            if run.embedding and tensors:
                run.receives(name, module, tensors[0])

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not run.embedding:
                run.embeds(name, module, args[0], output)

        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        if isinstance(module, nn.Conv2d | nn.Linear):
            hooks.append(module.register_forward_hook(after))

    hooks: list[RemovableHandle] = []
    for name, module in model.named_modules():
        watch(name, module)
    # torch's fast path for transformers, which calls no modules, is not taken where gradients are computed.
    with (
        watched(model) as odd,
        hooked(hooks),
        torch.enable_grad(),
        running(model, image.shape),
        contextlib.suppress(_Stop),
    ):
        called(model, values, (image.clone(),))
    run.odd = next(iter(odd), "")
    if not run.entries.numel():
        first = f"its first layer, '{run.embedding}', " if run.embedding else "it "
        raise InputError(f"{type(model).__name__} is no vision transformer: {first}does not embed patches")
    return run


def _tokens(first: _Run, second: _Run) -> tuple[int, Tensor]:
    """Return which inputs are the tokens before the attention, and each patch's index among the tokens (N,)."""
    moved = first.embedded - second.embedded
    for number in reversed(range(min(len(first.inputs), len(second.inputs)))):
        one, two = first.inputs[number], second.inputs[number]
        places = _matched(moved, one - two) if one.shape == two.shape else None
        if places is not None:
            return number, places
    raise InputError(f"no later module receives the outputs of '{first.embedding}' plus constants, as tokens")


def _matched(wanted: Tensor, rows: Tensor) -> Tensor | None:
    """Return the index (N,) of the row that is equal to each of the wanted rows (N, D), None if one has none."""
    if len(rows) < len(wanted):
        return None
    nearest = torch.cdist(wanted, rows).argmin(dim=1)
    return nearest if _equal(rows[nearest], wanted) else None


def _equal(values: Tensor, others: Tensor) -> bool:
    """Return whether values are equal up to the network's rounding, for which half of the digits are left."""
    if values.shape != others.shape:
        return False
    return bool((values - others).abs().max() <= torch.finfo(values.dtype).eps ** 0.5 * others.abs().max())
