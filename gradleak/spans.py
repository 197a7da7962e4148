"""Compute the span of a gradient's rows or columns, after division of the rows by their lengths.

A gradient's rounding errors are relative to each entry. In a sum that a few large rows dominate, two samples of the
same class differ only in the small rows of the other classes. That difference lies below the rounding of the large
rows. With all rows of the same length it exceeds the rounding again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# A matrix is first compressed to FIRST columns by random signs, which keeps its rank and span if the rank is smaller.
# The number doubles until the rank is well below it.
FIRST = 64
# Rows that are processed at a time.
ROWS = 256


@dataclass(frozen=True)
class Span:
    """Orthonormal columns (N, S) that span a space, and all singular values that were computed."""

    vectors: Tensor
    singular: Tensor

    @property
    def rank(self) -> int:
        """The dimension S."""
        return self.vectors.shape[1]


def classes_span(gradient: Tensor) -> Span:
    """Return the span (C, S) of the columns of a gradient (C, I), after division of its rows by their lengths."""
    sizes = _sizes(gradient)
    return _ranked(gradient, lambda columns: _folded_columns(gradient, columns) / sizes)


def inputs_span(gradient: Tensor) -> Span:
    """Return the span (I, S) of the rows of a gradient (C, I), after division of its rows by their lengths."""
    sizes = _sizes(gradient)
    return _ranked(gradient, lambda rows: _folded_rows(gradient, sizes, rows).T)


def limit(gradient: Tensor) -> float:
    """Return the limit below which singular values may be rounding, for rows of length 1."""
    return float(torch.finfo(gradient.dtype).eps * max(gradient.shape) ** 0.5)


def _sizes(gradient: Tensor) -> Tensor:
    """Return the rows' lengths (C, 1), infinite for rows so small that their rounding is no longer relative."""
    sizes = torch.cat([_lengths(rows) for rows in gradient.split(ROWS)])
    info = torch.finfo(gradient.dtype)
    return sizes.where(sizes > info.tiny / info.eps, torch.inf)


def _lengths(rows: Tensor) -> Tensor:
    # Scale first, because the squares of small numbers underflow.
    largest = rows.abs().amax(dim=1, keepdim=True)
    largest = largest.where(largest > 0, 1)
    lengths: Tensor = torch.linalg.vector_norm(rows / largest, dim=1, keepdim=True)
    return largest.double() * lengths


def _ranked(gradient: Tensor, fold: Callable[[int], Tensor]) -> Span:
    least = min(gradient.shape)
    columns = FIRST
    while True:
        vectors, singular, _ = torch.linalg.svd(fold(columns), full_matrices=False)
        rank = int((singular > limit(gradient)).sum())
        if columns >= least or rank <= columns // 2:
            return Span(vectors[:, :rank], singular)
        columns *= 2


def _folded_columns(gradient: Tensor, columns: int) -> Tensor:
    """Return a gradient (C, I) compressed to `columns` columns, which are sums with random signs; float64."""
    if columns >= gradient.shape[1]:
        return gradient.double()
    signs = _signs(gradient.shape[1]).to(gradient)
    padding = -len(signs) % columns
    # A few rows at a time fit the processor's cache.
    parts = (torch.nn.functional.pad(rows * signs, (0, padding)).double() for rows in gradient.split(ROWS))
    return torch.cat([part.view(len(part), -1, columns).sum(dim=1) for part in parts])


def _folded_rows(gradient: Tensor, sizes: Tensor, rows: int) -> Tensor:
    """Return a gradient (C, I) compressed to `rows` rows, sums of rows of length 1 with random signs; float64."""
    if rows >= len(gradient):
        return gradient.double() / sizes
    factors = _signs(len(gradient))[:, None].to(sizes) / sizes
    total = torch.zeros(rows, gradient.shape[1], dtype=torch.float64, device=gradient.device)
    for part, factor in zip(gradient.split(rows), factors.split(rows), strict=True):
        total[: len(part)] += part * factor
    return total


def _signs(count: int) -> Tensor:
    return torch.randint(2, (count,), generator=torch.Generator().manual_seed(0)) * 2 - 1
