"""What batch norm tells of a batch: the mean and the variance of every channel that goes into one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradleak.errors import InputError
from gradleak.leak import evaluating

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Statistics:
    """Means and variances (C_l,) of a batch at each batch norm of a network, in the order in which it is run.

    Of A batches together they are (A, C_l).
    """

    means: tuple[Tensor, ...]
    variances: tuple[Tensor, ...]


def stacked(many: Sequence[Statistics]) -> Statistics:
    """Return the statistics of several batches as those of all of them together."""
    means, variances = zip(*((one.means, one.variances) for one in many), strict=True)
    return Statistics(*(tuple(torch.stack(layer) for layer in zip(*side, strict=True)) for side in (means, variances)))


def observe_statistics(model: nn.Module, inputs: Tensor) -> Statistics:
    """Return the exact statistics of a private batch, for a client that shares them beside its gradient.

    The model is run in eval mode, as in `observe`. Variances are the biased ones, as batch norm takes them.
    """
    with torch.no_grad(), evaluating(model), watched(model) as seen:
        model(inputs)
        return statistics_of(seen)


def running_statistics(model: nn.Module, inputs: Tensor) -> Statistics:
    """Return the statistics that training left in the model itself; any `inputs` tell the order of its batch norms."""
    if not batch_norms(model):
        raise InputError(f"{type(model).__name__} has no batch norm, whose statistics could be a prior")
    order: list[nn.Module] = []
    hooks = [layer.register_forward_hook(lambda own, *_: order.append(own)) for layer in batch_norms(model)]
    with torch.no_grad(), evaluating(model):
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
    """Give the list in which everything that goes into a batch norm is found after a run."""
    seen, hooks = into_norms(model)
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def into_norms(model: nn.Module) -> tuple[list[Tensor], list[RemovableHandle]]:
    """Return the list to which every run adds what goes into each batch norm, and the hooks that see to it."""
    seen: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0])) for layer in batch_norms(model)
    ]
    return seen, hooks


def statistics_of(seen: Sequence[Tensor]) -> Statistics:
    """Return the statistics of what went into every batch norm, (B, C_l, …) each."""
    own = [value.transpose(0, 1).flatten(1) for value in seen]
    return Statistics(
        tuple(value.mean(dim=1) for value in own), tuple(value.var(dim=1, unbiased=False) for value in own)
    )


def statistics_distance(own: Statistics, known: Statistics, *, relative: bool = False) -> Tensor:
    """Return R_BN (A,) of A batches: Σ_l ‖μ_l − μ*_l‖₂ + ‖σ²_l − σ*²_l‖₂.

    `relative`: each norm divided by that of what is known, and their mean instead of their sum.
    """
    parts = []
    for ours, theirs in ((own.means, known.means), (own.variances, known.variances)):
        for one, other in zip(ours, theirs, strict=True):
            misfit = torch.linalg.vector_norm(one - other, dim=-1)
            size = torch.linalg.vector_norm(other, dim=-1).clamp(min=torch.finfo(other.dtype).tiny)
            parts.append(misfit / size if relative else misfit)
    together = torch.stack(parts)
    return together.mean(dim=0) if relative else together.sum(dim=0)
