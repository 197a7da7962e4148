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
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradleak.answers import Answer, InversionStatus
from gradleak.arguments import checked_arguments
from gradleak.cases import DOUBLE, NOISE, Attack, Case
from gradleak.devices import least_squares
from gradleak.errors import GradleakWarning, InputError, unknown
from gradleak.images.head import logits_of
from gradleak.images.inversion import chain
from gradleak.images.inversion.again import TINY, observed_again, size_of
from gradleak.images.inversion.chain import Layer
from gradleak.labels.priors import LabelPrior, check_noise
from gradleak.labels.soft.batch.recover import recover_batch
from gradleak.labels.soft.single import Solver, recover_soft_labels
from gradleak.leak import Leak
from gradleak.precision import Precision, rounding_unit

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
# Claimed errors in standard deviations.
BOUND = 4.0
# The attack's own rounding errors, relative to a result.
FINEST = 4 * torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Known:
    """Values, and the standard deviation of each entry."""

    value: Tensor
    error: Tensor


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
        claimed: The largest relative error of a sample's inputs, estimated without the truth; inf without an estimate.
            If every assumption holds, fewer than one of a thousand batches exceeds it.
        in_front: What changes the network's inputs before the first layer in train mode, "" if nothing is known to do
            so. The gradient shows only what the first layer sees.
    """

    inputs: Tensor
    labels: Tensor
    layers: tuple[LayerReport, ...]
    status: InversionStatus
    reason: str = ""
    residual: float = math.inf
    claimed: float = math.inf
    in_front: str = ""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch."""
        return (
            Answer(
                self.status,
                self.reason,
                claimed=self.claimed,
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
    return warned(trace_fully_connected(leak, labels, precision=precision)).inputs


def warned(found: Inversion) -> Inversion:
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
    shape = leak.input_shape or (first.in_features if first is not None else 1,)
    layers = chain.layers(leak.model, (nn.Linear,), shape, leak.batch_size)
    chain.check_sent(leak, layers)
    if rule != "least-squares" and precision is not None:
        raise InputError(f"the rule '{rule}' takes no precision; \"least-squares\" does")
    with torch.no_grad():
        if rule == "least-squares":
            found = _least_squares(leak, layers, labels, prior, noise, precision)
        else:
            found = _mean(leak, layers, prior, "exact" if rule == "mean" else "lbfgs")
    return replace(found, in_front=chain.in_front(leak))


@dataclass(frozen=True)
class Top:
    """The last layer's inputs (B, I), labels (B, C) and errors p − y (B, C); the reason if they are not certain.

    `loose` is the relative uncertainty of each sample's inputs (B,).
    """

    features: Tensor
    labels: Tensor
    errors: Tensor
    certain: bool
    reason: str
    loose: Tensor


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
    known: dict[str, Any] = {"prior": prior, "nonnegative": nonnegative, "noise": noise, "precision": precision}
    if leak.batch_size == 1 and labels is None:
        single = recover_soft_labels(leak, **known)
        hidden, label, loose = single.features, single.labels, single.loose
        certain, reason = single.status[0] == "unique", single.reasons[0]
    else:
        batch = recover_batch(leak, labels=labels, **known)
        hidden, label, loose = batch.features, batch.labels, batch.loose
        certain, reason = batch.status == "unique", batch.reason
    return Top(hidden, label, logits_of(leak, hidden).softmax(dim=1) - label, certain, reason, loose)


def _least_squares(
    leak: Leak,
    layers: list[Layer],
    labels: Tensor | None,
    prior: str | LabelPrior,
    noise: float | None,
    precision: str | Precision | None,
) -> Inversion:
    top = last_layer(leak, layers, labels, prior, noise, precision)
    # The attack itself computes in float64.
    unit = max(rounding_unit(precision, leak.weight_gradient.dtype), FINEST)
    told_noise = noise or 0.0
    # Apart from the error of each feature's length, which is `loose`.
    feature_error = (unit * top.features.square().mean(dim=1).sqrt())[:, None]
    inputs, delta, loose = Known(top.features, feature_error), _top_delta(top, leak, unit), top.loose
    reports: list[LayerReport] = []
    reasons = [] if top.certain else [f"last layer '{layers[-1].name}': {top.reason}"]
    for above, layer in zip(reversed(layers), reversed(layers[:-1]), strict=False):
        delta = _carried(delta, above, layer, inputs, loose, unit)
        bias_gradient = leak.gradients.get(f"{layer.name}.bias")
        if bias_gradient is not None and leak.batch_size == 1:
            # A single sample's δ is the gradient of the bias.
            value = bias_gradient.double()[None]
            delta, loose = Known(value, (unit * value).abs() + told_noise), torch.zeros_like(loose)
        inputs, delta, report = _solved(
            leak.gradients[f"{layer.name}.weight"], delta, loose, layer.name, unit, told_noise
        )
        reports.append(report)
        reasons += [f"layer '{layer.name}': {report.reason}"] if report.reason else []
    claimed = _claimed(inputs, loose)
    # The first layer, if it has a bias, gives a single sample's input without the other layers, which then confirm it.
    bias_suffices = leak.batch_size == 1 and len(layers) > 1 and f"{layers[0].name}.bias" in leak.gradients
    if not (top.certain or bias_suffices) or any(report.reason for report in reports):
        status: InversionStatus = "failed" if bool(inputs.value.isnan().any()) else "partial"
        return Inversion(inputs.value, top.labels, tuple(reports), status, "; ".join(reasons))
    check = observed_again(leak, inputs.value, top.labels if top.certain else None)
    reason = check.beyond(max(FITS, ALLOWED * unit), told_noise, leak)
    if not reason and not claimed <= SURE:
        reason = f"layer '{layers[0].name}': its inputs are known to {claimed:.1e} only"
    status = "partial" if reason else "exact"
    return Inversion(inputs.value, top.labels, tuple(reports), status, reason, check.worst, claimed)


def _top_delta(top: Top, leak: Leak, unit: float) -> Known:
    """Return the errors p − y and their standard deviations, apart from a common factor of each sample."""
    logits = logits_of(leak, top.features)
    p, largest = logits.softmax(dim=1), logits.abs().amax(dim=1, keepdim=True)
    error = unit * (p * (1 + (1 - p) * largest) + top.labels.abs())
    if len(p) > 1:
        # An error of several samples' features mixes them, and so changes p.
        reach = (leak.weight.double() @ torch.linalg.qr(top.features.T).Q).norm(dim=1)
        turned = p * ((1 - 2 * p) * reach + (p @ reach)[:, None])
        moved = (top.loose * top.features.norm(dim=1) / BOUND)[:, None] * turned
        error = (error.square() + moved.square()).sqrt()
    return Known(top.errors, error)


def _carried(delta: Known, above: Layer, layer: Layer, outputs: Known, loose: Tensor, unit: float) -> Known:
    """Return the δ of a layer, from the layer above and from the layer's outputs."""
    value, slope = delta.value @ above.weight, _slopes(layer, outputs.value)
    rounding = unit * (delta.value.abs() @ above.weight.abs())
    variance = delta.error.square() @ above.weight.square() + rounding.square()
    # The error of the slope, estimated by moving the outputs by their error. Inactive units of ReLU stay inactive.
    moved = outputs.value + slope.sign() * (outputs.error + loose[:, None] * outputs.value.abs())
    slope_error = (value * (_slopes(layer, moved) - slope)).square()
    return Known(value * slope, (variance * slope.square() + slope_error).sqrt())


def _claimed(inputs: Known, loose: Tensor) -> float:
    """Return the largest claimed relative error of a sample's inputs (B, I), which have errors (B, 1)."""
    relative = inputs.error[:, 0] * math.sqrt(inputs.value.shape[1]) / inputs.value.norm(dim=1)
    return float((BOUND * relative + loose).max().clamp(min=BOUND * FINEST))


def _mean(leak: Leak, layers: list[Layer], prior: str | LabelPrior, solver: Solver) -> Inversion:
    """Run wang2024's recursion in the gradient's precision: average the inputs that each row gives."""
    if leak.batch_size != 1:
        raise InputError(f"the paper's recursion is for single samples; got a batch of {leak.batch_size}")
    soft_labels = recover_soft_labels(leak, prior=prior, solver=solver)
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
    # What the means are off by follows from least squares, whose error is known.
    sure = _least_squares(leak, layers, None, prior, 0.0, None)
    claimed = sure.claimed + float((inputs - sure.inputs[0]).norm() / sure.inputs.norm())
    reason = check.beyond(FITS, 0.0, leak) or sure.reason
    if not reason and not claimed <= SURE:
        reason = f"its inputs are known to {claimed:.1e} only"
    status = "partial" if reason else "exact"
    return Inversion(inputs.double()[None], soft_labels.labels, (), status, reason, check.worst, claimed)


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


def _solved(
    gradient: Tensor, delta: Known, loose: Tensor, name: str, unit: float, noise: float
) -> tuple[Known, Known, LayerReport]:
    """Return a layer's inputs A (B, I), its δ (B, O) corrected where it contradicts the gradient, and a report."""
    sloped, count, (outputs, width) = delta.value, len(delta.value), gradient.shape
    if not sloped.isfinite().all():
        blank = Known(sloped.new_full((count, width), torch.nan), sloped.new_full((count, 1), torch.inf))
        return blank, delta, LayerReport(name, outputs * width, count * width, 0, torch.inf, "its δ is not known")
    dead = (sloped == 0).all(dim=1)
    inputs, inverse, rank = _inputs(gradient, sloped, unit)
    misses = _missed(gradient, sloped, inputs) if count > 1 else None
    if misses is not None and float(misses.max()) > MISSED:
        sloped = _mended(gradient, sloped)
        inputs, inverse, rank = _inputs(gradient, sloped, unit)
        misses = _missed(gradient, sloped, inputs)
    if misses is None:
        rows = slice(None, None, max(1, outputs // CHECKED))
        misses = _missed(gradient[rows], sloped[:, rows], inputs)
    misfit = float(misses.square().mean().sqrt())
    # A = P ∇W with P = B pinv(δᵀ), so an error Δ of δ adds −P Δᵀ A / B, and an error E of ∇W adds P E.
    sizes, size = inputs.square().mean(dim=1), size_of(gradient)
    entry = noise**2 + (unit * size) ** 2 / gradient.numel()
    by_delta = delta.error.square() @ inverse.square().T / count**2
    variance = by_delta.T @ sizes + entry * inverse.square().sum(dim=1)
    # Larger residuals than expected show that the assumed errors are too small.
    expected = entry * gradient.numel() + float((delta.error.square().T @ sizes).sum()) * width / count**2
    error = variance.sqrt() * max(1.0, misfit * size / math.sqrt(max(expected, TINY)))
    reason = ""
    if dead.any():
        reason = f"dead for {int(dead.sum())} of {count} samples: no unit passes anything on"
        inputs[dead] = torch.nan
    elif rank < count:
        reason = f"its δ has rank {rank}, for {count} samples: only mixtures of their inputs can be had"
    elif misfit > FITS:
        reason = f"the inputs found miss its gradient by {misfit:.1e}"
    known = Known(inputs, error[:, None])
    report = LayerReport(
        name, outputs * width, count * width, rank, misfit, reason, _claimed(known, loose), found=inputs
    )
    return known, Known(sloped, delta.error), report


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


def _inputs(gradient: Tensor, sloped: Tensor, unit: float) -> tuple[Tensor, Tensor, int]:
    """Return the minimum-norm solution A (B, I) of δᵀ A / B = gradient, P (B, O) with A = P gradient, and δ's rank."""
    left, values, right = torch.linalg.svd(sloped, full_matrices=False)
    significant = values > RANK * unit * values[0]
    inverse = torch.where(significant, 1 / values.clamp(min=torch.finfo(values.dtype).tiny), 0)
    pseudoinverse = len(sloped) * (left * inverse) @ right
    inputs = gradient.new_zeros(len(sloped), gradient.shape[1], dtype=torch.float64)
    for part, rows in _rows(gradient):
        inputs += pseudoinverse[:, part] @ rows
    return inputs, pseudoinverse, int(significant.sum())


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
    page="batches",
    finds=("inputs",),
    needs="all gradients of a chain of Linear layers, and a batch that is small compared with its narrowest layer",
    refused=_why_not,
    run=_attack,
    remedy=NOISE,
    memory=lambda case: 6 * DOUBLE * case.subject.parameters,
)
