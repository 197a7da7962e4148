"""Define the answers of attacks: one data class for all, and one list of statuses for how certain they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

# For labels and other solutions of equations.
LabelStatus = Literal["unique", "ambiguous", "failed", "found"]
# For inputs that are computed layer by layer.
InversionStatus = Literal["exact", "partial", "failed"]
# For a single search for inputs.
SearchStatus = Literal["settled", "stopped", "diverged", "no label", "interrupted"]
# For words and sentences.
ReadingStatus = Literal["unique", "ambiguous", "failed"]
Status = Literal[
    "unique", "exact", "ambiguous", "partial", "found", "counted", "searched", "settled", "stopped", "diverged",
    "no label", "interrupted", "failed",
]  # fmt: skip

MEANINGS: dict[Status, str] = {
    "unique": "no other answer explains the gradient, under the assumptions that the attack states",
    "exact": "the answer meets the equations of every layer, and its gradient is the one that the server received",
    "ambiguous": "several answers explain the gradient; the attack returns what they have in common",
    "partial": "the equations determine only a part of the answer; the attack returns the best estimate",
    "found": "an answer without a certificate: a search ended at it, or no equation is left to check it",
    "counted": "counts of labels that are an estimate, without a certificate",
    "searched": "the best answer of a search, without a certificate",
    "settled": "the search ended because its loss stopped falling",
    "stopped": "the search ended because it had used all its steps",
    "diverged": "the search ended because its loss became infinite or NaN",
    "no label": "the search could not start, because no label was recovered",
    "interrupted": "the search was interrupted; the attack returns the best answer until then",
    "failed": "the attack found no answer",
}
# An attack guarantees answers with these statuses.
CERTAIN: frozenset[Status] = frozenset({"unique", "exact"})


@dataclass(frozen=True)
class Expected:
    """The average share of labels that an attack counts correctly over simulated `batches`.

    `guess`: the share for counts that are as even as possible.
    """

    share: float
    guess: float
    batches: int


@dataclass(frozen=True)
class Answer:
    """An attack's answer for one sample or one batch; it is computed without the true data.

    Attributes:
        status: How certain the answer is, a key of `MEANINGS`, which says what each status means.
        reason: Why the answer is not certain, or not certain of everything.
        claimed: The error that the attack states for its answer, inf if it states none. This is a bound, but for the
            soft labels of a batch an estimate, and for images that were peeled four times an estimate.
        labels: The labels (B, C).
        counts: How often each class occurs (C,).
        classes: The classes that occur.
        features: The inputs of the last layer (B, I).
        inputs: The inputs of the network's first layer (B, …), or any number of candidates for them (M, …).
        guaranteed: Which rows of `inputs` the attack guarantees (M,); None for all if the status is certain, else none.
        in_front: What changes the network's inputs before the first layer in train mode, "" if nothing is known to.
        tokens: The tokens in the input.
        words: The words in the targets.
        sentences: The recovered sentences, as lists of tokens.
        scale: The factor on the gradient that a defence applied.
        expected: The share of labels that the attack counts correctly on simulated batches.
        interrupted: Whether the attack was stopped early and this is its intermediate result.
    """

    status: Status = "found"
    reason: str = ""
    claimed: float = math.inf
    labels: Tensor | None = None
    counts: Tensor | None = None
    classes: set[int] | None = None
    features: Tensor | None = None
    inputs: Tensor | None = None
    guaranteed: Tensor | None = None
    in_front: str = ""
    tokens: set[int] | None = None
    words: set[int] | None = None
    sentences: list[list[int]] | None = None
    scale: float | None = None
    expected: Expected | None = None
    interrupted: bool = False

    @property
    def certain(self) -> bool:
        """Whether the attack guarantees the answer."""
        return self.status in CERTAIN

    @property
    def failed(self) -> bool:
        """Whether the attack has no answer."""
        results = (
            self.labels, self.counts, self.classes, self.features, self.inputs, self.tokens, self.words,
            self.sentences,
        )  # fmt: skip
        return self.status == "failed" or all(result is None for result in results)
