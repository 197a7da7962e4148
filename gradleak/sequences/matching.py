"""Search for a transcript by gradient matching (dang2021, section 4) over contexts and labels.

The decoder's contexts A (T, K) are variables, so the encoder is not needed. A row of P (T, |bag|) is each step's label.
All starts are optimised in one batch. The gradient Σ_t δ_t v_tᵀ is compared by its factors, without computing it.
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
from gradleak.arguments import check_fields, checked_arguments
from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.leak import Leak
from gradleak.models.recogniser import START, Recogniser
from gradleak.spans import classes_span

# Parameters whose gradients are matched, of the decoder's layers and the last layer. The embedding's gradient is not
# matched, because its rows would show the words directly.
MATCHED = ("weight_ih", "weight_hh", "bias_ih")
LAST = ("head.weight", "head.bias")
# Ratio of the final to the initial learning rate, as in the paper.
FALLS = 0.1
# Standard deviation of the initial logits of the labels.
NONE = 0.1
# Directions beyond the rank in the randomised decomposition; the least squared distance, since its root has an infinite
# slope at zero.
SPARE, NOTHING = 4, 1e-20


@dataclass(frozen=True)
class Search:
    """The settings of a search for contexts and labels by Adam.

    Attributes:
        labels: "softmax" for distributions that are initially near uniform; "free" for numbers that start at a random
            word's one-hot label, with a penalty that keeps their absolute values' sum near one.
        contexts: The standard deviation of the initial contexts.
        steps: The number of steps.
        rate: The initial learning rate.
        weight: The weight of the penalty.
    """

    labels: Literal["softmax", "free"]
    contexts: float
    steps: int
    rate: float
    weight: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


# The search of dang2021, equation (8), except for the number of steps.
PRINTED = Search("free", contexts=1.0, steps=2000, rate=0.05, weight=1.0)
OURS = Search("softmax", contexts=0.1, steps=300, rate=0.05)


@dataclass(frozen=True)
class Matched:
    """A transcript by gradient matching.

    Attributes:
        tokens: The tokens of the start whose gradients are nearest to those observed.
        text: Their text, if a vocabulary was given.
        attempts: The tokens of each of the R starts.
        distances: The relative distance of each start's gradients from those observed (R,).
        variables: The number of variables of a start.
        bag: The tokens to choose from, None for the whole vocabulary.
    """

    tokens: list[int]
    text: str | None
    attempts: list[list[int]]
    distances: Tensor
    variables: int
    bag: list[int] | None

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the utterance, which is the best of the starts."""
        return (Answer("searched", "the nearest of all starts: nothing certifies it", sentences=[self.tokens]),)


@checked_arguments()
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
    """Search for one utterance's contexts and labels by matching the gradients of a recogniser's decoder.

    The search minimises ‖∇(A, P) − ∇*‖: ∇(A, P) are the gradients of the decoder's layers and the last layer for
    contexts A and labels P, and ∇* are the observed ones. The number of tokens is the rank of the last layer's
    gradient.

    Args:
        leak: The gradients of one utterance.
        search: The settings of the search.
        bag: The tokens that labels are chosen from: "revealed" for those that RLG finds in the last layer's gradient,
            None for the whole vocabulary.
        starts: The number of random starts, of which the nearest is returned.
        start: The token that the decoder reads first.
        seed: The seed of the starts.
        vocabulary: Turns tokens into texts.

    Examples:
        >>> from gradleak.models.recogniser import recogniser
        >>> from gradleak.sequences import observe_speech
        >>> speech = torch.randn(16, 80, generator=torch.Generator().manual_seed(0))
        >>> leak = observe_speech(recogniser("small", 40), [speech], [[7, 12, 2]])
        >>> match_transcript(leak, Search("softmax", contexts=0.1, steps=60, rate=0.05)).tokens
        [7, 12, 2]
    """
    if starts < 1 or search.steps < 1:
        raise InputError(f"a search needs at least one start and one step; got {starts} and {search.steps}")
    if leak.batch_size * leak.local_steps != 1:
        raise InputError(f"matching takes one utterance; this gradient is of {leak.batch_size * leak.local_steps}")
    revealed = rlg(leak.weight_gradient) if isinstance(bag, str) else bag
    words = None if revealed is None else sorted(revealed)
    decoder = _Decoder(leak, start, words)
    contexts, labels = decoder.drawn(search, starts, torch.Generator().manual_seed(seed))
    variables = contexts[0].numel() + labels[0].numel()
    places = [contexts.requires_grad_(), labels.requires_grad_()]
    adam = torch.optim.Adam(places, search.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: FALLS ** (step / search.steps))
    for _ in reporting.steps(range(search.steps), search.steps, "matching gradients"):
        loss = _loss(decoder, search, places)[0]
        for place, gradient in zip(places, torch.autograd.grad(loss.sum(), places), strict=True):
            place.grad = gradient
        adam.step()
        schedule.step()
    distances = _loss(decoder, search, places)[1].detach()
    attempts = [decoder.tokens(chosen) for chosen in labels.argmax(dim=2)]
    best = attempts[int(distances.nan_to_num(torch.inf).argmin())]
    text = None if vocabulary is None else vocabulary.decode(best)
    return Matched(best, text, attempts, distances / decoder.size, variables, words)


def _loss(decoder: _Decoder, search: Search, places: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the loss (R,), and the gradients' distance (R,) that it contains."""
    contexts, labels = places
    if search.labels == "softmax":
        distance = decoder.distance(contexts, labels.softmax(dim=2))
        return distance, distance
    distance = decoder.distance(contexts, labels)
    return distance + search.weight * (labels.abs().sum(dim=2) - 1).abs().sum(dim=1), distance


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
        square = ((deltas @ deltas.mT) * (inputs @ inputs.mT)).sum(dim=(1, 2))
        cross = ((deltas @ self.left) * (inputs @ self.right)).sum(dim=(1, 2))
        return square - 2 * cross + self.square


class _Decoder:
    """A decoder whose contexts and labels are variables, and the observed gradients."""

    def __init__(self, leak: Leak, start: int, bag: list[int] | None) -> None:
        model = leak.model
        if not isinstance(model, Recogniser):
            raise InputError(f"transcripts are matched with a Recogniser's decoder; got {type(model).__name__}")
        self.count = classes_span(leak.weight_gradient).rank
        if self.count == 0 or bag == []:
            raise InputError("there are no words to find: the gradient is zero, or the bag is empty")
        if not {start, *(bag or ())} <= set(range(min(len(leak.weight), model.embedding.num_embeddings))):
            raise InputError(f"start and bag must be some of the recogniser's {len(leak.weight)} tokens")
        self.bag = None if bag is None else torch.tensor(bag, device=leak.weight.device)
        embedding = model.embedding.weight.detach()
        self.first = embedding[start]
        self.words = embedding if self.bag is None else embedding[self.bag]
        self.head, self.bias = leak.weight, model.head.bias.detach()
        self.layers = [[value.detach() for value in cell.parameters()] for cell in model.cells]
        self.context = model.keys.in_features
        self.observed = [
            _Factors(leak.joined(f"cells.{layer}.{kind}" for kind in MATCHED), self.count)
            for layer in range(len(self.layers))
        ]
        self.last = _Factors(leak.joined(LAST), self.count)
        self.size = sum(factors.square for factors in (*self.observed, self.last)) ** 0.5

    def drawn(self, search: Search, starts: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return initial contexts (R, T, K) and labels (R, T, |bag|)."""
        shape = (starts, self.count, len(self.words))
        contexts = search.contexts * torch.randn(starts, self.count, self.context, generator=generator)
        if search.labels == "softmax":
            labels = NONE * torch.randn(shape, generator=generator)
        else:
            labels = F.one_hot(torch.randint(shape[2], shape[:2], generator=generator), shape[2])
        return contexts.to(self.words), labels.to(self.words)

    def tokens(self, places: Tensor) -> list[int]:
        """Return the tokens at `places` (T,) of the bag."""
        return [int(token) for token in (places if self.bag is None else self.bag[places])]

    def distance(self, contexts: Tensor, labels: Tensor) -> Tensor:
        """Return the distance (R,) of the gradients at contexts (R, T, K) and labels (R, T, |bag|) to those observed.

        The softmax has all classes, because the rows of classes outside the bag are matched too.
        """
        read, gates, features = self._steps(contexts, labels)
        expected = labels.sum(dim=2, keepdim=True) * F.softmax(features @ self.head.T + self.bias, dim=2)
        errors = expected - labels if self.bag is None else expected.index_add(2, self.bag, labels, alpha=-1)
        errors = errors / self.count
        # The search differentiates these derivatives once more.
        passed = torch.autograd.grad(features, gates, errors @ self.head, create_graph=True)
        squares = self.last.away(errors, _with_one(features))
        for layer, observed in enumerate(self.observed):
            deltas = torch.stack(passed[layer * self.count : (layer + 1) * self.count], dim=1)
            squares = squares + observed.away(deltas, read[layer])
        return squares.clamp(min=NOTHING).sqrt()

    def _steps(self, contexts: Tensor, labels: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return each decoder layer's inputs (R, T, K), all steps' gates by layer, and the last layer's inputs."""
        below = torch.cat([self.first.expand(len(labels), 1, -1), labels[:, :-1] @ self.words], dim=1)
        # The first layer reads the context of the previous step; the layers above read that of the same step.
        heard = torch.cat([torch.zeros_like(contexts[:, :1]), contexts[:, :-1]], dim=1)
        read: list[Tensor] = []
        gates: list[Tensor] = []
        for from_below, from_before, *biases in self.layers:
            inputs = torch.cat([below, contexts if read else heard], dim=2)
            contributions = (inputs @ from_below.T + biases[0] + biases[1]).unbind(dim=1)
            cell = inputs.new_zeros(len(inputs), from_before.shape[1])
            states = [cell]
            for step in range(self.count):
                gates.append(contributions[step] + states[-1] @ from_before.T)
                input_gate, forget_gate, _, output_gate = gates[-1].sigmoid().chunk(4, dim=1)
                candidate = gates[-1].chunk(4, dim=1)[2].tanh()
                cell = forget_gate * cell + input_gate * candidate
                states.append(output_gate * cell.tanh())
            read.append(_with_one(torch.cat([inputs, torch.stack(states[:-1], dim=1)], dim=2)))
            below = torch.stack(states[1:], dim=1)
        return read, gates, torch.cat([below, contexts], dim=2)


def _with_one(vectors: Tensor) -> Tensor:
    return torch.cat([vectors, torch.ones_like(vectors[..., :1])], dim=-1)
