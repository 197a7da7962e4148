"""Run label attacks on batches by name: how often each class occurs, or which classes occur."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.arguments import checked_arguments
from gradleak.errors import InputError, check_count, unknown
from gradleak.labels.hard.gradinversion import gradinversion
from gradleak.labels.hard.idlg import idlg
from gradleak.labels.hard.ilrg import ilrg
from gradleak.labels.hard.knowledge import Knowledge
from gradleak.labels.hard.learned import learned
from gradleak.labels.hard.llg import llg, llg_estimated
from gradleak.labels.hard.posterior import posterior
from gradleak.labels.hard.rlg import rlg
from gradleak.labels.hard.rounding import rounded
from gradleak.labels.hard.shadow import shadow
from gradleak.leak import Defense, HeadLeaks, Leak
from gradleak.losses import Loss
from gradleak.spans import classes_span, limit

# In float64, singular values below this many limits may be the rounding of the decomposition itself.
DECOMPOSED = 16
# Methods that infer a class from the sign of its row's sum, that read the bias's gradient, that take the gradient of a
# single step, and that need samples of the same kind as the private ones.
BY_SUMS, BY_BIAS = ("idlg", "row sums", "llg", "llg*", "llg+"), ("ilrg", "posterior")
ONE_STEP, WITH_SAMPLES = ("ilrg", "posterior", "shadow", "learned"), ("llg+", "posterior", "shadow", "learned")


@dataclass(frozen=True)
class Method:
    """An attack: its threat model, its assumptions, and the function that returns its counts (N, C) of N gradients."""

    threat: str
    assumes: str
    count: Callable[[HeadLeaks, Knowledge], Tensor]


def _idlg(heads: HeadLeaks, known: Knowledge) -> Tensor:
    if heads.batch_size * known.local_steps != 1:
        raise InputError(f"iDLG reads the label of one sample; these gradients hold {heads.batch_size}")
    classes = idlg(heads.weight_gradients)
    return torch.nn.functional.one_hot(classes, len(heads.weight))


def _rlg(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return a count of 1 for every class that RLG reveals."""
    del known
    counts = torch.zeros(len(heads.weight_gradients), len(heads.weight), dtype=torch.long)
    for row, gradient in zip(counts, heads.weight_gradients, strict=True):
        row[sorted(rlg(gradient))] = 1
    return counts.to(heads.weight.device)


def _guess(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return counts that are as even as possible, with ties broken at random: the baseline without information."""
    count, classes = len(heads.weight_gradients), len(heads.weight)
    chances = torch.rand(count, classes, generator=torch.Generator().manual_seed(known.seed), dtype=torch.float64)
    return rounded(chances.to(heads.weight.device) * 1e-3, heads.batch_size * known.local_steps)


def _draw(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return counts of labels that are drawn one by one, all classes being equally likely."""
    count, classes = len(heads.weight_gradients), len(heads.weight)
    generator = torch.Generator().manual_seed(known.seed)
    drawn = torch.randint(classes, (count, heads.batch_size * known.local_steps), generator=generator)
    return torch.nn.functional.one_hot(drawn, classes).sum(dim=1).to(heads.weight.device)


METHODS: dict[str, Method] = {
    "guess": Method("nothing", "nothing", _guess),
    "draw": Method("nothing", "nothing", _draw),
    "idlg": Method("gradients only", "a batch of one sample; features of one sign", _idlg),
    "gradinversion": Method(
        "gradients only",
        "each class occurs at most once; no feature is negative",
        lambda heads, _: gradinversion(heads.weight_gradients, heads.batch_size),
    ),
    "row sums": Method(
        "gradients only",
        "each class occurs at most once; features of one sign",
        lambda heads, _: gradinversion(heads.weight_gradients, heads.batch_size, "sum"),
    ),
    "llg": Method("gradients only", "features of one sign; predictions close to uniform", llg),
    "llg*": Method(
        "white box",
        "as LLG; dummy inputs give similar features and predictions as real inputs",
        lambda heads, known: llg_estimated(heads, known, *known.dummies),
    ),
    "llg+": Method("auxiliary data", "as LLG", lambda heads, known: llg_estimated(heads, known, *known.others)),
    "ilrg": Method("white box", "the last layer has a bias; samples of a class have similar features", ilrg),
    "rlg": Method(
        "gradients only", "fewer samples than features and than classes; says which classes occur, not how often", _rlg
    ),
    "shadow": Method(
        "auxiliary data and the defence", "row sums depend on counts as in batches of other samples", shadow
    ),
    "posterior": Method(
        "auxiliary data", "the last layer has a bias; predictions are similar for other samples", posterior
    ),
    "learned": Method(
        "auxiliary data and the defence", "features and predictions are distributed as those of other samples", learned
    ),
}


@checked_arguments()
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
    """Return how often each class occurs in the batch of a leak, as whole numbers (C,).

    Args:
        leak: The gradient that a client sent, with its model and batch size.
        method: "idlg", "gradinversion", "row sums", "llg", "llg*", "llg+", "ilrg", "posterior", "shadow", "learned" or
            "rlg"; or a baseline: "guess" (counts as even as possible) or "draw" (random labels). `METHODS` states what
            each method needs and assumes. A visible violation of an assumption is an error that names the assumption.
        auxiliary: Samples of the same kind as the private ones: inputs (M, …) and classes (M,).
        dummy: The dummy inputs of "llg*": "random", "zeros" or "ones".
        loss: The client's loss, cross-entropy by default.
        epsilon: The smoothing of the client's labels, from 0 to 1.
        defense: The client's defence, which "shadow" and "learned" take into account.
        seed: Seed of all random numbers.

    Returns:
        The count of each class (C,).

    >>> from gradleak import observe
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(8, 5)
    >>> leak = observe(model, torch.rand(4, 8), torch.tensor([0, 2, 2, 4]))
    >>> count_labels(leak, "ilrg")
    tensor([1, 0, 2, 0, 1])
    """
    if not 0 <= epsilon <= 1:
        raise InputError(f"epsilon is the labels' smoothing, from 0 to 1; got {epsilon:g}")
    known = Knowledge(leak.model, auxiliary, leak.input_shape, dummy, loss, epsilon, leak.local_steps, defense, seed)
    return count_heads(leak.heads, method, known)[0]


@checked_arguments()
def count_heads(
    heads: HeadLeaks, method: str, known: Knowledge | None = None, *, whatever_holds: bool = False
) -> Tensor:
    """Return the counts (N, C) of every class in N clients' batches, all at once.

    Args:
        heads: The last layer's gradients of the N clients.
        method: The name of a method, see `count_labels`.
        known: What the attacker has besides the gradients.
        whatever_holds: Whether to count even if a gradient visibly violates the method's assumption, which is an error
            otherwise. This measures how much the assumption matters.

    Returns:
        The counts (N, C).
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    known = known or Knowledge()
    if method in BY_BIAS and (heads.bias is None or heads.bias_gradients is None):
        raise InputError(f"{method} reads the bias's gradient: the last layer must have a bias")
    if method in ONE_STEP and known.local_steps != 1:
        raise InputError(f"{method} reads one gradient, and this is the sum of {known.local_steps} along a path")
    if method in WITH_SAMPLES and (known.model is None or known.auxiliary is None):
        raise InputError(f"{method} needs samples of the same kind: auxiliary=(inputs, classes)")
    if method in BY_SUMS and not whatever_holds:
        unsuitable = ~(heads.weight_gradients.sum(dim=2) < 0).any(dim=1)
        if unsuitable.any():
            subject = (
                "the gradient" if len(unsuitable) == 1 else f"{int(unsuitable.sum())} of {len(unsuitable)} gradients"
            )
            raise InputError(f"no row of {subject} sums to less than 0, as {method} assumes: features change sign")
    if method in ("llg*", *WITH_SAMPLES):
        outputs = (known.dummies if method == "llg*" else known.others)[1].shape[1]
        if outputs != len(heads.weight):
            raise InputError(
                f"the gradient is of a layer with {len(heads.weight)} outputs, but the model has {outputs} logits"
            )
    return METHODS[method].count(heads, known)


@checked_arguments(weight_gradient="C I")
def reveal_labels(weight_gradient: Tensor, method: str = "rlg", rank: int | None = None) -> set[int]:
    """Return the classes that occur in a batch, given its last-layer gradient.

    Nothing certifies the answer. It may contain a class too many, or lack a class, in three cases: there are hardly
    more classes than samples, classes repeat, or the network is certain of its predictions.

    Args:
        weight_gradient: Gradient of the last layer's weight (C, I), averaged over the batch.
        method: "rlg" (dang2021).
        rank: The number of samples, if known; by default the gradient's numerical rank.

    Returns:
        The classes, each once.

    >>> draws = torch.Generator().manual_seed(0)
    >>> weight, x = torch.randn(10, 8, generator=draws), torch.rand(3, 8, generator=draws)
    >>> errors = (x @ weight.T).softmax(1) - torch.eye(10)[[3, 7, 7]]
    >>> reveal_labels(errors.T @ x / 3)
    {3, 7}
    """
    if method != "rlg":
        raise unknown("method", method, ["rlg"])
    check_count("rank", rank)
    classes = rlg(weight_gradient, rank)
    if rank is None and weight_gradient.dtype == torch.float64:
        # In float64 the decomposition's own rounding may look like additional samples.
        samples = int((classes_span(weight_gradient).singular > DECOMPOSED * limit(weight_gradient)).sum())
        if len(classes) > samples:
            raise InputError(
                f"{len(classes)} classes were found in a gradient of {samples} samples: rounding hides them"
            )
    return classes
