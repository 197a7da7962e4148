"""The book's attacks as an audit runs them: what each needs, what it will cost, and what it hands back.

Cheap and certain ones come first. None sees the private batch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from gradleak import defenses
from gradleak.auditing.cases import Case, Found
from gradleak.errors import GradleakError, GradleakWarning, InputError, first_line
from gradleak.images import (
    Adam,
    Inversion,
    Prior,
    Reconstruction,
    bias_attack,
    match,
    peel,
    restore_batches,
    trace_convolutional,
    trace_fully_connected,
)
from gradleak.images.gradinversion.settings import OURS
from gradleak.images.inversion import chain
from gradleak.images.inversion.again import observed_again
from gradleak.images.inversion.fully_connected import FITS
from gradleak.images.matching.engine import ACTIVATION_COPIES, GRADIENT_COPIES
from gradleak.labels import (
    BatchLabels,
    Expected,
    count_labels,
    expected_share,
    recover_batch,
    recover_jointly,
    recover_soft_labels,
    reveal_labels,
)
from gradleak.sequences import read_sentences, reveal_words

DOUBLE = 8
# How often a batch's samples are looked for.
STARTS = 16
# Steps in front of the last map that was peeled are cheap: so many times as many as of matching.
PEELING_STEPS = 5


@dataclass(frozen=True)
class Attack:
    """An attack of the book: its `page`, why it cannot be tried on a case ("" if it can), the bytes it needs.

    `remedy`: what stops it in principle; `searches`: it takes all the time that it is given; `stretch`: the seconds
    that its longest operation takes, in which nothing stops it; `finds`: what it is after (`findings.TARGETS`).
    """

    name: str
    page: str
    refused: Callable[[Case], str]
    run: Callable[[Case], Found]
    remedy: str
    needs: Callable[[Case], int] = lambda case: 4 * DOUBLE * case.subject.classes * case.subject.features
    searches: bool = False
    stretch: Callable[[Case], float] = lambda case: 0.0
    finds: tuple[str, ...] = ()


def _readable(case: Case) -> str:
    """Why a last layer's labels cannot be solved for."""
    if case.subject.sequence:
        return "there is a target at every place of a sequence"
    if reason := case.leak.withheld("weight"):
        return reason
    if not case.plain:
        return f"it is made for the cross-entropy; this is {type(case.loss).__name__}"
    if case.leak.local_steps > 1:
        return f"the update is the sum of {case.leak.local_steps} gradients along a path"
    return ""


# ------------------------------------------------------------------------------------------------------------- labels
def _no_single(case: Case) -> str:
    return _readable(case) or ("" if case.size == 1 else "it takes one sample")


def _no_batch(case: Case) -> str:
    return _readable(case) or ("" if case.size > 1 else "it takes several samples")


def _single(case: Case) -> Found:
    leak = case.leak
    found = recover_soft_labels(
        leak.weight_gradient, leak.weight, bias=leak.bias, bias_gradient=leak.bias_gradient, prior=case.prior,
        nonnegative=case.subject.rectified, noise=case.noise, scale=case.scale, precision=case.precision,
    )  # fmt: skip
    told = Found(found.status[0], found.reasons[0], labels=found.labels, features=found.features)
    return replace(told, scale=float(found.scales[0]))


def _batch(case: Case) -> Found:
    """Look for all samples; where only some are found, look again from other starts."""
    found = _searched(case, case.seed)
    for start in range(1, STARTS):
        if found.status != "failed" or not bool(found.found.any()):
            break
        again = _searched(case, case.seed + start)
        found = found if again.status == "failed" else again
    told = Found(found.status, found.reason, labels=found.labels, features=found.features, scale=found.scale)
    return _assured(told, case)


def _assured(found: Found, case: Case) -> Found:
    """Return what holds if all samples were rescaled by one factor, without a certificate where each has its own."""
    if not case.apart or found.certificate not in ("unique", "exact"):
        return found
    return replace(found, certificate="partial", remark="as if one factor were left on all samples; each has its own")


def _untold(found: Found, case: Case) -> Found:
    """Return what an attack found that takes no precision: without a certificate where the client's is coarse."""
    if not case.coarse or found.certificate not in ("unique", "exact"):
        return found
    return replace(found, certificate="partial", remark=f"as if nothing were rounded to {case.precision}")


def _searched(case: Case, seed: int) -> BatchLabels:
    leak = case.leak
    return recover_batch(
        leak.weight_gradient, leak.weight, batch_size=case.size, prior=case.prior, bias=leak.bias,
        bias_gradient=leak.bias_gradient, nonnegative=case.subject.rectified, noise=case.noise, scale=case.scale,
        seed=seed, precision=case.precision,
    )  # fmt: skip


def _jointly(case: Case) -> Found:
    leak = case.leak
    found = recover_jointly(
        leak.weight_gradient, leak.weight, batch_size=case.size, prior=case.prior, seed=case.seed, starts=64
    )
    return Found(found.status, found.reason, labels=found.labels, features=found.features)


def _no_jointly(case: Case) -> str:
    if reason := _readable(case):
        return reason
    classes, size = case.subject.classes, case.size
    if case.subject.bias:
        return "it looks at the weight alone; where there is a bias, samples are told one by one"
    if case.prior == "mixup" or case.noise != 0 or case.scale != 1:
        return "it takes smoothed or one-hot labels, and gradients as they are"
    if not case.subject.rectified:
        return "it takes features that are never negative"
    if not (classes - 2) / 2 < size <= min(classes - 2, case.subject.features):
        return f"it is for batches of {classes // 2} to {classes - 2} samples of C = {classes}"
    return ""


def _counting(method: str) -> Callable[[Case], Found]:
    def run(case: Case) -> Found:
        counts = count_labels(case.leak, method, auxiliary=case.auxiliary, loss=case.loss, seed=case.seed)
        found = Found("counted", "an estimate: nothing certifies it", counts=counts)
        try:
            found.expected = _expected(case, method)
        except GradleakError as error:
            found.remark += f"; it was not simulated: {first_line(error)}"
        except KeyboardInterrupt:
            found.remark += "; the simulation was interrupted"
        return found

    return run


def _expected(case: Case, method: str) -> Expected:
    """Return how much of a count is right on batches that are simulated behind the case's defence."""
    if case.defense.partition("/")[0] == "dp-sgd":
        raise InputError("samples that are clipped one by one are not simulated")
    sends = None
    if case.defense not in ("none", "update"):
        sends = defenses.named(case.defense, generator=torch.Generator().manual_seed(case.seed))
    return expected_share(
        case.leak, method, standins=case.standins(), auxiliary=case.auxiliary, loss=case.loss, defense=sends,
        seed=case.seed,
    )  # fmt: skip


def _no_counting(method: str) -> Callable[[Case], str]:
    def refused(case: Case) -> str:
        if case.subject.sequence:
            return "there is a target at every place of a sequence"
        if reason := case.leak.withheld("weight"):
            return reason
        if method in ("ilrg", "posterior") and not case.subject.bias:
            return "it reads the bias's gradient, and the last layer has none"
        if method in ("ilrg", "posterior") and (reason := case.leak.withheld("bias")):
            return reason
        if method in ("ilrg", "posterior", "shadow") and case.leak.local_steps > 1:
            return "it reads one gradient, and this is the sum of several"
        if method in ("llg+", "posterior", "shadow") and case.auxiliary is None:
            return "it needs samples of the same kind: auxiliary=(inputs, classes)"
        if method in ("gradinversion", "llg", "llg*", "llg+") and not case.subject.rectified:
            return "it reads signs of features that are never negative; these have both"
        if method == "llg*" and case.subject.kind == "tokens":
            return "its made-up inputs are numbers, not tokens"
        return ""

    return refused


def _classes(case: Case) -> Found:
    found = reveal_labels(case.leak.weight_gradient)
    return Found("counted", "which classes occur, not how often", classes=found)


# ---------------------------------------------------------------------------------------------------- inputs, directly
def _traced(found: Inversion, case: Case) -> Found:
    return _assured(Found(found.status, found.reason, labels=None, inputs=found.inputs), case)


def _linear(case: Case) -> Found:
    leak = case.rescaled()
    return _traced(trace_fully_connected(leak, prior=case.prior, noise=case.noise, precision=case.precision), case)


def _no_linear(case: Case) -> str:
    if case.subject.chain != "linear":
        return case.subject.chain_reason or "the network has convolutions"
    return _readable(case)


def _convolutional(case: Case) -> Found:
    leak = case.rescaled()
    return _traced(trace_convolutional(leak, prior=case.prior, noise=case.noise or 0.0, precision=case.precision), case)


def _no_convolutional(case: Case) -> str:
    if case.subject.chain != "convolutional":
        return case.subject.chain_reason or "the network has no convolutions"
    if case.size > 1:
        return "convolutions are run backwards for single samples alone"
    for layer in _layers(case)[:-1]:
        if not isinstance(layer.module, nn.Conv2d) or layer.activation.inverse is None:
            return f"'{layer.name}' cannot be run backwards ({type(layer.activation_module).__name__})"
    return _readable(case)


def _layers(case: Case) -> list[chain.Layer]:
    return chain.layers(case.leak.model, (nn.Conv2d, nn.Linear), case.subject.input_shape)


def _convolutional_bytes(case: Case) -> int:
    """Return what the largest layer's equations take: two matrices of all inputs, one of outputs by inputs."""
    most, value = 0, torch.zeros(1, *case.subject.input_shape).to(case.leak.weight)
    with torch.no_grad():
        for layer in _layers(case)[:-1]:
            inputs = value.numel()
            value = layer.activation_module(layer.module(value))
            most = max(most, DOUBLE * (3 * inputs * inputs + 2 * value.numel() * inputs))
    return most


def _first_bias(case: Case) -> Found:
    told = bias_attack(case.leak)
    told = told[told.isfinite().all(dim=1)]
    if len(told) == 0:
        return Found("failed", "no unit of the first layer passed anything on")
    inputs = told.median(dim=0).values.reshape(1, *case.subject.input_shape)
    if len(case.leak.gradients) == 2:
        return Found("partial", "there is no other layer that could confirm it", inputs=inputs)
    if case.coarse:
        return _untold(Found("exact", "", inputs=inputs), case)
    # What each unit says may agree and be wrong: where signs are sent, or weights and biases are clipped apart.
    again = observed_again(case.leak, inputs, None, dtype=case.leak.weight.dtype)
    # Only the errors of a softmax sum to zero.
    again = again if case.plain else replace(again, unbalanced=0.0)
    reason = again.beyond(FITS, case.noise or 0.0, case.leak)
    return Found("partial" if reason else "exact", reason, inputs=inputs)


def _no_first_bias(case: Case) -> str:
    first = next((m for m in case.leak.model.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.Embedding)), None)
    if not isinstance(first, nn.Linear) or first.in_features != math.prod(case.subject.input_shape):
        return "the first layer is not a Linear one that sees the whole input"
    if getattr(first, "bias", None) is None:
        return "the first layer has no bias"
    if case.size * case.leak.local_steps > 1:
        return "with several samples each unit holds a mixture"
    return ""


def _peeled(case: Case) -> Found:
    found = peel(
        case.rescaled(), prior=case.prior, noise=case.noise, steps=PEELING_STEPS * case.steps, seed=case.seed,
        precision=case.precision,
    )  # fmt: skip
    labels = found.labels if bool(found.labels.isfinite().all()) else None
    followed = f"the inputs of {len(found.layers)} layers follow" if found.layers else ""
    remark = "; ".join(part for part in (followed, found.reason) if part)
    if found.status == "failed":
        return Found("partial" if found.layers else "failed", remark, labels=labels)
    return _assured(Found(found.status, remark, labels=labels, inputs=found.images.nan_to_num(0.0)), case)


def _no_peeling(case: Case) -> str:
    if case.subject.kind != "images":
        return "it restores images"
    return _readable(case) or case.reach.refused


# -------------------------------------------------------------------------------------------------- inputs, by search
def _matched(case: Case) -> Found:
    prior = Prior(variation=1e-4, box=_box(case)) if case.subject.kind == "images" else Prior()
    settings = Adam(steps=case.steps, signed=True)
    labels = case.labels()
    return _restored(match(case.leak, labels, distance="cosine", prior=prior, optimizer=settings, seed=case.seed))


def _box(case: Case) -> tuple[torch.Tensor, torch.Tensor] | None:
    if case.box is None:
        return None
    channels = case.subject.input_shape[0]
    low, high = (case.leak.weight.new_full((channels, 1, 1), edge) for edge in case.box)
    return low, high


def _restored(found: Reconstruction) -> Found:
    worst = sorted({word for words in found.status for word in words})
    return Found("searched", f"the search {', '.join(worst)}: nothing certifies it", inputs=found.images)


def _no_matching(case: Case) -> str:
    if case.subject.kind == "tokens":
        return "tokens cannot be moved by small steps"
    return _readable(case)


def _matching_bytes(case: Case) -> int:
    activations = 4 * case.subject.activations * case.size
    return GRADIENT_COPIES * case.subject.bytes + ACTIVATION_COPIES * activations


def _statistical(case: Case) -> Found:
    return _restored(restore_batches(case.leak, case.labels(), settings=replace(OURS, steps=case.steps)))


def _no_statistical(case: Case) -> str:
    if case.subject.kind != "images":
        return "it restores images"
    if not case.subject.norms:
        return "the network has no batch norm whose statistics would help"
    if not case.subject.trained:
        return "the batch norms were never trained: their statistics say nothing"
    return _readable(case)


# ------------------------------------------------------------------------------------------------------------- tokens
def _looked_up(case: Case) -> Found:
    moved = (case.leak.gradients[case.subject.embedding] != 0).any(dim=1)
    places = case.size * case.leak.local_steps * math.prod(case.subject.input_shape)
    count = int(moved.sum())
    if count > places or (case.noise and count == len(moved)):
        reason = (
            f"{count} rows of the embedding move, and the batch has {places} places: noise or another layer moves them"
        )
        return Found("failed", reason)
    return Found("counted", "which rows of the embedding move", tokens=set(moved.nonzero()[:, 0].tolist()))


def _no_looked_up(case: Case) -> str:
    if case.subject.kind != "tokens" or not case.subject.embedding:
        return "the network has no embedding"
    return case.leak.withheld(case.subject.embedding)


def _no_said(case: Case) -> str:
    return case.leak.withheld("weight") if case.subject.sequence else "there are no words to say"


def _said(case: Case) -> Found:
    return Found("counted", "the words, not their order", words=set(reveal_words(case.leak).tokens[0]))


def _sentences(case: Case) -> Found:
    assert case.marks is not None
    read = read_sentences(case.leak, case.marks[0], end=case.marks[1])
    return _untold(Found(read.status, read.reason, sentences=read.all() if read.tokens else None), case)


def _no_sentences(case: Case) -> str:
    if not case.subject.sequence:
        return "the network does not say what comes next at every place"
    if case.marks is None:
        return "sentences have no start and end mark in common"
    return "" if case.plain else f"it is made for the cross-entropy; this is {type(case.loss).__name__}"


NOISE = "noise on every entry, or batches of more samples than there are equations"
LABELS = "batches in which classes repeat, noise, or sending no gradient of the last layer"
BOTH, LABEL, INPUT, WORD = ("labels", "features"), ("labels",), ("inputs",), ("words",)


def _count(name: str, page: str, method: str) -> Attack:
    return Attack(name, page, _no_counting(method), _counting(method), LABELS, finds=LABEL)


ATTACKS: tuple[Attack, ...] = (
    Attack("label of one sample", "identifiability", _no_single, _single, NOISE, finds=BOTH),
    _count("row signs", "batch-restoration", "gradinversion"),
    _count("LLG", "llg-attack", "llg"),
    _count("LLG*", "llg-attack", "llg*"),
    _count("LLG+", "llg-attack", "llg+"),
    _count("iLRG", "label-attacks-compared", "ilrg"),
    _count("posterior attack", "posterior-attack", "posterior"),
    Attack("RLG", "reveal-labels", _no_counting("rlg"), _classes, LABELS, finds=("classes",)),
    Attack(
        "embedding rows", "words", _no_looked_up, _looked_up, "a frozen embedding, or noise on its rows", finds=WORD
    ),
    Attack("words said", "words", _no_said, _said, LABELS, finds=WORD),
    Attack(
        "bias attack", "exact-batch", _no_first_bias, _first_bias, "a first layer without a bias; several samples",
        finds=INPUT,
    ),
    Attack("labels and features of a batch", "batch-soft-labels", _no_batch, _batch, NOISE, finds=BOTH),
    Attack("all samples together", "joint-batches", _no_jointly, _jointly, NOISE, finds=BOTH),
    Attack(
        "linear layers backwards", "exact-batch", _no_linear, _linear, NOISE,
        lambda case: 6 * DOUBLE * case.subject.parameters, finds=INPUT,
    ),
    Attack(
        "convolutions backwards", "cnn-inversion", _no_convolutional, _convolutional,
        "ReLU, pooling, or more than one sample", _convolutional_bytes, finds=INPUT,
    ),
    Attack(
        "layers peeled off", "peeling", _no_peeling, _peeled,
        "batches of more samples than the last map's channels hold; pooling by maxima; noise",
        lambda case: case.reach.bytes, stretch=lambda case: case.reach.seconds, finds=("labels", "inputs"),
    ),
    Attack(
        "sentences", "sentences", _no_sentences, _sentences, "noise; an embedding that is not trained",
        finds=("sentences",),
    ),
    Attack(
        "gradient matching", "cnn-reconstruction", _no_matching, _matched,
        "larger batches and deeper networks; noise", _matching_bytes, searches=True, finds=INPUT,
    ),
    Attack(
        "matching with batch norm's statistics", "gradinversion", _no_statistical, _statistical,
        "statistics that are not shared; larger batches", _matching_bytes, searches=True, finds=INPUT,
    ),
)  # fmt: skip


def silenced(run: Callable[[Case], Found], case: Case) -> Found:
    """Run an attack; what it warns of is in what it hands back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradleakWarning)
        return run(case)
