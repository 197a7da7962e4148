"""What is audited: what a network, its loss and its inputs are, found out, and what their numbers alone prove."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gradleak.errors import InputError, first_line
from gradleak.images.inversion import chain
from gradleak.labels.priors import PRIORS
from gradleak.leak import Leak, evaluating
from gradleak.losses import CrossEntropy, Loss

Kind = Literal["images", "vectors", "tokens"]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Made-up inputs that the sign of the last layer's features is tried on.
TRIED = 4
# Why a network that raises an error is no chain.
BROKEN = "the network breaks down"


@dataclass(frozen=True)
class Subject:
    """A network as its server knows it.

    `classes` C and `features` I of the last layer `head`; `bias`: whether that has one; `rectified`: whether its
    features are never negative; `chain`: "linear" or "convolutional" where the network is a chain that runs backwards,
    else "" and `chain_reason`; `norms`: its batch norms, and whether they have been `trained`; `embedding`: the name of
    its embedding's weight; `activations`: how many numbers one sample makes on its way; `sequence`: whether there is
    a target at every place.
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
    rectified: bool
    chain: Literal["", "linear", "convolutional"]
    chain_reason: str
    widths: tuple[int, ...]
    norms: int
    trained: bool
    embedding: str
    activations: int
    bytes: int

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was found out, in words."""
        chains = {"linear": "a chain of Linear layers", "convolutional": "a chain of convolutions"}
        norms = f"{self.norms}, {'trained' if self.trained else 'never trained'}" if self.norms else "none"
        return [
            ("network", f"{self.network}, {self.parameters:,} parameters"),
            ("inputs", f"{self.kind}, {' × '.join(map(str, self.input_shape))}"),
            ("last layer", f"'{self.head or 'itself'}', C = {self.classes:,} classes, I = {self.features:,} features"),
            ("its bias", "yes: its gradient is the sum of all errors" if self.bias else "none"),
            ("its features", "never negative" if self.rectified else "of both signs"),
            ("runs backwards", chains[self.chain] if self.chain else f"no: {self.chain_reason}"),
            ("batch norms", norms),
            ("embedding", f"'{self.embedding}'" if self.embedding else "none"),
        ]


def subject_of(leak: Leak, inputs_of: Kind, sequence: bool, *, runs: bool = True) -> Subject:
    """Return what a leak's model is, from the model itself and the shape of its inputs.

    Of a model that cannot be run (`runs`), activations are not counted, and nothing is said of its features' signs.
    """
    model, shape = leak.model, leak.input_shape
    if shape is None:
        raise InputError("the leak does not say what shape one input has: give input_shape")
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    kind, reason, widths = _chain(model, inputs_of, shape) if runs else ("", BROKEN, ())
    norms = [one for one in model.modules() if isinstance(one, NORMS)]
    embeddings = [name for name, one in model.named_modules() if isinstance(one, nn.Embedding)]
    activations, rectified = _tried(leak, inputs_of, shape) if runs else (0, False)
    return Subject(
        network=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        kind=inputs_of,
        input_shape=shape,
        sequence=sequence,
        head=leak.head,
        classes=leak.weight.shape[0],
        features=leak.weight.shape[1],
        bias=leak.bias is not None,
        rectified=rectified,
        chain=kind,
        chain_reason=reason,
        widths=widths,
        norms=len(norms),
        trained=any(int(one.num_batches_tracked or 0) > 0 for one in norms),
        embedding=f"{embeddings[0]}.weight".lstrip(".") if embeddings else "",
        activations=activations,
        bytes=sum(sizes),
    )


def _chain(
    model: nn.Module, inputs_of: Kind, shape: tuple[int, ...]
) -> tuple[Literal["", "linear", "convolutional"], str, tuple[int, ...]]:
    """Return what chain a network is, or why it is none; and how many outputs each of its layers has."""
    if inputs_of == "tokens":
        return "", "tokens are looked up, not multiplied", ()
    if any(isinstance(one, nn.Conv2d) for one in model.modules()):
        kinds: tuple[type[nn.Module], ...] = (nn.Conv2d, nn.Linear)
        kind: Literal["", "linear", "convolutional"] = "convolutional"
    else:
        kinds, kind = (nn.Linear,), "linear"
    try:
        with evaluating(model):
            found = chain.layers(model, kinds, shape if kind == "convolutional" else (math.prod(shape),))
    except (InputError, RuntimeError) as error:
        return "", first_line(error), ()
    return kind, "", tuple(len(layer.module.weight) for layer in found)


def _tried(leak: Leak, inputs_of: Kind, shape: tuple[int, ...]) -> tuple[int, bool]:
    """Return how many numbers a made-up sample makes, and whether none of the last layer's features is negative."""
    model, generator = leak.model, torch.Generator().manual_seed(0)
    like = leak.weight
    if inputs_of == "tokens":
        embedding = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
        inputs = torch.randint(embedding.num_embeddings if embedding else 2, (TRIED, *shape), generator=generator)
        inputs = inputs.to(like.device)
    else:
        inputs = torch.randn(TRIED, *shape, generator=generator).to(like)
    counted, least = [0], [math.inf]

    def count(module: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        counted[0] += output.numel() if torch.is_tensor(output) else 0
        if module is head:
            least[0] = min(least[0], float(args[0].min()))

    head = model.get_submodule(leak.head)
    hooks = [one.register_forward_hook(count) for one in model.modules() if next(one.children(), None) is None]
    try:
        with torch.no_grad(), evaluating(model):
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return counted[0] // TRIED, least[0] >= 0


def proofs(subject: Subject, batch_size: int, prior: str, loss: Loss) -> list[str]:
    """Return what numbers alone prove of a batch of this size, before anything is run."""
    classes, features, size = subject.classes, subject.features, batch_size
    if subject.sequence:
        return [
            f"B = {size}: the gradient of the last layer is a sum over all places; as long as fewer than "
            f"{min(classes, features)} of them have a target, their words are told apart (RLG)"
        ]
    told = []
    free = PRIORS[prior].free - 1 + (PRIORS[prior].rest == "equal")
    spare = classes - 1 - size - (size + free)
    if loss != CrossEntropy():
        told.append(f"B = {size}: another loss than cross-entropy: nothing is proved of labels")
    elif size == 1 and subject.bias:
        told.append("B = 1 and a bias: the bias's gradient is the error p − y, and label and feature follow from it")
    elif size == 1 and PRIORS[prior].equations(classes) >= 2:
        told.append(
            f"B = 1 of C = {classes}: one scalar is unknown, and {PRIORS[prior].equations(classes)} equations say what "
            "it is: label and feature are determined"
        )
    elif spare >= 0 and size <= features:
        told.append(
            f"B = {size} of C = {classes}: labels and features are determined, sample by sample (equations to spare: "
            f"{spare})"
        )
    elif size <= min(classes - 2, features):
        told.append(
            f"B = {size} of C = {classes}: labels and features are determined all together (equations to spare: "
            f"{size * (classes - 2 - size)})"
        )
    else:
        told.append(
            f"B = {size} of C = {classes}: the last layer has fewer equations than unknowns; its classes can be "
            "estimated, its labels and features do not follow from it"
        )
    if size < min(classes, features):
        told.append(f"B = {size} is less than C and I: which classes are in the batch is told (RLG)")
    if subject.chain == "linear":
        least = min(subject.widths)
        holds = "every layer's inputs follow from the one above" if size <= least else "inputs come out mixed"
        told.append(f"B = {size}, and {least} outputs in the narrowest layer: {holds}")
    if subject.chain == "convolutional" and size > 1:
        told.append(f"B = {size}: this chain of convolutions is run backwards for single samples alone")
    return told
