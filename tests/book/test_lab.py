"""A page in Jupyter: a changed parameter, run from top to bottom, shows this run and overwrites no record."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from gradleak.runs import records, runner
from tests.checkout import Toy
from tests.patience import KERNEL

SHOWN = "from gradleak.show import provenance\nshown = provenance.shown(record)\nshown"


def files(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_changed_parameter_runs_and_overwrites_no_record(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    records.write(runner.run_study("toy", checkout.parameters()), records.file_of("toy"))
    checkout.write_notebook(checkout.study_cell, SHOWN, "from gradleak import claims\nclaims.verdicts(record)")
    page = nbformat.read(checkout.notebook, 4)
    (cell,) = [cell for cell in page.cells if "parameters" in cell.metadata.get("tags", ())]
    cell.source = cell.source.replace("samples: int = 4", "samples: int = 6").replace(
        "pause: float = 0.0", "pause: float = 0.4"
    )
    monkeypatch.setenv("PYTHONPATH", str(checkout.root))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    before = files(checkout.root / "results"), files(checkout.root / "notebooks")
    # Jupyter starts a kernel in the folder of the notebook.
    folder = {"metadata": {"path": str(checkout.notebook.parent)}}
    NotebookClient(page, kernel_name="python3", resources=folder, **KERNEL).execute()
    assert (files(checkout.root / "results"), files(checkout.root / "notebooks")) == before
    study, shown, verdicts = (cell.outputs for cell in page.cells[1:])
    assert "toy: trials: " in "".join(output.get("text", "") for output in study), "a bar shows the progress"
    assert "show this very run, because the parameters were changed" in shown[0].data["text/markdown"]
    assert "15 (n = 6)" in verdicts[0].data["text/html"]
