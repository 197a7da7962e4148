"""Odd texts and damaged files: each ends in one clear line or in a right answer.

`make fuzz` tries many times as many as the tests do.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from gradleak import claims, studies
from gradleak.auditing import Report, loading, options
from gradleak.errors import GradleakError
from gradleak.runs import records

TIMES = int(os.environ.get("GRADLEAK_FUZZ", "1"))


def tried(count: int) -> settings:
    """Return how many examples a test has: so many, always the same; and many more, of chance, when asked for."""
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count * TIMES, derandomize=TIMES == 1, suppress_health_check=quiet)


def check_one_line(read: Callable[[], object]) -> None:
    """Check that something is done, or refused in one line; any other error goes through."""
    message = "done"
    try:
        read()
    except GradleakError as error:
        message = str(error)
    assert message
    assert "\n" not in message


# ----------------------------------------------------------------------------------------------------- texts and files
TEXTS: dict[str, Callable[[str], object]] = {
    "model": loading.model_of,
    "data": loading.samples_of,
    "size": lambda word: options.whole(word, "--batch-size"),
    "labels": lambda word: loading.with_labels(loading.Samples(torch.ones(2, 3), torch.arange(2)), word, 4),
    "limit": lambda word: options.limits_of([word]),
    "loss": loading.loss_of,
    "report": Report.from_json,
    **{
        name: lambda word, name=name: studies.parameters("theorem1", "quick", {name: word})  # type: ignore[misc]
        for name in ("samples", "classes", "device", "nothing")
    },
}


@tried(40)
@given(
    st.one_of(st.text(max_size=12), st.sampled_from(["[]", "[1,", "{}", "1e999", "-0", "nan", "null", "9" * 30])),
    st.sampled_from(sorted(TEXTS)),
)
@example("~nobody", "data")
def test_any_text_is_right_or_refused_in_one_line(text: str, option: str) -> None:
    check_one_line(lambda: TEXTS[option](text))


def damaged(raw: bytes, seed: int) -> bytes:
    """Return a file cut off, or with bytes swapped for others, or doubled."""
    draws = random.Random(seed)
    place, changed = draws.randrange(len(raw)), bytearray(raw)
    for _ in range(draws.randrange(1, 20)):
        changed[draws.randrange(len(raw))] = draws.randrange(256)
    return draws.choice([raw[:place], bytes(changed), raw[:place] + raw[draws.randrange(len(raw)) :]])


def one_trial(place: Path) -> None:
    kept = records.recorded("theorem1")
    assert kept is not None
    records.write(kept.model_copy(update={"trials": kept.trials[:1]}), place)


STATE = {"w": torch.arange(12.0).reshape(3, 4), "b": torch.zeros(3)}
PLAIN = Report(version="0", facts={"network": "n"}, settings={}, proofs=[], findings=[], not_tried=[], costs=[])
# How a file that is right is written, and how it is read.
KINDS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "npz": (lambda file: np.savez(file, inputs=np.ones((3, 4)), targets=np.arange(3)),
            lambda file: loading.samples_of(str(file))),
    "yaml": (lambda file: file.write_bytes(claims.file_of("audit").read_bytes()),
             lambda file: claims._from_file(file, "audit")),
    "record": (one_trial, records.read),
    "json": (lambda file: file.write_text(PLAIN.to_json()), lambda file: Report.from_json(file.read_bytes())),
    "safetensors": (lambda file: save_file(STATE, file), loading.state_of),
    "pt": (lambda file: torch.save(STATE, file), loading.state_of),
}  # fmt: skip


@tried(60)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(KINDS)))
def test_a_damaged_file_is_read_right_or_refused_in_one_line(seed: int, kind: str) -> None:
    place = Path(f"file.{kind}")
    write, read = KINDS[kind]
    write(place)
    place.write_bytes(damaged(place.read_bytes(), seed))
    check_one_line(lambda: read(place))
