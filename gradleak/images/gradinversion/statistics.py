"""Compute a batch's statistics: mean and variance of every channel at the input of each batch norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradleak.arguments import checked_arguments
from gradleak.errors import InputError
from gradleak.leak import hooked, running

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Why a network's batch norms do not say which statistics images should have.
UNKNOWN = "the batch norms use the statistics of each batch, as in train mode, and keep none"


class Statistics(NamedTuple):
    """Means and variances of the inputs of each batch norm, in the order in which the network runs them.

    Each tensor is (C_l,) for one batch and (A, C_l) for A batches.
    """

    means: tuple[Tensor, ...]
    variances: tuple[Tensor, ...]


def stacked(many: Sequence[Statistics]) -> Statistics:
    """Stack the statistics of A batches, from (C_l,) each to (A, C_l)."""
    return Statistics(*(tuple(map(torch.stack, zip(*layers, strict=True))) for layers in zip(*many, strict=True)))


@checked_arguments()
def observe_statistics(model: nn.Module, inputs: Tensor) -> Statistics:
    """Return the exact statistics of a private batch, for a client that sends them with its gradient.

    The model runs in eval mode, as in `observe`. Variances are biased (divided by n), as batch norm computes them.
    """
    return statistics_of([seen for _, seen in _order(model, inputs)])


def running_statistics(model: nn.Module, inputs: Tensor) -> Statistics:
    """Return the model's running statistics; one run on any `inputs` gives the order of its batch norms."""
    order = [layer for layer, _ in _order(model, inputs)]
    if not order:
        raise InputError(f"{type(model).__name__} has no batch norm, so it has no running statistics")
    if any(layer.running_mean is None for layer in order):
        raise InputError(f"{UNKNOWN}: give the statistics that the client sends, or set their weight to 0")
    return Statistics(
        *(tuple(layer.get_buffer(name).clone() for layer in order) for name in ("running_mean", "running_var"))
    )


def _order(model: nn.Module, inputs: Tensor) -> list[tuple[nn.Module, Tensor]]:
    """Return a network's batch norms with their inputs, in the order in which the network runs them."""
    seen, hooks = into_norms(model)
    with hooked(hooks), torch.no_grad(), running(model, inputs.shape):
        model(inputs)
    return seen


def into_norms(model: nn.Module) -> tuple[list[tuple[nn.Module, Tensor]], list[RemovableHandle]]:
    """Return a list to which every run of the model appends its batch norms with their inputs, and the hooks for it."""
    seen: list[tuple[nn.Module, Tensor]] = []
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    return seen, [norm.register_forward_pre_hook(lambda module, args: seen.append((module, args[0]))) for norm in norms]


def statistics_of(seen: Sequence[Tensor]) -> Statistics:
    """Return the statistics of the batch norms' inputs, (B, C_l, …) each."""
    channels = [value.transpose(0, 1).flatten(1) for value in seen]
    return Statistics(
        tuple(value.mean(dim=1) for value in channels), tuple(value.var(dim=1, unbiased=False) for value in channels)
    )


def statistics_distance(own: Statistics, known: Statistics, *, relative: bool = False) -> Tensor:
    """Return R_BN (A,) for A batches: Σ_l ‖μ_l − μ*_l‖₂ + ‖σ²_l − σ*²_l‖₂.

    With `relative`, divide each norm by the norm of the known value, and take the mean instead of the sum.
    """
    parts = []
    for computed, expected in zip(own, known, strict=True):
        for value, target in zip(computed, expected, strict=True):
            misfit = torch.linalg.vector_norm(value - target, dim=-1)
            size = torch.linalg.vector_norm(target, dim=-1).clamp(min=torch.finfo(target.dtype).tiny)
            parts.append(misfit / size if relative else misfit)
    distances = torch.stack(parts)
    return distances.mean(dim=0) if relative else distances.sum(dim=0)
