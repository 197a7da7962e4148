"""Measure the cost of a defence and a precision: the gradient's direction, and the loss after one step along it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from gradleak import defenses
from gradleak.auditing.findings import Cost
from gradleak.auditing.measuring import ENDLESS
from gradleak.auditing.private import Private
from gradleak.augment import as_probabilities
from gradleak.calling import called
from gradleak.cases import Case
from gradleak.leak import Gradients, Leak, arguments_of, evaluating
from gradleak.losses import PADDING, Loss


def costs_of(
    leak: Leak, precision: str, batch: Private, loss: Loss, rate: float, cases: Iterable[Case]
) -> Iterator[Cost]:
    """Yield the costs of the defences and precisions with which a client sends a batch's gradient.

    Args:
        leak: The batch's leak without a defence, in the precision of the parameters.
        precision: This precision.
        batch: The private batch.
        loss: The client's loss.
        rate: The learning rate of the step of gradient descent.
        cases: The batch's leaks with their defences and precisions.
    """
    before, undefended = (_stepped(leak.model, batch, loss, step, rate) for step in (None, leak))
    for case in cases:
        cosine = defenses.utility(leak.gradients, case.leak.gradients)
        same = (case.defense, case.precision) == ("none", precision)
        yield Cost(
            defense=case.defense,
            batch_size=case.size,
            precision=case.precision,
            mode=case.mode,
            cosine=cosine if math.isfinite(cosine) else None,
            loss_before=before,
            loss_after=undefended if same else _stepped(leak.model, batch, loss, case.leak, rate),
            loss_after_undefended=undefended,
        )


def _stepped(model: nn.Module, batch: Private, loss: Loss, step: Leak | None, rate: float) -> float:
    """Return a batch's mean loss after a step along a gradient, or without a step if `step` is None."""
    parameters: Gradients = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if step is not None:
        parameters |= {name: parameters[name] - rate * value for name, value in step.gradients.items()}
    with torch.no_grad(), evaluating(model):
        logits = called(model, parameters, *arguments_of(batch.inputs))
    targets = batch.targets
    if logits.ndim == 3:
        kept = targets != PADDING
        logits, targets = logits[kept], targets[kept]
    rows = as_probabilities(targets, logits.shape[-1], dtype=logits.dtype, device=logits.device)
    value = float(loss(logits, rows).mean())
    return value if math.isfinite(value) else ENDLESS
