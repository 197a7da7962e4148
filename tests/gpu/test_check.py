"""The check on a real GPU, tried on the pretended one."""

from __future__ import annotations

import base64
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from gradleak import defenses, studies
from tests.gpu import check
from tests.gpu.attacks import ATTACKS
from tests.gpu.rows import parts

ONES = torch.ones(100)


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


def test_processes_share_the_tries_and_results_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "made" / "check.json"
    assert (
        check.main(["--device", "pretended", "--jobs", "2", "--output", str(file), "loss-gradients", "measures"]) == 0
    )
    printed = capsys.readouterr()
    assert "8 of 8 agree" in printed.out
    assert len(printed.err.splitlines()) == 8
    assert "[8/8]" in printed.err.splitlines()[-1]
    content = json.loads(file.read_text("utf-8"))
    assert content["about"].keys() == {"device", "torch", "python", "processor", "date"}
    assert content["about"]["device"] == "a pretended GPU"
    assert (content["jobs"], content["chosen"]) == (2, 8)
    parts = ["psnr", "ssim", "fft2d", "lpips", "(open cells)", "slope", "counts", "posteriors"]
    assert [one["part"] for one in content["tries"]] == parts, "in the order of the tries"
    for one in content["tries"]:
        assert one.keys() == {"name", "part", "digits alike", "CPU s", "GPU s", "trouble"}
        assert (one["digits alike"], one["trouble"]) == (None, "")


def test_a_run_that_is_stopped_leaves_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_on(device: str, name: str, part: str) -> list[dict[str, Any]]:
        if part == "counts":
            raise KeyboardInterrupt
        return [{"value": 1.0 if device == "cpu" else 1.01}]

    monkeypatch.setattr(check, "rows_on", rows_on)
    file = tmp_path / "check.json"
    with pytest.raises(KeyboardInterrupt):
        check.main(["--device", "pretended", "--output", str(file), "loss-gradients"])
    content = json.loads(file.read_text("utf-8"))
    assert content["chosen"] == 4
    assert [(one["part"], one["digits alike"]) for one in content["tries"]] == [("(open cells)", None), ("slope", 2.0)]
    assert [one.name for one in tmp_path.iterdir()] == ["check.json"]


def test_without_a_gpu_or_a_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main([]) == 2
    assert "no GPU is at hand" in capsys.readouterr().err
    assert check.main(["--device", "pretended", "no-such-page"]) == 2
    with pytest.raises(SystemExit):
        check.main(["--jobs", "0"])


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


def _picture(level: int) -> str:
    """Return a grey picture as records hold it."""
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), (level, level, level)).save(stream, "JPEG")
    return base64.b64encode(stream.getvalue()).decode()


def test_pictures_are_compared_by_their_pixels() -> None:
    first, near, far = ([{"picture": _picture(level)}] for level in (100, 101, 140))
    assert first != near
    assert check.agreed(near, first).trouble == ""
    assert check.agreed(far, first).trouble == "[0].picture: (an image) where the CPU has (an image)"
