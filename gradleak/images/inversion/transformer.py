"""Invert a vision transformer for a single image, in closed form.

The token of patch i is E pᵢ + b + sᵢ, with the patch pᵢ (P numbers), the embedding E (D, P) and the position sᵢ. Let gᵢ
be the loss's gradient with respect to this token. There are two closed forms:

    positions   If the positions are learned, gᵢ is the gradient of sᵢ. The gradient of the embedding, Σ gᵢ pᵢᵀ, is then
                a linear equation for the patches [lu2022]. Without noise, each row of it is weighted by what it misses.
    attention   The rows of the gradient of queries, keys and values are sums of the attention's inputs. The inputs
                are affine in the patch and in the length by which the normalisation divides its token. So each patch
                solves a linear system, which says that its input lies in the span of these rows.

The first form holds for any loss. It needs at most as many patches as the width D, the second fewer tokens than D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gradleak.answers import Answer, InversionStatus
from gradleak.arguments import checked_arguments
from gradleak.cases import DOUBLE, Attack, Case
from gradleak.errors import GradleakError, InputError, first_line
from gradleak.images.inversion import chain
from gradleak.images.inversion.again import TINY, observed_again, size_of
from gradleak.images.inversion.fully_connected import (
    ALLOWED,
    BOUND,
    FINEST,
    FITS,
    SURE,
    Inversion,
    LayerReport,
    warned,
)
from gradleak.images.inversion.tokens import EXPLAINED, Attention, Embedding, attention_of, embedding_of
from gradleak.labels.priors import check_noise
from gradleak.leak import Leak
from gradleak.precision import rounding_unit

Form = Literal["positions", "attention"]
# Standard deviation of an entry of a gradient, in rounding units of the sum of the absolute values of its terms.
ROUNDING = 2.0
# In the second closed form, the unknowns' standard deviation before the equations are used, in multiples of a patch's
# expected length.
BROAD = 100.0
# The rank of the attention's gradient is the number of singular values above this many standard deviations of noise.
RANK = 8.0
# A patch is determined if the equations leave less than this of a direction open.
OPEN = 0.5
# In the first closed form, how often the equations are weighted anew by what they miss, and how many columns of their
# right-hand side the expected rounding is worth beside that.
WEIGHTED, EXPECTED = 3, 30


@dataclass(frozen=True)
class Solved:
    """Unknowns of linear equations.

    Attributes:
        value: The unknowns (U, K), in K columns that share the matrix of the equations.
        error: The standard deviation of each unknown (U,), for columns whose equations have errors of 1.
        undetermined: How many directions the equations leave open.
        equations: The number of equations of each column.
        misfit: What the equations miss, relative to their right-hand sides.
        misses: The same relative to the equations' errors (root mean square over the degrees of freedom).
        spread: The standard deviation of each equation's errors (E,), as what it misses shows it, where a deviation of
            1 was expected and counts like EXPECTED columns.
    """

    value: Tensor
    error: Tensor
    undetermined: float
    equations: int
    misfit: float
    misses: float
    spread: Tensor


@checked_arguments()
def invert_transformer(leak: Leak) -> Tensor:
    """Return the private image (1, C, H, W) in float64 from a vision transformer's gradients.

    Warn if it is not exact; an image that could not be recovered is NaN. `trace_transformer` takes the same arguments
    and returns a full report.
    """
    return warned(trace_transformer(leak)).inputs


@checked_arguments()
def trace_transformer(leak: Leak, *, form: Form | None = None, noise: float = 0.0) -> Inversion:
    """Invert a vision transformer in closed form, and report on the patch embedding.

    Args:
        leak: The gradient of a single image, and the model that it is from. No label is needed.
        form: The closed form; by default "positions" if the update has a gradient of learned positions, else
            "attention".
        noise: The standard deviation of the noise on every entry.

    Returns:
        The image, without labels. It is "exact" if all pixels are determined, their claimed relative error is at most
        a hundredth, and the gradient of the image is the one that was sent. It is the input of the patch embedding
        without the constant factors that the network applies before.

    Raises:
        InputError: If the network is no vision transformer, or the update is a sum over several local steps.

    Examples:
        >>> from gradleak import observe
        >>> from gradleak.models.transformer import VisionTransformer
        >>> _ = torch.manual_seed(0)
        >>> model, image = VisionTransformer(size=16, patch=4), torch.rand(1, 3, 16, 16)
        >>> inversion = trace_transformer(observe(model, image, torch.tensor([1])))
        >>> inversion.status, torch.allclose(inversion.inputs.float(), image, atol=1e-4)
        ('exact', True)
    """
    check_noise(noise)
    leak.check_one_step("an inversion")
    embedding = embedding_of(leak)
    shape = leak.input_shape
    assert shape is not None
    form = form or ("positions" if embedding.positions else "attention")
    if form == "positions" and not embedding.positions:
        raise InputError("the update has no gradient of learned positions that are added to the patches")
    blank = leak.weight.new_full((leak.batch_size, *shape), math.nan, dtype=torch.float64)
    labels = blank.new_full((leak.batch_size, leak.weight.shape[0]), math.nan)
    if leak.batch_size != 1:
        # Both gradients sum over the images: gᵢ over each patch's images, and the rows over all tokens.
        reason = f"the gradient sums the tokens of {leak.batch_size} images, which these equations do not separate"
        return Inversion(blank, labels, (), "failed", reason)
    with torch.no_grad():
        patches, report = (_by_positions if form == "positions" else _by_attention)(leak, embedding, noise)
    if patches is None:
        return Inversion(blank, labels, (report,), "failed", report.reason)
    image = embedding.image(patches, shape)
    claimed = report.claimed if report.claimed is not None else math.inf
    found = Inversion(image, labels, (report,), "partial", report.reason, claimed=claimed)
    found = replace(found, in_front=embedding.unlike or chain.in_front(leak))
    if report.reason or embedding.unlike:
        return found
    # In the client's own type: the check finds wrong images, and a gradient in float64 takes twice as long.
    check = observed_again(leak, image, None, dtype=leak.weight.dtype)
    unit = rounding_unit(None, leak.weight.dtype)
    check = replace(
        check, misses={name: miss for name, miss in check.misses.items() if not _rounding(leak, name, unit)}
    )
    reason = check.beyond(max(FITS, ALLOWED * unit), noise, leak)
    status: InversionStatus = "partial" if reason else "exact"
    return replace(found, status=status, reason=reason, residual=check.worst)


def _rounding(leak: Leak, name: str, unit: float) -> bool:
    """Return whether a bias's gradient is only rounding. That of keys is: the softmax does not depend on their bias."""
    weight = leak.gradients.get(name.removesuffix("bias") + "weight")
    if not name.endswith("bias") or weight is None:
        return False
    return size_of(leak.gradients[name]) <= ALLOWED * unit * size_of(weight)


def _by_positions(leak: Leak, embedding: Embedding, noise: float) -> tuple[Tensor | None, LayerReport]:
    """Solve ∇E = Gᵀ X for the patches X (N, P), where G (N, D) is the gradient of their positions."""
    tokens = embedding.token_gradients(leak)
    target = leak.gradient(f"{embedding.name}.weight").double().flatten(1)
    sums = tokens.abs().sum(dim=0)
    # The rounding of smaller numbers is not relative.
    info = torch.finfo(leak.weight.dtype)
    used = sums > info.tiny / info.eps
    if not target[used].any():
        return None, _unsolved(embedding, _zero(leak, embedding.positions))
    size = embedding.size
    unit = max(rounding_unit(None, leak.weight.dtype), FINEST)
    for _ in range(2):
        # Both gradients have noise, and that of G is multiplied by the patches.
        rounding = ROUNDING * unit * size * sums[used]
        error = rounding.hypot(rounding.new_tensor(noise * math.sqrt(1 + len(tokens) * size**2)))[:, None]
        solved = solve(tokens.T[used] / error, target[used] / error, size)
        size = float(solved.value.square().mean().sqrt())
    # How much a sum is rounded depends on the order of its terms, which the attacker does not know. Noise is the same
    # in all equations, and few directions of what they miss tell about it.
    rounded = not noise and solved.misses <= 1
    for _ in range(WEIGHTED if rounded else 0):
        error = error * solved.spread[:, None]
        solved = solve(tokens.T[used] / error, target[used] / error, size)
    deviation = solved.error[:, None].expand_as(solved.value)
    return solved.value, _report(embedding, embedding.positions, solved, solved.value, deviation)


def _by_attention(leak: Leak, embedding: Embedding, noise: float) -> tuple[Tensor | None, LayerReport]:
    """Solve for patches whose attention inputs lie in the span of the gradient of queries, keys and values."""
    attention = attention_of(leak)
    weights = [leak.gradient(name).double() for name in attention.parameters]
    matrices = [value for value in weights if value.ndim == 2]
    joined = torch.cat(matrices)
    biased = len(weights) > len(matrices)
    if biased:
        joined = torch.cat([joined, torch.cat(weights[len(matrices) :])[:, None]], dim=1)
    name, count = attention.parameters[0], embedding.tokens
    sizes = joined.norm(dim=1, keepdim=True)
    info = torch.finfo(leak.weight.dtype)
    used = sizes[:, 0] > info.tiny / info.eps
    if not used.any():
        return None, _unsolved(embedding, _zero(leak, name))
    joined = (joined / sizes)[used]
    if count >= min(joined.shape):
        reason = f"the gradient of '{name}' has rows of {joined.shape[1]} numbers, too few for {count} tokens"
        return None, _unsolved(embedding, reason)
    _, singular, right = torch.linalg.svd(joined, full_matrices=True)
    span, outside = right[:count], right[count:]
    # The error of an entry: rounding, or what the singular values after those of the tokens show.
    unit = max(rounding_unit(None, leak.weight.dtype), FINEST)
    rest = math.sqrt(float(singular[count:].square().sum()) / ((len(joined) - count) * (joined.shape[1] - count)))
    entry = max(ROUNDING * unit / math.sqrt(joined.shape[1]), rest, noise / float(sizes[used].median()))
    if not singular[count - 1] > RANK * entry * math.sqrt(max(joined.shape)):
        reason = f"the gradient of '{name}' has a lower rank than {count}, the number of tokens"
        return None, _unsolved(embedding, reason)
    # The rows of the embedding's gradient are sums of the patches. Fewer patches than numbers lie in their span.
    gradient = leak.gradient(f"{embedding.name}.weight").double().flatten(1)
    basis = torch.linalg.svd(gradient, full_matrices=False).Vh[: len(embedding.places)].T
    embed = leak.model.get_parameter(f"{embedding.name}.weight").detach().double().flatten(1) @ basis
    # The attention's inputs, times the length of the token, are `moved` z + `length` times that length + `start`.
    moved, start = (_before_lengths(attention, value, biased) for value in (embed, attention.start.T))
    length = torch.cat([attention.bias, attention.bias.new_ones(int(biased))])[:, None]
    if not attention.normalised:
        start = start + length
    elif biased or float(attention.bias.norm()) > EXPLAINED * float(attention.weight.norm()):
        moved = torch.cat([moved, length], dim=1)
    prior = BROAD * embedding.size * math.sqrt(embedding.pixels.shape[1])
    error = start.new_full((start.shape[1],), entry)
    for _ in range(2):
        unit_error = float(error.square().mean().sqrt())
        solved = solve(outside @ moved / unit_error, -(outside @ start) / unit_error, prior)
        # An error of an entry changes the span most in the directions in which the gradient is small.
        error = entry * ((span @ (moved @ solved.value + start)) / singular[:count, None]).norm(dim=0)
    unknowns = basis.shape[1]
    deviation = solved.error[:unknowns, None] * error / unit_error
    patches = (basis @ solved.value[:unknowns]).T
    return patches, _report(embedding, name, solved, patches, deviation)


def _before_lengths(attention: Attention, values: Tensor, biased: bool) -> Tensor:
    """Return the attention's inputs, times the tokens' lengths, of tokens (D, …); a bias reads a further 0."""
    centred = values - values.mean(dim=0) if attention.centred else values
    inputs = attention.weight[:, None] * centred
    return torch.cat([inputs, inputs.new_zeros(int(biased), inputs.shape[1])])


def solve(matrix: Tensor, target: Tensor, prior: float) -> Solved:
    """Solve equations with errors of standard deviation 1 for normal unknowns of standard deviation `prior`."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    held = values.square() + prior**-2
    value = right.T @ ((values / held)[:, None] * (left.T @ target))
    variance, missing = right.square().T @ (1 / held), matrix.shape[1] - len(values)
    if missing:
        # Directions that no equation reads keep their prior.
        variance = variance + prior**2 * (1 - right.square().sum(dim=0)).clamp(min=0)
    undetermined = float((prior**-2 / held).sum()) + missing
    freedom = max(0.0, len(matrix) - matrix.shape[1] + undetermined)
    rest = matrix @ value - target
    missed, columns = float(rest.norm()), target.shape[1]
    misses = missed / math.sqrt(freedom * columns) if freedom >= OPEN else math.inf
    open_shares = 1 - left.square() @ (values.square() / held)
    spread = ((EXPECTED + rest.square().sum(dim=1)) / (EXPECTED + columns * open_shares)).sqrt()
    misfit = missed / max(float(target.norm()), TINY)
    return Solved(value, variance.sqrt(), undetermined, len(matrix), misfit, misses, spread)


def _report(embedding: Embedding, name: str, solved: Solved, patches: Tensor, error: Tensor) -> LayerReport:
    """Return the report on patches (N, P) that follow from a parameter's gradient with these standard deviations."""
    size = float(patches.norm())
    claimed = max(BOUND * max(1.0, solved.misses) * float(error.norm()) / max(size, TINY), BOUND * FINEST)
    unknowns, reason = len(solved.value), ""
    rank = unknowns - max(0, math.ceil(solved.undetermined - OPEN))
    if rank < unknowns:
        reason = f"the gradient of '{name}' gives equations of rank {rank} for {unknowns} unknowns"
    elif math.isinf(solved.misses):
        reason = f"no equation is left to check the {unknowns} unknowns"
    elif not claimed <= SURE:
        reason = f"the patches are known to {claimed:.1e} only"
    columns = solved.value.shape[1]
    return LayerReport(
        embedding.name, columns * solved.equations, columns * unknowns, columns * rank, solved.misfit, reason, claimed,
        patches,
    )  # fmt: skip


def _unsolved(embedding: Embedding, reason: str) -> LayerReport:
    return LayerReport(embedding.name, 0, embedding.pixels.numel(), 0, math.inf, reason)


def _zero(leak: Leak, name: str) -> str:
    """Return why a parameter's gradient is zero."""
    zero = f"the gradient of '{name}' is zero"
    if leak.weight.any():
        return f"{zero}: the patches do not change the network's output"
    return f"{zero}, because the last layer's weight is zero: attack the next round, after it has been trained"


def _why_not(case: Case) -> str:
    if case.subject.kind != "images":
        return "the inputs are no images"
    if case.leak.local_steps > 1:
        return f"the update is the sum of {case.leak.local_steps} gradients along a path"
    try:
        embedding = embedding_of(case.leak)
        names = [f"{embedding.name}.weight"]
        names += [embedding.positions] if embedding.positions else attention_of(case.leak).parameters
    except GradleakError as error:
        return first_line(error)
    if case.size > 1:
        return "the gradients sum the tokens of all images, and these equations do not separate them"
    return next(filter(None, map(case.leak.withheld, names)), "")


def _attack(case: Case) -> Answer:
    answer = trace_transformer(case.leak, noise=case.noise or 0.0).answers[0]
    return case.without_rounding(replace(answer, labels=None))


ATTACK = Attack(
    "patches of a transformer",
    page="transformers",
    finds=("inputs",),
    needs="the gradients of one image's patch embedding and learned positions, or queries, keys and values",
    refused=_why_not,
    run=_attack,
    remedy="several images in a batch; noise on every entry",
    memory=lambda case: 4 * DOUBLE * case.subject.parameters,
)
