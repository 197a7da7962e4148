"""Read the transcripts of a batch in which two utterances begin with the same word.

Two steps of the decoder then differ only in their contexts. With d the difference of the contexts, [0; d; 0; 0] lies in
the span of the inputs, so every context is known up to a multiple of d. This multiple determines the next state. At the
right multiple a word fits, which is a one-dimensional root search with hundreds of equations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.answers import ReadingStatus as Status
from gradleak.arguments import checked_arguments
from gradleak.data.text import Vocabulary
from gradleak.leak import Leak
from gradleak.models.recogniser import END, START
from gradleak.sequences.ends import ended
from gradleak.sequences.transcripts import (
    APART,
    FITS,
    KNOWN,
    MOST,
    Decoder,
    Node,
    Transcripts,
    outside,
    read_transcripts,
    transcripts_of,
)

# Multiples are searched on a grid of PLACES points from −FAR to FAR, with d scaled to length one.
FAR, PLACES = 6.0, 97
# A local minimum of a word's miss below NEAR is refined. It is a root if the refined miss is at most ROOT.
NEAR, ROOT = 0.3, 1e-4
# Gauss-Newton iterations for a root, the step of the finite differences, and the largest update.
ROUNDS, DIFFERENCE, MOVE = 12, 1e-5, 0.5
# Roots that are closer than this are the same.
SAME = 1e-4


@checked_arguments()
def read_sharing(
    leak: Leak, start: int = START, *, end: int = END, vocabulary: Vocabulary | None = None
) -> Transcripts:
    """Return the transcripts of a batch in which two utterances may begin with the same word.

    If all first words differ, the result is that of `read_transcripts`. The ambiguous result of `read_transcripts` is
    also returned if more than two utterances begin alike, or if one of the two has only this word.

    Args:
        leak: The gradients of the decoder's first layer, and of the last layer if it was sent.
        start: The token that the decoder reads first.
        end: The token after a transcript.
        vocabulary: Turns tokens into texts.

    Examples:
        >>> from gradleak.models.recogniser import recogniser
        >>> from gradleak.sequences import observe_speech
        >>> speech = torch.randn(16, 80, generator=torch.Generator().manual_seed(0))
        >>> transcripts = [[7, 12, 9, 2], [7, 5, 8, 2]]
        >>> leak = observe_speech(recogniser("small", 40), [speech, speech.flip(0)], transcripts)
        >>> read_transcripts(leak).status, read_sharing(leak).tokens
        (['ambiguous'], [[7, 5, 8], [7, 12, 9]])
    """
    plain = read_transcripts(leak, start, end=end, vocabulary=vocabulary)
    if plain.inputs == 0 or all(status == "unique" for status in plain.status):
        return plain
    decoder = Decoder(leak)
    _, sizes, right = torch.linalg.svd(decoder.known, full_matrices=False)
    if int((sizes <= KNOWN).sum()) != 1:
        return plain
    search = _Search(decoder, decoder.context @ right[-1])
    going, ends = search.run(start)
    sure = all(prefix.other >= APART * max(prefix.miss, decoder.rounding) for prefix in ends) and _both(
        decoder, going, ends
    )
    if len(going) + len(ends) != decoder.rank or not sure or decoder.utterances != len(ends) or decoder.steps > 1:
        return plain
    reason = "" if _ended(decoder, going, ends, end) else "more words may follow"
    ends = sorted(ends, key=lambda prefix: prefix.words)
    status: Status = "ambiguous" if reason else "unique"
    return transcripts_of(ends, [status] * len(ends), [reason] * len(ends), decoder.rank, vocabulary)


def _both(decoder: Decoder, going: Sequence[Node], ends: Sequence[Node]) -> bool:
    """Whether both steps that differ only in their contexts have been read.

    A step with no word after it is not found, and a false last word may then make up the expected number of steps.
    """
    context = slice(decoder.width, decoder.width + len(decoder.context))
    reads = torch.stack([prefix.read for prefix in (*going, *ends)])
    reads[:, context] = 0
    return len(reads.unique(dim=0)) == len(reads) - 1


def _ended(decoder: Decoder, going: Sequence[Node], ends: Sequence[Node], end: int) -> bool:
    """Whether the end mark was the target of all steps after which no word fits; False if this is unknown."""
    gradient = decoder.gradients.get("head.weight")
    if gradient is None or len(decoder.cells) > 1 or decoder.passed_on is None:
        return False
    states = torch.stack([prefix.state[0] for prefix in (*going, *ends)])
    return all(ended(gradient[:, : states.shape[1]], states, range(len(going), len(states)), end))


@dataclass(frozen=True)
class _Step:
    """A step that reads a word after a prefix; its context is known up to a multiple of d."""

    prefix: Node
    word: int
    context: Tensor


# Returns the part of states (N, H) outside a span, (N, ·), relative to their length.
Outside = Callable[[Tensor], Tensor]


class _Search:
    """A breadth-first search for prefixes, and for the multiples of d after which a word fits."""

    def __init__(self, decoder: Decoder, direction: Tensor) -> None:
        self.decoder = decoder
        self.direction = direction / direction.norm()
        self.multiples = torch.linspace(-FAR, FAR, PLACES, dtype=torch.float64)

    def run(self, start: int) -> tuple[list[Node], list[Node]]:
        """Return the prefixes after which a word fits, the empty one first, and those after which none fits."""
        first = replace(self.decoder.start(start), miss=0.0)
        misses = self.decoder.missed(first.state[0], torch.arange(len(self.decoder.words)))
        queue = [(first, int(word)) for word in (misses < FITS[0]).nonzero()[:, 0]]
        going = [first]
        ends: list[_Step] = []
        while queue and len(going) + len(ends) <= MOST * self.decoder.rank:
            prefix, word = queue.pop(0)
            step = _Step(prefix, word, self.decoder.context_of(prefix.state[0], word))
            following = self._following(step)
            going += [longer for longer, _ in following]
            queue += [(longer, follower) for longer, followers in following for follower in followers]
            if not following:
                ends.append(step)
        return going, [self._made(step, self._read_on(step)[0]) for step in self._without_false(going, ends)]

    def _without_false(self, going: list[Node], ends: list[_Step]) -> list[_Step]:
        """Return the ends without those that are linear combinations of steps with successors.

        The context of an end is known only up to a multiple of d, so [0; d; 0; 0] is added to these steps.
        """
        if len(going) + len(ends) <= self.decoder.rank:
            return ends
        width, rest = self.decoder.width, self.decoder.hidden + 1
        difference = torch.nn.functional.pad(self.direction, (width, rest))
        reads = [*(node.read for node in going), difference]
        basis = torch.linalg.svd(torch.stack(reads).T, full_matrices=False)
        columns = basis.U[:, KNOWN * basis.S[0] < basis.S]
        independent = [node for node in ends if outside(self._made(node).read, columns) > FITS[0]]
        if len(going) + len(independent) <= self.decoder.rank:
            return independent
        # False ends that are combinations of other ends have states that the next layer has not read.
        return [node for node in independent if self._read_on(node)[1] < FITS[0]]

    def _following(self, step: _Step) -> list[tuple[Node, list[int]]]:
        """Return the prefixes after a step, one for each possible context, with the words that fit next."""
        misses = self._misses(self._states(step, self.multiples))
        inner = misses[:, 1:-1]
        minima = (inner <= misses[:, :-2]) & (inner <= misses[:, 2:]) & (inner < NEAR)
        roots: list[tuple[float, float, list[int]]] = []
        for follower, place in minima.nonzero().tolist():
            multiple, miss = self._root(step, self._behind(follower), float(self.multiples[place + 1]))
            if miss > ROOT:
                continue
            same = next((root for root in roots if abs(root[0] - multiple) < SAME), None)
            if same is None:
                roots.append((multiple, miss, [follower]))
            elif follower not in same[2]:
                same[2].append(follower)
        return [self._longer(step, *root) for root in roots]

    def _longer(self, step: _Step, multiple: float, miss: float, followers: list[int]) -> tuple[Node, list[int]]:
        longer = self._made(step, multiple, miss)
        other_misses = self.decoder.missed(longer.state[0], torch.arange(len(self.decoder.words)))
        other_misses[followers] = torch.inf
        return replace(longer, other=min(longer.other, float(other_misses.min()))), followers

    def _made(self, step: _Step, multiple: float = 0.0, miss: float = 0.0) -> Node:
        """Return the prefix after a step whose context is increased by a multiple of d."""
        return self.decoder.after(step.prefix, step.word, miss, context=step.context + multiple * self.direction)

    def _root(self, step: _Step, outside: Outside, multiple: float) -> tuple[float, float]:
        """Return the multiple near a given one that minimises the norm of `outside`, and this norm."""
        for _ in range(ROUNDS):
            here, there = outside(self._states(step, torch.tensor([multiple, multiple + DIFFERENCE]).double()))
            slope = (there - here) / DIFFERENCE
            move = float(here @ slope / slope.square().sum().clamp(min=torch.finfo(slope.dtype).tiny))
            multiple -= max(-MOVE, min(MOVE, move))
        return multiple, float(outside(self._states(step, torch.tensor([multiple]).double())).norm())

    def _behind(self, word: int) -> Outside:
        """Return the function that gives the part of [word; state; 1] outside the span, for states (N, H)."""

        def outside(states: Tensor) -> Tensor:
            vectors = self.decoder.vectors(states, torch.tensor([word]))
            return self.decoder.outside(vectors / vectors.norm(dim=1, keepdim=True))

        return outside

    def _read_on(self, step: _Step) -> tuple[float, float]:
        """Return the multiple after which the next layer has read the state, and its distance from that layer's inputs.

        Both are 0 if these inputs are unknown.
        """
        span = self.decoder.passed_on
        if span is None:
            return 0.0, 0.0

        def outside(states: Tensor) -> Tensor:
            states = states / states.norm(dim=1, keepdim=True)
            return states - (states @ span) @ span.T

        best = int(outside(self._states(step, self.multiples)).norm(dim=1).argmin())
        return self._root(step, outside, float(self.multiples[best]))

    def _misses(self, states: Tensor) -> Tensor:
        """Return each word's relative distance from the span after states (N, H), (C, N)."""
        lengths = self.decoder.words.square().sum(dim=1)[:, None] + states.square().sum(dim=1) + 1
        return (self.decoder.squares(states).clamp(min=0) / lengths).sqrt()

    def _states(self, step: _Step, multiples: Tensor) -> Tensor:
        """Return the states (N, H) after a step with each multiple (N,)."""
        contexts = step.context + multiples[:, None] * self.direction
        word, *before = (
            part.expand(len(multiples), -1) for part in (self.decoder.words[step.word], *step.prefix.state)
        )
        state: Tensor = self.decoder.cells[0](torch.cat([word, contexts], dim=1), before)[0]
        return state
