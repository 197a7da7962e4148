"""Define the outcome of an attack on one client, from the attack's answer and the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Outcome = Literal[
    "right",
    "wrong",
    "not certified, truth within the stated error",
    "not certified, truth outside the stated error",
    "failed",
    "refused",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True)
class Answer:
    """The outcome of an attack on one client.

    Attributes:
        outcome: "right" or "wrong" for an answer with a certificate. For an answer without one, whether the truth lies
            within the error that the attack states. "failed" if there is no answer. "refused" if the attack raised an
            error of gradleak.
        error: The distance of the answer from the truth, inf if there is no answer.
        setting: A description of the client.
    """

    outcome: Outcome
    error: float = math.inf
    setting: str = ""


def answer(status: str, error: float, promised: float = 0.0, open_: float = 0.0, setting: str = "") -> Answer:
    """Return the outcome of an attack on one client.

    Args:
        status: The answer's status: "unique" and "exact" are certificates, and "failed" is no answer.
        error: The distance of the answer from the truth.
        promised: The largest error that a certificate allows.
        open_: The attack's bound on the error of an answer without a certificate.
        setting: A description of the client.
    """
    if status in ("unique", "exact"):
        return Answer("right" if error <= promised else "wrong", error, setting)
    if status == "failed":
        return Answer("failed", error, setting)
    if error <= open_:
        return Answer("not certified, truth within the stated error", error, setting)
    return Answer("not certified, truth outside the stated error", error, setting)
