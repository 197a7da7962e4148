"""Count labels behind a known defence, by learning from defended gradients of simulated batches."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.defenses import Each
from gradleak.devices import least_squares
from gradleak.labels.hard.knowledge import Knowledge
from gradleak.labels.hard.rounding import rounded
from gradleak.leak import HeadLeaks, observe

# Simulated batches: many if only the last layer is needed, few if the whole gradient is.
MANY, FEW = 200, 30


def shadow(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return the counts (N, C) of every label in N defended gradients.

    Threat model: gradients, the model, samples of the same kind, and the defence. Known: batch size, one-hot labels.
    The defence is applied to the gradients of batches whose labels the attacker chose. A linear regression, with one
    slope for all classes and an offset for each, predicts counts from the row sums and the bias gradient. An effect
    that differs from batch to batch, such as the factor of clipping, is not learned.
    """
    assert known.model is not None
    assert known.auxiliary is not None
    (features, scores, labels), inputs, defense = known.others, known.auxiliary[0], known.defense
    generator = torch.Generator().manual_seed(known.seed)
    head_alone = defense is None or isinstance(defense, Each)
    classes = len(heads.weight)
    # Draw uneven batches: class shares are proportional to squares of exponential variables.
    chances = torch.empty(MANY if head_alone else FEW, classes).exponential_(generator=generator) ** 2
    batches = torch.multinomial(chances[:, labels.cpu()], heads.batch_size, replacement=True, generator=generator)
    batches = batches.to(labels.device)
    one_hot = F.one_hot(labels[batches], classes)
    if head_alone:
        # The last layer's gradients are one product of its errors and inputs.
        errors = scores.softmax(dim=1)[batches] - one_hot
        gradients = errors.mT @ features[batches] / heads.batch_size
        biases = None if heads.bias_gradients is None else errors.mean(dim=1)
        simulated = replace(heads, weight_gradients=gradients, bias_gradients=biases)
        statistics = _statistics(simulated if defense is None else simulated.defended(defense))
    else:
        leaks = [observe(known.model, inputs[batch], labels[batch], defense=defense) for batch in batches]
        statistics = torch.cat([_statistics(leak.heads) for leak in leaks])
    counts = one_hot.sum(dim=1).double()
    middle, mean = statistics.mean(dim=0), counts.mean(dim=0)
    slopes = least_squares((statistics - middle).flatten(0, 1), (counts - mean).reshape(-1, 1), driver="gelsd")
    return rounded((_statistics(heads) - middle) @ slopes[:, 0] + mean, heads.batch_size)


def _statistics(heads: HeadLeaks) -> Tensor:
    """Return the predictors (N, C, F): row sums, and the bias gradient if there is one."""
    parts = [heads.weight_gradients.double().sum(dim=2)]
    if heads.bias_gradients is not None:
        parts.append(heads.bias_gradients.double())
    return torch.stack(parts, dim=2)
