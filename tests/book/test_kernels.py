"""A kernel forked from the server is a kernel like any other."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
import pytest
from jupyter_client.provisioning import KernelProvisionerFactory
from nbclient import NotebookClient

from gradleak.book import kernels
from tests.patience import KERNEL

CELL = """
import os, sys
print(os.getcwd(), os.environ["WORD"], os.getsid(0) == os.getpid(), __name__, "numpy" in sys.modules)
"""


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = KernelProvisionerFactory.instance()
    monkeypatch.setattr(factory, "default_provisioner_name", factory.default_provisioner_name)
    kernels.server(["numpy"])
    kernels.use()


def in_a_kernel(code: str) -> str:
    """Return what code says that a kernel runs which is started here."""
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(page, kernel_name="python3", **KERNEL).execute()
    return str(page.cells[0].outputs[0]["text"])


def here_and_in_a_kernel(code: str) -> tuple[int, str]:
    """Return who the parent of this process is, and what a kernel says."""
    return os.getppid(), in_a_kernel(code)


@pytest.mark.skipif(not kernels.FORKS, reason="kernels are forked on Linux alone")
def test_a_process_that_was_forked_has_its_kernels_from_the_same_server() -> None:
    code = "import os, sys; print(os.getppid(), 'nbformat' in sys.modules)"
    context = kernels.server([])
    with ProcessPoolExecutor(1, mp_context=context, initializer=kernels.use) as pool:
        server, told = pool.submit(here_and_in_a_kernel, code).result()
    assert told.split() == [str(server), "True"]


@pytest.mark.skipif(not kernels.FORKS, reason="kernels are forked on Linux alone")
def test_figures_are_shown_as_an_ordinary_kernel_shows_them(forked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import matplotlib.pyplot as plt\nfigure, axis = plt.subplots(figsize=(2, 1)); lines = axis.plot([1, 2])"
    shown = []
    for provisioner in (kernels.NAME, "local-provisioner"):
        monkeypatch.setattr(KernelProvisionerFactory.instance(), "default_provisioner_name", provisioner)
        page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
        NotebookClient(page, kernel_name="python3", **KERNEL).execute()
        shown.append([output["data"] for output in page.cells[0].outputs])
    assert "image/png" in shown[1][0]
    assert shown[0] == shown[1]


@pytest.mark.skipif(not kernels.FORKS, reason="kernels are forked on Linux alone")
def test_it_runs_cells_where_it_is_told_and_ends(forked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "passed on")
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    folder = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(page, kernel_name="python3", resources=folder, **KERNEL)
    with client.setup_kernel():
        kernel = client.km.provisioner.process
        assert kernel.poll() is None
        client.execute_cell(page.cells[0], 0)
    assert page.cells[0].outputs[0]["text"].split("\n")[0] == f"{tmp_path} passed on True __main__ True"
    assert kernel.wait() is not None


def test_a_handle_passes_signals_on_and_minds_no_process_that_has_ended() -> None:
    context = kernels.server([])
    process = context.Process(target=signal.pause)
    process.start()
    handle = kernels._Handle(process)
    assert handle.poll() is None
    handle.terminate()
    assert handle.wait() == -signal.SIGTERM
    handle.kill()
