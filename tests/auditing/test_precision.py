"""Audits of clients that compute in TF32, bfloat16 or float16: what is found, what is certified, what is refused."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

import gradleak
from gradleak.answers import Answer
from gradleak.auditing import Report
from gradleak.auditing.findings import Finding
from gradleak.cases import Attack, Case
from gradleak.errors import InputError, UnknownName
from tests.auditing.test_audit import mlp, vectors
from tests.auditing.test_command import at_work  # noqa: F401
from tests.test_cli import call

PRECISIONS = ("float32", "tf32", "tf32-matmul", "bfloat16", "float16")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inspect.unwrap(gradleak.audit).__kwdefaults__, "steps", 1)


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.Sigmoid(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(12 * 16, 10))


@functools.cache
def linear_report() -> Report:
    return gradleak.audit(mlp(), *vectors(), batch_sizes=(1,), precisions=PRECISIONS, defenses=("none", "clip/0.1"))


@functools.cache
def convolutional_report() -> Report:
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    return gradleak.audit(convolutional(), images, torch.arange(4), batch_sizes=(1,), precisions=PRECISIONS)


def told(report: Report, attack: str, precision: str, defense: str = "none") -> Finding:
    place = (attack, precision, defense)
    return next(one for one in report.findings if (one.attack, one.precision, one.defense) == place)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("report", [linear_report, convolutional_report])
def test_labels_are_found_in_every_precision(report: object, precision: str) -> None:
    assert callable(report)
    found = told(report(), "label of one sample", precision)
    assert found.measures["labels"] == found.measures["features"] == 1
    assert found.certificate == "unique"
    assert report().worst("labels", precision=precision) == 1


@pytest.mark.parametrize("report", [linear_report, convolutional_report])
def test_nothing_certified_is_wrong(report: object) -> None:
    assert callable(report)
    sure = [one for one in report().findings if one.certificate in ("unique", "exact")]
    assert {one.precision for one in sure} == set(PRECISIONS)
    assert all(one.measures.get(name, 1) == 1 for one in sure for name in ("labels", "features", "inputs"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_attack_that_takes_no_precision_certifies_nothing_of_rounded_products(precision: str) -> None:
    found = told(linear_report(), "bias attack", precision)
    coarse = precision not in ("float32", "tf32")
    assert found.certificate == ("partial" if coarse else "exact")
    assert (f"as if nothing were rounded to {precision}" in found.sentence) == coarse
    assert found.measures["inputs"] == 1


def test_attacks_are_told_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(case: Case) -> Answer:
        seen.append((case.precision, case.defense))
        return Answer("failed")

    for place in ("running", "sentences"):
        one = Attack("look", "", ("labels",), "", lambda case: "", look, "")
        monkeypatch.setattr(f"gradleak.auditing.{place}.ATTACKS", (one,))
    inputs, targets = vectors()
    both = ("none", "clip/1")
    gradleak.audit(mlp(), inputs, targets, batch_sizes=(2,), precisions=("bf16", "bfloat16", "tf32"), defenses=both)
    assert seen == [("bfloat16", "none"), ("bfloat16", "clip/1"), ("tf32", "none"), ("tf32", "clip/1")]
    gradleak.audit(mlp(), inputs, targets, batch_sizes=(2,))
    gradleak.audit(mlp().double(), inputs.double(), targets, batch_sizes=(2,))
    assert [one for one, _ in seen[4:]] == ["float32", "float64"]


def test_sentences_tables_and_costs_name_the_precision() -> None:
    report = linear_report()
    assert told(report, "label of one sample", "bfloat16").sentence.startswith("In bfloat16, 100 % of the labels")
    assert "fits within its rounding" in told(report, "label of one sample", "bfloat16").sentence
    assert told(report, "label of one sample", "float32").sentence.endswith("no other answer fits.")
    assert [row["precision"] for row in report.table()] == [one for one in PRECISIONS for _ in range(2)]
    costs = {(one.precision, one.defense): one for one in report.costs}
    assert costs["float32", "none"].cosine == pytest.approx(1, abs=1e-12)
    assert costs["tf32", "none"] == costs["float32", "none"].model_copy(update={"precision": "tf32"})
    for name in PRECISIONS[2:]:
        assert 1e-9 < 1 - (costs[name, "none"].cosine or 0) < 1e-3
        assert costs[name, "none"].loss_after != costs[name, "none"].loss_after_undefended
        assert costs[name, "none"].loss_after_undefended == costs["float32", "none"].loss_after
    text = report._repr_html_()
    assert "no defence, batch of 1 in bfloat16" in text
    assert "computed in float32" in text
    assert "In tf32, tf32-matmul, bfloat16, float16 several answers may fit" in text
    assert report.settings["precisions"] == ", ".join(PRECISIONS)


@pytest.mark.parametrize(
    ("precisions", "dtype", "message"),
    [
        (("bf17",), torch.float32, r"unknown precision 'bf17': did you mean .* Known: bfloat16, float16, float32"),
        ((), torch.float32, "at least one precision is needed; known: float64"),
        (("float64",), torch.float32, "parameters are float32: its client cannot compute in float64"),
        (("tf32",), torch.float64, "parameters are float64: its client cannot compute in tf32, which needs float32"),
        (("float64", "bf16"), torch.float64, "cannot compute in bfloat16, which needs float32 parameters"),
    ],
)
def test_a_precision_is_refused_before_any_work(
    precisions: tuple[str, ...], dtype: torch.dtype, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradleak.auditing.running.observe", lambda *_, **__: pytest.fail("a gradient was taken"))
    inputs, targets = vectors()
    with pytest.raises((InputError, UnknownName), match=message) as caught:
        gradleak.audit(mlp().to(dtype), inputs.to(dtype), targets, batch_sizes=(1,), precisions=precisions)
    assert "\n" not in str(caught.value)
    leak = gradleak.observe(mlp().to(dtype), inputs[:1].to(dtype), targets[:1])
    for name in precisions[-1:]:
        with pytest.raises((InputError, UnknownName), match=message):
            gradleak.audit_update(leak, precision=name)


class Times(nn.Module):
    """Multiplies, beyond float16's largest number."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 1e6 * inputs


def test_a_model_that_overflows_in_float16_is_one_clear_line() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 12), Times(), nn.Linear(12, 12))
    gradleak.audit(model, *vectors(), batch_sizes=(1,), precisions=("bf16",))
    with pytest.raises(InputError, match="Sequential cannot be audited in float16: ") as caught:
        gradleak.audit(model, *vectors(), batch_sizes=(1,), precisions=("float32", "fp16"))
    assert "\n" not in str(caught.value)


def test_an_update_is_attacked_in_the_precision_that_is_known() -> None:
    inputs, targets = vectors()
    leak = gradleak.observe(mlp(), inputs[:1], targets[:1], precision="bf16")
    found = gradleak.audit_update(leak, inputs=inputs[:1], targets=targets[:1], precision="bf16", steps=1)
    label = told(found, "label of one sample", "bfloat16", "update")
    assert (label.certificate, label.measures["labels"]) == ("unique", 1)
    assert found.settings["precision"] == "bfloat16"
    assert found.precisions == ["bfloat16"]
    # Without noise and in float32 no label explains this gradient.
    unaware = gradleak.audit_update(leak, inputs=inputs[:1], targets=targets[:1], defense="none", steps=1)
    assert told(unaware, "label of one sample", "float32").certificate != "unique"


SINGLE = """
def single(): return make().float()
def singles():
    inputs, targets = batches()
    return inputs.float(), targets
"""


@pytest.mark.usefixtures("at_work")
def test_the_command_names_both_precisions(capsys: pytest.CaptureFixture[str]) -> None:
    Path("brought.py").write_text(Path("brought.py").read_text() + SINGLE)
    words = ["audit", "brought:single", "--data", "brought:singles", "--batch-size", "1", "--steps", "1"]
    code, out, err = call(capsys, *words, "--precision", "float32,bf16", "--fail-above", "labels=0.5")
    assert code == 1
    assert "labels = 1 is above 0.5" in err
    assert "bfloat16" in out
    report, page = (Path("report", name).read_text("utf-8") for name in ("report.json", "index.html"))
    assert Report.from_json(report).precisions == ["float32", "bfloat16"]
    assert "batch of 1 in float32" in page
    assert "batch of 1 in bfloat16" in page
