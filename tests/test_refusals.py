"""What cannot be attacked is refused in one line of our own, and malformed calls end in such a line or in an answer.

`make fuzz` tries many times as many malformed calls as the tests do.
"""

from __future__ import annotations

import functools
import inspect
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import gradleak
from gradleak import augment, defenses, images, labels, metrics, sequences
from gradleak.auditing import Report
from gradleak.errors import GradleakError
from gradleak.images import Adam, GradInversion, LevenbergMarquardt
from gradleak.images import Prior as ImagePrior
from gradleak.images.matching.factored import factored
from gradleak.leak import Leak, observe, observe_heads
from gradleak.losses import Focal
from gradleak.models.recogniser import recogniser
from gradleak.models.transformer import VisionTransformer
from gradleak.sequences.matching import Search
from tests.auditing.test_fuzz import TIMES

# Malformed calls of one function in the tests. More are tried by `make fuzz`. An audit runs all attacks.
CALLS = 4 * TIMES
AUDITS = 20 * TIMES
# Parts of messages of torch and its libraries.
FOREIGN = re.compile(
    r"INTERNAL ASSERT|LAPACK|linalg|vmap|functorch|aten::|mat1|Expected |dimension|size of tensor|Traceback|torch\.nn|"
    r"not implemented for|unsupported operand|object has no attribute|argument '|positional|an? instance of"
)
# What the caller's own code said, which a message quotes after it has named the code.
QUOTED = re.compile(r"(?<=does not take inputs of shape )\(.*?\): \w+: .*|(?<= failed): \w+: .*")
QUICK = GradInversion(steps=2, levels=1, statistics=0.0)


# -------------------------------------------------------------------------------------------------- networks and leaks
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
        if kind == "vit":
            return VisionTransformer(4, 2, 8, 2, 1, 5)
        cell = "transformer" if kind == "prefixes" else "gru"
        return gradleak.models.language.build_language_model(cell, pieces=12, width=16)


def leak_of(kind: str, size: int = 1) -> Leak:
    if kind in ("words", "prefixes"):
        return observe(net(kind), *sequences.batch_of([[5, 6, 7], [8, 9]][:size]))
    shape = {"mlp": (6,), "vit": (3, 4, 4)}.get(kind, (1, 4, 4))
    return observe(net(kind), drawn(size, *shape), torch.arange(size) % 5)


@functools.cache
def speech() -> dict[str, Any]:
    model = recogniser("small", 12)
    return {"model": model, "leak": sequences.observe_speech(model, [drawn(8, 80)], [[7, 9, 2]])}


def seen(model: nn.Module, *shape: int) -> Leak:
    return observe(model, drawn(1, *(shape or (6,))), torch.tensor([2]))


def shared(layer: nn.Module, *rest: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), *rest)


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


# ------------------------------------------------------------------------------------------------- what is not attacked
def soft(**changed: Any) -> object:
    usual = {"weight_gradient": torch.ones(2, 10, 8), "weight": torch.ones(10, 8)}
    return labels.recover_soft_labels(**usual | changed)


def head(attack: Callable[..., object], **changed: Any) -> object:
    leak = leak_of("mlp")
    return attack(**{"weight_gradient": leak.weight_gradient, "weight": leak.weight} | changed)


def sees(**changed: Any) -> object:
    return observe(**{"model": net("mlp"), "inputs": drawn(3, 6), "targets": torch.arange(3)} | changed)


def update(**changed: Any) -> object:
    state = net("mlp").state_dict()
    return Leak.from_update(net("mlp"), **{"before": state, "after": state, "rate": 0.1, "batch_size": 1} | changed)


def match(kind: str, size: int = 1, **changed: Any) -> object:
    return images.match(leak_of(kind, size), **{"optimizer": Adam(steps=1)} | changed)


def audit(**changed: Any) -> object:
    return gradleak.audit(**{"model": net("mlp"), "inputs": drawn(12, 6), "targets": torch.arange(12) % 5} | changed)


BATCH, JOINT = labels.recover_batch, labels.recover_jointly
MIXTURE, CLASSES = labels.Prior(3, "zero"), torch.tensor([0, 1, 2])
REFUSED: list[tuple[Callable[[], object], str]] = [
    # What a client is.
    (lambda: sees(model=nn.Sequential(nn.Flatten())), "no Linear layer"),
    (lambda: sees(inputs=drawn(3, 6) * math.nan), "NaN or infinite"),
    (lambda: sees(inputs=drawn(3, 9)), r"does not take inputs of shape \(3, 9\)"),
    (lambda: sees(targets=torch.arange(2)), "3 inputs but 2 targets"),
    (lambda: sees(targets=torch.arange(3) + 5), "must lie in 0 … 4"),
    (lambda: sees(targets=torch.ones(3, 5)), "sum"),
    (lambda: sees(targets=torch.tensor([[2.0, -1, 0, 0, 0]] * 3)), "negative"),
    (lambda: sees(inputs=drawn(3, 6) * 1e30, precision="float16"), "its forward pass overflows"),
    (lambda: sees(defense=lambda sent: [1]), "a defence must return a dictionary"),
    (lambda: sees(local_steps=2), "3 samples cannot be cut into 2"),
    (lambda: update(rate=0.0), "rate must be above 0"),
    (lambda: update(momentum=1.0), "momentum in 0 … 1"),
    (lambda: update(after={}), "the state after is not of Sequential: it differs in 0.bias"),
    (lambda: seen(with_norm(parametrizations.weight_norm)), "'2' is computed from other parameters"),
    (lambda: augment.mixup(drawn(2, 1), torch.eye(3)[[0, 0]], generator=0), "needs 2 classes"),
    (lambda: augment.smooth(CLASSES, 3, 1.5), "epsilon must lie in 0 … 1"),
    (lambda: defenses.named("quantize/4.5"), "bits must be a whole number; got 4.5"),
    (lambda: defenses.named("gaussian/1"), "draws noise: pass a generator"),
    (lambda: metrics.identified(drawn(2, 8), drawn(50, 8), torch.tensor([0, 50])), "an index in the gallery of 50"),
    (lambda: metrics.identified(drawn(2, 3), drawn(50, 8), torch.tensor([0, 1])), r"\(N, I\) and \(M, I\)"),
    (lambda: metrics.lpips(drawn(1, 3, 64, 64), drawn(1, 3, 64, 64), trunk="alexnet"), "did you mean 'alex'"),
    (lambda: metrics.psnr(drawn(1, 3, 8, 8), 255 * drawn(1, 3, 8, 8)), r"must lie in \[0, 1\]"),
    # Labels.
    (lambda: soft(solver="exakt"), r"unknown solver 'exakt'.*exact"),
    (lambda: soft(solver="lbfgs", noise=0.1), "'lbfgs' takes no noise"),
    (lambda: soft(certify="proof", scale=None), "proof"),
    (lambda: soft(prior=None), "without a prior any label fits"),
    (lambda: soft(prior=labels.Prior(10, "zero")), "the prior says nothing"),
    (lambda: soft(prior=MIXTURE, scale=None), "an unknown scale is found for one-hot"),
    (lambda: soft(scale=-1.0), "a scale is a positive factor"),
    (lambda: soft(bias_gradient=torch.zeros(2, 10)), "needs the bias as well"),
    (lambda: soft(weight=None), "needs the weight as well"),
    (lambda: soft(weight_gradient=leak_of("mlp")), "give none of them beside it"),
    (lambda: labels.recover_soft_labels(leak_of("mlp", 2)), "a batch of 2 samples: use recover_batch"),
    (lambda: labels.recover_soft_labels(replace(leak_of("mlp"), local_steps=2)), "the gradients of 2 local steps"),
    (lambda: labels.recover_soft_labels(seen(frozen(net("mlp"), "2.weight"))), "'2.weight' is frozen"),
    (lambda: BATCH(leak_of("mlp", 2), labels=torch.eye(4)[:2]), r"labels must be \(B, C\) = \(B, 5\)"),
    (lambda: soft(weight=torch.zeros(10, 7)), r"\(C, I\) = \(10, 7\) or \(N, C, I\)"),
    (lambda: soft(weight=torch.zeros(2, 8), weight_gradient=torch.ones(2, 2, 8)), "a label of 2 classes"),
    (lambda: labels.label_path(torch.zeros(1, 5, 8), drawn(5, 8)), "1 of 1 gradients are zero"),
    (lambda: head(BATCH, bias=drawn(5)), "a bias comes with its gradient"),
    (lambda: head(BATCH, labels=torch.ones(2, 5)), "labels are not probabilities"),
    (lambda: head(BATCH, prior=MIXTURE), "one-hot, smoothed, or mixtures"),
    (lambda: BATCH(torch.ones(300, 4), drawn(300, 4), prior="mixup", batch_size=1), "too many to try"),
    (lambda: head(JOINT, prior="mixup"), "the two classes of each are told"),
    (lambda: head(JOINT, classes=torch.tensor([5])), "from 0 to 4"),
    (lambda: head(JOINT, classes=CLASSES, batch_size=2), "3 samples' classes were given"),
    (lambda: labels.count_labels(leak_of("mlp"), "llg+"), r"llg\+ needs samples of the same kind"),
    (lambda: labels.count_labels(leak_of("mlp"), "lgl"), "unknown method 'lgl'"),
    # Images.
    (lambda: images.trace_fully_connected(seen(frozen(net("mlp"), "0.weight"))), "'0.weight' is frozen"),
    (lambda: images.trace_fully_connected(leak_of("mlp"), rule="mean", precision="float16"), "takes no precision"),
    (lambda: images.trace_convolutional(seen(frozen(net("conv"), "0.weight"), 1, 4, 4)), "'0.weight' is frozen"),
    (lambda: images.bias_attack(seen(net("conv"), 1, 4, 4)), "'0' does not see the whole input"),
    (lambda: images.trace_fully_connected(seen(shared(nn.Linear(6, 6), nn.Linear(6, 5)))), "is tied to '2.weight'"),
    (lambda: images.peel(seen(shared(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(16, 5)), 1, 4, 4)),
     "'0' runs more than once"),
    (lambda: images.trace_fully_connected(seen(with_norm(parametrizations.weight_norm, 0))),
     "the weight of '0' is computed from other parameters"),
    (lambda: images.trace_fully_connected(replace(seen(net("mlp")), head="0")), "the network ends in '2'"),
    (lambda: images.trace_fully_connected(seen(nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 5)))), "is GELU"),
    (lambda: images.trace_convolutional(seen(nn.Sequential(net("conv")[0], nn.ReLU(), *net("conv")[2:]), 1, 4, 4)),
     "the ReLU after '0' cannot"),
    (lambda: images.match(seen(Noisy(*net("mlp"))), torch.tensor([2])), "draws random numbers or keeps a state"),
    (lambda: match("conv", distance="cosine", optimizer=LevenbergMarquardt()), "plain L2"),
    (lambda: match("conv", 2, labels="idlg"), "iDLG finds the label of a single"),
    (lambda: match("conv", 2, labels=torch.eye(5)[:1]), r"one entry per private sample, 2; got \(1, 5\)"),
    (lambda: factored(leak_of("mlp", 2)), "is not of rank one.*2 samples"),
    (lambda: images.match([leak_of("conv"), leak_of("conv")]), "another model"),
    # Words.
    (lambda: sequences.match_transcript(speech()["leak"], starts=0), "at least one start and one step; got 0"),
    (lambda: sequences.match_transcript(leak_of("mlp")), "Recogniser's decoder; got Sequential"),
    (lambda: sequences.read_sentences(leak_of("words"), start=12), "start must be one of the model's 12 tokens"),
    # Audits.
    (lambda: audit(model=net("mlp").half()), "float16"),
    (lambda: audit(model=net("mlp").requires_grad_(False)), "needs a gradient"),
    (lambda: audit(inputs=torch.zeros(12, 6, dtype=torch.complex64)), "complex"),
    (lambda: audit(batch_sizes=(0,)), "batch sizes"),
    (lambda: audit(batch_sizes=(13,)), "a batch of 13 cannot be drawn from 12"),
    (lambda: audit(defenses=("clip",)), "clip/level"),
    (lambda: audit(memory=1e-6), "gradients alone need about"),
    (lambda: audit(precisions=("bf17",)), "unknown precision 'bf17': did you mean .* Known: bfloat16"),
    (lambda: audit(precisions=("float64",)), "parameters are float32: its client cannot compute in float64"),
    (lambda: gradleak.audit_update(replace(leak_of("mlp"), input_shape=None)), "what shape one input has"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_cannot_be_attacked_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GradleakError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_sparse_gradient_is_sent_as_any_other() -> None:
    model = nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Linear(4, 12))
    report = gradleak.audit(model, *sequences.batch_of([[5, 6, 7]]), batch_sizes=(1,), steps=1)
    assert report.broken == []
    assert report.worst("words") == 1


# ---------------------------------------------------------------------------------------------------- malformed calls
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
        "auxiliary": (drawn(20, 6), torch.arange(20) % 5), "known": labels.Knowledge(net("mlp"), input_shape=(6,)),
        "path": labels.label_path(leak.weight_gradient, leak.weight), "classes": torch.tensor([0, 1]),
        "loss": Focal(), "defense": defenses.sign(), "optimizer": Adam(steps=2), "settings": QUICK,
        "generator": torch.Generator().manual_seed(0), "denoiser": nn.Identity(),
        "search": Search("softmax", 0.1, 2, 0.05), "precision": "float32", "prior": "onehot", "label_prior": "onehot",
        "method": "llg", "device": "cpu", "input_shape": (6,), "shape": (1, 4, 4), "batch_size": 1, "rounds": 2,
        "steps": 2, "starts": 2, "multisets": 2, "seeds": 1, "batches": 2, "chunk": 2, "draws": 100, "count": 3,
        "most": 50, "width": 3, "image_size": 4, "rate": 0.1, "minutes": 0.05, "words": [5, 6, 7], "bag": [2, 7, 9],
        "only": ["head.weight"], "sentences": [[3, 4], [5]], "batch_sizes": (1,), "defenses": ("none",),
        "precisions": ("float32",), "text": "gaussian/0.1",
    }  # fmt: skip


# Leaks of other clients, which `arguments` makes.
NORM = {"leaks": "norm", "labels": torch.tensor([0])}
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
    "trace_transformer": {"leak": "vit"}, "invert_transformer": {"leak": "vit"},
    "peeling_counts": {"model": net("norm")},
    "match": {"prior": ImagePrior(0.1), "start": drawn(1, 6)},
    "polished": CONV | {"inputs": drawn(1, 1, 4, 4)},
    "match_span": {"leak": leak_of("mlp", 2), "labels": torch.eye(5)[:2]},
    "restore_batches": NORM,
    "observe_statistics": {"model": net("norm"), "inputs": drawn(1, 1, 4, 4)},
    "project_batches": NORM | {"generator": nn.Linear(3, 16)},
    "restore_denoised": NORM | {"weight": 4.0},
    "batch_of": {"start": 1},
    "read_sentences": WORDS, "read_prefixes": WORDS, "reveal_words": WORDS,
    "read_bag": {"leak": "prefixes"},
    "observe_speech": {"model": "speech", "speech": [drawn(8, 80)], "tokens": [[7, 2]], "start": 1},
    "read_transcripts": SPEECH, "read_output": SPEECH, "read_sharing": SPEECH, "read_defended": SPEECH,
    "match_transcript": SPEECH,
}  # fmt: skip
AUDIT = {"labels": "onehot", "images": False, "steps": 1, "auxiliary": None}
PUBLIC = {name: getattr(package, name) for package in (labels, images, sequences) for name in package.__all__}
# Public functions with their arguments, by name.
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **{name: (value, OWN.get(name, {})) for name, value in PUBLIC.items() if inspect.isfunction(value)},
    **{f"count_labels {method}": (labels.count_labels, {"method": method}) for method in labels.METHODS},
    **{one.__name__: (one, {}) for one in (observe_heads, Leak.from_update, defenses.named, defenses.average)},
    "observe": (observe, {"local_steps": 2}),
    "the published search": (
        labels.recover_soft_labels, {"bias": None, "bias_gradient": None, "solver": "lbfgs", "prior": None},
    ),
    "match by Levenberg-Marquardt": (
        images.match,
        {"leaks": "conv", "prior": None, "distance": None, "label_prior": None} | {"optimizer": LevenbergMarquardt(2)},
    ),
    "audit": (gradleak.audit, AUDIT),
    "audit_update": (
        gradleak.audit_update,
        AUDIT | {"inputs": drawn(1, 6), "targets": torch.tensor([0]), "defense": "update"},
    ),
}  # fmt: skip


def arguments(function: Callable[..., Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return valid arguments of a function: those stated for it, the usual ones by their names, and defaults."""
    parameters = inspect.signature(function).parameters
    stated = {name: value for name, value in (right() | own).items() if value is not None}
    given = {name: stated.get(name, one.default) for name, one in parameters.items()}
    found = {name: value for name, value in given.items() if value is not inspect.Parameter.empty}
    for name in {"leak", "leaks", "model"} & found.keys():
        if isinstance(found[name], str):
            found[name] = speech()[name] if found[name] == "speech" else leak_of(found[name])
    return found


def fails(*_: object, **__: object) -> Any:
    raise ValueError("\nfirst\nsecond")


class Odd(nn.Module):
    """A network of two layers, with something odd about its weights or its logits."""

    def __init__(self, output: Callable[[Tensor], object], change: Callable[[Any], object] = lambda _: None) -> None:
        super().__init__()
        self.output, self.first, self.head = output, nn.Linear(6, 6), nn.Linear(6, 5)
        change(self)

    def forward(self, x: Tensor) -> Any:
        """Return logits, or something else."""
        return self.output(self.head(self.first(x.flatten(1)).relu()))


MODELS: list[Callable[[], Any]] = [
    lambda: Odd(fails),
    lambda: Odd(lambda y: (y, y)),
    lambda: Odd(lambda y: y.detach()),
    lambda: Odd(lambda y: y.softmax(dim=1)),
    lambda: Odd(lambda y: y, lambda own: own.head.requires_grad_(False)),
    lambda: Odd(lambda y: y, lambda own: own.to("meta")),
    lambda: Odd(lambda y: y, lambda own: nn.init.constant_(own.head.weight, math.nan)),
    lambda: Odd(lambda y: y, lambda own: nn.init.constant_(own.first.weight, 1e30)),
    lambda: frozen(net("conv"), "0.weight", "0.bias"),
    lambda: with_norm(parametrizations.weight_norm),
    lambda: nn.LazyLinear(5),
    lambda: nn.Sequential(nn.Dropout(0.5), *net("mlp")).train(),
    lambda: Noisy(*net("mlp")),
    lambda: shared(nn.Linear(6, 6), nn.Linear(6, 5)),
]
TENSORS: list[Callable[[Tensor], Any]] = [
    lambda value: value[..., :0],
    lambda value: value.mT if value.ndim > 1 else value,
    lambda value: torch.cat([value, value]) if value.ndim else value,
    lambda value: value.double(),
    lambda value: torch.zeros_like(value),
    lambda value: torch.where(value == value.max(), math.nan, value.float()),
    lambda value: value.float() * 1e38,
    lambda value: value.to_sparse() if value.ndim else value,
    lambda value: value.tolist(),
    lambda value: value + 10**6,
]
VALUES: list[Any] = [
    None, -1, 0, 2, 0.5, 10**30, 1e-300, 1e308, math.nan, -math.inf, True, "", "nothing", "onehot", "a\nb", b"bytes",
    [], (1, -2), {"a": 1}, object(), int, fails, np.float64(0.5), np.int64(2), 1 + 2j,
]  # fmt: skip


def wrong_leak(leak: Leak, draw: random.Random) -> Leak:
    """Return a leak with another field, gradient or model."""
    kind = draw.choice(["field", "missing", "sent", "model"])
    if kind == "field":
        field = draw.choice(["head", "batch_size", "local_steps", "input_shape", "gradients"])
        return replace(leak, **{field: draw.choice(VALUES)})
    if kind == "model":
        return replace(leak, model=draw.choice(MODELS)())
    name = draw.choice([*leak.gradients, leak.parameter("weight")])
    if kind == "sent":
        return replace(leak, gradients=leak.gradients | {name: draw.choice(TENSORS)(leak.gradients[name])})
    return replace(leak, gradients={key: value for key, value in leak.gradients.items() if key != name})


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
    except GradleakError as error:
        said = str(error)
    assert said
    assert "\n" not in said
    assert not FOREIGN.search(QUOTED.sub("", said)), f"another library's text: {said}"
