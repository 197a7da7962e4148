"""Whether utterances end where they were read, or go on with words of which the recogniser is sure.

Such words leave no error, and so no trace in the decoder's gradient. But then the last step that left one was told
another word than the end mark. The last layer's gradient, Σ_t (p_t − e_{y_t}) [s_t; c_t]ᵀ, tells which: of all entries
of a step's error the one at its word alone is negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from gradleak.sequences.output import cell_after

# An error's sign is told if it is so many times what rounding makes of nothing.
ROUNDED = 4.0


def ended(gradient: Tensor, states: Tensor, last: Sequence[int], end: int) -> list[bool]:
    """Return, of the `last` of all steps with these states (T, H), whether each was told the end mark.

    `gradient` (C, H): that of the last layer's part for the states.
    """
    inverse = torch.linalg.pinv(states)[:, list(last)]
    errors = _values(gradient) @ inverse.to(_values(gradient).dtype)
    rounding = _rounding(gradient) * gradient[end].double().norm() * inverse.norm(dim=0)
    told = (errors.argmin(dim=0) == end) & (errors[end] < -rounding)
    return [bool(one) for one in told]


def ended_behind(gradient: Tensor, states: Tensor, end: int) -> bool:
    """Return whether the step behind those with these states (T, H), its own state not known, was told the end mark.

    What is left of the gradient (C, H) outside of their span is that step's error times a direction, its sign not
    known: it is of the end mark if all other classes that leave something lie on the other side, more than one of them.
    """
    row, rounding = gradient[end].double(), _rounding(gradient)
    basis = torch.linalg.qr(states.T).Q
    left = row - basis @ (basis.T @ row)
    if not left.norm() > rounding * row.norm():
        return False
    values = _values(gradient)
    along = values @ (left / left.norm()).to(values.dtype)
    # Its own entry is all others' sum.
    if int(along.abs().argmax()) != end:
        return False
    along[end] = 0
    sizes = rounding * values.norm(dim=1)
    return int((along < -sizes).sum()) > 1 and not bool((along > sizes).any())


def top_states(cells: Iterable[nn.Module], states: Tensor, contexts: Tensor) -> Tensor:
    """Return the last layer's states (T, H) of an utterance, from those of the first (T, H) and its contexts (T, K)."""
    for cell in cells:
        weights = [value.detach().double() for value in cell.parameters()]
        nothing = states.new_zeros(weights[1].shape[1])
        before = (nothing, nothing)
        above = []
        for below, context in zip(states, contexts, strict=True):
            read = torch.cat([below, context])
            before = cell_after(weights[0] @ read + weights[2] + weights[1] @ before[0] + weights[3], before)
            above.append(before[0])
        states = torch.stack(above) if above else states
    return states


def _values(gradient: Tensor) -> Tensor:
    """Return a gradient in at least single precision: products in less would be rounded more than it is itself."""
    return gradient if gradient.dtype == torch.float64 else gradient.float()


def _rounding(gradient: Tensor) -> float:
    return ROUNDED * torch.finfo(gradient.dtype).eps
