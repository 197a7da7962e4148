"""Runs studies and pages: trials through joblib with a cache, notebooks through papermill."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradleak
from gradleak import claims, data, paths, records, studies
from gradleak.errors import GradleakError, GradleakWarning, InputError
from gradleak.progress import progress
from gradleak.records import Record, Trial
from gradleak.storage import storage_error
from gradleak.studies import Parameters, Study

# What a page shows beside its study; a change there asks for a new run of the page, though not of its trials.
PAGE_MODULES = ("gradleak.claims", "gradleak.records", "gradleak.tables", "gradleak.runner")


def run_study(
    study: Study | str, parameters: Parameters, *, jobs: int | None = None, cluster: str | None = None
) -> Record:
    """Run all trials of a study that are not in the cache, and return the record of all.

    `jobs`: processes on this machine ($GRADLEAK_JOBS, else one a core); `cluster`: the address of a Dask scheduler
    ($GRADLEAK_CLUSTER). A run that was killed continues where it stopped: finished trials are in the cache.
    """
    import joblib

    study = studies.load(study) if isinstance(study, str) else study
    started = time.perf_counter()
    inputs = [json.loads(json.dumps(one)) for one in study.module.trials(parameters)]
    device = studies.resolve_device(parameters.device)
    source = source_hash(study.module.__name__)
    folder = _cache_folder()
    work = [joblib.delayed(_work)(study.name, one, source, str(folder)) for one in inputs]
    with _backend(cluster or os.environ.get("GRADLEAK_CLUSTER")):
        parallel = joblib.Parallel(n_jobs=_jobs(jobs, len(inputs), device), return_as="generator")
        done = []
        for trial, troubles in progress(parallel(work), len(work), f"{study.name}: trials"):
            done.append(trial)
            for trouble in troubles:
                warnings.warn(trouble, GradleakWarning, stacklevel=2)
    record = Record(
        study=study.name,
        profile=_profile(study, parameters),
        parameters=parameters.model_dump(),
        trials=done,
        provenance=records.provenance(
            device,
            parameters.seed,
            time.perf_counter() - started,
            [data.source(name) for name in study.module.datasets(parameters)],
        ),
    )
    if out := os.environ.get("GRADLEAK_RECORD"):
        records.write(record, Path(out))
    return record


def _cache_folder() -> Path:
    folder = paths.cache() / "trials"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise storage_error(folder / "trials", error) from error
    return folder


def _work(study: str, inputs: dict[str, Any], source: str, folder: str) -> tuple[Trial, list[str]]:
    """Run one trial, or take it from the cache; return it with what went wrong about the cache."""
    import joblib
    import torch

    troubles: list[str] = []
    cached = joblib.Memory(folder, verbose=0).cache(_trial)
    # joblib logs a damaged entry and computes it again; we want the same, and to say it in our words.
    cached.warn = lambda message: troubles.append(
        f"a cached trial of '{study}' is damaged and was computed again ({_short(inputs)})"
    )
    threads = torch.get_num_threads()
    # The number of threads decides in which order sums are taken, so it must not depend on the number of jobs.
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=joblib.memory.JobLibCollisionWarning)
            warnings.filterwarnings("ignore", message="Unable to cache to disk")
            rows, seconds = cached(study, inputs, source)
            if not cached.check_call_in_cache(study, inputs, source):
                troubles.append(f"a trial of '{study}' could not be stored in the cache ({_short(inputs)})")
    finally:
        torch.set_num_threads(threads)
    return Trial(inputs=inputs, rows=rows, seconds=seconds), troubles


def _trial(study: str, inputs: dict[str, Any], source: str) -> tuple[list[dict[str, Any]], float]:
    """Run one trial. `source` stands for the code that decides the result; joblib keys its cache with it."""
    started = time.perf_counter()
    rows = studies.load(study).module.trial(**inputs)
    # What is kept is what a record would hold, so that a cached trial and a fresh one are the same.
    return json.loads(json.dumps(rows)), time.perf_counter() - started


def _short(inputs: dict[str, Any]) -> str:
    plain = [f"{name}={value}" for name, value in inputs.items() if isinstance(value, str | int | float)]
    return ", ".join(plain[:5])


def _jobs(jobs: int | None, trials: int, device: str) -> int:
    asked = jobs or int(os.environ.get("GRADLEAK_JOBS") or 0)
    if asked < 0:
        raise InputError(f"jobs must be a positive number; got {asked}")
    # One GPU is shared by as many processes as asked for, and by one unasked.
    default = 1 if device == "cuda" else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    return max(1, min(asked or default, trials))


@contextlib.contextmanager
def _backend(cluster: str | None) -> Iterator[None]:
    import joblib

    if cluster is None:
        yield
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("a cluster needs Dask: install it with `pip install 'gradleak[cluster]'`") from error
    with Client(cluster), joblib.parallel_config(backend="dask"):
        yield


def _profile(study: Study, parameters: Parameters) -> Any:
    own = parameters.model_dump()
    for profile in ("quick", "paper"):
        if own == studies.parameters(study, profile, {"device": own["device"]}).model_dump():
            return profile
    return "custom"


def source_hash(module: str) -> str:
    """Return a hash of a module's source and of every gradleak module that it imports, directly or not."""
    package = Path(gradleak.__file__).parent
    waiting, sources = [module], {}
    while waiting:
        name = waiting.pop()
        file = _file_of(package, name)
        if file is None or name in sources:
            continue
        sources[name] = file.read_bytes()
        waiting += _imports(ast.parse(sources[name]))
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name] + b"\0")
    return digest.hexdigest()[:16]


def _file_of(package: Path, name: str) -> Path | None:
    parts = name.split(".")
    if parts[0] != "gradleak":
        return None
    base = package.joinpath(*parts[1:])
    return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)


def _imports(tree: ast.Module) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from a import b` may mean the module a.b or a name in a.
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in found if name.startswith("gradleak")]


@dataclass(frozen=True)
class PageRun:
    """An executed page: its notebook, its record, how long it took, and whether it was there already."""

    notebook: Path
    record: Path
    seconds: float
    cached: bool


def page_key(study: Study, parameters: Parameters) -> str:
    """Return a hash of everything an executed page depends on."""
    digest = hashlib.sha256(study.notebook.read_bytes())
    for module in (study.module.__name__, *PAGE_MODULES):
        digest.update(source_hash(module).encode())
    for file in (claims.FOLDER / f"{study.name}.yaml", paths.results() / f"{study.name}.json"):
        digest.update(file.read_bytes() if file.is_file() else b"none")
    digest.update(json.dumps([parameters.model_dump(), records.versions()], sort_keys=True).encode())
    return digest.hexdigest()[:16]


def run_page(
    study: Study,
    parameters: Parameters,
    out: Path,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    fresh: bool = False,
) -> PageRun:
    """Execute a study's notebook into the folder `out`, with its record beside it; if nothing changed, it is kept."""
    import nbformat

    notebook, record = out / f"{study.name}.ipynb", out / f"{study.name}.json"
    key = page_key(study, parameters)
    if not fresh and (done := _finished(notebook, record, key)) is not None:
        return PageRun(notebook, record, done, cached=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)
        started = time.perf_counter()
        settings = {
            "GRADLEAK_RECORD": str(record.resolve()),
            "GRADLEAK_ROOT": str(paths.root()),
            "GRADLEAK_JOBS": str(jobs) if jobs else None,
            "GRADLEAK_CLUSTER": cluster,
        }
        with (
            tempfile.TemporaryDirectory() as scratch,
            _page_bar(study.name, Path(scratch) / "progress") as told,
            _environment({**settings, **told, **_quiet_kernel(Path(scratch))}),
        ):
            page = _execute(study, parameters, notebook, Path(scratch))
        seconds = time.perf_counter() - started
        if not record.is_file():
            raise GradleakError(f"page '{study.name}' ran, but its notebook made no record: it must call run_study")
        page.metadata["gradleak"] = {"study": study.name, "key": key, "seconds": round(seconds, 1)}
        notebook.write_text(nbformat.writes(_cleaned(page)) + "\n")
    except OSError as error:
        raise error if isinstance(error, GradleakError) else storage_error(notebook, error) from error
    return PageRun(notebook, record, seconds, cached=False)


def _quiet_kernel(folder: Path) -> dict[str, str | None]:
    """Give the kernel a configuration of its own: no start-up files of the user's, no greeting about its transport."""
    profile = folder / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_kernel_config.json").write_text(json.dumps({"IPKernelApp": {"log_level": 40}}))
    return {"IPYTHONDIR": str(folder / "ipython")}


def _finished(notebook: Path, record: Path, key: str) -> float | None:
    try:
        facts = json.loads(notebook.read_text())["metadata"]["gradleak"]
        records.read(record)
    except (OSError, ValueError, KeyError, InputError):
        return None
    return float(facts["seconds"]) if facts["key"] == key else None


def _execute(study: Study, parameters: Parameters, notebook: Path, folder: Path) -> Any:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    defaults = study.Parameters().model_dump()
    # Only what differs is injected, so that a page at its defaults reads as it was written.
    changed = {name: value for name, value in parameters.model_dump().items() if value != defaults[name]}
    try:
        return papermill.execute_notebook(
            str(study.notebook), str(notebook), changed, kernel_name="python3", progress_bar=False, cwd=str(folder)
        )
    except PapermillExecutionError as error:
        value = str(error.evalue).splitlines()[0] if error.evalue else ""
        raise GradleakError(f"page '{study.name}' failed in cell {error.exec_count}: {error.ename}: {value}") from error


def _cleaned(page: Any) -> Any:
    """Remove what papermill notes of this machine."""
    page.metadata.pop("papermill", None)
    for cell in page.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
    return page


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
def _page_bar(name: str, file: Path) -> Iterator[dict[str, str | None]]:
    """Show what the page's kernel writes into its progress file as bars with a time estimate."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    finished = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        page = bars.add_task(f"page {name}", total=None)

        def watch() -> None:
            tasks: dict[str, Any] = {}
            position = 0
            while not finished.wait(0.3):
                bars.refresh()
                if not file.is_file():
                    continue
                with file.open() as stream:
                    stream.seek(position)
                    for line in iter(stream.readline, ""):
                        if not line.endswith("\n"):
                            break  # half a line: the rest comes with the next look
                        position += len(line.encode())
                        told = json.loads(line)
                        what = told["description"]
                        if what not in tasks:
                            tasks[what] = bars.add_task(what, total=told["total"])
                        bars.update(tasks[what], completed=told["done"], total=told["total"])

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield {"GRADLEAK_PROGRESS": str(file)}
        finally:
            finished.set()
            watcher.join()
            bars.remove_task(page)
