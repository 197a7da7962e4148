"""Read samples from single units of a first layer: the gradient of a unit's weight divided by that of its bias.

The row of unit u in the first layer's gradient is (∇W_u, ∇b_u) = Σ_b δ_bu (x_b, 1) / B. If the ReLU behind the unit is
active for one sample only, ∇W_u / ∇b_u is this sample; otherwise it is a mixture of samples. Neither labels nor the
other samples are needed, and a sum over local steps keeps a sample as long as no other one activates the unit.

A quotient c is guaranteed to be a sample if these tests pass:

- Its own gradient: for one class y, B ∇b_u = δ_u(c) = J_uᵀ (p(c) − y) at every unit u that shows c, in size as well as
  in direction, where J_u are the slopes of the logits. Samples of one class with proportional errors fail: the size of
  their sum is above the size of each, and that of their mixture is not.
- Either the whole layer: δ(c) is a combination of the columns of the layer's gradient, of the size of one sample. Or
  agreement: several units with independent slopes have the same quotient within rounding. Agreement is no evidence if
  the errors of all samples are proportional, as they are in networks with two classes.
- The other units: each unit that c changes noticeably has a gradient, and shows no other sample.
- Silence: every unit that shows c has no effect on the logits for some other input.

The probability that mixtures pass by accident must be at most `CHANCE`. If B candidates fit, and together have the
whole gradient, the batch is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.answers import Answer, InversionStatus
from gradleak.arguments import checked_arguments
from gradleak.calling import watched, with_values
from gradleak.cases import DOUBLE, Attack, Case
from gradleak.errors import InputError
from gradleak.images.inversion import chain
from gradleak.images.inversion.again import TINY, observed_again, size_of
from gradleak.images.inversion.fully_connected import BOUND, FINEST, FITS, SURE
from gradleak.images.inversion.one_sample import closest, smoothed
from gradleak.images.inversion.weight_norm import without_weight_norm
from gradleak.leak import Leak, evaluating, running
from gradleak.losses import CrossEntropy, Loss
from gradleak.precision import Precision, coarser, precision_of, rounding_unit, shown_rounding

# The largest probability that mixtures agree and fit by accident.
CHANCE = 1e-6
# Quotients of two mixtures of the same samples lie on a line. Their density there is at most this number of times that
# of quotients which are spread over their own length.
DENSITY = 16.0
# A sample's own gradient must fit to this many rounding units, and never to less than the second number.
OWN, LEAST_OWN = 2.0**5, 1e-12
# The slopes of the logits at some units have as many equations as singular values above this share of the largest.
EQUATIONS = 0.1
# Units that a sample changes by more than this share of its largest change must show this.
NOTICED = 1e-3
# The least share of the errors of all classes but a sample's own that is not on a single one of them, for updates.
SPREAD = 1e-2
# A gradient with more columns is multiplied by this number of random ones. Singular values up to RESOLVED times the
# errors count as zero, and at least SPARE of them must.
COLUMNS, SPARE, RESOLVED = 256, 4, 4.0
# Each sample of an exact batch contributes at least this many times the gradient's allowed error.
CONTRIBUTES = 100.0
# Layers that may come before the first one.
NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm)
# More local steps are not simulated.
STEPS = 16
# The entries of slopes that are computed at a time.
ELEMENTS = 2**23


@dataclass(frozen=True)
class Units:
    """The quotients of a first layer's units: samples, and mixtures of samples.

    Attributes:
        inputs: The different quotients (M, …) in float64, those that are guaranteed first.
        shown_by: The number of units that show each of them (M,).
        labels: The class with which each of them fits its units' gradients (M,), −1 for none.
        guaranteed: Whether each of them is guaranteed to be a sample (M,).
        status: "exact" if the inputs are the whole batch; "partial"; or "failed" without inputs.
        reason: Why the inputs are not exact, "" if they are.
        claimed: The largest relative error of an input that is guaranteed; inf without one.
        in_front: What changes the network's inputs before the first layer, "" if nothing is known to do so.
    """

    inputs: Tensor
    shown_by: Tensor
    labels: Tensor
    guaranteed: Tensor
    status: InversionStatus
    reason: str = ""
    claimed: float = math.inf
    in_front: str = ""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch."""
        return (
            Answer(
                self.status, self.reason, claimed=self.claimed, inputs=self.inputs, in_front=self.in_front,
                guaranteed=self.guaranteed if self.status == "partial" and bool(self.guaranteed.any()) else None,
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class _Group:
    """Units (K,) that show the same quotient (D,), and the bound on the relative difference of two of theirs."""

    units: Tensor
    quotient: Tensor
    apart: float


@dataclass(frozen=True)
class _Fit:
    """How well a quotient's own gradient fits that of its units.

    Attributes:
        label: The class that fits best.
        missed: The relative error.
        allowed: The error that is allowed.
        probabilities: p at the quotient (C,).
        changes: The least size of the gradient of every unit's bias that the quotient gives, times B (O,); this and the
            rest are known only if the quotient fits.
        equations: The number of equations that the units give.
        spread: The share of the errors of all classes but the label that is not on a single one of them.
        contained: The tolerance within which the layer's whole gradient contains these changes, and the number of
            equations that this takes; None if it does not contain them.
    """

    label: int
    missed: float
    allowed: float
    probabilities: Tensor
    changes: Tensor = field(default_factory=lambda: torch.empty(0))
    equations: int = 0
    spread: float = 0.0
    contained: tuple[float, int] | None = None

    @property
    def passed(self) -> bool:
        """Whether the quotient fits."""
        return self.missed <= self.allowed <= SURE


@checked_arguments()
def invert_units(
    leak: Leak,
    *,
    noise: float | None = 0.0,
    loss: Loss | None = None,
    precision: str | Precision | None = None,
    box: tuple[float, float] | None = None,
) -> Units:
    """Return the inputs that units of the first layer show, and which of them are guaranteed to be samples.

    The update may be a gradient, or the sum of the gradients of several local steps. If a defence has changed the
    gradient of a single sample, the sample is the one that comes closest to all units.

    Args:
        leak: The update, from a network whose first layer is Linear, or a convolution with one position, with a bias.
        noise: The standard deviation of the noise on every entry; None if it is unknown.
        loss: The client's loss; soft cross-entropy by default. With another loss, only a single sample is guaranteed.
        precision: The precision in which the client computes. Nothing is guaranteed if it is coarser than float32.
        box: The range of pixels, if the inputs are images. A single image behind noise is then smoothed.

    Examples:
        >>> from gradleak import observe
        >>> _ = torch.manual_seed(2)
        >>> model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3)).double()
        >>> inputs = torch.randn(2, 4, dtype=torch.float64)
        >>> found = invert_units(observe(model, inputs, torch.tensor([0, 1])))
        >>> found.status, torch.cdist(inputs, found.inputs).amin(dim=1) < 1e-9
        ('exact', tensor([True, True]))
    """
    # Noise on lengths and directions is another one on the weights.
    leak = without_weight_norm(leak) if noise == 0 else leak
    name, reason = first_layer(leak)
    if reason:
        raise InputError(f"samples are read from the gradient of a first layer with a bias: {reason}")
    unit = rounding_unit(precision, leak.gradients[f"{name}.bias".lstrip(".")].dtype)
    layer = FirstLayer(leak, name, max(unit, FINEST))
    with torch.no_grad():
        if not layer.alive.any():
            return _found(layer, [], "no unit of the first layer passed anything on", status="failed")
        if leak.batch_size * leak.local_steps == 1:
            return _alone(layer, noise, loss, precision, box)
        groups = _groups(layer)
        if reason := _untested(layer, loss):
            return _found(layer, groups, f"nothing is guaranteed: {reason}")
        return _tested(layer, groups)


@checked_arguments()
def bias_attack(leak: Leak) -> Tensor:
    """Return for every unit of the first layer the gradient of its weight divided by that of its bias, (O, D).

    For a unit that is active for a single sample, the quotient is that sample, as the first layer sees it. For several
    samples, the quotient is their weighted mean. A unit that no sample activates has NaN.

    Examples:
        >>> from gradleak import observe
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> leak = observe(model, torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([1]))
        >>> bias_attack(leak).nanmean(dim=0)
        tensor([0.1000, 0.2000, 0.3000, 0.4000], dtype=torch.float64)
    """
    leak = without_weight_norm(leak)
    name, reason = first_layer(leak)
    if reason:
        raise InputError(f"the bias attack needs the gradient of a first layer with a bias: {reason}")
    return _quotients(leak, name)


def _quotients(leak: Leak, name: str) -> Tensor:
    """Return the gradient of each unit's weight divided by that of its bias (O, D), NaN if the latter is zero."""
    weight, bias = (leak.gradients[f"{name}.{kind}".lstrip(".")].double() for kind in ("weight", "bias"))
    return weight.flatten(1) / torch.where(bias == 0, torch.nan, bias)[:, None]


def first_layer(leak: Leak) -> tuple[str, str]:
    """Return the name of a network's first layer, and why its units cannot be read, "" if they can."""
    # In eval mode a batch norm in front changes every number by a constant factor and shift, as `_front` finds out.
    layers = [
        own for own in leak.model.named_modules()
        if next(own[1].parameters(recurse=False), None) is not None and not isinstance(own[1], NORMS)
    ]  # fmt: skip
    # Layers may be declared in any order. A layer with a parametrisation has children.
    linear, modules = nn.Linear | nn.Conv2d, [own for _, own in layers]
    called = chain.first_called(leak, [own for own in modules if isinstance(own, linear) or not list(own.children())])
    name, layer = next((own for own in layers if own[1] is called), layers[0])
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        return name, f"the first layer is {type(layer).__name__} '{name}'"
    inputs = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels * math.prod(layer.kernel_size)
    if leak.input_shape is not None and inputs != math.prod(leak.input_shape):
        return name, f"'{name}' does not see the whole input"
    if getattr(layer, "bias", None) is None:
        return name, "the first layer has no bias"
    return name, leak.withheld(f"{name}.weight".lstrip(".")) or leak.withheld(f"{name}.bias".lstrip("."))


class FirstLayer:
    """The first layer and its gradient, as rows of its units."""

    def __init__(self, leak: Leak, name: str, unit: float) -> None:
        self.leak, self.name, self.unit = leak, name, unit
        self.module = leak.model.get_submodule(name)
        names = [f"{name}.{kind}".lstrip(".") for kind in ("weight", "bias")]
        sent = [leak.gradients[own] for own in names]
        self.visible = max(float(shown_rounding(part.reshape(1, -1))) for part in sent)
        self.weight, self.bias = sent[0].flatten(1).double(), sent[1].double()
        self.quotients = _quotients(leak, name)
        self.alive = self.quotients.isfinite().all(dim=1)
        parameters = [leak.model.get_parameter(own).detach().double().flatten(1) for own in (names[0],)]
        lengths, offsets = parameters[0].norm(dim=1), leak.model.get_parameter(names[1]).detach().double().abs()
        # A product and a sum for each local step. Weights are rounded after each step, to the size of the weights.
        steps = leak.local_steps
        sizes, self.step_error = self.quotients.norm(dim=1), torch.zeros_like(self.bias)
        self.slack = (3 + steps) * unit * sizes
        self.row_error = (3 + steps) * unit * torch.cat([self.weight, self.bias[:, None]], dim=1).norm(dim=1)
        if leak.rate:
            self.step_error = steps * unit * offsets / leak.rate
            rounded = steps * unit * lengths / leak.rate
            self.slack = self.slack + (rounded + self.step_error * sizes) / self.bias.abs()
            self.row_error = self.row_error + rounded + self.step_error
        self.factor, self.shift, self.unlike = _front(leak, name, self.module)

    def network_inputs(self, seen: Tensor) -> Tensor:
        """Return the inputs (M, …) of the network for what the first layer sees (M, D)."""
        inputs = (seen - self.shift) / self.factor
        return inputs.reshape(len(seen), *self.leak.input_shape) if self.leak.input_shape else inputs


def _front(leak: Leak, name: str, layer: nn.Module) -> tuple[Tensor, Tensor, str]:
    """Return the factor and the shift (D,) of every entry before the first layer, and why these are unknown, or ""."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    width, seen = math.prod(layer.weight.shape[1:]), list[Tensor]()
    one = torch.ones(width).to(layer.weight).double()
    batches = chain.probes(leak.input_shape or (width,), leak.batch_size)
    with watched(leak.model) as odd:
        for batch in batches:
            with chain.inputs_seen([layer]) as inputs, running(leak.model, batch.shape):
                logits = leak.model(batch.to(layer.weight, copy=True))
            calls = inputs[layer]
            if len(calls) != 1:
                return one, 0 * one, f"'{name}' runs {len(calls)} times in one pass"
            if len(calls[0]) != len(batch) or calls[0].numel() != len(batch) * width:
                return one, 0 * one, f"'{name}' sees several positions of an input, and its units mix them"
            if not torch.is_tensor(logits) or logits.shape != (len(batch), len(leak.weight)):
                return one, 0 * one, "the network does not give one row of logits for an input"
            seen.append(calls[0].double().flatten(1))
    shift, factor = seen[0][0], seen[1][0] - seen[0][0]
    given = torch.cat(batches).to(factor).flatten(1)
    if odd or bool((factor == 0).any()) or not torch.allclose(torch.cat(seen), shift + factor * given, 1e-4, 1e-5):
        why = f"{odd[0]}, and " if odd else ""
        return one, 0 * one, f"{why}these are the inputs of '{name}', which the network computes from its own"
    return factor, shift, ""


def _untested(layer: FirstLayer, loss: Loss | None) -> str:
    """Return why quotients cannot be tested, "" if they can."""
    leak = layer.leak
    if layer.unlike:
        return layer.unlike
    if loss is not None and loss != CrossEntropy():
        return f"the tests are made for the cross-entropy; this is {type(loss).__name__}"
    if max(layer.unit, layer.visible) > torch.finfo(torch.float32).eps / 2:
        return "the gradient is rounded more coarsely than float32"
    if leak.local_steps > STEPS:
        return f"at most {STEPS} local steps are simulated"
    if leak.local_steps > 1 and not leak.rate:
        return "the learning rate of the local steps is not known"
    return ""


def _alone(
    layer: FirstLayer,
    noise: float | None,
    loss: Loss | None,
    precision: str | Precision | None,
    box: tuple[float, float] | None,
) -> Units:
    """Return a single sample: the median of all units, if it has the gradient that was sent, or else the closest."""
    leak, quotients = layer.leak, layer.quotients[layer.alive]
    median = quotients.median(dim=0).values
    # For normal errors, the median absolute deviation is two thirds of the standard deviation.
    spread = BOUND * 1.5 * float((quotients - median).norm(dim=1).median())
    claimed = (spread if len(quotients) > 2 else math.inf) / max(float(median.norm()), TINY) + 2 * layer.unit
    group = _Group(layer.alive.nonzero()[:, 0], median, claimed)
    ends = (f"{name}.weight".lstrip(".") for name in leak.averaged or (leak.head,))
    withheld = next(filter(None, map(leak.withheld, ends)), "")
    if layer.unlike:
        reason = layer.unlike
    elif len(leak.gradients) == 2:
        reason = "there is no other layer that could confirm it"
    elif withheld:
        reason = f"the last layer cannot confirm it: {withheld}"
    elif precision is not None and coarser(precision, leak.weight.dtype):
        reason = f"as if nothing were rounded to {precision_of(precision).name}"
    else:
        # All units may give the same wrong input, if signs are sent or weights and biases are clipped separately.
        check = observed_again(leak, layer.network_inputs(median[None]), None, dtype=leak.weight.dtype)
        # Only the errors of cross-entropy with softmax sum to zero.
        check = check if loss is None or loss == CrossEntropy() else replace(check, unbalanced=0.0)
        reason = check.beyond(FITS, noise or 0.0, leak)
        if not reason and not claimed <= SURE:
            reason = f"it is known to {claimed:.1e} only"
    if reason:
        return _changed(layer, reason, box)
    found = _found(layer, [group], "", status="exact")
    return replace(found, guaranteed=torch.ones_like(found.guaranteed), claimed=claimed)


def _changed(layer: FirstLayer, reason: str, box: tuple[float, float] | None) -> Units:
    """Return the single sample that comes closest to a gradient that something has changed."""
    one = closest(layer.weight, layer.bias)
    values = one.values
    if box is not None:
        edges = torch.stack([layer.factor * edge + layer.shift for edge in box])
        values = one.filled(edges.amin(dim=0), edges.amax(dim=0))
    found = _found(layer, [_Group(layer.alive.nonzero()[:, 0], values, math.inf)], reason)
    deviation = one.deviation / float(layer.factor.abs().mean())
    claimed = BOUND * deviation * math.sqrt(len(values)) / max(float(found.inputs.norm()), TINY)
    if box is not None and found.inputs.ndim == 4:
        found = replace(found, inputs=smoothed(found.inputs, deviation, *box))
    return replace(found, claimed=claimed)


def _found(
    layer: FirstLayer,
    groups: list[_Group],
    reason: str,
    *,
    status: InversionStatus = "partial",
    labels: Mapping[int, int] = MappingProxyType({}),
    guaranteed: Sequence[int] = (),
) -> Units:
    """Return groups as a result; `labels` and `guaranteed` are by the place of a group."""
    order = sorted(range(len(groups)), key=lambda place: (place not in guaranteed, -len(groups[place].units)))
    device = layer.bias.device
    quotients = [groups[place].quotient for place in order]
    inputs = layer.network_inputs(torch.stack(quotients) if quotients else layer.weight[:0])
    sure = torch.tensor([place in guaranteed for place in order], dtype=torch.bool, device=device)
    lengths = (layer.factor * inputs.flatten(1)).norm(dim=1)
    errors = [groups[place].apart * float(groups[place].quotient.norm()) for place in order]
    return Units(
        inputs,
        torch.tensor([len(groups[place].units) for place in order], dtype=torch.long, device=device),
        torch.tensor([labels.get(place, -1) for place in order], dtype=torch.long, device=device),
        sure,
        status,
        reason,
        max((errors[row] / float(lengths[row]) for row in range(len(guaranteed))), default=math.inf),
        layer.unlike or chain.in_front(layer.leak),
    )


def _groups(layer: FirstLayer) -> list[_Group]:
    """Group the units whose quotients agree within their errors.

    Quotients are sorted by their product with a random vector, so only neighbours are compared.
    """
    units = layer.alive.nonzero()[:, 0]
    quotients, slack = layer.quotients[units], layer.slack[units]
    direction = torch.randn(quotients.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    places = quotients @ (direction / direction.norm()).to(quotients)
    order = places.argsort()
    low, high = (places - slack)[order], (places + slack)[order].cummax(dim=0).values
    runs = (low[1:] > high[:-1]).nonzero()[:, 0] + 1
    groups = []
    for run in order.tensor_split(runs.cpu()):
        left = run[slack[run].argsort()]
        while len(left):
            near = (quotients[left] - quotients[left[0]]).norm(dim=1) <= slack[left] + slack[left[0]]
            own = left[near]
            errors = layer.bias[units[own]]
            quotient = errors @ layer.weight[units[own]] / errors.square().sum()
            size = quotients[left[0]].norm().clamp(min=torch.finfo(torch.float64).tiny)
            groups.append(_Group(units[own], quotient, float(2 * slack[own].max() / size)))
            left = left[~near]
    return groups


def _tested(layer: FirstLayer, groups: list[_Group]) -> Units:
    """Return the groups, those first that are guaranteed to be samples."""
    leak = layer.leak
    sizes = torch.stack([group.quotient.norm() for group in groups])
    fits, silent = [], torch.zeros_like(layer.alive)
    for size, (fit, unmoved) in zip(sizes, _fits(layer, groups), strict=True):
        fits.append(fit)
        # Some mixtures are so large that they saturate units which no sample saturates.
        silent |= unmoved & (size <= sizes.median())
    # Other samples may have as much of a unit's gradient as the tolerance of the sample's own allows.
    mixed = (2 * (1 + sizes.median() / sizes)).tolist()
    bounded = [
        replace(group, apart=group.apart + fit.allowed * factor)
        for group, fit, factor in zip(groups, fits, mixed, strict=True)
    ]
    labels = {place: fit.label for place, fit in enumerate(fits) if fit.passed}
    if leak.local_steps == 1 and (whole := _whole(layer, bounded, fits)):
        return _found(
            layer, [bounded[place] for place in whole], "", status="exact",
            labels={row: labels[place] for row, place in enumerate(whole)}, guaranteed=range(len(whole)),
        )  # fmt: skip
    if not silent.any():
        return _found(layer, bounded, "no unit of the first layer is ever silent, and each of them mixes all samples")
    probabilities = torch.stack([fit.probabilities for fit in fits])
    spread = (probabilities - probabilities.median(dim=0).values).abs().amax(dim=1).median()
    # Samples with almost equal probabilities have almost equal errors, and mixtures of them fit more easily.
    varied = min(EQUATIONS, float(spread.clamp(min=torch.finfo(torch.float64).tiny)))
    sure = [
        place
        for place in labels
        if bounded[place].apart <= SURE and _sure(layer, groups[place], fits[place], silent, varied)
    ]
    owners = torch.full_like(layer.bias, -1, dtype=torch.long)
    owners[(layer.weight == 0).all(dim=1)] = len(groups)
    for place in sure:
        owners[groups[place].units] = place
    guaranteed = []
    for place in sure:
        changes = fits[place].changes
        least = NOTICED * changes.max() + leak.batch_size * layer.step_error
        changed = owners[changes > least]
        if bool(((changed == -1) | (changed == place)).all()):
            guaranteed.append(place)
    rest = "a unit that several samples activate shows a mixture of them"
    reason = f"{len(guaranteed)} of {len(groups)} different quotients are guaranteed to be samples: {rest}"
    return _found(layer, bounded, reason, labels=labels, guaranteed=guaranteed)


def _sure(layer: FirstLayer, group: _Group, fit: _Fit, silent: Tensor, varied: float) -> bool:
    """Return whether a group is too unlikely to be a mixture; `varied` is by how much the errors of samples differ."""
    # Units with dependent slopes agree together.
    count, alive = min(len(group.units), fit.equations), int(layer.alive.sum())
    if not bool(silent[group.units].all()):
        return False
    # A sample that is used in several steps may be taken for several samples with proportional errors.
    if layer.leak.local_steps > 1 and fit.spread < max(SPREAD, DENSITY * group.apart / SPREAD):
        return False
    hypotheses = len(layer.leak.weight) * len(_schedules(layer.leak.local_steps))
    if fit.contained is not None:
        tolerance, equations = fit.contained
        if math.log(alive * hypotheses) + equations * math.log(tolerance / varied) <= math.log(CHANCE):
            return True
    if count < 2:
        return False
    agree = math.log(alive) + (count - 1) * math.log(DENSITY * alive * group.apart) - math.lgamma(count + 1)
    fitting = math.log(hypotheses) + fit.equations * math.log(fit.allowed / varied)
    return agree + min(0.0, fitting) <= math.log(CHANCE)


def _schedules(steps: int) -> list[slice]:
    """Return the local steps that may have used a sample: every one, or every second, …, or a single one."""
    return [slice(first, None, gap) for gap in range(1, steps + 1) if steps % gap == 0 for first in range(gap)]


def _fits(layer: FirstLayer, groups: list[_Group]) -> Iterator[tuple[_Fit, Tensor]]:
    """Yield how each quotient's own gradient fits, and which units have no effect on the logits for it (O,)."""
    leak, count = layer.leak, len(layer.bias)
    span = _Span(layer)
    schedules, classes = _schedules(leak.local_steps), len(leak.weight)
    chunk = max(1, ELEMENTS // (classes * count * (leak.local_steps + 1)))
    for start in range(0, len(groups), chunk):
        part = groups[start : start + chunk]
        inputs = layer.network_inputs(torch.stack([group.quotient for group in part]))
        moments = [_own_errors(layer, inputs, step / leak.local_steps) for step in range(leak.local_steps)]
        changes, slopes = (torch.stack(values) for values in list(zip(*moments, strict=True))[:2])
        for row, group in enumerate(part):
            yield _fit(layer, group, changes[:, row], slopes[:, row], moments[0][2][row], schedules, span)


class _Span:
    """The span of the columns of the first layer's gradient, whose rows are divided by their lengths.

    A sample with errors δ (O,) adds δ (x, 1)ᵀ / B to a gradient R of low rank. So R y = δ / B has a solution, and
    (x, 1) y = 1. A mixture has other errors, for which the first has no solution, or not of this size.
    """

    def __init__(self, layer: FirstLayer) -> None:
        self.unit, self.size = layer.unit, layer.leak.batch_size
        rows = torch.cat([layer.weight, layer.bias[:, None]], dim=1)
        errors = layer.row_error / rows.norm(dim=1)
        # Rows that are nearly lost in rounding, or zero, are left out.
        self.rows = (errors < SURE).nonzero()[:, 0]
        rows, self.error = rows[self.rows], float(errors[self.rows].norm())
        self.lengths = rows.norm(dim=1)
        self.mixing = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
        if rows.shape[1] > max(COLUMNS, 4 * self.size):
            generator = torch.Generator().manual_seed(0)
            shape = (rows.shape[1], max(COLUMNS, 4 * self.size))
            self.mixing = torch.randn(shape, generator=generator, dtype=rows.dtype).to(rows) / math.sqrt(shape[1])
        left, values, right = torch.linalg.svd((rows / self.lengths[:, None]) @ self.mixing, full_matrices=False)
        rank = int((values > RESOLVED * self.error).sum())
        self.full = rank > min(rows.shape[0], self.mixing.shape[1]) - SPARE
        self.left, self.inverse = left[:, :rank], right[:rank].T / values[:rank]

    def contains(self, quotient: Tensor, changes: Tensor, slopes: Tensor, turned: float) -> tuple[float, int] | None:
        """Return the tolerance within which the gradient contains a sample's changes, and the number of equations.

        Args:
            quotient: The sample (D,).
            changes: Its errors δ at every unit (O,).
            slopes: The slopes of the logits (C, O).
            turned: The relative change of its errors over the local steps.

        Returns:
            None if the gradient does not contain the changes.
        """
        if self.full:
            return None
        scaled = changes[self.rows] / self.lengths
        solved = self.left.T @ scaled
        solution = self.mixing @ (self.inverse @ solved)
        rounding = (8 * self.unit * slopes[:, self.rows].abs().amax(dim=0) / self.lengths).norm()
        rounding += self.error * solution.norm()
        allowed = max(OWN * self.unit, LEAST_OWN) + float(rounding / scaled.norm()) + 2 * turned**2
        missed = float((scaled - self.left @ solved).norm() / scaled.norm())
        amount = float(quotient @ solution[:-1] + solution[-1]) / self.size
        if not (missed <= allowed <= SURE and abs(amount - 1) <= allowed):
            return None
        # The errors of another sample would be seen in these directions.
        centred = ((slopes - slopes.mean(dim=0))[:, self.rows] / self.lengths).T
        seen = torch.linalg.svdvals(centred - self.left @ (self.left.T @ centred))
        equations = int((seen > EQUATIONS * torch.linalg.matrix_norm(centred, 2)).sum())
        return allowed, 1 + equations


def _fit(
    layer: FirstLayer,
    group: _Group,
    changes: Tensor,
    slopes: Tensor,
    probabilities: Tensor,
    schedules: list[slice],
    span: _Span,
) -> tuple[_Fit, Tensor]:
    """Compare a quotient's own errors (S, C, O) at each local step with its units' bias gradients."""
    units = group.units
    sums = torch.stack([changes[steps].sum(dim=0) for steps in schedules])
    target = layer.leak.batch_size * layer.bias[units]
    size = float(target.abs().max())
    missed = (sums[:, :, units] - target).abs().amax(dim=2) / size
    schedule, label = divmod(int(missed.argmin()), missed.shape[1])
    best = sums[schedule, label]
    # Between the first and the last step, the errors change along a line, but for terms of second order.
    turned = _turned(changes[:, label, units])
    rounding = 8 * layer.unit * float(slopes[..., units].abs().amax()) * len(changes[schedules[schedule]])
    rounding += layer.leak.batch_size * float(layer.step_error[units].max())
    allowed = max(OWN * layer.unit, LEAST_OWN) + rounding / size + 2 * turned**2
    silent = (slopes[0] == slopes[0][:1]).all(dim=0)
    fit = _Fit(label, float(missed.min()), allowed, probabilities)
    if not fit.passed:
        return fit, silent
    singular = torch.linalg.svdvals(slopes[0][:, units] - slopes[0][:, units].mean(dim=0))
    others = probabilities.clone()
    others[label] = 0
    fit = replace(
        fit,
        changes=changes[:, label].abs().amin(dim=0) if len(changes) > 1 else best.abs(),
        equations=int((singular > EQUATIONS * singular[0]).sum()),
        spread=1 - float(others.max() / others.sum().clamp(min=torch.finfo(torch.float64).tiny)),
        contained=span.contains(group.quotient, best, slopes[0], _turned(changes[:, label])),
    )
    return fit, silent


def _turned(errors: Tensor) -> float:
    """Return by how much errors (S, …) differ from the first ones, relative to the largest."""
    return float((errors - errors[:1]).norm(dim=1).max() / errors.norm(dim=1).max().clamp(min=FINEST**2))


def _own_errors(layer: FirstLayer, inputs: Tensor, moment: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return δ at the first layer for each class (M, C, O), the slopes of the logits (M, C, O), and p (M, C).

    The weights are those at a moment from 0, before local training, to 1.
    """
    leak = layer.leak
    moved = moment * leak.rate
    values = {name: own.detach().double() for name, own in leak.model.named_parameters()}
    values |= {name: values[name] - moved * gradient.double() for name, gradient in leak.moves.items() if moved}
    values |= {key: own.double() if own.is_floating_point() else own for key, own in leak.model.named_buffers()}
    outputs = list[Tensor]()

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        # A copy, because activations may change it in place.
        return outputs[-1].clone()

    def differentiated() -> tuple[Tensor, list[Tensor]]:
        logits = leak.model(inputs.clone())
        sums = (logits[:, place].sum() for place in range(logits.shape[1]))
        return logits, [torch.autograd.grad(one, outputs[0], retain_graph=True)[0].flatten(1) for one in sums]

    with layer.module.register_forward_hook(keep), torch.enable_grad(), evaluating(leak.model):
        logits, rows = with_values(leak.model, values, differentiated)
    slopes, probabilities = torch.stack(rows, dim=1), logits.detach().softmax(dim=1)
    return (probabilities[:, :, None] * slopes).sum(dim=1, keepdim=True) - slopes, slopes, probabilities


def _whole(layer: FirstLayer, groups: list[_Group], fits: list[_Fit]) -> list[int]:
    """Return the places of B groups that together have the whole gradient, none if there are none."""
    leak = layer.leak
    places = [place for place, fit in enumerate(fits) if fit.passed and groups[place].apart <= SURE]
    places.sort(key=lambda place: (-len(groups[place].units), fits[place].missed))
    places = places[: leak.batch_size]
    if len(places) < leak.batch_size:
        return []
    quotients = torch.stack([groups[place].quotient for place in places])
    classes = torch.tensor([fits[place].label for place in places], device=quotients.device)
    inputs, allowed = layer.network_inputs(quotients), max(OWN * layer.unit, LEAST_OWN)
    parts = torch.stack([fits[place].changes for place in places]).norm(dim=1) * quotients.norm(dim=1)
    if float(parts.min()) < CONTRIBUTES * allowed * leak.batch_size * size_of(layer.weight):
        return []
    labels = F.one_hot(classes, len(leak.weight)).double()
    return [] if observed_again(leak, inputs, labels).beyond(allowed, 0.0, leak) else places


def _why_not(case: Case) -> str:
    return first_layer(without_weight_norm(case.leak) if case.noise == 0 else case.leak)[1]


def _attack(case: Case) -> Answer:
    return invert_units(case.leak, noise=case.noise, loss=case.loss, precision=case.precision, box=case.box).answers[0]


ATTACK = Attack(
    "unit by unit",
    page="units",
    finds=("inputs",),
    needs="a first layer that is Linear, or a convolution with one position, and has a bias; ReLU for several samples",
    refused=_why_not,
    run=_attack,
    remedy="a first layer without a bias; so many samples that several activate each unit; noise",
    memory=lambda case: 6 * DOUBLE * case.subject.parameters + 4 * DOUBLE * ELEMENTS,
)
