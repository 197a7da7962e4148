"""Fully connected networks run backwards: every layer's gradient is a linear equation for the layer's inputs.

With δ (B, O) the gradient of the summed loss after a layer's linear map and A (B, I) the layer's inputs, the client
sends ∇W = δᵀ A / B. The head's inputs and labels give δ there; each layer then gives A by least squares, and with it
the δ of the layer below, (δ W) σ′(A). One averaged gradient holds a whole batch this way, as long as δ has rank B.
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
# A layer's gradient is brought to float64 this many entries at a time.
CHUNK_ELEMENTS = 2**21
# The features of a batch come with errors: a rectified one below this share of the largest counts as zero (more where
# the errors are larger) ...
ZERO = 1e-5
# ... and rows of the next gradient that miss by more than this say where that was wrong.
MISSED = 1e-3
REWEIGHTED = 30
# δ has the rank that its singular values above this many rounding units of the largest show.
RANK = 32.0
# The rows that a single sample's inputs are checked on.
CHECKED = 256
# A layer whose gradient is missed by more than this, relatively, was not explained.
FITS = 1e-3
# The same of what was found as a whole, in rounding units of the client where that is more.
ALLOWED = 32.0
# Inputs whose claimed relative error is larger are not called exact.
SURE = 1e-2


@dataclass(frozen=True)
class LayerReport:
    """What one layer's equations gave: `misfit` is the relative error of the gradient that the found inputs give.

    `claimed`: the relative error of the inputs themselves that the layer claims, where it makes a claim; `found`:
    those inputs.
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
    """A batch out of its gradient: `inputs` (B, …) and `labels` (B, C) in float64, NaN where they are lost.

    `status`: "exact" (every layer's inputs are determined, and have the gradient that was seen, observed again),
    "partial" (the best that can be had), "failed". What is exact is right if the client sent the gradient of its mean
    cross-entropy at the model's own weights; that of another loss may be another input's to the last digit.
    `residual`: by which share of its size that gradient is missed, in the parameter where that is most.
    """

    inputs: Tensor
    labels: Tensor
    layers: tuple[LayerReport, ...]
    status: InversionStatus
    reason: str = ""
    residual: float = math.inf

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch."""
        claims = [layer.claimed for layer in self.layers if layer.claimed is not None]
        claimed = max(claims, default=math.inf) if self.status == "exact" else math.inf
        return (Answer(self.status, self.reason, claimed=claimed, labels=self.labels, inputs=self.inputs),)


def invert_fully_connected(
    leak: Leak, labels: Tensor | None = None, *, precision: str | Precision | None = None
) -> Tensor:
    """Return the private inputs (B, D), in float64, out of a fully connected network's gradients.

    Warns where they are not certain, and holds NaN where they are lost; `trace_fully_connected` says more, and what
    `precision` means.
    """
    return told(trace_fully_connected(leak, labels, precision=precision)).inputs


def told(found: Inversion) -> Inversion:
    """Warn of an inversion that is not exact."""
    if found.status != "exact":
        warnings.warn(f"inversion {found.status}: {found.reason}", GradleakWarning, stacklevel=3)
    return found


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

    `labels` (B, C), where the attacker knows them, are otherwise recovered with `prior`. `rule`: "least-squares" over
    all rows, in float64; "mean", the recursion of wang2024 for single samples; "published", the same after the label
    search of its code. `noise` on every entry: known, or None to estimate it. `precision`: what the client is known to
    compute in; inputs are then "exact" where the relative error that follows from it is at most a hundredth.
    """
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    check_noise(noise)
    leak.check_one_step("an inversion")
    first = next((module for module in leak.model.modules() if isinstance(module, nn.Linear)), None)
    layers = chain.layers(leak.model, (nn.Linear,), (first.in_features if first is not None else 1,))
    with torch.no_grad():
        if rule != "least-squares":
            if precision is not None:
                raise InputError(f"the rule '{rule}' takes no precision; \"least-squares\" does")
            return _mean(leak, layers, prior, "exact" if rule == "mean" else "lbfgs")
        return _least_squares(leak, layers, labels, prior, noise, precision)


@dataclass(frozen=True)
class Top:
    """What the last layer tells: `features` (B, I), `labels` (B, C), `errors` p − y (B, C), or why it does not."""

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
    """Recover the labels, unless they are known, and the features that the last layer saw."""
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
    troubles = [] if top.certain else [f"last layer '{layers[-1].name}': {top.reason}"]
    unit = rounding_unit(precision, leak.weight_gradient.dtype)
    coarse = coarser(precision, leak.weight_gradient.dtype)
    doubt = _doubt(top, leak, unit) if coarse else 0.0
    for above, layer in zip(reversed(layers), reversed(layers[:-1]), strict=False):
        sloped = (errors @ above.weight) * _slopes(layer, inputs)
        bias_gradient = leak.gradients.get(f"{layer.name}.bias")
        if bias_gradient is not None and leak.batch_size == 1:
            sloped = bias_gradient.double()[None]  # a single sample's δ is there to be read
            doubt = 0.0
        inputs, errors, report = _solved(leak.gradients[f"{layer.name}.weight"], sloped, layer.name, unit)
        if coarse:
            report = _claimed(report, errors, unit, doubt)
        reports.append(report)
        troubles += [f"layer '{layer.name}': {report.reason}"] if report.reason else []
    # A single sample's input follows from the first layer alone where that has a bias, and the layers above confirm it.
    alone = leak.batch_size == 1 and len(layers) > 1 and f"{layers[0].name}.bias" in leak.gradients
    certain = top.certain or alone
    if not certain or any(report.reason for report in reports):
        lost = bool(inputs.isnan().any())
        return Inversion(inputs, top.labels, tuple(reports), "failed" if lost else "partial", "; ".join(troubles))
    again = observed_again(leak, inputs, top.labels if top.certain else None)
    reason = again.beyond(max(FITS, ALLOWED * unit), noise or 0.0, leak)
    if not coarse and reports and not reason:
        # What is missed of the first layer's gradient tells how far off its inputs are, mixtures of samples too.
        first = replace(reports[-1], misfit=again.misses[f"{layers[0].name}.weight"])
        reports[-1] = replace(_claimed(first, errors, unit, 0.0), misfit=reports[-1].misfit)
        reason = reports[-1].reason and f"layer '{layers[0].name}': {reports[-1].reason}"
    return Inversion(inputs, top.labels, tuple(reports), "partial" if reason else "exact", reason, again.worst)


def _doubt(top: Top, leak: Leak, unit: float) -> float:
    """Return how far the client's rounding lets the errors p − y be off, relatively."""
    logits = top.features @ leak.weight.double().T + (0 if leak.bias is None else leak.bias.double())
    p, steep = logits.softmax(dim=1), logits.abs().amax(dim=1, keepdim=True)
    off = unit * (p * (1 + (1 - p) * steep) + top.labels.abs())
    return float((off.norm(dim=1) / top.errors.norm(dim=1)).max())


def _claimed(report: LayerReport, errors: Tensor, unit: float, doubt: float) -> LayerReport:
    """Return the report with the relative error of the inputs that follows from the client's rounding.

    The rows of the gradient show what is wrong with δ, but for a factor on all of it, which the labels tell.
    """
    if report.reason or not errors.isfinite().all():
        return report
    # By the way that has a derivative: the other one's last digit is not the same on every device.
    values = torch.linalg.svd(errors, full_matrices=False).S
    claimed = float(values[0] / values[-1]) * max(unit, report.misfit) + doubt
    reason = f"its inputs are known to {claimed:.1e} only" if not claimed <= SURE else ""
    return replace(report, claimed=claimed, reason=reason)


def _mean(leak: Leak, layers: list[Layer], prior: str | LabelPrior, solver: Solver) -> Inversion:
    """Run wang2024's recursion: in the gradient's own precision, the mean over all rows of what each row says."""
    if leak.batch_size != 1:
        raise InputError(f"the paper's recursion is for single samples; got a batch of {leak.batch_size}")
    found = recover_soft_labels(leak.weight_gradient, leak.weight, prior=prior, solver=solver)
    inputs = found.features[0].to(leak.weight_gradient)
    errors = (leak.weight_gradient / inputs).nanmean(dim=1)
    for above, layer in zip(reversed(layers), reversed(layers[:-1]), strict=False):
        errors = torch.where(inputs == 0, 0, errors @ above.module.weight.detach())
        gradient = leak.gradients[f"{layer.name}.weight"]
        rows = gradient.sum(dim=1) != 0
        inputs = (gradient[rows] / errors[rows, None]).mean(dim=0)
    sure = "unique" if solver == "exact" else "found"
    if found.status[0] != sure or not inputs.isfinite().all():
        reason = found.reasons[0] if found.status[0] != sure else "a row without a δ"
        status: InversionStatus = "partial" if inputs.isfinite().all() else "failed"
        return Inversion(inputs.double()[None], found.labels, (), status, reason)
    again = observed_again(leak, inputs.double()[None], found.labels)
    reason = again.beyond(FITS, 0.0, leak)
    return Inversion(inputs.double()[None], found.labels, (), "partial" if reason else "exact", reason, again.worst)


def bias_attack(leak: Leak) -> Tensor:
    """Return what every unit of the first layer says of the inputs, (O, D): its weight's gradient over its bias'.

    A unit that a single sample activates holds that sample; one that several activate holds a mixture. NaN for units
    that none activates.
    """
    name = next((n.removesuffix(".weight") for n, g in leak.gradients.items() if g.ndim == 2), "")
    weight, bias = leak.gradients.get(f"{name}.weight"), leak.gradients.get(f"{name}.bias")
    if weight is None or bias is None:
        raise InputError("the bias attack needs a first Linear layer with a bias")
    return weight.double() / torch.where(bias == 0, torch.nan, bias.double())[:, None]


def _slopes(layer: Layer, outputs: Tensor) -> Tensor:
    """Return σ′ at a layer's outputs, rectified features that are zero but for their errors taken for zero."""
    if isinstance(layer.activation_module, nn.ReLU):
        # Nothing rectified is negative, so what is tells how far off the zeros are; a clean single sample's are exact.
        noise = -3 * outputs.amin(dim=1, keepdim=True)
        if len(outputs) > 1:
            noise = torch.maximum(noise, ZERO * outputs.amax(dim=1, keepdim=True))
        outputs = torch.where(outputs > noise, outputs, 0)
    return layer.activation.slope(outputs)


def _solved(gradient: Tensor, sloped: Tensor, name: str, unit: float) -> tuple[Tensor, Tensor, LayerReport]:
    """Return a layer's inputs A (B, I), its δ (B, O) mended where the gradient contradicts it, and a report."""
    count, (outputs, width) = len(sloped), gradient.shape
    if not sloped.isfinite().all():
        nothing = sloped.new_full((count, width), torch.nan)
        return nothing, sloped, LayerReport(name, outputs * width, count * width, 0, torch.inf, "its δ is not known")
    dead = (sloped == 0).all(dim=1)
    inputs, rank = _inputs(gradient, sloped, unit)
    missed = _missed(gradient, sloped, inputs) if count > 1 else None
    if missed is not None and float(missed.max()) > MISSED:
        sloped = _mended(gradient, sloped)
        inputs, rank = _inputs(gradient, sloped, unit)
        missed = _missed(gradient, sloped, inputs)
    if missed is None:
        some = slice(None, None, max(1, outputs // CHECKED))
        missed = _missed(gradient[some], sloped[:, some], inputs)
    misfit = float(missed.square().mean().sqrt())
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
    """Return δ with the rows set right that most rows of the gradient contradict, as do units wrongly taken for dead.

    The sum of what rows miss, not of its square, is made small: that passes over a few that are wrong. The gradient's
    columns are mixed into a few more than there are samples, which tell as much.
    """
    count = len(sloped)
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(gradient.shape[1], count + 8, generator=generator, dtype=torch.float64).to(sloped.device)
    mixed = count * torch.cat([rows @ mixing for _, rows in _rows(gradient)])
    size = mixed.norm(dim=1).square().mean().sqrt()
    weights = torch.ones_like(size).expand(len(mixed))
    for _ in range(REWEIGHTED):
        held = least_squares(weights[:, None] * sloped.T, weights[:, None] * mixed)
        missed = (mixed - sloped.T @ held).norm(dim=1) / size
        weights = missed.clamp(min=MISSED / 100).rsqrt()
    wrong = missed > MISSED
    if wrong.all() or (~wrong).sum() < count:
        return sloped
    held = least_squares(sloped.T[~wrong], mixed[~wrong])
    mended = sloped.clone()
    mended[:, wrong] = least_squares(held.T, mixed[wrong].T)
    return mended


def _rows(gradient: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Give a gradient's rows in float64, a few at a time, and which they are."""
    step = max(1, CHUNK_ELEMENTS // gradient.shape[1])
    for start in range(0, len(gradient), step):
        which = slice(start, start + step)
        yield which, gradient[which].double()


def _inputs(gradient: Tensor, sloped: Tensor, unit: float) -> tuple[Tensor, int]:
    """Return A (B, I) with δᵀ A / B nearest to the gradient, the least where there are several; and δ's rank."""
    left, values, right = torch.linalg.svd(sloped, full_matrices=False)
    good = values > RANK * unit * values[0]
    inverse = torch.where(good, 1 / values.clamp(min=torch.finfo(values.dtype).tiny), 0)
    solve = len(sloped) * (left * inverse) @ right
    inputs = gradient.new_zeros(len(sloped), gradient.shape[1], dtype=torch.float64)
    for which, rows in _rows(gradient):
        inputs += solve[:, which] @ rows
    return inputs, int(good.sum())


def _missed(gradient: Tensor, sloped: Tensor, inputs: Tensor) -> Tensor:
    """Return by how much the found inputs miss each row of the gradient, relative to a usual row, (O,)."""
    missed, sizes = [], []
    for which, rows in _rows(gradient):
        sizes.append(rows.norm(dim=1))
        missed.append((rows - sloped[:, which].T @ inputs / len(sloped)).norm(dim=1))
    size = torch.cat(sizes).square().mean().sqrt()
    return torch.cat(missed) / size.clamp(min=torch.finfo(torch.float64).tiny)


def _why_not(case: Case) -> str:
    if case.subject.chain != "linear":
        return case.subject.chain_reason or "the network has convolutions"
    return case.no_label


def _attack(case: Case) -> Answer:
    found = trace_fully_connected(case.rescaled(), prior=case.prior, noise=case.noise, precision=case.precision)
    return case.with_one_factor(replace(found.answers[0], labels=None))


ATTACK = Attack(
    "linear layers backwards",
    page="exact-batch",
    finds=("inputs",),
    needs="all gradients of a chain of Linear layers, and a batch that is small beside its narrowest layer",
    refused=_why_not,
    run=_attack,
    remedy=NOISE,
    memory=lambda case: 6 * DOUBLE * case.subject.parameters,
)


def _why_not_first(case: Case) -> str:
    first = next((m for m in case.leak.model.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.Embedding)), None)
    if not isinstance(first, nn.Linear) or first.in_features != math.prod(case.subject.input_shape):
        return "the first layer is not a Linear one that sees the whole input"
    if getattr(first, "bias", None) is None:
        return "the first layer has no bias"
    if case.size * case.leak.local_steps > 1:
        return "with several samples each unit holds a mixture"
    return ""


def _attack_first(case: Case) -> Answer:
    units = bias_attack(case.leak)
    units = units[units.isfinite().all(dim=1)]
    if len(units) == 0:
        return Answer("failed", "no unit of the first layer passed anything on")
    inputs = units.median(dim=0).values.reshape(1, *case.subject.input_shape)
    if len(case.leak.gradients) == 2:
        return Answer("partial", "there is no other layer that could confirm it", inputs=inputs)
    if case.coarse:
        return case.without_rounding(Answer("exact", inputs=inputs))
    # What each unit says may agree and be wrong: where signs are sent, or weights and biases are clipped apart.
    again = observed_again(case.leak, inputs, None, dtype=case.leak.weight.dtype)
    # Only the errors of a softmax sum to zero.
    again = again if case.plain else replace(again, unbalanced=0.0)
    reason = again.beyond(FITS, case.noise or 0.0, case.leak)
    return Answer("partial" if reason else "exact", reason, inputs=inputs)


BIAS_ATTACK = Attack(
    "bias attack",
    page="exact-batch",
    finds=("inputs",),
    needs="a first layer that is Linear and has a bias, and one sample",
    refused=_why_not_first,
    run=_attack_first,
    remedy="a first layer without a bias; several samples",
)
