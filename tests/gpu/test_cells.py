"""What a page computes in the open runs on a machine with a GPU.

A page's open cells stand before its study and work on one sample or a few: they run on the CPU, where such work is
over before a GPU has begun, and go to the GPU only where a cell asks for the page's `device`. Cells that cannot reach
a GPU compute here what they compute in the book's own run, and are not run again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import gradleak
from gradleak import studies
from tests.gpu import cells
from tests.pretended import NAME, pretended_gpu


@pytest.mark.parametrize("name", [name for name in studies.names() if cells.may_use_a_gpu(name)])
def test_a_pages_open_cells(name: str) -> None:
    with pretended_gpu():
        assert cells.run(name, NAME)["device"] == "auto"


def test_a_gpu_is_looked_for_by_studies_alone() -> None:
    """So cells that name neither a device nor a study stay on the CPU."""
    package = Path(gradleak.__file__).parent
    files = [
        file.relative_to(package).as_posix() for file in package.rglob("*.py") if "is_available" in file.read_text()
    ]
    assert files == ["runs/experiments.py"]


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ('device: str = "auto"\nx = 1', False),
        ("from gradleak.labels import idlg\nidlg(x.to(torch.float64))", False),
        ("model.to(device)", True),
        ('torch.ones(1, device="cuda:0")', True),
        ("model.cuda()", True),
        ("from gradleak.studies.shared import restored_batches", True),
        ("from gradleak import studies", True),
    ],
)
def test_which_cells_could_reach_a_gpu(text: str, may: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "opened", lambda name: [text])
    assert cells.may_use_a_gpu("a page") is may
