"""Malformed calls of the public functions end in one line of our own, or in an answer.

`make fuzz` tries many times as many as the tests do.
"""

from __future__ import annotations

import functools
import inspect
import math
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import gradleak
from gradleak import defenses, images, labels, sequences
from gradleak.auditing import Report
from gradleak.errors import GradleakError
from gradleak.images import LBFGS, Adam, GradInversion, LevenbergMarquardt
from gradleak.images import Prior as ImagePrior
from gradleak.leak import Leak, observe, observe_heads
from gradleak.losses import Focal
from gradleak.models.recogniser import recogniser
from gradleak.sequences.matching import Search
from tests.auditing.test_fuzz import TIMES

# Malformed calls of one function in the tests. More are tried by `make fuzz`. An audit runs all attacks.
CALLS = 12 * TIMES
AUDITS = 60 * TIMES
# Parts of messages of torch and its libraries.
FOREIGN = re.compile(
    r"INTERNAL ASSERT|LAPACK|linalg|vmap|functorch|aten::|mat1|Expected |dimension|size of tensor|Traceback|torch\.nn|"
    r"not implemented for|unsupported operand|object has no attribute|argument '|positional|an? instance of"
)
# What the caller's own code said, which a message quotes after it has named the code.
QUOTED = re.compile(r"(?<=does not take inputs of shape )\(.*?\): \w+: .*|(?<= failed): \w+: .*")


QUICK = GradInversion(steps=2, levels=1, statistics=0.0)


# ------------------------------------------------------------------------------------------------- arguments and cases
def drawn(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def net(kind: str) -> Any:
    """Return a small network."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == "mlp":
            return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
        if kind == "conv":
            return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 5))
        if kind == "norm":
            layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)
            return nn.Sequential(*layers)
        return gradleak.models.language.build_language_model("gru", pieces=12, width=16)


def leak_of(kind: str, size: int = 1) -> Leak:
    if kind == "words":
        return observe(net(kind), *sequences.batch_of([[5, 6, 7], [8, 9]][:size]))
    return observe(net(kind), drawn(size, *((6,) if kind == "mlp" else (1, 4, 4))), torch.arange(size) % 5)


@functools.cache
def speech() -> dict[str, Any]:
    model = recogniser("small", 12)
    return {"model": model, "leak": sequences.observe_speech(model, [drawn(8, 80)], [[7, 9, 2]])}


def defended(defense: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the defended gradients, because most defences are functions that return functions."""
    return defense(**options)(leak_of("mlp").gradients)


def right() -> dict[str, Any]:
    """Return an argument that is right for most functions, small and quick, by its name."""
    leak, state = leak_of("mlp"), net("mlp").state_dict()
    return {
        "leak": leak, "leaks": [leak], "heads": leak.heads, "model": net("mlp"), "seen": leak, "head": "2",
        "weight_gradient": leak.weight_gradient, "weight_gradients": leak.weight_gradient, "weight": leak.weight,
        "bias": leak.bias, "bias_gradient": leak.bias_gradient, "before": state,
        "after": {name: 0.99 * value for name, value in state.items()}, "clean": leak.gradients,
        "clients": [leak.gradients] * 2, "sent": leak_of("mlp", 2).gradients, "inputs": drawn(2, 6),
        "targets": torch.tensor([1, 2]), "labels": torch.eye(5)[:1], "images": drawn(2, 1, 4, 4),
        "features": drawn(1, 8),
        "auxiliary": (drawn(10, 6), torch.arange(10) % 5), "known": labels.Knowledge(net("mlp"), input_shape=(6,)),
        "path": labels.label_path(leak.weight_gradient, leak.weight), "classes": torch.tensor([0, 1]),
        "loss": Focal(), "defense": defenses.sign(), "optimizer": Adam(steps=2), "trust": ("unique",),
        "settings": QUICK, "generator": torch.Generator().manual_seed(0),
        "denoiser": nn.Identity(), "search": Search("softmax", 0.1, 2, 0.05), "precision": "float32", "prior": "onehot",
        "label_prior": "onehot", "distance": "cosine", "dummy": "ones", "method": "llg", "rule": "least-squares",
        "kind": "variance", "columns": "all", "definition": "sum", "device": "cpu", "input_shape": (6,),
        "shape": (1, 4, 4), "batch_size": 1, "local_steps": 1, "rounds": 2, "steps": 2, "starts": 2, "multisets": 2,
        "seeds": 1, "batches": 2, "restarts": 1, "levels": 1, "inner": 2, "history": 3, "chunk": 2, "draws": 100,
        "count": 3, "most": 50, "width": 3, "bits": 4, "image_size": 4, "rank": 2, "warmup": 0, "seed": 0, "end": 2,
        "rate": 0.1, "noise": 0.0, "scale": 1.0, "epsilon": 0.1, "momentum": 0.0, "weight_decay": 0.0, "span": 3.0,
        "enough": 0.0, "normal": 0.1, "std": 0.1, "norm": 0.1, "share": 0.5, "noise_multiplier": 1.0, "delta": 1e-5,
        "variation": 0.1, "square": 0.1, "damping": 0.1, "spread": 0.1, "nonnegative": True, "signed": True,
        "bent": True, "whatever_holds": True, "difference": False, "tokens": False, "minutes": 0.05, "memory": 1.0,
        "words": [5, 6, 7], "bag": [2, 7, 9], "only": ["head.weight"], "sentences": [[3, 4], [5]],
        "batch_sizes": (1,), "defenses": ("none",), "precisions": ("float32",),
    }  # fmt: skip


# Leaks of other clients, which `arguments` makes.
NORM = "norm"
CONV = {"leak": "conv"}
WORDS = {"leak": "words", "start": 1}
SPEECH = {"leak": "speech", "start": 1}
# Those arguments of public functions that differ from the usual ones; None leaves an argument out.
OWN: dict[str, dict[str, Any]] = {
    "recover_batch": {"labels": None},
    "recover_jointly": {"batch_size": 2, "prior": "smoothing"},
    "reveal_labels": {"method": "rlg"},
    "label_loss": {"prior": "smoothing"},
    "trace_convolutional": CONV, "invert_convolutional": CONV, "peel": CONV,
    "peeling_counts": {"model": net(NORM)},
    "match": {"prior": ImagePrior(0.1), "start": drawn(1, 6)},
    "polished": CONV | {"inputs": drawn(1, 1, 4, 4)},
    "restore_batches": {"leaks": NORM, "labels": torch.tensor([0])},
    "observe_statistics": {"model": net(NORM), "inputs": drawn(1, 1, 4, 4)},
    "project_batches": {"leaks": NORM, "labels": torch.tensor([0]), "generator": nn.Linear(3, 16)},
    "restore_denoised": {"leaks": NORM, "labels": torch.tensor([0]), "weight": 4.0},
    "batch_of": {"start": 1},
    "read_sentences": WORDS, "read_prefixes": WORDS, "reveal_words": WORDS,
    "observe_speech": {"model": "speech", "speech": [drawn(8, 80)], "tokens": [[7, 2]], "start": 1},
    "read_transcripts": SPEECH, "read_output": SPEECH, "read_sharing": SPEECH, "read_defended": SPEECH,
    "match_transcript": SPEECH,
}  # fmt: skip
AUDIT = {"labels": "onehot", "images": False, "steps": 1, "auxiliary": None}
PUBLIC = {name: getattr(package, name) for package in (labels, images, sequences) for name in package.__all__}
# Public functions and classes with their arguments, by name.
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **{name: (value, OWN.get(name, {})) for name, value in PUBLIC.items() if inspect.isfunction(value)},
    **{
        function.__name__: (function, {})
        for function in (
            observe_heads, Leak.from_update, labels.Knowledge, Adam, LevenbergMarquardt, defenses.release_epsilon,
            defenses.average, defenses.utility,
        )
    },
    **{
        function.__name__: (functools.partial(defended, function), {})
        for function in (
            defenses.gaussian, defenses.laplace, defenses.clip, defenses.clip_share, defenses.dp, defenses.dp_tensors,
            defenses.grad_drop, defenses.prune, defenses.prune_tensors, defenses.quantize,
        )
    },
    **{f"count_labels {method}": (labels.count_labels, {"method": method}) for method in labels.METHODS},
    "observe": (observe, {"local_steps": 2}),
    "observe words": (
        observe,
        dict(zip(("model", "inputs", "targets"), (net("words"), *sequences.batch_of([[5, 6], [7]])), strict=True))
        | {"head": None, "loss": None},
    ),
    "soft labels without bias": (
        labels.recover_soft_labels, {"bias": None, "bias_gradient": None, "scale": None, "solver": "exact"},
    ),
    "the published search": (
        labels.recover_soft_labels, {"bias": None, "bias_gradient": None, "solver": "lbfgs", "prior": None},
    ),
    "recover_batch with labels": (labels.recover_batch, {"prior": None, "bias": None, "bias_gradient": None}),
    "GradInversion": (GradInversion, {"scale": "mean"}),
    "trace_fully_connected by means": (
        images.trace_fully_connected, {"rule": "mean", "labels": None, "precision": None, "noise": None},
    ),
    "match by L-BFGS": (
        images.match, {"leaks": "conv", "prior": None, "labels": "recovered", "optimizer": LBFGS(steps=2)},
    ),
    "match by Levenberg-Marquardt": (
        images.match,
        {"leaks": "conv", "prior": None, "distance": None, "label_prior": None} | {"optimizer": LevenbergMarquardt(2)},
    ),
    "LBFGS": (LBFGS, {"search": True}),
    "ImagePrior": (ImagePrior, {}),
    "Distance": (images.Distance, {"kind": "l2", "head": 1.0, "feature": 0.0, "features": None}),
    "restore_batches with statistics": (
        images.restore_batches,
        {"leaks": NORM, "labels": "counted", "settings": replace(QUICK, statistics=0.1)}
        | {"statistics": images.observe_statistics(net(NORM), drawn(1, 1, 4, 4))},
    ),
    "named": (functools.partial(defended, defenses.named), {"text": "gaussian/0.1"}),
    "shown": (defenses.shown, {"text": "clip/1"}),
    "audit": (gradleak.audit, AUDIT),
    "audit_update": (
        gradleak.audit_update,
        AUDIT | {"inputs": drawn(1, 6), "targets": torch.tensor([0]), "defense": "update"},
    ),
}  # fmt: skip


def arguments(function: Callable[..., Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return valid arguments of a function: those stated for it, and the usual values of its other parameters."""
    where = function.args[0] if isinstance(function, functools.partial) else function
    found = {name: value for name, value in (right() | own).items() if name in inspect.signature(where).parameters}
    for name in {"leak", "leaks", "model"} & found.keys():
        if isinstance(found[name], str):
            found[name] = speech()[name] if found[name] == "speech" else leak_of(found[name])
    return {name: value for name, value in found.items() if value is not None}


# ------------------------------------------------------------------------------------------------------ what was found
def shared(layer: nn.Module, *rest: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), *rest)


def seen(model: nn.Module, *shape: int) -> Leak:
    return observe(model, drawn(1, *(shape or (6,))), torch.tensor([2]))


def twice_at_the_end() -> nn.Module:
    model, head = nn.Module(), nn.Linear(6, 6)
    model.head = head
    model.forward = lambda x: head(head(x).relu())  # type: ignore[assignment]
    return model


class Noisy(nn.Sequential):
    """A network that draws random numbers in its forward pass."""

    def forward(self, x: Tensor) -> Any:
        """Return logits that are not the same twice."""
        return super().forward(x + torch.randn_like(x))


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in names)
    return model


def with_norm(norm: Callable[[nn.Module], object], place: int = 2) -> nn.Module:
    model = net("mlp")
    norm(model[place])
    return model


def without_features() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's on an initialisation without values
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 0), nn.ReLU(), nn.Linear(0, 5))


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: images.trace_fully_connected(seen(frozen(net("mlp"), "0.weight"))), "'0.weight' is frozen"),
    (lambda: images.trace_fully_connected(seen(frozen(net("mlp"), "0.weight")), prior="onehot", rule="mean"),
     "'0.weight' is frozen"),
    (lambda: images.trace_convolutional(seen(frozen(net("conv"), "0.weight"), 1, 4, 4)), "'0.weight' is frozen"),
    (lambda: images.bias_attack(seen(frozen(net("mlp"), "0.weight", "0.bias"))), "'0.weight' is frozen"),
    (lambda: images.bias_attack(seen(net("conv"), 1, 4, 4)), "the first layer is Conv2d '0'"),
    (lambda: images.trace_fully_connected(seen(shared(nn.Linear(6, 6), nn.Linear(6, 5)))), "is tied to '2.weight'"),
    (lambda: images.peel(seen(shared(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(16, 5)), 1, 4, 4)),
     "'0' runs more than once"),
    (lambda: seen(twice_at_the_end()), "'head' runs 2 times in one pass"),
    (lambda: seen(with_norm(parametrizations.weight_norm)), "'2' is computed from other parameters"),
    (lambda: seen(with_norm(parametrizations.spectral_norm)), "'2' is computed from other parameters"),
    (lambda: images.trace_fully_connected(seen(with_norm(parametrizations.weight_norm, 0))),
     "the weight of '0' is computed from other parameters"),
    (lambda: seen(without_features()), "'3' has no inputs or no outputs"),
    (lambda: labels.idlg(drawn(5, 8) * math.nan), "weight_gradient holds NaN"),
    (lambda: images.match(seen(Noisy(*net("mlp"))), torch.tensor([2])), "draws random numbers or keeps a state"),
    (lambda: images.restore_batches(seen(Noisy(*net("norm")), 1, 4, 4), torch.tensor([2]), settings=QUICK),
     "draws random numbers or keeps a state"),
    (lambda: images.trace_fully_connected(replace(seen(net("mlp")), head="0")), "the network ends in '2'"),
    (lambda: observe(net("mlp"), drawn(1, 6), torch.tensor([2]), defense=lambda sent: [1]),  # type: ignore[arg-type,return-value]
     "a defence must return a dictionary"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_cannot_be_attacked_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GradleakError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_a_head_with_equal_rows_has_no_features(spread: float, size: int, scale: float | None) -> None:
    weight = spread * drawn(1, 16).expand(10, 16)
    inputs, onehot = drawn(size, 16), torch.eye(10)[:size]
    gradient = ((inputs @ weight.T).softmax(dim=1) - onehot).T @ inputs / size
    found = labels.recover_batch(gradient, weight, batch_size=size, scale=scale)
    assert (found.status, "are equal" in found.reason) == ("failed", True)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_an_audit_of_a_network_with_a_frozen_first_layer_is_whole(kind: str) -> None:
    inputs = drawn(2, 6) if kind == "mlp" else drawn(2, 1, 4, 4)
    report = gradleak.audit(frozen(net(kind), "0.weight", "0.bias"), inputs, torch.arange(2), batch_sizes=(1,), steps=1)
    assert report.broken == []
    reasons = {one.attack: one.why for one in report.not_tried}
    attack = "linear layers backwards" if kind == "mlp" else "convolutions backwards"
    assert reasons[attack] == "'0.weight' is frozen"


def test_a_sparse_gradient_is_sent_as_any_other() -> None:
    model = nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Linear(4, 12))
    tokens, targets = sequences.batch_of([[5, 6, 7]])
    gradient = observe(model, tokens, targets).gradients["0.weight"]
    assert (gradient.layout, gradient.any(dim=1).nonzero()[:, 0].tolist()) == (torch.strided, [1, 5, 6, 7])
    report = gradleak.audit(model, tokens, targets, batch_sizes=(1,), steps=1)
    assert report.broken == []
    assert report.worst("words") == 1


# ---------------------------------------------------------------------------------------------------- what goes wrong
def fails(*_: object, **__: object) -> Any:
    raise ValueError("\nfirst\nsecond")


WEIGHTS: dict[str, Callable[[nn.Module], object]] = {
    "frozen": lambda model: model.get_submodule("first").requires_grad_(False),
    "frozen head": lambda model: model.get_submodule("head").requires_grad_(False),
    "spare": lambda model: model.register_module("spare", nn.Linear(3, 3)),
    "half": lambda model: model.half(),
    "double": lambda model: model.double(),
    "meta": lambda model: model.to("meta"),
    "nan": lambda model: nn.init.constant_(model.get_parameter("head.weight"), math.nan),
    "zero": lambda model: nn.init.zeros_(model.get_parameter("head.weight")),
    "huge": lambda model: nn.init.constant_(model.get_parameter("first.weight"), 1e30),
}
RAISED = {"raises": KeyError("lost"), "silent": AssertionError(), "many lines": OSError("\n\nfirst\nsecond")}
OUTPUTS: dict[str, Callable[[Tensor], object]] = {
    "tuple": lambda y: (y, y), "nothing": lambda y: None, "flat": lambda y: y.sum(dim=1),
    "maps": lambda y: y[:, :, None, None], "detached": lambda y: y.detach(), "one": lambda y: y.sum(),
    "fewer": lambda y: y[:1], "whole": lambda y: y.long(), "softmax": lambda y: y.softmax(dim=1),
    "endless": lambda y: y / 0,
}  # fmt: skip


class Odd(nn.Module):
    """A network of two layers with something odd about it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.head = kind, nn.Linear(6, 6), nn.Linear(6, 5)
        WEIGHTS.get(kind, lambda model: None)(self)

    def forward(self, x: Tensor) -> Any:
        """Return logits, or something else."""
        if self.kind in RAISED:
            raise RAISED[self.kind]
        return OUTPUTS.get(self.kind, lambda y: y)(self.head(self.first(x.flatten(1)).relu()))


MODELS: list[Callable[[], Any]] = [
    *(functools.partial(Odd, kind) for kind in (*WEIGHTS, *RAISED, *OUTPUTS)),
    lambda: frozen(net("conv"), "0.weight", "0.bias"),
    lambda: frozen(net("words"), "embedding.weight"),
    lambda: with_norm(parametrizations.weight_norm),
    lambda: with_norm(parametrizations.orthogonal),
    lambda: nn.Linear(6, 1),
    lambda: nn.LazyLinear(5),
    lambda: nn.Sequential(nn.Dropout(0.5), *net("mlp")).train(),
    lambda: Noisy(*net("mlp")),
    lambda: nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Linear(4, 12)),
    lambda: shared(nn.Linear(6, 6), nn.Linear(6, 5)),
    lambda: net("conv").half(),
    lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"), *net("conv")[1:]),
    lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), *net("conv")[1:]),
    lambda: nn.Sequential(nn.BatchNorm2d(1), *net("conv")),
    lambda: nn.Identity(),
    without_features,
]
TENSORS: list[Callable[[Tensor], Any]] = [
    lambda value: value[..., :0],
    lambda value: value[None],
    lambda value: value[0] if value.ndim else value,
    lambda value: value.mT if value.ndim > 1 else value,
    lambda value: torch.cat([value, value]) if value.ndim else value,
    lambda value: value.long(),
    lambda value: value.bool(),
    lambda value: value.half(),
    lambda value: value.double(),
    lambda value: value.cfloat(),
    lambda value: torch.zeros_like(value),
    lambda value: value * 0 + 1,
    lambda value: torch.where(value == value.max(), math.nan, value.float()),
    lambda value: value.float() * 1e38,
    lambda value: value.float() * 1e-40,
    lambda value: value.to("meta"),
    lambda value: value.to_sparse() if value.ndim else value,
    lambda value: value.tolist(),
    lambda value: value.numpy(),
    lambda value: value + 10**6,
]
VALUES: list[Any] = [
    None, -1, 0, 2, 0.5, 10**30, 1e-300, 1e308, math.nan, -math.inf, True, "", "nothing", "onehot", "a\nb", b"bytes",
    [], (1, -2), {"a": 1}, object(), int, fails, np.float64(0.5), np.int64(2), 1 + 2j,
]  # fmt: skip
FIELDS: dict[str, list[Any]] = {
    "head": ["", "0", "nothing", 3, None],
    "batch_size": [0, -1, 2, 1.5, "x", None, True, 10**30],
    "local_steps": [0, 2, 1.5, "x", None],
    "input_shape": [None, (), (0,), (-1, 4), (7,), (1, 4, 4), (2, 4, 4), "x", [6]],
    "gradients": [{}, None, [1], {"x": torch.ones(1)}, {0: torch.ones(2)}],
    "model": [None, 3, nn.Linear(6, 5), net("conv"), net("mlp")],
}


def wrong_leak(leak: Leak, draw: random.Random) -> Leak:
    """Return a leak with another field or gradient, or that of another model."""
    kind = draw.choice([*FIELDS, "missing", "sent", "sent", "observed", "observed"])
    if kind in FIELDS:
        return replace(leak, **{kind: draw.choice(FIELDS[kind])})
    if kind == "observed":
        return observed(leak, draw)
    name = draw.choice([*leak.gradients, leak.parameter("weight")])
    if kind == "sent":
        return replace(leak, gradients=leak.gradients | {name: draw.choice(TENSORS)(leak.gradients[name])})
    return replace(leak, gradients={key: value for key, value in leak.gradients.items() if key != name})


def observed(leak: Leak, draw: random.Random) -> Leak:
    """Return the leak of another model; with random numbers for gradients if the model cannot be observed."""
    model = draw.choice(MODELS)()
    try:
        if any(isinstance(module, nn.Embedding) for module in model.modules()):
            return observe(model, *sequences.batch_of([[5, 6, 7], [8, 9]][: leak.batch_size]))
        return observe(model, drawn(leak.batch_size, *(leak.input_shape or (6,))), torch.arange(leak.batch_size))
    except GradleakError:
        lazy = nn.parameter.UninitializedParameter
        named = [
            (name, one) for name, one in model.named_parameters() if one.requires_grad and not isinstance(one, lazy)
        ]
        name = next((name for name, module in model.named_modules() if isinstance(module, nn.Linear)), "")
        return replace(leak, model=model, gradients={name: torch.rand_like(one) for name, one in named}, head=name)


def malformed(value: Any, draw: random.Random) -> Any:
    """Return a value in place of a right one."""
    if draw.random() < 0.15:
        return draw.choice(VALUES)
    if torch.is_tensor(value):
        return draw.choice(TENSORS)(value.detach())
    if isinstance(value, Leak):
        return wrong_leak(value, draw)
    if isinstance(value, nn.Module):
        return draw.choice(MODELS)()
    if isinstance(value, dict):
        key = draw.choice(list(value))
        changed = {**value, key: malformed(value[key], draw)}
        return draw.choice([changed, {name: own for name, own in value.items() if name != key}])
    if isinstance(value, list | tuple) and value:
        place = draw.randrange(len(value))
        parts = [*value[:place], malformed(value[place], draw), *value[place + 1 :]]
        return draw.choice([type(value)(parts), value[:place], value + value])
    return draw.choice(VALUES)


# How much work is to be done: who asks for more has to wait.
AMOUNTS = {
    "rounds", "starts", "steps", "multisets", "draws", "restarts", "seeds", "batches", "count", "most", "inner",
    "levels", "minutes", "span", "width", "bits", "image_size",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::gradleak.errors.GradleakWarning")
@pytest.mark.parametrize("name", CASES)
def test_malformed_calls_end_in_one_line_of_our_own(name: str) -> None:
    function, own = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        function(**arguments(function, own))
        for seed in range(AUDITS if function is gradleak.audit else CALLS):
            check_call(function, arguments(function, own), random.Random(f"{name} {seed}"))


def check_call(function: Callable[..., Any], given: dict[str, Any], draw: random.Random) -> None:
    """Call a function with one or two malformed arguments, and check the message if it refuses them."""
    changed = draw.sample(list(given), min(len(given), draw.choice([1, 1, 2])))
    try:
        wrong = given | {name: malformed(given[name], draw) for name in changed}
    except (RuntimeError, TypeError, IndexError, NotImplementedError):
        return  # torch cannot make such a value
    wrong |= {name: 1 for name in AMOUNTS & set(wrong) if isinstance(wrong[name], float | int) and wrong[name] > 9}
    if wrong.get("settings", "") is None:  # the published search, which is right and long
        wrong["settings"] = "none"
    said = "answered"
    try:
        answer = function(**wrong)
        if isinstance(answer, Report):  # an attack that says that no other answer fits is right
            sure = [found for found in answer.findings if found.certificate == "unique"]
            assert all(found.measures.get("labels", 1.0) == 1 for found in sure)
            assert Report.from_json(answer.to_json()).findings == answer.findings
    except GradleakError as error:
        said = str(error)
    assert said
    assert "\n" not in said
    assert not FOREIGN.search(QUOTED.sub("", said)), f"another library's text: {said}"
