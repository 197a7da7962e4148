"""Read transcripts from a speech recogniser's gradient in closed form, without audio, bag of words or length."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.answers import Answer
from gradleak.answers import ReadingStatus as Status
from gradleak.arguments import checked_arguments
from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.models.recogniser import END, START, Recogniser
from gradleak.sequences.ends import ended, ended_behind, top_states
from gradleak.sequences.observed import FIRST
from gradleak.spans import inputs_span, limit

# A word fits if the relative distance of its vector from the span is below this tolerance. States accumulate the
# rounding errors of earlier steps, so the first tolerance is large. If it gives a wrong number of steps, the next is
# tried: when a word is repeated many times the state converges, and one more repetition nearly fits.
FITS = (1e-3, 1e-5, 1e-6)
# Most prefixes in a search, per step.
MOST = 8
# A choice is certain only if the nearest other word is this many times farther from the span.
APART = 10.0
# Steps are distinguishable if the singular values of their known part, [word; state; 1], exceed this limit.
KNOWN = 1e-4


@dataclass(frozen=True)
class Transcripts:
    """The transcripts of a batch, one for each utterance.

    Attributes:
        tokens: The tokens of each utterance, without its marks; `read_output` keeps the end mark.
        texts: Their texts, if a vocabulary was given.
        status: For each utterance: "unique" if no other transcript explains the gradient, "ambiguous" if other words
            may fit or follow, "failed" if the search gave up.
        reasons: Why each is not unique, "" if it is.
        inputs: The number of the decoder's steps, which is the rank of the gradient.
        misses: For each utterance, two relative distances from the gradient's row span: the largest of the transcript's
            words, and the smallest of any other word at any step.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    status: list[Status]
    reasons: list[str]
    inputs: int
    misses: list[tuple[float, float]]

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for each utterance."""
        facts = zip(self.tokens, self.status, self.reasons, strict=True)
        return tuple(Answer(status, reason, sentences=[tokens]) for tokens, status, reason in facts)


@checked_arguments()
def read_transcripts(
    leak: Leak, start: int = START, *, end: int = END, vocabulary: Vocabulary | None = None
) -> Transcripts:
    """Return the transcripts of the utterances in a recogniser's gradient, word by word.

    The gradient of the decoder's first layer is

        Σ_t δ_t [e(y_{t−1}); context_{t−1}; state_{t−1}; 1]ᵀ,

    so each of these vectors lies in its row span. The first word is `start` and the first state is zero. At each step
    the state is known, and the next word is the one whose vector lies in the span. The context then follows linearly,
    and the layer gives the next state. The decoder's first layer is enough, because it does not read the layers above.
    Several utterances are separated if no two begin with the same word.

    Words that the recogniser predicts with certainty have no gradient, so a transcript may seem to end too soon. It is
    unique only if the last layer's gradient is sent and shows that the `end` mark follows. Utterances with the same
    sound and words add the same vectors to the span, and an utterance without words adds none of its own. So a status
    of "unique" also assumes that the leak's batch size is right. It is not given for a sum over several local steps.

    Args:
        leak: The gradients of the decoder's first layer, and of the last layer if it was sent.
        start: The token that the decoder reads first.
        end: The token after a transcript.
        vocabulary: Turns tokens into texts.

    Examples:
        >>> from gradleak.models.recogniser import recogniser
        >>> from gradleak.sequences import observe_speech
        >>> speech = torch.randn(16, 80, generator=torch.Generator().manual_seed(0))
        >>> read_transcripts(observe_speech(recogniser("small", 40), [speech], [[7, 12, 9, END]])).tokens
        [[7, 12, 9]]
    """
    decoder = Decoder(leak)
    if decoder.rank == 0:
        return transcripts_of([], [], [], 0, vocabulary)
    if decoder.rank >= len(decoder.known):
        reason = f"the gradient's rank of {decoder.rank} leaves nothing outside its span: noise, or too many steps"
        return single([], "failed", reason, decoder.rank, vocabulary)
    first = decoder.start(start)
    if first.miss > FITS[0]:
        reason = "the start token does not lie in the gradient's span"
        return single([], "failed", reason, decoder.rank, vocabulary)
    searches = []
    for fits in FITS:
        nodes, completed = _searched(decoder, first, fits)
        searches.append((nodes, completed))
        if completed and len(nodes) == decoder.rank:
            break
    else:
        nodes, completed = searches[0]
    return _told(nodes, completed, decoder, end, vocabulary)


def step_misses(leak: Leak, tokens: Sequence[int], start: int = START) -> list[Tensor]:
    """Return, for every prefix of a transcript, the relative distance of each possible next word from the span (C,).

    The last tensor is for the whole transcript, after which no word should fit.
    """
    decoder = Decoder(leak)
    node = decoder.start(start)
    if node.miss > FITS[0]:
        raise InputError("the start token does not lie in the gradient's span")
    every = torch.arange(len(decoder.words))
    misses = [decoder.missed(node.state[0], every)]
    for word in tokens:
        node = decoder.after(node, word)
        misses.append(decoder.missed(node.state[0], every))
    return misses


@dataclass(frozen=True)
class Node:
    """A prefix: its last step's input, the state and cell after it, the misses of its worst and the best other word."""

    words: tuple[int, ...]
    read: Tensor
    state: tuple[Tensor, Tensor]
    miss: float
    other: float


def decoder_of(model: nn.Module) -> tuple[Tensor, list[nn.LSTMCell]]:
    """Return a recogniser's embedding (C, E) and its decoder's layers, in float64; refuse other models."""
    if not isinstance(model, Recogniser):
        raise InputError(f"transcripts are read from a Recogniser's decoder; got {type(model).__name__}")
    cells = [copy.deepcopy(cell).double().requires_grad_(False) for cell in model.cells]
    return model.embedding.weight.detach().double(), cast("list[nn.LSTMCell]", cells)


class Decoder:
    """The first layer of a decoder and the span (K, S) of its inputs, by default from its gradient; float64."""

    def __init__(self, leak: Leak, span: Tensor | None = None) -> None:
        embedding, self.cells = decoder_of(leak.model)
        self.gradients = leak.gradients
        self.utterances = leak.batch_size * leak.local_steps
        self.steps = leak.local_steps
        self.words, self.hidden = embedding, self.cells[0].hidden_size
        gradient = leak.joined(FIRST)
        span = inputs_span(gradient).vectors if span is None else span
        self.rank = span.shape[1]
        word_width = self.words.shape[1]
        context_width = self.cells[0].input_size - word_width
        self.context = span[word_width : word_width + context_width]
        self.known = torch.cat([span[:word_width], span[word_width + context_width :]])
        # The known part of a step, [word; state; 1], determines the step if these singular values are not small.
        left, self.sizes, right = torch.linalg.svd(self.known, full_matrices=False)
        kept = self.sizes > KNOWN
        self.left, self.solve = left[:, kept], right[kept].T / self.sizes[kept]
        self.told = bool(kept.all())
        self.width = word_width
        self.rounding = limit(gradient)

    @cached_property
    def passed_on(self) -> Tensor | None:
        """The span (H, S) of the states that the next layer read; None if it is unknown or has too high a rank."""
        name = "cells.1.weight_ih" if len(self.cells) > 1 else "head.weight"
        if name not in self.gradients:
            return None
        states = inputs_span(self.gradients[name][:, : self.hidden]).vectors
        return states if states.shape[1] < len(states) // 2 else None

    @cached_property
    def of_words(self) -> Tensor:
        """The squared distance of each word's embedding from the span (C,)."""
        inside = (self.words @ self.left[: self.width]).square().sum(dim=1)
        outside: Tensor = self.words.square().sum(dim=1) - inside
        return outside.clamp(min=0)

    def start(self, start: int) -> Node:
        """Return the node after the start token, before which state and context are zero."""
        zeros = self.words.new_zeros(self.hidden)
        before = Node((), zeros, (zeros, zeros), float(self.missed(zeros, torch.tensor([start]))[0]), float("inf"))
        return replace(self.after(before, start, context=self.words.new_zeros(len(self.context))), words=())

    def after(
        self, node: Node, word: int, miss: float = 0.0, other: float = float("inf"), context: Tensor | None = None
    ) -> Node:
        """Return the node after a node and a word, from the misses of this word and of the best other word.

        If the context of the step is not given, it follows from the span.
        """
        state = node.state[0]
        inputs = torch.cat([self.words[word], self.context_of(state, word) if context is None else context])
        return Node(
            (*node.words, word),
            torch.cat([inputs, state, inputs.new_ones(1)]),
            self.cells[0](inputs, node.state),
            max(node.miss, miss),
            min(node.other, other),
        )

    def following(self, node: Node, most: float) -> tuple[list[Node], float]:
        """Return the nodes of the words that fit after a node, and the miss of the nearest other word."""
        near, misses = self.nearest(node.state[0], self.rank + 4)
        fits = misses < most
        other = float(misses[~fits].min()) if bool((~fits).any()) else 0.0
        words = zip(near[fits].tolist(), misses[fits].tolist(), strict=True)
        return [self.after(node, word, miss, other) for word, miss in words], other

    def nearest(self, state: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` words nearest to the span after a state, and their relative distances (K,)."""
        # The nearest words are recomputed precisely.
        squares = self.squares(state[None])[:, 0]
        near = squares.topk(min(count, len(squares)), largest=False).indices
        return near, self.missed(state, near)

    def squares(self, states: Tensor) -> Tensor:
        """Return the squared distance (C, N) of every [word; state; 1] from the span, for states (N, H).

        One product gives ‖v‖² − ‖Lᵀv‖² of these vectors v.
        """
        rest = F.pad(states, (0, 1), value=1.0)
        along = rest @ self.left[self.width :]
        cross = self.words @ (self.left[: self.width] @ along.T)
        squares: Tensor = self.of_words[:, None] - 2 * cross + (rest.square().sum(dim=1) - along.square().sum(dim=1))
        return squares

    def vectors(self, states: Tensor, words: Tensor) -> Tensor:
        """Return [word; state; 1] (N, K) for words (N,) and one state (H,), or for one word (1,) and states (N, H)."""
        rest = F.pad(states, (0, 1), value=1.0)
        count = max(len(words), states[..., 0].numel())
        return torch.cat([self.words[words].expand(count, -1), rest.expand(count, -1)], dim=1)

    def outside(self, vectors: Tensor) -> Tensor:
        """Return the part of vectors (N, K) outside the span."""
        rest: Tensor = vectors - (vectors @ self.left) @ self.left.T
        return rest

    def missed(self, state: Tensor, words: Tensor) -> Tensor:
        """Return the relative distances (N,) of [word; state; 1] from the span, for words (N,)."""
        vectors = self.vectors(state, words)
        missed: Tensor = self.outside(vectors).norm(dim=1) / vectors.norm(dim=1)
        return missed

    def context_of(self, state: Tensor, word: int) -> Tensor:
        vector = self.vectors(state, torch.tensor([word]))[0]
        context: Tensor = self.context @ (self.solve @ (self.left.T @ vector))
        return context


def _searched(decoder: Decoder, first: Node, fits: float) -> tuple[list[Node], bool]:
    """Return all prefixes whose words fit one after another, and whether the search was completed."""
    nodes, place = [first], 0
    while place < len(nodes) <= MOST * decoder.rank:
        following, other = decoder.following(nodes[place], fits)
        nodes[place] = replace(nodes[place], other=min(nodes[place].other, other))
        if len(following) > 1 and decoder.passed_on is not None:
            # Words that fit by chance give states that the next layer has not read.
            following = [node for node in following if outside(node.state[0], decoder.passed_on) < FITS[0]]
        nodes += following
        place += 1
    completed = place == len(nodes)
    return _without_false(nodes, decoder), completed


def _without_false(nodes: list[Node], decoder: Decoder) -> list[Node]:
    """Return the prefixes without the false last words that are linear combinations of other steps.

    With words a, b after states p, q of two utterances, the combination (a, p) − (b, p) + (b, q) = (a, q) lies in the
    span although nobody may have said it. Hardly any word fits after such a false step, so it seems to be a last one.
    True steps are linearly independent, so last words in the span of the steps with successors are false.
    """
    if len(nodes) <= decoder.rank:
        return nodes
    goes_on = {node.words[:-1] for node in nodes[1:]}
    sure = [node for node in nodes if node.words in goes_on or not node.words]
    last = [node for node in nodes if not (node.words in goes_on or not node.words)]
    basis = torch.linalg.svd(torch.stack([node.read for node in sure]).T, full_matrices=False)[0]
    return sure + [node for node in last if outside(node.read, basis) > FITS[0]]


def outside(vector: Tensor, basis: Tensor) -> float:
    """Return the relative distance of a vector from the span of orthonormal columns."""
    return float((vector - basis @ (basis.T @ vector)).norm() / vector.norm())


def _told(nodes: list[Node], whole: bool, decoder: Decoder, end: int, vocabulary: Vocabulary | None) -> Transcripts:
    """Return the transcripts that were read, with their statuses and reasons."""
    goes_on = {node.words[:-1] for node in nodes[1:]}
    ends = sorted((leaf for leaf in nodes if leaf.words not in goes_on), key=lambda leaf: leaf.words)
    general = ""
    if not decoder.told:
        general = "several steps share word and state, so that their contexts mix: utterances begin with one word"
    elif not whole:
        general = "more words fit than the gradient has steps: noise"
    elif len(nodes) != decoder.rank:
        general = f"the gradient holds {decoder.rank} steps, and {len(nodes)} were read"
    elif decoder.utterances != len(ends):
        general = f"{decoder.utterances} utterances say {len(ends)} different things: some the same, or nothing"
    elif decoder.steps > 1:
        general = f"the gradient is a sum over {decoder.steps} local steps, each at other weights"
    close = [node.other < APART * max(node.miss, decoder.rounding) for node in ends]
    reasons = [general or ("another word fits nearly as well" if near else "") for near in close]
    if not any(reasons):
        reasons = _open(nodes, ends, decoder, end)
    return transcripts_of(
        ends, ["ambiguous" if reason else "unique" for reason in reasons], reasons, decoder.rank, vocabulary
    )


def transcripts_of(
    ends: Sequence[Node], status: list[Status], reasons: list[str], inputs: int, vocabulary: Vocabulary | None
) -> Transcripts:
    """Return the transcripts that end at some prefixes, each with its status and reason."""
    tokens = [list(node.words) for node in ends]
    texts = None if vocabulary is None else [vocabulary.decode(words) for words in tokens]
    return Transcripts(tokens, texts, status, reasons, inputs, [(node.miss, node.other) for node in ends])


def single(
    tokens: list[int],
    status: Status,
    reason: str,
    inputs: int,
    vocabulary: Vocabulary | None,
    misses: tuple[float, float] = (1.0, 0.0),
) -> Transcripts:
    """Return the transcript of a single utterance."""
    texts = None if vocabulary is None else [vocabulary.decode(tokens)]
    return Transcripts([tokens], texts, [status], [reason], inputs, [misses])


def _open(nodes: list[Node], ends: list[Node], decoder: Decoder, end: int) -> list[str]:
    """Return, for each last word, why more words may follow it, "" if none does."""
    gradient = decoder.gradients.get("head.weight")
    if gradient is None:
        return ["the last layer, which tells whether more words follow, is not sent"] * len(ends)
    gradient = gradient[:, : decoder.hidden]
    if len(decoder.cells) == 1:
        places = {node.words: place for place, node in enumerate(nodes)}
        states = torch.stack([node.state[0] for node in nodes])
        are_last = ended(gradient, states, [places[last.words] for last in ends], end)
    elif len(ends) == 1:
        # A single utterance has its steps in order. No step reads the context after the last word.
        context = slice(decoder.width, decoder.width + len(decoder.context))
        states = decoder.words.new_zeros(len(nodes) - 1, decoder.hidden)
        contexts = decoder.words.new_zeros(len(nodes) - 1, len(decoder.context))
        for place, (node, following) in enumerate(pairwise(nodes)):
            states[place], contexts[place] = node.state[0], following.read[context]
        are_last = [ended_behind(gradient, top_states(decoder.cells[1:], states, contexts), end)]
    else:
        return ["there are several utterances and layers: whether another word follows is not told"] * len(ends)
    return ["" if last else "words may follow of which the recogniser is sure" for last in are_last]
