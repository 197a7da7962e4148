"""Define what the server sees: the model that it sent out and the gradients that a client returned."""

from __future__ import annotations

import contextlib
import math
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import replace_all_batch_norm_modules_
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from gradleak.arguments import check_fields, checked_arguments, described
from gradleak.augment import as_probabilities
from gradleak.calling import client_copy_of, computes, copy_of, keep_hooks, unwrapped, with_values
from gradleak.devices import differentiable, in_chunks
from gradleak.errors import ForeignError, GradleakError, InputError, check_count, first_line, foreign
from gradleak.losses import PADDING, BinaryCrossEntropy, CrossEntropy, Loss, up_to_last
from gradleak.precision import Precision, computing, scaled_gradients

# Why there is no gradient of a weight with a parametrisation.
COMPUTED = "computed from other parameters, as by weight norm or spectral norm, and only these have gradients"
# Why a search fails that runs a network for several batches at once.
NOT_AT_ONCE = "its forward pass draws random numbers, changes tensors in place or branches on their values"
Mode = Literal["eval", "train"]
# Largest change of an output by later tokens that is rounding, relative to the largest output.
CAUSAL = 1e-5
# Largest difference of logits and the mean of several layers' outputs that is rounding, relative to the largest logit.
MEAN = 1e-5
# The outputs of the last layer are its weight times its inputs up to this share, which leaves room for bfloat16.
HEAD = 1e-2
# The most Linear layers that an error lists.
LISTED = 3
# A token t that an attention mask hides is written as HIDDEN − t.
HIDDEN = -1
Gradients = dict[str, Tensor]
Defense = Callable[[Gradients], Gradients]


@dataclass(frozen=True)
class Leak:
    """One client's update: the gradients of the mean loss over the client's private batch.

    All fields are public in federated learning: they are known to the server, which is the attacker.

    Attributes:
        model: The network with the weights that the server sent out.
        gradients: The gradient of each trained parameter, by the parameter's name.
        head: The name of the last Linear layer, "" if the model is that layer.
        batch_size: The number of samples in one local step.
        input_shape: The shape of one input, None if unknown.
        local_steps: The number of local steps whose gradients are summed.
        rate: The learning rate by which the difference of the weights was divided; 0 for a gradient.
        averaged: The names of the last Linear layers, `head` first, if the logits are the mean of their outputs.
    """

    model: nn.Module
    gradients: Gradients
    head: str
    batch_size: int
    input_shape: tuple[int, ...] | None = None
    local_steps: int = 1
    rate: float = 0.0
    averaged: tuple[str, ...] = ()

    def check(self, name: str = "the leak") -> None:
        """Raise an InputError that begins with `name` unless the fields fit each other, and gradients are finite."""
        check_fields(self, name)
        check_count(f"{name}'s batch_size", self.batch_size)
        check_count(f"{name}'s local_steps", self.local_steps)
        if self.input_shape is not None and not all(size >= 1 for size in self.input_shape):
            raise InputError(f"{name}'s input_shape must have whole numbers of at least 1; got {self.input_shape}")
        _linears(self.model, self.head)
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        for parameter, gradient in self.gradients.items():
            if parameter not in parameters:
                raise InputError(f"{name} has a gradient of '{parameter}', which the model does not have")
            own = parameters[parameter]
            if gradient.shape != own.shape or not gradient.is_floating_point() or gradient.device != own.device:
                raise InputError(
                    f"{name}: the gradient of '{parameter}' must be like the parameter, {described(own)}; "
                    f"got {described(gradient)}"
                )

    @classmethod
    @checked_arguments()
    def from_update(
        cls,
        model: nn.Module,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        rate: float,
        batch_size: int,
        local_steps: int = 1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        input_shape: tuple[int, ...] | None = None,
        head: str | None = None,
    ) -> Leak:
        """Return the leak of one round of federated averaging, from the weights before and after local training.

        The client is assumed to train by gradient descent as in `observe`; the leak's gradients are the sum over its
        steps. Its model is a copy of `model` with the weights before training, in eval mode. A client that trained in
        train mode used other batch-norm statistics. A single output is taken as two classes, as in `observe`.

        Args:
            model: The network.
            before: The state dict that the server sent out.
            after: The state dict that the client returned.
            rate: The client's learning rate.
            batch_size: The number of samples in each local step.
            local_steps: The number of steps, each on different samples.
            momentum: The momentum, which starts at zero in each round. It counts earlier steps more often, so the sum
                is exact only if the gradients of all steps are equal.
            weight_decay: The weight decay, which is subtracted: exactly for one step, and with the mean of the weights
                before and after for several steps.
            input_shape: The shape of one input.
            head: The name of the last Linear layer; by default the one that is declared last. For images (C, H, W) the
                network is run, to see whether it averages several.

        Raises:
            InputError: If a number is out of range, or a state dict does not fit the model.
        """
        check_count("batch_size", batch_size)
        check_count("local_steps", local_steps)
        if not (0 < rate < math.inf and 0 <= momentum < 1 and 0 <= weight_decay < math.inf):
            raise InputError(
                "rate must be above 0, momentum in 0 … 1 (1 excluded) and weight_decay at least 0; "
                f"got {rate:g}, {momentum:g} and {weight_decay:g}"
            )
        copied = copy_of(unwrapped(model)).eval()
        if unwrapped(model) is not model:
            before, after = ({key.removeprefix("module."): own[key] for key in own} for own in (before, after))
        for moment, state in (("before", before), ("after", after)):
            _check_state(copied, moment, state)
        averaged: tuple[str, ...] = ()
        if head is None and input_shape is not None and len(input_shape) == 3:
            like, generator = next(copied.parameters()), torch.Generator().manual_seed(0)
            drawn = torch.randn(1, *input_shape, generator=generator).to(like)
            with contextlib.suppress(GradleakError), torch.no_grad():
                averaged = _forward(copied, drawn, None, averaged=True).averaged
        copied.load_state_dict(dict(before))
        head = head if head is not None else [*averaged[:1], list(_linears(copied, None))[-1]][0]
        _linears(copied, head)
        # Momentum repeats a step's gradient in all later updates. This is the mean number of times that it is counted.
        repeats = sum((1 - momentum ** (step + 1)) / (1 - momentum) for step in range(local_steps)) / local_steps
        gradients = {}
        for name, parameter in copied.named_parameters():
            if parameter.requires_grad:
                start, end = (state[name].detach().to(parameter.device).double() for state in (before, after))
                decay = weight_decay * (start if local_steps == 1 else local_steps * (start + end) / 2)
                gradients[name] = ((start - end) / (rate * repeats) - decay).to(parameter.dtype)
        leak = cls(copied, gradients, head, batch_size, input_shape, local_steps, rate * repeats, averaged)
        if len(leak.weight) > 1:
            return leak
        doubled = _with_two_outputs(copied, head)
        return replace(leak, model=doubled, gradients=gradients | _both_rows(_own_rows(doubled, gradients)))

    def check_one_step(self, attack: str) -> None:
        """Raise an InputError if the gradients are a sum over several local steps, which `attack` cannot use."""
        if self.local_steps != 1:
            raise InputError(
                f"this is the sum of the gradients of {self.local_steps} local steps, each at other weights: {attack} "
                "takes the gradient of one step"
            )

    def parameter(self, kind: str) -> str:
        """Return the full name of the last layer's "weight" or "bias"."""
        return f"{self.head}.{kind}" if self.head else kind

    @property
    def single(self) -> bool:
        """Whether the client's network has a single output z, for which `model` has the logits (0, z)."""
        return isinstance(self.model.get_submodule(self.head), TwoOutputs)

    @property
    def moves(self) -> Gradients:
        """The gradients along which the client moved the weights of `model` in its local steps."""
        return _moves(self.model, self.gradients)

    @property
    def weight(self) -> Tensor:
        """The last layer's weight W (C, I)."""
        return self.model.get_parameter(self.parameter("weight")).detach()

    @property
    def bias(self) -> Tensor | None:
        """The last layer's bias b (C,), or None if the layer has no bias; a frozen bias is returned too."""
        bias = self.model.get_submodule(self.head).bias
        return bias.detach() if isinstance(bias, Tensor) else None

    @property
    def weight_gradient(self) -> Tensor:
        """The gradient G (C, I) of the last layer's weight."""
        if self.averaged or self.parameter("weight") not in self.gradients:
            raise InputError(f"the update has no gradient of the last layer's weight: {self.withheld('weight')}")
        return self.gradients[self.parameter("weight")]

    def gradient(self, parameter: str) -> Tensor:
        """Return the gradient of a parameter; raise an InputError if the update has no separate gradient of it."""
        if reason := self.withheld(parameter):
            raise InputError(f"the update has no separate gradient of a parameter that the attack needs: {reason}")
        return self.gradients[parameter]

    def joined(self, parameters: Iterable[str]) -> Tensor:
        """Return the gradients (N, K) of parameters of N rows side by side; a bias is one column."""
        return torch.cat([self.gradient(name).reshape(len(self.gradients[name]), -1) for name in parameters], dim=1)

    def withheld(self, parameter: str) -> str:
        """Return why the update has no separate gradient of a parameter, or "" if it has one.

        "weight" and "bias" are the last layer's parameters; other parameters are given by their full names.
        """
        if self.averaged and parameter in ("weight", "bias"):
            return f"the logits are the mean of several layers' outputs: {', '.join(map(repr, self.averaged))}"
        name = self.parameter(parameter) if parameter in ("weight", "bias") else parameter
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        tied = [alias for alias, value in parameters.items() if value is parameters.get(name) and alias != name]
        if tied:
            return f"'{name}' is tied to '{tied[0]}', and the gradient is the sum of both"
        if name in self.gradients:
            return ""
        return f"'{name}' is frozen" if name in parameters else f"'{name}' is {COMPUTED}"

    @property
    def bias_gradient(self) -> Tensor | None:
        """The gradient of the last layer's bias (C,), None if there is none, it is frozen, or layers are averaged."""
        return None if self.averaged else self.gradients.get(self.parameter("bias"))

    @property
    def heads(self) -> HeadLeaks:
        """Only the last layer's gradients, of this single client."""
        bias = self.bias_gradient
        return HeadLeaks(
            self.weight,
            self.bias,
            self.weight_gradient.unsqueeze(0),
            None if bias is None else bias.unsqueeze(0),
            self.batch_size,
        )


@dataclass(frozen=True)
class HeadLeaks:
    """The last layer's gradients of N clients, without the gradients of the layers below.

    Attributes:
        weight: The last layer's weight (C, I).
        bias: The last layer's bias (C,), None if there is none.
        weight_gradients: The gradients of the weight (N, C, I).
        bias_gradients: The gradients of the bias (N, C), None if there is no bias.
        batch_size: The number of samples of each client.
    """

    weight: Tensor
    bias: Tensor | None
    weight_gradients: Tensor
    bias_gradients: Tensor | None
    batch_size: int = 1

    def check(self, name: str = "the gradients") -> None:
        """Raise an InputError that begins with `name` unless the fields fit each other, and gradients are finite."""
        shapes = {"weight": "C I", "bias": "C", "weight_gradients": "N C I", "bias_gradients": "N C"}
        check_fields(self, name, shapes)
        check_count(f"{name}'s batch_size", self.batch_size)

    def defended(self, defense: Defense) -> HeadLeaks:
        """Return the gradients that the clients send under a defence that changes each tensor independently."""
        tensors = {"weight_gradients": self.weight_gradients, "bias_gradients": self.bias_gradients}
        clients = [value for value in tensors.values() if value is not None]
        sent = [defense(dict(zip(tensors, own, strict=False))) for own in zip(*clients, strict=True)]
        changed: dict[str, Any] = {name: torch.stack([update[name] for update in sent]) for name in sent[0]}
        return replace(self, **changed)


def _check_state(model: nn.Module, which: str, state: Mapping[str, Tensor]) -> None:
    """Raise an InputError if a state dict does not fit the model."""
    expected = model.state_dict()
    if differing := sorted(set(expected) ^ set(state)):
        raise InputError(
            f"the state {which} is not of {type(model).__name__}: it differs in {', '.join(differing[:5])}"
        )
    for name, value in state.items():
        own = expected[name]
        if value.shape != own.shape or value.is_floating_point() != own.is_floating_point():
            raise InputError(f"the state {which}: '{name}' is {described(value)}, the model's {described(own)}")


def pair_of(model: nn.Module, inputs: Tensor | Mapping[str, Tensor], targets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return a batch as inputs and targets, as `observe` takes it.

    A batch of `transformers` is a dictionary with `input_ids` (or `pixel_values`), and perhaps `attention_mask` and
    `labels`. If a causal model is given labels at every position, its loss compares the output at a position with the
    label at the next one. So the last position is left out of the inputs, and the first one out of the targets.

    A token t that `attention_mask` hides becomes −1 − t in the inputs. Padding at the end of a causal model's texts
    stays as it is, because no output with a target depends on it.
    """
    if torch.is_tensor(inputs) and targets is not None:
        return inputs, targets
    batch = {"input_ids": inputs} if torch.is_tensor(inputs) else dict(inputs)
    mask, given = batch.pop("attention_mask", None), batch.pop("labels", None)
    named = [name for name, value in batch.items() if name != "token_type_ids" or bool(value.any())]
    if len(named) != 1:
        raise InputError(
            "a batch must hold one tensor of inputs besides attention_mask and labels; it holds "
            f"{', '.join(map(str, named)) or 'none'}"
        )
    own, labels = batch[named[0]], targets if targets is not None else given
    tokens = own.ndim == 2 and not own.is_floating_point()
    if labels is None and not tokens:
        raise InputError("a batch without targets or labels must be tokens (B, T), of a causal language model")
    if mask is not None and (not tokens or mask.shape != own.shape):
        raise InputError("attention_mask must have the shape of the tokens")
    kept = torch.ones_like(own, dtype=torch.bool) if mask is None else mask.bool()
    if (labels is not None and (not tokens or labels.shape != own.shape)) or not is_causal(model, own[:1]):
        if labels is None:
            raise InputError(f"{type(model).__name__} is not causal: its targets must be given as labels")
        return own if kept.all() else torch.where(kept, own, HIDDEN - own), labels
    if own.shape[1] < 2:
        raise InputError("a causal language model needs texts of at least two tokens")
    labels = torch.where(kept, own, PADDING) if labels is None else labels
    inputs, targets, kept, masked = own[:, :-1], labels[:, 1:], kept[:, :-1], torch.where(kept, own, HIDDEN - own)
    if bool(((targets != PADDING) & ~kept).any()) and not _is_causal(model, masked):
        raise InputError(
            "labels are compared with outputs at padding that depend on later words: with attention_mask at the start, "
            "the label of the first word must be -100 as well, or move the padding to the end "
            "(tokenizer.padding_side = 'right')"
        )
    return torch.where(up_to_last(targets), masked[:, :-1], inputs), targets


class TwoOutputs(nn.Linear):
    """A last layer with a single output z, to which a first output was added that is always 0."""


def two_classes(
    model: nn.Module, inputs: Tensor, targets: Tensor, head: str | None, loss: Loss
) -> tuple[nn.Module, Tensor, Loss]:
    """Return a network whose only output is z, or the sigmoid of z, as a network with the logits (0, z).

    The second result is the targets as classes, and the third is the loss.

    The cross-entropy of these logits is the binary cross-entropy of z, which either loss means. With other losses, and
    for other networks, everything is returned as it is.
    """
    ends = {name: layer for name, layer in _linears(model, None).items() if layer.out_features == 1}
    name, probe = head if head in ends else next(reversed(ends), None), inputs[:4]
    if name is None or not isinstance(loss, CrossEntropy | BinaryCrossEntropy):
        return model, targets, loss
    positional, named = arguments_of(probe)
    runs: list[tuple[Tensor, Tensor]] = []
    hook = ends[name].register_forward_hook(lambda _, args, output: runs.append((args[0], output)))
    with hook, torch.no_grad(), running(model, probe.shape):
        output = model(*positional, **named)
    if not torch.is_tensor(output) or output.numel() != len(probe):
        return model, targets, loss
    single = at_places(*runs[-1], output.reshape(-1, 1))[1].flatten() if runs else output.new_tensor([])
    same = (torch.allclose(value, output.flatten()) for value in (single, single.sigmoid()))
    if len(single) != len(probe) or not any(same):
        raise InputError(
            f"{type(model).__name__} has a single output, which is neither the output z (B, 1) of the Linear layer "
            f"'{name}' nor its sigmoid: a single output is attacked as two classes with the logits 0 and z"
        )
    loss = loss if isinstance(loss, CrossEntropy) else CrossEntropy()
    return _with_two_outputs(model, name), binary(targets), loss


def _with_two_outputs(model: nn.Module, head: str) -> nn.Module:
    """Return a copy of a model whose Linear layer with one output z has the outputs (0, z).

    The copy returns these outputs, whatever the model computes from them, such as their sigmoid. Only if the layer has
    outputs at every position of a text, the copy returns what the model chooses.
    """
    copied = client_copy_of(model)
    end = _linears(copied, head)[head]
    for name, value in list(end.named_parameters()):
        both = torch.cat([torch.zeros_like(value), value]).detach()
        setattr(end, name, nn.Parameter(both, value.requires_grad))
    end.__class__, end.out_features = TwoOutputs, 2
    if end is not copied:
        copied.forward = partial(_outputs_of, end, copied.forward)
    return copied


def _outputs_of(layer: nn.Module, forward: Callable[..., Any], *inputs: Tensor, **named: Tensor) -> Any:
    """Run a forward pass. Return the outputs of a layer if they are (B, C), and else the result of the pass."""
    outputs: list[Tensor] = []
    with layer.register_forward_hook(lambda _, __, output: outputs.append(output)):
        result = forward(*inputs, **named)
    return outputs[-1] if outputs and outputs[-1].ndim == 2 else result


def _own_rows(model: nn.Module, gradients: Gradients) -> Gradients:
    """Return the rows that a client has of a last layer to which an output was added; {} for other last layers."""
    ends = [name for name, layer in model.named_modules() if isinstance(layer, TwoOutputs)]
    rows = {f"{end}.{kind}".lstrip(".") for end in ends for kind in ("weight", "bias")} & gradients.keys()
    return {name: gradients[name][-1:] for name in rows}


def _moves(model: nn.Module, gradients: Gradients) -> Gradients:
    """Return gradients by which a client changes a model's weights: a first output that was added stays 0."""
    own = _own_rows(model, gradients)
    return gradients | {name: torch.cat([torch.zeros_like(row), row]) for name, row in own.items()}


def _both_rows(rows: Gradients) -> Gradients:
    """Return the gradients of two outputs from the client's rows for its single output."""
    return {name: torch.cat([-row, row]) for name, row in rows.items()}


def binary(targets: Tensor) -> Tensor:
    """Return the targets (N,) or (N, 1) of single outputs as classes (N,), or as probabilities (N, 2) of two."""
    if targets.is_floating_point() and targets.shape[1:] == (2,):
        return targets
    values = targets.reshape(-1)
    if len(values) != len(targets) or not bool(((values >= 0) & (values <= 1)).all()):
        raise InputError("a network with a single output has targets that are 0, 1 or between, one for each sample")
    whole = bool(((values == 0) | (values == 1)).all())
    return values.long() if whole else torch.stack([1 - values, values], dim=1)


def is_causal(model: nn.Module, tokens: Tensor, head: str | None = None) -> bool:
    """Return whether a model has outputs at every position of tokens (N, T) that do not depend on later tokens.

    With the name of the last layer, these are the layer's outputs, of which a classifier returns those at one position.
    """
    return _is_causal(model, torch.where(tokens < 0, HIDDEN - tokens, tokens), head)


def _is_causal(model: nn.Module, tokens: Tensor, head: str | None = None) -> bool:
    """Return the same for tokens (N, T), some of which are hidden; hidden last tokens are not changed."""
    changed, last = tokens.clone(), tokens[:, -1]
    changed[:, -1] += torch.where(last > 0, -1, 1) * (last >= 0)
    with torch.no_grad(), running(model, tokens.shape):
        outputs, others = (_outputs(model, own, head)[0] for own in (tokens, changed))
    if not torch.is_tensor(outputs) or outputs.ndim != 3 or outputs.shape[:2] != tokens.shape:
        return False
    size = float(outputs.abs().max())
    return bool(torch.allclose(outputs[:, :-1], others[:, :-1], rtol=0, atol=CAUSAL * size))


@checked_arguments()
def observe(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Tensor],
    targets: Tensor | None = None,
    *,
    defense: Defense | None = None,
    head: str | None = None,
    loss: Loss | None = None,
    local_steps: int = 1,
    rate: float = 0.1,
    precision: str | Precision | None = None,
    mode: Mode = "eval",
) -> Leak:
    """Compute a client's gradients on a private batch, and return the leak that the server receives.

    In eval mode batch norm uses its running statistics, and dropout is off. In train mode batch norm uses the
    statistics of the batch, and dropout draws from torch's global generator; the leak's model is a copy whose batch
    norms do the same. The model itself keeps its mode and its statistics.

    Args:
        model: A network whose final Linear layer gives the logits or log-probabilities, alone or, as in `transformers`,
            as `output.logits`; or gives outputs at every position of a text, of which the logits are those at one
            position. A single output z or its sigmoid, with targets from 0 to 1, is taken as the logits (0, z) of two
            classes. The logits may also be the mean of several Linear layers' outputs, as in distilled DeiT; then no
            labels can be recovered.
        inputs: The batch (B, …), or a batch of `transformers`: a dictionary of `input_ids`, `attention_mask` and
            `labels`. A causal language model of `transformers` then has the loss of `transformers`: its labels are
            compared with the outputs one position earlier, and by default they are the tokens without padding.
        targets: Class indices (B,) or soft labels (B, C). For logits (B, T, C), class indices (B, T), with −100 at
            positions without a target; the mean loss ignores these positions. By default the batch's labels.
        defense: A function that changes the gradients before they are sent.
        head: The name of the last Linear layer; found automatically by default.
        loss: The loss; soft cross-entropy by default.
        local_steps: The number of equal parts into which the batch is split. The client takes a step of gradient
            descent on each part, and the gradients of all steps are summed. Sequences allow only one step.
        rate: The learning rate of the local steps.
        precision: The precision of the client's arithmetic, such as "tf32" or "bfloat16"
            (`gradleak.precision.PRECISIONS`); by default that of the model's parameters.
        mode: The mode in which the client runs the model, "eval" or "train".

    Raises:
        InputError: If the batch does not fit the model, or the model does not end in a Linear layer.

    Examples:
        >>> import torch
        >>> leak = observe(torch.nn.Linear(3, 2), torch.ones(4, 3), torch.tensor([0, 1, 1, 1]))
        >>> leak.batch_size, tuple(leak.weight_gradient.shape)
        (4, (2, 3))
    """
    model, loss = unwrapped(model), loss or CrossEntropy()
    inputs, targets = pair_of(model, inputs, targets)
    model, targets, loss = two_classes(model, inputs, targets, head, loss)
    model = in_train_mode(model) if mode == "train" else model
    with computing(precision, model):
        head, layer, _, logits, averaged = _forward(model, inputs, head, mode, features=(2, 3), averaged=True)
        # The loss is computed in the precision of the parameters, even if the logits are coarser.
        logits = logits.to(layer.weight.dtype)
        if logits.ndim == 3:
            if local_steps != 1:
                raise InputError("sequences allow only one local step")
            logits, targets = _with_targets(logits, targets)
        labels = as_probabilities(targets, logits.shape[-1], dtype=logits.dtype, device=logits.device)
        _check_rows(logits, labels)
        if local_steps < 1 or len(inputs) % local_steps:
            raise InputError(f"{len(inputs)} samples cannot be cut into {local_steps} local steps of one batch size")
        named = {name: value for name, value in model.named_parameters() if value.requires_grad}
        size = len(inputs) // local_steps
        if local_steps == 1:
            gradients = _gradients(loss(logits, labels).mean(), named, precision)
        else:

            def gradients_at(samples: Tensor, own: Tensor, weights: Gradients) -> Gradients:
                weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
                for name, weight in weights.items():
                    keep_hooks(named[name], weight)
                positional, keywords = arguments_of(samples)

                def differentiated() -> Gradients:
                    logits = model(*positional, **keywords).to(own.dtype)
                    return _gradients(loss(logits, own).mean(), weights, precision)

                return with_values(model, weights, differentiated)

            parts = zip(inputs.split(size), labels.split(size), strict=True)
            before = {name: value.detach() for name, value in named.items()}
            with evaluating(model, mode):
                steps = [partial(gradients_at, *part) for part in parts]
                gradients, _ = descended(before, steps, rate, partial(_moves, model))
        # The defence changes the rows that the client has.
        sent = defended(gradients | _own_rows(model, gradients), defense)
        sent |= _both_rows(_own_rows(model, sent))
        divided = rate if local_steps > 1 else 0.0
        return Leak(model, sent, head, size, tuple(inputs.shape[1:]), local_steps, divided, averaged)


def defended(gradients: Gradients, defense: Defense | None) -> Gradients:
    """Return what a defence sends in place of gradients; refuse anything but tensors of the same shapes."""
    if defense is None:
        return gradients
    with foreign("the defence failed"):
        sent = defense(gradients)
    if not isinstance(sent, dict) or any(
        name not in gradients or not torch.is_tensor(value) or value.shape != gradients[name].shape
        for name, value in sent.items()
    ):
        raise InputError("a defence must return a dictionary of tensors with the names and shapes of the gradients")
    return sent


def _with_targets(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits (N, C) of sequences and the class indices (N,) at the positions that have a target."""
    if not torch.is_tensor(targets) or targets.shape != logits.shape[:2] or targets.is_floating_point():
        shape = tuple(targets.shape) if torch.is_tensor(targets) else type(targets).__name__
        raise InputError(f"targets must be class indices {tuple(logits.shape[:2])}, {PADDING} for none; got {shape}")
    kept = targets != PADDING
    if not kept.any():
        raise InputError(f"no place of the sequences has a target: all are {PADDING}")
    return logits[kept], targets[kept]


def _gradients(loss: Tensor, named: Mapping[str, Tensor], precision: str | Precision | None) -> Gradients:
    def take(factor: float) -> Gradients:
        # The graph is needed again if the gradients overflow and a smaller factor is tried.
        scaled, retain = (loss, False) if factor == 1 else (factor * loss, True)
        values = torch.autograd.grad(scaled, list(named.values()), allow_unused=True, retain_graph=retain)
        pairs = zip(named.items(), values, strict=True)
        return {
            # The gradient of an Embedding may be sparse.
            name: torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
            for (name, parameter), gradient in pairs
        }

    return scaled_gradients(precision, take)


def descended(
    weights: Gradients,
    steps: Iterable[Callable[[Gradients], Gradients]],
    rate: float,
    moves: Callable[[Gradients], Gradients] = lambda gradients: gradients,
) -> tuple[Gradients, Gradients]:
    """Return the sum of the gradients over steps of gradient descent, and the weights after them.

    Each step is a function that returns the gradients at given weights; `moves` returns those that change the weights.
    """
    total: Gradients = {}
    for gradients_at in steps:
        gradients = gradients_at(weights)
        total = {name: total[name] + value if total else value for name, value in gradients.items()}
        weights = weights | {name: weights[name] - rate * value for name, value in moves(gradients).items()}
    return total, weights


@contextlib.contextmanager
def naming(what: str, *, shapes: bool = False) -> Iterator[None]:
    """Turn errors of a model's code in this block into errors that begin with `what`.

    They name the module of torch in which an error was raised, if any, and with `shapes` what the module was given. A
    lack of an accelerator's memory stays torch's own error.
    """
    try:
        with foreign(what):
            yield
    except ForeignError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise error.__cause__ from None
        if error.__cause__ is not None and first_line(error.__cause__).startswith("vmap"):
            raise ForeignError(f"{what}: {NOT_AT_ONCE}") from error.__cause__
        module, given = _failing(error.__cause__)
        if not module or not str(error).startswith(what):
            raise
        raise ForeignError(f"{what}: its {module} fails{f' on {given}' if shapes else ''}") from error.__cause__


def _failing(error: BaseException | None) -> tuple[str, str]:
    """Return which module raised an error of torch, and what it was given; "" if other code raised the error."""
    frames = [] if error is None else [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or not frames[-1].f_code.co_filename.startswith(os.path.dirname(torch.__file__)):
        return "", ""
    for frame in reversed(frames):
        module, given = frame.f_locals.get("self"), frame.f_locals.get("args")
        if isinstance(module, nn.Module) and isinstance(given, tuple):
            return type(module).__name__, ", ".join(map(described, given)) or "nothing"
    return "", ""


@contextlib.contextmanager
def running(model: nn.Module, shape: Sequence[int], mode: Mode = "eval") -> Iterator[None]:
    """Run a model in this block, in eval mode by default, on inputs of a shape, which an error of its code names."""
    with (
        evaluating(model, mode),
        naming(f"{type(model).__name__} does not take inputs of shape {tuple(shape)}", shapes=True),
    ):
        yield


def check_repeatable(model: nn.Module, inputs: Tensor, classes: int) -> None:
    """Refuse a model that gives other outputs than logits (B, C), or other logits in a second pass."""
    with torch.no_grad(), running(model, inputs.shape):
        first, second = model(inputs), model(inputs)
    if not torch.is_tensor(first) or first.shape != (len(inputs), classes):
        raise InputError(f"{type(model).__name__} must return logits {(len(inputs), classes)}; got {described(first)}")
    # The kernels of an accelerator may add numbers in another order.
    alike = torch.equal if inputs.device.type == "cpu" else torch.allclose
    if not alike(first, second):
        raise InputError(
            f"{type(model).__name__} gives other outputs in a second pass on the same inputs: "
            "it draws random numbers or keeps a state, and its gradient cannot be matched"
        )


def only_logits(output: Any) -> Any:
    """Return the logits of a model's output, which may hold other results as well."""
    return getattr(output, "logits", output)


@contextlib.contextmanager
def evaluating(model: nn.Module, mode: Mode = "eval") -> Iterator[None]:
    """Run a model in eval mode, or in another, and restore the mode of every module afterwards.

    A model that returns its logits among other outputs, as those of `transformers` do, returns the logits alone.
    """
    modes = {module: module.training for module in model.modules()}
    model.train(mode == "train")
    try:
        with model.register_forward_hook(lambda _, __, output: only_logits(output)), differentiable(model):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks of modules at the end of the block."""
    with contextlib.ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


def in_train_mode(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose batch norms use the statistics of each batch in both modes, and keep none."""
    copied = client_copy_of(model)
    replace_all_batch_norm_modules_(copied)
    return copied


@checked_arguments()
def observe_heads(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    head: str | None = None,
    loss: Loss | None = None,
    batch_size: int = 1,
    chunk: int = 250,
) -> HeadLeaks:
    """Observe N clients at once, for attacks that use only the last layer's gradients.

    The result equals N calls of `observe`. In eval mode samples do not affect each other, so one forward pass serves
    all clients. A sample's gradient is the outer product of the gradient by its logits and its feature.

    Args:
        model: A network whose final Linear layer gives the logits.
        inputs: The samples of all clients (N B, …), client by client.
        targets: Class indices (N B,) or soft labels (N B, C).
        head: The name of the last Linear layer; found automatically by default.
        loss: The loss; soft cross-entropy by default.
        batch_size: The number of samples B of each client.
        chunk: The approximate number of samples in one forward pass.
    """
    _check_inputs(inputs)
    _check_rows(inputs, targets)
    if batch_size < 1 or len(inputs) % batch_size:
        raise InputError(f"{len(inputs)} samples cannot be shared out to clients with {batch_size} each")
    loss = loss or CrossEntropy()

    def heads(clients: slice) -> tuple[nn.Linear, Tensor, Tensor]:
        part = slice(clients.start * batch_size, clients.stop * batch_size)
        with torch.no_grad():
            _, layer, hidden, logits, _ = _forward(model, inputs[part], head)
        logits = logits.requires_grad_()
        labels = as_probabilities(targets[part], logits.shape[-1], dtype=logits.dtype, device=logits.device)
        (delta,) = torch.autograd.grad(loss(logits, labels).sum() / batch_size, [logits])
        deltas, features = (rows.unflatten(0, (-1, batch_size)) for rows in (delta, hidden))
        return layer, deltas.mT @ features, deltas.sum(dim=1)

    results = list(in_chunks(len(inputs) // batch_size, max(1, chunk // batch_size), heads))
    layer, weights, biases = results[0][0], [result[1] for result in results], [result[2] for result in results]
    bias = None if layer.bias is None else layer.bias.detach()
    return HeadLeaks(
        layer.weight.detach(), bias, torch.cat(weights), None if bias is None else torch.cat(biases), batch_size
    )


@checked_arguments()
def head_inputs(
    model: nn.Module, inputs: Tensor, *, head: str | None = None, chunk: int = 250, mode: Mode = "eval"
) -> tuple[Tensor, Tensor]:
    """Return the last layer's inputs (M, I) and the logits (M, C) for inputs (M, …)."""
    _check_inputs(inputs)
    with torch.no_grad():
        parts = list(in_chunks(len(inputs), chunk, lambda part: _forward(model, inputs[part], head, mode)))
    return torch.cat([part.hidden for part in parts]), torch.cat([part.logits for part in parts])


class _End(NamedTuple):
    """The last Linear layer of a model in a pass: its name, its module, its input, and the model's logits.

    If the logits are the mean of several layers' outputs, this is the first of them, and `averaged` has all names.
    """

    head: str
    layer: nn.Linear
    hidden: Tensor
    logits: Tensor
    averaged: tuple[str, ...] = ()


def _forward(
    model: nn.Module,
    inputs: Tensor,
    head: str | None,
    mode: Mode = "eval",
    *,
    features: Sequence[int] = (2,),
    averaged: bool = False,
) -> _End:
    """Run the model and return its last Linear layer.

    Args:
        model: The model.
        inputs: The inputs (B, …).
        head: The layer's name; found automatically by default.
        mode: The mode in which the model runs.
        features: The permitted numbers of dimensions of the layer's input: 2 for (B, I), 3 for sequences (B, T, I).
        averaged: Whether the logits may be the mean of several layers' outputs.
    """
    _check_inputs(inputs)
    linears = _linears(model, head)
    recorded: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, args, output: recorded.setdefault(name, []).append((args[0], output))

    positional, named = arguments_of(inputs)
    hooks = (layer.register_forward_hook(watch(name)) for name, layer in linears.items())
    with hooked(hooks), running(model, inputs.shape, mode):
        logits = model(*positional, **named)
    for name, runs in recorded.items():
        hidden, output = at_places(*runs[-1], logits)
        # Identify the final layer by its output, which equals the model's; layers may be declared in any order.
        if torch.is_tensor(logits) and output.shape == logits.shape and _gives(output, logits):
            if hidden.ndim not in features:
                raise InputError(
                    f"the final Linear layer '{name}' works on inputs of shape {tuple(hidden.shape)}; "
                    "one feature vector for each sample, (B, I), is expected"
                )
            _check_head(name, linears[name])
            if not computes(linears[name], *runs[-1], share=HEAD):
                raise InputError(
                    f"the last layer '{name}' is {type(linears[name]).__name__}, whose outputs are not its weight "
                    "times its inputs plus its bias: the attacks here read the gradient of a plain Linear layer"
                )
            if len(runs) > 1:
                raise InputError(
                    f"the last Linear layer '{name}' runs {len(runs)} times in one pass, and its gradient is their sum"
                )
            return _End(name, linears[name], hidden, logits)
    if averaged and torch.is_tensor(logits) and logits.ndim == 2:
        ends = {name: run for name, (run, *more) in recorded.items() if not more and run[1].shape == logits.shape}
        mean = sum(output for _, output in ends.values()) / max(1, len(ends))
        if len(ends) > 1 and bool(((mean - logits).abs() <= MEAN * logits.abs().max()).all()):
            head = next(iter(ends))
            return _End(head, linears[head], ends[head][0], logits, tuple(ends))
    if torch.is_tensor(logits) and not logits.isfinite().all():
        raise InputError(f"the logits of {type(model).__name__} are NaN or infinite: its forward pass overflows")
    for name, runs in recorded.items() if torch.is_tensor(logits) and logits.shape[-1] > 1 else ():
        if runs[-1][1].shape == logits.shape and torch.allclose(runs[-1][1].sigmoid(), logits):
            raise InputError(
                f"{type(model).__name__} returns the sigmoid of each output of '{name}', as for several labels of one "
                "sample: the attacks here recover one label for each sample, from a network that returns the logits"
            )
    names = [f"'{name}'" for name in linears]
    tried = ", ".join([*(["…"] if len(names) > LISTED else []), *names[-LISTED:]])
    raise InputError(
        f"{type(model).__name__} does not end in a Linear layer ({tried} do not give its output): "
        "the attacks here read the gradient of a final Linear layer whose outputs are the logits, not probabilities"
        f"{_instead(model)}"
    )


def _gives(output: Tensor, logits: Tensor) -> bool:
    """Return whether a layer's output gives the logits, as they are or as log-probabilities, whose loss is the same."""
    return torch.equal(output, logits) or torch.equal(F.log_softmax(output, dim=-1), logits)


def at_places(hidden: Tensor, output: Tensor, logits: Any) -> tuple[Tensor, Tensor]:
    """Return a layer's input and output at the place of each sample whose output is its logits, if there is one.

    A causal model that classifies texts gives the output at the last word.
    """
    places = _places(output, logits)
    if places is None:
        return hidden, output
    rows = torch.arange(len(places), device=places.device)
    return hidden[rows, places], output[rows, places]


def _places(output: Tensor, logits: Any) -> Tensor | None:
    """Return the position (B,) at which a layer's output (B, T, C) is each sample's logits, None if there is none."""
    if not torch.is_tensor(logits) or output.ndim != 3 or output.shape[::2] != logits.shape:
        return None
    same = (output == logits[:, None]).all(dim=2)
    if not same.any(dim=1).all():
        return None
    # A word that is repeated from the beginning may have the same output everywhere; the last place is taken.
    return same.shape[1] - 1 - same.flip(1).int().argmax(dim=1)


def places_of(model: nn.Module, inputs: Tensor, head: str) -> Tensor | None:
    """Return the position (B,) whose output is each text's logits; None if the last layer runs once for a text."""
    with torch.no_grad(), running(model, inputs.shape):
        return _places(*_outputs(model, inputs, head))


def _outputs(model: nn.Module, inputs: Tensor, head: str | None) -> tuple[Any, Any]:
    """Return the outputs of a model's last layer, or the model's if it is not named, and the model's."""
    positional, named = arguments_of(inputs)
    if head is None:
        return (model(*positional, **named),) * 2
    outputs: list[Any] = []
    with hooked([model.get_submodule(head).register_forward_hook(lambda _, __, output: outputs.append(output))]):
        logits = model(*positional, **named)
    return outputs[-1], logits


def arguments_of(inputs: Tensor) -> tuple[tuple[Tensor], dict[str, Tensor]]:
    """Return the arguments, positional and named, with which a model runs on a copy of inputs with hidden tokens."""
    if inputs.is_floating_point() or not (inputs < 0).any():
        return (inputs.clone(),), {}
    return (torch.where(inputs < 0, HIDDEN - inputs, inputs),), {"attention_mask": (inputs >= 0).long()}


def _linears(model: nn.Module, head: str | None) -> dict[str, nn.Linear]:
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not linears:
        raise InputError(
            f"{type(model).__name__} has no Linear layer: the attacks here read the gradient of a final Linear layer"
            f"{_instead(model)}"
        )
    if head is None:
        return linears
    if head not in linears:
        raise InputError(f"the model has no Linear layer named '{head}'; it has {', '.join(linears)}")
    _check_head(head, linears[head])
    return {head: linears[head]}


def _instead(model: nn.Module) -> str:
    """Return what a network may have in place of a last 1×1 convolution, "" if its last layer is another one."""
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    name, last = layers[-1] if layers else ("", model)
    if not isinstance(last, nn.Conv2d) or last.kernel_size != (1, 1):
        return ""
    return (
        f". If '{name}' and an average over positions give the logits, put AdaptiveAvgPool2d(1), Flatten and "
        f"Linear({last.in_channels}, {last.out_channels}) in their place. With the same weights the logits are the "
        "same, unless an activation follows the convolution, as in SqueezeNet: then the audit is of another network"
    )


def _check_head(name: str, layer: nn.Linear) -> None:
    """Refuse a last layer without an own weight, or without inputs."""
    if "weight" not in layer._parameters:
        raise InputError(f"the weight of the last Linear layer '{name}' is {COMPUTED}")
    if 0 in layer.weight.shape:
        raise InputError(f"the last Linear layer '{name}' has no inputs or no outputs: {tuple(layer.weight.shape)}")


def _check_inputs(inputs: Tensor) -> None:
    if inputs.ndim < 2:
        raise InputError(f"inputs must be a batch of at least one sample, (B, …); got {tuple(inputs.shape)}")


def _check_rows(inputs: Tensor, labels: Tensor) -> None:
    count = len(labels) if labels.ndim else 0
    if len(inputs) != count:
        raise InputError(f"{len(inputs)} inputs but {count} targets: there must be one target for each sample")
