"""What attacks answer: one list of words for how sure an answer is, and one shape for answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

# Of labels, and of anything else that equations leave one solution of or several.
LabelStatus = Literal["unique", "ambiguous", "failed", "found"]
# Of inputs that are computed layer by layer.
InversionStatus = Literal["exact", "partial", "failed"]
# Of one search for inputs.
SearchStatus = Literal["settled", "stopped", "diverged", "no label", "interrupted"]
# Of words and sentences.
ReadingStatus = Literal["unique", "ambiguous", "failed"]
Status = Literal[
    "unique", "exact", "ambiguous", "partial", "found", "counted", "searched", "settled", "stopped", "diverged",
    "no label", "interrupted", "failed",
]  # fmt: skip

MEANINGS: dict[Status, str] = {
    "unique": "no other answer explains the gradient, under the assumptions that the attack states",
    "exact": "every layer's equations are met, and the answer's own gradient is the one that was seen",
    "ambiguous": "other answers explain the gradient as well; what they have in common is handed back",
    "partial": "the best that the equations leave: some of it is not determined",
    "found": "an answer without a certificate: searches ended here, or nothing is left to check it with",
    "counted": "an estimate, which nothing certifies",
    "searched": "the best of a search, which nothing certifies",
    "settled": "a search whose loss fell no further",
    "stopped": "a search that used up its steps",
    "diverged": "a search whose loss was no longer a number",
    "no label": "a search that did not begin, since it had no label",
    "interrupted": "a search that was interrupted; the best so far is handed back",
    "failed": "no answer",
}
# With these words an attack vouches for its answer.
CERTAIN: frozenset[Status] = frozenset({"unique", "exact"})


@dataclass(frozen=True)
class Expected:
    """The share of labels that an attack counts right on average over simulated `batches`.

    `guess`: the same of counts that are as even as they can be.
    """

    share: float
    guess: float
    batches: int


class Answering(Protocol):
    """What every result of an attack has: its answers, one for each sample or batch that was attacked by itself."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers, in the order of what was attacked."""


@dataclass(frozen=True)
class Answer:
    """An attack's answer on one sample or one batch; nothing in it comes from the truth.

    `status`: how sure it is, a word of `MEANINGS`; `reason`: why it is no surer; `claimed`: the error that the attack
    vouches for, inf where it vouches for none.
    What was found, where it was: `labels` (B, C), `counts` (C,) of the classes, the `classes` that occur, `features`
    (B, I), `inputs` (B, …), the `tokens` that go in, the `words` that are to come out, `sentences`, and the `scale`,
    the factor that a defence left on the gradient. `expected`: how much of `counts` is right on simulated batches.
    `interrupted`: whether the attack was stopped before its end, and hands back what it had.
    """

    status: Status = "found"
    reason: str = ""
    claimed: float = math.inf
    labels: Tensor | None = None
    counts: Tensor | None = None
    classes: set[int] | None = None
    features: Tensor | None = None
    inputs: Tensor | None = None
    tokens: set[int] | None = None
    words: set[int] | None = None
    sentences: list[list[int]] | None = None
    scale: float | None = None
    expected: Expected | None = None
    interrupted: bool = False

    @property
    def certain(self) -> bool:
        """Whether the attack vouches for it."""
        return self.status in CERTAIN

    @property
    def failed(self) -> bool:
        """Whether it says nothing."""
        found = (
            self.labels, self.counts, self.classes, self.features, self.inputs, self.tokens, self.words,
            self.sentences,
        )  # fmt: skip
        return self.status == "failed" or all(one is None for one in found)
