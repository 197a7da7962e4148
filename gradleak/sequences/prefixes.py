"""Read sentences as the longest prefixes, if the last layer's gradient cannot give counts and end marks.

If every sentence's gradient is clipped separately, the sentences have weights that are not whole numbers. If the last
layer's gradient is not sent, there are no counts at all. In both cases the layers before it still have the same spans,
which give the prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.arguments import checked_arguments
from gradleak.leak import Leak
from gradleak.sequences.read import MOST
from gradleak.sequences.recognised import recognise, tokens_of


@checked_arguments()
def read_prefixes(
    leak: Leak, start: int = 1, *, words: Sequence[int] | None = None, most: int = MOST
) -> list[list[int]]:
    """Return the longest prefixes of sentences that a language model's gradient shows, sorted.

    These are all sentences, except those with which another sentence begins. Some prefixes may be false,
    because they lie in the gradients' row spans by chance; there is no certificate. The list is empty if the first
    layer's gradient has full rank, or if more than `most` prefixes lie in the spans.

    Args:
        leak: The gradients of one step.
        start: The token before every sentence.
        words: The tokens to try; all by default.
        most: The number of prefixes at which the search gives up.

    Examples:
        >>> from gradleak import observe
        >>> from gradleak.models.language import batch_of, build_language_model
        >>> model = build_language_model("lstm", pieces=50, width=32)
        >>> read_prefixes(observe(model, *batch_of([[7, 8, 9], [7, 12]]), head="head"))
        [[7, 8, 9], [7, 12]]
    """
    leak.check_one_step("reading sentences")
    model = recognise(leak.model, leak.head)
    every = torch.arange(len(model.embedding), device=model.embedding.device)
    tried = every if words is None else tokens_of(model, words)
    trees = [model.grow(leak, tried, start, equalise=equalise, most=most).tree for equalise in (True, False)]
    # With rounding errors alone, scaling rows to one length gives more prefixes; added noise hides the short rows.
    tree = max((tree for tree in trees if tree is not None), key=len, default=None)
    if tree is None or len(tree) < 2:
        return []
    ends = torch.ones_like(tree.words, dtype=torch.bool)
    ends[tree.parents[1:]] = False
    return sorted(tree.path(node) for node in ends.nonzero()[:, 0].tolist())
