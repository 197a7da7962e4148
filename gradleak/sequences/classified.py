"""Find which prefixes are the texts of a batch, and their labels, from the last layer's gradient of a classifier.

The logits of a text are those at its last word. Let prefix n, with the feature s_n and the prediction p_n, be m_n texts
of the batch, and let l_n be the sum of their labels. Then the last layer's gradient is

    Σ_n (m_n p_n − l_n) s_nᵀ / B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.devices import least_squares
from gradleak.leak import Gradients, Leak, observe
from gradleak.sequences.tree import Tree
from gradleak.spans import inputs_span

# Least singular value of the features of prefixes, scaled to length one, that are independent of each other.
INDEPENDENT = 1e-3
# Largest distance of a text's feature from the span of the last layer's gradient, relative to its length.
FITS = 1e-3
# Largest distance of labels from classes. A number of texts is possible up to APART times the largest distance that a
# prefix has for its best number.
WHOLE, APART = 0.01, 10.0
# Share of the longest error from which on a prefix counts as a text, if no labels are classes.
SHOWN = 0.01


@dataclass(frozen=True)
class Texts:
    """Texts with their labels.

    Attributes:
        nodes: The prefix that is each text (N,). A text with two labels occurs twice.
        labels: The label of each text (N, C).
        counts: How many texts of the batch have this text and label (N,).
        unsure: Why others may have the same gradient, "" if no others do.
    """

    nodes: list[int]
    labels: Tensor
    counts: list[int]
    unsure: str


def texts_of(tree: Tree, leak: Leak) -> Texts | None:
    """Return the prefixes that are texts, with their labels; None if the features of the prefixes depend on each other.

    The labels are assumed to be classes. If none explain the gradient, the labels that are returned assume that no text
    occurs twice, and that the gradient was not scaled.
    """
    nodes = next((nodes for nodes in _candidates(tree, leak) if _independent(tree.features[nodes])), None)
    if nodes is None:
        return None
    features = tree.features[nodes]
    errors = leak.batch_size * least_squares(features.T, leak.weight_gradient.double().T)
    bias = 0 if leak.bias is None else leak.bias.double()
    predicted = (features @ leak.weight.double().T + bias).softmax(dim=1)
    # The sums of labels (B + 1, N, C), if each prefix is none, one, … or all of the texts.
    numbers = torch.arange(leak.batch_size + 1, device=errors.device)
    sums = numbers[:, None, None] * predicted - errors
    near = sums.round()
    possible = (near >= 0).all(dim=2) & (near.sum(dim=2) == numbers[:, None])
    misses = (sums - near).abs().amax(dim=2).masked_fill(~possible, 1.0)
    noise = float(misses.amin(dim=0).max())
    if noise < WHOLE:
        # If the model is sure of its prediction after a prefix, many numbers are possible. The least ones are certain
        # if they make the whole batch.
        least = (misses <= APART * noise).int().argmax(dim=0)
        labels = near[least, torch.arange(len(nodes), device=errors.device)]
        places, classes = labels.nonzero(as_tuple=True)
        counts = [int(number) for number in labels[places, classes].tolist()]
        return Texts(nodes[places].tolist(), F.one_hot(classes, len(errors[0])).double(), counts, "")
    sizes = errors.norm(dim=1)
    shown = sizes > SHOWN * sizes.max()
    soft, hard = (predicted - errors)[shown], F.one_hot(errors[shown].argmin(dim=1), len(errors[0])).double()
    valid = (soft > -WHOLE).all(dim=1, keepdim=True)
    soft = soft.clamp(min=0)
    labels = torch.where(valid, soft / soft.sum(dim=1, keepdim=True), hard)
    unsure = "the labels are not classes: they are soft, or the gradient was scaled"
    return Texts(nodes[shown].tolist(), labels, [1] * len(labels), unsure)


def _candidates(tree: Tree, leak: Leak) -> Iterator[Tensor]:
    """Yield the prefixes that may be texts: all of them, then those in the span of the last layer's gradient.

    The rank of this gradient is at most C − 1, because its rows sum to zero. A smaller rank is the number of texts, and
    the span contains the features of all of them.
    """
    nodes = torch.arange(len(tree), device=tree.words.device)
    yield nodes
    span = inputs_span(leak.weight_gradient).vectors
    if span.shape[1] < len(leak.weight) - 1 or span.shape[1] >= leak.batch_size:
        outside = (tree.features - tree.features @ span @ span.T).norm(dim=1)
        yield nodes[outside < FITS * tree.features.norm(dim=1)]


def _independent(features: Tensor) -> bool:
    """Return whether features (N, I) are linearly independent."""
    if not 0 < len(features) <= features.shape[1]:
        return False
    scaled = features / features.norm(dim=1, keepdim=True)
    return float(torch.linalg.svdvals(scaled)[-1]) >= INDEPENDENT


def gradients(leak: Leak, tokens: list[list[int]], labels: Tensor, counts: list[int]) -> Gradients:
    """Return the gradients of texts with labels (N, C), each of them several times in the batch."""
    total: Gradients = {}
    for text, label, number in zip(tokens, labels.to(leak.weight), counts, strict=True):
        own = observe(leak.model, torch.tensor([text], device=leak.weight.device), label[None], head=leak.head)
        for name, value in own.gradients.items():
            total[name] = total.get(name, 0) + value * (number / sum(counts))
    return total
