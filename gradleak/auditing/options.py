"""Run an audit with the options of the command line."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gradleak import data as datasets
from gradleak.auditing import loading
from gradleak.auditing.findings import MEASURES
from gradleak.auditing.report import Report
from gradleak.auditing.running import audit, audit_update
from gradleak.errors import InputError, foreign, printable, unknown
from gradleak.leak import Leak, arguments_of, evaluating

# Share of the time that is reserved for writing the report; minutes for attacks if the time is already over.
WRITING, LEAST = 0.05, 1e-6
# Limits that any input of a grade exceeds.
GRADE_LIMITS = {"inputs=exact": "inputs", "inputs=recognisable": "recognisable"}


def report(
    model: str,
    data: str | None,
    *,
    size: int | None = None,
    target: str | None = None,
    batch_size: str = "1,4",
    labels: str | None = None,
    defense: str = "none",
    precision: str | None = None,
    mode: str | None = None,
    loss: str = "cross-entropy",
    minutes: float = 5.0,
    before: Path | None = None,
    after: Path | None = None,
    local_steps: int | None = None,
    epochs: int | None = None,
    client: Mapping[str, Any],
    shape: str | None = None,
    seed: int = 0,
    **common: Any,
) -> Report:
    """Run the audit with the texts and numbers of the command line.

    The time limit starts after the model was built. A part of the time is reserved for writing the report.

    Args:
        client: The rate and other facts about a client's training, for `Leak.from_update`.
        common: The memory, the images and the steps, for `audit` and `audit_update`.
    """
    if mode not in (None, "eval", "train"):
        raise InputError(f"--mode is eval or train; got {mode!r}")
    network = loading.model_of(model, seed=seed)
    started = time.monotonic()
    common |= {"loss": loading.loss_of(loss), "mode": mode, "seed": seed}
    samples = loading.samples_of(data, size=size, target=target, model=network) if data else None
    sizes, precisions = whole(batch_size, "--batch-size"), None if precision is None else _words(precision)
    prior = labels.partition("/")[0] if labels else None
    if samples is not None:
        samples, prior = loading.with_labels(samples, labels, _classes(network, samples, data))
        common |= {"pixels": samples.pixels, "columns": samples.columns}
    if before is None and after is None:
        if samples is None:
            raise InputError("an audit needs private samples: --data, or --before and --after for a client's update")
        return audit(
            network, samples.inputs, samples.targets, batch_sizes=sizes, defenses=_words(defense) or ["none"],
            precisions=precisions, labels=prior, minutes=_left(minutes, started), **common,
        )  # fmt: skip
    if before is None or after is None:
        raise InputError("--before and --after go together: the weights before and after a client's round")
    if len(sizes) != 1:
        raise InputError("a client's update has one batch size, which is public: --batch-size 4")
    if precisions is not None and len(precisions) != 1:
        raise InputError("a client computed its update in one precision: --precision bf16")
    input_shape = tuple(whole(shape, "--shape")) if shape else None
    if samples is not None:
        common |= {"inputs": samples.inputs, "targets": samples.targets}
        input_shape = tuple(samples.inputs.shape[1:])
    states = loading.state_of(before), loading.state_of(after)
    if input_shape is None:
        raise InputError("without --data, an update does not say what shape one input has: --shape 3,32,32")
    seen = Leak.from_update(
        network, *states, batch_size=sizes[0], input_shape=input_shape,
        local_steps=_steps(None if samples is None else len(samples.inputs), sizes[0], local_steps, epochs), **client,
    )  # fmt: skip
    return audit_update(
        seen, labels=prior or "onehot", precision=precisions[0] if precisions else None,
        minutes=_left(minutes, started), **common,
    )  # fmt: skip


def _steps(samples: int | None, batch_size: int, local_steps: int | None, epochs: int | None) -> int:
    """Return the number of a client's local steps; `samples` is the number of its samples, None if unknown."""
    if epochs is None:
        if local_steps is None and samples not in (None, batch_size):
            raise InputError(
                f"--data must hold exactly the samples of the update: it has {samples}, and --batch-size is "
                f"{batch_size}; with several steps, give --epochs or --local-steps"
            )
        return local_steps or 1
    if samples is None:
        raise InputError("--epochs needs the client's samples (--data); without them give --local-steps")
    steps = epochs * math.ceil(samples / batch_size)
    if local_steps not in (None, steps):
        raise InputError(f"{epochs} epochs of {samples} samples in batches of {batch_size} are {steps} local steps")
    return steps


def _left(minutes: float, started: float) -> float:
    """Return the minutes that are left for attacks."""
    left = (1 - WRITING) * minutes - (time.monotonic() - started) / 60
    return max(left, LEAST) if 0 < minutes < math.inf else minutes


def _classes(model: torch.nn.Module, samples: loading.Samples, source: str | None) -> int:
    shape = tuple(samples.inputs.shape[1:])
    sizes = f" ({datasets.sizes(source)})" if source in datasets.names() else ""
    with foreign(f"the model does not take inputs of shape {shape}{sizes}"), torch.no_grad(), evaluating(model):
        positional, named = arguments_of(samples.inputs[:1])
        logits = model(*positional, **named)
    if torch.is_tensor(logits) and logits.numel() == 1:
        return 2  # classes of a single output
    if not torch.is_tensor(logits) or logits.ndim < 2:
        raise InputError(f"the model returns {type(logits).__name__}, not a tensor of logits (B, C)")
    return int(logits.shape[-1])


def whole(text: str, option: str) -> list[int]:
    """Return the whole numbers in a text such as 1,4,16."""
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise InputError(f"{option} takes whole numbers, such as 1,4,16; got {text!r}") from error


def _words(text: str) -> list[str]:
    """Return the words in a text such as tf32,bf16."""
    return [word.strip() for word in text.split(",") if word.strip()]


def limits_of(pairs: Sequence[str]) -> dict[str, float]:
    """Return the limits in texts such as labels=0.5, inputs=exact or inputs=recognisable."""
    parsed = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if pair in GRADE_LIMITS:
            parsed[GRADE_LIMITS[pair]] = 0.0
            continue
        if name not in MEASURES:
            raise unknown("measure", printable(name), MEASURES)
        try:
            parsed[name] = float(value)
        except ValueError as error:
            raise InputError(
                f"--fail-above takes labels=0.5, inputs=exact or inputs=recognisable; got {pair!r}"
            ) from error
    return parsed
