"""Transcripts of a batch in which two utterances begin with one word.

Then two steps of the decoder differ in their contexts alone, so with d their difference [0; d; 0; 0] lies in the span
of what was read, and every context is known but for a multiple of d. The multiple decides the next state, and behind
the right one a word fits: one equation in one unknown, of hundreds that must hold at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.data.text import Vocabulary
from gradleak.leak import Leak
from gradleak.models.recogniser import START
from gradleak.sequences.transcripts import APART, FITS, KNOWN, MOST, Transcripts, _Decoder, read_transcripts

# How large a multiple of d may be, d being of length one, and at how many places a root is looked for.
FAR, PLACES = 6.0, 97
# A word whose misses have a low below this share may have a root there; it has one if it then misses by less than that.
NEAR, ROOT = 0.3, 1e-4
# How a root is improved: rounds, the difference that a slope is taken over, and the farthest move.
ROUNDS, DIFFERENCE, MOVE = 12, 1e-5, 0.5
# Roots closer than this are one.
SAME = 1e-4


@dataclass(frozen=True)
class _Prefix:
    """Words, state and cell behind the last of them, how the worst of them fits and how the best other would have."""

    words: tuple[int, ...]
    state: tuple[Tensor, Tensor]
    miss: float
    other: float


def read_sharing(leak: Leak, start: int = START, *, vocabulary: Vocabulary | None = None) -> Transcripts:
    """Return the transcripts of a batch in which two utterances may begin with one word.

    Where all begin with words of their own, it is `read_transcripts`; so it is, ambiguous, where more than two begin
    alike, or where one of the two says nothing more.
    """
    plain = read_transcripts(leak, start, vocabulary=vocabulary)
    if plain.inputs == 0 or all(status == "unique" for status in plain.status):
        return plain
    decoder = _Decoder(leak)
    _, sizes, right = torch.linalg.svd(decoder.known, full_matrices=False)
    if int((sizes <= KNOWN).sum()) != 1:
        return plain
    search = _Search(decoder, decoder.context @ right[-1])
    ends, steps = search.run(start)
    sure = all(one.other >= APART * max(one.miss, decoder.rounding) for one in ends)
    if steps != decoder.rank or not sure:
        return plain
    ends = sorted(ends, key=lambda one: one.words)
    tokens = [list(one.words) for one in ends]
    texts = None if vocabulary is None else [vocabulary.decode(words) for words in tokens]
    misses = [(one.miss, one.other) for one in ends]
    return Transcripts(tokens, texts, ["unique"] * len(ends), [""] * len(ends), decoder.rank, misses)


class _Search:
    """Prefixes, breadth first; of each the multiples of d behind which a word fits."""

    def __init__(self, decoder: _Decoder, direction: Tensor) -> None:
        self.decoder = decoder
        self.direction = direction / direction.norm()
        self.weights = [value.detach().double() for value in decoder.cell.parameters()]
        self.multiples = torch.linspace(-FAR, FAR, PLACES, dtype=torch.float64)

    def run(self, start: int) -> tuple[list[_Prefix], int]:
        """Return the prefixes behind which nothing fits, and how many steps all make, the first one counted."""
        nothing = self.decoder.words.new_zeros(self.decoder.cell.hidden_size)
        unheard = self.decoder.words.new_zeros(1, len(self.decoder.context))
        first = self._prefix((), start, unheard, (nothing, nothing), 0.0, float("inf"))
        misses = self.decoder.missed(first.state[0], torch.arange(len(self.decoder.words)))
        read = [(first, int(word)) for word in (misses < FITS[0]).nonzero()[:, 0]]
        ends: list[_Prefix] = []
        steps, place = 1, 0
        while place < len(read) and steps <= MOST * self.decoder.rank:
            prefix, word = read[place]
            following = self._following(prefix, word)
            if not following:
                ends.append(_Prefix((*prefix.words, word), prefix.state, prefix.miss, prefix.other))
            steps += max(1, len(following))
            read += [(longer, follower) for longer, followers in following for follower in followers]
            place += 1
        return ends, steps

    def _following(self, prefix: _Prefix, word: int) -> list[tuple[_Prefix, list[int]]]:
        """Return the prefixes that a word makes, each with a context of its own, and the words that fit behind."""
        middle = self.decoder.context_of(prefix.state[0], word)
        states, _ = self._states(word, middle + self.multiples[:, None] * self.direction, prefix.state)
        misses = self._misses(states)
        inner = misses[:, 1:-1]
        low = (inner <= misses[:, :-2]) & (inner <= misses[:, 2:]) & (inner < NEAR)
        roots: list[tuple[float, float, list[int]]] = []
        for follower, place in low.nonzero().tolist():
            multiple, miss = self._root(prefix, word, middle, follower, float(self.multiples[place + 1]))
            if miss > ROOT:
                continue
            same = next((root for root in roots if abs(root[0] - multiple) < SAME), None)
            if same is None:
                roots.append((multiple, miss, [follower]))
            elif follower not in same[2]:
                same[2].append(follower)
        return [self._longer(prefix, word, middle, root) for root in roots]

    def _longer(
        self, prefix: _Prefix, word: int, middle: Tensor, root: tuple[float, float, list[int]]
    ) -> tuple[_Prefix, list[int]]:
        multiple, miss, followers = root
        context = (middle + multiple * self.direction)[None]
        longer = self._prefix(
            (*prefix.words, word), word, context, prefix.state, max(prefix.miss, miss), prefix.other
        )  # fmt: skip
        others = self.decoder.missed(longer.state[0], torch.arange(len(self.decoder.words)))
        others[followers] = torch.inf
        return _Prefix(longer.words, longer.state, longer.miss, min(prefix.other, float(others.min()))), followers

    def _prefix(
        self,
        words: tuple[int, ...],
        word: int,
        context: Tensor,
        before: tuple[Tensor, Tensor],
        miss: float,
        other: float,
    ) -> _Prefix:
        state, kept = self._states(word, context, before)
        return _Prefix(words, (state[0], kept[0]), miss, other)

    def _root(self, prefix: _Prefix, word: int, middle: Tensor, follower: int, multiple: float) -> tuple[float, float]:
        """Return the multiple, near a given one, behind which a follower fits best, and how far it misses there."""
        for _ in range(ROUNDS):
            places = torch.tensor([multiple, multiple + DIFFERENCE], dtype=torch.float64)
            states, _ = self._states(word, middle + places[:, None] * self.direction, prefix.state)
            here, there = self._outside(states, follower)
            slope = (there - here) / DIFFERENCE
            move = float(here @ slope / slope.square().sum().clamp(min=torch.finfo(slope.dtype).tiny))
            multiple -= max(-MOVE, min(MOVE, move))
        states, _ = self._states(word, (middle + multiple * self.direction)[None], prefix.state)
        return multiple, float(self.decoder.missed(states[0], torch.tensor([follower]))[0])

    def _outside(self, states: Tensor, word: int) -> Tensor:
        """Return what of [word; state; 1] lies outside the span, behind states (N, H)."""
        one = states.new_ones(len(states), 1)
        vectors = torch.cat([self.decoder.words[word].expand(len(states), -1), states, one], dim=1)
        outside: Tensor = vectors - (vectors @ self.decoder.left) @ self.decoder.left.T
        return outside

    def _misses(self, states: Tensor) -> Tensor:
        """Return how far each word lies outside the span behind states (N, H), as a share of its length, (C, N)."""
        decoder = self.decoder
        rest = torch.cat([states, states.new_ones(len(states), 1)], dim=1)
        along = rest @ decoder.left[decoder.width :]
        cross = decoder.words @ (decoder.left[: decoder.width] @ along.T)
        sizes = rest.square().sum(dim=1)
        squares = decoder.of_words[:, None] - 2 * cross + (sizes - along.square().sum(dim=1))
        whole = decoder.words.square().sum(dim=1)[:, None] + sizes
        missed: Tensor = (squares.clamp(min=0) / whole).sqrt()
        return missed

    def _states(self, word: int, contexts: Tensor, before: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the states and cells (N, H) after a word with contexts (N, K), as nn.LSTMCell computes them."""
        read = torch.cat([self.decoder.words[word].expand(len(contexts), -1), contexts], dim=1)
        gates = read @ self.weights[0].T + self.weights[2] + self.weights[1] @ before[0] + self.weights[3]
        let_in, forget, new, let_out = gates.chunk(4, dim=1)
        kept = forget.sigmoid() * before[1] + let_in.sigmoid() * new.tanh()
        return let_out.sigmoid() * kept.tanh(), kept
