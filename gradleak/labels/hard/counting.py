"""Declare the attacks that count classes for an audit, with a simulation of how accurate each count is."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gradleak import defenses
from gradleak.answers import Answer, Expected
from gradleak.cases import LABELS, Attack, Case, Standins, made_up
from gradleak.defenses import Each
from gradleak.errors import GradleakError, InputError, first_line
from gradleak.labels.hard.attacks import BY_BIAS, BY_SUMS, ONE_STEP, WITH_SAMPLES, count_labels, reveal_labels
from gradleak.labels.hard.expected import expected_share, standins_of
from gradleak.leak import Defense

# Samples that are made up for simulated batches, at least and at most, and the numbers that they may produce in the
# network.
LEAST, MOST, NUMBERS = 32, 256, 2**28


def counting(name: str, page: str, method: str, needs: str) -> Attack:
    """Return the attack that counts classes by a method of `count_labels`."""
    return Attack(name, page, ("labels",), needs, partial(_why_not, method), partial(_counted, method), LABELS)


def _counted(method: str, case: Case) -> Answer:
    defense = _defense(case) if method == "learned" and case.scale else None
    counts = count_labels(case.leak, method, auxiliary=case.auxiliary, loss=case.loss, defense=defense, seed=case.seed)
    answer = Answer("counted", "an estimate: nothing certifies it", counts=counts)
    try:
        return replace(answer, expected=_expected(case, method))
    except GradleakError as error:
        return replace(answer, reason=f"{answer.reason}; it was not simulated: {first_line(error)}")
    except KeyboardInterrupt:
        return replace(answer, reason=f"{answer.reason}; the simulation was interrupted", interrupted=True)


def _why_not(method: str, case: Case) -> str:
    if case.subject.sequence:
        return "there is a target at every place of a sequence"
    if reason := case.leak.withheld("weight"):
        return reason
    if method in BY_BIAS and not case.subject.bias:
        return "it reads the bias's gradient, and the last layer has none"
    if method in BY_BIAS and (reason := case.leak.withheld("bias")):
        return reason
    if method in ONE_STEP and case.leak.local_steps > 1:
        return "it reads one gradient, and this is the sum of several"
    if method in WITH_SAMPLES and case.auxiliary is None:
        return "it needs samples of the same kind: auxiliary=(inputs, classes)"
    if method in ("gradinversion", *BY_SUMS) and not case.subject.rectified:
        return "it reads signs of features that are never negative; these have both"
    if method == "learned" and (case.coarse or case.leak.rate):
        return "it simulates gradients in full precision; a coarse precision or a difference of weights rounds them"
    if method == "learned" and case.scale and not isinstance(_defense(case), Each | None):
        return "it simulates the last layer alone, behind defences that treat tensors one by one"
    if method == "learned" and not case.scale and case.noise != 0:
        return "it simulates no noise on a gradient of unknown scale"
    if method == "llg*" and case.subject.kind == "tokens":
        return "its made-up inputs are numbers, not tokens"
    return ""


def _expected(case: Case, method: str) -> Expected:
    """Return the share of counts that is right on batches simulated behind the case's defence."""
    if case.defense.partition("/")[0] == "dp-sgd":
        raise InputError("samples that are clipped one by one are not simulated")
    return expected_share(
        case.leak,
        method,
        standins=_standins(case),
        auxiliary=case.auxiliary,
        loss=case.loss,
        defense=_defense(case),
        seed=case.seed,
    )


def _defense(case: Case) -> Defense | None:
    """Return the case's defence, with noise that is drawn anew."""
    if case.defense in ("none", "update"):
        return None
    return defenses.named(case.defense, generator=torch.Generator().manual_seed(case.seed))


def _standins(case: Case) -> Standins:
    """Return the samples for simulated batches: auxiliary or made-up ones, fewer for large networks."""
    if case.simulated:
        return case.simulated[0]
    count = min(MOST, max(LEAST, NUMBERS // max(1, case.subject.activations)))
    kind, shape = case.subject.kind, case.subject.input_shape
    input_sets: list[Tensor | None] = [None] if kind == "images" else [*made_up(case.leak, kind, shape, count)]
    for inputs in input_sets:
        with contextlib.suppress(Exception):
            case.simulated.append(standins_of(case.leak, auxiliary=case.auxiliary, inputs=inputs, count=count))
            return case.simulated[0]
    raise InputError("the network takes no made-up inputs")


def _classes(case: Case) -> Answer:
    classes = reveal_labels(case.leak.weight_gradient)
    return Answer("counted", "which classes occur, not how often", classes=classes)


SIGNS = "the last layer's gradient, and features that are never negative"
BOTH = "the gradients of the last layer's weight and bias"
ATTACKS = (
    counting("row signs", "batch-restoration", "gradinversion", SIGNS),
    counting("LLG", "llg-attack", "llg", SIGNS),
    counting("LLG*", "llg-attack", "llg*", f"{SIGNS}; the model, to try it on made-up inputs"),
    counting("LLG+", "llg-attack", "llg+", f"{SIGNS}; the model, and samples of the same kind"),
    counting("iLRG", "label-attacks-compared", "ilrg", BOTH),
    counting("posterior attack", "posterior-attack", "posterior", f"{BOTH}; samples of the same kind"),
    counting(
        "learned counts", "label-attacks-compared", "learned", "the last layer's gradient; samples of the same kind"
    ),
)
REVEALED = Attack(
    "RLG",
    page="reveal-labels",
    finds=("classes",),
    needs="the last layer's gradient of fewer samples than classes",
    refused=partial(_why_not, "rlg"),
    run=_classes,
    remedy=LABELS,
)
