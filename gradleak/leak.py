"""What the server sees: the model it sent out and the gradients that came back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.augment import as_probabilities
from gradleak.errors import InputError

Gradients = dict[str, Tensor]
Defense = Callable[[Gradients], Gradients]


@dataclass(frozen=True)
class Leak:
    """One client's upload: the gradients of the mean cross-entropy over its private batch.

    `head` is the name of the last Linear layer. `batch_size` and the shape of one input are public in federated
    learning.
    """

    model: nn.Module
    gradients: Gradients
    head: str
    batch_size: int
    input_shape: tuple[int, ...] | None = None

    def parameter(self, kind: str) -> str:
        """Return the name of the last layer's weight or bias."""
        return f"{self.head}.{kind}" if self.head else kind

    @property
    def weight(self) -> Tensor:
        """The last layer's weight W, (C, I)."""
        return self.model.get_parameter(self.parameter("weight")).detach()

    @property
    def bias(self) -> Tensor | None:
        """The last layer's bias b, (C,), or None where it has none."""
        if self.parameter("bias") not in self.gradients:
            return None
        return self.model.get_parameter(self.parameter("bias")).detach()

    @property
    def weight_gradient(self) -> Tensor:
        """The gradient G of the last layer's weight, (C, I)."""
        return self.gradients[self.parameter("weight")]

    @property
    def bias_gradient(self) -> Tensor | None:
        """The gradient of the last layer's bias, (C,), or None where it has none."""
        return self.gradients.get(self.parameter("bias"))


@dataclass(frozen=True)
class HeadLeaks:
    """The last layer's gradients of N clients with one sample each, and nothing of the layers below.

    `weight_gradients` (N, C, I), `bias_gradients` (N, C) or None; `weight` (C, I), `bias` (C,) or None.
    """

    weight: Tensor
    bias: Tensor | None
    weight_gradients: Tensor
    bias_gradients: Tensor | None


def observe(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    defense: Defense | None = None,
    head: str | None = None,
) -> Leak:
    """Let a client compute its gradients on a private batch, and return what the server receives.

    The loss is the mean soft cross-entropy. The model is run in eval mode (batch norm uses its running
    statistics, dropout is off), whatever mode it was in, and is handed back in that mode.
    `targets`: class indices (B,) or soft labels (B, C). `defense` maps the gradients before they are sent.
    `head` names the last Linear layer; it is found by itself otherwise.
    """
    head, _, _, logits = _forward(model, inputs, head)
    labels = as_probabilities(targets, logits.shape[-1], dtype=logits.dtype, device=logits.device)
    _check_rows(inputs, labels)
    loss = -(labels * F.log_softmax(logits, dim=-1)).sum(dim=-1).mean()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    values = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    gradients = {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), values, strict=True)
    }
    return Leak(model, defense(gradients) if defense else gradients, head, len(inputs), tuple(inputs.shape[1:]))


def observe_heads(
    model: nn.Module, inputs: Tensor, targets: Tensor, *, head: str | None = None, batch_size: int = 250
) -> HeadLeaks:
    """Observe N clients with one sample each at once, for attacks that look at the last layer alone.

    Equal to N calls of `observe` with one sample: in eval mode no sample knows of another, so one forward pass
    serves them all, and a sample's gradient is the outer product of its logits' gradient and its feature.
    """
    _check_inputs(inputs)
    weights, biases = [], []
    for start in range(0, len(inputs), batch_size):
        part = slice(start, start + batch_size)
        with torch.no_grad():
            _, layer, hidden, logits = _forward(model, inputs[part], head)
        logits = logits.requires_grad_()
        labels = as_probabilities(targets[part], logits.shape[-1], dtype=logits.dtype, device=logits.device)
        _check_rows(inputs[part], labels)
        loss = -(labels * F.log_softmax(logits, dim=-1)).sum()
        (delta,) = torch.autograd.grad(loss, [logits])
        weights.append(delta.unsqueeze(2) * hidden.unsqueeze(1))
        biases.append(delta)
    bias = None if layer.bias is None else layer.bias.detach()
    return HeadLeaks(layer.weight.detach(), bias, torch.cat(weights), None if bias is None else torch.cat(biases))


def _forward(model: nn.Module, inputs: Tensor, head: str | None) -> tuple[str, nn.Linear, Tensor, Tensor]:
    """Run the model in eval mode; return its final Linear layer's name and module, that layer's input, the logits."""
    _check_inputs(inputs)
    linears = _linears(model, head)
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, args, output: seen.__setitem__(name, (args[0], output))

    hooks = [layer.register_forward_hook(watch(name)) for name, layer in linears.items()]
    modes = {module: module.training for module in model.modules()}
    try:
        logits = model.eval()(inputs)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{type(model).__name__} does not take inputs of shape {tuple(inputs.shape)}: {reason}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    for name, (hidden, output) in seen.items():
        # The final layer is known by what it does, not by where it is declared: its output is the model's.
        if torch.is_tensor(logits) and output.shape == logits.shape and torch.equal(output, logits):
            if hidden.ndim != 2:
                raise InputError(
                    f"the final Linear layer '{name}' works on inputs of shape {tuple(hidden.shape)}; "
                    "one feature vector a sample, (B, I), is expected"
                )
            return name, linears[name], hidden, logits
    tried = ", ".join(f"'{name}'" for name in linears)
    raise InputError(
        f"{type(model).__name__} does not end in a Linear layer ({tried} do not give its output): "
        "the attacks here read the gradient of a final Linear layer whose outputs are the logits"
    )


def _linears(model: nn.Module, head: str | None) -> dict[str, nn.Linear]:
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not linears:
        raise InputError(
            f"{type(model).__name__} has no Linear layer: the attacks here read the gradient of a final Linear layer"
        )
    if head is None:
        return linears
    if head not in linears:
        raise InputError(f"the model has no Linear layer named '{head}'; it has {', '.join(linears)}")
    return {head: linears[head]}


def _check_inputs(inputs: Tensor) -> None:
    if not torch.is_tensor(inputs) or inputs.ndim < 2 or len(inputs) == 0:
        shape = tuple(inputs.shape) if torch.is_tensor(inputs) else type(inputs).__name__
        raise InputError(f"inputs must be a batch of at least one sample, (B, …); got {shape}")
    if not torch.isfinite(inputs).all():
        raise InputError("inputs hold NaN or infinite values")


def _check_rows(inputs: Tensor, labels: Tensor) -> None:
    if len(inputs) != len(labels):
        raise InputError(f"{len(inputs)} inputs but {len(labels)} targets: there must be one target a sample")
