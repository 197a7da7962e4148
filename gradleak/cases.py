"""What an attack is run on: a leak, and what is public of its client; and how attacks are declared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.answers import Answer
from gradleak.defenses import DP_VARIANCE
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.losses import CrossEntropy, Loss
from gradleak.precision import coarser

Kind = Literal["images", "vectors", "tokens"]
# Bytes of a number in float64.
DOUBLE = 8
# The machine's speed is measured with a matrix of this side; eigenvectors take time with the cube of it.
SIDE = 256


@dataclass(frozen=True)
class Subject:
    """A network as its server knows it.

    `classes` C and `features` I of the last layer `head`; `bias`: whether that has one, `bias_sent`: whether its
    gradient is in the update; `rectified`: whether its features are never negative; `chain`: "linear" or
    "convolutional" where the network is a chain that runs backwards, else "" and `chain_reason`; `layers`: how many
    outputs each layer of the chain has, by name; `norms`: its batch norms, and whether they have been `trained`;
    `embedding`: the name of its embedding's weight; `activations`: how many numbers one sample makes on its way;
    `sequence`: whether there is a target at every place.
    """

    network: str
    parameters: int
    kind: Kind
    input_shape: tuple[int, ...]
    sequence: bool
    head: str
    classes: int
    features: int
    bias: bool
    bias_sent: bool
    rectified: bool
    chain: Literal["", "linear", "convolutional"]
    chain_reason: str
    layers: dict[str, int]
    norms: int
    trained: bool
    embedding: str
    activations: int
    bytes: int

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was found out, in words."""
        chains = {"linear": "a chain of Linear layers", "convolutional": "a chain of convolutions"}
        bias = "yes: its gradient is the sum of all errors" if self.bias_sent else "yes, without a gradient"
        norms = f"{self.norms}, {'trained' if self.trained else 'never trained'}" if self.norms else "none"
        return [
            ("network", f"{self.network}, {self.parameters:,} parameters"),
            ("inputs", f"{self.kind}, {' × '.join(map(str, self.input_shape))}"),
            ("last layer", f"'{self.head or 'itself'}', C = {self.classes:,} classes, I = {self.features:,} features"),
            ("its bias", bias if self.bias else "none"),
            ("its features", "never negative" if self.rectified else "of both signs"),
            ("runs backwards", chains[self.chain] if self.chain else f"no: {self.chain_reason}"),
            ("batch norms", norms),
            ("embedding", f"'{self.embedding}'" if self.embedding else "none"),
        ]


@dataclass(frozen=True)
class Reach:
    """The `layers` whose inputs follow from a batch's gradient, from the last down, and the `bytes` that takes.

    `refused`: why no image follows from them, "" where one may. `opening`: the side of the matrix whose eigenvectors
    open the last map.
    """

    layers: tuple[str, ...]
    refused: str
    bytes: int = 0
    opening: int = 0

    @property
    def seconds(self) -> float:
        """How long the last map takes to be opened, on this machine as it is now."""
        if self.opening <= SIDE:
            return 0.0
        matrix, started = torch.eye(SIDE, dtype=torch.float64) + 1 / SIDE, time.monotonic()
        torch.linalg.eigh(matrix)
        return (time.monotonic() - started) * (self.opening / SIDE) ** 3

    def told(self, leak: Leak) -> list[str]:
        """Return what this proves of a leak whose last layer tells labels and features."""
        size = leak.batch_size
        parameters = [f"{name}.weight" for names in self.layers for name in names.split("+")]
        if not self.layers or any(leak.withheld(name) for name in parameters):
            return []
        last = f"; {self.refused}" if self.refused else "; the images are looked for in front of that"
        many = (
            "the inputs of 1 layer follow" if len(self.layers) == 1 else f"inputs of {len(self.layers)} layers follow"
        )
        return [f"B = {size}, layer by layer from the last: {many}, down to '{self.layers[-1]}'{last} (peeling)"]


@dataclass(frozen=True)
class Standins:
    """Samples to simulate batches of: `features` (M, I) that the last layer takes in, and `logits` (M, C).

    `labels` (M,): the classes of auxiliary samples; None where inputs are made up and have none.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor | None = None


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
    found: list[Answer] = field(default_factory=list)
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

    @property
    def no_label(self) -> str:
        """Why labels cannot be solved for from the last layer, "" where they can."""
        if self.subject.sequence:
            return "there is a target at every place of a sequence"
        if reason := self.leak.withheld("weight"):
            return reason
        if not self.plain:
            return f"it is made for the cross-entropy; this is {type(self.loss).__name__}"
        if self.leak.local_steps > 1:
            return f"the update is the sum of {self.leak.local_steps} gradients along a path"
        return ""

    def with_one_factor(self, answer: Answer) -> Answer:
        """Return an answer that holds if all samples were rescaled by one factor.

        It loses its certificate where each sample has a factor of its own.
        """
        if not self.apart or not answer.certain:
            return answer
        return replace(answer, status="partial", reason="as if one factor were left on all samples; each has its own")

    def without_rounding(self, answer: Answer) -> Answer:
        """Return an answer that took nothing for rounded; it loses its certificate where the client rounds coarsely."""
        if not self.coarse or not answer.certain:
            return answer
        return replace(answer, status="partial", reason=f"as if nothing were rounded to {self.precision}")

    def rescaled(self) -> Leak:
        """Return the leak at its own scale, which an attack before this one has found where a defence rescales."""
        if self.scale is not None:
            return self.leak
        known = [one.scale for one in self.found if one.scale and one.status in ("unique", "partial")]
        if not known:
            raise InputError("the defence rescales the gradient, and no attack before has found by how much")
        own = {name: value / known[0] for name, value in self.leak.gradients.items()}
        return replace(self.leak, gradients=own)

    def labels(self) -> Tensor:
        """Return the labels (B, C) that attacks before this one have found, the most certain ones first."""
        whole = [one for one in self.found if one.labels is not None and not one.failed]
        whole.sort(key=lambda one: one.status != "unique")
        for one in whole:
            assert one.labels is not None
            if one.labels.isfinite().all():
                return one.labels
        for one in self.found:
            if one.counts is not None and int(one.counts.sum()) == self.size:
                classes = torch.arange(len(one.counts)).repeat_interleave(one.counts.cpu())
                return F.one_hot(classes, len(one.counts)).to(self.leak.weight)
        raise InputError("no attack before this one has found labels to match with")


def made_up(leak: Leak, inputs_of: Kind, shape: tuple[int, ...], count: int) -> Iterator[Tensor]:
    """Give made-up inputs (count, …), from the kind that most networks take to the kind that nearly all take."""
    generator = torch.Generator().manual_seed(0)
    if inputs_of == "tokens":
        # Each column of a table may have an embedding of its own: a category that all of them have.
        sizes = [one.num_embeddings for one in leak.model.modules() if isinstance(one, nn.Embedding)]
        for most in dict.fromkeys([*sizes[:1], min(sizes, default=2), 1]):
            yield torch.randint(most, (count, *shape), generator=generator).to(leak.weight.device)
        return
    yield torch.randn(count, *shape, generator=generator).to(leak.weight)
    yield (2 * torch.rand(count, *shape, generator=generator) - 1).to(leak.weight)


@dataclass(frozen=True)
class Attack:
    """An attack of the book, as an audit runs it.

    `page`: the page that shows it; `finds`: what it is after, as reports name it; `needs`: what it takes, in words;
    `refused`: why it cannot be tried on a case, "" if it can; `run`: the attack; `remedy`: what stops it in principle;
    `memory`: the bytes it takes; `searches`: whether it takes all the time that it is given; `stretch`: the seconds
    that its longest operation takes, in which nothing stops it.
    """

    name: str
    page: str
    finds: tuple[str, ...]
    needs: str
    refused: Callable[[Case], str]
    run: Callable[[Case], Answer]
    remedy: str
    memory: Callable[[Case], int] = lambda case: 4 * DOUBLE * case.subject.classes * case.subject.features
    searches: bool = False
    stretch: Callable[[Case], float] = lambda case: 0.0


# What stops the attacks that solve equations, and those that count.
NOISE = "noise on every entry, or batches of more samples than there are equations"
LABELS = "batches in which classes repeat, noise, or sending no gradient of the last layer"
