"""Solve for the number of times that each prefix occurs in a batch, from the gradient of the last layer.

Let prefix n occur m_n times, with the feature s_n, the prediction p_n, the last word w_n, and the parent n', which is
one word shorter. After every occurrence the sentence either continues or ends, so the last layer's gradient is linear
in m:

    (Σ_n m_n (p_n − e_end) s_nᵀ + Σ_n m_n (e_end − e_{w_n}) s_{n'}ᵀ) / M,

where M is the number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.leak import Gradients
from gradleak.sequences.recognised import Model
from gradleak.sequences.tree import Tree

# Rows of the gradient that are used for words outside all prefixes, in addition to the rows of the prefixes' words.
OTHERS = 512
# Classes whose logits are computed at a time.
CLASSES = 1024
# Largest distances of the counts from whole numbers: the first for exact gradients, the next ones for noise.
WHOLE = (0.01, 0.05, 0.2)
# Counts are unique if the normal equations, scaled to a diagonal of ones, have no smaller eigenvalue than this one.
# Relative rounding errors of 1e-7 then change a count by at most 1e-4.
TRACE = 1e-6


@dataclass(frozen=True)
class Counts:
    """The number of occurrences of every prefix.

    Attributes:
        passes: The counts (N,).
        known: Whether no other counts solve the equations.
        total: The number of tokens M.
    """

    passes: Tensor
    known: bool
    total: int


def count(tree: Tree, model: Model, gradients: Gradients, end: int | None, *, equalise: bool) -> Counts | None:
    """Return how often each prefix occurs, or None if no whole numbers explain the gradient.

    A batch and the same batch twice have the same mean gradient, so counts are known only up to a common factor. The
    least possible counts are returned.

    Args:
        tree: The prefixes.
        model: The model, whose last layer's gradients are used. If its weight is that of the embedding, the gradient's
            rows of words that are inputs also hold the embedding's gradient, so these rows are left out.
        gradients: The gradients.
        end: The end mark; None if sentences end with any word. Then only rows of words that are not in the tree are
            used, and of these the shorter half, in which no last word is expected.
        equalise: Whether the gradient's rows are divided by their lengths. This suits gradients without added noise.
    """
    system, right = _normal_equations(tree, model, gradients, end, equalise)
    shares, known = _solved(system, right)
    factor = float(shares.sum())
    if not factor > 0:
        return None
    shares = shares / factor
    leaves = torch.ones(len(tree), dtype=torch.bool, device=shares.device)
    leaves[tree.parents.clamp(min=0)] = False
    total = _total(shares, leaves)
    if total is None:
        return None
    return Counts((shares * total).round().long(), known, total)


def _normal_equations(
    tree: Tree, model: Model, gradients: Gradients, end: int | None, equalise: bool
) -> tuple[Tensor, Tensor]:
    parents, words, device = tree.parents.clamp(min=0), tree.words, tree.features.device
    weight, classes = model.head.weight.detach(), model.head.out_features
    used = words.unique() if end is None else torch.cat([words, torch.tensor([end], device=device)]).unique()
    unused = torch.ones(classes, dtype=torch.bool, device=device)
    unused[used] = False
    other_words = unused.nonzero()[:, 0]
    if end is None:
        # A target's row is long, because the probability of the target is one less.
        lengths = gradients[model.head_weight][other_words].norm(dim=1)
        other_words = other_words[lengths.argsort(stable=True)[: (len(other_words) + 1) // 2]].sort().values
    rows = torch.cat([used, other_words[:: max(1, len(other_words) // OTHERS)]])
    gradient, features = gradients[model.head_weight][rows].double(), tree.features
    if model.head_bias is not None:
        # The bias is the weight of a last feature that is always 1.
        gradient = torch.cat([gradient, gradients[model.head_bias][rows, None].double()], dim=1)
        features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    logits = [tree.features @ part.double().T for part in weight.split(CLASSES)]
    bias = 0 if model.head.bias is None else model.head.bias.detach()
    predicted = (torch.cat(logits, dim=1) + bias).softmax(dim=1)[:, rows]

    place = torch.full((classes,), -1, device=device)
    place[rows] = torch.arange(len(rows), device=device)
    # Without an end mark, the rows of all targets are left out below.
    target = 0 if end is None else F.one_hot(place[torch.tensor(end, device=device)], len(rows)).double()
    ending, continuing = predicted - target, target - F.one_hot(place[words], len(rows)).double()
    continuing = torch.where((tree.parents < 0)[:, None], 0.0, continuing)

    system, right = features.new_zeros(len(tree), len(tree)), features.new_zeros(len(tree))
    mixed = torch.isin(rows, words) & (model.tied or end is None)
    blocks = [(~mixed, slice(None))]
    if bool(mixed.any()) and model.head_bias is not None and end is not None:
        blocks.append((mixed, slice(-1, None)))
    for chosen, columns in blocks:
        inputs, block = features[:, columns], gradient[chosen][:, columns]
        weights = torch.ones(len(block)).to(block)
        if equalise:
            size = block.norm(dim=1)
            weights = torch.where(size > 0, 1 / size.clamp(min=1e-300), 0.0)
        ends, nexts = ending[:, chosen] * weights, continuing[:, chosen] * weights
        parent_inputs, block = inputs[parents], block * weights[:, None]
        cross = (ends @ nexts.T) * (inputs @ parent_inputs.T)
        system += (
            (ends @ ends.T) * (inputs @ inputs.T)
            + cross
            + cross.T
            + (nexts @ nexts.T) * (parent_inputs @ parent_inputs.T)
        )
        right += ((ends @ block) * inputs).sum(dim=1) + ((nexts @ block) * parent_inputs).sum(dim=1)
    return system, right


def _solved(system: Tensor, right: Tensor) -> tuple[Tensor, bool]:
    """Return a least squares solution without negative entries, and whether it is the only one.

    An active-set method sets negative entries to zero and solves for the others again.
    """
    size = system.diagonal().sqrt().clamp(min=1e-150)
    system, right = system / size / size[:, None], right / size
    unit = torch.eye(len(right), dtype=right.dtype, device=right.device)
    known = not bool(torch.linalg.cholesky_ex(system - TRACE * unit).info)
    system = system + 1e-13 * len(right) * unit
    free = torch.ones(len(right), dtype=torch.bool, device=right.device)
    solution = torch.zeros_like(right)
    while free.any():
        solution = torch.zeros_like(right)
        factor, failed = torch.linalg.cholesky_ex(system[free][:, free])
        if failed:
            return torch.zeros_like(right), False
        solution[free] = torch.cholesky_solve(right[free, None], factor)[:, 0]
        negative = free & (solution < 0)
        if not negative.any():
            break
        free &= ~negative
    return solution / size, known


def _total(shares: Tensor, leaves: Tensor) -> int | None:
    """Return the least number M for which M · `shares` (N,) are whole numbers, None if there is none.

    Every product must round to at least 1, with these exceptions: for exact gradients, shares below the reciprocal of
    the largest M; with noise, the shares of the tree's leaves.
    """
    most = 1000 + 10 * len(shares)
    totals = torch.arange(1, most + 1, dtype=shares.dtype, device=shares.device)
    for index, tolerance in enumerate(WHOLE):
        may_vanish = shares < 1 / most if index == 0 else leaves
        possible = torch.ones_like(totals, dtype=torch.bool)
        for part, vanishing in zip(shares.split(64), may_vanish.split(64), strict=True):
            products = totals[possible, None] * part
            whole = (products - products.round()).abs() < tolerance
            possible[possible.clone()] = (whole & ((products.round() > 0) | vanishing)).all(dim=1)
        if possible.any():
            return int(totals[possible][0])
    return None
