"""Make a client's labels and batches: one-hot, smoothed and mixed labels; balanced and unbalanced batches."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.errors import InputError, unknown

Convention = Literal["wang2024", "posterior2023"]
Seed = int | torch.Generator


def _generator(seed: Seed) -> torch.Generator:
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)


def as_probabilities(targets: Tensor, classes: int, *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return class indices (N,) or soft labels (N, C) as probabilities (N, C).

    Raises:
        InputError: If the targets are neither class indices nor rows of probabilities.
    """
    if not torch.is_tensor(targets):
        raise InputError(f"targets must be a tensor of class indices or soft labels; got {type(targets).__name__}")
    if targets.ndim == 1 and not targets.is_floating_point():
        return one_hot(targets, classes).to(device, dtype)
    if targets.ndim != 2 or targets.shape[1] != classes or not targets.is_floating_point():
        raise InputError(
            f"targets must be class indices (N,) of an integer type or soft labels (N, {classes}) of a floating one; "
            f"got {tuple(targets.shape)} of {targets.dtype}"
        )
    if not torch.isfinite(targets).all():
        raise InputError("targets hold NaN or infinite values")
    if (targets < 0).any():
        raise InputError(f"targets are not probabilities: the least entry is negative, {float(targets.min()):.3g}")
    sums = targets.double().sum(dim=1)
    tolerance = 4 * classes * torch.finfo(targets.dtype).eps + 1e-6
    if ((sums - 1).abs() > tolerance).any():
        worst = float(sums[(sums - 1).abs().argmax()])
        raise InputError(
            f"targets are not probabilities: a row sums to {worst:.6g} and not to 1; "
            "several labels of one sample are not supported"
        )
    labels = targets.to(device, dtype)
    # Labels that were rounded to a coarser type sum to 1 only up to that rounding.
    return labels / labels.sum(dim=1, keepdim=True)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Return one-hot labels (N, C) in the default floating type."""
    if labels.is_floating_point() or labels.ndim != 1:
        raise InputError(f"labels must be class indices (N,); got {tuple(labels.shape)} of {labels.dtype}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InputError(f"class indices must lie in 0 … {classes - 1}; got {int(labels.min())} … {int(labels.max())}")
    return F.one_hot(labels.long(), classes).to(torch.get_default_dtype())


def smooth(labels: Tensor, classes: int, epsilon: float | Tensor, *, convention: Convention = "wang2024") -> Tensor:
    """Return smoothed labels (N, C).

    Args:
        labels: Class indices (N,).
        classes: The number of classes C.
        epsilon: The smoothing ε, a single number or one for each sample (N,).
        convention: "wang2024" for (1 − ε) one-hot + ε / C, which gives the true class 1 − ε + ε / C. "posterior2023"
            gives the true class 1 − ε and every other class ε / (C − 1).

    Examples:
        >>> smooth(torch.tensor([0, 2]), 3, 0.3)
        tensor([[0.8000, 0.1000, 0.1000],
                [0.1000, 0.1000, 0.8000]])
    """
    hot = one_hot(labels, classes)
    amount = torch.as_tensor(epsilon, device=hot.device)
    amount = amount if amount.is_floating_point() and isinstance(epsilon, Tensor) else amount.to(hot)
    if amount.ndim > 1 or (amount.ndim == 1 and len(amount) != len(hot)):
        raise InputError(f"epsilon must be one number or one for each sample, ({len(hot)},); got {tuple(amount.shape)}")
    if not ((amount >= 0) & (amount <= 1)).all():
        raise InputError("epsilon must lie in 0 … 1")
    amount = amount.reshape(-1, 1)
    if convention == "wang2024":
        return (1 - amount) * hot + amount / classes
    if convention == "posterior2023":
        if classes < 2:
            raise InputError("the convention 'posterior2023' shares ε among C − 1 classes: at least 2 are needed")
        return (1 - amount) * hot + amount / (classes - 1) * (1 - hot)
    raise unknown("smoothing convention", convention, ["wang2024", "posterior2023"])


def mixup(inputs: Tensor, targets: Tensor, *, generator: Seed) -> tuple[Tensor, Tensor]:
    """Mix each sample with a random sample of another class, with a share λ ~ U(0, 1) of each, as in wang2024.

    Args:
        inputs: The samples (N, …); pixels are mixed if the inputs are pixels.
        targets: One-hot or soft labels (N, C).
        generator: A seed or a generator.

    Returns:
        The mixed inputs (N, …) and labels (N, C).
    """
    rng, count = _generator(generator), len(inputs)
    classes = targets.argmax(dim=1).cpu()
    if len(classes.unique()) < 2:
        raise InputError("mixing samples of different classes needs 2 classes; the batch has 1")
    partners = torch.multinomial((classes[:, None] != classes).double(), 1, generator=rng)
    picked = torch.cat([torch.arange(count)[:, None], partners], dim=1)
    # The shares are uniform on the simplex.
    exponential = -torch.rand(count, 2, generator=rng, dtype=torch.float64).clamp(min=1e-300).log()
    share = (exponential / exponential.sum(dim=1, keepdim=True)).to(targets)
    shape = (count, 2, *[1] * (inputs.ndim - 1))
    mixed = (share.to(inputs).reshape(shape) * inputs[picked.to(inputs.device)]).sum(dim=1)
    return mixed, (share.unsqueeze(2) * targets[picked.to(targets.device)]).sum(dim=1)


def balanced(labels: Tensor, batch_size: int, *, generator: Seed) -> Tensor:
    """Return the indices (B,) of a batch in which the classes of `labels` (N,) occur as evenly as possible.

    Each round takes a random sample of every class, with the classes in random order.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1; got {batch_size}")
    rng = _generator(generator)
    present = labels.unique()
    rounds = -(-batch_size // len(present))
    order = [present[torch.randperm(len(present), generator=rng)] for _ in range(rounds)]
    return samples_of(labels, torch.cat(order)[:batch_size], rng)


def unbalanced(labels: Tensor, batch_size: int, *, generator: Seed) -> Tensor:
    """Return the indices (B,) of an unbalanced batch (wainakh2021, section 5).

    Half of the samples have one random class, a quarter have another, and the rest have random classes.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1; got {batch_size}")
    rng = _generator(generator)
    present = labels.unique()
    if len(present) < 2:
        raise InputError("an unbalanced batch needs samples of at least 2 classes; the labels have only one")
    first, second = present[torch.randperm(len(present), generator=rng)[:2]].tolist()
    half, quarter = batch_size // 2, batch_size // 4
    rest = present[torch.randint(len(present), (batch_size - half - quarter,), generator=rng)]
    wanted = torch.cat([torch.full((half,), first), torch.full((quarter,), second), rest])
    return samples_of(labels, wanted, rng)


def samples_of(labels: Tensor, wanted: Tensor, generator: torch.Generator) -> Tensor:
    """Return the index of a random sample for each wanted class (B,), without repeats as far as possible."""
    picked = torch.empty(len(wanted), dtype=torch.long)
    for label in wanted.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        places = (wanted == label).nonzero()[:, 0]
        rounds = -(-len(places) // len(members))
        order = torch.cat([members[torch.randperm(len(members), generator=generator)] for _ in range(rounds)])
        picked[places] = order[: len(places)]
    return picked
