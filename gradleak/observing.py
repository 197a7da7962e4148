"""What a server sees of sequences, one target a place, beside what it sees of single samples (`gradleak.leak`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradleak import leak
from gradleak.augment import as_probabilities
from gradleak.errors import InputError
from gradleak.leak import Defense, Leak, evaluating
from gradleak.losses import PADDING, CrossEntropy, Loss


def observe(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    defense: Defense | None = None,
    head: str | None = None,
    loss: Loss | None = None,
    local_steps: int = 1,
    rate: float = 0.1,
) -> Leak:
    """Let a client compute its gradients on a private batch, and return what the server receives.

    The mean of the `loss`, soft cross-entropy unless another is given. The model is run in eval mode (batch norm uses
    its running statistics, dropout is off), whatever mode it was in, and is handed back in that mode.
    `targets`: class indices (B,) or soft labels (B, C). Where logits are (B, T, C), class indices (B, T), −100 for a
    place without a target; the mean is over all others, and there are no local steps.
    `defense` maps the gradients before they are sent.
    `head` names the last Linear layer; it is found by itself otherwise.
    `local_steps`: the batch is cut into so many, the client takes a step of gradient descent with `rate` on each, and
    the gradients are their sum: a federated average's update, but for the factor −rate.
    """
    if _indices(inputs) or _indices(targets):
        found, logits = _outputs(model, inputs, head)
        if logits.ndim == 3:
            if local_steps != 1:
                raise InputError("local steps are taken on batches of single samples, not of sequences")
            sent = _gradients(model, logits, targets, loss or CrossEntropy())
            return Leak(model, defense(sent) if defense else sent, found, len(inputs), tuple(inputs.shape[1:]))
    return leak.observe(
        model, inputs, targets, defense=defense, head=head, loss=loss, local_steps=local_steps, rate=rate
    )


def _indices(values: Any) -> bool:
    """Whether these are whole numbers (B, T), tokens or the classes of places."""
    return torch.is_tensor(values) and values.ndim == 2 and not values.is_floating_point()


def _gradients(model: nn.Module, logits: Tensor, targets: Tensor, loss: Loss) -> leak.Gradients:
    """Return the gradients of the mean loss over all places that have a target."""
    if not _indices(targets) or targets.shape != logits.shape[:2]:
        shape = tuple(targets.shape) if torch.is_tensor(targets) else type(targets).__name__
        raise InputError(f"targets must be class indices {tuple(logits.shape[:2])}, {PADDING} for none; got {shape}")
    kept = targets != PADDING
    if not kept.any():
        raise InputError(f"no place of the sequences has a target: all are {PADDING}")
    logits = logits[kept]
    labels = as_probabilities(targets[kept], logits.shape[-1], dtype=logits.dtype, device=logits.device)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    values = torch.autograd.grad(loss(logits, labels).mean(), list(named.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), values, strict=True)}


def _outputs(model: nn.Module, inputs: Tensor, head: str | None) -> tuple[str, Tensor]:
    """Run the model in eval mode; return the name of the Linear layer whose output is the model's, and that output.

    Logits that are not of sequences are returned as they are: what is wrong with them is said elsewhere.
    """
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if head is not None:
        if head not in linears:
            raise InputError(f"the model has no Linear layer named '{head}'; it has {', '.join(linears) or 'none'}")
        linears = {head: linears[head]}
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, args, output: seen.__setitem__(name, output)

    hooks = [layer.register_forward_hook(watch(name)) for name, layer in linears.items()]
    try:
        with evaluating(model):
            logits: Tensor = model(inputs)
    except (RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{type(model).__name__} does not take inputs of shape {tuple(inputs.shape)}: {reason}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    for name, output in seen.items():
        # Known by what it does, not by where it is declared.
        if output.shape == logits.shape and torch.equal(output, logits):
            return name, logits
    if logits.ndim == 3:
        raise InputError(
            f"{type(model).__name__} does not end in a Linear layer ({', '.join(linears) or 'it has none'}): "
            "the attacks here read the gradient of a final Linear layer whose outputs are the logits"
        )
    return "", logits
