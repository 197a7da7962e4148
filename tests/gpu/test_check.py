"""The check on a real GPU, tried on the pretended one."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from PIL import Image

from gradleak import studies
from tests.gpu import check

ONES = torch.ones(100)


@pytest.mark.parametrize("name", studies.names())
def test_open_cells_compute_on_the_cpu(name: str) -> None:
    """So they run beside a GPU as without one; a cell that asks for a device must be run on the pretended GPU here."""
    _, *cells = check.cells.opened(name)
    assert not re.search(r"\bdevice\b|cuda|\.of\(", "\n".join(cells))


def test_another_process_makes_a_try_and_the_result_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "made" / "check.json"
    assert check.main(["--device", "pretended", "--jobs", "2", "--output", str(file), "training"]) == 0
    assert "1 of 1 agree" in capsys.readouterr().out
    content = json.loads(file.read_text("utf-8"))
    assert content["about"].keys() == {"device", "torch", "python", "processor", "date"}
    assert (content["jobs"], content["chosen"]) == (2, 1)
    (one,) = content["tries"]
    assert one.keys() == {"name", "part", "digits alike", "CPU s", "GPU s", "trouble"}
    assert (one["part"], one["digits alike"], one["trouble"]) == ("lenet", None, "")


# What the CPU and the GPU give for the first part of a page: close enough.
SLOPE = [{"value": 1.0}], [{"value": 1.01}]


def test_an_error_is_the_trouble_and_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = mock.Mock(side_effect=[*SLOPE, *SLOPE, SLOPE[0], RuntimeError("operands on two devices\nand more")])
    monkeypatch.setattr(check, "rows_on", rows)
    assert check.main(["--device", "pretended", "loss-gradients"]) == 1
    table = capsys.readouterr().out
    assert "operands on two devices" in table
    assert "3 of 4 agree" in table


def test_a_stopped_run_leaves_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "check.json"
    monkeypatch.setattr(check, "rows_on", mock.Mock(side_effect=[*SLOPE, KeyboardInterrupt]))
    with pytest.raises(KeyboardInterrupt):
        check.main(["--device", "pretended", "--output", str(file), "loss-gradients"])
    found = json.loads(file.read_text("utf-8"))["tries"]
    assert [(one["part"], one["digits alike"]) for one in found] == [("(open cells)", None), ("slope", 2.0)]


def test_without_a_gpu_or_a_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main([]) == 2
    assert "no GPU is at hand" in capsys.readouterr().err
    assert check.main(["--device", "pretended", "no-such-page"]) == 2
    with pytest.raises(SystemExit):
        check.main(["--jobs", "0"])


def _picture(level: int) -> str:
    """Return a grey picture as records hold it."""
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), (level, level, level)).save(stream, "JPEG")
    return base64.b64encode(stream.getvalue()).decode()


@pytest.mark.parametrize(
    ("found", "expected", "fine"),
    [
        (1.1, 1.0, False),
        (3e-8, 1e-7, True),
        (3e-5, 1e-8, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        ("unique", "failed", False),
        (3, 4, False),
        ([1.0], [], False),
        (ONES * 1.01, ONES, True),
        (ONES * 1.1, ONES, False),
        (ONES[:3], ONES, False),
        (ONES.where(ONES.cumsum(0) > 1, math.nan), ONES, False),
        (ONES.long() * 2, ONES.long(), False),
        (_picture(101), _picture(100), True),
        (_picture(140), _picture(100), False),
    ],
)
def test_how_far_results_may_be_apart(found: Any, expected: Any, fine: bool) -> None:
    assert (check.agreed([{"a": found}], [{"a": expected}])[1] == "") is fine
