"""The label attacks on batches behind one call: how often each class occurs, or which classes do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from gradleak.errors import InputError, check_count, unknown
from gradleak.labels.hard.gradinversion import gradinversion
from gradleak.labels.hard.idlg import idlg
from gradleak.labels.hard.ilrg import ilrg
from gradleak.labels.hard.llg import Estimate, llg, llg_estimate
from gradleak.labels.hard.posterior import posterior_values, posteriors
from gradleak.labels.hard.rlg import rlg
from gradleak.labels.hard.rounding import rounded
from gradleak.labels.hard.shadow import shadow
from gradleak.leak import Defense, HeadLeaks, Leak, head_inputs
from gradleak.losses import Loss
from gradleak.spans import classes_span, limit

# Singular values of a float64 gradient below so many limits may be the decomposition's rounding.
DECOMPOSED = 16
DUMMIES = ("random", "zeros", "ones")
# Random dummy inputs; means over them hardly vary with more.
RANDOM = 100
# These read a class off the sign of its row's sum.
BY_SIGN = ("idlg", "row sums", "llg", "llg*", "llg+")


@dataclass(frozen=True)
class Knowledge:
    """What an attacker has beside the gradients: model, samples of the same kind, loss, the labels' smoothing, defence.

    `auxiliary`: inputs (M, …) and classes (M,); `dummy`: what inputs a white box makes up, random, zeros or ones, of
    `input_shape`; `chunk`: how many of either are run at a time.
    """

    model: nn.Module | None = None
    auxiliary: tuple[Tensor, Tensor] | None = None
    input_shape: tuple[int, ...] | None = None
    dummy: str = "random"
    loss: Loss | None = None
    epsilon: float = 0.0
    local_steps: int = 1
    defense: Defense | None = None
    seed: int = 0
    chunk: int = 250

    @cached_property
    def others(self) -> tuple[Tensor, Tensor, Tensor]:
        """Last-layer inputs (M, I), logits (M, C) and classes (M,) of the auxiliary samples."""
        if self.model is None or self.auxiliary is None:
            raise InputError("this attack needs samples of the same kind: auxiliary=(inputs, classes)")
        features, scores = head_inputs(self.model, self.auxiliary[0], chunk=self.chunk)
        return features, scores, self.auxiliary[1].to(features.device)

    @cached_property
    def dummies(self) -> tuple[Tensor, Tensor]:
        """Last-layer inputs (M, I) and logits (M, C) of inputs that are made up."""
        if self.model is None or self.input_shape is None:
            raise InputError("LLG* runs dummy inputs through the model: it needs the model and the shape of one input")
        if self.dummy not in DUMMIES:
            raise unknown("kind of dummy input", self.dummy, DUMMIES)
        like = next(self.model.parameters())
        shape = (RANDOM if self.dummy == "random" else 1, *self.input_shape)
        made = torch.zeros(shape) if self.dummy == "zeros" else torch.ones(shape)
        if self.dummy == "random":
            made = torch.rand(shape, generator=torch.Generator().manual_seed(self.seed))
        return head_inputs(self.model, made.to(like), chunk=self.chunk)


@dataclass(frozen=True)
class Method:
    """An attack: who could run it, what it takes for granted, and its counts (N, C) of N gradients."""

    threat: str
    assumes: str
    count: Callable[[HeadLeaks, Knowledge], Tensor]


def _idlg(heads: HeadLeaks, known: Knowledge) -> Tensor:
    if heads.batch_size * known.local_steps != 1:
        raise InputError(f"iDLG reads the label of one sample; these gradients hold {heads.batch_size}")
    found = idlg(heads.weight_gradients)
    return torch.nn.functional.one_hot(found, len(heads.weight))


def _llg(heads: HeadLeaks, known: Knowledge, estimate: Estimate | None = None) -> Tensor:
    return llg(heads.weight_gradients, heads.batch_size, estimate, local_steps=known.local_steps)


def _white_llg(heads: HeadLeaks, known: Knowledge) -> Tensor:
    return _estimated(heads, known, *known.dummies, None)


def _auxiliary_llg(heads: HeadLeaks, known: Knowledge) -> Tensor:
    return _estimated(heads, known, *known.others)


def _estimated(heads: HeadLeaks, known: Knowledge, features: Tensor, scores: Tensor, labels: Tensor | None) -> Tensor:
    size = heads.batch_size
    return _llg(heads, known, llg_estimate(scores, features, labels, size, loss=known.loss, epsilon=known.epsilon))


def _shadow(heads: HeadLeaks, known: Knowledge) -> Tensor:
    _one_step(known, "the shadow attack")
    if known.model is None or known.auxiliary is None:
        raise InputError("the shadow attack needs samples of the same kind: auxiliary=(inputs, classes)")
    features, scores, labels = known.others
    own = known.auxiliary[0], labels
    return shadow(heads, known.model, own, (features, scores), defense=known.defense, seed=known.seed)


def _ilrg(heads: HeadLeaks, known: Knowledge) -> Tensor:
    if heads.bias is None or heads.bias_gradients is None:
        raise InputError("iLRG divides the gradient by the bias's: the last layer must have a bias")
    _one_step(known, "iLRG")
    return ilrg(
        heads.weight_gradients, heads.bias_gradients, heads.weight, heads.bias, heads.batch_size,
        loss=known.loss, epsilon=known.epsilon,
    )  # fmt: skip


def _posterior(heads: HeadLeaks, known: Knowledge) -> Tensor:
    if heads.bias_gradients is None:
        raise InputError("the posterior attack reads the bias's gradient: the last layer must have a bias")
    _one_step(known, "the posterior attack")
    _, scores, labels = known.others
    estimate = posteriors(scores, labels, known.loss)
    size = heads.batch_size
    values = posterior_values(heads.bias_gradients, size, estimate, loss=known.loss, epsilon=known.epsilon)
    return rounded(values, size)


def _one_step(known: Knowledge, name: str) -> None:
    if known.local_steps != 1:
        raise InputError(f"{name} reads one gradient, and this is the sum of {known.local_steps} along a path")


def _rlg(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return every class that RLG reveals once."""
    del known
    counts = torch.zeros(len(heads.weight_gradients), len(heads.weight), dtype=torch.long)
    for row, gradient in zip(counts, heads.weight_gradients, strict=True):
        row[sorted(rlg(gradient))] = 1
    return counts.to(heads.weight.device)


def _guess(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return counts as even as they can be, at random where they cannot: what nothing at all tells."""
    count, classes = len(heads.weight_gradients), len(heads.weight)
    chances = torch.rand(count, classes, generator=torch.Generator().manual_seed(known.seed), dtype=torch.float64)
    return rounded(chances.to(heads.weight.device) * 1e-3, heads.batch_size * known.local_steps)


def _draw(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return counts of labels drawn one by one, each class as likely as any other."""
    count, classes = len(heads.weight_gradients), len(heads.weight)
    generator = torch.Generator().manual_seed(known.seed)
    drawn = torch.randint(classes, (count, heads.batch_size * known.local_steps), generator=generator)
    return torch.nn.functional.one_hot(drawn, classes).sum(dim=1).to(heads.weight.device)


METHODS: dict[str, Method] = {
    "guess": Method("nothing", "nothing", _guess),
    "draw": Method("nothing", "nothing", _draw),
    "idlg": Method("gradients only", "one sample, features of one sign", _idlg),
    "gradinversion": Method(
        "gradients only",
        "no class twice, features that are not negative",
        lambda heads, _: gradinversion(heads.weight_gradients, heads.batch_size),
    ),
    "row sums": Method(
        "gradients only",
        "no class twice, features of one sign",
        lambda heads, _: gradinversion(heads.weight_gradients, heads.batch_size, "sum"),
    ),
    "llg": Method("gradients only", "features of one sign, a network that predicts next to nothing", _llg),
    "llg*": Method("white box", "as LLG; dummy inputs excite the network as real ones do", _white_llg),
    "llg+": Method("auxiliary data", "as LLG", _auxiliary_llg),
    "ilrg": Method("white box", "a bias; samples of a class look alike to the last layer", _ilrg),
    "rlg": Method("gradients only", "fewer samples than features and classes; each class is told once", _rlg),
    "shadow": Method("auxiliary data and the defence", "row sums and counts go together in other batches too", _shadow),
    "posterior": Method("auxiliary data", "a bias; the network predicts the same of other samples", _posterior),
}


def count_labels(
    leak: Leak,
    method: str,
    *,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    dummy: str = "random",
    loss: Loss | None = None,
    epsilon: float = 0.0,
    defense: Defense | None = None,
    seed: int = 0,
) -> Tensor:
    """Return how often each class occurs in the batch of a leak, (C,) whole numbers.

    `method`: idlg, gradinversion, "row sums", llg, "llg*", "llg+", ilrg, posterior, shadow, rlg, or guess and draw, the
    baselines: as even as can be, or label by label. What each needs and takes for granted is in METHODS. An assumption
    that visibly fails is an error that names it.
    """
    check_count("a leak's batch_size", leak.batch_size)
    check_count("a leak's local_steps", leak.local_steps)
    if not 0 <= epsilon <= 1:
        raise InputError(f"epsilon is the labels' smoothing, from 0 to 1; got {epsilon:g}")
    if not leak.weight_gradient.isfinite().all():
        raise InputError("the gradient holds NaN or infinite values")
    known = Knowledge(leak.model, auxiliary, leak.input_shape, dummy, loss, epsilon, leak.local_steps, defense, seed)
    return count_heads(leak.heads, method, known)[0]


def count_heads(
    heads: HeadLeaks, method: str, known: Knowledge | None = None, *, whatever_holds: bool = False
) -> Tensor:
    """Return the counts (N, C) of every class in N clients' batches, all at once.

    A gradient that an attack's assumption visibly fails on is an error, but where it is to count `whatever_holds`:
    that measures what an assumption is worth.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method in BY_SIGN and not whatever_holds:
        without = ~(heads.weight_gradients.sum(dim=2) < 0).any(dim=1)
        if without.any():
            which = "the gradient" if len(without) == 1 else f"{int(without.sum())} of {len(without)} gradients"
            raise InputError(f"no row of {which} sums to less than 0, as {method} assumes: features change sign")
    return METHODS[method].count(heads, known or Knowledge())


def reveal_labels(weight_gradient: Tensor, method: str = "rlg", rank: int | None = None) -> set[int]:
    """Return the classes that occur in the batch whose last-layer gradient (C, I) this is.

    Nothing certifies the answer. It may hold a class more than the batch where classes are hardly more than samples
    or occur twice, and where the network is sure of what it predicts; it may lack a class there as well.
    """
    if method != "rlg":
        raise unknown("method", method, ["rlg"])
    check_count("rank", rank)
    if not weight_gradient.isfinite().all():
        raise InputError("the gradient holds NaN or infinite values")
    found = rlg(weight_gradient, rank)
    if rank is None and weight_gradient.dtype == torch.float64:
        # In float64 the decomposition's own rounding may be taken for a few samples more.
        samples = int((classes_span(weight_gradient).singular > DECOMPOSED * limit(weight_gradient)).sum())
        if len(found) > samples:
            raise InputError(f"{len(found)} classes were found in a gradient of {samples} samples: rounding hides them")
    return found
