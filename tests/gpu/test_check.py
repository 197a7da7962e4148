"""The check on a real GPU, tried on the pretended one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gradleak import defenses, studies
from tests.gpu import check
from tests.gpu.attacks import ATTACKS
from tests.gpu.rows import parts

ONES = torch.ones(100)


def test_a_page_is_tried_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--device", "pretended", "loss-gradients"]) == 0
    told = capsys.readouterr().out
    assert "loss-gradients" in told
    assert "(open cells)" in told
    assert "3 of 3 agree" in told


def test_groups_are_tried_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--device", "pretended", "measures", "training"]) == 0
    told = capsys.readouterr().out
    assert "lpips" in told
    assert "5 of 5 agree" in told


def test_everything_is_tried() -> None:
    tried = {(one.name, one.part) for one in check.tries()}
    assert {("attacks", name) for name in ATTACKS} <= tried
    assert {("defences", kind) for kind in defenses.KINDS} <= tried
    assert {("audit", "fully connected"), ("training", "lenet"), ("measures", "lpips")} <= tried
    assert {(name, "(open cells)") for name in studies.names()} <= tried
    assert set(parts()) <= tried


def test_what_fails_there_is_told_and_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows_on(device: str, name: str, part: str) -> list[dict[str, Any]]:
        if device != "cpu":
            raise RuntimeError("operands on two devices\nand more")
        return [{"value": 1.0}]

    monkeypatch.setattr(check, "rows_on", rows_on)
    assert check.main(["--device", "pretended", "loss-gradients"]) == 1
    assert "operands on two devices" in capsys.readouterr().out


def test_without_a_gpu_or_a_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main([]) == 2
    assert "no GPU is at hand" in capsys.readouterr().err
    assert check.main(["--device", "pretended", "no-such-page"]) == 2


@pytest.mark.parametrize(
    ("found", "expected", "fine"),
    [
        ([{"a": 1.0}], [{"a": 1.0}], True),
        ([{"a": 1.001}], [{"a": 1.0}], True),
        ([{"a": 1.1}], [{"a": 1.0}], False),
        ([{"a": 3e-8}], [{"a": 1e-7}], True),
        ([{"a": 3e-5}], [{"a": 1e-8}], False),
        ([{"a": 0.0}], [{"a": 1e-15}], True),
        ([{"a": math.nan}], [{"a": math.nan}], True),
        ([{"a": math.nan}], [{"a": 1.0}], False),
        ([{"a": math.inf}], [{"a": 1.0}], False),
        ([{"a": "unique"}], [{"a": "failed"}], False),
        ([{"a": 3}], [{"a": 4}], False),
        ([{"a": 1.0}], [{"b": 1.0}], False),
        ([{"a": 1.0}], [], False),
        ([ONES], [ONES.clone()], True),
        ([ONES], [ONES * 1.01], True),
        ([ONES], [ONES * 1.1], False),
        ([ONES], [ONES.where(ONES.cumsum(0) > 1, 1.1)], True),
        ([ONES], [ONES[:3]], False),
        ([ONES], [ONES.where(ONES.cumsum(0) > 1, math.nan)], False),
        ([ONES.long()], [ONES.long() * 2], False),
        ([ONES * 1e-8], [ONES * 1e-9], True),
        ([ONES * 1e-5], [ONES * 1e-9], False),
        ([ONES * 0], [ONES * 0], True),
    ],
)
def test_how_far_rows_may_be_apart(found: Any, expected: Any, fine: bool) -> None:
    assert (check.agreed(found, expected).trouble == "") is fine
