"""Check whether an utterance ends after the words that were read, or continues with words that leave no gradient.

Words that the recogniser predicts with certainty have no error, and so no gradient. If such words follow, the target of
the last step with an error is not the end mark. The last layer's gradient, Σ_t (p_t − e_{y_t}) [s_t; c_t]ᵀ, shows the
target: it is the only negative entry of the step's error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

# The sign of an error is determined if the error exceeds the rounding error of a zero by this factor.
ROUNDED = 4.0


def ended(gradient: Tensor, states: Tensor, last: Sequence[int], end: int) -> list[bool]:
    """Return, for each of the `last` steps, whether the end mark was its target.

    Args:
        gradient: The gradient (C, H) of the last layer's weights for the states.
        states: The states of all steps (T, H).
        last: The indices of the last steps.
        end: The end mark.
    """
    inverse = torch.linalg.pinv(states)[:, list(last)]
    errors = _values(gradient) @ inverse.to(_values(gradient).dtype)
    rounding = _rounding(gradient) * gradient[end].double().norm() * inverse.norm(dim=0)
    is_end = (errors.argmin(dim=0) == end) & (errors[end] < -rounding)
    return [bool(flag) for flag in is_end]


def ended_behind(gradient: Tensor, states: Tensor, end: int) -> bool:
    """Return whether the end mark was the target of the one step after those with these `states` (T, H).

    The state of that step is unknown. The part of the `gradient` (C, H) outside the span of `states` is the step's
    error times a direction of unknown sign. So the target is the end mark if the entry of the end mark has one sign,
    and all other entries above rounding, more than one, have the other sign.
    """
    row, rounding = gradient[end].double(), _rounding(gradient)
    basis = torch.linalg.qr(states.T).Q
    outside = row - basis @ (basis.T @ row)
    if not outside.norm() > rounding * row.norm():
        return False
    values = _values(gradient)
    along = values @ (outside / outside.norm()).to(values.dtype)
    # The errors of a step sum to zero, so the target's entry is the largest.
    if int(along.abs().argmax()) != end:
        return False
    along[end] = 0
    sizes = rounding * values.norm(dim=1)
    return int((along < -sizes).sum()) > 1 and not bool((along > sizes).any())


def top_states(cells: Iterable[nn.Module], states: Tensor, contexts: Tensor) -> Tensor:
    """Return the last layer's states (T, H), from the first layer's states (T, H) and the contexts (T, K)."""
    for cell in cells:
        before, above = None, []
        for inputs in torch.cat([states, contexts], dim=1):
            before = cell(inputs, before)
            above.append(before[0])
        states = torch.stack(above) if above else states
    return states


def _values(gradient: Tensor) -> Tensor:
    """Return a gradient in at least single precision, because products in half precision add rounding errors."""
    return gradient if gradient.dtype == torch.float64 else gradient.float()


def _rounding(gradient: Tensor) -> float:
    return ROUNDED * torch.finfo(gradient.dtype).eps
