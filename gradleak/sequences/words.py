"""Recover the bag of words of a text, and its number of tokens, from the last layer's gradient."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.answers import Answer
from gradleak.answers import ReadingStatus as Status
from gradleak.arguments import checked_arguments
from gradleak.cases import LABELS, Attack, Case
from gradleak.data.text import Vocabulary
from gradleak.errors import GradleakError, InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.leak import Leak, hooked, running
from gradleak.spans import classes_span

# A singular value counts if it exceeds the largest singular value of noise alone by this factor.
NOISE = 1.05
# Most rows that may be outliers.
APART = 200
# An unchanged gradient's rows sum to zero up to this many rounding units, relative to its norm.
SUMMED = 64


@dataclass(frozen=True)
class Words:
    """The bag of words of a text.

    Attributes:
        tokens: One sorted list of the tokens that occur in the text, each once.
        texts: Their pieces in one line, if a vocabulary was given.
        status: "ambiguous", because words that the model predicts with certainty have no gradient, or "failed" if no
            word was found.
        count: The number of tokens in the text, with repetitions.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    status: list[Status]
    count: int

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the text."""
        return (Answer(self.status[0], "the words, not their order", words=set(self.tokens[0])),)


@checked_arguments()
def reveal_words(leak: Leak, *, vocabulary: Vocabulary | None = None) -> Words:
    """Return the bag of words of a text, with its end mark, by RLG (dang2021).

    The number of tokens is the rank of the gradient after division of its rows by their lengths (`gradleak.spans`).

    Args:
        leak: The client's gradients, of which the last layer's weight is used.
        vocabulary: Turns tokens into texts.

    Examples:
        >>> from gradleak import observe
        >>> from gradleak.models.language import batch_of, build_language_model
        >>> model = build_language_model("lstm", pieces=50, width=32)
        >>> words = reveal_words(observe(model, *batch_of([[7, 8, 9, 7]]), head="head"))
        >>> words.tokens, words.count
        ([[2, 7, 8, 9]], 5)
    """
    gradient = leak.weight_gradient
    tokens = sorted(bag(gradient))
    texts = None if vocabulary is None else [" ".join(vocabulary.pieces[token] for token in tokens)]
    status: list[Status] = ["ambiguous" if tokens else "failed"]
    return Words([tokens], texts, status, classes_span(gradient).rank)


def bag(gradient: Tensor) -> set[int]:
    """Return the classes that occur in a gradient (C, I), by RLG; refuse a gradient that was changed.

    Probabilities and labels both sum to one, so the rows of an unchanged gradient sum to zero up to rounding. The rank
    of a changed gradient is not the number of words. RLG would also solve a linear program for each of its rows, which
    takes hours.
    """
    sizes = gradient.double().norm()
    share = float(gradient.sum(dim=0, dtype=torch.float64).norm() / sizes) if sizes > 0 else 0.0
    if share > SUMMED * torch.finfo(gradient.dtype).eps:
        raise InputError(
            f"the sum of the rows of this gradient is {share:.1g} of its norm instead of zero: it was changed before "
            "it was sent, or is not the gradient of a last layer by the cross-entropy"
        )
    return rlg(gradient)


def rounded_rank(difference: Tensor, weight: Tensor, rate: float, steps: int = 1) -> int:
    """Return the rank of a gradient that is a difference of weights (C, I), (W₀ − W_K) / rate.

    The rounding errors of such a gradient are those of the weights, so they are noise of a known size. The rank is the
    number of singular values above the largest that this noise has alone.

    Args:
        difference: The gradient (C, I).
        weight: The weights W₀ (C, I).
        rate: The learning rate.
        steps: The number K of local steps.
    """
    if difference.shape != weight.shape or rate <= 0:
        raise InputError(
            f"a difference of weights has their shape, {tuple(weight.shape)}; got {tuple(difference.shape)}"
        )
    spacing = torch.finfo(weight.dtype).eps * 2.0 ** weight.detach().double().abs().clamp(min=1e-30).log2().floor()
    # At every step the rounding error is uniform within half the spacing of floating-point numbers.
    noise = float(spacing.square().mean().sqrt()) * (steps / 12) ** 0.5 / rate
    small = difference.double() if len(difference) >= difference.shape[1] else difference.double().T
    singular = torch.linalg.eigvalsh(small.T @ small).clamp(min=0).sqrt()
    largest = noise * (len(small) ** 0.5 + small.shape[1] ** 0.5)
    return int((singular > NOISE * largest).sum())


@checked_arguments(gradient="C I")
def outlying_words(gradient: Tensor) -> set[int]:
    """Return the classes whose rows of a gradient (C, I) point away from the common direction of the rows.

    This is for an attacker who knows that entries were dropped, or sent as signs. If a network predicts nearly the same
    at every step, the rows of absent words are similar and the rows of present words point the other way. The cut is
    the widest gap in the cosine similarity to the common direction, among the least similar rows.
    """
    rows = torch.nn.functional.normalize(gradient, dim=1)
    cosines = rows @ torch.nn.functional.normalize(rows.sum(dim=0), dim=0)
    order = cosines.argsort(stable=True)[: APART + 1]
    gaps = cosines[order].diff()
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
    named = set(moved.nonzero()[:, 0].tolist())
    pairs = [(row, token) for token, row in enumerate(_rows_of_tokens(case, len(moved))) if row in named]
    # Of several tokens with one row, take the one with the row's number, or else the first.
    tokens = dict(reversed(pairs)) | {row: token for row, token in pairs if row == token}
    return Answer("counted", "which rows of the embedding move", tokens=set(tokens.values()))


def _rows_of_tokens(case: Case, size: int) -> list[int]:
    """Return the row of an embedding of this `size` that the network looks up for each token.

    Where the row depends on more than the token, this is the row with the token's number.
    """
    module = case.leak.model.get_submodule(case.subject.embedding.rpartition(".")[0])
    shape, looked_up = case.subject.input_shape, list[Tensor]()

    def stop(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        looked_up.append(args[0].flatten())
        raise InputError("the rest of the pass is not needed")

    # A network may map many tokens to few rows, or subtract a number from tokens.
    count = 2 * size
    tokens = torch.arange(-(-count // math.prod(shape)) * math.prod(shape), device=case.leak.weight.device)
    for texts in (tokens, tokens.roll(1)):
        stopping = hooked([module.register_forward_pre_hook(stop)])
        with contextlib.suppress(GradleakError), torch.no_grad(), stopping, running(case.leak.model, shape):
            case.leak.model(texts.reshape(-1, *shape))
    alike = len(looked_up) == 2 and looked_up[0].shape == tokens.shape
    known = alike and torch.equal(looked_up[0].roll(1), looked_up[1])
    return (looked_up[0] if known else tokens).tolist()


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
    needs="the last layer's gradient of a model that predicts the next token at every position",
    refused=_why_not_said,
    run=_attack_said,
    remedy=LABELS,
)
