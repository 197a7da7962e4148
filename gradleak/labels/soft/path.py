"""Express the label and the feature of a sample as functions of one unknown scalar.

Row i of the last layer's gradient is gᵢ = (pᵢ − yᵢ) x (wang2024, Eqn. 2), so all rows are multiples of one vector. Any
vector d along them gives the feature up to a scalar, x = s d. With it follows the label ŷᵢ(s) = softmax(s W d + b)ᵢ −
rᵢ / s with gᵢ = rᵢ d (Eqn. 4). The paper takes a row g_r as d, and the true scalar is then λ* = 1 / (p_r − y_r). The
exact solver takes a d of length 1, and its scalar is ‖x‖.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

import torch
from torch import Tensor

from gradleak.arguments import checked_arguments
from gradleak.devices import entries_at_once
from gradleak.errors import InputError

# On a CPU a chunk and its temporaries fit the second-level cache, which halves the time.
CHUNK_ELEMENTS = 2**18
# Temporaries of a chunk's size that are held at once, in float64.
COPIES = 16
GOLDEN = (math.sqrt(5) - 1) / 2


class ScalarPath:
    """The label of each of N samples as a function of its unknown scalar s.

    Attributes:
        logits: W d (N, C).
        ratios: r (N, C), the gradient's rows in units of d.
        bias: b (C,) or None.
    """

    logits: Tensor
    ratios: Tensor
    bias: Tensor | None

    def __len__(self) -> int:
        return len(self.ratios)

    def __getitem__(self, which: slice | Tensor) -> Self:
        """Return the paths of some samples; all tensors but the bias have one row for each sample."""
        own: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        rows = {name: value[which] for name, value in own.items() if torch.is_tensor(value) and name != "bias"}
        return type(self)(**own | rows)

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.ratios.shape[1]

    def probabilities(self, scalars: Tensor) -> Tensor:
        """Return p(s) = softmax(s W d + b) (N, K, C) for s (N, K)."""
        scores = scalars.unsqueeze(-1) * self.logits.unsqueeze(1)
        if self.bias is not None:
            scores = scores + self.bias
        return scores.softmax(dim=-1)

    def pulls(self, scalars: Tensor) -> Tensor:
        """Return r / s (N, K, C), which is p − y, for s (N, K)."""
        return self.ratios.unsqueeze(1) / scalars.unsqueeze(-1)

    def labels(self, scalars: Tensor) -> Tensor:
        """Return ŷ(s) = p(s) − r / s (N, K, C) for s (N, K), by Eqn. 4."""
        return self.probabilities(scalars) - self.pulls(scalars)

    def parts(self, points: int) -> list[Self]:
        """Split the samples so that the labels of each part, at `points` scalars, fit one chunk."""
        entries = entries_at_once(self.ratios.device, CHUNK_ELEMENTS, 8 * COPIES)
        size = max(1, entries // (points * self.classes))
        if size >= len(self):
            return [self]
        return [self[start : start + size] for start in range(0, len(self), size)]


@dataclass(frozen=True)
class LabelPath(ScalarPath):
    """The label of each of N samples as a function of an unknown scalar λ.

    The gradient's row i is gᵢ = (pᵢ − yᵢ) x, so the feature is x = λ g_r for the row r with the largest entries.

    Attributes:
        direction: The row g_r (N, I).
        logits: The logits per unit of λ, W g_r (N, C).
        ratios: gᵢ / g_r (N, C), which is λ (pᵢ − yᵢ).
        bias: The bias b (C,) or None.
        row: The index r (N,) of the row with the largest absolute sum of its entries.
    """

    direction: Tensor
    logits: Tensor
    ratios: Tensor
    bias: Tensor | None
    row: Tensor

    @property
    def least(self) -> Tensor:
        """The least |λ| for which a valid label can exist (N,).

        The positive entries of p − y = ratios / λ sum to at most 1, so |λ| is at least the sum of the positive ratios.
        """
        return self.ratios.clamp(min=0).sum(dim=1)

    def features(self, scalars: Tensor) -> Tensor:
        """Return x(λ) = λ g_r (N, K, I) for λ (N, K)."""
        return scalars.unsqueeze(-1) * self.direction.unsqueeze(1)


@checked_arguments(weight_gradients="C I | N C I", weight="C I", bias="C")
def label_path(
    weight_gradients: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    columns: Literal["all", "one"] = "all",
    dtype: torch.dtype | None = torch.float64,
) -> LabelPath:
    """Reduce last-layer gradients of single samples to their label paths (wang2024, Eqn. 4).

    Args:
        weight_gradients: Gradient of one sample (C, I) or of N samples (N, C, I).
        weight: The last layer's weight (C, I).
        bias: The last layer's bias (C,), if it has one.
        columns: How to compute gᵢ / g_r, which is the same in every column. "all" fits all columns by least squares.
            "one" divides in the column where |g_r| is largest, as the paper's code does.
        dtype: The type to compute in; None keeps the gradient's.

    Returns:
        The label of each sample as a function of its scalar.
    """
    gradients = weight_gradients.unsqueeze(0) if weight_gradients.ndim == 2 else weight_gradients
    gradients = gradients.to(dtype) if dtype else gradients
    weight = weight.to(gradients)
    row = gradients.sum(dim=2).abs().argmax(dim=1)
    direction = gradients[torch.arange(len(gradients), device=row.device), row]
    square = direction.square().sum(dim=1)
    if (square == 0).any():
        raise InputError(
            f"{int((square == 0).sum())} of {len(gradients)} gradients are zero: prediction and label agree there, "
            "and a zero gradient says nothing else"
        )
    if columns == "all":
        ratios = torch.einsum("nci,ni->nc", gradients, direction) / square[:, None]
    else:
        column = direction.abs().argmax(dim=1, keepdim=True)
        picked = gradients.gather(2, column.unsqueeze(1).expand(-1, gradients.shape[1], 1)).squeeze(2)
        ratios = picked / direction.gather(1, column)
    return LabelPath(direction, direction @ weight.T, ratios, None if bias is None else bias.to(gradients), row)


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate the parts; return a single part without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def padded(values: Tensor, columns: int) -> Tensor:
    """Return values (…, K) with the first one of each row repeated, to be K = `columns` in all."""
    if values.shape[-1] == columns:
        return values
    return torch.cat([values, values[..., :1].expand(*values.shape[:-1], columns - values.shape[-1])], dim=-1)


def golden(loss: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, steps: int = 60) -> Tensor:
    """Narrow brackets (N, K) around one minimum each by golden-section search, which needs no derivatives."""
    for _ in range(steps):
        width = upper - lower
        left, right = upper - GOLDEN * width, lower + GOLDEN * width
        first = loss(left) < loss(right)
        lower, upper = torch.where(first, lower, left), torch.where(first, right, upper)
    return (lower + upper) / 2
