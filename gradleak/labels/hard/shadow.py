"""The attacker who knows the defence: what it leaves of gradients is learned on batches of one's own."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.defenses import Each
from gradleak.devices import least_squares
from gradleak.labels.hard.rounding import rounded
from gradleak.leak import Defense, HeadLeaks, observe

# Batches that an attacker makes to learn from: many where the last layer alone is needed, few where all are.
MANY, FEW = 200, 30


def shadow(
    heads: HeadLeaks,
    model: nn.Module,
    auxiliary: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor],
    *,
    defense: Defense | None = None,
    seed: int = 0,
) -> Tensor:
    """Return the counts (N, C) of every label in N defended gradients.

    Threat model: gradients, the model, samples of the same kind, and the defence. Known: batch size, one-hot labels.
    The defence is applied to the gradients of batches whose labels the attacker chose; how counts follow from
    row sums and the bias's gradient there, one slope for all classes and an offset for each, is taken over. What a
    defence does to one batch and not to another, as clipping by its norm does, is not learned.
    `auxiliary`: inputs and classes (M,); `seen`: what the last layer takes in of them (M, I), and the logits (M, C).
    """
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = auxiliary
    head_alone = defense is None or isinstance(defense, Each)
    classes = len(heads.weight)
    # Batches as uneven as may be: class shares are drawn from all shares alike, or near one class.
    chances = torch.empty(MANY if head_alone else FEW, classes).exponential_(generator=generator) ** 2
    chosen = torch.multinomial(chances[:, labels.cpu()], heads.batch_size, replacement=True, generator=generator)
    chosen = chosen.to(labels.device)
    counted = F.one_hot(labels[chosen], classes)
    if head_alone:
        # The last layer's gradients follow from what it sees of each sample, in one product.
        errors = seen[1].softmax(dim=1)[chosen] - counted
        gradients = errors.mT @ seen[0][chosen] / heads.batch_size
        biases = None if heads.bias_gradients is None else errors.mean(dim=1)
        own = replace(heads, weight_gradients=gradients, bias_gradients=biases)
        told = _statistics(own if defense is None else own.defended(defense))
    else:
        leaks = [observe(model, inputs[batch], labels[batch], defense=defense) for batch in chosen]
        told = torch.cat([_statistics(leak.heads) for leak in leaks])
    counts = counted.sum(dim=1).double()
    middle, mean = told.mean(dim=0), counts.mean(dim=0)
    slopes = least_squares((told - middle).flatten(0, 1), (counts - mean).reshape(-1, 1), driver="gelsd")
    return rounded((_statistics(heads) - middle) @ slopes[:, 0] + mean, heads.batch_size)


def _statistics(heads: HeadLeaks) -> Tensor:
    """Return what is looked at (N, C, F): row sums, and the bias's gradient where there is one."""
    parts = [heads.weight_gradients.double().sum(dim=2)]
    if heads.bias_gradients is not None:
        parts.append(heads.bias_gradients.double())
    return torch.stack(parts, dim=2)
