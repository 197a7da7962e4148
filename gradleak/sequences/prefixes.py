"""Sentences as the ends of prefixes, where neither counts nor end marks can be asked for.

Clipping each sentence by itself gives it a weight that is no whole number, and a last layer that is not sent tells no
counts at all. The spans do not change: which prefixes there are is told by the recurrent layers alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.leak import Leak
from gradleak.sequences.read import MOST
from gradleak.sequences.recognised import recognise


def read_prefixes(
    leak: Leak, start: int = 1, *, words: Sequence[int] | None = None, most: int = MOST
) -> list[list[int]]:
    """Return the prefixes in a language model's gradient that no other prolongs, sorted; none where all words fit.

    They are the sentences but those that another begins with, and false ones that the spans let pass. There is no
    certificate. `words`: the tokens that are tried, all where not said.
    """
    leak.check_one_step("reading sentences")
    model = recognise(leak.model, leak.head)
    tried = torch.arange(len(model.embedding)) if words is None else torch.as_tensor(list(words)).unique()
    tried = tried.to(model.embedding.device)
    trees = [model.grow(leak.gradients, tried, start, equalise=equalise, most=most).tree for equalise in (True, False)]
    # Where rounding is all the noise, rows of one length show more; noise that was added drowns the small ones.
    tree = max((tree for tree in trees if tree is not None), key=len, default=None)
    if tree is None or len(tree) < 2:
        return []
    ends = torch.ones_like(tree.words, dtype=torch.bool)
    ends[tree.parents[1:]] = False
    return sorted(tree.path(node) for node in ends.nonzero()[:, 0].tolist())
