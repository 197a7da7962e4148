"""Measure the cost of a defence and a precision: the gradient's direction, and the loss after one step along it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call

from gradleak import defenses
from gradleak.auditing.findings import Cost
from gradleak.auditing.private import Private
from gradleak.augment import as_probabilities
from gradleak.leak import Gradients, Leak, evaluating
from gradleak.losses import PADDING, Loss

# The value that replaces a loss that is not finite.
ENDLESS = 1e30


@dataclass(frozen=True)
class Undefended:
    """A batch's leak without a defence, with which costs are compared.

    Attributes:
        leak: The leak, in the precision of the parameters.
        precision: This precision.
        batch: The private batch.
        loss: The client's loss.
        rate: The learning rate of the step of gradient descent.
        before: The loss before the step.
        after: The loss after the step.
    """

    leak: Leak
    precision: str
    batch: Private
    loss: Loss
    rate: float
    before: float
    after: float

    def cost(self, name: str, precision: str, sent: Leak) -> Cost:
        """Return the cost of a defence and a precision with which the client sends `sent`."""
        cosine = defenses.utility(self.leak.gradients, sent.gradients)
        whole = (name, precision) == ("none", self.precision)
        after = self.after if whole else stepped(self.leak.model, self.batch, self.loss, sent, self.rate)
        return Cost(
            defense=name,
            batch_size=len(self.batch.inputs),
            precision=precision,
            cosine=cosine if math.isfinite(cosine) else None,
            loss_before=self.before,
            loss_after=after,
            loss_after_undefended=self.after,
        )


def undefended(leak: Leak, precision: str, batch: Private, loss: Loss, rate: float) -> Undefended:
    """Return the leak without a defence, and its losses before and after a step."""
    before, after = (stepped(leak.model, batch, loss, step, rate) for step in (None, leak))
    return Undefended(leak, precision, batch, loss, rate, before, after)


def stepped(model: nn.Module, batch: Private, loss: Loss, step: Leak | None, rate: float) -> float:
    """Return a batch's mean loss after a step along a gradient, or without a step if `step` is None."""
    parameters: Gradients = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if step is not None:
        parameters |= {name: parameters[name] - rate * value for name, value in step.gradients.items()}
    with torch.no_grad(), evaluating(model):
        logits = functional_call(model, parameters, (batch.inputs,))
    targets = batch.targets
    if logits.ndim == 3:
        kept = targets != PADDING
        logits, targets = logits[kept], targets[kept]
    rows = as_probabilities(targets, logits.shape[-1], dtype=logits.dtype, device=logits.device)
    value = float(loss(logits, rows).mean())
    return value if math.isfinite(value) else ENDLESS
