"""Transcripts of a batch in which two utterances begin with one word.

Then two steps of the decoder differ in their contexts alone, so with d their difference [0; d; 0; 0] lies in the span
of what was read, and every context is known but for a multiple of d. The multiple decides the next state, and behind
the right one a word fits: one equation in one unknown, of hundreds that must hold at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.answers import ReadingStatus as Status
from gradleak.data.text import Vocabulary
from gradleak.leak import Leak
from gradleak.models.recogniser import END, START
from gradleak.sequences.ends import ended
from gradleak.sequences.output import cell_after
from gradleak.sequences.transcripts import APART, FITS, KNOWN, MOST, Transcripts, _Decoder, _outside, read_transcripts

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
    """Words, what was read with the last of them, the state and cell behind it.

    `miss`, `other`: how far the worst of the words is from fitting, and how far the best other would have been.
    """

    words: tuple[int, ...]
    read: Tensor
    state: tuple[Tensor, Tensor]
    miss: float
    other: float


def read_sharing(
    leak: Leak, start: int = START, *, end: int = END, vocabulary: Vocabulary | None = None
) -> Transcripts:
    """Return the transcripts of a batch in which two utterances may begin with one word.

    Where all begin with words of their own, it is `read_transcripts`; so it is, ambiguous, where more than two begin
    alike, or where one of the two says nothing more.
    """
    plain = read_transcripts(leak, start, end=end, vocabulary=vocabulary)
    if plain.inputs == 0 or all(status == "unique" for status in plain.status):
        return plain
    decoder = _Decoder(leak)
    _, sizes, right = torch.linalg.svd(decoder.known, full_matrices=False)
    if int((sizes <= KNOWN).sum()) != 1:
        return plain
    search = _Search(decoder, decoder.context @ right[-1])
    going, ends = search.run(start)
    sure = all(one.other >= APART * max(one.miss, decoder.rounding) for one in ends) and _both(decoder, going, ends)
    if len(going) + len(ends) != decoder.rank or not sure or decoder.utterances not in (None, len(ends)):
        return plain
    reason = "" if _ended(decoder, going, ends, end) else "more words may follow"
    ends = sorted(ends, key=lambda one: one.words)
    tokens = [list(one.words) for one in ends]
    texts = None if vocabulary is None else [vocabulary.decode(words) for words in tokens]
    misses = [(one.miss, one.other) for one in ends]
    status: Status = "ambiguous" if reason else "unique"
    return Transcripts(tokens, texts, [status] * len(ends), [reason] * len(ends), decoder.rank, misses)


def _both(decoder: _Decoder, going: Sequence[_Prefix], ends: Sequence[_Prefix]) -> bool:
    """Whether the two steps that differ in their contexts alone have both been read.

    Where one is missing, for nothing is said behind it, a false last word may stand in for it in the count of steps.
    """
    context = slice(decoder.width, decoder.width + len(decoder.context))
    reads = torch.stack([one.read for one in (*going, *ends)])
    reads[:, context] = 0
    return len(reads.unique(dim=0)) == len(reads) - 1


def _ended(decoder: _Decoder, going: Sequence[_Prefix], ends: Sequence[_Prefix], end: int) -> bool:
    """Whether the steps behind which nothing fits were told the end mark; no, where none can tell."""
    gradient = decoder.gradients.get("head.weight")
    if gradient is None or len(decoder.model.cells) > 1 or decoder.passed_on is None:
        return False
    states = torch.stack([one.state[0] for one in (*going, *ends)])
    return all(ended(gradient[:, : states.shape[1]], states, range(len(going), len(states)), end))


@dataclass(frozen=True)
class _Step:
    """A word that is read behind a prefix, with its context but for a multiple of d."""

    prefix: _Prefix
    word: int
    context: Tensor


# What states (N, H) leave outside a span, (N, ·), as a share.
Outside = Callable[[Tensor], Tensor]


class _Search:
    """Prefixes, breadth first; of each the multiples of d behind which a word fits."""

    def __init__(self, decoder: _Decoder, direction: Tensor) -> None:
        self.decoder = decoder
        self.direction = direction / direction.norm()
        self.weights = [value.detach().double() for value in decoder.cell.parameters()]
        self.multiples = torch.linspace(-FAR, FAR, PLACES, dtype=torch.float64)

    def run(self, start: int) -> tuple[list[_Prefix], list[_Prefix]]:
        """Return the prefixes that are gone on behind, the empty one first, and those behind which nothing fits."""
        nothing = self.decoder.words.new_zeros(self.decoder.cell.hidden_size)
        unheard = self.decoder.words.new_zeros(len(self.decoder.context))
        before = _Prefix((), unheard, (nothing, nothing), 0.0, float("inf"))
        first = replace(self._made(_Step(before, start, unheard), unheard, 0.0), words=())
        misses = self.decoder.missed(first.state[0], torch.arange(len(self.decoder.words)))
        left = [(first, int(word)) for word in (misses < FITS[0]).nonzero()[:, 0]]
        going = [first]
        ends: list[_Step] = []
        while left and len(going) + len(ends) <= MOST * self.decoder.rank:
            prefix, word = left.pop(0)
            step = _Step(prefix, word, self.decoder.context_of(prefix.state[0], word))
            following = self._following(step)
            going += [longer for longer, _ in following]
            left += [(longer, follower) for longer, followers in following for follower in followers]
            if not following:
                ends.append(step)
        return going, [self._last(step) for step in self._without_false(going, ends)]

    def _without_false(self, going: list[_Prefix], ends: list[_Step]) -> list[_Step]:
        """Return the ends without those that steps add up to behind which it goes on, as with words of their own.

        An end's context is known but for a multiple of d.
        """
        if len(going) + len(ends) <= self.decoder.rank:
            return ends
        width, rest = self.decoder.width, self.decoder.cell.hidden_size + 1
        alike = torch.nn.functional.pad(self.direction, (width, rest))
        reads = [*(one.read for one in going), alike]
        basis = torch.linalg.svd(torch.stack(reads).T, full_matrices=False)
        kept = basis.U[:, KNOWN * basis.S[0] < basis.S]
        apart = [one for one in ends if _outside(self._made(one, one.context, 0.0).read, kept) > FITS[0]]
        if len(going) + len(apart) <= self.decoder.rank:
            return apart
        # Ends that add up from one another are told by what the next layer has read.
        return [one for one in apart if self._passed_on(one)]

    def _following(self, step: _Step) -> list[tuple[_Prefix, list[int]]]:
        """Return the prefixes that a step makes, each with a context of its own, and the words that fit behind."""
        misses = self._misses(self._states(step, self.multiples)[0])
        inner = misses[:, 1:-1]
        low = (inner <= misses[:, :-2]) & (inner <= misses[:, 2:]) & (inner < NEAR)
        roots: list[tuple[float, float, list[int]]] = []
        for follower, place in low.nonzero().tolist():
            multiple, miss = self._root(step, self._behind(follower), float(self.multiples[place + 1]))
            if miss > ROOT:
                continue
            same = next((root for root in roots if abs(root[0] - multiple) < SAME), None)
            if same is None:
                roots.append((multiple, miss, [follower]))
            elif follower not in same[2]:
                same[2].append(follower)
        return [self._longer(step, *root) for root in roots]

    def _longer(self, step: _Step, multiple: float, miss: float, followers: list[int]) -> tuple[_Prefix, list[int]]:
        longer = self._made(step, step.context + multiple * self.direction, miss)
        others = self.decoder.missed(longer.state[0], torch.arange(len(self.decoder.words)))
        others[followers] = torch.inf
        return replace(longer, other=min(longer.other, float(others.min()))), followers

    def _made(self, step: _Step, context: Tensor, miss: float) -> _Prefix:
        """Return the prefix that a step makes with a context."""
        before, word = step.prefix.state, self.decoder.words[step.word]
        state, kept = self._after(step.word, context[None], before)
        return _Prefix(
            (*step.prefix.words, step.word),
            torch.cat([word, context, before[0], word.new_ones(1)]),
            (state[0], kept[0]),
            max(step.prefix.miss, miss),
            step.prefix.other,
        )

    def _root(self, step: _Step, outside: Outside, multiple: float) -> tuple[float, float]:
        """Return the multiple, near a given one, behind which the state leaves least outside, and how much."""
        for _ in range(ROUNDS):
            here, there = outside(self._states(step, torch.tensor([multiple, multiple + DIFFERENCE]).double())[0])
            slope = (there - here) / DIFFERENCE
            move = float(here @ slope / slope.square().sum().clamp(min=torch.finfo(slope.dtype).tiny))
            multiple -= max(-MOVE, min(MOVE, move))
        return multiple, float(outside(self._states(step, torch.tensor([multiple]).double())[0]).norm())

    def _behind(self, word: int) -> Outside:
        """Return what tells, of states (N, H), how much of [word; state; 1] lies outside the span."""

        def outside(states: Tensor) -> Tensor:
            one = states.new_ones(len(states), 1)
            vectors = torch.cat([self.decoder.words[word].expand(len(states), -1), states, one], dim=1)
            vectors = vectors / vectors.norm(dim=1, keepdim=True)
            rest: Tensor = vectors - (vectors @ self.decoder.left) @ self.decoder.left.T
            return rest

        return outside

    def _passed_on(self, step: _Step) -> bool:
        """Whether with some multiple the next layer has read the state that a last word makes; True if unknown."""
        found = self._read_on(step)
        return found is None or found[1] < FITS[0]

    def _last(self, step: _Step) -> _Prefix:
        """Return the prefix that a last word makes, with the multiple that the next layer has read if that is known."""
        found = self._read_on(step)
        return self._made(step, step.context if found is None else step.context + found[0] * self.direction, 0.0)

    def _read_on(self, step: _Step) -> tuple[float, float] | None:
        """Return the multiple whose state is nearest to what the next layer has read, and how near; None if unknown."""
        span = self.decoder.passed_on
        if span is None:
            return None

        def outside(states: Tensor) -> Tensor:
            states = states / states.norm(dim=1, keepdim=True)
            return states - (states @ span) @ span.T

        best = int(outside(self._states(step, self.multiples)[0]).norm(dim=1).argmin())
        return self._root(step, outside, float(self.multiples[best]))

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

    def _states(self, step: _Step, multiples: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states and cells (N, H) after a step with each multiple (N,), as nn.LSTMCell computes them."""
        contexts = step.context + multiples[:, None] * self.direction
        return self._after(step.word, contexts, step.prefix.state)

    def _after(self, word: int, contexts: Tensor, before: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        read = torch.cat([self.decoder.words[word].expand(len(contexts), -1), contexts], dim=1)
        gates = read @ self.weights[0].T + self.weights[2] + self.weights[1] @ before[0] + self.weights[3]
        return cell_after(gates, before)
