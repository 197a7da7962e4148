"""The bag of words of a text: which tokens were said and how many in all, from the last layer's gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.answers import Answer
from gradleak.answers import ReadingStatus as Status
from gradleak.cases import LABELS, Attack, Case
from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.leak import Leak
from gradleak.spans import classes_span

# A singular value stands out if it is so many times the largest that noise alone has.
NOISE = 1.05
# Rows that may lie apart, at most.
APART = 200
# The rows of a gradient add up to nothing, as a share of its size, but for so many times its precision.
SUMMED = 64


@dataclass(frozen=True)
class Words:
    """The bag of words of a text: the tokens that were said, each once, as one sorted list; `count` of them in all.

    `texts`: their pieces in one line, where a vocabulary is given. `status` is "ambiguous", for words of which the
    model is sure leave no trace, or "failed" where there is nothing at all. `counts`: the text is there once.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    counts: list[int]
    status: list[Status]
    count: int

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the text."""
        return (Answer(self.status[0], "the words, not their order", words=set(self.tokens[0])),)


def reveal_words(leak: Leak, start: int = 1, *, vocabulary: Vocabulary | None = None) -> Words:
    """Return the bag of words of a text whose gradient this is, end marks included, by RLG (dang2021).

    Two words alike are one in the bag and two in the count: it is the rank of the gradient, its rows divided by their
    size (`gradleak.spans`). `start` is asked by the other readers and not here: it is never predicted.
    """
    del start
    gradient = leak.weight_gradient
    tokens = sorted(bag(gradient))
    texts = None if vocabulary is None else [" ".join(vocabulary.pieces[token] for token in tokens)]
    status: list[Status] = ["ambiguous" if tokens else "failed"]
    return Words([tokens], texts, [1], status, classes_span(gradient).rank)


def bag(gradient: Tensor) -> set[int]:
    """Return the classes that occur in a gradient (C, I), by RLG; refuse one that was changed before it was sent.

    Probabilities and labels each add up to one, so that the rows add up to nothing but for rounding. Where they do not,
    the rank is no number of words, no few rows' cone is the whole space, and every row would be a program of its own:
    hours, for nothing.
    """
    sizes = gradient.double().norm()
    share = float(gradient.sum(dim=0, dtype=torch.float64).norm() / sizes) if sizes > 0 else 0.0
    if share > SUMMED * torch.finfo(gradient.dtype).eps:
        raise InputError(
            f"the rows of this gradient add up to {share:.1g} of its size, and not to nothing: it was changed before "
            "it was sent, or is not of a last layer and cross-entropy alone"
        )
    return rlg(gradient)


def rounded_rank(difference: Tensor, weight: Tensor, rate: float, steps: int = 1) -> int:
    """Return the rank of a gradient that is a difference of weights (C, I), (W₀ − W_K) / rate.

    Such a gradient's rounding is that of the weights, of one size in every row: a known noise. A singular value counts
    that is larger than any of noise alone.
    """
    if difference.shape != weight.shape or rate <= 0:
        raise InputError(
            f"a difference of weights has their shape, {tuple(weight.shape)}; got {tuple(difference.shape)}"
        )
    spacing = torch.finfo(weight.dtype).eps * 2.0 ** weight.detach().double().abs().clamp(min=1e-30).log2().floor()
    # A rounded number is off by anything up to half the spacing of numbers there, at every step.
    noise = float(spacing.square().mean().sqrt()) * (steps / 12) ** 0.5 / rate
    small = difference.double() if len(difference) >= difference.shape[1] else difference.double().T
    singular = torch.linalg.eigvalsh(small.T @ small).clamp(min=0).sqrt()
    largest = noise * (len(small) ** 0.5 + small.shape[1] ** 0.5)
    return int((singular > NOISE * largest).sum())


def outlying_words(gradient: Tensor) -> set[int]:
    """Return the classes whose rows of a gradient (C, I) point away from all others' common direction.

    For an attacker who knows that entries were dropped, or sent as signs. The rows of words that were not said are
    much alike where a network predicts alike at every step; those of words that were point the other way. The cut is
    the widest gap among the most unlike rows.
    """
    if gradient.ndim != 2:
        raise InputError(f"one gradient (C, I) is looked at; got {tuple(gradient.shape)}")
    rows = torch.nn.functional.normalize(gradient, dim=1)
    alike = rows @ torch.nn.functional.normalize(rows.sum(dim=0), dim=0)
    order = alike.argsort(stable=True)[: APART + 1]
    gaps = alike[order].diff()
    return set(order[: int(gaps.argmax()) + 1].tolist()) if len(gaps) else set()


def _why_not_rows(case: Case) -> str:
    if case.subject.kind != "tokens" or not case.subject.embedding:
        return "the network has no embedding"
    return case.leak.withheld(case.subject.embedding)


def _attack_rows(case: Case) -> Answer:
    moved = (case.leak.gradients[case.subject.embedding] != 0).any(dim=1)
    places = case.size * case.leak.local_steps * math.prod(case.subject.input_shape)
    count = int(moved.sum())
    if count > places or (case.noise and count == len(moved)):
        reason = (
            f"{count} rows of the embedding move, and the batch has {places} places: noise or another layer moves them"
        )
        return Answer("failed", reason)
    return Answer("counted", "which rows of the embedding move", tokens=set(moved.nonzero()[:, 0].tolist()))


EMBEDDING_ROWS = Attack(
    "embedding rows",
    page="words",
    finds=("words",),
    needs="the gradient of an embedding",
    refused=_why_not_rows,
    run=_attack_rows,
    remedy="a frozen embedding, or noise on its rows",
)


def _why_not_said(case: Case) -> str:
    return case.leak.withheld("weight") if case.subject.sequence else "there are no words to say"


def _attack_said(case: Case) -> Answer:
    return Answer("counted", "the words, not their order", words=set(reveal_words(case.leak).tokens[0]))


WORDS_SAID = Attack(
    "words said",
    page="words",
    finds=("words",),
    needs="the last layer's gradient of a model that says what comes next at every place",
    refused=_why_not_said,
    run=_attack_said,
    remedy=LABELS,
)
