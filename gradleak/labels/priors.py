"""What an attacker may know of a label's shape before it sees the gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gradleak.errors import InputError, unknown


@dataclass(frozen=True)
class LabelPrior:
    """The `free` largest entries of the label are anything; the `rest` are zero, or equal to one another.

    The free entries are the set S of wang2024, Eqn. 5.
    """

    free: int
    rest: Literal["zero", "equal"]

    def equations(self, classes: int) -> int:
        """Return how many equations this puts on the one unknown."""
        return classes - self.free - (self.rest == "equal")


PRIORS = {"smoothing": LabelPrior(1, "equal"), "onehot": LabelPrior(1, "zero"), "mixup": LabelPrior(2, "zero")}
# A user's own: labels (…, C) to a score (…), which is 0 for a label of the right shape and positive for any other.
Score = Callable[[Tensor], Tensor]


def named(prior: str) -> LabelPrior:
    """Return a prior by its name."""
    if prior not in PRIORS:
        raise unknown("prior", prior, PRIORS)
    return PRIORS[prior]


def resolve(prior: str | LabelPrior | Score, classes: int) -> LabelPrior | Score:
    """Return the prior that a caller means, and refuse one that every label fits."""
    found = named(prior) if isinstance(prior, str) else prior
    if isinstance(found, LabelPrior) and (found.free < 1 or found.equations(classes) < 1):
        raise InputError(
            f"a label of {classes} classes with {found.free} free and the others {found.rest} can be any label: "
            "the prior says nothing that the gradient could be compared with"
        )
    return found
