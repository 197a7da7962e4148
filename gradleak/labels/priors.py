"""State what an attacker knows before it sees the gradient: the shape of labels, the gradient's scale and its noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gradleak.errors import InputError, foreign, unknown

# A label is known if its error is at most this (L1).
KNOWN = 1e-3
# Known labels are refused if the sum of a row's absolute entries differs by so much from 1.
UNLIKE = 0.1


@dataclass(frozen=True)
class LabelPrior:
    """A label whose `free` largest entries are arbitrary; the `rest` are zero, or equal to each other.

    The free entries are the set S of wang2024, Eqn. 5.
    """

    free: int
    rest: Literal["zero", "equal"]

    def equations(self, classes: int) -> int:
        """Return the number of equations that the prior gives for the unknown scalar."""
        return classes - self.free - (self.rest == "equal")

    @property
    def tolerance(self) -> float:
        """The error (L1) of a label's entries, before the label gets its shape, up to which the label is known.

        A one-hot label is only a class, and those of two classes are at a distance of 2.
        """
        return 1.0 if self.free == 1 and self.rest == "zero" else KNOWN


PRIORS = {"smoothing": LabelPrior(1, "equal"), "onehot": LabelPrior(1, "zero"), "mixup": LabelPrior(2, "zero")}
# A caller's own prior: a function from labels (…, C) to scores (…), 0 for the right shape and positive for others.
Score = Callable[[Tensor], Tensor]


def prior_of(prior: str) -> LabelPrior:
    """Return the prior with this name."""
    if prior not in PRIORS:
        raise unknown("prior", prior, PRIORS)
    return PRIORS[prior]


def _checked(score: Score) -> Score:
    def scores(labels: Tensor) -> Tensor:
        with foreign("the prior's function failed"):
            values = score(labels)
        if not isinstance(values, Tensor) or values.shape != labels.shape[:-1]:
            raise InputError("a prior's function must return a score for each label: a tensor (…) for labels (…, C)")
        return values

    return scores


def resolve(prior: str | LabelPrior | Score, classes: int) -> LabelPrior | Score:
    """Return the prior that a caller means; refuse a prior that every label fits."""
    found = prior_of(prior) if isinstance(prior, str) else prior
    if not isinstance(found, LabelPrior):
        return _checked(found)
    if found.free < 1 or found.equations(classes) < 1:
        raise InputError(
            f"a label of {classes} classes with {found.free} free and the others {found.rest} can be any label: "
            "the prior says nothing that the gradient could be compared with"
        )
    return found


def check_scale(scale: float | None) -> None:
    """Refuse a scale that is not a positive, finite factor or None."""
    if scale is not None and not 0 < scale < math.inf:
        raise InputError(f"a scale is a positive factor, or None where it is not known; got {scale:g}")


def check_noise(noise: float | None) -> None:
    """Refuse a standard deviation that is negative or not finite."""
    if noise is not None and not 0 <= noise < math.inf:
        raise InputError(f"noise is a standard deviation, finite and not negative, or None; got {noise:g}")


def check_probabilities(labels: Tensor) -> None:
    """Refuse labels (B, C) that are not probabilities, up to the errors of labels that an attack has found."""
    masses = labels.abs().sum(dim=1)
    worst = float(masses[(masses - 1).abs().argmax()])
    if not abs(worst - 1) < UNLIKE:
        raise InputError(f"labels are not probabilities: the absolute entries of a row sum to {worst:.3g} and not to 1")
