"""Run DLG (zhu2019) on the last layer: fit label and feature until their gradient matches the client's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.arguments import checked_arguments
from gradleak.errors import InputError, check_count

STEPS, RATE = 1000, 0.1


@dataclass(frozen=True)
class Matched:
    """Labels (N, C), features (N, I), and the squared relative distances `losses` (N,) of their gradients."""

    labels: Tensor
    features: Tensor
    losses: Tensor


@checked_arguments(weight_gradient="C I | N C I", weight="C I")
def dlg(weight_gradient: Tensor, weight: Tensor, *, seed: int = 0, steps: int = STEPS, rate: float = RATE) -> Matched:
    """Search for a feature and a soft label for each single sample, whose gradient matches the observed one (N, C, I).

    Threat model: gradients and the model. Known: one sample, features that are not negative. Feature and label start
    from N(0, 1), as in the paper. Adam treats every entry separately, so all samples can run at once. By Theorem 1 of
    wang2024 many pairs of label and feature give the same gradient. A perfect match is one of these pairs, and rarely
    the client's.
    """
    check_count("steps", steps)
    if not rate > 0:
        raise InputError(f"rate must be above 0; got {rate:g}")
    gradients = (weight_gradient.unsqueeze(0) if weight_gradient.ndim == 2 else weight_gradient).detach()
    generator = torch.Generator().manual_seed(seed)
    count, classes, width = gradients.shape
    hidden = torch.randn(count, width, generator=generator).abs().to(gradients).requires_grad_()
    scores = torch.randn(count, classes, generator=generator).to(gradients).requires_grad_()
    weight = weight.detach().to(gradients)
    optimizer = torch.optim.Adam([hidden, scores], rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    # Relative to each sample's gradient, so that one step size serves all.
    size = gradients.square().sum(dim=(1, 2)).clamp(min=torch.finfo(gradients.dtype).tiny)

    def losses() -> Tensor:
        error = (hidden @ weight.T).softmax(dim=1) - scores.softmax(dim=1)
        # ‖e xᵀ − G‖² without forming e xᵀ.
        cross = torch.einsum("nci,nc,ni->n", gradients, error, hidden)
        distance: Tensor = error.square().sum(dim=1) * hidden.square().sum(dim=1) - 2 * cross + size
        return (distance / size).clamp(min=0)

    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            losses().sum().backward()
            optimizer.step()
            schedule.step()
    return Matched(scores.detach().softmax(dim=1), hidden.detach(), losses().detach())
