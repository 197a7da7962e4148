"""Run pages: run a study's trials, execute its notebook in a kernel, and write the record beside the notebook.

The trials run in this process and its workers, which show their progress. The notebook's kernel then finds them in the
cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradleak import claims, paths
from gradleak.book import PATIENCE
from gradleak.errors import GradleakError, GradleakWarning, InputError, first_line
from gradleak.runs import cells, code, progress, records, runner
from gradleak.storage import check_folder, parsed, write_whole
from gradleak.studies import Parameters, Study

# One of our warnings as Python prints it: the place in the code, the message and the line of code.
WARNING = re.compile(r"^.*: GradleakWarning: (.*)\n(?:  .*\n)?", re.MULTILINE)


@dataclass(frozen=True)
class PageRun:
    """An executed page.

    Attributes:
        notebook: The file of the executed notebook.
        record: The file of the record.
        seconds: The run time of the page.
    """

    notebook: Path
    record: Path
    seconds: float


def page_key(study: Study, parameters: Parameters) -> str:
    """Return a hash of everything on which an executed page depends."""
    digest = hashlib.sha256(study.notebook.read_bytes())
    digest.update(runner.decides(study, parameters, code.key(study, without=())).encode())
    for file in (claims.file_of(study.name), records.file_of(study.name)):
        digest.update(file.read_bytes() if file.is_file() else b"none")
    digest.update(json.dumps(parameters.model_dump(), sort_keys=True).encode())
    return digest.hexdigest()[:16]


def require_notebooks() -> None:
    """Raise an error that says what to install if the packages that run notebooks are missing."""
    if any(find_spec(name) is None for name in ("papermill", "nbformat", "nbconvert", "ipykernel")):
        raise GradleakError("pages are notebooks: to run them, `pip install 'gradleak[book]'`")


def run_page(
    study: Study, parameters: Parameters, out: Path, *, jobs: int | None = None, cluster: str | None = None
) -> PageRun:
    """Run a study and execute its notebook.

    Args:
        study: The study.
        parameters: The parameters of the run.
        out: The folder for the executed notebook and its record.
        jobs: The number of processes for the trials.
        cluster: The address of a Dask scheduler for the trials.
    """
    require_notebooks()
    out = Path(out).resolve()
    notebook, record = out / f"{study.name}.ipynb", out / f"{study.name}.json"
    cells.stated(study.notebook)
    key = page_key(study, parameters)
    _refuse_foreign(notebook, record)
    check_folder(out)
    record.unlink(missing_ok=True)
    started = time.perf_counter()
    try:
        run = runner.run_study(study, parameters, jobs=jobs, cluster=cluster)
    except GradleakError:
        raise
    except Exception as error:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        raise GradleakError(
            f"page '{study.name}' failed: {type(error).__name__}: {first_line(error)}{notes}"
        ) from error
    with tempfile.TemporaryDirectory() as scratch:
        page = _execute(study, parameters, notebook, Path(scratch))
    _clean(page, scratch)
    seconds = round(time.perf_counter() - started, 1)
    page.metadata["gradleak"] = {"study": study.name, "key": key, "seconds": seconds}
    records.write(run, record)
    _write(page, notebook)
    return PageRun(notebook, record, seconds)


def _write(page: Any, notebook: Path) -> None:
    import nbformat

    text = nbformat.writes(page) + "\n"
    write_whole(notebook, lambda stream: stream.write(text.encode()))


def _refuse_foreign(notebook: Path, record: Path) -> None:
    """Raise an error instead of overwriting a notebook that is not an executed page, or a record without a page."""
    file = notebook if notebook.is_file() else record
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    # A page that failed has only papermill's metadata, and a damaged one has no end.
    if re.search('"(nbformat|trials)": ', text) and not re.search(r'"(gradleak|papermill)": \{', text):
        raise InputError(f"{file.name} in '{file.parent.name}' does not come from a run: choose another folder")


def _settings(folder: Path) -> dict[str, str]:
    """Return the environment variables of a page's kernel.

    Args:
        folder: The folder in which the kernel runs.
    """
    folders = [name for name in paths.VARIABLES if os.environ.get(name)]
    return {
        # Without the user's configuration and start-up files.
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": code.search_path(),
        # Turns off a warning at every start that frozen modules cannot be debugged.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        # A page shows no progress bars.
        "TQDM_DISABLE": "1",
        **{name: str(Path(os.environ[name]).expanduser().absolute()) for name in folders},
    }


def finished(study: Study, key: str, out: Path) -> PageRun | None:
    """Return the executed page in the folder `out` if its key is this `page_key`, else None."""
    notebook, record = out / f"{study.name}.ipynb", out / f"{study.name}.json"
    try:
        facts = parsed(notebook.read_text())["metadata"]["gradleak"]
        records.read(record)
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return None
    if facts["key"] != key:
        return None
    return PageRun(notebook, record, float(facts["seconds"]))


def _execute(study: Study, parameters: Parameters, notebook: Path, folder: Path) -> Any:
    """Execute a page in a new kernel and return it; if a cell fails, the page up to there is written to `notebook`."""
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    from gradleak.book import kernels

    kernels.fork()
    page, defaults = load_notebook_node(str(study.notebook)), study.Parameters().model_dump()
    # Only changed parameters are injected, so that a page with default parameters reads as it was written.
    if changed := {name: value for name, value in parameters.model_dump().items() if value != defaults[name]}:
        page = parameterize_notebook(page, changed, kernel_name="python3", language="python")
    client = NotebookClient(
        page, kernel_name="python3", resources={"metadata": {"path": str(folder)}},
        startup_timeout=PATIENCE, iopub_timeout=PATIENCE, extra_arguments=["--IPKernelApp.log_level=40"],
    )  # fmt: skip
    try:
        # `client.execute` would ask the kernel what it is after the last cell, and interrupt what follows the answer.
        with client.setup_kernel(env=os.environ | _settings(folder)):
            for number, cell in enumerate(progress.progress(page.cells, len(page.cells), f"{study.name}: cells")):
                client.execute_cell(cell, number)
    except CellExecutionError as error:
        _write(page, notebook)
        value = str(error.evalue).strip().partition("\n")[0]
        raise GradleakError(
            f"page '{study.name}' failed in cell {cell.execution_count}: {error.ename}: {value} "
            f"(the cells up to there are in {notebook.name})"
        ) from error
    except DeadKernelError as error:
        raise GradleakError(f"the kernel of page '{study.name}' died: was there too little memory?") from error
    except NoSuchKernel as error:
        raise GradleakError("the kernel 'python3' is missing: install it with `pip install ipykernel`") from error
    return page


def _clean(page: Any, scratch: str) -> None:
    """Give our own warnings in a page's outputs to the user, and remove them and all traces of this machine.

    Traces are papermill's metadata, times, and paths in tracebacks and warnings.

    Args:
        page: The executed page.
        scratch: The folder in which the kernel ran.
    """
    page.metadata.pop("papermill", None)
    package = str(code.package_folder().parent)
    named = {str(paths.root()): ".", package: ".", sys.prefix: "python", str(Path.home()): "~", scratch: "scratch"}
    # In some containers the home folder is "/", and replacing it would change every slash.
    places = sorted((place for place in named if len(place) > 1), key=len, reverse=True)
    pattern = re.compile(rf"({'|'.join(map(re.escape, places))})(?![\w.-])")
    for cell in page.cells:
        for kind in ("papermill", "execution"):
            cell.metadata.pop(kind, None)
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                for message in WARNING.findall(output.text):
                    warnings.warn(message, GradleakWarning, stacklevel=3)
                output.text = WARNING.sub("", output.text)
            texts = output.get("data", output)
            for kind in ("text", "text/plain", "text/html", "text/markdown", "evalue"):
                if isinstance(texts.get(kind), str):
                    texts[kind] = pattern.sub(lambda found: named[found[1]], texts[kind])
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("text") != ""]
