"""Recover the label and the feature of every sample in a batch from its averaged last-layer gradient.

G = Dᵀ X / B with D = P − Y (B, C) and X (B, I). For B < C and B ≤ I its rank is B, and its singular vectors U and V
span the samples' errors d and features x. So every sample has a q in Rᴮ with

    x = V q,    softmax(W V q) − y ∈ span U,

and a label y of the shape that the prior allows. Labels form a few families y = y₀ + s y₁; for smoothing, y₀ is a class
and s = ε. Each family gives B + 1 unknowns and C − 1 − B equations. The search minimises the angle between d and the
span. The distance of d from the span would be least for d = 0, which every family reaches whether or not it is right.

Rows of G are first divided by their length, because a gradient's rounding errors are relative to its entries.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.answers import Answer
from gradleak.answers import LabelStatus as Status
from gradleak.arguments import check, checked_arguments
from gradleak.cases import NOISE, Attack, Case
from gradleak.errors import InputError, check_count
from gradleak.labels.priors import KNOWN, LabelPrior, check_noise, check_probabilities, check_scale
from gradleak.labels.soft.batch.families import families_of
from gradleak.labels.soft.batch.rounds import ALIKE, SAME, Found, Search
from gradleak.labels.soft.batch.span import TINY, Span
from gradleak.labels.soft.batch.whole import Whole, fitted
from gradleak.labels.soft.explanations import KNOWN_FEATURE
from gradleak.labels.soft.problem import ACCEPT, LARGEST, WORST, noise_bound
from gradleak.labels.soft.single import SPREAD, LastLayer, knowledge, last_layer, recover_soft_labels
from gradleak.leak import Leak
from gradleak.precision import Precision, coarser, precision_of, rounding_unit
from gradleak.wording import counted

# Below this norm, features for which predictions depend on the weight have squares beyond float64.
FLAT = 1e-150
# Singular values below this many rounding units of the largest count as zero.
RANK = 8.0
# The smallest rounding unit that is assumed: singular vectors are computed in float64.
FINEST = 2e-15
# A gradient that is recomputed from its samples misses by at most this many rounding errors.
REBUILT = 16.0
# If a direction is undetermined, the fit of the samples stops at this relative residual.
UNDETERMINED_RESIDUAL = 1e-3
# If the samples' rounding exceeds this share of the gradient, they would explain any gradient.
HIDDEN_SHARE = 0.1
# Standard deviations by which a label or a feature may be off.
SURE = 4.0
# If more explanations are found than there are samples, at most so many choices of them are fitted to the gradient.
CHOICES = 32
# With this many spare equations a further explanation would be a coincidence of many digits.
MANY_SPARE = 3
# Times that an audit starts the search for a batch.
STARTS = 16


@dataclass(frozen=True)
class BatchLabels:
    """The labels and features of B samples, in float64, from one averaged gradient.

    Attributes:
        labels: (B, C), NaN for samples that were not found.
        features: (B, I), NaN for samples that were not found.
        open: Estimate of the L1 error of each label (B,), four standard deviations by the covariance of the fit, with
            residuals at least as large as rounding and noise make them.
        loose: Estimate of the relative error of each feature (B,).
        residual: Relative error of the gradient computed from all recovered samples, inf if some were not found.
        status: "unique", "ambiguous", "found" or "failed".
        reason: Why the answer is not "unique".
        scale: The factor on the gradient, given or recovered.
    """

    labels: Tensor
    features: Tensor
    open: Tensor
    loose: Tensor
    residual: float
    status: Status
    reason: str = ""
    scale: float = 1.0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch."""
        claimed, scale = float(self.open.max()), self.scale
        return (Answer(self.status, self.reason, claimed, labels=self.labels, features=self.features, scale=scale),)

    @property
    def found(self) -> Tensor:
        """Which samples were found, (B,)."""
        return ~self.labels[:, 0].isnan()


@dataclass(frozen=True)
class Sent:
    """One averaged gradient and its layer's weight (C, I) in float64, both with a last column for the bias, if any.

    Attributes:
        gradient: (C, I) or (C, I + 1).
        weight: (C, I) or (C, I + 1).
        features: The layer's number of features, without the bias.
        unit: The gradient's rounding unit.
        grain: The spacing of its smallest numbers.
        doubt: A further cause of failure, or "".
        coarse: Whether the client is known to round more coarsely than the gradient's type does.
    """

    gradient: Tensor
    weight: Tensor
    features: int
    unit: float
    grain: float
    doubt: str = ""
    coarse: bool = False


@checked_arguments(weight_gradient="C I", weight="C I", labels="B C", bias="C", bias_gradient="C")
def recover_batch(
    weight_gradient: Leak | Tensor,
    weight: Tensor | None = None,
    *,
    batch_size: int | None = None,
    prior: str | LabelPrior = "smoothing",
    labels: Tensor | None = None,
    bias: Tensor | None = None,
    bias_gradient: Tensor | None = None,
    nonnegative: bool = True,
    noise: float | None = 0.0,
    rounds: int = 40,
    seed: int = 0,
    scale: float | None = 1.0,
    precision: str | Precision | None = None,
) -> BatchLabels:
    """Recover the soft labels and the features of a whole batch from its averaged gradient.

    `recover_batch(leak)` takes the last layer's weight and bias, their gradients and the batch size from a leak.

    Args:
        weight_gradient: The batch's leak; or the gradient of the last layer's weight (C, I), averaged over the batch.
        weight: The last layer's weight (C, I). With a leak, neither weight nor bias nor bias gradient is given.
        batch_size: B; by default that of the leak, or the rank of the gradient.
        prior: "smoothing" (each sample with its own ε), "onehot", or "mixup" of two classes. Classes may repeat.
        labels: The samples' labels (B, C), if they are known; only the features are searched then.
        bias: The last layer's bias (C,), if it has one. It is treated as the weight of a feature that is always 1.
        bias_gradient: Gradient of the bias (C,), needed together with the bias.
        nonnegative: Whether no entry of a feature is negative, as after a ReLU.
        noise: Standard deviation of the noise that the client is known to have added to every entry. None takes an
            upper bound from the singular values beyond the batch size, which must then be given.
        rounds: The largest number of random starts for each kind of label.
        seed: Seed of the random starts.
        scale: The factor on the gradient, 1 unless the client is known to have rescaled it. None recovers a factor that
            is common to all samples.
        precision: The precision in which the client is known to compute, as for `recover_soft_labels`.

    Returns:
        The labels (B, C), the features (B, I), and how certain they are.

    >>> draws = torch.Generator().manual_seed(0)
    >>> weight, x = torch.randn(10, 8, generator=draws), torch.rand(2, 8, generator=draws)
    >>> labels = 0.9 * torch.eye(10)[[3, 7]] + 0.01
    >>> found = recover_batch(((x @ weight.T).softmax(1) - labels).T @ x / 2, weight)
    >>> found.status, found.labels.argmax(1).tolist()
    ('unique', [3, 7])
    """
    check_scale(scale)
    check_noise(noise)
    check_count("batch_size", batch_size)
    check_count("rounds", rounds)
    if labels is not None:
        check_probabilities(labels)
    layer = last_layer(weight_gradient, weight, bias, bias_gradient)
    if isinstance(weight_gradient, Leak):
        check({"weight": layer.weight, "labels": labels}, {}, {"weight": "C I", "labels": "B C"})
        batch_size = batch_size or weight_gradient.batch_size
    sent = _sent(layer, precision)
    with torch.no_grad():
        result = _recover(sent, batch_size, prior, labels, nonnegative, noise, rounds, seed, scale)
    if len(result) > 1 or result.status != "unique" or labels is not None:
        return result
    # For a single sample all explanations can be listed.
    single = recover_soft_labels(
        layer.gradient,
        layer.weight,
        bias=layer.bias,
        bias_gradient=layer.bias_gradient,
        prior=prior,
        nonnegative=nonnegative,
        noise=noise,
        scale=scale,
        precision=precision,
    )
    if single.status[0] == "unique":
        return result
    return replace(result, status="ambiguous", reason=single.reasons[0], open=torch.maximum(result.open, single.open))


def _sent(layer: LastLayer, precision: str | Precision | None) -> Sent:
    if (layer.bias is None) != (layer.bias_gradient is None):
        raise InputError("a bias comes with its gradient, and the gradient with its bias")
    gradient, matrix = layer.gradient.double(), layer.weight.detach().double()
    if layer.bias is not None and layer.bias_gradient is not None:
        gradient = torch.cat([gradient, layer.bias_gradient.double().reshape(-1, 1)], dim=1)
        matrix = torch.cat([matrix, layer.bias.detach().double().reshape(-1, 1)], dim=1)
    # Singular vectors are computed in float64, and are accurate to a few of its rounding units.
    info = torch.finfo(layer.gradient.dtype)
    unit, grain = max(rounding_unit(precision, layer.gradient.dtype), FINEST), info.smallest_normal * info.eps
    coarse = coarser(precision, layer.gradient.dtype)
    if precision is not None and coarse:
        grain = max(grain, precision_of(precision).least)
    return Sent(gradient, matrix, layer.weight.shape[1], unit, grain, layer.doubt, coarse)


def _recover(
    sent: Sent,
    batch_size: int | None,
    prior: str | LabelPrior,
    labels: Tensor | None,
    nonnegative: bool,
    noise: float | None,
    rounds: int,
    seed: int,
    scale: float | None,
) -> BatchLabels:
    gradient, unit = sent.gradient, sent.unit
    classes, features = gradient.shape
    noise = _tail(gradient, batch_size) if noise is None else noise
    sizes = gradient.norm(dim=1)
    # Weight the rows so that an entry's error is about one unit, whether by rounding or by noise.
    sizes = (sizes.square() + (math.hypot(noise, sent.grain) / unit) ** 2 * features).sqrt()
    rows = torch.where(sizes > 0, 1 / sizes.clamp(min=TINY), 0)
    left, values, right = torch.linalg.svd(rows[:, None] * gradient, full_matrices=False)
    # The largest singular value of noise alone after the rows are weighted, in rounding units.
    loudest = 1 + math.sqrt(classes / features) if noise else 0.0
    rank = int((values > unit * max(RANK * float(values[0]), 2 * loudest)).sum())
    count = rank if batch_size is None else batch_size
    failed = functools.partial(not_recovered, gradient, max(count, 1), sent.features)
    if count < 1:
        return failed("the gradient is zero: nothing is known of the samples")
    if float((sent.weight - sent.weight[0])[:, : sent.features].norm()) < FLAT:
        return failed("the rows of the last layer's weight are equal: predictions do not depend on features")
    if rank < count or (rank > count and not noise):
        return failed(
            f"the gradient has rank {rank}, but {counted(count, 'sample')} with independent features and errors would "
            f"give rank {count}"
        )
    families = families_of(prior, labels, classes, gradient.device)
    spare = classes - 1 - count - (count + families.free)
    if spare < 0:
        return failed(
            f"{count} samples in {classes} classes have {count + families.free} unknowns each and "
            f"{max(0, classes - 1 - count)} equations each: too few to look for them one by one"
        )
    basis = right[:count].T
    span = Span(left[:, :count], sent.weight @ basis, basis.sum(dim=0), rows)
    generator = torch.Generator().manual_seed(seed)
    search = Search(span, gradient @ basis, families, unit, loudest, generator, nonnegative, scale)
    search.run(rounds, further=spare < MANY_SPARE)
    if len(search.found.shares) == 0:
        which = "the sample was not" if count == 1 else f"none of the {count} samples was"
        return failed(f"{which} found in {rounds} rounds of the search{sent.doubt}")
    return _chosen(search, sent, basis, values[:count], failed)


def _chosen(
    search: Search, sent: Sent, basis: Tensor, values: Tensor, failed: Callable[[str], BatchLabels]
) -> BatchLabels:
    """Fit every choice of as many explanations as there are samples; the answer is certain only if one choice fits.

    A long feature whose prediction is all but certain has an error near zero, which rounding cannot tell from any other
    direction: such an explanation lies in the span by itself, but fits no gradient in place of a sample.
    """
    count, found_count = search.span.rank, len(search.found.shares)
    if found_count <= count or math.comb(found_count, count) > CHOICES:
        return _certified(search, sent, basis, values, failed(""))
    fitting: list[BatchLabels] = []
    for chosen in itertools.combinations(range(found_count), count):
        part = copy.copy(search)
        part.found = Found(*(entries[list(chosen)] for entries in search.found))
        result = _certified(part, sent, basis, values, failed(""))
        if result.status != "failed" and not any(_same(result, other) for other in fitting):
            fitting.append(result)
    if not fitting:
        return failed(f"no choice of {count} of the {found_count} explanations found fits the gradient")
    if len(fitting) > 1:
        reason = f"{len(fitting)} choices of {count} explanations fit the gradient"
        return replace(fitting[0], status="ambiguous", reason=reason)
    return fitting[0]


def _same(one: BatchLabels, other: BatchLabels) -> bool:
    """Return whether two answers for a batch have the same samples in the same order."""
    apart = (one.features - other.features).norm(dim=1) <= SAME * one.features.norm(dim=1)
    return bool((apart & ((one.labels - other.labels).abs().sum(dim=1) <= ALIKE)).all())


def _certified(search: Search, sent: Sent, basis: Tensor, values: Tensor, result: BatchLabels) -> BatchLabels:
    """Recompute the gradient from the samples found, fill them into the empty `result`, and assign a status."""
    whole, count, found_count = fitted(search), search.span.rank, len(search.found.shares)
    hidden = whole.places @ basis.T
    logits = hidden @ sent.weight.T
    rest = sent.gradient - (logits.softmax(dim=1) - whole.labels).T @ hidden * whole.scale / count
    errors = _errors(whole, logits)
    allowed = REBUILT * _rounding(search, whole, errors)
    whole = _less_sure(search, sent, whole, hidden, errors, values)
    if sent.coarse and search.families.free:
        whole = replace(whole, open=whole.open + 2 * search.unit * errors.sum(dim=1))
    fits = float((search.span.rows[:, None] * rest).norm()) <= allowed
    residual = float(rest.norm() / sent.gradient.norm()) if found_count == count else math.inf
    status: Status = "ambiguous"
    reason = ""
    if found_count > count:
        reason = f"{count} samples have more explanations than that"
    elif found_count < count:
        status, reason = "failed", f"{found_count} of {count} samples were found"
    elif not fits and (residual > UNDETERMINED_RESIDUAL or float(whole.open.max()) < KNOWN):
        status, reason = "failed", f"the samples found miss the gradient by {residual:.1e}, more than rounding"
    elif allowed > HIDDEN_SHARE * search.size:
        whole = replace(whole, open=torch.full_like(whole.open, 2.0))
        reason = "the rounding of samples as large as those found hides the gradient"
    elif float(whole.open.max()) > KNOWN:
        apart = float(whole.open.max())
        reason = f"within its rounding errors, the gradient allows labels at an L1 distance of {apart:.1g}"
    elif float(whole.loose.max()) > KNOWN_FEATURE:
        loose = float(whole.loose.max())
        reason = f"within its rounding errors, the gradient determines a feature only to {loose:.0%}"
    elif problem := _no_bias(sent, hidden):
        status, reason = "failed", problem
    else:
        status = "unique"
    order = sorted(
        range(found_count), key=lambda index: (int(whole.labels[index].argmax()), -float(whole.labels[index].max()))
    )[:count]
    # Leave out the feature of the bias, the last one, which is always 1.
    filled = (whole.labels, hidden, whole.open, whole.loose)
    for empty, value in zip((result.labels, result.features, result.open, result.loose), filled, strict=True):
        empty[: len(order)] = value[order][..., : empty.shape[-1]] if empty.ndim > 1 else value[order]
    return replace(result, residual=residual, status=status, reason=reason, scale=whole.scale)


def _no_bias(sent: Sent, hidden: Tensor) -> str:
    """Return the reason for failure if the feature of the bias is not 1 as it should be, else ""."""
    if hidden.shape[1] == sent.features:
        return ""
    bias_feature = hidden[:, -1]
    wrong = (bias_feature - 1).abs() > KNOWN_FEATURE * hidden.norm(dim=1).clamp(min=1)
    return f"a sample found has a bias of {float(bias_feature[wrong][0]):.1e} where it is 1" if wrong.any() else ""


def _less_sure(search: Search, sent: Sent, whole: Whole, hidden: Tensor, errors: Tensor, values: Tensor) -> Whole:
    """Add the errors of labels and features by rounding and noise of the gradient."""
    width, places = hidden.shape[1], whole.places.norm(dim=1)
    # Noise turns the singular vectors, the more the smaller their singular values are.
    turned = search.unit * (whole.places / values).norm(dim=1)
    apart = SPREAD * (sent.weight - sent.weight.mean(dim=0)).norm(dim=1).amax()
    logits = hidden @ sent.weight.T
    p = logits.softmax(dim=1)
    # A few residuals may be small by chance, so their deviation is at least that of rounding and noise, and of p where
    # the features' turned direction moves it.
    swayed = p * (1 - p) * (apart * turned / math.sqrt(width) / search.unit)[:, None]
    total = _rounding(search, whole, errors + swayed) * search.span.rank / whole.scale
    deviation = max(whole.deviation, total / math.sqrt(search.reduced.numel()))
    opened, off = whole.open + SURE * deviation * whole.shares, SURE * deviation * whole.scatter
    loose = whole.loose * places + off + turned * (1 + ACCEPT / math.sqrt(width))
    if search.families.known is None:
        # See `problem`: an error of the logits may give all probability to another class.
        sway = apart * torch.hypot(turned / math.sqrt(width), deviation * whole.scatter)[:, None]
        rounded = search.unit * logits.abs().amax(dim=1, keepdim=True)
        moved = p * (1 - p) * (sway + rounded) * (ACCEPT * sway + WORST * rounded).clamp(max=LARGEST).exp()
        opened = torch.maximum(opened, 2.0 * (ACCEPT * moved.topk(2, dim=1).values.sum(dim=1) > 1))
    lengths = hidden[:, : sent.features].norm(dim=1).clamp(min=TINY)
    return replace(whole, open=opened, loose=loose / lengths)


def _rounding(search: Search, whole: Whole, errors: Tensor) -> float:
    """Return by how much rounding lets these samples miss the gradient, with weighted rows."""
    lengths = whole.places.norm(dim=1, keepdim=True)
    per_class = (errors * lengths).square().sum(dim=0).sqrt() * whole.scale / len(lengths)
    return search.unit * float((search.span.rows * per_class).norm()) + search.unit * search.size


def _errors(whole: Whole, logits: Tensor) -> Tensor:
    """Return the rounding error of the samples' p − y (n, C), in rounding units.

    Softmax turns the rounding error of the logits into a relative error of as many units as the largest |logit|, except
    for a class that has all or none of the probability.
    """
    p = logits.softmax(dim=1)
    largest = logits.abs().amax(dim=1, keepdim=True)
    return p * (1 + (1 - p) * largest) + whole.labels.abs()


def _tail(gradient: Tensor, batch_size: int | None) -> float:
    """Return an upper bound on the standard deviation of the noise from the singular values beyond the batch's rank."""
    if batch_size is None:
        raise InputError("noise can be estimated only where the batch size is known")
    values = torch.linalg.svdvals(gradient)[batch_size:]
    entries = (gradient.shape[0] - batch_size) * (gradient.shape[1] - batch_size)
    return float(noise_bound(values.norm(), entries))


def not_recovered(gradient: Tensor, count: int, features: int, reason: str = "") -> BatchLabels:
    """Return the result for a batch of `count` samples that was not recovered from a gradient (C, ·)."""
    labels, hidden = (gradient.new_full((count, size), math.nan) for size in (len(gradient), features))
    bounds = gradient.new_full((2, count), math.inf)
    return BatchLabels(labels, hidden, bounds[0], bounds[1], math.inf, "failed", reason)


def _why_not(case: Case) -> str:
    return case.no_label or ("" if case.size > 1 else "it takes several samples")


def _attack(case: Case) -> Answer:
    """Search for all samples; if only some are found, search again from other starts."""
    result = _started(case, case.seed)
    for start in range(1, STARTS):
        if result.status != "failed" or not bool(result.found.any()):
            break
        retry = _started(case, case.seed + start)
        result = result if retry.status == "failed" else retry
    return case.with_one_factor(result.answers[0])


def _started(case: Case, seed: int) -> BatchLabels:
    return recover_batch(case.leak, seed=seed, **knowledge(case))


ATTACK = Attack(
    "labels and features of a batch",
    page="batches",
    finds=("labels", "features"),
    needs="the last layer's gradient of a batch that is small compared with the number of classes, under cross-entropy",
    refused=_why_not,
    run=_attack,
    remedy=NOISE,
)
