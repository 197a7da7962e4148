"""Invert chains of convolutions for a single sample, layer by layer.

Let a be the inputs of a convolution, z its outputs before the activation, and δ the loss's gradient with respect to z.
The inputs satisfy two sets of linear equations:

    forward     conv(a, W) = z − b
    backward    correlation(δ, a) = ∇W

Both δ and z follow from the layer above, with known standard deviations. Every equation is weighted by its error, and
the posterior standard deviation of the inputs is passed on to the layer below.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from gradleak.answers import Answer, InversionStatus
from gradleak.arguments import checked_arguments
from gradleak.cases import DOUBLE, Attack, Case
from gradleak.errors import InputError
from gradleak.images.inversion import chain
from gradleak.images.inversion.again import observed_again
from gradleak.images.inversion.chain import Layer
from gradleak.images.inversion.fully_connected import (
    ALLOWED,
    BOUND,
    FINEST,
    FITS,
    SURE,
    Inversion,
    LayerReport,
    last_layer,
    warned,
)
from gradleak.labels.priors import LabelPrior
from gradleak.leak import Leak
from gradleak.precision import USUAL, Precision, coarser, precision_of, rounding_unit

# Error of a gradient's entry, in rounding units of the sum of the absolute values of its terms.
ROUNDING = 2.0
# Error of a feature, in rounding units of the largest feature, because the client computes features as sums.
FEATURE = 3.0
# Prior mean and standard deviation of an activation's values, by default, and of normalised pixels.
PRIORS: dict[type[nn.Module], tuple[float, float]] = {nn.Sigmoid: (0.5, 0.3), nn.Tanh: (0.0, 0.6)}
BROAD, PIXELS = (0.0, 10.0), (0.0, 1.0)
# The number of draws from which a posterior's standard deviation is estimated, with a relative error of about 0.1.
DRAWS = 64
REFINEMENTS = 6
# The number of products that are computed at once for the normal equations of a convolution.
PRODUCTS = 10_000_000
# Upper limits of an equation's inverse variance relative to the prior's, and rounding errors of the normal equations
# relative to their diagonal, until one pair succeeds. The second limit is for layers whose equations leave directions
# open: without it, rounding would hide what is left of the prior there. Larger rounding errors are for equations that
# have no Cholesky factor otherwise.
TRIED = ((math.inf, 1e-14), (1e12, 1e-14), (1e12, 1e-12), (1e12, 1e-10))
# A layer's inputs are determined if the equations leave less than this of a direction open.
OPEN = 0.5


@dataclass(frozen=True)
class Known:
    """Values, the standard deviation of each entry, and their common drift.

    The drift is the change of the values if the features are as much longer as the last layer's equations allow.
    """

    value: Tensor
    error: Tensor
    drift: Tensor


@checked_arguments(labels="B C")
def invert_convolutional(
    leak: Leak, labels: Tensor | None = None, *, precision: str | Precision | None = None
) -> Tensor:
    """Return the private image (1, C, H, W) in float64 from a convolutional network's gradients.

    Warn if it is not exact; an image that could not be recovered is NaN. `trace_convolutional` takes the same
    arguments and returns a full report.
    """
    return warned(trace_convolutional(leak, labels, precision=precision)).inputs


@checked_arguments(labels="B C")
def trace_convolutional(
    leak: Leak,
    labels: Tensor | None = None,
    *,
    prior: str | LabelPrior = "smoothing",
    noise: float = 0.0,
    precision: str | Precision | None = None,
) -> Inversion:
    """Invert a chain of convolutions layer by layer, and report on every layer.

    Args:
        leak: The gradient of a single sample, and the model that it is from.
        labels: The labels (1, C) if the attacker knows them; otherwise they are recovered.
        prior: The shape of labels that are recovered.
        noise: The standard deviation of the noise on every entry.
        precision: The precision in which the client computes, if the attacker knows it.

    Returns:
        The image, "exact" if all pixels are determined and their claimed relative error is at most a hundredth. It is
        the input of the first layer, see `Inversion.in_front`.

    Examples:
        >>> from gradleak import observe
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 3))
        >>> image = torch.rand(1, 1, 4, 4)
        >>> inversion = trace_convolutional(observe(model, image, torch.tensor([1])))
        >>> inversion.status, torch.allclose(inversion.inputs.float(), image, atol=1e-4)
        ('exact', True)
    """
    leak.check_one_step("an inversion")
    if not any(isinstance(module, nn.Conv2d) for module in leak.model.modules()):
        raise InputError("this network has no convolution; use `invert_fully_connected` for networks of Linear layers")
    shape = leak.input_shape
    if shape is None or len(shape) != 3:
        raise InputError("the leak has no shape (C, H, W) of the clients' images")
    layers = chain.layers(leak.model, (nn.Conv2d, nn.Linear), shape, leak.batch_size)
    chain.check_sent(leak, layers)
    for layer in layers[:-1]:
        _check(layer)
    shapes = _shapes(layers, shape)
    if leak.batch_size != 1:
        return _refused(leak, layers, shapes)
    with torch.no_grad():
        found = _inverted(leak, layers, shapes, labels, prior, noise, precision)
    return replace(found, in_front=chain.in_front(leak))


def _check(layer: Layer) -> None:
    if not isinstance(layer.module, nn.Conv2d):
        raise InputError(f"'{layer.name}': only the last layer of a convolutional chain may be Linear")
    if layer.activation.inverse is None:
        kind = type(layer.activation_module).__name__
        raise InputError(f"the {kind} after '{layer.name}' cannot be inverted: different inputs have equal outputs")
    if layer.module.groups != 1 or layer.module.padding_mode != "zeros" or isinstance(layer.module.padding, str):
        raise InputError(f"'{layer.name}': grouped convolutions and padding other than zeros are not supported")


def _convolution(layer: Layer) -> nn.Conv2d:
    assert isinstance(layer.module, nn.Conv2d)
    return layer.module


def _padding(module: nn.Conv2d) -> tuple[int, ...]:
    assert not isinstance(module.padding, str)
    return module.padding


def _settings(layer: Layer) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return a convolution's stride, padding and dilation."""
    module = _convolution(layer)
    return module.stride, _padding(module), module.dilation


def _shapes(layers: list[Layer], shape: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return the shape of every convolution's input, and of the last one's output."""
    shapes, value = [shape], torch.zeros(1, *shape).to(layers[0].module.weight)
    with torch.no_grad():
        for layer in layers[:-1]:
            value = layer.module(value)
            shapes.append((value.shape[1], value.shape[2], value.shape[3]))
    return shapes


def _refused(leak: Leak, layers: list[Layer], shapes: list[tuple[int, int, int]]) -> Inversion:
    """Return a failed inversion whose reason is the first layer with too few equations, if there is one."""
    reports, first_shortfall = [], ""
    for layer, shape, output_shape in reversed(list(zip(layers[:-1], shapes, shapes[1:], strict=False))):
        # Each sample has separate forward equations, but the backward equations are sums over the batch.
        equations = leak.batch_size * math.prod(output_shape) + layer.module.weight.numel()
        unknowns = leak.batch_size * math.prod(shape)
        shortfall = f"{unknowns - equations} equations short" if equations < unknowns else ""
        reports.append(LayerReport(layer.name, equations, unknowns, 0, math.inf, shortfall))
        first_shortfall = first_shortfall or (
            shortfall and f"layer '{layer.name}' is {shortfall} for {leak.batch_size} samples"
        )
    blank = leak.weight.new_full((leak.batch_size, 1), math.nan, dtype=torch.float64)
    images, labels = blank[:, :, None, None].expand(-1, *shapes[0]), blank.expand(-1, leak.weight.shape[0])
    reason = first_shortfall or f"convolutions are inverted for single samples, not for {leak.batch_size}"
    return Inversion(images, labels, tuple(reports), "failed", reason)


def _inverted(
    leak: Leak,
    layers: list[Layer],
    shapes: list[tuple[int, int, int]],
    labels: Tensor | None,
    prior: str | LabelPrior,
    noise: float,
    precision: str | Precision | None,
) -> Inversion:
    dtype = leak.weight_gradient.dtype
    unit = rounding_unit(precision, dtype, convolutions=True)
    # A precision that is coarser than the gradient's type applies at every layer.
    coarse = None if precision is None or not coarser(precision, dtype, convolutions=True) else precision_of(precision)
    if coarse is not None:
        layers = [*(replace(layer, module=_as_used(_convolution(layer), coarse)) for layer in layers[:-1]), layers[-1]]
    top = last_layer(leak, layers, labels, prior, noise, precision)
    if not top.features.isfinite().all():
        blank = top.features.new_full((1, *shapes[0]), math.nan)
        return Inversion(blank, top.labels, (), "failed", f"last layer '{layers[-1].name}': {top.reason}")
    # Features are computed from the gradient's rows, so the rounding and the noise of these determine their error. If
    # they are longer, the errors p − y are smaller.
    feature_error = FEATURE * unit * float(top.features.abs().max()) + noise / float(top.errors.norm())
    features = top.features.reshape(shapes[-1])
    loose = float(top.loose.max())
    outputs = Known(features, torch.full_like(features, feature_error), loose * features)
    feature_gradient = (top.errors @ layers[-1].weight).reshape(shapes[-1])
    output_gradient = Known(
        feature_gradient,
        torch.full_like(feature_gradient, 2 * unit * float(feature_gradient.abs().max())),
        -loose * feature_gradient,
    )
    reports = []
    for layer, shape, below in reversed(list(zip(layers[:-1], shapes, [None, *layers], strict=False))):
        gradient = leak.gradients[f"{layer.name}.weight"].double()
        input_prior = PIXELS if below is None else PRIORS.get(type(below.activation_module), BROAD)
        preactivation, delta = _through(layer, outputs, output_gradient)
        if coarse is not None:
            # Only autocast rounds the output of a convolution.
            preactivation = preactivation if coarse.autocast is None else _relative(preactivation, USUAL * unit)
            delta = _relative(delta, USUAL * unit)
        outputs, report = _solved(
            layer, shape, preactivation, delta, gradient, input_prior, unit, noise, coarse is not None
        )
        output_gradient = _carried(layer, shape, delta)
        if coarse is not None:
            outputs = _relative(outputs, USUAL * unit)
            output_gradient = output_gradient if coarse.autocast is None else _relative(output_gradient, USUAL * unit)
            report = replace(report, claimed=_claimed(outputs))
        reports.append(report)
    claimed = _claimed(outputs)
    if not reports[-1].reason and not claimed <= SURE:
        reports[-1] = replace(reports[-1], reason=f"its inputs are known to {claimed:.1e} only")
    reason = "" if top.certain else f"last layer '{layers[-1].name}': {top.reason}"
    reason = "; ".join(
        [reason] * bool(reason)
        + [f"layer '{layer_report.name}': {layer_report.reason}" for layer_report in reports if layer_report.reason]
    )
    if reason:
        return Inversion(outputs.value[None], top.labels, tuple(reports), "partial", reason, claimed=claimed)
    check = observed_again(leak, outputs.value[None], top.labels)
    reason = check.beyond(max(FITS, ALLOWED * unit), noise, leak)
    status: InversionStatus = "partial" if reason else "exact"
    return Inversion(outputs.value[None], top.labels, tuple(reports), status, reason, check.worst, claimed)


def _through(layer: Layer, outputs: Known, back: Known) -> tuple[Known, Known]:
    """Return z − b and δ of a layer, from its outputs and the loss's gradient with respect to them."""
    activation, inverse = layer.activation, layer.activation.inverse
    assert inverse is not None
    clamped = _inside(layer, outputs.value, outputs.error)
    moved, drifted = (_inside(layer, clamped + by, outputs.error) for by in (outputs.error, outputs.drift))
    slope, drifted_slope = activation.slope(clamped), activation.slope(drifted)
    preactivation = inverse(clamped) if layer.bias is None else inverse(clamped) - layer.bias[:, None, None]
    # The error of the slope, estimated by moving the outputs by their error.
    error = ((back.error * slope).square() + (back.value * (activation.slope(moved) - slope)).square()).sqrt()
    delta = back.value * slope
    return (
        Known(preactivation, outputs.error / slope, inverse(drifted) - inverse(clamped)),
        Known(delta, error, (back.value + back.drift) * drifted_slope - delta),
    )


def _claimed(known: Known) -> float:
    """Return the claimed relative error of values."""
    relative = (BOUND * known.error.norm() + known.drift.norm()) / known.value.norm()
    return float(relative.clamp(min=BOUND * FINEST))


def _inside(layer: Layer, outputs: Tensor, error: Tensor) -> Tensor:
    """Return outputs with this error, clamped to the range of the activation."""
    if isinstance(layer.activation_module, nn.Sigmoid | nn.Tanh):
        low = 0.0 if isinstance(layer.activation_module, nn.Sigmoid) else -1.0
        margin = torch.maximum(error, torch.full_like(error, 1e-15)).clamp(max=0.1)
        return torch.maximum(torch.minimum(outputs, 1 - margin), low + margin)
    if isinstance(layer.activation_module, nn.ELU):
        return outputs.clamp(min=1e-15 - layer.activation_module.alpha)
    return outputs


def _carried(layer: Layer, shape: tuple[int, int, int], delta: Known) -> Known:
    """Return the loss's gradient with respect to a layer's inputs, and its error."""
    size, settings = (1, *shape), _settings(layer)
    value, drift = (conv2d_input(size, layer.weight, part[None], *settings)[0] for part in (delta.value, delta.drift))
    variance = conv2d_input(size, layer.weight.square(), delta.error.square()[None], *settings)
    return Known(value, variance[0].clamp(min=0).sqrt(), drift)


def _relative(known: Known, unit: float) -> Known:
    """Return the values with the error of another rounding by the client."""
    return Known(known.value, (known.error.square() + (unit * known.value).square()).sqrt(), known.drift)


def _as_used(module: nn.Conv2d, precision: Precision) -> nn.Conv2d:
    """Return a convolution with its weights as the client rounds them."""
    used = copy.deepcopy(module)
    with torch.no_grad():
        used.weight.copy_(precision.rounded(module.weight))
        if module.bias is not None and used.bias is not None and precision.autocast is not None:
            used.bias.copy_(precision.rounded(module.bias))
    return used


def _solved(
    layer: Layer,
    shape: tuple[int, int, int],
    before: Known,
    delta: Known,
    gradient: Tensor,
    prior: tuple[float, float],
    unit: float,
    noise: float,
    coarse: bool,
) -> tuple[Known, LayerReport]:
    """Return a layer's inputs with their posterior standard deviations, from all equations weighted by their errors."""
    places = _places(layer, shape)
    backward = _backward(delta.value, places, shape)
    mean, deviation = prior
    magnitude = math.hypot(mean, deviation)
    # Each entry of ∇W is a sum over positions of δ times a. Its error has two parts: rounding, and the errors of δ.
    if coarse:
        # The client rounds each term independently before the sum, so the squares of the errors add up.
        rounding = USUAL * unit * magnitude * delta.value.square().sum(dim=(1, 2)).sqrt()
    else:
        rounding = ROUNDING * unit * magnitude * delta.value.abs().sum(dim=(1, 2))
    propagated = magnitude * delta.error.square().sum(dim=(1, 2)).sqrt()
    variance = (rounding.square() + propagated.square() + noise**2).clamp(min=torch.finfo(torch.float64).tiny)
    row_weight = (1 / variance).repeat_interleave(gradient[0, 0].numel())
    column_weight = 1 / before.error.clamp(min=torch.finfo(torch.float64).tiny).square().reshape(-1)
    channels, area = shape[0], shape[1] * shape[2]
    # ∇W (O, I, k, k) as equations (O k k, I).
    backward_target = gradient.permute(0, 2, 3, 1).reshape(-1, channels)
    forward_target = before.value.reshape(-1)
    for limit, lost in TRIED:
        column_weight, row_weight = (weights.clamp(max=limit / deviation**2) for weights in (column_weight, row_weight))
        square = _square(layer.weight, column_weight.view_as(before.value), places, area)
        block = backward.T @ (row_weight[:, None] * backward)
        blocks = square.view(channels, area, channels, area)
        for channel in range(channels):
            blocks[channel, :, channel, :] += block
        # What the equations say of a direction is lost if it is below the rounding errors of this matrix.
        least = (lost * square.diagonal()).clamp(min=deviation**-2)
        square.diagonal().add_(least)
        scale = square.diagonal().rsqrt()
        factor, failed = torch.linalg.cholesky_ex(scale[:, None] * square * scale)
        if failed:
            continue
        draws = torch.randn(len(scale), DRAWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        deviations = scale[:, None] * torch.linalg.solve_triangular(factor.T, draws.to(scale), upper=True)
        variance = deviations.square().mean(dim=1)
        # A direction that the equations leave open counts as 1, one that they determine as 0.
        open_directions = float((least * variance).sum())
        if open_directions < OPEN or math.isfinite(limit):
            break

    settings = _settings(layer)

    def missed(inputs: Tensor) -> tuple[Tensor, Tensor]:
        outputs = F.conv2d(inputs.view(1, *shape), layer.weight, None, *settings)
        return forward_target - outputs.flatten(), backward_target - backward @ inputs.view(channels, area).T

    def pulled(forward_misses: Tensor, backward_misses: Tensor) -> Tensor:
        rows = (backward.T @ (row_weight[:, None] * backward_misses)).T.reshape(-1)
        weighted = (column_weight * forward_misses).view(1, *before.value.shape)
        both: Tensor = conv2d_input((1, *shape), layer.weight, weighted, *settings).flatten() + rows
        return both

    def solve(side: Tensor) -> Tensor:
        solution: Tensor = scale * torch.cholesky_solve((scale * side)[:, None], factor)[:, 0]
        return solution

    inputs, step = forward_target.new_full((channels * area,), mean), forward_target.new_tensor(math.inf)
    for _ in range(REFINEMENTS):
        step = solve(pulled(*missed(inputs)) + (mean - inputs) / deviation**2)
        inputs = inputs + step
    drifted = _backward(delta.drift, places, shape) @ inputs.view(channels, area).T
    drift = solve(pulled(before.drift.reshape(-1), -drifted))
    # Larger residuals than expected show that the assumed errors are too small.
    forward_misses, backward_misses = missed(inputs)
    squares = (column_weight * forward_misses.square()).sum() + (row_weight[:, None] * backward_misses.square()).sum()
    equations, unknowns = len(forward_target) + gradient.numel(), len(inputs)
    freedom = max(1.0, equations - unknowns + open_directions)
    error = (variance * (squares / freedom).clamp(min=1)).sqrt().clamp(max=deviation).hypot(step)
    misfit = float(backward_misses.norm() / gradient.norm())
    undetermined = min(unknowns, max(math.ceil(open_directions - OPEN), unknowns - equations, 0))
    reason = f"{undetermined} of its {unknowns} inputs are not determined" if undetermined else ""
    known = Known(inputs.view(shape), error.view(shape), drift.view(shape))
    report = LayerReport(
        layer.name,
        equations,
        unknowns,
        unknowns - undetermined,
        misfit,
        reason,
        _claimed(known),
        known.value,
    )
    return known, report


def _places(layer: Layer, shape: tuple[int, int, int]) -> Tensor:
    """Return the input position that each kernel entry reads at each output position (k k, P); H W in the padding."""
    module = _convolution(layer)
    numbers = torch.arange(1, shape[1] * shape[2] + 1, dtype=torch.float64, device=module.weight.device)
    unfolded = F.unfold(
        numbers.view(1, 1, *shape[1:]), module.kernel_size, module.dilation, _padding(module), module.stride
    )
    read = unfolded[0].long() - 1
    return torch.where(read < 0, shape[1] * shape[2], read)


def _square(weight: Tensor, weights: Tensor, places: Tensor, area: int) -> Tensor:
    """Return FᵀVF (I H W, I H W), where F maps a convolution's inputs to its outputs and V holds their weights (O, …).

    An output depends on the few inputs under the kernel alone, so the products are summed over output positions.
    """
    kernels, channels, side = weight.flatten(1), weight.shape[1], area + 1
    # The input under each kernel entry at each position (P, I k k). Every channel has a number for its padding.
    under = (places.T[:, None] + side * torch.arange(channels, device=weight.device)[:, None]).flatten(1)
    square = weight.new_zeros(channels * side * channels * side)
    at_once = max(1, PRODUCTS // kernels.shape[1] ** 2)
    for numbers, share in zip(under.split(at_once), weights.flatten(1).T.split(at_once), strict=True):
        products = (share[:, None] * kernels.T) @ kernels
        entries = numbers[:, :, None] * channels * side + numbers[:, None, :]
        square.index_add_(0, entries.flatten(), products.flatten())
    return square.view(channels, side, channels, side)[:, :area, :, :area].reshape(channels * area, -1)


def _backward(delta: Tensor, places: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return the matrix (O k k, H W) that maps an input channel to the entries of ∇W of that channel."""
    outputs, area = delta.shape[0], shape[1] * shape[2]
    matrix = delta.new_zeros(outputs, len(places), area + 1)
    matrix.scatter_(2, places.expand(outputs, -1, -1), delta.reshape(outputs, 1, -1).expand(-1, len(places), -1))
    return matrix[..., :area].reshape(-1, area)


def _why_not(case: Case) -> str:
    if case.subject.chain != "convolutional":
        return case.subject.chain_reason or "the network has no convolutions"
    if case.size > 1:
        return "convolutions are run backwards for single samples alone"
    for layer in _layers(case)[:-1]:
        if not isinstance(layer.module, nn.Conv2d) or layer.activation.inverse is None:
            return f"'{layer.name}' cannot be run backwards ({type(layer.activation_module).__name__})"
    return case.unsent or case.no_label


def _attack(case: Case) -> Answer:
    inversion = trace_convolutional(
        case.rescaled(), prior=case.prior, noise=case.noise or 0.0, precision=case.precision
    )
    return case.with_one_factor(replace(inversion.answers[0], labels=None))


def _layers(case: Case) -> list[Layer]:
    return chain.layers(case.leak.model, (nn.Conv2d, nn.Linear), case.subject.input_shape)


def _memory(case: Case) -> int:
    """Return the bytes for the largest layer's equations: matrices over all inputs, and outputs by inputs."""
    largest, value = 0, torch.zeros(1, *case.subject.input_shape).to(case.leak.weight)
    with torch.no_grad():
        for layer in _layers(case)[:-1]:
            inputs = value.numel()
            value = layer.activation_module(layer.module(value))
            largest = max(largest, DOUBLE * (3 * inputs * inputs + 2 * value.numel() * inputs))
    return largest


ATTACK = Attack(
    "convolutions backwards",
    page="cnn-inversion",
    finds=("inputs",),
    needs="all gradients of one sample from a chain of convolutions whose activations can be inverted",
    refused=_why_not,
    run=_attack,
    remedy="ReLU, pooling, or more than one sample",
    memory=_memory,
)
