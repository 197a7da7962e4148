"""Compute a batch's statistics: mean and variance of every channel at the input of each batch norm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradleak.arguments import checked_arguments
from gradleak.errors import InputError
from gradleak.leak import running

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Statistics:
    """Means and variances of the inputs of each batch norm, in the order in which the network runs them.

    Each tensor is (C_l,) for one batch and (A, C_l) for A batches.
    """

    means: tuple[Tensor, ...]
    variances: tuple[Tensor, ...]


def stacked(many: Sequence[Statistics]) -> Statistics:
    """Stack the statistics of A batches, from (C_l,) each to (A, C_l)."""
    means, variances = zip(*((batch.means, batch.variances) for batch in many), strict=True)
    return Statistics(
        *(tuple(torch.stack(layer) for layer in zip(*layers, strict=True)) for layers in (means, variances))
    )


@checked_arguments()
def observe_statistics(model: nn.Module, inputs: Tensor) -> Statistics:
    """Return the exact statistics of a private batch, for a client that sends them with its gradient.

    The model runs in eval mode, as in `observe`. Variances are biased (divided by n), as batch norm computes them.
    """
    with torch.no_grad(), running(model, inputs.shape), watched(model) as seen:
        model(inputs)
        return statistics_of(seen)


def running_statistics(model: nn.Module, inputs: Tensor) -> Statistics:
    """Return the model's running statistics; one run on any `inputs` gives the order of its batch norms."""
    if not batch_norms(model):
        raise InputError(f"{type(model).__name__} has no batch norm, so it has no running statistics")
    order: list[nn.Module] = []
    hooks = [layer.register_forward_hook(lambda module, *_: order.append(module)) for layer in batch_norms(model)]
    with torch.no_grad(), running(model, inputs.shape):
        model(inputs)
    for hook in hooks:
        hook.remove()
    return Statistics(
        *(tuple(layer.get_buffer(name).clone() for layer in order) for name in ("running_mean", "running_var"))
    )


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Return a network's batch norms."""
    return [module for module in model.modules() if isinstance(module, NORMS)]


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list to which every run of the model appends the inputs of its batch norms."""
    seen, hooks = into_norms(model)
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def into_norms(model: nn.Module) -> tuple[list[Tensor], list[RemovableHandle]]:
    """Return a list to which every run of the model appends the inputs of its batch norms, and the hooks that do so."""
    seen: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0])) for layer in batch_norms(model)
    ]
    return seen, hooks


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
    for computed, expected in ((own.means, known.means), (own.variances, known.variances)):
        for value, target in zip(computed, expected, strict=True):
            misfit = torch.linalg.vector_norm(value - target, dim=-1)
            size = torch.linalg.vector_norm(target, dim=-1).clamp(min=torch.finfo(target.dtype).tiny)
            parts.append(misfit / size if relative else misfit)
    distances = torch.stack(parts)
    return distances.mean(dim=0) if relative else distances.sum(dim=0)
