"""Describe what an attack is run on, a leak and the public facts about its client, and how attacks are declared."""

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
from gradleak.leak import Leak, Mode
from gradleak.losses import CrossEntropy, Loss
from gradleak.precision import coarser

Kind = Literal["images", "vectors", "tokens"]
# Bytes of a float64 number.
DOUBLE = 8
# Side of the matrix whose eigenvectors measure the machine's speed; the time grows with the cube of the side.
SIDE = 256
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Subject:
    """A network as its server knows it.

    Attributes:
        network: The name of its class.
        parameters: The number of its parameters.
        kind: The kind of its inputs.
        input_shape: The shape of one input.
        sequence: Whether there is a target at every position of a sequence.
        texts: Whether the network is a causal one that classifies texts by the output at their last token.
        head: The name of the last Linear layer.
        classes: The number of classes C.
        features: The number of inputs I of the last layer.
        bias: Whether the last layer has a bias.
        bias_sent: Whether the gradient of this bias is in the update.
        rectified: Whether the features are never negative.
        chain: "linear" or "convolutional" if the network is a chain that can be inverted layer by layer, else "".
        chain_reason: Why it is not such a chain.
        layers: The number of outputs of each layer of the chain, by name.
        norms: The number of its batch norms.
        statistics: What the statistics of these are.
        embedding: The name of its embedding's weight.
        activations: How many numbers the network computes for one sample.
        bytes: The memory that its parameters take.
    """

    network: str
    parameters: int
    kind: Kind
    input_shape: tuple[int, ...]
    sequence: bool
    texts: bool
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
    statistics: Literal["trained", "never trained", "of each batch"]
    embedding: str
    activations: int
    bytes: int

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The facts about the network, in words."""
        chains = {"linear": "a chain of Linear layers", "convolutional": "a chain of convolutions"}
        bias = "yes: its gradient is the sum of all errors" if self.bias_sent else "yes, without a gradient of its own"
        own = "with the statistics of each batch" if self.statistics == "of each batch" else self.statistics
        return [
            ("network", f"{self.network}, {self.parameters:,} parameters"),
            ("inputs", f"{self.kind}, {' × '.join(map(str, self.input_shape))}"),
            ("last layer", f"'{self.head or 'itself'}', C = {self.classes:,} classes, I = {self.features:,} features"),
            ("its bias", bias if self.bias else "none"),
            ("its features", "never negative" if self.rectified else "of both signs"),
            ("runs backwards", chains[self.chain] if self.chain else f"no: {self.chain_reason}"),
            ("batch norms", f"{self.norms}, {own}" if self.norms else "none"),
            ("embedding", f"'{self.embedding}'" if self.embedding else "none"),
        ]


@dataclass(frozen=True)
class Reach:
    """The layers of a network whose inputs can be computed from a batch's gradient.

    Attributes:
        layers: Their names, from the last layer on.
        refused: Why no image follows from these inputs, "" if one may.
        bytes: The memory that this takes.
        opening: The side of the matrix whose eigenvectors are needed for the last map.
    """

    layers: tuple[str, ...]
    refused: str
    bytes: int = 0
    opening: int = 0

    @property
    def seconds(self) -> float:
        """The estimated time (s) to compute these eigenvectors on this machine under its present load."""
        if self.opening <= SIDE:
            return 0.0
        matrix, started = torch.eye(SIDE, dtype=torch.float64) + 1 / SIDE, time.monotonic()
        torch.linalg.eigh(matrix)
        return (time.monotonic() - started) * (self.opening / SIDE) ** 3

    def proved_of(self, leak: Leak) -> list[str]:
        """Return what this proves about a leak whose last layer reveals labels and features."""
        size = leak.batch_size
        parameters = [f"{name}.weight" for names in self.layers for name in names.split("+")]
        if not self.layers or any(leak.withheld(name) for name in parameters):
            return []
        ending = f"; {self.refused}" if self.refused else "; the images are looked for in front of that"
        extent = (
            "the inputs of 1 layer follow" if len(self.layers) == 1 else f"inputs of {len(self.layers)} layers follow"
        )
        return [f"B = {size}, layer by layer from the last: {extent}, down to '{self.layers[-1]}'{ending} (peeling)"]


@dataclass(frozen=True)
class Standins:
    """Samples for simulated batches.

    Attributes:
        features: The last layer's inputs (M, I).
        logits: (M, C).
        labels: The classes of auxiliary samples (M,); None for made-up inputs, which have none.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor | None = None


@dataclass
class Case:
    """A leak with all that is public about its client.

    Attributes:
        leak: The gradient that the client sent.
        subject: The network.
        defense: The client's defence, as text. Attacks know the noise that it adds and whether it rescales the
            gradient.
        prior: The shape of the labels.
        loss: The client's loss.
        seed: Seed of all random numbers.
        steps: Steps of a search for inputs.
        reach: The layers whose inputs can be computed.
        precision: The precision in which the client computes, for attacks that take it into account.
        mode: The mode in which the client runs the model.
        auxiliary: Samples of the same kind and their classes, if the attacker has some.
        marks: The tokens that mark the start and the end of a sentence.
        box: The range of pixel values.
        found: The answers of the attacks that were run before.
        simulated: Samples for simulated batches after their forward pass, shared by all cases of an audit.
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
    mode: Mode = "eval"
    auxiliary: tuple[Tensor, Tensor] | None = None
    marks: tuple[int, int] | None = None
    box: tuple[float, float] | None = None
    found: list[Answer] = field(default_factory=list)
    simulated: list[Standins] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of samples in one step."""
        return self.leak.batch_size

    @property
    def known(self) -> bool:
        """Whether an earlier attack guarantees all inputs."""
        return any(answer.certified >= self.size * self.leak.local_steps for answer in self.found)

    @property
    def noise(self) -> float | None:
        """The standard deviation of the defence's noise on every entry; None if it has to be estimated."""
        name, _, level = self.defense.partition("/")
        deviations = {
            "none": lambda: 0.0, "clip": lambda: 0.0, "clip-share": lambda: 0.0, "gaussian": lambda: float(level),
            "laplace": lambda: float(level), "gaussian-variance": lambda: math.sqrt(float(level)),
            "dp": lambda: math.sqrt(DP_VARIANCE), "dp-sgd": lambda: float(level),
        }  # fmt: skip
        return deviations[name]() if name in deviations else None

    @property
    def scale(self) -> float | None:
        """1, or None if the defence rescales the gradient by an unknown factor."""
        return None if self.defense.partition("/")[0] in ("clip", "clip-share", "dp", "dp-sgd") else 1.0

    @property
    def apart(self) -> bool:
        """Whether the defence rescales each of several samples by a different factor."""
        return self.size > 1 and self.defense.partition("/")[0] == "dp-sgd"

    @property
    def rounds(self) -> bool:
        """Whether the client computes in a coarser precision than float32, at least in some layers."""
        return self.precision not in ("float32", "float64")

    @property
    def coarse(self) -> bool:
        """Whether the products in the client's Linear layers are known to be coarser than its gradients' type."""
        return coarser(self.precision, self.leak.weight.dtype)

    @property
    def plain(self) -> bool:
        """Whether the loss is the cross-entropy that most attacks assume."""
        return self.loss == CrossEntropy()

    @property
    def no_label(self) -> str:
        """Why labels cannot be solved for from the last layer, "" if they can."""
        if self.subject.sequence:
            return "there is a target at every place of a sequence"
        if reason := self.leak.withheld("weight"):
            return reason
        if not self.plain:
            return f"it is made for the cross-entropy; this is {type(self.loss).__name__}"
        if self.leak.local_steps > 1:
            return f"the update is the sum of {self.leak.local_steps} gradients along a path"
        return ""

    @property
    def unsent(self) -> str:
        """Why the update lacks the gradient of some layer of the chain, "" if it has all of them."""
        reasons = (self.leak.withheld(f"{name}.weight".lstrip(".")) for name in self.subject.layers)
        return next(filter(None, reasons), "")

    def with_one_factor(self, answer: Answer) -> Answer:
        """Return an answer that assumes the same scale for all samples.

        The answer loses its certificate if each sample has a different scale.
        """
        if not self.apart or not answer.certain:
            return answer
        return replace(answer, status="partial", reason="as if one factor were left on all samples; each has its own")

    def without_rounding(self, answer: Answer) -> Answer:
        """Return an answer that ignores rounding; it loses its certificate if the client rounds coarsely."""
        if not self.coarse or not answer.certain:
            return answer
        return replace(answer, status="partial", reason=f"as if nothing were rounded to {self.precision}")

    def as_run(self, answer: Answer) -> Answer:
        """Return an answer without its guarantee if the client's dropout changed the inputs before the first layer."""
        if self.mode == "eval" or not answer.in_front or not answer.certified:
            return answer
        return replace(answer, status="partial", guaranteed=None)

    def rescaled(self) -> Leak:
        """Return the leak at its original scale, which an earlier attack has recovered if a defence rescales."""
        if self.scale is not None:
            return self.leak
        scales = [answer.scale for answer in self.found if answer.scale and answer.status in ("unique", "partial")]
        if not scales:
            raise InputError("the defence rescales the gradient, and no attack before has found by how much")
        gradients = {name: value / scales[0] for name, value in self.leak.gradients.items()}
        return replace(self.leak, gradients=gradients)

    def labels(self) -> Tensor:
        """Return the labels (B, C) that earlier attacks have recovered, preferring certain ones."""
        labelled = [answer for answer in self.found if answer.labels is not None and not answer.failed]
        labelled.sort(key=lambda answer: answer.status != "unique")
        for answer in labelled:
            assert answer.labels is not None
            if answer.labels.isfinite().all():
                return answer.labels
        for answer in self.found:
            if answer.counts is not None and int(answer.counts.sum()) == self.size:
                classes = torch.arange(len(answer.counts)).repeat_interleave(answer.counts.cpu())
                return F.one_hot(classes, len(answer.counts)).to(self.leak.weight)
        raise InputError("no attack before this one has found labels to match with")


def made_up(leak: Leak, inputs_of: Kind, shape: tuple[int, ...], count: int) -> Iterator[Tensor]:
    """Yield made-up inputs (count, …): first a kind that most networks take, then kinds that nearly all take."""
    generator = torch.Generator().manual_seed(0)
    if inputs_of == "tokens":
        # Each column of a table may have its own embedding, so try categories that all embeddings have.
        sizes = [module.num_embeddings for module in leak.model.modules() if isinstance(module, EMBEDDINGS)]
        for bound in dict.fromkeys([*sizes[:1], min(sizes, default=2), 1]):
            yield torch.randint(bound, (count, *shape), generator=generator).to(leak.weight.device)
        return
    yield torch.randn(count, *shape, generator=generator).to(leak.weight)
    yield (2 * torch.rand(count, *shape, generator=generator) - 1).to(leak.weight)


@dataclass(frozen=True)
class Attack:
    """An attack of the book, as an audit runs it.

    Attributes:
        name: The attack's name.
        page: The page of the book that shows it.
        finds: What the attack recovers, in the words of the reports.
        needs: What it needs, in words.
        refused: Returns why the attack cannot be tried on a case, "" if it can.
        run: Runs the attack.
        remedy: What prevents the attack in principle.
        memory: Returns the bytes that the attack takes.
        searches: Whether the attack uses all the time that it is given.
        stretch: Returns the time (s) of the attack's longest operation that cannot be interrupted.
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


# What prevents the attacks that solve equations, and those that count.
NOISE = "noise on every entry, or batches with too many samples for the number of equations"
LABELS = "batches in which classes repeat; noise; not sending the last layer's gradient"
