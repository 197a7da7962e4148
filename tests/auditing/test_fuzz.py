"""Odd texts, damaged files and somebody's own models: each ends in one clear line or in a right answer.

`make fuzz` tries many times as many as the tests do.
"""

from __future__ import annotations

import json
import math
import os
import random
import struct
import zipfile
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
from gradleak import claims, cli, studies
from gradleak.auditing import Report, loading, options
from gradleak.errors import GradleakError
from gradleak.leak import Leak
from gradleak.runs import records
from tests.test_cli import call

TIMES = int(os.environ.get("GRADLEAK_FUZZ", "1"))
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def tried(count: int) -> settings:
    """Return how many examples a test has: so many, always the same; and many more, of chance, when asked for."""
    options = {"suppress_health_check": QUIET, "derandomize": TIMES == 1}
    return settings(max_examples=count * TIMES, **options)


@pytest.fixture(autouse=True)
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def one_line(read: Callable[[], object]) -> bool:
    """Whether something is done, or refused in one line; any other error goes through."""
    try:
        read()
    except GradleakError as error:
        return str(error) != "" and "\n" not in str(error)
    return True


# -------------------------------------------------------------------------------------------------------------- texts
@tried(60)
@given(st.text(max_size=12), st.sampled_from(["model", "data", "size", "labels", "limit", "loss", "shape"]))
@example("~nobody", "data")
def test_any_text_is_right_or_refused_in_one_line(text: str, option: str) -> None:
    readers = {
        "model": loading.model_of,
        "data": loading.samples_of,
        "size": lambda word: options.whole(word, "--batch-size"),
        "labels": lambda word: loading.with_labels(loading.Samples(torch.ones(2, 3), torch.arange(2)), word, 4),
        "limit": lambda word: options.limits_of([word]),
        "loss": loading.loss_of,
        "shape": lambda word: options.whole(word, "--shape"),
    }
    assert one_line(lambda: readers[option](text))


WORDS = [
    "audit",
    "run",
    "verify",
    "record",
    "rerun",
    "claims",
    "lenet",
    "mlp:make",
    "--data",
    "photos",
    "--batch-size",
    "--out",
]
WORDS += ["--defense", "clip/", "prune/0.9", "--labels", "-p", "model=", "samples=1e9", "--minutes", "nan", "-1", "--"]
WORDS += [
    "--before",
    "--after",
    "a.safetensors",
    "--memory",
    "1e-9",
    "--seed",
    "theorem1",
    "--undecided",
    "--merge",
    "--profile",
]


@tried(40)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), min_size=1, max_size=5))
def test_any_command_line_ends_in_a_code_and_no_traceback(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("run_page", "record", "build"):  # what would be work is not begun
            patch.setattr(f"gradleak.{PLACES[name]}.{name}", lambda *_, **__: pytest.skip("it would work"))
        patch.setattr(options, "audit", lambda *_, **__: Report.from_json("{}"))
        patch.setattr("gradleak.book.again.again", lambda *_, **__: pytest.skip("it would work"))
        patch.setattr(cli, "_record_undecided", lambda *_, **__: None)
        patch.setattr(cli, "_list_outdated", lambda *_: None)
        try:
            code, _, err = call(capsys, *[word.replace("\0", "0") for word in words])
        except pytest.skip.Exception:
            return
    assert code in (0, 1, 2, 130)
    assert "Traceback" not in err


PLACES = {"run_page": "book.pages", "record": "runs.recording", "build": "book.build"}


@tried(60)
@given(
    st.sampled_from(["audit", "theorem1", "batches", "cnn-reconstruction", "words"]),
    st.text(max_size=10),
    st.data(),
)
def test_any_parameter_s_text_is_taken_or_refused_in_one_line(study: str, text: str, draw: st.DataObject) -> None:
    known = list(studies.load(study).Parameters.model_fields)
    name = draw.draw(st.sampled_from([*known, "nothing"]))
    value = draw.draw(
        st.sampled_from([text, "[]", "[1,", "{}", "1e999", "-0", "nan", "[[]]", "null", "[1,1]", "9" * 30])
    )
    assert one_line(lambda: studies.parameters(study, "quick", {name: value}))


# -------------------------------------------------------------------------------------------------------------- files
def damaged(raw: bytes, seed: int) -> bytes:
    """Return a file cut off, or with bytes swapped for others, or doubled."""
    draws = random.Random(seed)
    kind = draws.randrange(3)
    if kind == 0:
        return raw[: draws.randrange(len(raw))]
    if kind == 1:
        changed = bytearray(raw)
        for _ in range(draws.randrange(1, 20)):
            changed[draws.randrange(len(raw))] = draws.randrange(256)
        return bytes(changed)
    place = draws.randrange(len(raw))
    return raw[:place] + raw[draws.randrange(len(raw)) :]


def written(kind: str, place: Path) -> Callable[[], object]:
    """Write a file that is right, and return how it is read."""
    state = {"w": torch.arange(12.0).reshape(3, 4), "b": torch.zeros(3)}
    if kind == "npz":
        np.savez(place, inputs=np.ones((3, 4), dtype=np.float32), targets=np.arange(3))
        return lambda: loading.samples_of(str(place))
    if kind == "yaml":
        place.write_bytes(claims.file_of("audit").read_bytes())
        return lambda: claims._from_file(place, "audit")
    if kind == "record":
        kept = records.recorded("theorem1")
        assert kept is not None
        records.write(kept.model_copy(update={"trials": kept.trials[:1]}), place)
        return lambda: records.read(place)
    if kind == "json":
        place.write_text(
            Report(
                version="0", facts={"network": "n"}, settings={}, proofs=[], findings=[], not_tried=[], costs=[]
            ).to_json()
        )
        return lambda: Report.from_json(place.read_bytes())
    if kind == "safetensors":
        save_file(state, place)
    else:
        torch.save(state, place)
    return lambda: loading.state_of(place)


KINDS = ["npz", "safetensors", "pt", "json", "yaml", "record"]


@tried(90)
@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS))
def test_a_damaged_file_is_read_right_or_refused_in_one_line(seed: int, kind: str) -> None:
    place = Path(f"file.{kind}")
    read = written(kind, place)
    place.write_bytes(damaged(place.read_bytes(), seed))
    assert one_line(read)


DTYPES = [np.float16, np.float32, np.float64, np.int8, np.uint64, np.bool_, np.complex64, "S3", "M8[s]"]


@tried(40)
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=4), st.booleans())
@example(np.float32, np.float16, [1, 1, 0, 0], False)
def test_arrays_of_any_kind_are_audited_or_refused(first: Any, second: Any, shape: list[int], odd: bool) -> None:
    inputs, targets = np.ones(shape).astype(first), np.zeros(shape[:1]).astype(second)
    if odd and inputs.dtype.kind == "f":
        inputs = inputs * math.nan
    np.savez("own.npz", inputs=inputs, targets=targets)

    def audit() -> object:
        samples = loading.samples_of("own.npz")
        model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape[1:]) or 1, 4))
        return gradleak.audit(model, samples.inputs, samples.targets, batch_sizes=(1,), minutes=0.05, steps=1)

    assert one_line(audit)


@tried(20)
@given(st.integers(1, 2**50), st.sampled_from(["F32", "F64", "I8", "BOOL"]))
def test_a_header_that_promises_too_much_is_refused_before_it_is_believed(many: int, dtype: str) -> None:
    header = json.dumps({"w": {"dtype": dtype, "shape": [many], "data_offsets": [0, 8 * many]}}).encode()
    Path("huge.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(GradleakError, match="its header declares"):
        loading.state_of(Path("huge.safetensors"))


@tried(10)
@given(st.integers(33, 62))
def test_an_array_that_is_said_to_be_huge_is_refused(power: int) -> None:
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**power},), }}".ljust(117).encode() + b"\n"
    with zipfile.ZipFile("bomb.npz", "w") as archive:
        for name in ("inputs.npy", "targets.npy"):
            archive.writestr(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    with pytest.raises(GradleakError, match=r"cannot be read|too large to read") as caught:
        loading.samples_of("bomb.npz")
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------------- models
class Odd(nn.Module):
    """A network of two layers with something odd about it."""

    def __init__(self, kind: str, inputs: int = 6, classes: int = 5) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.head = nn.Linear(inputs, inputs), nn.Linear(inputs, classes)
        if kind == "shared":
            self.again = self.first
        if kind == "frozen":
            self.first.requires_grad_(False)
        if kind == "frozen head":
            self.head.requires_grad_(False)
        if kind == "frozen bias":
            self.head.bias.requires_grad_(False)
        if kind == "spare":
            self.spare = nn.Linear(3, 3)
        if kind in ("half", "bfloat16", "complex", "double"):
            self.to({"half": torch.half, "bfloat16": torch.bfloat16, "complex": torch.cfloat}.get(kind, torch.double))
        if kind == "meta":
            self.to("meta")
        if kind == "nan":
            nn.init.constant_(self.head.weight, math.nan)
        if kind == "infinite":
            nn.init.constant_(self.head.weight, math.inf)
        if kind == "zero":
            nn.init.zeros_(self.head.weight)
        if kind == "huge":
            nn.init.constant_(self.first.weight, 1e30)

    def forward(self, x: Tensor) -> Any:
        """Return logits, or something else."""
        if self.kind in ("raises", "silent", "many lines"):
            raise {"raises": KeyError("lost"), "silent": AssertionError(), "many lines": OSError("\n\nfirst\nsecond")}[
                self.kind
            ]
        hidden = self.first(x.flatten(1)).relu()
        if self.kind == "shared":
            hidden = self.again(hidden).relu()
        y = self.head(hidden)
        other = {
            "tuple": (y, y), "nothing": None, "number": 1, "flat": y.sum(dim=1), "maps": y[:, :, None, None],
            "detached": y.detach(), "one": y.sum(), "fewer": y[:1], "dictionary": {"logits": y}, "whole": y.long(),
            "softmax": y.softmax(dim=1), "endless": y / 0,
        }  # fmt: skip
        return other.get(self.kind, y)


ODDITIES = [
    "plain", "shared", "frozen", "frozen head", "frozen bias", "spare", "half", "bfloat16", "complex", "double", "meta",
    "nan", "infinite", "zero", "huge", "raises", "silent", "many lines", "tuple", "nothing", "number", "flat", "maps",
    "detached", "one", "fewer", "dictionary", "whole", "softmax", "endless",
]  # fmt: skip
INPUTS: dict[str, Callable[[int], Tensor]] = {
    "float": lambda n: torch.randn(n, 6, generator=torch.Generator().manual_seed(n)),
    "double": lambda n: torch.randn(n, 6, generator=torch.Generator().manual_seed(n)).double(),
    "half": lambda n: torch.ones(n, 6).half(),
    "whole": lambda n: torch.ones(n, 6, dtype=torch.long),
    "bool": lambda n: torch.ones(n, 6, dtype=torch.bool),
    "bytes": lambda n: torch.ones(n, 6, dtype=torch.uint8),
    "complex": lambda n: torch.ones(n, 6, dtype=torch.cfloat),
    "zeros": lambda n: torch.zeros(n, 6),
    "same": lambda n: torch.ones(n, 6),
    "nan": lambda n: torch.full((n, 6), math.nan),
    "huge": lambda n: torch.full((n, 6), 1e38),
    "image": lambda n: torch.rand(n, 1, 2, 3),
    "scalar": lambda n: torch.tensor(1.0),
    "meta": lambda n: torch.ones(n, 6, device="meta"),
    "sparse": lambda n: torch.eye(max(n, 6))[:n, :6].to_sparse(),
}
TARGETS: dict[str, Callable[[int], Tensor]] = {
    "classes": lambda n: torch.arange(n) % 5,
    "same": lambda n: torch.zeros(n, dtype=torch.long),
    "small": lambda n: torch.zeros(n, dtype=torch.int8),
    "outside": lambda n: torch.full((n,), 5),
    "below": lambda n: torch.full((n,), -1),
    "soft": lambda n: torch.full((n, 5), 0.2),
    "not one": lambda n: torch.full((n, 5), 0.3),
    "float": lambda n: torch.zeros(n),
    "bool": lambda n: torch.ones(n, dtype=torch.bool),
    "complex": lambda n: torch.ones(n, dtype=torch.cfloat),
    "more": lambda n: torch.arange(n + 1) % 5,
    "places": lambda n: torch.zeros(n, 3, dtype=torch.long),
    "nan": lambda n: torch.full((n, 5), math.nan),
}


def silent_wrong(report: Report) -> bool:
    """Whether an attack says that no other answer fits, and has a label wrong."""
    return any(one.certificate == "unique" and one.measures.get("labels", 1.0) < 1 for one in report.findings)


# That is torch's word on the model that is made here.
@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@tried(40)
@given(
    st.one_of(st.sampled_from(ODDITIES), st.just("plain")),
    st.one_of(st.just("float"), st.sampled_from(sorted(INPUTS))),
    st.one_of(st.just("classes"), st.sampled_from(sorted(TARGETS))),
    st.integers(0, 4),
    st.sampled_from(["none", "clip/0.1", "gaussian/1", "prune/1", "sign", "half"]),
)
def test_any_model_and_batch_is_audited_rightly_or_refused_in_one_line(
    kind: str, inputs: str, targets: str, count: int, defense: str
) -> None:
    def audit() -> None:
        report = gradleak.audit(
            Odd(kind), INPUTS[inputs](count), TARGETS[targets](count), batch_sizes=(max(1, count),),
            defenses=(defense,), minutes=0.1, steps=1,
        )  # fmt: skip
        assert not silent_wrong(report)
        assert Report.from_json(report.to_json()).findings == report.findings

    assert one_line(audit)


@tried(30)
@given(
    st.sampled_from(["same", "no change", "one missing", "other shape", "whole", "nan", "half", "double", "complex"]),
    st.one_of(st.just("float"), st.sampled_from(sorted(INPUTS))),
    st.one_of(st.just("classes"), st.sampled_from(sorted(TARGETS))),
    st.integers(0, 3),
)
def test_any_update_is_audited_rightly_or_refused_in_one_line(change: str, inputs: str, targets: str, n: int) -> None:
    torch.manual_seed(0)
    model = Odd("plain")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = {name: value - 0.01 * torch.rand_like(value) for name, value in before.items()}
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "no change": lambda value: value + 0.01, "other shape": lambda value: value[None],
        "whole": lambda value: value.long(), "nan": lambda value: value * math.nan, "half": lambda value: value.half(),
        "double": lambda value: value.double(), "complex": lambda value: value.cfloat(),
    }  # fmt: skip
    if change == "one missing":
        del after["head.bias"]
    elif change == "no change":
        after = before
    elif change != "same":
        after["head.weight"] = changes[change](after["head.weight"])

    def audit() -> None:
        seen = Leak.from_update(model, before, after, rate=0.1, batch_size=max(1, n), input_shape=(6,))
        truth = {} if n == 0 else {"inputs": INPUTS[inputs](n), "targets": TARGETS[targets](n)}
        gradleak.audit_update(seen, minutes=0.1, steps=1, **truth)  # type: ignore[arg-type]

    assert one_line(audit)
