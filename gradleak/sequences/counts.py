"""How often each prefix was passed: whole numbers, from the gradient of the last layer.

With m_n passes of prefix n, its feature s_n and its prediction p_n, that gradient is Σ_n m_n (p_n − e_end) s_nᵀ +
Σ_n m_n (e_end − e_{w_n}) s_{n'}ᵀ over M, n' the prefix that n prolongs: a pass goes on or ends. It is linear in m.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.errors import InputError
from gradleak.sequences.tree import Tree

# So many rows of words that no prefix holds are used beside the others.
OTHERS = 512
# So many classes at a time are predicted.
CLASSES = 1024
# Counts are read if all are as near to whole numbers: first closely, then as noise has it; beyond, nothing is said.
WHOLE = (0.01, 0.05, 0.2)
# The least eigenvalue, of counts in units in which each leaves a trace of size one, at which they are told apart:
# rounding to 1e-7 then hides no more than a ten thousandth of one.
TRACE = 1e-6


@dataclass(frozen=True)
class Head:
    """The last layer and what was seen of it; `weight_gradient` (C, I), `bias_gradient` (C,) or None.

    `tied`: the weight is the embedding's as well, whose gradient is added to the rows of words that are inputs.
    """

    weight: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor | None
    tied: bool

    def block(self, words: Tensor) -> Tensor:
        """Return the gradient's rows (K, I + 1) of some words; the bias is one more feature that is always 1."""
        bias = self.weight.new_zeros(len(words)) if self.bias_gradient is None else self.bias_gradient[words].double()
        return torch.cat([self.weight_gradient[words].double(), bias[:, None]], dim=1)


@dataclass(frozen=True)
class Counts:
    """Passes of every prefix (N,) and how far they were from whole numbers; `known`: whether they are the only ones.

    `total` is the number of tokens M.
    """

    passes: Tensor
    miss: float
    known: bool
    total: int


def count(tree: Tree, head: Head, end: int, *, equalise: bool = True) -> Counts | None:
    """Return how often each prefix was passed, or None where no whole numbers explain the gradient.

    They are known up to a common factor: a batch and the same batch twice have the same mean gradient. It is taken as
    small as it can be.
    """
    system, right = _normal_equations(tree, head, end, equalise)
    shares, known = _solved(system, right)
    factor = float(shares.sum())
    if not factor > 0:
        return None
    shares = shares / factor
    leaves = torch.ones(len(tree), dtype=torch.bool, device=shares.device)
    leaves[tree.parents.clamp(min=0)] = False
    found = _total(shares, leaves)
    if found is None:
        return None
    passes = shares * found
    return Counts(passes.round().long(), float((passes - passes.round()).abs().max()), known, found)


def _normal_equations(tree: Tree, head: Head, end: int, equalise: bool) -> tuple[Tensor, Tensor]:
    parents, words, device = tree.parents.clamp(min=0), tree.words, tree.features.device
    classes = len(head.weight)
    if not 0 <= end < classes:
        raise InputError(f"the end mark must be one of the {classes} words; got {end}")
    used = torch.cat([words, torch.tensor([end], device=device)]).unique()
    others = torch.ones(classes, dtype=torch.bool, device=device)
    others[used] = False
    rest = others.nonzero()[:, 0]
    rows = torch.cat([used, rest[:: max(1, len(rest) // OTHERS)]])
    gradient = head.block(rows)
    features = tree.features
    if head.bias_gradient is not None:
        features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    else:
        gradient = gradient[:, :-1]
    logits = [tree.features @ part.double().T for part in head.weight.split(CLASSES)]
    predicted = (torch.cat(logits, dim=1) + head.bias).softmax(dim=1)[:, rows]

    place = torch.full((classes,), -1, device=device)
    place[rows] = torch.arange(len(rows), device=device)
    passed = predicted - F.one_hot(place[torch.tensor(end, device=device)], len(rows)).double()
    went = F.one_hot(place[end], len(rows)).double() - F.one_hot(place[words], len(rows)).double()
    went = torch.where((tree.parents < 0)[:, None], 0.0, went)

    system, right = features.new_zeros(len(tree), len(tree)), features.new_zeros(len(tree))
    mixed = torch.isin(rows, words) & head.tied
    blocks = [(~mixed, slice(None))]
    if bool(mixed.any()) and head.bias_gradient is not None:
        blocks.append((mixed, slice(-1, None)))
    for chosen, columns in blocks:
        own, seen = features[:, columns], gradient[chosen][:, columns]
        weights = torch.ones(len(seen)).to(seen)
        if equalise:
            size = seen.norm(dim=1)
            weights = torch.where(size > 0, 1 / size.clamp(min=1e-300), 0.0)
        at, to = passed[:, chosen] * weights, went[:, chosen] * weights
        above, seen = own[parents], seen * weights[:, None]
        cross = (at @ to.T) * (own @ above.T)
        system += (at @ at.T) * (own @ own.T) + cross + cross.T + (to @ to.T) * (above @ above.T)
        right += ((at @ seen) * own).sum(dim=1) + ((to @ seen) * above).sum(dim=1)
    return system, right


def _solved(system: Tensor, right: Tensor) -> tuple[Tensor, bool]:
    """Return the least squares solution with no negative entry, and whether it is the only one.

    By an active set: what comes out negative is set to zero, and the rest is solved again.
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
    """Return the least number M of which all shares (N,) are whole parts.

    A share that is rounded to zero is one that M cannot hold, or, where there is noise, a leaf's.
    """
    most = 1000 + 10 * len(shares)
    totals = torch.arange(1, most + 1, dtype=shares.dtype, device=shares.device)
    for index, near in enumerate(WHOLE):
        may_vanish = shares < 1 / most if index == 0 else leaves
        left = torch.ones_like(totals, dtype=torch.bool)
        for part, vanishing in zip(shares.split(64), may_vanish.split(64), strict=True):
            products = totals[left, None] * part
            whole = (products - products.round()).abs() < near
            left[left.clone()] = (whole & ((products.round() > 0) | vanishing)).all(dim=1)
        if left.any():
            return int(totals[left][0])
    return None
