"""The prefixes that a gradient allows, as a tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """Prefixes, each after the one that it prolongs: `parents` (N,), −1 at the root, and the last `words` (N,).

    `features` (N, I): what the last layer is given after each.
    """

    parents: Tensor
    words: Tensor
    features: Tensor

    def __len__(self) -> int:
        return len(self.parents)

    def kept(self, keep: Tensor) -> Tree:
        """Return the tree of some prefixes (N,), with all that they prolong among them."""
        place = keep.cumsum(0) - 1
        parents = self.parents[keep]
        return Tree(torch.where(parents < 0, parents, place[parents]), self.words[keep], self.features[keep])

    def above(self, keep: Tensor) -> Tensor:
        """Return these prefixes (N,) and all that they prolong."""
        keep = keep.clone()
        for node in range(len(self) - 1, 0, -1):
            if keep[node]:
                keep[self.parents[node]] = True
        return keep

    def path(self, node: int) -> list[int]:
        """Return a prefix's words, without the start mark."""
        words: list[int] = []
        while int(self.parents[node]) >= 0:
            words.append(int(self.words[node]))
            node = int(self.parents[node])
        return words[::-1]
