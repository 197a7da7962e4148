"""One leak under attack: what was sent, what the attacker knows of it, and what attacks before have found."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradleak.auditing.reach import Reach
from gradleak.auditing.subject import Subject, made_up
from gradleak.defenses import DP_VARIANCE
from gradleak.errors import InputError
from gradleak.labels import Expected, Standins, standins_of
from gradleak.leak import Leak
from gradleak.losses import CrossEntropy, Loss
from gradleak.precision import coarser

# So many samples, at least and at most, are made up to simulate batches, and so many numbers make them on their way.
LEAST, MOST, NUMBERS = 32, 256, 2**28


@dataclass
class Found:
    """What an attack hands back, whatever it could tell; nothing in it comes from the truth.

    `labels` (B, C), `counts` (C,), `classes`, `features` (B, I), `inputs` (B, …), the `tokens` that go in, the `words`
    that are to come out, `sentences`, and the `scale`, the factor that a defence left on the gradient. `expected`: how
    much of `counts` is right on simulated batches. `certificate`: "unique" where no other answer fits, or another
    verdict's word; `remark`: why it is less.
    """

    certificate: str = ""
    remark: str = ""
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

    @property
    def failed(self) -> bool:
        """Whether it says nothing."""
        told = (
            self.labels,
            self.counts,
            self.classes,
            self.features,
            self.inputs,
            self.tokens,
            self.words,
            self.sentences,
        )
        return self.certificate == "failed" or all(one is None for one in told)


@dataclass
class Case:
    """A leak, the defence's text, and what is public: the labels' family, the loss, marks of sentences, pixel range.

    A defence is public as well: the noise that it adds and whether it rescales are what attacks are told. So is the
    `precision` that the client computes in, which those attacks are told that take one.
    `steps` is how long inputs are searched for; `reach`: how far the network can be peeled; `auxiliary`: samples of
    the same kind and their classes, where the attacker has some; `simulated`: the samples that batches are simulated
    with, once they have been run through the model, for all cases of an audit.
    """

    leak: Leak
    subject: Subject
    defense: str
    prior: str
    loss: Loss
    seed: int
    steps: int
    reach: Reach
    precision: str = "float32"
    auxiliary: tuple[Tensor, Tensor] | None = None
    marks: tuple[int, int] | None = None
    box: tuple[float, float] | None = None
    found: list[Found] = field(default_factory=list)
    simulated: list[Standins] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many samples one step had."""
        return self.leak.batch_size

    @property
    def noise(self) -> float | None:
        """The standard deviation that the defence adds to every entry; None where it is to be estimated."""
        name, _, level = self.defense.partition("/")
        known = {
            "none": lambda: 0.0, "clip": lambda: 0.0, "clip-share": lambda: 0.0, "gaussian": lambda: float(level),
            "laplace": lambda: float(level), "gaussian-variance": lambda: math.sqrt(float(level)),
            "dp": lambda: math.sqrt(DP_VARIANCE), "dp-sgd": lambda: float(level),
        }  # fmt: skip
        return known[name]() if name in known else None

    @property
    def scale(self) -> float | None:
        """1, or None where the defence rescales the gradient."""
        return None if self.defense.partition("/")[0] in ("clip", "clip-share", "dp", "dp-sgd") else 1.0

    @property
    def apart(self) -> bool:
        """Whether the defence rescales each of several samples by a factor of its own, and not all by one."""
        return self.size > 1 and self.defense.partition("/")[0] == "dp-sgd"

    @property
    def rounds(self) -> bool:
        """Whether the client computes in a coarser precision than float32, in some layers at least."""
        return self.precision not in ("float32", "float64")

    @property
    def coarse(self) -> bool:
        """Whether the products of the client's Linear layers are known to be rounded more than its gradients are."""
        return coarser(self.precision, self.leak.weight.dtype)

    @property
    def plain(self) -> bool:
        """Whether the loss is the cross-entropy that most attacks are made for."""
        return self.loss == CrossEntropy()

    def standins(self) -> Standins:
        """Return what batches are simulated with: auxiliary samples, or made-up ones, fewer where they are costly."""
        if self.simulated:
            return self.simulated[0]
        count = min(MOST, max(LEAST, NUMBERS // max(1, self.subject.activations)))
        kind, shape = self.subject.kind, self.subject.input_shape
        tried: list[Tensor | None] = [None] if kind == "images" else [*made_up(self.leak, kind, shape, count)]
        for inputs in tried:
            with contextlib.suppress(Exception):
                self.simulated.append(standins_of(self.leak, auxiliary=self.auxiliary, inputs=inputs, count=count))
                return self.simulated[0]
        raise InputError("the network takes no made-up inputs")

    def rescaled(self) -> Leak:
        """Return the leak at its own scale, which an attack before this one has found where a defence rescales."""
        if self.scale is not None:
            return self.leak
        known = [one.scale for one in self.found if one.scale and one.certificate in ("unique", "partial")]
        if not known:
            raise InputError("the defence rescales the gradient, and no attack before has found by how much")
        own = {name: value / known[0] for name, value in self.leak.gradients.items()}
        return replace(self.leak, gradients=own)

    def labels(self) -> Tensor:
        """Return the labels (B, C) that attacks before this one have found, the most certain ones first."""
        whole = [one for one in self.found if one.labels is not None and not one.failed]
        whole.sort(key=lambda one: one.certificate != "unique")
        for one in whole:
            assert one.labels is not None
            if one.labels.isfinite().all():
                return one.labels
        for one in self.found:
            if one.counts is not None and int(one.counts.sum()) == self.size:
                classes = torch.arange(len(one.counts)).repeat_interleave(one.counts.cpu())
                return torch.nn.functional.one_hot(classes, len(one.counts)).to(self.leak.weight)
        raise InputError("no attack before this one has found labels to match with")
