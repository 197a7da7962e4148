"""Audits of clients that compute in TF32, bfloat16 or float16: what is found, what is certified, what is refused."""

from __future__ import annotations

import functools

import pytest

import gradleak
from gradleak.auditing import Report
from gradleak.auditing.findings import Finding
from tests.auditing.networks import mlp, vectors

PRECISIONS = ("float32", "tf32", "tf32-matmul", "bfloat16", "float16")


@functools.cache
def linear_report() -> Report:
    return gradleak.audit(mlp(), *vectors(), batch_sizes=(1,), precisions=PRECISIONS, defenses=("none", "clip/0.1"))


def finding(report: Report, attack: str, precision: str, defense: str = "none") -> Finding:
    place = (attack, precision, defense)
    return next(one for one in report.findings if (one.attack, one.precision, one.defense) == place)


def test_labels_are_found_in_every_precision_and_nothing_certified_is_wrong() -> None:
    report = linear_report()
    for precision in PRECISIONS:
        found = finding(report, "label of one sample", precision)
        assert found.measures["labels"] == found.measures["features"] == 1
        assert found.certificate == "unique"
        assert report.worst("labels", precision=precision) == 1
    sure = [one for one in report.findings if one.certificate in ("unique", "exact")]
    assert all(one.measures.get(name, 1) == 1 for one in sure for name in ("labels", "features", "inputs"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_attack_that_takes_no_precision_certifies_nothing_of_rounded_products(precision: str) -> None:
    found = finding(linear_report(), "unit by unit", precision)
    coarse = precision not in ("float32", "tf32")
    assert found.certificate == ("partial" if coarse else "exact")
    assert (f"as if nothing were rounded to {precision}" in found.sentence) == coarse
    assert found.measures["inputs"] == 1


def test_costs_are_those_of_the_precision() -> None:
    report = linear_report()
    costs = {one.precision: one for one in report.costs if one.defense == "none"}
    assert costs["float32"].cosine == pytest.approx(1, abs=1e-12)
    assert costs["tf32"] == costs["float32"].model_copy(update={"precision": "tf32"})
    for name in PRECISIONS[2:]:
        assert 1e-9 < 1 - (costs[name].cosine or 0) < 1e-3
        assert costs[name].loss_after != costs[name].loss_after_undefended == costs["float32"].loss_after


def test_an_update_is_attacked_in_the_precision_that_is_known() -> None:
    inputs, targets = (value[:1] for value in vectors())
    leak = gradleak.observe(mlp(), inputs, targets, precision="bf16")
    found = gradleak.audit_update(leak, inputs=inputs, targets=targets, precision="bf16", steps=1)
    label = finding(found, "label of one sample", "bfloat16", "update")
    assert (label.certificate, label.measures["labels"]) == ("unique", 1)
    assert found.precisions == ["bfloat16"]
    # Without noise and in float32 no label explains this gradient.
    unaware = gradleak.audit_update(leak, inputs=inputs, targets=targets, defense="none", steps=1)
    assert finding(unaware, "label of one sample", "float32").certificate != "unique"
