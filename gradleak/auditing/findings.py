"""Define the results of an audit as plain data: findings, attacks without an answer, and costs of defences."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

from gradleak.leak import Mode

# The measures and their descriptions. A larger value is worse for privacy.
MEASURES = {
    "labels": "share of labels found",
    "classes": "share of classes found (Jaccard)",
    "features": "share of features found to 1 %",
    "inputs": "share of inputs found exactly (images: 60 dB; others: 1 %)",
    "recognisable": "share of inputs that can be recognised (20 dB, or an SSIM of .7, and more than a guess)",
    "image-psnr": "the best image's PSNR in dB",
    "image-ssim": "the best image's SSIM",
    "image-gain": "by how much (dB) the PSNR of an image exceeds that of a flat image in its mean colour",
    "words": "share of words found (Jaccard)",
    "sentences": "share of sentences read whole",
}

# The targets of attacks, and the outcomes for each.
Target = Literal["labels", "classes", "features", "inputs", "words", "sentences"]
TARGETS: tuple[Target, ...] = get_args(Target)
State = Literal["recovered", "not recovered", "not attacked", "not compared"]
# What inputs are after the best attack, the worst for privacy first.
Grade = Literal["exact", "recognisable", "not recognisable"]


class Place(NamedTuple):
    """The client's mode and precision, the defence and the batch size, which identify a case in a report."""

    mode: Mode
    precision: str
    defense: str
    batch_size: int


class Plain(BaseModel):
    """A part of a report."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Placed(Plain):
    """A row of a report about one case: the defence, the batch size, and the client's precision and mode."""

    defense: str
    batch_size: int
    precision: str = "float32"
    mode: Mode = "eval"

    @property
    def place(self) -> Place:
        """The case."""
        return Place(self.mode, self.precision, self.defense, self.batch_size)


class Finding(_Placed):
    """The result of one attack on one batch with one defence.

    Attributes:
        attack: The attack's name.
        certificate: The status of the attack's answer.
        measures: The comparison with the private batch, by names of MEASURES and "lpips" (a smaller value is worse);
            empty if there is no private batch.
        chance: The same measures for a guess.
        expected: For counts, the share of "labels" that the attack counts correctly on simulated batches for this
            model, and the share that an even "guess" has there.
        certified: The number of inputs that the attack guarantees.
        columns: For tables, the mean error of each column, in the column's own unit.
        sentence: The result in one sentence.
        stops: What would stop the attack.
        page: The page of the book that shows the attack.
        cut: Whether the attack was interrupted when its time was over.
    """

    attack: str
    certificate: str
    measures: dict[str, float]
    chance: dict[str, float]
    expected: dict[str, float] = {}
    certified: int = 0
    columns: dict[str, float] = {}
    sentence: str
    stops: str
    page: str
    cut: bool = False


class NotTried(_Placed):
    """An attack without an answer.

    Attributes:
        attack: The attack's name.
        why: The reason.
        page: The page of the book that shows the attack.
        applies: Whether the attack applies here, but raised an error or lacked time or memory.
        late: Whether it lacked time.
    """

    attack: str
    why: str
    page: str
    applies: bool = False
    late: bool = False


class Outcome(_Placed):
    """The result for one target in one case, over all attacks that aim at this target.

    Attributes:
        target: One of TARGETS.
        outcome: "recovered" if at least a part was recovered; "not recovered" if the attacks' answers are no better
            than a guess; "not attacked" if no attack answered; "not compared" if the answers have no certificate and
            there is no private batch to compare them with.
        attack: The best attack.
        share: The share that the best attack recovered; of inputs that are not exact, the share that is recognisable.
        guess: The share that a guess has.
        grade: For inputs that were compared, the grade of the best one.
        samples: The number of private samples with which the answers were compared, 0 if there are none.
        certified: The number of inputs that the best attack guarantees.
        why: Why attacks did not answer.
    """

    target: Target
    outcome: State
    attack: str = ""
    share: float | None = None
    guess: float | None = None
    grade: Grade | None = None
    samples: int = 0
    certified: int = 0
    why: str = ""

    @property
    def text(self) -> str:
        """The outcome in a few words, with the share if it is known."""
        if self.share is None or self.outcome == "not attacked":
            return self.outcome
        if self.grade is not None:
            return self.grade if self.outcome == "not recovered" else f"{self.grade}, {self.number} of {self.samples}"
        share = measure_text(self.target, self.share)
        return f"recovered, {share}" if self.outcome == "recovered" else f"not recovered ({share})"

    @property
    def number(self) -> int:
        """The number of private samples that the share is."""
        return round((self.share or 0.0) * self.samples)


class Cost(_Placed):
    """The cost of a defence and a precision for training.

    Attributes:
        cosine: The cosine of the sent gradient with the true gradient, which has the precision of the parameters.
        loss_before: The batch's loss before a step of gradient descent.
        loss_after: The loss after a step along the sent gradient.
        loss_after_undefended: The loss after a step along the true gradient.
    """

    cosine: float | None
    loss_before: float
    loss_after: float
    loss_after_undefended: float


class Picture(_Placed):
    """A PNG in base64 with the private images in the upper row and the recovered images in the lower row."""

    attack: str
    png: str


def measure_text(measure: str, value: float) -> str:
    """Return a measure's value as text."""
    if measure == "image-psnr":
        return "over 150 dB" if value >= 150 else f"{value:.1f} dB"
    if measure == "image-gain":
        return f"{value:+.1f} dB"
    return f"{value:.2f}" if measure == "image-ssim" else f"{100 * value:.0f} %"


def finite(value: float, most: float = 200.0) -> float:
    """Return a value that JSON can represent: limited to ±`most`, and 0 instead of NaN."""
    return max(-most, min(most, value)) if not math.isnan(value) else 0.0
