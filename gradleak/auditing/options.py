"""Run an audit with the options of the command line."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradleak import data
from gradleak.auditing import loading
from gradleak.auditing.findings import MEASURES
from gradleak.auditing.report import Report
from gradleak.auditing.running import STEPS, audit, audit_update
from gradleak.errors import InputError, foreign, printable, unknown
from gradleak.leak import Leak, evaluating
from gradleak.precision import PRECISIONS, precision_of

# Share of the time that is reserved for writing the report; minutes for attacks if the time is already over.
WRITING, LEAST = 0.05, 1e-6


@dataclass(frozen=True)
class Options:
    """The options of `gradleak audit`, as texts and numbers."""

    model: str
    samples: str | None
    size: int | None
    batch_size: str
    labels: str | None
    defense: str
    loss: str
    minutes: float
    memory: float | None
    images: bool
    before: Path | None
    after: Path | None
    rate: float
    local_steps: int
    momentum: float
    weight_decay: float
    shape: str | None
    seed: int
    fail_above: tuple[str, ...] = ()
    steps: int = STEPS
    precision: str | None = None


def report(options: Options) -> Report:
    """Run the audit with these options.

    The time limit starts after the model was built. A part of the time is reserved for writing the report.
    """
    limits_of(options.fail_above)  # checks the limits before the audit
    precisions = precisions_of(options.precision)
    model = loading.model_of(options.model, seed=options.seed)
    started = time.monotonic()
    loss = loading.loss_of(options.loss)
    common: dict[str, Any] = {
        "loss": loss,
        "memory": options.memory,
        "images": options.images,
        "seed": options.seed,
        "steps": options.steps,
    }
    samples = loading.samples_of(options.samples, size=options.size) if options.samples else None
    if options.before is not None or options.after is not None:
        return _update(options, model, samples, precisions, common, started)
    if samples is None:
        raise InputError("an audit needs private samples: --data, or --before and --after for a client's update")
    samples, prior = loading.with_labels(samples, options.labels, _classes(model, samples, options.samples))
    words = [word.strip() for word in options.defense.split(",")]
    return audit(
        model, samples.inputs, samples.targets, batch_sizes=whole(options.batch_size, "--batch-size"),
        defenses=[word for word in words if word] or ["none"], precisions=precisions, labels=prior,
        pixels=samples.pixels, minutes=_left(options.minutes, started), **common,
    )  # fmt: skip


def _left(minutes: float, started: float) -> float:
    """Return the minutes that are left for attacks."""
    left = (1 - WRITING) * minutes - (time.monotonic() - started) / 60
    return max(left, LEAST) if 0 < minutes < math.inf else minutes


def _update(
    options: Options,
    model: torch.nn.Module,
    samples: loading.Samples | None,
    precisions: list[str] | None,
    common: dict[str, Any],
    started: float,
) -> Report:
    if options.before is None or options.after is None:
        raise InputError("--before and --after go together: the weights before and after a client's round")
    sizes = whole(options.batch_size, "--batch-size")
    if len(sizes) != 1:
        raise InputError("a client's update has one batch size, which is public: --batch-size 4")
    if precisions is not None and len(precisions) != 1:
        raise InputError("a client computed its update in one precision: --precision bf16")
    shape = tuple(whole(options.shape, "--shape")) if options.shape else None
    if samples is not None:
        shape = tuple(samples.inputs.shape[1:])
    seen = Leak.from_update(
        model, loading.state_of(options.before), loading.state_of(options.after), rate=options.rate,
        batch_size=sizes[0], local_steps=options.local_steps, momentum=options.momentum,
        weight_decay=options.weight_decay, input_shape=shape,
    )  # fmt: skip
    given: dict[str, Any] = {"precision": precisions[0] if precisions else None}
    prior = options.labels.partition("/")[0] if options.labels else "onehot"
    if samples is not None:
        count = sizes[0] * options.local_steps
        samples, _ = loading.with_labels(samples, options.labels, len(seen.weight))
        given |= {"inputs": samples.inputs[:count], "targets": samples.targets[:count], "pixels": samples.pixels}
    return audit_update(seen, labels=prior, minutes=_left(options.minutes, started), **given, **common)


def _classes(model: torch.nn.Module, samples: loading.Samples, source: str | None) -> int:
    shape = tuple(samples.inputs.shape[1:])
    sizes = f" ({data.sizes(source)})" if source in data.names() else ""
    with foreign(f"the model does not take inputs of shape {shape}{sizes}"), torch.no_grad(), evaluating(model):
        logits = model(samples.inputs[:1])
    if not torch.is_tensor(logits) or logits.ndim < 2:
        raise InputError(f"the model returns {type(logits).__name__}, not a tensor of logits (B, C)")
    return int(logits.shape[-1])


def whole(text: str, option: str) -> list[int]:
    """Return the whole numbers in a text such as 1,4,16."""
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise InputError(f"{option} takes whole numbers, such as 1,4,16; got {text!r}") from error


def precisions_of(text: str | None) -> list[str] | None:
    """Return the precisions in a text such as tf32,bf16; None without a text."""
    if text is None:
        return None
    names = [word.strip() for word in text.split(",") if word.strip()]
    if not names:
        raise InputError(f"--precision takes names, such as tf32,bf16; known: {', '.join(PRECISIONS)}")
    return list(dict.fromkeys(precision_of(name).name for name in names))


def limits_of(pairs: Sequence[str]) -> dict[str, float]:
    """Return the limits in texts such as labels=0.5."""
    parsed = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in MEASURES:
            raise unknown("measure", printable(name), MEASURES)
        try:
            parsed[name] = float(value)
        except ValueError as error:
            raise InputError(f"--fail-above takes MEASURE=LIMIT, such as labels=0.5; got {pair!r}") from error
    return parsed


def limits(report: Report, pairs: Sequence[str], *, allow_not_attacked: bool = False) -> list[str]:
    """Return a line for each measure of a report above its limit; raise an error if a measure was not attacked."""
    return report.above(limits_of(pairs), allow_not_attacked=allow_not_attacked)
