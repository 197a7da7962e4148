"""A transcript out of a gradient that was changed before it was sent: noise, fewer digits, entries dropped, signs.

What was added is of one size everywhere, so rows are left as they are; and it fills all directions, so the steps' span
is that of the largest singular values. How many of them are the transcript's it tells itself: in the span of its S
steps S words are read, each far nearer than any other, and behind the last nothing is near.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.models.recogniser import START
from gradleak.sequences.observed import FIRST
from gradleak.sequences.transcripts import Transcripts, _Decoder, _Node, first_layer

# Steps that are tried, where their number is not told.
MOST = 40
# A transcript that fits less clearly than this is not read, and behind one that fits so clearly no other is looked for.
CLEAR, PLAIN = 1.5, 100.0


@dataclass(frozen=True)
class _Chain:
    """A prefix read in the span of so many steps: how far its worst word misses, by how much less than any other.

    `end`: how far the nearest word behind it misses, as a multiple of the worst.
    """

    node: _Node
    steps: int
    apart: float
    end: float

    @property
    def fit(self) -> float:
        """How clearly the words are the nearest, and nothing follows."""
        return self.apart * self.end


def read_defended(
    leak: Leak, start: int = START, *, steps: int | None = None, vocabulary: Vocabulary | None = None
) -> Transcripts:
    """Return one utterance's transcript from a recogniser's gradient to which something was done.

    Every step takes the word that lies nearest to the span. `steps`: how many the decoder made, the end mark's among
    them, where that is known; else the number whose transcript fits most clearly. The transcript is never called
    unique; it is "failed" where others would do nearly as well.
    """
    if steps is not None and steps < 1:
        raise InputError(f"the decoder makes a step at least; got {steps}")
    # What was done to it is told by how well words fit, and not by the type in which it is sent.
    leak = replace(leak, gradients={name: leak.gradients[name].double() for name in FIRST})
    gradient = first_layer(leak)
    directions = torch.linalg.eigh(gradient.T @ gradient).eigenvectors.flip(1)
    tried = range(1, MOST + 1) if steps is None else [steps]
    best = None
    for count in tried:
        best = _chained(leak, directions[:, :count], start, best.fit if best else 0.0) or best
        if best and best.fit > PLAIN:
            break
    assert best is not None
    node = best.node
    failed = best.fit < CLEAR
    reason = "other words fit nearly as well" if failed else "the gradient was changed: the nearest words are read"
    tokens = list(node.words)
    return Transcripts(
        [tokens],
        None if vocabulary is None else [vocabulary.decode(tokens)],
        ["failed" if failed else "ambiguous"],
        [reason],
        best.steps,
        [(node.miss, best.apart * node.miss)],
    )


def _chained(leak: Leak, span: Tensor, start: int, least: float) -> _Chain | None:
    """Return the prefix that is read in a span (K, S): at each of its steps the word that lies nearest.

    None as soon as it cannot fit more clearly than `least`.
    """
    decoder = _Decoder(leak, span)
    node = decoder.start(start)
    apart = float("inf")
    for _ in range(decoder.rank - 1):
        near, misses = decoder.nearest(node.state[0], 2)
        word, miss = int(near[0]), float(misses[0])
        apart = min(apart, float(misses[1] / misses[0].clamp(min=decoder.rounding)))
        context = decoder.context_of(node.state[0], word)
        node = decoder.node((*node.words, word), word, context, node.state, max(node.miss, miss), float(misses[1]))
        # Behind the last word the nearest can miss by all of its length, and no more.
        if apart / max(node.miss, decoder.rounding) <= least:
            return None
    end = float(decoder.nearest(node.state[0], 1)[1][0]) / max(node.miss, decoder.rounding)
    chain = _Chain(node, decoder.rank, apart if decoder.rank > 1 else 1.0, end)
    return chain if chain.fit > least else None
