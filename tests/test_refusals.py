"""Malformed calls of the public functions end in one line of our own, or in an answer.

`make fuzz` tries many times as many as the tests do.
"""

from __future__ import annotations

import functools
import math
import os
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

import gradleak
from gradleak import defenses, images, labels, sequences
from gradleak.errors import GradleakError
from gradleak.images import LBFGS, Adam, GradInversion, LevenbergMarquardt
from gradleak.images import Prior as ImagePrior
from gradleak.leak import Leak, observe, observe_heads
from gradleak.losses import Focal
from gradleak.models.recogniser import recogniser
from gradleak.sequences.matching import Search
from tests.auditing.test_fuzz import ODDITIES, Odd

TIMES = int(os.environ.get("GRADLEAK_FUZZ", "1"))
# Malformed calls of one function in the tests. More are tried by `make fuzz`.
CALLS = 24 * TIMES
# Parts of messages of torch and its libraries.
FOREIGN = re.compile(
    r"INTERNAL ASSERT|LAPACK|linalg|vmap|functorch|aten::|mat1|Expected |dimension|size of tensor|Traceback|torch\.nn|"
    r"not implemented for|unsupported operand|object has no attribute|argument '|positional|an? instance of"
)
# What the caller's own code said, which a message quotes after it has named the code.
QUOTED = re.compile(r"(?<=does not take inputs of shape )\(.*?\): \w+: .*|(?<= failed): \w+: .*")


# ----------------------------------------------------------------------------------------------------------- the calls
def drawn(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def net(kind: str) -> nn.Module:
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
    inputs = drawn(size, 6) if kind == "mlp" else drawn(size, 1, 4, 4)
    return observe(net(kind), inputs, torch.arange(size) % 5)


@functools.cache
def speech() -> tuple[nn.Module, Leak]:
    model = recogniser("small", 12)
    return model, sequences.observe_speech(model, [torch.randn(8, 80)], [[7, 9, 2]])


def head(size: int) -> dict[str, Any]:
    leak = leak_of("mlp", size)
    return {"weight_gradient": leak.weight_gradient, "weight": leak.weight}


def biased(size: int) -> dict[str, Any]:
    leak = leak_of("mlp", size)
    return head(size) | {"bias": leak.bias, "bias_gradient": leak.bias_gradient}


def updated() -> dict[str, Any]:
    model = net("mlp")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    return {"model": model, "before": before, "after": {name: 0.99 * value for name, value in before.items()}}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def auxiliary() -> tuple[Tensor, Tensor]:
    return drawn(10, 6), torch.arange(10) % 5


def defended(defense: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the defended gradients, because most defences are functions that return functions."""
    return defense(**options)(leak_of("mlp").gradients)


QUICK = GradInversion(steps=2, levels=1, statistics=0.0)
# Every function with arguments that are right, which are small and quick.
CASES: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "observe": (observe, lambda: {
        "model": net("mlp"), "inputs": drawn(2, 6), "targets": torch.tensor([1, 2]), "defense": defenses.sign(),
        "head": "2", "loss": Focal(), "local_steps": 1, "rate": 0.1, "precision": "float32"}),
    "observe words": (observe, lambda: dict(zip(
        ("model", "inputs", "targets"), (net("words"), *sequences.batch_of([[5, 6], [7]])), strict=True))),
    "observe_heads": (observe_heads, lambda: {
        "model": net("mlp"), "inputs": drawn(2, 6), "targets": torch.tensor([1, 2]), "batch_size": 2, "chunk": 5}),
    "from_update": (Leak.from_update, lambda: updated() | {
        "rate": 0.1, "batch_size": 1, "local_steps": 1, "momentum": 0.0, "weight_decay": 0.0, "input_shape": (6,),
        "head": "2"}),
    "recover_soft_labels": (labels.recover_soft_labels, lambda: biased(1) | {
        "prior": "onehot", "solver": "exact", "nonnegative": True, "noise": 0.0, "scale": 1.0, "certify": "search",
        "precision": "float32"}),
    "recover_soft_labels without bias": (labels.recover_soft_labels, lambda: head(1) | {"scale": None}),
    "the published search": (labels.recover_soft_labels, lambda: head(1) | {"solver": "lbfgs"}),
    "recover_batch": (labels.recover_batch, lambda: biased(2) | {
        "batch_size": 2, "prior": "onehot", "nonnegative": True, "noise": 0.0, "rounds": 2, "seed": 0, "scale": 1.0,
        "precision": "float32"}),
    "recover_batch with labels": (labels.recover_batch, lambda: head(2) | {"labels": torch.eye(5)[:2], "rounds": 2}),
    "recover_jointly": (labels.recover_jointly, lambda: head(2) | {
        "classes": torch.tensor([0, 1]), "batch_size": 2, "prior": "smoothing", "starts": 2, "steps": 2,
        "multisets": 2, "seed": 0}),
    "dlg": (labels.dlg, lambda: head(1) | {"seed": 0, "steps": 2, "rate": 0.1}),
    "idlg": (labels.idlg, lambda: {"weight_gradient": head(1)["weight_gradient"]}),
    "label_path": (labels.label_path, lambda: {
        "weight_gradients": head(1)["weight_gradient"], "weight": head(1)["weight"], "bias": torch.zeros(5),
        "columns": "all", "dtype": torch.float64}),
    "find_minima": (labels.find_minima, lambda: {
        "path": labels.label_path(*head(1).values()), "prior": "smoothing", "kind": "variance", "start": 1.0,
        "span": 3.0}),
    "nonnegative_intervals": (labels.nonnegative_intervals, lambda: {
        "path": labels.label_path(*head(1).values()), "span": 3.0}),
    "label_loss": (labels.label_loss, lambda: {
        "labels": drawn(2, 5), "prior": "smoothing", "kind": "variance"}),
    "reveal_labels": (labels.reveal_labels, lambda: {
        "weight_gradient": head(2)["weight_gradient"], "method": "rlg", "rank": 2}),
    **{
        f"count_labels {method}": (labels.count_labels, functools.partial(lambda method: {
            "leak": leak_of("mlp", 1), "method": method, "auxiliary": auxiliary(), "dummy": "random", "loss": Focal(),
            "epsilon": 0.0, "defense": defenses.sign(), "seed": 0}, method))
        for method in labels.METHODS
    },
    "count_heads": (labels.count_heads, lambda: {
        "heads": leak_of("mlp").heads, "method": "llg*", "known": labels.Knowledge(net("mlp"), input_shape=(6,)),
        "whatever_holds": True}),
    "Knowledge": (labels.Knowledge, lambda: {
        "model": net("mlp"), "auxiliary": auxiliary(), "input_shape": (6,), "dummy": "ones", "loss": Focal(),
        "epsilon": 0.1, "local_steps": 1, "defense": defenses.sign(), "seed": 0, "chunk": 3}),
    "expected_share": (labels.expected_share, lambda: {
        "leak": leak_of("mlp", 1), "method": "llg", "auxiliary": auxiliary(), "dummy": "zeros", "loss": Focal(),
        "epsilon": 0.1, "defense": defenses.sign(), "batches": 2, "seed": 0}),
    "standins_of": (labels.standins_of, lambda: {
        "leak": leak_of("mlp", 1), "auxiliary": None, "inputs": drawn(3, 6), "count": 3, "seed": 0}),
    "bias_attack": (images.bias_attack, lambda: {"leak": leak_of("mlp")}),
    "trace_fully_connected": (images.trace_fully_connected, lambda: {
        "leak": leak_of("mlp"), "labels": torch.eye(5)[:1], "prior": "onehot", "rule": "least-squares", "noise": 0.0,
        "precision": "float32"}),
    "trace_fully_connected by means": (images.trace_fully_connected, lambda: {
        "leak": leak_of("mlp"), "prior": "onehot", "rule": "mean"}),
    "invert_fully_connected": (images.invert_fully_connected, lambda: {"leak": leak_of("mlp")}),
    "trace_convolutional": (images.trace_convolutional, lambda: {
        "leak": leak_of("conv"), "labels": torch.eye(5)[:1], "prior": "onehot", "image_size": 4, "noise": 0.0,
        "precision": "float32"}),
    "invert_convolutional": (images.invert_convolutional, lambda: {
        "leak": leak_of("conv"), "labels": torch.eye(5)[:1]}),
    "peel": (images.peel, lambda: {
        "leak": leak_of("conv"), "prior": "onehot", "noise": 0.0, "scale": 1.0, "steps": 2, "seed": 0,
        "precision": "float32"}),
    "peeling_counts": (images.peeling_counts, lambda: {"model": net("norm"), "shape": (1, 4, 4), "batch_size": 1}),
    "match": (images.match, lambda: {
        "leaks": [leak_of("mlp")], "labels": torch.tensor([0]), "distance": "cosine", "prior": ImagePrior(0.1),
        "optimizer": Adam(steps=2), "restarts": 1, "seed": 0, "label_prior": "onehot", "trust": ("unique",),
        "start": drawn(1, 6), "enough": 0.0, "chunk": 2}),
    "match by L-BFGS": (images.match, lambda: {
        "leaks": leak_of("conv"), "labels": "recovered", "optimizer": LBFGS(steps=2), "label_prior": "onehot"}),
    "match by Levenberg-Marquardt": (images.match, lambda: {
        "leaks": leak_of("conv"), "labels": torch.eye(5)[:1], "optimizer": LevenbergMarquardt(steps=2)}),
    "polished": (images.polished, lambda: {
        "leak": leak_of("conv"), "inputs": drawn(1, 1, 4, 4), "labels": torch.eye(5)[:1], "steps": 2}),
    "Adam": (Adam, lambda: {"steps": 2, "rate": 0.1, "signed": True, "decay": (0.5,), "spread": 1.0}),
    "LBFGS": (LBFGS, lambda: {"steps": 2, "rate": 1.0, "inner": 2, "history": 3, "search": True}),
    "LevenbergMarquardt": (LevenbergMarquardt, lambda: {"steps": 2, "damping": 0.1, "bent": True, "spread": 0.1}),
    "GradInversion": (GradInversion, lambda: {"distance": "l2", "steps": 2, "levels": 1, "rate": 0.1, "warmup": 0}),
    "ImagePrior": (ImagePrior, lambda: {"variation": 0.1, "definition": "sum", "square": 0.1}),
    "Distance": (images.Distance, lambda: {"kind": "l2", "head": 1.0, "feature": 0.0}),
    "total_variation": (images.total_variation, lambda: {"images": drawn(2, 1, 4, 4), "definition": "sum"}),
    "restore_batches": (images.restore_batches, lambda: {
        "leaks": leak_of("norm"), "labels": torch.tensor([0]), "settings": QUICK, "seeds": 2, "seed": 0}),
    "restore_batches with statistics": (images.restore_batches, lambda: {
        "leaks": [leak_of("norm")], "labels": "counted", "settings": replace(QUICK, statistics=0.1),
        "statistics": images.observe_statistics(net("norm"), drawn(1, 1, 4, 4))}),
    "observe_statistics": (images.observe_statistics, lambda: {"model": net("norm"), "inputs": drawn(1, 1, 4, 4)}),
    "project_batches": (images.project_batches, lambda: {
        "leaks": leak_of("norm"), "labels": torch.tensor([0]), "generator": nn.Linear(3, 16), "width": 3,
        "settings": QUICK, "normal": 0.1, "seeds": 1, "seed": 0}),
    "restore_denoised": (images.restore_denoised, lambda: {
        "leaks": leak_of("norm"), "labels": torch.tensor([0]), "denoiser": nn.Identity(), "weight": 4.0,
        "settings": QUICK, "seeds": 1, "seed": 0}),
    "spear": (images.spear, lambda: {
        "weight": net("mlp")[0].weight, "bias": net("mlp")[0].bias,
        "weight_gradient": leak_of("mlp", 2).gradients["0.weight"],
        "bias_gradient": leak_of("mlp", 2).gradients["0.bias"], "batch_size": 2, "draws": 100, "seed": 0}),
    "unmix_features": (images.unmix_features, lambda: {
        "weight_gradient": leak_of("mlp", 2).weight_gradient, "batch_size": 2, "seed": 0}),
    "certify_features": (images.certify_features, lambda: head(2) | {
        "features": drawn(2, 8), "bias": torch.zeros(5), "prior": "onehot", "precision": "float32"}),
    "batch_of": (sequences.batch_of, lambda: {"sentences": [[3, 4], [5]], "start": 1, "end": 2, "device": "cpu"}),
    "read_sentences": (sequences.read_sentences, lambda: {
        "leak": leak_of("words"), "start": 1, "end": 2, "words": [5, 6, 7], "most": 50}),
    "read_prefixes": (sequences.read_prefixes, lambda: {
        "leak": leak_of("words"), "start": 1, "words": [5, 6, 7], "most": 50}),
    "reveal_words": (sequences.reveal_words, lambda: {"leak": leak_of("words"), "start": 1}),
    "observe_speech": (sequences.observe_speech, lambda: {
        "model": speech()[0], "speech": [torch.randn(8, 80)], "tokens": [[7, 2]], "start": 1, "only": ["head.weight"],
        "defense": defenses.sign(), "local_steps": 1, "rate": 0.1, "difference": False}),
    "read_transcripts": (sequences.read_transcripts, lambda: {"leak": speech()[1], "start": 1, "end": 2}),
    "read_output": (sequences.read_output, lambda: {"leak": speech()[1], "start": 1, "end": 2}),
    "read_sharing": (sequences.read_sharing, lambda: {"leak": speech()[1], "start": 1, "end": 2}),
    "read_defended": (sequences.read_defended, lambda: {"leak": speech()[1], "start": 1, "steps": 3}),
    "match_transcript": (sequences.match_transcript, lambda: {
        "leak": speech()[1], "search": Search("softmax", 0.1, 2, 0.05), "bag": [2, 7, 9], "starts": 1, "start": 1,
        "seed": 0}),
    "gaussian": (functools.partial(defended, defenses.gaussian), lambda: {"std": 0.1, "generator": generator()}),
    "laplace": (functools.partial(defended, defenses.laplace), lambda: {"std": 0.1, "generator": generator()}),
    "clip": (functools.partial(defended, defenses.clip), lambda: {"norm": 0.1}),
    "clip_share": (functools.partial(defended, defenses.clip_share), lambda: {"share": 0.1}),
    "dp": (functools.partial(defended, defenses.dp), lambda: {"norm": 0.1, "std": 0.1, "generator": generator()}),
    "dp_tensors": (functools.partial(defended, defenses.dp_tensors), lambda: {
        "norm": 0.1, "std": 0.1, "generator": generator()}),
    "dp_epsilon": (defenses.dp_epsilon, lambda: {"noise_multiplier": 1.0, "share": 0.5, "steps": 2, "delta": 1e-5}),
    "release_epsilon": (defenses.release_epsilon, lambda: {"noise_multiplier": 1.0, "delta": 1e-5}),
    "grad_drop": (functools.partial(defended, defenses.grad_drop), lambda: {"share": 0.5}),
    "prune": (functools.partial(defended, defenses.prune), lambda: {"share": 0.5}),
    "prune_tensors": (functools.partial(defended, defenses.prune_tensors), lambda: {"share": 0.5}),
    "quantize": (functools.partial(defended, defenses.quantize), lambda: {"bits": 4}),
    "average": (defenses.average, lambda: {"clients": [leak_of("mlp").gradients, leak_of("mlp", 2).gradients]}),
    "utility": (defenses.utility, lambda: {
        "clean": leak_of("mlp").gradients, "sent": leak_of("mlp", 2).gradients}),
    "named": (functools.partial(defended, defenses.named), lambda: {"text": "gaussian/0.1", "generator": generator()}),
    "shown": (defenses.shown, lambda: {"text": "clip/1"}),
    "audit": (gradleak.audit, lambda: {
        "model": net("mlp"), "inputs": drawn(3, 6), "targets": torch.tensor([1, 2, 3]), "batch_sizes": (1,),
        "defenses": ("none",), "precisions": ("float32",), "labels": "onehot", "head": "2", "minutes": 0.05,
        "memory": 1.0, "rate": 0.1, "steps": 1, "images": False, "seed": 0}),
    "audit_update": (gradleak.audit_update, lambda: {
        "seen": leak_of("mlp"), "inputs": drawn(1, 6), "targets": torch.tensor([0]), "tokens": False,
        "labels": "onehot", "defense": "update", "precision": "float32", "minutes": 0.05, "memory": 1.0, "steps": 1,
        "images": False, "seed": 0}),
}  # fmt: skip


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


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a frozen first layer, fully connected": (
        lambda: images.trace_fully_connected(seen(frozen(net("mlp"), "0.weight"))), "'0.weight' is frozen",
    ),
    "the same by the paper's recursion": (
        lambda: images.trace_fully_connected(seen(frozen(net("mlp"), "0.weight")), prior="onehot", rule="mean"),
        "'0.weight' is frozen",
    ),
    "a frozen first convolution": (
        lambda: images.trace_convolutional(seen(frozen(net("conv"), "0.weight"), 1, 4, 4)), "'0.weight' is frozen",
    ),
    "the bias attack behind a frozen layer": (
        lambda: images.bias_attack(seen(frozen(net("mlp"), "0.weight", "0.bias"))), "'0.weight' is frozen",
    ),
    "the bias attack behind a convolution": (
        lambda: images.bias_attack(seen(net("conv"), 1, 4, 4)), "the first layer is Conv2d '0'",
    ),
    "a Linear layer that is used twice": (
        lambda: images.trace_fully_connected(seen(shared(nn.Linear(6, 6), nn.Linear(6, 5)))), "is tied to '2.weight'",
    ),
    "a convolution that is used twice": (
        lambda: images.peel(seen(shared(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(16, 5)), 1, 4, 4)),
        "'0' runs more than once",
    ),
    "a last layer that is used twice": (lambda: seen(twice_at_the_end()), "'head' runs 2 times in one pass"),
    "a head under weight norm": (
        lambda: seen(with_norm(nn.utils.parametrizations.weight_norm)), "'2' is computed from other parameters",
    ),
    "a head under spectral norm": (
        lambda: seen(with_norm(nn.utils.parametrizations.spectral_norm)), "'2' is computed from other parameters",
    ),
    "a lower layer under weight norm": (
        lambda: images.trace_fully_connected(seen(with_norm(nn.utils.parametrizations.weight_norm, 0))),
        "the weight of '0' is computed from other parameters",
    ),
    "a head without inputs": (lambda: seen(without_features()), "'3' has no inputs or no outputs"),
    "NaN for features": (lambda: images.unmix_features(drawn(5, 8) / 0, 2), "weight_gradient holds NaN"),
    "NaN for iDLG": (lambda: labels.idlg(drawn(5, 8) * math.nan), "weight_gradient holds NaN"),
    "random numbers in a search": (
        lambda: images.match(seen(Noisy(*net("mlp"))), torch.tensor([2])),  # type: ignore[misc]
        "draws random numbers or keeps a state",
    ),
    "random numbers in a search for batches": (
        lambda: images.restore_batches(
            seen(Noisy(*net("norm")), 1, 4, 4), torch.tensor([2]), settings=QUICK  # type: ignore[misc]
        ),
        "draws random numbers or keeps a state",
    ),
    "a network of another last layer": (
        lambda: images.trace_fully_connected(replace(seen(net("mlp")), head="0")), "the network ends in '2'",
    ),
    "a defence that is none": (
        lambda: observe(net("mlp"), drawn(1, 6), torch.tensor([2]), defense=lambda gradients: [1]),  # type: ignore[arg-type,return-value]
        "a defence must return a dictionary",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_attacked_is_named(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(GradleakError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 2, 4])
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
    assert not any("broke down" in one.why for one in report.not_tried)
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


# -------------------------------------------------------------------------------------------------- what goes wrong
class Noisy(nn.Sequential):
    """A network that draws random numbers in its forward pass."""

    def forward(self, x: Tensor) -> Any:
        """Return logits that are not the same twice."""
        return super().forward(x + torch.randn_like(x))


class Twice(nn.Module):
    """A network that runs its hidden layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Any:
        """Return logits."""
        return self.head(self.hidden(self.hidden(x.flatten(1)[:, :6]).relu()).relu())


def fails(*_: object, **__: object) -> Any:
    raise ValueError("\nfirst\nsecond")


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in names)
    return model


def with_norm(norm: Callable[[nn.Module], object], place: int = 2) -> nn.Module:
    model = net("mlp")
    norm(model[place])  # type: ignore[index]
    return model


def convolved(**options: Any) -> nn.Module:
    layer = nn.Conv2d(1, 4, **{"kernel_size": 3} | options)
    return nn.Sequential(layer, nn.Sigmoid(), nn.Flatten(), nn.Linear(layer(drawn(1, 1, 4, 4)).numel(), 5))


def zeroed(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


MODELS: list[Callable[[], Any]] = [
    lambda: frozen(net("mlp"), "0.weight"),
    lambda: frozen(net("conv"), "0.weight"),
    lambda: frozen(net("conv"), "0.weight", "0.bias"),
    lambda: frozen(net("norm"), "0.weight", "1.weight"),
    lambda: frozen(net("mlp"), "2.weight"),
    lambda: frozen(net("words"), "embedding.weight"),
    lambda: frozen(net("words"), "recurrent.weight_ih_l0"),
    lambda: with_norm(nn.utils.parametrizations.weight_norm),
    lambda: with_norm(nn.utils.parametrizations.spectral_norm),
    lambda: with_norm(nn.utils.parametrizations.orthogonal),
    lambda: zeroed(net("mlp")),
    lambda: zeroed(net("conv")),
    lambda: nn.Linear(6, 1),
    lambda: nn.Linear(1, 5),
    lambda: nn.LazyLinear(5),
    lambda: nn.Sequential(nn.Dropout(0.5), *net("mlp")).train(),  # type: ignore[misc]
    lambda: Noisy(*net("mlp")),  # type: ignore[misc]
    lambda: Noisy(*net("conv")),  # type: ignore[misc]
    lambda: nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Linear(4, 12)),
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Softmax(dim=1)),
    Twice,
    lambda: net("mlp").double(),
    lambda: net("conv").half(),
    lambda: net("mlp").to("meta"),
    lambda: convolved(padding="same"),
    lambda: convolved(padding_mode="circular", padding=1),
    lambda: convolved(stride=3, padding=1, dilation=1),
    lambda: convolved(kernel_size=5, padding=2),
    lambda: nn.Sequential(nn.BatchNorm2d(1), *net("conv")),  # type: ignore[misc]
    lambda: nn.Sequential(nn.Embedding(12, 4, max_norm=0.1), nn.Linear(4, 12)),
    lambda: nn.Identity(),
    lambda: nn.Module(),
    *(functools.partial(Odd, kind) for kind in ODDITIES if kind != "complex"),
]


def without_features() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's on an initialisation without values
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 0), nn.ReLU(), nn.Linear(0, 5))


TENSORS: list[Callable[[Tensor], Any]] = [
    lambda value: value[..., :0],
    lambda value: value[:0] if value.ndim else value,
    lambda value: value[None],
    lambda value: value[0] if value.ndim else value,
    lambda value: value.mT if value.ndim > 1 else value[:, None] if value.ndim else value,
    lambda value: value[..., 1:],
    lambda value: torch.cat([value, value]) if value.ndim else value,
    lambda value: value.flatten(),
    lambda value: value.reshape(-1)[0],
    lambda value: value.long(),
    lambda value: value.bool(),
    lambda value: value.to(torch.int8),
    lambda value: value.half(),
    lambda value: value.bfloat16(),
    lambda value: value.double(),
    lambda value: value.cfloat(),
    lambda value: torch.zeros_like(value),
    lambda value: value * 0 + 1,
    lambda value: -value,
    lambda value: value.float() * math.nan,
    lambda value: value.float() / 0,
    lambda value: torch.where(torch.rand(value.shape, generator=generator()) < 0.1, math.nan, value.float()),
    lambda value: value.float() * 1e38,
    lambda value: value.double() * 1e300,
    lambda value: value.float() * 1e-40,
    lambda value: value.to("meta"),
    lambda value: value.to_sparse() if value.ndim else value,
    lambda value: value.tolist(),
    lambda value: value.numpy(),
    lambda value: value + 10**6,
]
VALUES: list[Any] = [
    None, -1, 0, 1, 2, 3, 0.5, -0.5, 10**30, -(10**30), 2**63, 1e-300, 1e308, math.nan, math.inf, -math.inf, True,
    False, "", "nothing", "onehot", "a\nb", b"bytes", [], (), [1], (1, -2), {}, {"a": 1}, object(), int, fails,
    np.float64(0.5), np.int64(2), 1 + 2j,
]  # fmt: skip
# What makes a gradient of another kind than the parameter's.
SENT: list[Callable[[Tensor], Any]] = TENSORS
LEAKS: list[Callable[[Leak, random.Random], Any]] = [
    lambda leak, draw: replace(leak, head=draw.choice(["", "0", "nothing", 3, None])),
    lambda leak, draw: replace(leak, batch_size=draw.choice([0, -1, 2, 7, 1.5, "x", None, True, 10**30])),
    lambda leak, draw: replace(leak, local_steps=draw.choice([0, -1, 2, 1.5, "x", None])),
    lambda leak, draw: replace(
        leak, input_shape=draw.choice([None, (), (0,), (-1, 4), (6,), (7,), (1, 4, 4), (2, 4, 4), (1, 3, 5), "x", [6]])
    ),
    lambda leak, draw: replace(leak, gradients=draw.choice([{}, None, [1], {"x": torch.ones(1)}, {0: torch.ones(2)}])),
    lambda leak, draw: replace(leak, model=draw.choice([None, 3, nn.Linear(6, 5), net("conv"), net("mlp")])),
    lambda leak, draw: lacking(leak, draw.choice(list(leak.gradients))),
    lambda leak, draw: lacking(leak, *draw.sample(list(leak.gradients), 2)),
    lambda leak, draw: sent(leak, draw.choice(list(leak.gradients)), draw.choice(SENT)),
    lambda leak, draw: sent(leak, leak.parameter("weight"), draw.choice(SENT)),
    lambda leak, draw: observed(leak, draw),
    lambda leak, draw: observed(leak, draw),
]


def lacking(leak: Leak, *names: str) -> Leak:
    return replace(leak, gradients={name: value for name, value in leak.gradients.items() if name not in names})


def sent(leak: Leak, name: str, change: Callable[[Tensor], Any]) -> Leak:
    return replace(leak, gradients=leak.gradients | {name: change(leak.gradients[name])})


def observed(leak: Leak, draw: random.Random) -> Leak:
    """Return the leak of another model; with random numbers for gradients if the model cannot be observed."""
    model = draw.choice(MODELS)()
    shape = leak.input_shape or (6,)
    try:
        if any(isinstance(module, nn.Embedding) for module in model.modules()):
            return observe(model, *sequences.batch_of([[5, 6, 7], [8, 9]][: leak.batch_size]))
        return observe(model, drawn(leak.batch_size, *shape), torch.arange(leak.batch_size))
    except GradleakError:
        gradients = {
            name: torch.rand_like(value) for name, value in model.named_parameters()
            if value.requires_grad and not isinstance(value, nn.parameter.UninitializedParameter)
        }  # fmt: skip
        name = next((name for name, module in model.named_modules() if isinstance(module, nn.Linear)), "")
        return replace(leak, model=model, gradients=gradients, head=name)


def malformed(value: Any, draw: random.Random) -> Any:
    """Return a value in place of a right one."""
    if draw.random() < 0.15:
        return draw.choice(VALUES)
    if torch.is_tensor(value):
        return draw.choice(TENSORS)(value.detach())
    if isinstance(value, Leak):
        return draw.choice(LEAKS)(value, draw)
    if isinstance(value, nn.Module):
        return draw.choice([*MODELS, without_features])()
    if isinstance(value, dict):
        key = draw.choice(list(value))
        changed = malformed(value[key], draw)
        return draw.choice([{**value, key: changed}, {name: own for name, own in value.items() if name != key}])
    if isinstance(value, list | tuple) and value:
        place = draw.randrange(len(value))
        parts = [*value[:place], malformed(value[place], draw), *value[place + 1 :]]
        return draw.choice([type(value)(parts), type(value)(value[:place]), type(value)([*value, *value])])
    return draw.choice(VALUES)


@pytest.mark.filterwarnings("ignore::gradleak.errors.GradleakWarning")
@pytest.mark.parametrize("name", CASES)
def test_malformed_calls_end_in_one_line_of_our_own(name: str) -> None:
    function, right = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        function(**right())
        for seed in range(CALLS):
            outcome(function, right(), random.Random(f"{name} {seed}"))


# How much work is to be done: who asks for more has to wait.
AMOUNTS = {
    "rounds", "starts", "steps", "multisets", "draws", "restarts", "seeds", "batches", "count", "most", "inner",
    "levels", "minutes", "span", "width", "bits", "image_size",
}  # fmt: skip


def outcome(function: Callable[..., Any], arguments: dict[str, Any], draw: random.Random) -> str:
    """Call a function with one or two of its arguments malformed; return whether it refuses or answers."""
    changed = draw.sample(list(arguments), min(len(arguments), draw.choice([1, 1, 2])))
    try:
        wrong = arguments | {name: malformed(arguments[name], draw) for name in changed}
        wrong |= {name: 1 for name in AMOUNTS & set(wrong) if isinstance(wrong[name], float | int) and wrong[name] > 9}
        if wrong.get("settings", "") is None:  # the published search, which is right and long
            wrong["settings"] = "none"
    except (RuntimeError, TypeError, IndexError, NotImplementedError):
        return "not made"  # torch cannot make such a value
    try:
        function(**wrong)
    except GradleakError as error:
        said = str(error)
        assert said
        assert "\n" not in said
        assert not FOREIGN.search(QUOTED.sub("", said)), f"another library's text: {said}"
        return "refused"
    return "answered"
