"""The attacker who knows the defence: what it leaves of gradients is learned on batches of one's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradleak.labels.rounding import rounded
from gradleak.leak import Defense, HeadLeaks, observe, observe_heads

# Batches that an attacker makes to learn from.
SHADOWS = 30


def shadow(
    heads: HeadLeaks,
    model: nn.Module,
    auxiliary: tuple[Tensor, Tensor],
    *,
    defense: Defense | None = None,
    seed: int = 0,
    shadows: int = SHADOWS,
) -> Tensor:
    """Return the counts (N, C) of every label in N defended gradients.

    Threat model: gradients, the model, samples of the same kind, and the defence. Known: batch size, one-hot labels.
    The defence is applied to the gradients of `shadows` batches whose labels the attacker chose; how counts follow from
    row sums and the bias's gradient there, one slope for all classes and an offset for each, is taken over. What a
    defence does to one batch and not to another, as clipping by its norm does, is not learned.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = auxiliary
    # Batches as uneven as may be: class shares are drawn from all shares alike, or near one class.
    chances = torch.rand(shadows, len(heads.weight), generator=generator).log().neg() ** 2
    chosen = torch.multinomial(chances[:, labels.cpu()], heads.batch_size, replacement=True, generator=generator)
    chosen = chosen.to(labels.device)
    if defense is None:
        own = observe_heads(model, inputs[chosen.flatten()], labels[chosen.flatten()], batch_size=heads.batch_size)
        seen = _statistics(own)
    else:
        leaks = [observe(model, inputs[batch], labels[batch], defense=defense) for batch in chosen]
        seen = torch.cat([_statistics(leak.heads) for leak in leaks])
    counts = torch.nn.functional.one_hot(labels[chosen], len(heads.weight)).sum(dim=1).double()
    middle, mean = seen.mean(dim=0), counts.mean(dim=0)
    slopes = torch.linalg.lstsq((seen - middle).flatten(0, 1), (counts - mean).reshape(-1, 1), driver="gelsd").solution
    return rounded((_statistics(heads) - middle) @ slopes[:, 0] + mean, heads.batch_size)


def _statistics(heads: HeadLeaks) -> Tensor:
    """Return what is looked at (N, C, F): row sums, and the bias's gradient where there is one."""
    parts = [heads.weight_gradients.double().sum(dim=2)]
    if heads.bias_gradients is not None:
        parts.append(heads.bias_gradients.double())
    return torch.stack(parts, dim=2)
