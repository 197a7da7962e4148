"""Transcripts by matching gradients (dang2021, section 4): contexts and labels that make the gradient observed.

The decoder is given its contexts A (T, K) as variables, so that nothing is listened to, and a row of P (T, |bag|) as
each step's label. All starts are one program, and no gradient is ever made: Σ_t δ_t v_tᵀ is compared by its factors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak import reporting
from gradleak.answers import Answer
from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.leak import Leak
from gradleak.models.recogniser import START, Recogniser
from gradleak.spans import classes_span

# What a transcript is matched by: the decoder's layers, and the last one. The embedding's own gradient names the words.
MATCHED = ("weight_ih", "weight_hh", "bias_ih")
LAST = ("weight", "bias")
# Adam's means of a gradient and of its square, and what keeps a step finite.
MEANS, FINITE = (0.9, 0.999), 1e-8
# The rate falls to this share of itself, as the paper's does.
FALLS = 0.1
# How far from none the logits of labels start.
NONE = 0.1
# Directions beyond the rank that a decomposition by random products carries along; a square whose root is not steep.
SPARE, NOTHING = 4, 1e-20


@dataclass(frozen=True)
class Search:
    """How contexts and labels are searched for, by `steps` of Adam.

    `labels`: "softmax", distributions that prefer no word at first, or "free", numbers whose sizes are held to a sum of
    one by `weight`, a random word at first. `contexts`: the deviation of the first ones.
    """

    labels: Literal["softmax", "free"]
    contexts: float
    steps: int
    rate: float
    weight: float = 0.0


# As dang2021 prints it, equation (8), but for the number of steps.
PRINTED = Search("free", contexts=1.0, steps=2000, rate=0.05, weight=1.0)
OURS = Search("softmax", contexts=0.1, steps=300, rate=0.05)


@dataclass(frozen=True)
class Matched:
    """A transcript by matching: the tokens of the start whose gradients came nearest, and every start's.

    `attempts`: each start's tokens; `distances` (R,): how far its gradients stayed from those observed, as a share of
    their size; `variables`: how many numbers a start looks for; `bag`: the tokens that it chose from, None for all.
    """

    tokens: list[int]
    text: str | None
    attempts: list[list[int]]
    distances: Tensor
    variables: int
    bag: list[int] | None

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the utterance: the best of the starts."""
        return (Answer("searched", "the nearest of all starts: nothing certifies it", sentences=[self.tokens]),)


def match_transcript(
    leak: Leak,
    search: Search = OURS,
    *,
    bag: Collection[int] | Literal["revealed"] | None = "revealed",
    starts: int = 1,
    start: int = START,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
) -> Matched:
    """Search for one utterance's contexts and labels by the gradients of a recogniser's decoder.

    ‖∇(A, P) − ∇*‖ is made small, over the decoder's layers and the last one. `bag`: the tokens that labels are chosen
    from, by default those that the last layer's gradient reveals; None for the whole vocabulary. The number of tokens
    is that gradient's rank. Of several `starts` the one that comes nearest is taken.
    """
    if starts < 1 or search.steps < 1:
        raise InputError(f"a search needs a start and a step at least; got {starts} and {search.steps}")
    if leak.batch_size * leak.local_steps != 1:
        raise InputError(f"one utterance is matched; this gradient is of {leak.batch_size * leak.local_steps}")
    chosen = rlg(leak.weight_gradient) if isinstance(bag, str) else bag
    words = None if chosen is None else sorted(chosen)
    decoder = _Decoder(leak, start, words)
    contexts, labels = decoder.drawn(search, starts, torch.Generator().manual_seed(seed))
    variables = contexts[0].numel() + labels[0].numel()
    adam = _Adam([contexts, labels])
    for step in reporting.steps(range(search.steps), search.steps, "matching gradients"):
        loss = _loss(decoder, search, adam.places)[0]
        rate = search.rate * FALLS ** (step / search.steps)
        adam.step(torch.autograd.grad(loss.sum(), adam.places), rate)
    distances = _loss(decoder, search, adam.places)[1].detach()
    attempts = [decoder.tokens(one) for one in adam.places[1].argmax(dim=2)]
    best = attempts[int(distances.nan_to_num(torch.inf).argmin())]
    text = None if vocabulary is None else vocabulary.decode(best)
    return Matched(best, text, attempts, distances / decoder.size, variables, words)


def _loss(decoder: _Decoder, search: Search, places: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return what is made small (R,), and the distance in it (R,)."""
    contexts, labels = places
    if search.labels == "softmax":
        distance = decoder.distance(contexts, labels.softmax(dim=2))
        return distance, distance
    distance = decoder.distance(contexts, labels)
    return distance + search.weight * (labels.abs().sum(dim=2) - 1).abs().sum(dim=1), distance


class _Adam:
    """Adam over several tensors (R, …) of R starts, each start by itself."""

    def __init__(self, places: list[Tensor]) -> None:
        self.places = [value.requires_grad_() for value in places]
        self.means = [torch.zeros_like(value) for value in places]
        self.squares = [torch.zeros_like(value) for value in places]
        self.count = 0

    def step(self, gradients: tuple[Tensor, ...], rate: float) -> None:
        self.count += 1
        first, second = (1 - share**self.count for share in MEANS)
        for place, mean, square, gradient in zip(self.places, self.means, self.squares, gradients, strict=True):
            mean.lerp_(gradient, 1 - MEANS[0])
            square.lerp_(gradient.square(), 1 - MEANS[1])
            with torch.no_grad():
                place -= rate * mean / first / ((square / second).sqrt() + FINITE)


class _Factors:
    """A gradient (N, K) of rank T as a product of factors (N, T) and (T, K), in float64."""

    def __init__(self, gradient: Tensor, rank: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            left, sizes, right = torch.svd_lowrank(gradient.double(), min(rank + SPARE, *gradient.shape), niter=4)
        self.left, self.right = (left * sizes)[:, :rank], right[:, :rank]
        self.square = float(sizes[:rank].square().sum())

    def away(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        """Return the squared distance (R,) of Σ_t δ_t v_tᵀ, for δ (R, T, N) and v (R, T, K)."""
        deltas, inputs = deltas.double(), inputs.double()
        own = ((deltas @ deltas.mT) * (inputs @ inputs.mT)).sum(dim=(1, 2))
        both = ((deltas @ self.left) * (inputs @ self.right)).sum(dim=(1, 2))
        return own - 2 * both + self.square


class _Decoder:
    """A decoder that is given contexts and labels, and how far its gradients are from those observed."""

    def __init__(self, leak: Leak, start: int, bag: list[int] | None) -> None:
        model = leak.model
        if not isinstance(model, Recogniser):
            raise InputError(f"transcripts are matched with a Recogniser's decoder; got {type(model).__name__}")
        self.count = classes_span(leak.weight_gradient).rank
        if self.count == 0 or bag == []:
            raise InputError("nothing was said: the gradient is zero, or the bag is empty")
        self.bag = None if bag is None else torch.tensor(bag, device=leak.weight.device)
        embedding = model.embedding.weight.detach()
        self.first = embedding[start]
        self.words = embedding if self.bag is None else embedding[self.bag]
        self.head, self.bias = leak.weight, model.head.bias.detach()
        self.layers = [[value.detach() for value in cell.parameters()] for cell in model.cells]
        self.context = model.keys.in_features
        self.observed = [
            _Factors(_joined(leak, f"cells.{layer}", MATCHED), self.count) for layer in range(len(self.layers))
        ]
        self.last = _Factors(_joined(leak, leak.head, LAST), self.count)
        self.size = sum(one.square for one in (*self.observed, self.last)) ** 0.5

    def drawn(self, search: Search, starts: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return contexts (R, T, K) and labels (R, T, |bag|) to start from."""
        shape = (starts, self.count, len(self.words))
        contexts = search.contexts * torch.randn(starts, self.count, self.context, generator=generator)
        if search.labels == "softmax":
            labels = NONE * torch.randn(shape, generator=generator)
        else:
            labels = F.one_hot(torch.randint(shape[2], shape[:2], generator=generator), shape[2])
        return contexts.to(self.words), labels.to(self.words)

    def tokens(self, places: Tensor) -> list[int]:
        """Return the tokens at places (T,) among the words that are chosen from."""
        return [int(token) for token in (places if self.bag is None else self.bag[places])]

    def distance(self, contexts: Tensor, labels: Tensor) -> Tensor:
        """Return how far the gradients with contexts (R, T, K) and labels (R, T, |bag|) are from those observed (R,).

        Every class is in the softmax, also those outside the bag: their rows of the gradient are there to be matched.
        """
        read, gates, features = self._steps(contexts, labels)
        expected = labels.sum(dim=2, keepdim=True) * F.softmax(features @ self.head.T + self.bias, dim=2)
        errors = expected - labels if self.bag is None else expected.index_add(2, self.bag, labels, alpha=-1)
        errors = errors / self.count
        # What is passed back to every gate is the layers' own derivative, of which the search needs the next one.
        passed = torch.autograd.grad(features, gates, errors @ self.head, create_graph=True)
        squares = self.last.away(errors, _with_one(features))
        for layer, observed in enumerate(self.observed):
            deltas = torch.stack(passed[layer * self.count : (layer + 1) * self.count], dim=1)
            squares = squares + observed.away(deltas, read[layer])
        return squares.clamp(min=NOTHING).sqrt()

    def _steps(self, contexts: Tensor, labels: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return what each layer reads (R, T, K), all steps' gates, layer by layer, and what the last layer reads."""
        below = torch.cat([self.first.expand(len(labels), 1, -1), labels[:, :-1] @ self.words], dim=1)
        # The first layer has heard what the step before did, and those above what it asks for itself.
        heard = torch.cat([torch.zeros_like(contexts[:, :1]), contexts[:, :-1]], dim=1)
        read: list[Tensor] = []
        gates: list[Tensor] = []
        for from_below, from_before, *biases in self.layers:
            inputs = torch.cat([below, contexts if read else heard], dim=2)
            given = (inputs @ from_below.T + biases[0] + biases[1]).unbind(dim=1)
            kept = inputs.new_zeros(len(inputs), from_before.shape[1])
            states = [kept]
            for step in range(self.count):
                gates.append(given[step] + states[-1] @ from_before.T)
                let_in, forget, _, let_out = gates[-1].sigmoid().chunk(4, dim=1)
                new = gates[-1].chunk(4, dim=1)[2].tanh()
                kept = forget * kept + let_in * new
                states.append(let_out * kept.tanh())
            read.append(_with_one(torch.cat([inputs, torch.stack(states[:-1], dim=1)], dim=2)))
            below = torch.stack(states[1:], dim=1)
        return read, gates, torch.cat([below, contexts], dim=2)


def _with_one(vectors: Tensor) -> Tensor:
    return torch.cat([vectors, torch.ones_like(vectors[..., :1])], dim=-1)


def _joined(leak: Leak, layer: str, kinds: tuple[str, ...]) -> Tensor:
    """Return a layer's gradients side by side, (N, K)."""
    parts = [leak.gradients[f"{layer}.{kind}"] for kind in kinds]
    return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)
