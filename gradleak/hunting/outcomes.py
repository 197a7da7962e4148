"""What came of an attack on one client, by what it said and by what was true."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["right", "wrong", "open with the truth", "open without the truth", "failed", "refused"]
OUTCOMES: tuple[Outcome, ...] = (
    "right",
    "wrong",
    "open with the truth",
    "open without the truth",
    "failed",
    "refused",
)


@dataclass(frozen=True)
class Answer:
    """An outcome, how far the answer is from the truth (inf where there is none), and what the attack was run on.

    "right" and "wrong": the attack gave a certificate. "open": it gave an answer without one, and the truth is within
    what it leaves open, or is not. "failed": it says that it found nothing. "refused": it raised an error of ours.
    """

    outcome: Outcome
    error: float = math.inf
    setting: str = ""


def answer(*, certain: bool, failed: bool, error: float, promised: float, open_: float, setting: str = "") -> Answer:
    """Return the outcome of an attack that promises an error of at most `promised` where it is certain.

    `open_`: how far the truth may be from an answer without a certificate, by what the attack says.
    """
    if certain:
        return Answer("right" if error <= promised else "wrong", error, setting)
    if failed:
        return Answer("failed", error, setting)
    return Answer("open with the truth" if error <= open_ else "open without the truth", error, setting)
