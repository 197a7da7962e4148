"""Recover a one-hot label by iDLG (zhao2020): only the true class's row of the gradient can be negative."""

from __future__ import annotations

from torch import Tensor

from gradleak.arguments import checked_arguments


@checked_arguments(weight_gradient="C I | N C I")
def idlg(weight_gradient: Tensor) -> Tensor:
    """Return the class (N,) whose row of the gradients (N, C, I) has the least sum.

    Threat model: gradients only. Known: one sample, a one-hot label, features of one sign.
    """
    gradients = weight_gradient.unsqueeze(0) if weight_gradient.ndim == 2 else weight_gradient
    return gradients.sum(dim=2).argmin(dim=1)
