"""Invert fully connected networks: every layer's gradient is a linear equation for the layer's inputs.

Let δ (B, O) be the gradient of the summed loss after a layer's linear map, and A (B, I) the layer's inputs. The client
sends ∇W = δᵀ A / B. The inputs and labels of the last layer give its δ. Each layer then gives A by least squares, and
the δ of the layer below as (δ W) σ′(A). So one averaged gradient determines the whole batch if δ has rank B.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from gradleak.answers import Answer, InversionStatus
from gradleak.arguments import checked_arguments
from gradleak.cases import DOUBLE, NOISE, Attack, Case
from gradleak.devices import least_squares
from gradleak.errors import GradleakWarning, InputError, unknown
from gradleak.images.inversion import chain
from gradleak.images.inversion.again import observed_again
from gradleak.images.inversion.chain import Layer
from gradleak.labels.priors import LabelPrior
from gradleak.labels.soft.batch.recover import recover_batch
from gradleak.labels.soft.single import Solver, recover_soft_labels
from gradleak.labels.verdict import check_noise
from gradleak.leak import Leak
from gradleak.precision import Precision, coarser, rounding_unit

Rule = Literal["least-squares", "mean", "published"]
RULES: tuple[Rule, ...] = ("least-squares", "mean", "published")
# Convert this many entries of a layer's gradient to float64 at a time, to save memory.
CHUNK_ELEMENTS = 2**21
# The features of a batch have errors, so outputs of ReLU below this share of the largest count as zero. The threshold
# is higher where the errors are larger.
ZERO = 1e-5
# Rows of a gradient with a larger relative residual show where an output was wrongly taken for zero.
MISSED = 1e-3
REWEIGHTED = 30
# The rank of δ is the number of its singular values above this many rounding units of the largest.
RANK = 32.0
# The number of rows on which a single sample's inputs are checked.
CHECKED = 256
# A layer's equations are not solved if the relative error of its gradient is larger.
FITS = 1e-3
# The largest relative error of the gradient of the whole result, in the client's rounding units, if above FITS.
ALLOWED = 32.0
# Inputs with a larger claimed relative error are not "exact".
SURE = 1e-2


@dataclass(frozen=True)
class LayerReport:
    """The result of one layer's equations.

    Attributes:
        name: The layer's name.
        equations: The number of equations.
        unknowns: The number of unknowns.
        rank: The rank of δ in Linear layers, the number of determined unknowns in convolutions.
        misfit: The relative error of the gradient that the found inputs give.
        reason: Why the inputs are not exact, "" if they are.
        claimed: The estimated relative error of the inputs, None without an estimate.
        found: The recovered inputs.
    """

    name: str
    equations: int
    unknowns: int
    rank: int
    misfit: float
    reason: str = ""
    claimed: float | None = None
    found: Tensor | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Inversion:
    """A batch that was recovered from its gradient.

    An "exact" batch is the private batch if the client sent the gradient of the mean cross-entropy at the model's
    weights. The gradient of another loss may equal that of other inputs exactly.

    Attributes:
        inputs: The inputs of the first layer (B, …) in float64, NaN where they could not be recovered.
        labels: The labels (B, C) in float64, NaN where they could not be recovered.
        layers: A report for each layer below the last, from the top down.
        status: "exact" if every layer's inputs are determined and the batch has the gradient that was sent; "partial"
            if the batch is an estimate; or "failed".
        reason: Why the batch is not exact, "" if it is.
        residual: The largest relative error, over all parameters, of the gradient that the batch gives.
        in_front: What changes the network's inputs before the first layer in train mode, "" if nothing is known to do
            so. The gradient shows only what the first layer sees.
    """

    inputs: Tensor
    labels: Tensor
    layers: tuple[LayerReport, ...]
    status: InversionStatus
    reason: str = ""
    residual: float = math.inf
    in_front: str = ""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch."""
        claims = [layer.claimed for layer in self.layers if layer.claimed is not None]
        claimed = max(claims, default=math.inf) if self.status == "exact" else math.inf
        return (
            Answer(
                self.status,
                self.reason,
                claimed=claimed,
                labels=self.labels,
                inputs=self.inputs,
                in_front=self.in_front,
            ),
        )


@checked_arguments(labels="B C")
def invert_fully_connected(
    leak: Leak, labels: Tensor | None = None, *, precision: str | Precision | None = None
) -> Tensor:
    """Return the private inputs (B, D) in float64 from a fully connected network's gradients.

    Warn if they are not exact; inputs that could not be recovered are NaN. `trace_fully_connected` takes the same
    arguments and returns a full report.
    """
    return told(trace_fully_connected(leak, labels, precision=precision)).inputs


def told(found: Inversion) -> Inversion:
    """Return the inversion, and warn if it is not exact."""
    if found.status != "exact":
        warnings.warn(f"inversion {found.status}: {found.reason}", GradleakWarning, stacklevel=3)
    return found


@checked_arguments(labels="B C")
def trace_fully_connected(
    leak: Leak,
    labels: Tensor | None = None,
    *,
    prior: str | LabelPrior = "smoothing",
    rule: Rule = "least-squares",
    noise: float | None = 0.0,
    precision: str | Precision | None = None,
) -> Inversion:
    """Invert a fully connected network layer by layer, and report on every layer.

    Args:
        leak: The gradient, and the model that it is from.
        labels: The labels (B, C) if the attacker knows them; otherwise they are recovered.
        prior: The shape of labels that are recovered.
        rule: "least-squares" uses all rows, in float64; "mean" is wang2024's recursion for single samples; "published"
            is the same recursion after the label search of the paper's code.
        noise: The standard deviation of the noise on every entry; None to estimate it.
        precision: The precision in which the client computes, if the attacker knows it. Inputs are "exact" only if
            their claimed relative error is at most a hundredth.

    Examples:
        >>> from gradleak import observe
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> leak = observe(model, torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([1]))
        >>> inversion = trace_fully_connected(leak)
        >>> inversion.status, inversion.inputs
        ('exact', tensor([[0.1000, 0.2000, 0.3000, 0.4000]], dtype=torch.float64))
    """
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    check_noise(noise)
    leak.check_one_step("an inversion")
    first = next((module for module in leak.model.modules() if isinstance(module, nn.Linear)), None)
    layers = chain.layers(leak.model, (nn.Linear,), (first.in_features if first is not None else 1,))
    chain.check_sent(leak, layers)
    if rule != "least-squares" and precision is not None:
        raise InputError(f"the rule '{rule}' takes no precision; \"least-squares\" does")
    with torch.no_grad():
        if rule == "least-squares":
            found = _least_squares(leak, layers, labels, prior, noise, precision)
        else:
            found = _mean(leak, layers, prior, "exact" if rule == "mean" else "lbfgs")
    return replace(found, in_front=chain.in_front(leak.model))


@dataclass(frozen=True)
class Top:
    """The last layer's inputs (B, I), labels (B, C) and errors p − y (B, C); the reason if they are not certain."""

    features: Tensor
    labels: Tensor
    errors: Tensor
    certain: bool
    reason: str


def last_layer(
    leak: Leak,
    layers: list[Layer],
    labels: Tensor | None,
    prior: str | LabelPrior,
    noise: float | None = 0.0,
    precision: str | Precision | None = None,
) -> Top:
    """Recover the last layer's inputs, and the labels unless they are known."""
    nonnegative = len(layers) > 1 and isinstance(layers[-2].activation_module, nn.ReLU | nn.Sigmoid)
    if leak.batch_size == 1 and labels is None:
        single = recover_soft_labels(
            leak.weight_gradient,
            leak.weight,
            bias=leak.bias,
            bias_gradient=leak.bias_gradient,
            prior=prior,
            nonnegative=nonnegative,
            noise=noise,
            precision=precision,
        )
        hidden, label, certain, reason = single.features, single.labels, single.status[0] == "unique", single.reasons[0]
    else:
        batch = recover_batch(
            leak.weight_gradient,
            leak.weight,
            batch_size=leak.batch_size,
            prior=prior,
            labels=labels,
            bias=leak.bias,
            bias_gradient=leak.bias_gradient,
            nonnegative=nonnegative,
            noise=noise,
            precision=precision,
        )
        hidden, label, certain, reason = batch.features, batch.labels, batch.status == "unique", batch.reason
    logits = hidden @ leak.weight.double().T + (0 if leak.bias is None else leak.bias.double())
    return Top(hidden, label, logits.softmax(dim=1) - label, certain, reason)


def _least_squares(
    leak: Leak,
    layers: list[Layer],
    labels: Tensor | None,
    prior: str | LabelPrior,
    noise: float | None,
    precision: str | Precision | None,
) -> Inversion:
    top = last_layer(leak, layers, labels, prior, noise, precision)
    inputs, errors = top.features, top.errors
    reports: list[LayerReport] = []
    reasons = [] if top.certain else [f"last layer '{layers[-1].name}': {top.reason}"]
    unit = rounding_unit(precision, leak.weight_gradient.dtype)
    coarse = coarser(precision, leak.weight_gradient.dtype)
    doubt = _doubt(top, leak, unit) if coarse else 0.0
    for above, layer in zip(reversed(layers), reversed(layers[:-1]), strict=False):
        delta = (errors @ above.weight) * _slopes(layer, inputs)
        bias_gradient = leak.gradients.get(f"{layer.name}.bias")
        if bias_gradient is not None and leak.batch_size == 1:
            delta = bias_gradient.double()[None]  # a single sample's δ is the gradient of the bias
            doubt = 0.0
        inputs, errors, report = _solved(leak.gradients[f"{layer.name}.weight"], delta, layer.name, unit)
        if coarse:
            report = _claimed(report, errors, unit, doubt)
        reports.append(report)
        reasons += [f"layer '{layer.name}': {report.reason}"] if report.reason else []
    # The first layer, if it has a bias, gives a single sample's input without the other layers, which then confirm it.
    bias_suffices = leak.batch_size == 1 and len(layers) > 1 and f"{layers[0].name}.bias" in leak.gradients
    certain = top.certain or bias_suffices
    if not certain or any(report.reason for report in reports):
        incomplete = bool(inputs.isnan().any())
        return Inversion(inputs, top.labels, tuple(reports), "failed" if incomplete else "partial", "; ".join(reasons))
    check = observed_again(leak, inputs, top.labels if top.certain else None)
    reason = check.beyond(max(FITS, ALLOWED * unit), noise or 0.0, leak)
    if not coarse and reports and not reason:
        # The residual of the first layer's gradient shows the error of its inputs, even if these mix several samples.
        first_report = replace(reports[-1], misfit=check.misses[f"{layers[0].name}.weight"])
        reports[-1] = replace(_claimed(first_report, errors, unit, 0.0), misfit=reports[-1].misfit)
        reason = reports[-1].reason and f"layer '{layers[0].name}': {reports[-1].reason}"
    return Inversion(inputs, top.labels, tuple(reports), "partial" if reason else "exact", reason, check.worst)


def _doubt(top: Top, leak: Leak, unit: float) -> float:
    """Return the largest relative error of p − y that the client's rounding can cause."""
    logits = top.features @ leak.weight.double().T + (0 if leak.bias is None else leak.bias.double())
    p, largest = logits.softmax(dim=1), logits.abs().amax(dim=1, keepdim=True)
    deviations = unit * (p * (1 + (1 - p) * largest) + top.labels.abs())
    return float((deviations.norm(dim=1) / top.errors.norm(dim=1)).max())


def _claimed(report: LayerReport, errors: Tensor, unit: float, doubt: float) -> LayerReport:
    """Return the report with the relative error of the inputs that follows from the client's rounding.

    The residual of the gradient's rows shows the errors of δ, except for a common factor. `doubt` bounds the error of
    this factor, which follows from the labels.
    """
    if report.reason or not errors.isfinite().all():
        return report
    # Unlike these, the values of `torch.linalg.svdvals` differ in the last digit between devices.
    values = torch.linalg.svd(errors, full_matrices=False).S
    claimed = float(values[0] / values[-1]) * max(unit, report.misfit) + doubt
    reason = f"its inputs are known to {claimed:.1e} only" if not claimed <= SURE else ""
    return replace(report, claimed=claimed, reason=reason)


def _mean(leak: Leak, layers: list[Layer], prior: str | LabelPrior, solver: Solver) -> Inversion:
    """Run wang2024's recursion in the gradient's precision: average the inputs that each row gives."""
    if leak.batch_size != 1:
        raise InputError(f"the paper's recursion is for single samples; got a batch of {leak.batch_size}")
    soft_labels = recover_soft_labels(leak.weight_gradient, leak.weight, prior=prior, solver=solver)
    inputs = soft_labels.features[0].to(leak.weight_gradient)
    errors = (leak.weight_gradient / inputs).nanmean(dim=1)
    for above, layer in zip(reversed(layers), reversed(layers[:-1]), strict=False):
        errors = torch.where(inputs == 0, 0, errors @ above.module.weight.detach())
        gradient = leak.gradients[f"{layer.name}.weight"]
        rows = gradient.sum(dim=1) != 0
        inputs = (gradient[rows] / errors[rows, None]).mean(dim=0)
    expected = "unique" if solver == "exact" else "found"
    if soft_labels.status[0] != expected or not inputs.isfinite().all():
        reason = soft_labels.reasons[0] if soft_labels.status[0] != expected else "a row without a δ"
        status: InversionStatus = "partial" if inputs.isfinite().all() else "failed"
        return Inversion(inputs.double()[None], soft_labels.labels, (), status, reason)
    check = observed_again(leak, inputs.double()[None], soft_labels.labels)
    reason = check.beyond(FITS, 0.0, leak)
    return Inversion(
        inputs.double()[None], soft_labels.labels, (), "partial" if reason else "exact", reason, check.worst
    )


@checked_arguments()
def bias_attack(leak: Leak) -> Tensor:
    """Return for every unit of the first layer the gradient of its weight divided by that of its bias, (O, D).

    For a unit that is active for a single sample, the quotient is that sample, as the first layer sees it. For several
    samples it is a weighted mean of them, and for none it is NaN.

    Examples:
        >>> from gradleak import observe
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> leak = observe(model, torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([1]))
        >>> bias_attack(leak).nanmean(dim=0)
        tensor([0.1000, 0.2000, 0.3000, 0.4000], dtype=torch.float64)
    """
    name, reason = _first_layer(leak)
    if reason:
        raise InputError(f"the bias attack needs the gradient of a first layer that is Linear: {reason}")
    weight, bias = (leak.gradients[f"{name}.{kind}".lstrip(".")].double() for kind in ("weight", "bias"))
    return weight / torch.where(bias == 0, torch.nan, bias)[:, None]


def _first_layer(leak: Leak) -> tuple[str, str]:
    """Return the name of a network's first layer, and why the bias attack cannot be used on it, "" if it can."""
    owners = (own for own in leak.model.named_modules() if next(own[1].parameters(recurse=False), None) is not None)
    name, layer = next(owners)
    if not isinstance(layer, nn.Linear):
        return name, f"the first layer is {type(layer).__name__} '{name}'"
    if leak.input_shape is not None and layer.in_features != math.prod(leak.input_shape):
        return name, f"'{name}' does not see the whole input"
    if getattr(layer, "bias", None) is None:
        return name, "the first layer has no bias"
    return name, leak.withheld(f"{name}.weight".lstrip(".")) or leak.withheld(f"{name}.bias".lstrip("."))


def _slopes(layer: Layer, outputs: Tensor) -> Tensor:
    """Return σ′ at a layer's outputs; outputs of ReLU that are zero within their errors count as zero."""
    if isinstance(layer.activation_module, nn.ReLU):
        # ReLU has no negative outputs, so negative values show the errors of the zeros. Those of a single sample
        # without noise are exact.
        noise = -3 * outputs.amin(dim=1, keepdim=True)
        if len(outputs) > 1:
            noise = torch.maximum(noise, ZERO * outputs.amax(dim=1, keepdim=True))
        outputs = torch.where(outputs > noise, outputs, 0)
    return layer.activation.slope(outputs)


def _solved(gradient: Tensor, sloped: Tensor, name: str, unit: float) -> tuple[Tensor, Tensor, LayerReport]:
    """Return a layer's inputs A (B, I), its δ (B, O) corrected where it contradicts the gradient, and a report."""
    count, (outputs, width) = len(sloped), gradient.shape
    if not sloped.isfinite().all():
        blank = sloped.new_full((count, width), torch.nan)
        return blank, sloped, LayerReport(name, outputs * width, count * width, 0, torch.inf, "its δ is not known")
    dead = (sloped == 0).all(dim=1)
    inputs, rank = _inputs(gradient, sloped, unit)
    misses = _missed(gradient, sloped, inputs) if count > 1 else None
    if misses is not None and float(misses.max()) > MISSED:
        sloped = _mended(gradient, sloped)
        inputs, rank = _inputs(gradient, sloped, unit)
        misses = _missed(gradient, sloped, inputs)
    if misses is None:
        rows = slice(None, None, max(1, outputs // CHECKED))
        misses = _missed(gradient[rows], sloped[:, rows], inputs)
    misfit = float(misses.square().mean().sqrt())
    reason = ""
    if dead.any():
        reason = f"dead for {int(dead.sum())} of {count} samples: no unit passes anything on"
        inputs[dead] = torch.nan
    elif rank < count:
        reason = f"its δ has rank {rank}, for {count} samples: only mixtures of their inputs can be had"
    elif misfit > FITS:
        reason = f"the inputs found miss its gradient by {misfit:.1e}"
    return inputs, sloped, LayerReport(name, outputs * width, count * width, rank, misfit, reason, found=inputs)


def _mended(gradient: Tensor, sloped: Tensor) -> Tensor:
    """Return δ with the units corrected that contradict the gradient, such as units wrongly taken for inactive.

    Iteratively reweighted least squares minimises the sum of the residuals' norms, which is robust against a few wrong
    units. For speed, the gradient's columns are replaced by B + 8 random mixtures of them.
    """
    count = len(sloped)
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(gradient.shape[1], count + 8, generator=generator, dtype=torch.float64).to(sloped.device)
    mixtures = count * torch.cat([rows @ mixing for _, rows in _rows(gradient)])
    size = mixtures.norm(dim=1).square().mean().sqrt()
    weights = torch.ones_like(size).expand(len(mixtures))
    for _ in range(REWEIGHTED):
        inputs = least_squares(weights[:, None] * sloped.T, weights[:, None] * mixtures)
        misses = (mixtures - sloped.T @ inputs).norm(dim=1) / size
        weights = misses.clamp(min=MISSED / 100).rsqrt()
    wrong = misses > MISSED
    if wrong.all() or (~wrong).sum() < count:
        return sloped
    inputs = least_squares(sloped.T[~wrong], mixtures[~wrong])
    mended = sloped.clone()
    mended[:, wrong] = least_squares(inputs.T, mixtures[wrong].T)
    return mended


def _rows(gradient: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of a gradient's rows, and those rows in float64."""
    step = max(1, CHUNK_ELEMENTS // gradient.shape[1])
    for start in range(0, len(gradient), step):
        part = slice(start, start + step)
        yield part, gradient[part].double()


def _inputs(gradient: Tensor, sloped: Tensor, unit: float) -> tuple[Tensor, int]:
    """Return the minimum-norm least-squares solution A (B, I) of δᵀ A / B = gradient, and the rank of δ."""
    left, values, right = torch.linalg.svd(sloped, full_matrices=False)
    significant = values > RANK * unit * values[0]
    inverse = torch.where(significant, 1 / values.clamp(min=torch.finfo(values.dtype).tiny), 0)
    pseudoinverse = len(sloped) * (left * inverse) @ right
    inputs = gradient.new_zeros(len(sloped), gradient.shape[1], dtype=torch.float64)
    for part, rows in _rows(gradient):
        inputs += pseudoinverse[:, part] @ rows
    return inputs, int(significant.sum())


def _missed(gradient: Tensor, sloped: Tensor, inputs: Tensor) -> Tensor:
    """Return the norm of each row's residual, relative to the root mean square of the rows' norms, (O,)."""
    misses, sizes = [], []
    for part, rows in _rows(gradient):
        sizes.append(rows.norm(dim=1))
        misses.append((rows - sloped[:, part].T @ inputs / len(sloped)).norm(dim=1))
    size = torch.cat(sizes).square().mean().sqrt()
    return torch.cat(misses) / size.clamp(min=torch.finfo(torch.float64).tiny)


def _why_not(case: Case) -> str:
    if case.subject.chain != "linear":
        return case.subject.chain_reason or "the network has convolutions"
    return case.unsent or case.no_label


def _attack(case: Case) -> Answer:
    inversion = trace_fully_connected(case.rescaled(), prior=case.prior, noise=case.noise, precision=case.precision)
    return case.with_one_factor(replace(inversion.answers[0], labels=None))


ATTACK = Attack(
    "linear layers backwards",
    page="exact-batch",
    finds=("inputs",),
    needs="all gradients of a chain of Linear layers, and a batch that is small compared with its narrowest layer",
    refused=_why_not,
    run=_attack,
    remedy=NOISE,
    memory=lambda case: 6 * DOUBLE * case.subject.parameters,
)


def _why_not_first(case: Case) -> str:
    if reason := _first_layer(case.leak)[1]:
        return reason
    if case.size * case.leak.local_steps > 1:
        return "with several samples each unit holds a mixture"
    return ""


def _attack_first(case: Case) -> Answer:
    units = bias_attack(case.leak)
    units = units[units.isfinite().all(dim=1)]
    if len(units) == 0:
        return Answer("failed", "no unit of the first layer passed anything on")
    inputs = units.median(dim=0).values.reshape(1, *case.subject.input_shape)
    found = Answer("exact", inputs=inputs, in_front=chain.in_front(case.leak.model))
    if len(case.leak.gradients) == 2:
        return replace(found, status="partial", reason="there is no other layer that could confirm it")
    if case.coarse:
        return case.without_rounding(found)
    # All units may give the same wrong input, if signs are sent or weights and biases are clipped separately.
    check = observed_again(case.leak, inputs, None, dtype=case.leak.weight.dtype)
    # Only the errors of cross-entropy with softmax sum to zero.
    check = check if case.plain else replace(check, unbalanced=0.0)
    reason = check.beyond(FITS, case.noise or 0.0, case.leak)
    return replace(found, status="partial", reason=reason) if reason else found


BIAS_ATTACK = Attack(
    "bias attack",
    page="exact-batch",
    finds=("inputs",),
    needs="a first layer that is Linear and has a bias, and one sample",
    refused=_why_not_first,
    run=_attack_first,
    remedy="a first layer without a bias; several samples",
)
