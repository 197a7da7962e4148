"""Count labels by regression from simulated batches: the span of the gradient's rows shows which classes occur.

Counts follow from the bias gradient, the mean of p − y, only with the mean prediction p of the batch. On a trained
network p is close to y for most samples, and a few uncertain samples determine the sum. But G = Dᵀ X / B, so the rows
of G span the features of all samples, however small their errors D are, until the errors are lost to rounding. The
distance of a class's mean feature from this span therefore tells whether the class is in a batch of B < C samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.augment import smooth
from gradleak.defenses import Each
from gradleak.errors import InputError
from gradleak.labels.hard.knowledge import Knowledge
from gradleak.labels.hard.rounding import rounded
from gradleak.leak import HeadLeaks, observe_heads
from gradleak.spans import limit

# Rows of the regression, one for each class of a simulated batch, and the batches at least.
ROWS, FEWEST = 20_000, 50
# Auxiliary samples of each class, at least: two for its mean and its spread, two for simulated batches.
LEAST = 4
# Entries of simulated gradients that are processed at a time.
ENTRIES = 2_000_000
# Share of a multiple of the identity in the estimated covariance of features.
SHRINKAGE = 0.1
# Standard deviation of the constant that stands beside the features for the bias, relative to that of a feature.
CONSTANT = 0.01
# The smallest size that a logarithmic scale resolves, and the largest margin of logits.
SMALLEST, MARGIN = 1e-7, 30.0
# Trees of the regression and their limits.
TREES: dict[str, Any] = {"max_iter": 150, "max_depth": 6, "learning_rate": 0.08, "min_samples_leaf": 60}


def learned(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return the counts (N, C) of every label in N gradients.

    Threat model: gradients, the model, samples of the same kind, and a defence that treats tensors separately. Known:
    batch size, the loss, the labels' smoothing. Half of the samples of each class give the mean features of classes.
    The other half is drawn for simulated batches, of which every second has all classes equally likely. Boosted trees
    learn to predict the count of a class from the statistics of `_statistics`, which do not depend on the gradient's
    scale.
    """
    if known.defense is not None and not isinstance(known.defense, Each):
        raise InputError("batches are simulated with the last layer alone: behind defences that treat tensors singly")
    key = heads.batch_size, heads.bias_gradients is None, heads.weight_gradients.dtype
    if key not in known.fitted:
        known.fitted[key] = _fitted(heads, known)
    classes, trees = known.fitted[key]
    rows = _statistics(heads, classes)
    values = torch.from_numpy(trees.predict(rows.flatten(0, 1).cpu().numpy())).view(rows.shape[:2])
    return rounded(values.to(heads.weight.device), heads.batch_size)


@dataclass(frozen=True)
class _Classes:
    """The mean features of classes (C, J), a whitening map (J, J) of features and its inverse.

    J counts the features, and a constant 1 if there is a bias gradient.
    """

    means: Tensor
    whitening: Tensor
    inverse: Tensor


def _classes(features: Tensor, labels: Tensor, *, bias: bool) -> _Classes:
    """Estimate the classes' means, and the covariance of features within a class."""
    one_hot = nn.functional.one_hot(labels).to(features)
    means = one_hot.mT @ features / one_hot.sum(dim=0).unsqueeze(1)
    within = features - means[labels]
    covariance = within.mT @ within / len(within)
    variance = covariance.diagonal().mean()
    if not variance > 0:
        raise InputError("all auxiliary samples of a class have the same features")
    ridge = variance * torch.eye(len(covariance), dtype=features.dtype, device=features.device)
    inverse = torch.linalg.cholesky((1 - SHRINKAGE) * covariance + SHRINKAGE * ridge)
    if bias:
        means = torch.cat([means, means.new_ones(len(means), 1)], dim=1)
        inverse = torch.block_diag(inverse, CONSTANT * variance.sqrt().view(1, 1))
    return _Classes(means, torch.linalg.inv(inverse).mT, inverse.mT)


def _fitted(heads: HeadLeaks, known: Knowledge) -> tuple[_Classes, Any]:
    """Return the classes, and trees that were fitted to simulated batches of this size."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    features, _, labels = known.others
    classes, size = len(heads.weight), heads.batch_size
    first = known.halves
    if (few := labels.bincount(minlength=classes) < LEAST).any():
        raise InputError(
            f"at least {LEAST} auxiliary samples of every class are needed; there are fewer of classes "
            f"{few.nonzero()[:5, 0].tolist()}"
        )
    own = _classes(features[first].double(), labels[first], bias=heads.bias_gradients is not None)
    generator = torch.Generator().manual_seed(known.seed)
    chances = torch.empty(max(FEWEST, ROWS // classes), classes).exponential_(generator=generator) ** 2
    chances[::2] = 1
    drawn = torch.multinomial(chances, size, replacement=True, generator=generator).sort(dim=1).values
    rows = [
        _statistics(_simulated(heads, features[~first], labels[~first], part, known, generator), own)
        for part in drawn.split(max(1, ENTRIES // heads.weight.numel()))
    ]
    counts = nn.functional.one_hot(drawn, classes).sum(dim=1)
    trees = HistGradientBoostingRegressor(**TREES, early_stopping=False, random_state=0)
    trees.fit(torch.cat(rows).flatten(0, 1).cpu().numpy(), counts.flatten().numpy())
    return own, trees


def _simulated(
    heads: HeadLeaks, features: Tensor, labels: Tensor, drawn: Tensor, known: Knowledge, generator: torch.Generator
) -> HeadLeaks:
    """Return the gradients of batches with these sorted labels (N, B), in which samples repeat only if they must."""
    sizes = labels.bincount(minlength=len(heads.weight)).cpu()
    # In each line the samples are sorted by class, in random order within a class.
    chances = torch.rand(len(drawn), len(labels), generator=generator)
    order = (labels.cpu() + chances.double()).argsort(dim=1)
    counts = nn.functional.one_hot(drawn, len(sizes)).sum(dim=1)
    occurrence = torch.arange(drawn.shape[1]) - (counts.cumsum(dim=1) - counts).gather(1, drawn)
    chosen = order.gather(1, (sizes.cumsum(dim=0) - sizes)[drawn] + occurrence % sizes[drawn]).flatten()
    layer = nn.utils.skip_init(nn.Linear, *reversed(heads.weight.shape), bias=heads.bias is not None)
    layer.weight = nn.Parameter(heads.weight)
    if heads.bias is not None:
        layer.bias = nn.Parameter(heads.bias)
    targets = smooth(labels[chosen], len(sizes), known.epsilon, convention="posterior2023")
    batches = observe_heads(
        layer, features[chosen], targets, loss=known.loss, batch_size=drawn.shape[1], chunk=len(chosen)
    )
    if heads.bias_gradients is None:
        batches = replace(batches, bias_gradients=None)
    return batches if known.defense is None else batches.defended(known.defense)


def _statistics(heads: HeadLeaks, classes: _Classes) -> Tensor:
    """Return the predictors (N, C, F), which do not depend on the gradient's scale.

    For each class these are the whitened distance of its mean feature from the span of the rows, the margin of its
    logit at the nearest point of the span, and on logarithmic scales its bias gradient (its row's sum without one), the
    length of its row, and its error along its mean feature. Each is followed by its mean, its standard deviation and
    its rank among the classes; the last predictor is the rank of the gradient.
    """
    rows, errors = heads.weight_gradients, heads.weight_gradients.sum(dim=2)
    if heads.bias_gradients is not None:
        errors = heads.bias_gradients
        rows = torch.cat([rows, errors.unsqueeze(2)], dim=2)
    least = limit(rows[0])
    rows = rows.double()
    lengths = rows.norm(dim=2, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    total = lengths.sum(dim=1)
    _, singular, vectors = torch.linalg.svd(rows / lengths, full_matrices=False)
    found = singular > least
    means = classes.means @ classes.whitening
    basis = torch.linalg.qr(((vectors * found.unsqueeze(2)) @ classes.whitening).mT).Q * found.unsqueeze(1)
    nearest = (means @ basis) @ basis.mT
    weight = heads.weight.double()
    logits, constant = nearest @ classes.inverse, torch.ones_like(total).unsqueeze(2)
    if heads.bias_gradients is not None:
        logits, constant = logits[..., :-1], logits[..., -1:]
        constant = constant.where(constant.abs() > CONSTANT, CONSTANT)
    logits = (logits / constant) @ weight.mT
    if heads.bias is not None:
        logits = logits + heads.bias.double()
    itself = torch.eye(len(weight), dtype=torch.bool, device=weight.device)
    margin = logits.diagonal(dim1=1, dim2=2) - logits.masked_fill(itself, -torch.inf).amax(dim=2)
    along = classes.whitening @ torch.linalg.pinv(means)
    own = torch.stack(
        [
            (means - nearest).norm(dim=2),
            margin.clamp(-MARGIN, MARGIN),
            _logarithmic(errors.double() / total),
            _logarithmic(lengths[..., 0] / total),
            _logarithmic((rows * along.mT).sum(dim=2) / total),
        ],
        dim=2,
    )
    middle, spread = (value.expand_as(own) for value in (own.mean(dim=1, keepdim=True), own.std(dim=1, keepdim=True)))
    place = own.argsort(dim=1).argsort(dim=1).to(own)
    rank = found.sum(dim=1).to(own)[:, None, None].expand(-1, len(weight), 1)
    return torch.cat([own, middle, spread, place, rank], dim=2)


def _logarithmic(values: Tensor) -> Tensor:
    return values.sign() * (values.abs() / SMALLEST).log1p()
