"""Define the settings of GradInversion (yin2021): the published weights and our own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gradleak.arguments import check_fields
from gradleak.errors import InputError, unknown

Distance = Literal["norms", "l2", "cosine"]
Group = Literal["none", "mean", "registered"]
Scale = Literal["published", "mean"]


@dataclass(frozen=True)
class GradInversion:
    """The weights of yin2021's objective and the settings of its optimizer.

    A term of the objective is left out if its weight is zero. Adam's rate rises linearly during the warm-up, then falls
    to zero as a half cosine.

    Attributes:
        distance: The distance of gradients: "norms", the sum over tensors of the L2 norms of their differences, as in
            the paper; "l2", the squared L2 norm; or "cosine".
        gradient: The weight of this distance.
        classification: The weight of the cross-entropy, which replaces the gradient in DeepInversion.
        variation: The weight of total variation R_TV.
        square: The weight of the images' L2 norm R_ℓ2.
        statistics: The weight of the batch norm statistics R_BN.
        scale: "published": R_TV, R_ℓ2 and R_BN are L2 norms, R_BN summed over layers. "mean": R_TV and R_ℓ2 are means
            over pixels and R_BN is the mean relative error over layers, so that weights fit any image and network size.
        feature: The weight of the distance between each sample's feature and its recovered feature.
        consistency: The weight of the distance between a seed's images and the consensus of all seeds.
        group: The consensus: "none"; "mean", the pixel mean; or "registered", the mean after registration.
        registrations: The number of registrations, the first after a quarter of the steps.
        levels: The image is the sum of this many images, each of half the resolution of the one before.
        steps: The number of steps of Adam.
        rate: Adam's largest rate.
        signed: Whether Adam gets only the sign of each derivative instead of its value.
        warmup: The number of steps of the warm-up.
        noise: The standard deviation of the noise added to every pixel at each step, as a multiple of the rate.
        spread: The standard deviation of random starts.
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
        check_fields(self)
        choices = (("distance", self.distance, Distance), ("group", self.group, Group), ("scale", self.scale, Scale))
        for name, value, known in choices:
            if value not in get_args(known):
                raise unknown(name, value, get_args(known))
        if self.steps < 1 or self.levels < 1 or self.warmup < 0 or self.registrations < 1:
            raise InputError("steps, levels and registrations must be at least 1, and warmup must not be negative")
        if self.gradient == 0 and self.classification == 0 and self.statistics == 0:
            raise InputError("one of the weights `gradient`, `classification` and `statistics` must not be zero")

    def rate_at(self, step: int) -> float:
        """Return Adam's rate at a step."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        return self.rate * 0.5 * (1 + math.cos(math.pi * (step - self.warmup) / max(1, self.steps - self.warmup)))

    def registers(self, step: int) -> bool:
        """Return whether the seeds are registered again at a step; registrations are evenly spaced."""
        first = self.steps // 4
        return step >= first and (step - first) % max(1, (self.steps - first) // self.registrations) == 0


# Our settings: fewer steps, a distance that ignores the gradient's scale, and images that are sums of resolutions.
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
