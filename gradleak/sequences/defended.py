"""A transcript out of a gradient that was changed before it was sent: noise, fewer digits, entries dropped, signs.

What was added is of one size everywhere, so rows are left as they are; and it fills all directions, so the steps' span
is that of the largest singular values. Steps that are nearly alike leave one so small that others of the noise come
before it: the span is taken larger and larger, and in each a word is read behind a word, the nearest. Every prefix of
all these chains is a transcript; of the gradient, the true one's steps explain nearly as much as so many vectors can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.models.recogniser import START
from gradleak.sequences.observed import FIRST
from gradleak.sequences.output import cell_after
from gradleak.sequences.transcripts import Transcripts, _Decoder, first_layer

# Directions that are looked at, and so the most steps, where their number is not told.
MOST = 40
# One that fits by so little more than every other is not read, and where one fits so well no other is looked for.
CLEAR, PLAIN = 1.5, 1e4
# Spans in which words are read at once.
TOGETHER = 10


@dataclass(frozen=True)
class _Read:
    """A transcript: its worst word's miss, how far the nearest other lies at any step, and how well it fits.

    `fit`: by how much farther than its worst word the nearest behind its last lies, over the share of what so many
    vectors can explain of the gradient that its steps do not.
    """

    words: tuple[int, ...]
    miss: float
    other: float
    fit: float


def read_defended(
    leak: Leak, start: int = START, *, steps: int | None = None, vocabulary: Vocabulary | None = None
) -> Transcripts:
    """Return one utterance's transcript from a recogniser's gradient to which something was done.

    Every step takes the word that lies nearest to a span. `steps`: how many the decoder made, the end mark's among
    them, where that is known; else the transcript that fits best tells. It is never called unique; it is "failed" where
    another fits nearly as well.
    """
    if steps is not None and steps < 1:
        raise InputError(f"the decoder makes a step at least; got {steps}")
    # What was done to it is told by how well words fit, and not by the type in which it is sent.
    leak = replace(leak, gradients={name: leak.gradients[name].double() for name in FIRST})
    gradient = first_layer(leak)
    values, vectors = torch.linalg.eigh(gradient.T @ gradient)
    energies, directions = values.flip(0).clamp(min=0), vectors.flip(1)
    least = steps or 1
    sizes = range(least, min(max(MOST, least), len(energies)) + 1)
    found: dict[tuple[int, ...], _Read] = {}
    for first in range(0, len(sizes), TOGETHER):
        decoders = [_Decoder(leak, directions[:, :size]) for size in sizes[first : first + TOGETHER]]
        for read in _chained(decoders, energies, directions, start):
            known = found.get(read.words)
            if steps in (None, len(read.words) + 1) and (known is None or read.fit > known.fit):
                found[read.words] = read
        if max(read.fit for read in found.values()) > PLAIN:
            break
    best, *others = sorted(found.values(), key=lambda read: -read.fit)
    failed = bool(others) and best.fit < CLEAR * others[0].fit
    reason = "other words fit nearly as well" if failed else "the gradient was changed: the nearest words are read"
    tokens = list(best.words)
    return Transcripts(
        [tokens],
        None if vocabulary is None else [vocabulary.decode(tokens)],
        ["failed" if failed else "ambiguous"],
        [reason],
        len(tokens) + 1,
        [(best.miss, best.other)],
    )


def _chained(decoders: Sequence[_Decoder], energies: Tensor, directions: Tensor, start: int) -> list[_Read]:
    """Return the transcripts that are read in each of several spans, of one step to as many as it has directions.

    `energies` (K,) of the gradient's `directions` (K, K), the largest first.
    """
    one, spans = decoders[0], _Spans(decoders)
    weights = [value.detach().double() for value in one.cell.parameters()]
    state = cell = one.words.new_zeros(len(decoders), one.cell.hidden_size)
    words = torch.full((len(decoders),), start)
    context = one.words.new_zeros(len(decoders), len(one.context))
    read, chosen, misses = [], [], [spans.missed(words[:, None], state).expand(-1, 2)]
    for _ in range(max(decoder.rank for decoder in decoders)):
        inputs = torch.cat([one.words[words], context], dim=1)
        read.append(torch.cat([inputs, state, torch.ones_like(state[:, :1])], dim=1))
        gates = inputs @ weights[0].T + weights[2] + state @ weights[1].T + weights[3]
        state, cell = cell_after(gates, (state, cell))
        near, missed = spans.nearest(state)
        words = near[:, 0]
        context = spans.contexts(words, state)
        chosen.append(words)
        misses.append(missed)
    # Behind the last word of each prefix, and up to it.
    behind = torch.stack(misses[1:], dim=1)[..., 0]
    worst = torch.stack(misses[:-1], dim=1)[..., 0].cummax(dim=1).values.clamp(min=one.rounding)
    others = torch.stack(misses[1:], dim=1)[..., 1].cummin(dim=1).values
    basis = torch.linalg.qr(torch.stack(read, dim=2))[0]
    most = energies[: basis.shape[2]].cumsum(0).clamp(min=torch.finfo(energies.dtype).tiny)
    explained = (energies @ (directions.T @ basis).square()).cumsum(1) / most
    fits = behind / worst / (1 - explained).clamp(min=one.rounding)
    said = torch.stack(chosen, dim=1).tolist()
    return [
        _Read(
            tuple(said[number][:length]),
            float(worst[number, length]),
            float(others[number, length - 1]) if length else float("inf"),
            float(fits[number, length]),
        )
        for number, decoder in enumerate(decoders)
        for length in range(decoder.rank)
    ]


class _Spans:
    """What several decoders know of their spans, with nothing in place of what one has more than another."""

    def __init__(self, decoders: Sequence[_Decoder]) -> None:
        one, most = decoders[0], max(decoder.rank for decoder in decoders)

        def padded(parts: list[Tensor]) -> Tensor:
            return torch.stack([torch.nn.functional.pad(part, (0, most - part.shape[1])) for part in parts])

        self.words, self.width = one.words, one.width
        self.left = padded([decoder.left for decoder in decoders])
        self.solve = padded([decoder.context @ decoder.solve for decoder in decoders])
        self.of_words = torch.stack([decoder.of_words for decoder in decoders])

    def nearest(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two words that lie least outside each span behind a state (N, H), and how far; (N, 2)."""
        rest = torch.cat([state, torch.ones_like(state[:, :1])], dim=1)
        along = torch.einsum("nks,nk->ns", self.left[:, self.width :], rest)
        cross = torch.einsum("nks,ns->nk", self.left[:, : self.width], along) @ self.words.T
        squares = self.of_words - 2 * cross + (rest.square().sum(dim=1) - along.square().sum(dim=1))[:, None]
        near = squares.topk(2, largest=False).indices
        missed = self.missed(near, state)
        order = missed.argsort(dim=1)
        return near.gather(1, order), missed.gather(1, order)

    def missed(self, words: Tensor, state: Tensor) -> Tensor:
        """Return how far [word; state; 1] of words (N, W) lies outside of each span, as a share of its length."""
        vectors = self._vectors(words, state)
        outside = vectors - (vectors @ self.left) @ self.left.mT
        missed: Tensor = outside.norm(dim=2) / vectors.norm(dim=2)
        return missed

    def contexts(self, words: Tensor, state: Tensor) -> Tensor:
        """Return the context (N, C) with which a word and a state lie in each span."""
        inside = self._vectors(words[:, None], state) @ self.left
        context: Tensor = (inside @ self.solve.mT)[:, 0]
        return context

    def _vectors(self, words: Tensor, state: Tensor) -> Tensor:
        rest = torch.cat([state, torch.ones_like(state[:, :1])], dim=1)[:, None].expand(-1, words.shape[1], -1)
        return torch.cat([self.words[words], rest], dim=2)
