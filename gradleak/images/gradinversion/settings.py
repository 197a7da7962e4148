"""GradInversion's parts and their weights, as published and as we run them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gradleak.errors import InputError, unknown

Distance = Literal["norms", "l2", "cosine"]
Group = Literal["none", "mean", "registered"]
Scale = Literal["published", "mean"]


@dataclass(frozen=True)
class GradInversion:
    """The weights of yin2021's objective, and how it is made small; each part is left out where its weight is zero.

    `gradient` weighs the distance of gradients: "norms", the L2 norm of the misfit added up over all tensors, as
    printed; "l2", its square; "cosine". `classification` is the cross-entropy, which stands in its place in
    DeepInversion. `variation` weighs total variation, `square` the L2 norm of the images, `statistics` R_BN, `feature`
    the distance of every sample's feature from its own.
    `scale`: "published", R_TV, R_ℓ2 and R_BN are L2 norms over everything, the last added up over layers; "mean", they
    are means over pixels, and over layers of relative errors, so that a weight fits any size of image and network.
    `consistency` weighs the distance of a seed from what its `group` agrees on: nothing, the pixel mean, or the mean
    after registration, `registrations` of which are made, the first after a quarter of the way.

    `levels`: the image is the sum of so many, each of half the resolution of the one before. Adam with `rate`, raw or
    on the gradient's sign, a linear start of `warmup` steps and a cosine to zero; `noise`: what is added to every
    pixel, as a part of the rate. `spread`: standard deviation of random starts.
    """

    distance: Distance = "norms"
    gradient: float = 1e-3
    classification: float = 0.0
    variation: float = 1e-4
    square: float = 1e-6
    statistics: float = 0.1
    scale: Scale = "published"
    feature: float = 0.0
    consistency: float = 0.01
    group: Group = "registered"
    registrations: int = 150
    levels: int = 1
    steps: int = 20_000
    rate: float = 0.1
    signed: bool = False
    warmup: int = 50
    noise: float = 0.2
    spread: float = 1.0

    def __post_init__(self) -> None:
        choices = (("distance", self.distance, Distance), ("group", self.group, Group), ("scale", self.scale, Scale))
        for name, value, known in choices:
            if value not in get_args(known):
                raise unknown(name, value, get_args(known))
        if self.steps < 1 or self.levels < 1 or self.warmup < 0 or self.registrations < 1:
            raise InputError("steps, levels and registrations must be at least 1, and warmup must not be negative")
        if self.gradient == 0 and self.classification == 0 and self.statistics == 0:
            raise InputError("an attack needs a gradient, a classification or statistics to look at; all weigh nothing")

    def rate_at(self, step: int) -> float:
        """Return the rate of a step: linear warm-up, then a half cosine to zero."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        return self.rate * 0.5 * (1 + math.cos(math.pi * (step - self.warmup) / max(1, self.steps - self.warmup)))

    def registers(self, step: int) -> bool:
        """Whether seeds are registered anew at a step: from a quarter of the way on, evenly."""
        first = self.steps // 4
        return step >= first and (step - first) % max(1, (self.steps - first) // self.registrations) == 0


# Ours: fewer steps, a distance without a scale, and coarse structure before fine.
OURS = GradInversion(
    distance="cosine", gradient=1.0, variation=0.1, square=0.0, statistics=0.1, scale="mean", consistency=0.0,
    group="none", levels=4, steps=500, signed=True, warmup=0, noise=0.0, spread=0.1,
)  # fmt: skip
SETTINGS = {
    "gradinversion": GradInversion(),
    "gradinversion+pyramid": OURS,
    "gradinversion+features": replace(OURS, feature=0.1),
    "deepinversion": GradInversion(gradient=0.0, classification=1.0, consistency=0.0, group="none", noise=0.0),
}
