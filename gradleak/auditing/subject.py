"""Find the facts about a network and its inputs, and what counts of equations and unknowns prove."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from gradleak.cases import EMBEDDINGS, Kind, Reach, Subject, made_up
from gradleak.errors import GradleakError, InputError, first_line
from gradleak.images.inversion import chain
from gradleak.labels.priors import PRIORS
from gradleak.leak import Leak, evaluating, hooked, is_causal
from gradleak.losses import CrossEntropy, Loss
from gradleak.spans import classes_span

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Made-up inputs for which the sign of the last layer's features is checked.
TRIED = 4
# Singular values below this share of the largest count as zero.
NEGLIGIBLE = 1e-7


def subject_of(leak: Leak, inputs_of: Kind, sequence: bool) -> Subject:
    """Return the facts about a leak's model, from its modules and a run on made-up inputs.

    Args:
        leak: The leak, with the shape of an input.
        inputs_of: The kind of the inputs.
        sequence: Whether there is a target at every position.
    """
    model, shape = leak.model, leak.input_shape
    if shape is None:
        raise InputError("the leak does not say what shape one input has: give input_shape")
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    kind, reason, layers = _chain(model, inputs_of, shape)
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    embeddings = [name for name, module in model.named_modules() if isinstance(module, EMBEDDINGS)]
    activations, rectified = _tried(leak, inputs_of, shape)
    return Subject(
        network=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        kind=inputs_of,
        input_shape=shape,
        sequence=sequence,
        texts=inputs_of == "tokens" and not sequence and _classifies_texts(leak, shape),
        head=leak.head,
        classes=leak.weight.shape[0],
        features=leak.weight.shape[1],
        bias=leak.bias is not None,
        bias_sent=leak.bias_gradient is not None,
        rectified=rectified,
        chain=kind,
        chain_reason=reason,
        layers=layers,
        norms=len(norms),
        statistics=_statistics(norms),
        embedding=f"{embeddings[0]}.weight".lstrip(".") if embeddings else "",
        activations=activations,
        bytes=sum(sizes),
    )


def _statistics(norms: Sequence[nn.Module]) -> Literal["trained", "never trained", "of each batch"]:
    """Return which statistics batch norms use."""
    if any(module.running_mean is None for module in norms):
        return "of each batch"
    return "trained" if any(int(module.get_buffer("num_batches_tracked")) > 0 for module in norms) else "never trained"


def _chain(
    model: nn.Module, inputs_of: Kind, shape: tuple[int, ...]
) -> tuple[Literal["", "linear", "convolutional"], str, dict[str, int]]:
    """Return the kind of chain that a network is, or why it is not a chain, and each layer's number of outputs."""
    if inputs_of == "tokens":
        return "", "tokens are looked up, not multiplied", {}
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        kinds: tuple[type[nn.Module], ...] = (nn.Conv2d, nn.Linear)
        kind: Literal["", "linear", "convolutional"] = "convolutional"
    else:
        kinds, kind = (nn.Linear,), "linear"
    try:
        with evaluating(model):
            layers = chain.layers(model, kinds, shape)
    except (Exception, SystemExit) as error:  # from the code of the user's network
        return "", first_line(error), {}
    return kind, "", {layer.name: len(layer.module.weight) for layer in layers}


def _classifies_texts(leak: Leak, shape: tuple[int, ...]) -> bool:
    """Return whether the last layer's outputs are those of a causal network, of which the logits are one."""
    with contextlib.suppress(GradleakError):
        return is_causal(leak.model, torch.ones(1, *shape, dtype=torch.long, device=leak.weight.device), leak.head)
    return False


def _tried(leak: Leak, inputs_of: Kind, shape: tuple[int, ...]) -> tuple[int, bool]:
    """Return the number of activations of a made-up sample, and whether no feature of the last layer is negative.

    Normally distributed numbers are tried first. The next ones truncate to 0, for networks that use some inputs as
    categories. The result is (0, False) if the network accepts none of them.
    """
    model = leak.model
    counted, least = [0], [math.inf]

    def count(module: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        counted[0] += output.numel() if torch.is_tensor(output) else 0
        if module is head:
            least[0] = min(least[0], float(args[0].min()))

    head = model.get_submodule(leak.head)
    leaves = [module for module in model.modules() if next(module.children(), None) is None]
    with hooked(leaf.register_forward_hook(count) for leaf in leaves):
        for inputs in made_up(leak, inputs_of, shape, TRIED):
            counted[0], least[0] = 0, math.inf
            with contextlib.suppress(Exception, SystemExit), torch.no_grad(), evaluating(model):
                model(inputs)
                return counted[0] // TRIED, least[0] >= 0
    return 0, False


def unproved(leak: Leak, subject: Subject, loss: Loss) -> str:
    """Return the assumption of the proofs that does not hold for an update, "" if all hold."""
    if loss != CrossEntropy():
        return "the loss is another than cross-entropy"
    if leak.local_steps > 1:
        return f"the update is the sum of the gradients of {leak.local_steps} local steps, each at other weights"
    if reason := leak.withheld("weight"):
        return reason
    if subject.sequence:
        return ""
    return (leak.withheld("bias") if subject.bias and leak.batch_size > 1 else "") or _degenerate(leak)


def proofs(leak: Leak, subject: Subject, reach: Reach, prior: str, loss: Loss) -> list[str]:
    """Return what counts of equations and unknowns prove about this update, if the proofs' assumptions hold."""
    classes, features, size = subject.classes, subject.features, leak.batch_size
    if reason := unproved(leak, subject, loss):
        return [f"B = {size}: nothing is proved of labels, features and inputs: {reason}"]
    if subject.sequence:
        return [
            f"B = {size}: the gradient of the last layer is a sum over all places; as long as fewer than "
            f"{min(classes, features)} of them have a target, the attack RLG finds their words"
        ]
    lines = []
    free = PRIORS[prior].free - 1 + (PRIORS[prior].rest == "equal")
    spare = classes - 1 - size - (size + free)
    if size == 1 and subject.bias_sent:
        lines.append("B = 1 and a bias: the bias's gradient is the error p − y, and label and feature follow from it")
    elif size == 1 and PRIORS[prior].equations(classes) >= 2:
        lines.append(
            f"B = 1 of C = {classes}: one scalar is unknown, and {PRIORS[prior].equations(classes)} equations say what "
            "it is: label and feature are determined"
        )
    elif spare >= 0 and size <= features:
        lines.append(
            f"B = {size} of C = {classes}: labels and features are determined, sample by sample (equations to spare: "
            f"{spare})"
        )
    elif size <= min(classes - 2, features):
        lines.append(
            f"B = {size} of C = {classes}: labels and features are determined all together (equations to spare: "
            f"{size * (classes - 2 - size)})"
        )
    else:
        lines.append(
            f"B = {size} of C = {classes}: the last layer has fewer equations than unknowns; its classes can be "
            "estimated, its labels and features do not follow from it"
        )
    if size < min(classes, features):
        lines.append(f"B = {size} is less than C and I: the attack RLG finds out which classes are in the batch")
    return [*lines, *_backwards(leak, subject), *reach.proved_of(leak)]


def _backwards(leak: Leak, subject: Subject) -> list[str]:
    """Return what is proved about the inputs of a chain of layers."""
    size = leak.batch_size
    if subject.chain == "convolutional" and size > 1:
        return [f"B = {size}: this chain of convolutions is run backwards for single samples alone"]
    if subject.chain != "linear":
        return []
    for name in subject.layers:
        weight = f"{name}.weight".lstrip(".")
        if reason := leak.withheld(weight):
            return [f"B = {size}: nothing is proved of the inputs: {reason}"]
        rank = classes_span(leak.gradients[weight]).rank
        if rank < size <= min(subject.layers.values()):
            return [f"B = {size}: nothing is proved of the inputs: the gradient of '{weight}' has rank {rank}"]
    least = min(subject.layers.values())
    holds = "every layer's inputs follow from the one above" if size <= least else "inputs come out mixed"
    return [f"B = {size}, and {least} outputs in the narrowest layer: {holds}"]


def _degenerate(leak: Leak) -> str:
    """Return why the last layer or its gradient is rank-deficient, so that counts prove nothing; "" if neither is."""
    weight, size = leak.weight.double(), leak.batch_size
    # The softmax depends only on differences of logits.
    weight = weight - weight.mean(dim=0)
    classes, features = weight.shape
    values = torch.linalg.eigvalsh(weight.T @ weight if features <= classes else weight @ weight.T).clamp(min=0).sqrt()
    rank, full = int((values > NEGLIGIBLE * values.max()).sum()), min(classes - 1, features)
    if rank < full:
        return f"the last layer's weight has rank {rank}, and its shape allows {full}"
    rank = classes_span(leak.weight_gradient).rank
    if rank < size <= full:
        return f"the last layer's gradient has rank {rank}: not every sample shows, or some depend on others"
    return ""
