"""Describe a network as a sequence of operations, and classify them by what is needed to propagate a gradient."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from gradleak.calling import copy_of, first_false, watched
from gradleak.devices import ieee
from gradleak.errors import ForeignError, InputError
from gradleak.images.inversion import chain
from gradleak.images.inversion.chain import DROPOUTS, Activation, activation_of
from gradleak.leak import running

Kind = Literal["input", "affine", "reshaped", "activation", "other"]
RESHAPED: tuple[Any, ...] = (nn.Flatten, nn.Identity, *DROPOUTS, torch.flatten, "flatten")
AFFINE: tuple[Any, ...] = (
    nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Linear, operator.add, operator.iadd, torch.add, F.pad, F.avg_pool2d,
    F.adaptive_avg_pool2d, operator.getitem,
)  # fmt: skip
# Products are affine if all factors but one are constants of the network.
PRODUCTS: tuple[Any, ...] = (operator.mul, operator.imul, torch.mul)
# The slope of ReLU6 counts as zero from this distance below its upper corner.
CORNER = 1e-3
RELU6 = Activation(lambda x: ((x > 0) & (x < 6 - CORNER)).to(x), None)
# Operations that do not move values between positions or channels.
IN_PLACE: tuple[Any, ...] = (nn.BatchNorm2d, nn.Identity, *DROPOUTS, operator.add, operator.iadd, torch.add)


@dataclass(frozen=True)
class Step:
    """One operation of a network.

    Attributes:
        name: The operation's name.
        kind: How a gradient passes the operation: "affine" and "reshaped" need nothing else, "activation" needs slopes,
            "other" is not supported. "input" is the network's input.
        inputs: The names of the steps whose values the operation takes.
        users: The names of the steps that take its value.
        shape: The shape (C, …) of its value for one sample.
        operation: The module's class, the function, or the name of a method.
        run: Computes the value from the values of the inputs.
        parameter: The module's name, "" without a module.
        module: The module, if there is one.
        activation: The slope and inverse of an activation.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    users: tuple[str, ...]
    shape: tuple[int, ...]
    operation: Any
    run: Callable[..., Tensor]
    parameter: str = ""
    module: nn.Module | None = None
    activation: Activation | None = None

    @property
    def layer(self) -> nn.Conv2d | nn.Linear | None:
        """The convolution or Linear layer, None for other modules and for convolutions that are not supported."""
        module = self.module
        if isinstance(module, nn.Linear):
            return module
        if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros" and not isinstance(module.padding, str):
            return module if module.dilation == (1, 1) else None
        return None

    @property
    def rectifies(self) -> bool:
        """Whether the step is an activation that is zero for all negative values."""
        return self.activation is not None and (self.module is None or isinstance(self.module, nn.ReLU | nn.ReLU6))

    @property
    def levels(self) -> tuple[float, float] | None:
        """The slopes below and above zero of a piecewise linear activation, None for other steps."""
        if self.activation is None or not (self.rectifies or isinstance(self.module, nn.LeakyReLU)):
            return None
        low, high = self.activation.slope(torch.tensor([-1.0, 1.0])).tolist()
        return low, high

    @property
    def in_place(self) -> bool:
        """Whether the step is affine and does not move values between positions or channels."""
        return self.kind == "affine" and self.operation in IN_PLACE

    @property
    def says(self) -> str:
        """The step in words, for messages."""
        what = self.operation.__name__ if callable(self.operation) else str(self.operation)
        return f"{what} '{self.parameter or self.name}'"


def _copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model in the given precision; every tensor is copied once."""
    copies: dict[int, Tensor] = {}
    for one in (*model.parameters(), *model.buffers()):
        own = one.detach().to(dtype if one.is_floating_point() else one.dtype, copy=True)
        copies[id(one)] = nn.Parameter(own) if isinstance(one, nn.Parameter) else own
    return copy_of(model, copies)


class Network:
    """The steps of a network in the order in which they run, with a copy of the model in the given precision."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> None:
        self.model = _copied(model, dtype).requires_grad_(False).eval()
        try:
            graph = fx.Tracer().trace(self.model)
        except Exception as error:  # tracing runs the model's own code
            raise InputError(f"{type(model).__name__} is not a fixed sequence of operations: {error}") from error
        if next(self.model.parameters(), None) is None:
            raise InputError(f"{type(model).__name__} has no parameters")
        self.device = next(self.model.parameters()).device
        self.modules = dict(self.model.named_modules(remove_duplicate=False))
        self.steps: dict[str, Step] = {}
        values: dict[str, Tensor] = {}
        for node in graph.nodes:
            if node.op == "output":
                self.output = node.args[0].name
            if node.op in ("output", "get_attr"):
                continue
            step = self._step(node)
            try:
                values[node.name] = (
                    torch.zeros(1, *shape, dtype=dtype, device=self.device)
                    if step.kind == "input"
                    else step.run(*(values[source] for source in step.inputs))
                )
            except Exception as error:  # from the model's own code or its modules
                what = f"{type(model).__name__} does not take inputs of shape {tuple(shape)}"
                raise ForeignError(f"{what}: {step.says} cannot be run") from error
            if not torch.is_tensor(values[node.name]):
                raise InputError(f"{step.says} does not return a tensor; peeling supports only fixed shapes")
            self.steps[node.name] = replace(step, shape=tuple(values[node.name].shape[1:]))

    def check(self, model: nn.Module, size: int) -> None:
        """Raise an `InputError` if a layer's inputs or the logits differ from the model's, for batches of this size."""
        layers = {step: model.get_submodule(step.parameter) for step in self.steps.values() if step.layer is not None}
        checks: list[tuple[str, Tensor]] = []
        with ieee(), running(model, (size, *self.inputs.shape)), watched(model) as odd:
            for batch in chain.probes(self.inputs.shape, size):
                with chain.inputs_seen(layers.values()) as seen:
                    logits = model(batch.to(next(model.parameters()), copy=True))
                values = self.values_at([step.name for step in layers], batch.to(self.device))
                for step, layer in layers.items():
                    (given,) = (values[name] for name in step.inputs)
                    own = seen[layer][0] if len(seen[layer]) == 1 else given[:0]
                    what = f"'{step.parameter}' sees other inputs than the steps before it give"
                    checks.append((what, chain.same(own, given)))
                checks.append(("its steps give other logits", chain.same(logits, values[self.output])))
        if reasons := odd + first_false(checks):
            raise InputError(f"{type(model).__name__} cannot be walked back: {reasons[0]}")

    @property
    def inputs(self) -> Step:
        """The step that takes the network's inputs."""
        return next(step for step in self.steps.values() if step.kind == "input")

    def _step(self, node: fx.Node) -> Step:
        if node.op == "call_module" and any(
            step.parameter == node.target and next(self.modules[step.parameter].parameters(), None) is not None
            for step in self.steps.values()
        ):
            raise InputError(f"'{node.target}' runs more than once in one pass, and its gradient is the sum")
        fixed = {
            neighbour.name: self._constant(neighbour)
            for neighbour in node.all_input_nodes
            if neighbour.op == "get_attr"
        }
        inputs = tuple(neighbour.name for neighbour in node.all_input_nodes if neighbour.name not in fixed)
        users = tuple(neighbour.name for neighbour in node.users if neighbour.op != "output")
        module: nn.Module | None = self.modules[str(node.target)] if node.op == "call_module" else None
        operation = type(module) if module is not None else node.target

        def run(*values: Tensor) -> Tensor:
            known = dict(zip(inputs, values, strict=True)) | fixed
            args = fx.node.map_arg(node.args, lambda neighbour: known[neighbour.name])
            kwargs = fx.node.map_arg(node.kwargs, lambda neighbour: known[neighbour.name])
            if module is not None:
                return module(*args, **kwargs)  # type: ignore[no-any-return]
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)  # type: ignore[no-any-return]
            return node.target(*args, **kwargs)  # type: ignore[operator, no-any-return]

        rectifies = operation in (F.relu, torch.relu)
        candidate: nn.Module | None = nn.ReLU() if rectifies else module
        activation = RELU6 if isinstance(candidate, nn.ReLU6) else None
        if activation is None and candidate is not None:
            activation = activation_of(candidate)
        scaled = operation in PRODUCTS and len(inputs) == 1
        normed = isinstance(module, nn.BatchNorm2d) and module.track_running_stats
        affine = operation in (*AFFINE, nn.Conv2d) or scaled or normed
        kind: Kind = (
            "input" if node.op == "placeholder"
            else "reshaped" if operation in RESHAPED
            else "affine" if affine
            else "activation" if activation is not None
            else "other"
        )  # fmt: skip
        parameter = str(node.target) if module is not None else ""
        return Step(node.name, kind, inputs, users, (), operation, run, parameter, module, activation)

    def _constant(self, node: fx.Node) -> Tensor:
        """Return a parameter or buffer that the network uses directly."""
        value: Any = self.model
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not torch.is_tensor(value):
            raise InputError(f"'{node.target}' is not a tensor; peeling supports only tensors as constants")
        return value

    def hides(self) -> str:
        """Return which operation before the first layers may give the same for different inputs, "" if none does."""
        queue = [self.inputs]
        while queue:
            step = queue.pop(0)
            if step.kind == "other":
                return f"{step.says} before the first layer may give the same for other inputs"
            queue += [self.steps[user] for user in step.users] if step.layer is None else []
        return ""

    def source(self, name: str) -> Step:
        """Return the nearest step below, or this step, that does more than reshape its input."""
        step = self.steps[name]
        return self.source(step.inputs[0]) if step.kind == "reshaped" else step

    def pushed(self, name: str, delta: Tensor) -> dict[str, Tensor]:
        """Return the gradient at each input of an affine step from the gradient `delta` (B, …) at its output."""
        step = self.steps[name]
        zeros = [delta.new_zeros(len(delta), *self.steps[source].shape).requires_grad_() for source in step.inputs]
        with torch.enable_grad():
            gradients = torch.autograd.grad(step.run(*zeros), zeros, delta)
        return dict(zip(step.inputs, gradients, strict=True))

    def values_at(self, names: Iterable[str], inputs: Tensor) -> dict[str, Tensor]:
        """Return the values of these steps and of all steps below them, for a batch of the network's inputs."""
        wanted, values = set(names), dict[str, Tensor]()
        for step in reversed(self.steps.values()):
            if step.name in wanted:
                wanted.update(step.inputs)
        for step in self.steps.values():
            if step.name in wanted:
                arguments = [values[source] for source in step.inputs]
                values[step.name] = inputs if step.kind == "input" else step.run(*arguments)
        return values

    def below(self, name: str) -> Iterable[list[str]]:
        """Yield, for each layer whose outputs reach an activation in place, the steps from below it to the layer."""
        paths = [[source] for source in self.steps[name].inputs]
        while paths:
            path = paths.pop(0)
            step = self.steps[path[-1]]
            if step.layer is not None:
                yield path
            elif step.in_place or step.kind == "reshaped":
                paths += [[*path, source] for source in step.inputs]
