"""Recover all samples of a batch at once, where too few equations are left to find the samples one by one.

G V = Σ_b d_b q_bᵀ / B is (C − 1) B equations for B (B + 1) unknowns: the coordinates q_b and the share s_b of each
sample. So up to C − 3 samples have more equations than unknowns, while a search sample by sample ends at (C − 2) / 2.
The search has to know how often each class occurs. The rows of the gradient allow few possibilities, and a wrong one
leaves a residual. A mixed label also has one share, that of its second class, so the counts are the same. But its two
classes have to be given. There are (2 B)! / (2ᴮ B!) ways to pair 2 B classes, 10,395 for six samples, and rows say less
about classes with a share.

The search begins at random starts. If all starts that explain the gradient end at the same answer, this does not prove
that there is no other. The status of such an answer is "found".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.answers import Answer
from gradleak.answers import LabelStatus as Status
from gradleak.arguments import checked_arguments
from gradleak.cases import NOISE, Attack, Case
from gradleak.errors import InputError, check_count, unknown
from gradleak.labels.priors import KNOWN, PRIORS
from gradleak.labels.soft.batch.normal import derivatives, projected, squared
from gradleak.labels.soft.batch.recover import BatchLabels, not_recovered

# A start explains the gradient if it misses by fewer rounding errors than this.
EXPLAINS = 64.0
# Two answers are the same if their features differ by a smaller relative distance than this.
SAME = 1e-2
# Starts are run together up to this many entries of their normal equations.
CHUNK_ELEMENTS = 2**22
# Before a descent, coordinates are fitted to predictions, and predictions computed from coordinates, FITS times in
# turn. RIDGE is the relative ridge of this fit.
FITS, RIDGE = 4, 1e-3
# Steps of a round, and the number of starts that continue in any case.
ROUND, FEWEST = 30, 4
# Starts for each combination of classes, and how many times as many for the likeliest tenth.
LEAST_STARTS, LIKELY = 8, 4
TINY = 1e-300
# Samples whose class may differ from what the row sums suggest.
SWAPS = 2
# Starts in an audit.
STARTS = 64


@checked_arguments(weight_gradient="C I", weight="C I")
def recover_jointly(
    weight_gradient: Tensor,
    weight: Tensor,
    *,
    classes: Tensor | None = None,
    batch_size: int | None = None,
    prior: str = "smoothing",
    starts: int = 200,
    steps: int = 150,
    multisets: int = 400,
    seed: int = 0,
) -> BatchLabels:
    """Recover all labels and features of a batch of up to C − 3 samples at once from its averaged gradient.

    With C − 2 samples there are as many equations as unknowns, and the answer is ambiguous.

    Args:
        weight_gradient: Gradient of the last layer's weight (C, I), averaged over the batch.
        weight: The last layer's weight (C, I).
        classes: The class of each sample (B,), if known. For "mixup" both classes of each sample (B, 2) are required,
            in either order. Otherwise the function tries the `multisets` combinations of classes that are likeliest by
            the sums of the gradient's rows; this assumes features that are not negative.
        batch_size: B; by default the number of `classes`, or else the rank of the gradient.
        prior: "smoothing", "onehot", or "mixup".
        starts: Random starts, shared by all combinations of classes.
        steps: Levenberg-Marquardt steps from each start.
        multisets: The largest number of combinations of classes to try.
        seed: Seed of the random starts.

    Returns:
        Labels, features and status: "found" if all successful starts share one answer, without a certificate;
        "ambiguous" if several answers explain the gradient; "failed" if none was reached.

    >>> draws = torch.Generator().manual_seed(0)
    >>> weight, x = torch.randn(6, 9, generator=draws), torch.rand(3, 9, generator=draws)
    >>> labels = 0.9 * torch.eye(6)[[0, 2, 4]] + 0.1 / 6
    >>> gradient = ((x @ weight.T).softmax(1) - labels).T @ x / 3
    >>> recover_jointly(gradient, weight, classes=torch.tensor([0, 2, 4]), starts=20).status
    'found'
    """
    if prior not in PRIORS:
        raise unknown("prior", prior, PRIORS)
    if prior == "mixup" and (classes is None or classes.shape[1:] != (2,)):
        raise InputError("samples with mixed labels are found together where the two classes of each are told, (B, 2)")
    if prior != "mixup" and classes is not None and classes.ndim != 1:
        raise InputError(f"classes must be (B,), one of each sample; got {tuple(classes.shape)}")
    _check_classes(weight, classes, batch_size)
    for name, value in (("starts", starts), ("steps", steps), ("multisets", multisets)):
        check_count(name, value)
    with torch.no_grad():
        gradient, matrix = weight_gradient.double(), weight.detach().double()
        unit = max(torch.finfo(weight_gradient.dtype).eps / 2, 2e-15)
        size = batch_size or (_rank(gradient, unit) if classes is None else len(classes))
        limit = min(len(gradient) - 2, gradient.shape[1])
        empty = not_recovered(gradient, size, gradient.shape[1])
        if not 1 <= size <= limit:
            return replace(empty, reason=f"{size} samples are not told of one another: {limit} at most are")
        problem = _Problem(gradient, matrix, size, prior, unit)
        sets = likely_classes(gradient, size, multisets) if classes is None else classes[None].cpu().long()
        likely, per_set = len(sets) // 10, max(LEAST_STARTS, starts // len(sets))
        start_counts = [LIKELY * per_set] * likely + [per_set] * (len(sets) - likely)
        answers = problem.answers(sets, start_counts, steps, torch.Generator().manual_seed(seed))
        return _summarised(problem, answers, sum(start_counts), empty)


def _check_classes(weight: Tensor, classes: Tensor | None, batch_size: int | None) -> None:
    check_count("batch_size", batch_size)
    if classes is None:
        return
    if classes.is_floating_point() or not bool(((classes >= 0) & (classes < len(weight))).all()):
        raise InputError(f"classes are whole numbers from 0 to {len(weight) - 1}; got {classes.tolist()}")
    if batch_size is not None and len(classes) != batch_size:
        raise InputError(f"{len(classes)} samples' classes were given for a batch_size of {batch_size}")


def likely_classes(gradient: Tensor, size: int, most: int) -> Tensor:
    """Return the likeliest classes (M, B) of `size` samples, given the row sums of their gradient (C, I).

    Features are not negative, so a row's sum is lower the more often its class occurs. A row with a negative sum has a
    sample.
    """
    sums = gradient.sum(dim=1)
    impact = -sums.clamp(max=0).sum() / size
    counts = (sums < 0).long()
    rest = sums + counts * impact
    for sign in (1, -1):
        while sign * (size - int(counts.sum())) > 0:
            index = int((sign * rest).masked_fill((counts == 0) & (sign < 0), math.inf).argmin())
            counts[index] += sign
            rest[index] += sign * impact
    # Without the labels' part, the sums are the classes' mean predictions, which are similar for all classes.
    combinations = {tuple(counts.tolist())}
    for _ in range(SWAPS):
        combinations |= {swapped for combination in combinations for swapped in _swapped(combination)}
    table = torch.tensor(sorted(combinations))
    spread = (sums + table.to(sums) * impact).var(dim=1).cpu()
    best = spread.argsort()[:most]
    return torch.stack([torch.arange(len(sums)).repeat_interleave(table[index]) for index in best])


def _swapped(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the combinations in which one sample has another class; `counts` are the samples of each class."""
    for source, target in itertools.permutations(range(len(counts)), 2):
        if counts[source]:
            yield tuple(count - (index == source) + (index == target) for index, count in enumerate(counts))


def _rank(gradient: Tensor, unit: float) -> int:
    sizes = gradient.norm(dim=1, keepdim=True).clamp(min=TINY)
    values = torch.linalg.svdvals(gradient / sizes)
    return int((values > 8 * unit * values[0]).sum())


class _Problem:
    """The equations of a batch's samples, rows weighted by one over their length: R (B G V − Σ d_b q_bᵀ) = 0."""

    def __init__(self, gradient: Tensor, weight: Tensor, size: int, prior: str, unit: float) -> None:
        self.gradient, self.weight, self.size, self.mixed = gradient, weight, size, prior == "mixup"
        # Whether every label has an unknown share: ε, or that of the second class.
        self.shared = prior != "onehot"
        norms = gradient.norm(dim=1)
        self.rows = torch.where(norms > 0, 1 / norms.clamp(min=TINY), 0)
        self.basis = torch.linalg.svd(self.rows[:, None] * gradient, full_matrices=False).Vh[:size].T
        self.logits = weight @ self.basis
        self.target = size * self.rows[:, None] * (gradient @ self.basis)
        self.enough = EXPLAINS * unit * float(self.target.norm())

    def answers(
        self, classes: Tensor, starts: list[int], steps: int, generator: torch.Generator
    ) -> list[tuple[Tensor, ...]]:
        """Return (q, labels) of every start that explains the gradient; row m of `classes` (M, B) has `starts[m]`."""
        repeated = classes.repeat_interleave(torch.tensor(starts), dim=0).to(self.logits.device)
        chunk = max(1, CHUNK_ELEMENTS // (self.size * (self.size + self.shared)) ** 2)
        results: list[tuple[Tensor, ...]] = []
        for part in repeated.split(chunk):
            hot = torch.nn.functional.one_hot(part, len(self.rows)).double()
            if self.mixed:
                hot, second = hot.unbind(dim=2)
                lift = second - hot
            else:
                lift = (1 / len(self.rows) - hot) if self.shared else torch.zeros_like(hot)
            places, shares = self._starts(hot, lift, generator)
            places, shares, cost = self._descended(places, shares, hot, lift, steps)
            explained = cost.sqrt() <= self.enough
            if self.shared:
                # A completely smoothed label is the same for every class, so its share is excluded.
                limit = 1 + KNOWN if self.mixed else 1 - KNOWN
                explained &= ((shares > -KNOWN) & (shares < limit)).all(dim=1)
            labels = hot + shares.unsqueeze(2) * lift
            results += [(places[index], labels[index]) for index in explained.nonzero()[:, 0].tolist()]
        return results

    def _starts(self, hot: Tensor, lift: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return coordinates (S, B, B) and shares (S, B): alternately from random predictions and random features."""
        shares = torch.rand(hot.shape[:2], generator=generator, dtype=torch.float64).to(self.logits)
        shares = shares * (1.0 if self.mixed else 0.5) if self.shared else torch.zeros_like(shares)
        places = self._fitted(hot + shares.unsqueeze(2) * lift, generator)
        places[1::2] = self._features(len(hot) // 2, generator)
        return places, shares

    def _features(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random coordinates (S, B, B) around the mean of features that are not negative."""
        mean = self.basis.sum(dim=0)
        mean = mean / mean.norm()
        spread = (self.logits @ mean).std().clamp(min=TINY)
        centre = self._normal(generator, count, self.size, 1).exp() / spread * mean
        radius = self._normal(generator, count, 1, 1).exp() * centre.norm(dim=2, keepdim=True) / math.sqrt(self.size)
        features: Tensor = centre + 0.3 * radius * self._normal(generator, count, self.size, self.size)
        return features

    def _fitted(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return coordinates (S, B, B) that fit the gradient for random predictions, then for their own predictions."""
        scores = self._normal(generator, len(labels), *labels.shape[1:])
        probability = (self._normal(generator, len(labels), 1, 1) * scores).softmax(dim=2)
        for _ in range(FITS):
            errors = self.rows * (probability - labels)
            square = errors @ errors.mT
            ridge = RIDGE * square.diagonal(dim1=1, dim2=2).mean(dim=1, keepdim=True).expand(-1, self.size)
            places: Tensor = torch.linalg.solve_ex(square + torch.diag_embed(ridge), errors @ self.target)[0]
            probability = (places @ self.logits.T).softmax(dim=2)
        fitted: Tensor = places.nan_to_num(0, 0, 0)
        return fitted

    def _normal(self, generator: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.logits)

    def _descended(
        self, places: Tensor, shares: Tensor, hot: Tensor, lift: Tensor, steps: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Descend from all starts together; return q (S, B, B), s (S, B) and squared misfits (S,).

        After every round the half of the starts with the larger misfits stops.
        """
        cost = torch.full_like(shares[:, 0], math.inf)
        active = torch.arange(len(places), device=places.device)
        for _ in range(math.ceil(steps / ROUND)):
            results = self._round(places[active], shares[active], hot[active], lift[active])
            places[active], shares[active], cost[active] = results
            active = active[results[2].sqrt() > self.enough]
            active = active[cost[active].argsort()[: max(FEWEST, len(active) // 2)]]
            if len(active) == 0:
                break
        return places, shares, cost

    def _round(self, places: Tensor, shares: Tensor, hot: Tensor, lift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take a round of Levenberg-Marquardt steps; return q (S, B, B), s (S, B) and squared misfits (S,)."""
        damping = torch.full_like(shares[:, 0], 1e-2)

        def missed(q: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            p = (q @ self.logits.T).softmax(dim=2)
            errors = self.rows * (p - hot - s[:, :, None] * lift)
            return p, errors, self.target - errors.mT @ q

        p, errors, rest = missed(places, shares)
        cost = rest.square().sum(dim=(1, 2))
        for _ in range(ROUND):
            slopes = derivatives(self.rows, self.logits, p, lift if self.shared else None)
            square, slope = squared(slopes, places, errors), projected(slopes, places, errors, rest)
            square.diagonal(dim1=1, dim2=2).clamp_(min=TINY).mul_(1 + damping[:, None])
            factor, broken = torch.linalg.cholesky_ex(square)
            change = torch.cholesky_solve(slope.unsqueeze(2), factor).nan_to_num(0, 0, 0)
            change = torch.where(broken[:, None, None] > 0, 0, change).reshape(*places.shape[:2], -1)
            new_places = places + change[:, :, : self.size]
            new_shares = shares + change[:, :, self.size] if self.shared else shares
            new_state = missed(new_places, new_shares)
            new_cost = new_state[2].square().sum(dim=(1, 2))
            better = new_cost < cost
            wide = better[:, None, None]
            places = torch.where(wide, new_places, places)
            shares = torch.where(better[:, None], new_shares, shares)
            p, errors, rest = (
                torch.where(wide, updated, current)
                for updated, current in zip(new_state, (p, errors, rest), strict=True)
            )
            # A start has converged if it explains the gradient and another step hardly improves it.
            ended = (cost.sqrt() <= self.enough) & (new_cost > cost / 2)
            cost = torch.where(better, new_cost, cost)
            damping = torch.where(better, damping / 4, damping * 3).clamp(1e-14, 1e8)
            if ended.all():
                break
        return places, shares, cost


def _summarised(problem: _Problem, answers: list[tuple[Tensor, ...]], starts: int, empty: BatchLabels) -> BatchLabels:
    """Sort the ends of all starts into distinct answers, and assign a status."""
    if not answers:
        return replace(empty, reason=f"none of {starts} starts explains the gradient")
    distinct: list[tuple[Tensor, Tensor]] = []
    for places, labels in answers:
        if not any(_same(places, labels, *other) for other in distinct):
            distinct.append((places, labels))
    places, labels = distinct[0]
    features = places @ problem.basis.T
    rebuilt = ((features @ problem.weight.T).softmax(dim=1) - labels).T @ features / problem.size
    residual = float((rebuilt - problem.gradient).norm() / problem.gradient.norm())
    spare = (len(problem.rows) - 1) * problem.size - problem.size * (problem.size + problem.shared)
    status: Status = "ambiguous"
    if len(distinct) > 1:
        reason = f"{len(distinct)} answers explain the gradient"
    elif spare == 0:
        reason = "no equation is left that could tell this answer from another"
    else:
        status = "found"
        reason = f"{len(answers)} of {starts} starts end here and none elsewhere, which is no certificate"
    return replace(empty, labels=labels, features=features, residual=residual, status=status, reason=reason)


def _same(places: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor) -> bool:
    """Return whether two answers agree up to the order of their samples."""
    distances = torch.cdist(places, others)
    order = distances.argmin(dim=1)
    if len(order.unique()) < len(order):
        return False
    relative = distances.gather(1, order[:, None])[:, 0] / others[order].norm(dim=1).clamp(min=TINY)
    return bool((relative < SAME).all()) and float((labels - other_labels[order]).abs().sum(dim=1).max()) < KNOWN


def _why_not(case: Case) -> str:
    classes, size = case.subject.classes, case.size
    if case.no_label:
        return case.no_label
    if case.subject.bias:
        return "it looks at the weight alone; where there is a bias, samples are told one by one"
    if case.prior == "mixup" or case.noise != 0 or case.scale != 1:
        return "it takes smoothed or one-hot labels, and gradients as they are"
    if not case.subject.rectified:
        return "it takes features that are never negative"
    if not (classes - 2) / 2 < size <= min(classes - 2, case.subject.features):
        return f"it is for batches of {classes // 2} to {classes - 2} samples of C = {classes}"
    return ""


def _attack(case: Case) -> Answer:
    leak = case.leak
    result = recover_jointly(
        leak.weight_gradient, leak.weight, batch_size=case.size, prior=case.prior, seed=case.seed, starts=STARTS
    )
    return replace(result.answers[0], scale=None)


ATTACK = Attack(
    "all samples together",
    page="batches",
    finds=("labels", "features"),
    needs="the last layer's gradient of a batch of nearly as many samples as classes, without a bias",
    refused=_why_not,
    run=_attack,
    remedy=NOISE,
)
