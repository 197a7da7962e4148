"""Run pages: execute a study's notebook with papermill, and write the record beside the executed notebook."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradleak import claims, paths, studies
from gradleak.book import PATIENCE, beside
from gradleak.errors import GradleakError, GradleakWarning, InputError
from gradleak.runs import cells, code, progress, records, runner
from gradleak.storage import parsed, storage_error, write_whole
from gradleak.studies import Parameters, Study


@dataclass(frozen=True)
class PageRun:
    """An executed page.

    Attributes:
        notebook: The file of the executed notebook.
        record: The file of the record.
        seconds: The run time of the page.
        cached: Whether the page was executed before and has not changed since.
    """

    notebook: Path
    record: Path
    seconds: float
    cached: bool


def page_key(study: Study, parameters: Parameters) -> str:
    """Return a hash of everything on which an executed page depends."""
    digest = hashlib.sha256(study.notebook.read_bytes())
    device = studies.resolve_device(parameters.device)
    digest.update(runner.decides(code.of_page(study), device, runner.sources_of(study, parameters)).encode())
    for file in (claims.file_of(study.name), records.file_of(study.name)):
        digest.update(file.read_bytes() if file.is_file() else b"none")
    digest.update(json.dumps(parameters.model_dump(), sort_keys=True).encode())
    return digest.hexdigest()[:16]


def require_notebooks() -> None:
    """Raise an error that says what to install if the packages that run notebooks are missing."""
    if any(find_spec(name) is None for name in ("papermill", "nbformat", "ipykernel")):
        raise GradleakError("pages are notebooks: to run them, `pip install 'gradleak[book]'`")


def run_page(
    study: Study,
    parameters: Parameters,
    out: Path,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    fresh: bool = False,
    both: bool = False,
) -> PageRun:
    """Execute a study's notebook, or return the page if it was executed before and has not changed since.

    Args:
        study: The study.
        parameters: The parameters of the run.
        out: The folder for the executed notebook and its record.
        jobs: The number of processes for the trials.
        cluster: The address of a Dask scheduler for the trials.
        fresh: Execute the page even if it has not changed.
        both: Also draw the figures and tables of the run that the page does not show, if the study has a record. The
            executed notebook keeps them in the metadata of its cells.
    """
    require_notebooks()
    import nbformat

    out = Path(out).resolve()
    notebook, record = out / f"{study.name}.ipynb", out / f"{study.name}.json"
    cells.read(study)
    key = page_key(study, parameters)
    _refuse_foreign(notebook, record)
    if not fresh and (done := finished(study, key, out)) is not None:
        return done
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass  # check that files can be written before the page runs
        record.unlink(missing_ok=True)
        started = time.perf_counter()
        settings = {
            "GRADLEAK_RECORD": str(record),
            "GRADLEAK_ROOT": str(paths.root()),
            "GRADLEAK_JOBS": str(jobs) if jobs else None,
            "GRADLEAK_CLUSTER": cluster,
            # The kernel must run the same code as this process, even if the installed package is another checkout.
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(code.package_folder().parent), os.environ.get("PYTHONPATH")])
            ),
            # Turns off a warning at every start that frozen modules cannot be debugged.
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        with tempfile.TemporaryDirectory() as scratch:
            progress_file = Path(scratch) / "progress"
            settings |= {"GRADLEAK_PROGRESS": str(progress_file), **_quiet_kernel(Path(scratch))}
            with _watched(study.name, progress_file) as count, _environment(settings):
                page = _execute(study, parameters, notebook, Path(scratch), count, both=both)
        seconds = round(time.perf_counter() - started, 1)
        if not record.is_file():
            raise GradleakError(f"page '{study.name}' ran, but its notebook made no record: it must call run_study")
        run = records.read(record)
        page.metadata["gradleak"] = {"study": study.name, "key": key, "seconds": seconds, "date": run.days[-1]} | (
            run.machines[0].model_dump(include={"device", "versions"})
        )
        beside.fold(_cleaned(page, {scratch: "scratch"}))
        text = nbformat.writes(page) + "\n"
        write_whole(notebook, lambda stream: stream.write(text.encode()))
    except OSError as error:
        raise error if isinstance(error, GradleakError) else storage_error(notebook, error) from error
    return PageRun(notebook, record, seconds, cached=False)


def _refuse_foreign(notebook: Path, record: Path) -> None:
    """Raise an error instead of overwriting a notebook that is not an executed page, or a record without a page."""
    try:
        ours = bool({"gradleak", "papermill"} & parsed(notebook.read_text())["metadata"].keys())
    except FileNotFoundError:
        ours = not record.exists()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # a run was killed while it wrote this file
    if not ours:
        file = notebook if notebook.exists() else record
        raise InputError(f"{file.name} in '{file.parent.name}' does not come from a run: choose another folder")


def _quiet_kernel(folder: Path) -> dict[str, str | None]:
    """Return environment variables that give the kernel an empty configuration, without the user's start-up files."""
    profile = folder / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_kernel_config.json").write_text(json.dumps({"IPKernelApp": {"log_level": 40}}))
    return {"IPYTHONDIR": str(folder / "ipython")}


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
    return PageRun(notebook, record, float(facts["seconds"]), cached=True)


def _execute(
    study: Study, parameters: Parameters, notebook: Path, folder: Path, count: Callable[[int], None], *, both: bool
) -> Any:
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from jupyter_core.utils import run_sync
    from nbclient.exceptions import DeadKernelError
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import Engine, papermill_engines
    from papermill.exceptions import PapermillException, PapermillExecutionError
    from papermill.log import logger

    class Client(PapermillNotebookClient):  # type: ignore[misc]
        """The client of papermill, which also waits until the kernel is idle after its last reply.

        papermill then shuts the kernel down, which begins with an interrupt. A kernel that is still busy with what
        follows its reply would report the interrupt as an error.
        """

        async def async_wait_for_reply(self, msg_id: str, cell: Any = None) -> Any:
            reply, idle = await super().async_wait_for_reply(msg_id, cell), False
            while not idle:
                with contextlib.suppress(queue.Empty):
                    message = await self.kc.get_iopub_msg(timeout=self.shell_timeout_interval)
                    idle = message["parent_header"].get("msg_id") == msg_id and (
                        message["content"].get("execution_state") == "idle"
                    )
                if not await self.kc.is_alive():
                    raise DeadKernelError("the kernel died after its last cell")
            return reply

        wait_for_reply = run_sync(async_wait_for_reply)

    class PageEngine(Engine):  # type: ignore[misc]
        """An engine of papermill like its default one, which also counts the finished cells."""

        @classmethod
        def execute_managed_notebook(cls, manager: Any, kernel_name: str, **_: Any) -> None:
            complete = manager.cell_complete

            def complete_and_count(cell: Any, cell_index: int, **more: Any) -> None:
                complete(cell, cell_index=cell_index, **more)
                count(len(manager.nb.cells))

            manager.cell_complete = complete_and_count
            limits = {"startup_timeout": PATIENCE, "iopub_timeout": PATIENCE}
            Client(manager, kernel_name=kernel_name, log=logger, **limits).execute()
            beside.drop_errors(manager.nb)

    papermill_engines.register("gradleak", PageEngine)
    defaults = study.Parameters().model_dump()
    # Only changed parameters are injected, so that a page with default parameters reads as it was written.
    changed = {name: value for name, value in parameters.model_dump().items() if value != defaults[name]}
    # papermill replaces {names} in paths, so braces have to be escaped.
    start = _with_copies(study, folder) if both else study.notebook
    source, target = (str(path).replace("{", "{{").replace("}", "}}") for path in (start, notebook))
    options = {"kernel_name": "python3", "engine_name": "gradleak", "progress_bar": False, "cwd": str(folder)}
    try:
        return papermill.execute_notebook(source, target, changed, **options)
    except PapermillExecutionError as error:
        value = str(error.evalue).strip().partition("\n")[0]
        raise GradleakError(
            f"page '{study.name}' failed in cell {error.exec_count}: {error.ename}: {value} "
            f"(the cells up to there are in {notebook.name})"
        ) from error
    except DeadKernelError as error:
        raise GradleakError(f"the kernel of page '{study.name}' died: was there too little memory?") from error
    except NoSuchKernel as error:
        raise GradleakError("the kernel 'python3' is missing: install it with `pip install ipykernel`") from error
    except PapermillException as error:
        raise GradleakError(f"page '{study.name}': {str(error).strip().partition(chr(10))[0]}") from error


def _with_copies(study: Study, folder: Path) -> Path:
    """Return the study's notebook, or a copy that draws the other run as well if there is a recorded run."""
    if records.recorded(study.name) is None:
        return study.notebook
    import nbformat

    page = nbformat.read(study.notebook, 4)
    beside.add_copies(page)
    file = folder / study.notebook.name
    nbformat.write(page, file)
    return file


def _cleaned(page: Any, named: dict[str, str]) -> Any:
    """Remove traces of this machine: papermill's metadata, times, and paths in tracebacks and warnings."""
    page.metadata.pop("papermill", None)
    named = {
        str(paths.root()): ".",
        str(code.package_folder().parent): ".",
        sys.prefix: "python",
        str(Path.home()): "~",
        **named,
    }
    for cell in page.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            texts = output.get("data", output)
            for kind in ("text", "text/plain", "text/html", "text/markdown", "evalue"):
                if isinstance(texts.get(kind), str):
                    texts[kind] = _without(texts[kind], named)
    return page


def _without(text: str, named: dict[str, str]) -> str:
    for place in sorted(named, key=len, reverse=True):
        # In some containers the home folder is "/", and replacing it would change every slash.
        if len(place) > 1:
            word = named[place].replace("\\", r"\\")
            text = re.sub(re.escape(place) + r"(?![\w.-])", word, text)
    return text


@contextlib.contextmanager
def _environment(changes: dict[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update({name: value for name, value in changes.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _watched(name: str, file: Path) -> Iterator[Callable[[int], None]]:
    """Show the progress of a page: its finished cells, and below them the tasks that its kernel writes to a file.

    Yields the function to call after each cell, with the number of all cells.
    """
    finished = threading.Event()
    with progress.display() as bars:
        page = bars.add_task(f"page {name}: cells", total=None) if bars else None
        troubles: list[str] = []

        def count(cells: int) -> None:
            if bars is not None and page is not None:
                bars.update(page, advance=1, total=cells)

        def watch() -> None:
            tasks: dict[str, Any] = {}
            position, last = 0, False
            while not last:
                last = finished.wait(0.2)
                lines, position = progress.read(file, position)
                for line in lines:
                    if "warning" in line:
                        troubles.append(line["warning"])
                    elif bars is not None:
                        if line["task"] not in tasks:
                            tasks[line["task"]] = bars.add_task(line["description"], total=line["total"])
                        bars.update(tasks[line["task"]], completed=line["done"], visible="ended" not in line)
            for task in tasks.values():
                if bars is not None:
                    bars.remove_task(task)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield count
        finally:
            finished.set()
            watcher.join()
            if bars is not None and page is not None:
                bars.remove_task(page)
            for trouble in troubles:
                warnings.warn(trouble, GradleakWarning, stacklevel=2)
