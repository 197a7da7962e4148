"""Transcripts out of a recogniser's gradient in closed form: no audio, no bag of words, no length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn

from gradleak.answers import Answer
from gradleak.answers import ReadingStatus as Status
from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.models.recogniser import END, START, Recogniser
from gradleak.sequences.ends import ended, ended_behind, top_states
from gradleak.sequences.observed import FIRST
from gradleak.sequences.output import cell_after
from gradleak.spans import inputs_span, limit

# A word fits where its vector misses the span by less than this share of its length: states are known to the digits
# that the steps before left, contexts to those of the gradient. Where that gives another number of steps than there
# are, the next: a word said again and again brings the state to a rest, and what was not said any more nearly fits.
FITS = (1e-3, 1e-5, 1e-6)
# A search is given up with so many times more prefixes than there are steps.
MOST = 8
# A word that does not fit misses by so many times more, or the choice is not sure.
APART = 10.0
# Steps are told apart by what is known of them, states and words, if that is so far from being dependent.
KNOWN = 1e-4


@dataclass(frozen=True)
class Transcripts:
    """What was said in a batch: a list of tokens an utterance, its text where a vocabulary is given.

    `status` an utterance: "unique" if the gradient leaves no other, "ambiguous" if more may fit or follow, "failed" if
    the search broke off; `reasons` say why it is not unique. `inputs`: how many steps the decoder made, the rank of its
    gradient. `misses` an utterance: how far its worst word is from the span, and how far the best other would have
    been.
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
        told = zip(self.tokens, self.status, self.reasons, strict=True)
        return tuple(Answer(status, reason, sentences=[tokens]) for tokens, status, reason in told)

    @property
    def counts(self) -> list[int]:
        """How often each was said: once, or at least so where its status is not "unique"."""
        return [1] * len(self.tokens)


def read_transcripts(
    leak: Leak, start: int = START, *, end: int = END, vocabulary: Vocabulary | None = None
) -> Transcripts:
    """Return the transcripts of the utterances in a recogniser's gradient, word by word.

    The gradient of the decoder's first layer is Σ_t δ_t [e(y_{t−1}); context_{t−1}; state_{t−1}; 1]ᵀ, so each of these
    vectors lies in its row span. The first state is nothing and the first word is `start`. From then on embedding and
    state are known, so the next word is the one whose vector lies in the span; the context follows linearly, and the
    layer itself gives the next state. Further layers of the decoder are not needed: nothing of theirs comes back.
    Several utterances are told apart where no two begin with the same word.

    A word of which the recogniser is sure leaves no trace, and where it is sure of all that follow the transcript would
    end too soon: it is unique only if the last layer's gradient is sent, and tells that the `end` mark follows.
    """
    decoder = _Decoder(leak)
    if decoder.rank == 0:
        return Transcripts([], None if vocabulary is None else [], [], [], 0, [])
    if decoder.rank >= len(decoder.known):
        reason = f"the gradient's rank of {decoder.rank} leaves nothing outside its span: noise, or too many steps"
        return _nothing(reason, decoder.rank, vocabulary)
    first = decoder.start(start)
    if first.miss > FITS[0]:
        return _nothing("the start token does not lie in the gradient's span", decoder.rank, vocabulary)
    searches = []
    for fits in FITS:
        nodes, whole = _searched(decoder, first, fits)
        searches.append((nodes, whole))
        if whole and len(nodes) == decoder.rank:
            break
    else:
        nodes, whole = searches[0]
    return _told(nodes, whole, decoder, end, vocabulary)


def step_misses(leak: Leak, tokens: Sequence[int], start: int = START) -> list[Tensor]:
    """Return, behind every prefix of a transcript, how far each word of the vocabulary lies outside the span (C,).

    A share of its vector's length; the last one is behind the whole transcript, where none should fit.
    """
    decoder = _Decoder(leak)
    node = decoder.start(start)
    if node.miss > FITS[0]:
        raise InputError("the start token does not lie in the gradient's span")
    every = torch.arange(len(decoder.words))
    misses = [decoder.missed(node.state[0], every)]
    for word in tokens:
        context = decoder.context_of(node.state[0], word)
        node = decoder.node((*node.words, word), word, context, node.state, node.miss, node.other)
        misses.append(decoder.missed(node.state[0], every))
    return misses


@dataclass(frozen=True)
class _Node:
    """A prefix: what its last step read, the state and cell behind it, how its worst word and the best other fit."""

    words: tuple[int, ...]
    read: Tensor
    state: tuple[Tensor, Tensor]
    miss: float
    other: float


class _Decoder:
    """The first layer of a decoder and the span (K, S) of what it read, in float64; its gradient's, unless given."""

    def __init__(self, leak: Leak, span: Tensor | None = None) -> None:
        self.model, embedding, cell = _parts(leak.model)
        self.gradients = leak.gradients
        # Over local steps one utterance is read as often as it moves the weights, and that is not counted.
        self.utterances = leak.batch_size if leak.local_steps == 1 else None
        self.words = embedding.weight.detach().double()
        self.cell = cell
        gradient = first_layer(leak)
        span = inputs_span(gradient).vectors if span is None else span
        self.rank = span.shape[1]
        word = self.words.shape[1]
        context = cell.input_size - word
        self.context = span[word : word + context]
        self.known = torch.cat([span[:word], span[word + context :]])
        # How well what is known of a step, [word; state; 1], tells which step it is.
        left, self.sizes, right = torch.linalg.svd(self.known, full_matrices=False)
        kept = self.sizes > KNOWN
        self.left, self.solve = left[:, kept], right[kept].T / self.sizes[kept]
        self.told = bool(kept.all())
        self.width = word
        self.rounding = limit(gradient)

    @cached_property
    def passed_on(self) -> Tensor | None:
        """The span (H, S) of the states that the next layer read; None where its gradient is not at hand, or full."""
        name = "cells.1.weight_ih" if len(self.model.cells) > 1 else "head.weight"
        if name not in self.gradients:
            return None
        states = inputs_span(self.gradients[name][:, : self.cell.hidden_size]).vectors
        return states if states.shape[1] < len(states) // 2 else None

    @cached_property
    def of_words(self) -> Tensor:
        """How far each word's own part lies outside the span, squared (C,)."""
        inside = (self.words @ self.left[: self.width]).square().sum(dim=1)
        outside: Tensor = self.words.square().sum(dim=1) - inside
        return outside.clamp(min=0)

    def start(self, start: int) -> _Node:
        """Return the node behind the start token: no state, and no context yet."""
        nothing = self.words.new_zeros(self.cell.hidden_size)
        miss = float(self.missed(nothing, torch.tensor([start]))[0])
        context = self.words.new_zeros(len(self.context))
        return self.node((), start, context, (nothing, nothing), miss, float("inf"))

    def following(self, node: _Node, most: float) -> tuple[list[_Node], float]:
        """Return the nodes of the words that fit behind a node, and how far the nearest of the others misses."""
        state = node.state[0]
        near, misses = self.nearest(state, self.rank + 4)
        fits = misses < most
        other = float(misses[~fits].min()) if bool((~fits).any()) else 0.0
        nodes = [
            self.node(
                (*node.words, word), word, self.context_of(state, word), node.state,
                max(node.miss, miss), min(node.other, other),
            )
            for word, miss in zip(near[fits].tolist(), misses[fits].tolist(), strict=True)
        ]  # fmt: skip
        return nodes, other

    def nearest(self, state: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return so many words that lie least outside the span behind a state, and how far (K,)."""
        rest = torch.cat([state, state.new_ones(1)])
        along = self.left[self.width :].T @ rest
        # ‖v‖² − ‖Lᵀv‖² of v = [word; state; 1], for all words in one product; anew for the few that come near.
        cross = self.words @ (self.left[: self.width] @ along)
        squares = self.of_words - 2 * cross + rest.square().sum() - along.square().sum()
        near = squares.topk(min(count, len(squares)), largest=False).indices
        return near, self.missed(state, near)

    def _vectors(self, state: Tensor, words: Tensor) -> Tensor:
        rest = torch.cat([state, state.new_ones(1)]).expand(len(words), -1)
        return torch.cat([self.words[words], rest], dim=1)

    def missed(self, state: Tensor, words: Tensor) -> Tensor:
        """Return how far [word; state; 1] lies outside the span, as a share of its length."""
        vectors = self._vectors(state, words)
        outside = vectors - (vectors @ self.left) @ self.left.T
        missed: Tensor = outside.norm(dim=1) / vectors.norm(dim=1)
        return missed

    def context_of(self, state: Tensor, word: int) -> Tensor:
        vector = self._vectors(state, torch.tensor([word]))[0]
        context: Tensor = self.context @ (self.solve @ (self.left.T @ vector))
        return context

    def node(
        self,
        words: tuple[int, ...],
        word: int,
        context: Tensor,
        state: tuple[Tensor, Tensor],
        miss: float,
        other: float,
    ) -> _Node:
        """Return the prefix after a step, its state and its cell."""
        weights = [value.detach().double() for value in self.cell.parameters()]
        read = torch.cat([self.words[word], context])
        gates = weights[0] @ read + weights[2] + weights[1] @ state[0] + weights[3]
        return _Node(words, torch.cat([read, state[0], read.new_ones(1)]), cell_after(gates, state), miss, other)


def _searched(decoder: _Decoder, first: _Node, fits: float) -> tuple[list[_Node], bool]:
    """Return all steps of all chains of words, and whether the search came to its end."""
    nodes, place = [first], 0
    while place < len(nodes) <= MOST * decoder.rank:
        following, other = decoder.following(nodes[place], fits)
        nodes[place] = replace(nodes[place], other=min(nodes[place].other, other))
        if len(following) > 1 and decoder.passed_on is not None:
            # Behind words that fit by chance are states that the next layer has not read.
            following = [node for node in following if _outside(node.state[0], decoder.passed_on) < FITS[0]]
        nodes += following
        place += 1
    whole = place == len(nodes)
    return _without_false(nodes, decoder), whole


def _without_false(nodes: list[_Node], decoder: _Decoder) -> list[_Node]:
    """Return the prefixes without last words that other steps add up to.

    With two utterances, (a, p) − (b, p) + (b, q) = (a, q) lies in the span of words a, b behind states p, q, and nobody
    need have said it. What such a word is followed by hardly ever fits, so it is a last one; and true steps are
    independent, so a last word that those add up to which go on is none.
    """
    if len(nodes) <= decoder.rank:
        return nodes
    goes_on = {node.words[:-1] for node in nodes[1:]}
    sure = [node for node in nodes if node.words in goes_on or not node.words]
    last = [node for node in nodes if not (node.words in goes_on or not node.words)]
    basis = torch.linalg.svd(torch.stack([node.read for node in sure]).T, full_matrices=False)[0]
    return sure + [node for node in last if _outside(node.read, basis) > FITS[0]]


def _outside(vector: Tensor, basis: Tensor) -> float:
    """Return how far a vector lies outside the span of orthonormal columns, as a share of its length."""
    return float((vector - basis @ (basis.T @ vector)).norm() / vector.norm())


def _told(nodes: list[_Node], whole: bool, decoder: _Decoder, end: int, vocabulary: Vocabulary | None) -> Transcripts:
    """Return what was read with what is sure of it."""
    goes_on = {node.words[:-1] for node in nodes[1:]}
    ends = sorted((one for one in nodes if one.words not in goes_on), key=lambda one: one.words)
    general = ""
    if not decoder.told:
        general = "several steps share word and state, so that their contexts mix: utterances begin with one word"
    elif not whole:
        general = "more words fit than the gradient has steps: noise"
    elif len(nodes) != decoder.rank:
        general = f"the gradient holds {decoder.rank} steps, and {len(nodes)} were read"
    elif decoder.utterances not in (None, len(ends)):
        general = f"{decoder.utterances} utterances say {len(ends)} different things: some the same, or nothing"
    close = [node.other < APART * max(node.miss, decoder.rounding) for node in ends]
    reasons = [general or ("another word fits nearly as well" if near else "") for near in close]
    if not any(reasons):
        reasons = _open(nodes, ends, decoder, end)
    tokens = [list(node.words) for node in ends]
    return Transcripts(
        tokens,
        None if vocabulary is None else [vocabulary.decode(words) for words in tokens],
        ["ambiguous" if reason else "unique" for reason in reasons],
        reasons,
        decoder.rank,
        [(node.miss, node.other) for node in ends],
    )


def _open(nodes: list[_Node], ends: list[_Node], decoder: _Decoder, end: int) -> list[str]:
    """Return, for each end, why more words may follow, or nothing."""
    gradient = decoder.gradients.get("head.weight")
    if gradient is None:
        return ["the last layer, which tells whether more words follow, is not sent"] * len(ends)
    gradient = gradient[:, : decoder.cell.hidden_size]
    if len(decoder.model.cells) == 1:
        places = {node.words: place for place, node in enumerate(nodes)}
        states = torch.stack([node.state[0] for node in nodes])
        told = ended(gradient, states, [places[one.words] for one in ends], end)
    elif len(ends) == 1:
        # One after the other; the context of the last is nowhere read.
        context = slice(decoder.width, decoder.width + len(decoder.context))
        states = decoder.words.new_zeros(len(nodes) - 1, decoder.cell.hidden_size)
        contexts = decoder.words.new_zeros(len(nodes) - 1, len(decoder.context))
        for place, (node, following) in enumerate(pairwise(nodes)):
            states[place], contexts[place] = node.state[0], following.read[context]
        told = [ended_behind(gradient, top_states(list(decoder.model.cells)[1:], states, contexts), end)]
    else:
        return ["there are several utterances and layers: whether another word follows is not told"] * len(ends)
    return ["" if one else "words may follow of which the recogniser is sure" for one in told]


def _nothing(reason: str, inputs: int, vocabulary: Vocabulary | None) -> Transcripts:
    return Transcripts([[]], None if vocabulary is None else [""], ["failed"], [reason], inputs, [(1.0, 0.0)])


def first_layer(leak: Leak) -> Tensor:
    """Return the gradient (4H, K) of a decoder's first layer: its weights, and its bias as one more column."""
    return torch.cat([leak.gradients[name].reshape(len(leak.gradients[name]), -1) for name in FIRST], dim=1)


def _parts(model: nn.Module) -> tuple[Recogniser, nn.Embedding, nn.LSTMCell]:
    """Return a recogniser, its embedding and the first layer of its decoder."""
    if not isinstance(model, Recogniser):
        raise InputError(f"transcripts are read from a Recogniser's decoder; got {type(model).__name__}")
    cell = model.cells[0]
    assert isinstance(cell, nn.LSTMCell)
    return model, model.embedding, cell
