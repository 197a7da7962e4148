"""Read a transcript from a gradient that was changed by noise, rounding, dropped entries or signs.

The change has the same size in all rows, so rows are not rescaled. It has full rank, so the span of the steps is
estimated by the largest singular values. Similar steps have a singular value that may be smaller than those of the
noise. So spans of all sizes are tried, and in each one the nearest word is taken at every step. Every prefix of these
chains is a candidate. The steps of the true transcript explain nearly as much of the gradient as any vectors can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.arguments import checked_arguments
from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.models.recogniser import START
from gradleak.sequences.observed import FIRST
from gradleak.sequences.transcripts import Decoder, Transcripts, first_layer

# Largest span, and so the most steps, if the number of steps is unknown.
MOST = 40
# The best transcript must fit CLEAR times better than the second. The search stops at a transcript that fits by PLAIN.
CLEAR, PLAIN = 1.5, 1e4
# Spans in which words are read at the same time.
TOGETHER = 10


@dataclass(frozen=True)
class _Read:
    """A candidate transcript.

    Attributes:
        words: Its words.
        miss: The relative distance of its worst word from the span.
        other: The smallest distance of an alternative word at any step.
        fit: A / B. A is the distance of the nearest word after the last, divided by `miss`. B is the unexplained share
            of the part of the gradient that the same number of vectors can explain at best.
    """

    words: tuple[int, ...]
    miss: float
    other: float
    fit: float


@checked_arguments()
def read_defended(
    leak: Leak, start: int = START, *, steps: int | None = None, vocabulary: Vocabulary | None = None
) -> Transcripts:
    """Return one utterance's transcript from a recogniser's gradient that a defence has changed.

    At every step the reader takes the word whose input lies nearest to the gradient's row span. The status is never
    "unique"; it is "failed" if another transcript fits nearly as well.

    Args:
        leak: The gradients of the decoder's first layer.
        start: The token that the decoder reads first.
        steps: The number of the decoder's steps, with the step of the end mark. If it is not given, transcripts of all
            lengths compete.
        vocabulary: Turns tokens into texts.

    Examples:
        >>> from gradleak import defenses
        >>> from gradleak.models.recogniser import recogniser
        >>> from gradleak.sequences import observe_speech
        >>> speech = torch.randn(16, 80, generator=torch.Generator().manual_seed(0))
        >>> noise = defenses.gaussian(1e-5, torch.Generator().manual_seed(0))
        >>> leak = observe_speech(recogniser("small", 40), [speech], [[7, 12, 9, 2]], defense=noise)
        >>> read_defended(leak).tokens
        [[7, 12, 9]]
    """
    if steps is not None and steps < 1:
        raise InputError(f"the decoder makes at least one step; got {steps}")
    # Cast to float64, so that the rounding limit does not depend on the type in which the gradient was sent.
    leak = replace(leak, gradients={name: leak.gradient(name).double() for name in FIRST})
    gradient = first_layer(leak)
    values, vectors = torch.linalg.eigh(gradient.T @ gradient)
    energies, directions = values.flip(0).clamp(min=0), vectors.flip(1)
    least = steps or 1
    sizes = range(least, min(max(MOST, least), len(energies)) + 1)
    candidates: dict[tuple[int, ...], _Read] = {}
    for offset in range(0, len(sizes), TOGETHER):
        decoders = [Decoder(leak, directions[:, :size]) for size in sizes[offset : offset + TOGETHER]]
        for candidate in _chained(decoders, energies, directions, start):
            earlier = candidates.get(candidate.words)
            if steps in (None, len(candidate.words) + 1) and (earlier is None or candidate.fit > earlier.fit):
                candidates[candidate.words] = candidate
        if max(candidate.fit for candidate in candidates.values()) > PLAIN:
            break
    best, *others = sorted(candidates.values(), key=lambda candidate: -candidate.fit)
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


def _chained(decoders: Sequence[Decoder], energies: Tensor, directions: Tensor, start: int) -> list[_Read]:
    """Return the transcripts read in each of several spans, of every length from one step to the span's dimension.

    The squared singular values `energies` (K,) belong to the `directions` (K, K), in descending order.
    """
    first, spans = decoders[0], _Spans(decoders)
    state = cell = first.words.new_zeros(len(decoders), first.hidden)
    words = torch.full((len(decoders),), start)
    context = first.words.new_zeros(len(decoders), len(first.context))
    vectors, chosen, misses = [], [], [spans.missed(words[:, None], state).expand(-1, 2)]
    for _ in range(max(decoder.rank for decoder in decoders)):
        inputs = torch.cat([first.words[words], context], dim=1)
        vectors.append(torch.cat([inputs, state, torch.ones_like(state[:, :1])], dim=1))
        state, cell = first.cells[0](inputs, (state, cell))
        near, missed = spans.nearest(state)
        words = near[:, 0]
        context = spans.contexts(words, state)
        chosen.append(words)
        misses.append(missed)
    # The misses after the last word of each prefix, and the largest ones up to this word.
    behind = torch.stack(misses[1:], dim=1)[..., 0]
    worst = torch.stack(misses[:-1], dim=1)[..., 0].cummax(dim=1).values.clamp(min=first.rounding)
    others = torch.stack(misses[1:], dim=1)[..., 1].cummin(dim=1).values
    basis = torch.linalg.qr(torch.stack(vectors, dim=2))[0]
    explainable = energies[: basis.shape[2]].cumsum(0).clamp(min=torch.finfo(energies.dtype).tiny)
    explained = (energies @ (directions.T @ basis).square()).cumsum(1) / explainable
    fits = behind / worst / (1 - explained).clamp(min=first.rounding)
    transcripts = torch.stack(chosen, dim=1).tolist()
    return [
        _Read(
            tuple(transcripts[number][:length]),
            float(worst[number, length]),
            float(others[number, length - 1]) if length else float("inf"),
            float(fits[number, length]),
        )
        for number, decoder in enumerate(decoders)
        for length in range(decoder.rank)
    ]


class _Spans:
    """The spans of several decoders, padded with zeros to the same dimension."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        first, rank = decoders[0], max(decoder.rank for decoder in decoders)

        def padded(parts: list[Tensor]) -> Tensor:
            return torch.stack([torch.nn.functional.pad(part, (0, rank - part.shape[1])) for part in parts])

        self.words, self.width = first.words, first.width
        self.left = padded([decoder.left for decoder in decoders])
        self.solve = padded([decoder.context @ decoder.solve for decoder in decoders])
        self.of_words = torch.stack([decoder.of_words for decoder in decoders])

    def nearest(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two words nearest to each span after a state (N, H), and their distances; (N, 2)."""
        rest = torch.cat([state, torch.ones_like(state[:, :1])], dim=1)
        along = torch.einsum("nks,nk->ns", self.left[:, self.width :], rest)
        cross = torch.einsum("nks,ns->nk", self.left[:, : self.width], along) @ self.words.T
        squares = self.of_words - 2 * cross + (rest.square().sum(dim=1) - along.square().sum(dim=1))[:, None]
        near = squares.topk(2, largest=False).indices
        missed = self.missed(near, state)
        order = missed.argsort(dim=1)
        return near.gather(1, order), missed.gather(1, order)

    def missed(self, words: Tensor, state: Tensor) -> Tensor:
        """Return the relative distance of [word; state; 1] from each span, for words (N, W)."""
        vectors = self._vectors(words, state)
        outside = vectors - (vectors @ self.left) @ self.left.mT
        missed: Tensor = outside.norm(dim=2) / vectors.norm(dim=2)
        return missed

    def contexts(self, words: Tensor, state: Tensor) -> Tensor:
        """Return the context (N, C) for which a word and a state lie in each span."""
        inside = self._vectors(words[:, None], state) @ self.left
        context: Tensor = (inside @ self.solve.mT)[:, 0]
        return context

    def _vectors(self, words: Tensor, state: Tensor) -> Tensor:
        rest = torch.cat([state, torch.ones_like(state[:, :1])], dim=1)[:, None].expand(-1, words.shape[1], -1)
        return torch.cat([self.words[words], rest], dim=2)
