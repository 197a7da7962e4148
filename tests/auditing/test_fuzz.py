"""Odd texts, damaged files and somebody's own models: each ends in one clear line or in a right answer.

`make fuzz` tries many times as many as the tests do.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

import gradleak
from gradleak import claims, studies
from gradleak.auditing import Report, loading, options
from gradleak.errors import GradleakError
from gradleak.leak import Leak
from gradleak.runs import records

TIMES = int(os.environ.get("GRADLEAK_FUZZ", "1"))


def tried(count: int) -> settings:
    """Return how many examples a test has: so many, always the same; and many more, of chance, when asked for."""
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count * TIMES, derandomize=TIMES == 1, suppress_health_check=quiet)


@pytest.fixture(autouse=True)
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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


@tried(60)
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


@tried(90)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(KINDS)))
def test_a_damaged_file_is_read_right_or_refused_in_one_line(seed: int, kind: str) -> None:
    place = Path(f"file.{kind}")
    write, read = KINDS[kind]
    write(place)
    place.write_bytes(damaged(place.read_bytes(), seed))
    check_one_line(lambda: read(place))


# ------------------------------------------------------------------------------------------------------------- models
WEIGHTS: dict[str, Callable[[nn.Module], object]] = {
    "frozen": lambda model: model.get_submodule("first").requires_grad_(False),
    "frozen head": lambda model: model.get_submodule("head").requires_grad_(False),
    "spare": lambda model: model.register_module("spare", nn.Linear(3, 3)),
    "half": lambda model: model.half(),
    "complex": lambda model: model.to(torch.cfloat),
    "double": lambda model: model.double(),
    "meta": lambda model: model.to("meta"),
    "nan": lambda model: nn.init.constant_(model.get_parameter("head.weight"), math.nan),
    "zero": lambda model: nn.init.zeros_(model.get_parameter("head.weight")),
    "huge": lambda model: nn.init.constant_(model.get_parameter("first.weight"), 1e30),
}
RAISED = {"raises": KeyError("lost"), "silent": AssertionError(), "many lines": OSError("\n\nfirst\nsecond")}
OUTPUTS: dict[str, Callable[[Tensor], object]] = {
    "plain": lambda y: y, "tuple": lambda y: (y, y), "nothing": lambda y: None, "flat": lambda y: y.sum(dim=1),
    "maps": lambda y: y[:, :, None, None], "detached": lambda y: y.detach(), "one": lambda y: y.sum(),
    "fewer": lambda y: y[:1], "whole": lambda y: y.long(), "softmax": lambda y: y.softmax(dim=1),
    "endless": lambda y: y / 0,
}  # fmt: skip
ODDITIES = [*WEIGHTS, *RAISED, *OUTPUTS]


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
        return OUTPUTS.get(self.kind, OUTPUTS["plain"])(self.head(self.first(x.flatten(1)).relu()))


INPUTS: dict[str, Callable[[int], Tensor]] = {
    "float": lambda n: torch.randn(n, 6, generator=torch.Generator().manual_seed(n)),
    "double": lambda n: INPUTS["float"](n).double(),
    "half": lambda n: torch.ones(n, 6).half(),
    "whole": lambda n: torch.ones(n, 6, dtype=torch.long),
    "bool": lambda n: torch.ones(n, 6, dtype=torch.bool),
    "complex": lambda n: torch.ones(n, 6, dtype=torch.cfloat),
    "zeros": lambda n: torch.zeros(n, 6),
    "nan": lambda n: torch.full((n, 6), math.nan),
    "huge": lambda n: torch.full((n, 6), 1e38),
    "image": lambda n: torch.rand(n, 1, 2, 3),
    "scalar": lambda n: torch.tensor(1.0),
    "meta": lambda n: torch.ones(n, 6, device="meta"),
    "sparse": lambda n: torch.eye(max(n, 6))[:n, :6].to_sparse(),
}
TARGETS: dict[str, Callable[[int], Tensor]] = {
    "classes": lambda n: torch.arange(n) % 5,
    "small": lambda n: torch.zeros(n, dtype=torch.int8),
    "outside": lambda n: torch.full((n,), 5),
    "below": lambda n: torch.full((n,), -1),
    "soft": lambda n: torch.full((n, 5), 0.2),
    "not one": lambda n: torch.full((n, 5), 0.3),
    "float": lambda n: torch.zeros(n),
    "complex": lambda n: torch.ones(n, dtype=torch.cfloat),
    "more": lambda n: torch.arange(n + 1) % 5,
    "places": lambda n: torch.zeros(n, 3, dtype=torch.long),
    "nan": lambda n: torch.full((n, 5), math.nan),
}
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda value: value, "other shape": lambda value: value[None], "whole": lambda value: value.long(),
    "nan": lambda value: value * math.nan, "half": lambda value: value.half(), "complex": lambda value: value.cfloat(),
}  # fmt: skip


def usual(word: str, others: dict[str, Any]) -> st.SearchStrategy[str]:
    """Return this word in half of the examples, and any other in the rest."""
    return st.one_of(st.just(word), st.sampled_from(sorted(others)))


def check_right(report: Report) -> None:
    """Check that no attack says that no other answer fits, and has a label wrong."""
    assert not [f for f in report.findings if f.certificate == "unique" and f.measures.get("labels", 1.0) < 1]
    assert Report.from_json(report.to_json()).findings == report.findings


# That is torch's word on the model that is made here.
@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@tried(40)
@given(
    st.one_of(st.just("plain"), st.sampled_from(ODDITIES)), usual("float", INPUTS), usual("classes", TARGETS),
    st.integers(0, 4), st.sampled_from(["none", "clip/0.1", "gaussian/1", "prune/1", "sign", "half"]),
)  # fmt: skip
def test_any_model_and_batch_is_audited_rightly_or_refused_in_one_line(
    kind: str, inputs: str, targets: str, count: int, defense: str
) -> None:
    def audit() -> None:
        report = gradleak.audit(
            Odd(kind), INPUTS[inputs](count), TARGETS[targets](count), batch_sizes=(max(1, count),),
            defenses=(defense,), minutes=0.1, steps=1,
        )  # fmt: skip
        check_right(report)

    check_one_line(audit)


@tried(20)
@given(usual("none", CHANGES), usual("float", INPUTS), usual("classes", TARGETS), st.integers(1, 3))
def test_any_update_is_audited_rightly_or_refused_in_one_line(change: str, inputs: str, targets: str, n: int) -> None:
    torch.manual_seed(0)
    model = Odd("plain")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = {name: value - 0.01 * torch.rand_like(value) for name, value in before.items()}
    after["head.weight"] = CHANGES[change](after["head.weight"])

    def audit() -> None:
        seen = Leak.from_update(model, before, after, rate=0.1, batch_size=n, input_shape=(6,))
        truth = {"inputs": INPUTS[inputs](n), "targets": TARGETS[targets](n)}
        check_right(gradleak.audit_update(seen, minutes=0.1, steps=1, **truth))  # type: ignore[arg-type]

    check_one_line(audit)
