"""Define the tree of the prefixes that a gradient allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """A tree of N prefixes, in which parents come before their children.

    Attributes:
        parents: The index of the prefix that is one word shorter (N,), −1 at the root.
        words: The last word of each prefix (N,).
        features: The last layer's input after each prefix (N, I).
    """

    parents: Tensor
    words: Tensor
    features: Tensor

    def __len__(self) -> int:
        return len(self.parents)

    def extended(self, parents: Tensor, words: Tensor, features: Tensor) -> Tree:
        """Return the tree with further prefixes."""
        parts = (self.parents, parents), (self.words, words), (self.features, features)
        return Tree(*(torch.cat(pair) for pair in parts))

    def nodes(self, node: int) -> list[int]:
        """Return the prefixes with which the prefix `node` begins, the shortest first, and itself."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def path(self, node: int) -> list[int]:
        """Return the words of the prefix `node`."""
        return [int(self.words[own]) for own in self.nodes(node)]
