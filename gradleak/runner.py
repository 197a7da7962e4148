"""Runs studies and pages: trials through joblib with a cache, notebooks through papermill."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradleak
from gradleak import claims, data, paths, progress, records, studies
from gradleak.errors import GradleakError, GradleakWarning, InputError
from gradleak.records import Record, Trial
from gradleak.storage import storage_error, write_whole
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
    cluster = cluster or os.environ.get("GRADLEAK_CLUSTER")
    started = time.perf_counter()
    device = studies.resolve_device(parameters.device)
    sources = _sources(study, parameters)
    inputs = [
        records.plain(one, f"trial {number} of '{study.name}'")
        for number, one in enumerate(study.module.trials(parameters), 1)
    ]
    if not inputs:
        raise InputError(f"study '{study.name}' has no trials with these parameters")
    threads = getattr(study.module, "THREADS", 1)
    workers = _jobs(jobs, len(inputs), device, threads)
    kept = _Kept(study.name, _decides(study, device, sources))
    done = [kept.get(one) for one in inputs]
    missing = [index for index, trial in enumerate(done) if trial is None]
    alone = cluster is None and min(workers, len(missing)) <= 1
    work = (joblib.delayed(_work)(study.name, index, inputs[index], threads, alone) for index in missing)
    with _backend(cluster, threads, alone):
        parallel = joblib.Parallel(n_jobs=1 if alone else workers, return_as="generator_unordered")
        with contextlib.closing(parallel(work)) as finished:
            for index, trial in progress.progress(finished, len(missing), f"{study.name}: trials") if missing else ():
                kept.put(trial)
                done[index] = trial
    record = Record(
        study=study.name,
        profile=_profile(study, parameters),
        parameters=parameters.model_dump(),
        trials=[trial for trial in done if trial is not None],
        provenance=records.provenance(device, parameters.seed, time.perf_counter() - started, sources),
    )
    if out := os.environ.get("GRADLEAK_RECORD"):
        records.write(record, Path(out))
    return record


def _sources(study: Study, parameters: Parameters) -> list[str]:
    """Return where a study's datasets come from; one that is not at hand is an error before any work starts."""
    states = {state.name: state.state for state in data.states()}
    names = study.module.datasets(parameters)
    for name in names:
        if states.get(name, "unknown") in ("unknown", "missing", "damaged"):
            data.load(name)  # says what is wrong
    return [data.source(name) for name in names]


def _decides(study: Study, device: str, sources: list[str]) -> str:
    """Return a hash of what decides a trial's result beside its inputs."""
    import torch

    accelerator = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    facts = [source_hash(study.module.__name__), records.versions(), sources, accelerator]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class _Kept:
    """The finished trials of a study. They are read and written here and not where they run: the cache may be
    somewhere that a cluster does not see, and what goes wrong with it is said to the person who waits."""

    def __init__(self, study: str, decides: str) -> None:
        import joblib

        self.study, self.decides = study, decides
        self.folder = _cache_folder()
        try:
            self.memory = joblib.Memory(str(self.folder), verbose=0).cache(_keep, ignore=["trial"])
            # joblib empties its cache when its copy of the function differs, a damaged copy included. What decides a
            # result is in the key, so there is nothing to compare with.
            folder = Path(self.memory.store_backend.location) / self.memory.func_id
            (folder / "func_code.py").unlink(missing_ok=True)
            self.memory.check_call_in_cache(*self._call({}))
        except OSError as error:
            raise storage_error(self.folder, error) from error

    def _call(self, inputs: dict[str, Any], trial: Trial | None = None) -> tuple[Any, ...]:
        return self.study, json.dumps(inputs, sort_keys=True), self.decides, trial and trial.model_dump()

    def get(self, inputs: dict[str, Any]) -> Trial | None:
        """Return a finished trial; a damaged one counts as not run, and that is said."""
        call = self._call(inputs)
        if not self.memory.check_call_in_cache(*call):
            return None
        entry = self.memory.call_and_shelve(*call)
        try:
            return Trial.model_validate({**entry.get(), "inputs": inputs})
        except Exception:  # there is no telling what half a pickle raises
            entry.clear()
            progress.warn(f"a cached trial of '{self.study}' is damaged and was computed again ({_short(inputs)})")
            return None

    def put(self, trial: Trial) -> None:
        """Keep a finished trial. Where that fails the run goes on: what it finds is worth more than its cache."""
        call, reason = self._call(trial.inputs, trial), ""
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Unable to cache to disk")
            try:
                self.memory(*call)
            except (OSError, Warning) as error:
                cause = error.__context__ if isinstance(error.__context__, OSError) else error
                reason = f": {getattr(cause, 'strerror', None) or cause}"
        if reason or not self.memory.check_call_in_cache(*call):
            told = f"a trial of '{self.study}' could not be stored in the cache ({_short(trial.inputs)}){reason}"
            progress.warn(told)


def _keep(study: str, inputs: str, decides: str, trial: dict[str, Any]) -> dict[str, Any]:
    """Return a finished trial: joblib keeps it under the first three arguments."""
    return trial


def _cache_folder() -> Path:
    folder = paths.cache() / "trials"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise storage_error(folder / "trials", error) from error
    return folder


def _work(study: str, index: int, inputs: dict[str, Any], threads: int, alone: bool) -> tuple[int, Trial]:
    """Run one trial, here or in a process of its own."""
    import torch

    module = studies.load(study).module
    bars = contextlib.nullcontext() if alone else progress.quiet()
    with bars, _settled(threads, inputs.get("device") == "cuda"), torch.random.fork_rng():
        # Trials draw from their own generators; should a library not, the order of the trials still must not matter.
        text = json.dumps(inputs, sort_keys=True).encode()
        torch.manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:4]))
        started = time.perf_counter()
        try:
            rows = module.trial(**inputs)
        except Exception as error:
            error.add_note(f"in a trial of '{study}': {_short(inputs)}")
            raise
        seconds = time.perf_counter() - started
    # What is kept is what a record would hold, so that a cached trial and a fresh one are the same.
    return index, Trial(inputs=inputs, rows=records.plain(rows, f"rows of '{study}'"), seconds=seconds)


@contextlib.contextmanager
def _settled(threads: int, accelerated: bool) -> Iterator[None]:
    """Compute the same way wherever a trial runs."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    # The number of threads decides in which order sums are taken, so it must not depend on the number of jobs.
    with threadpool_limits(threads):
        torch.set_num_threads(threads)
        if accelerated:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])


def _short(inputs: dict[str, Any]) -> str:
    plain = [f"{name}={value}" for name, value in inputs.items() if isinstance(value, str | int | float)]
    return ", ".join(plain[:5])


def _jobs(jobs: int | None, trials: int, device: str, threads: int = 1) -> int:
    asked = jobs
    if asked is None and (text := os.environ.get("GRADLEAK_JOBS")):
        if not text.isdigit():
            raise InputError(f"$GRADLEAK_JOBS must be a positive number; it is '{text}'")
        asked = int(text)
    if asked is not None and asked < 1:
        raise InputError(f"jobs must be a positive number; got {asked}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # One GPU is shared by as many processes as asked for, and by one unasked.
    workers = min(asked or (1 if device == "cuda" else cores), trials)
    return workers if threads == 1 else max(1, min(workers, cores // threads))


@contextlib.contextmanager
def _backend(cluster: str | None, threads: int, alone: bool) -> Iterator[None]:
    import joblib

    if alone:
        yield
        return
    if cluster is None:
        with joblib.parallel_config(backend="loky", inner_max_num_threads=threads):
            yield
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("a cluster needs Dask: install it with `pip install 'gradleak[cluster]'`") from error
    try:
        client = Client(cluster)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at '{cluster}': {error}") from error
    with client, joblib.parallel_config(backend="dask"):
        yield


def _profile(study: Study, parameters: Parameters) -> Any:
    own = parameters.model_dump()
    for profile in ("quick", "paper"):
        if own == studies.parameters(study, profile, {"device": own["device"]}).model_dump():
            return profile
    return "custom"


def source_hash(module: str) -> str:
    """Return a hash of a module's source and of every gradleak module that it imports, directly or not."""
    waiting, sources = [module], {}
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if file is None or name in sources:
            continue
        sources[name] = file.read_bytes()
        waiting += _imports(ast.parse(sources[name]), name if file.stem == "__init__" else name.rpartition(".")[0])
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name] + b"\0")
    return digest.hexdigest()[:16]


def _package() -> Path:
    return Path(gradleak.__file__).resolve().parent


def _file_of(name: str) -> Path | None:
    parts = name.split(".")
    if parts[0] != "gradleak":
        return None
    bases = [_package().joinpath(*parts[1:])]
    if parts[1:2] == ["studies"]:
        bases += [Path(folder).joinpath(*parts[2:]) for folder in studies.__path__]
    files = [file for base in bases for file in (base.with_suffix(".py"), base / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def _imports(tree: ast.Module, package: str = "") -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            # `from a import b` may mean the module a.b or a name in a.
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
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
    device = studies.resolve_device(parameters.device)
    digest.update(_decides(study, device, _sources(study, parameters)).encode())
    for module in PAGE_MODULES:
        digest.update(source_hash(module).encode())
    for file in (claims.FOLDER / f"{study.name}.yaml", paths.results() / f"{study.name}.json"):
        digest.update(file.read_bytes() if file.is_file() else b"none")
    digest.update(json.dumps(parameters.model_dump(), sort_keys=True).encode())
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
    """Execute a study's notebook into the folder `out`, its record beside it; an unchanged page is not run again."""
    import nbformat

    out = Path(out).resolve()
    notebook, record = out / f"{study.name}.ipynb", out / f"{study.name}.json"
    key = page_key(study, parameters)
    if not fresh and (done := _finished(notebook, record, key)) is not None:
        return PageRun(notebook, record, done, cached=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass  # said now, and not after the page has run
        record.unlink(missing_ok=True)
        started = time.perf_counter()
        settings = {
            "GRADLEAK_RECORD": str(record),
            "GRADLEAK_ROOT": str(paths.root()),
            "GRADLEAK_JOBS": str(jobs) if jobs else None,
            "GRADLEAK_CLUSTER": cluster,
            # The kernel runs the same code as this process, also where another checkout is the installed one.
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_package().parent), os.environ.get("PYTHONPATH")])),
            # Says on every start that frozen modules cannot be debugged.
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        with tempfile.TemporaryDirectory() as scratch:
            told = Path(scratch) / "progress"
            settings |= {"GRADLEAK_PROGRESS": str(told), **_quiet_kernel(Path(scratch))}
            with _watched(study.name, told) as count, _environment(settings):
                page = _execute(study, parameters, notebook, Path(scratch), count)
        seconds = time.perf_counter() - started
        if not record.is_file():
            raise GradleakError(f"page '{study.name}' ran, but its notebook made no record: it must call run_study")
        facts = records.read(record).provenance
        page.metadata["gradleak"] = {"study": study.name, "key": key, "seconds": round(seconds, 1)} | facts.model_dump(
            include={"device", "versions", "date"}
        )
        text = nbformat.writes(_cleaned(page, {scratch: "scratch"})) + "\n"
        write_whole(notebook, lambda stream: stream.write(text.encode()))
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


def _execute(study: Study, parameters: Parameters, notebook: Path, folder: Path, count: Callable[[int], None]) -> Any:
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import DeadKernelError
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.exceptions import PapermillException, PapermillExecutionError

    class Engine(NBClientEngine):  # type: ignore[misc]
        """papermill's own, which also tells how many cells are done."""

        @classmethod
        def execute_managed_notebook(cls, manager: Any, kernel_name: str, **settings: Any) -> Any:
            complete = manager.cell_complete

            def told(cell: Any, cell_index: int, **more: Any) -> None:
                complete(cell, cell_index=cell_index, **more)
                count(len(manager.nb.cells))

            manager.cell_complete = told
            return super().execute_managed_notebook(manager, kernel_name, **settings)

    papermill_engines.register("gradleak", Engine)
    defaults = study.Parameters().model_dump()
    # Only what differs is injected, so that a page at its defaults reads as it was written.
    changed = {name: value for name, value in parameters.model_dump().items() if value != defaults[name]}
    # papermill fills in {names} in the paths it is given.
    source, target = (str(path).replace("{", "{{").replace("}", "}}") for path in (study.notebook, notebook))
    options = {"kernel_name": "python3", "engine_name": "gradleak", "progress_bar": False, "cwd": str(folder)}
    try:
        return papermill.execute_notebook(source, target, changed, **options)
    except PapermillExecutionError as error:
        value = str(error.evalue).strip().partition("\n")[0]
        raise GradleakError(
            f"page '{study.name}' failed in cell {error.exec_count}: {error.ename}: {value} "
            f"(as far as it came it is in {notebook.name})"
        ) from error
    except DeadKernelError as error:
        raise GradleakError(f"page '{study.name}' ended without a word: was there too little memory?") from error
    except NoSuchKernel as error:
        raise GradleakError("the kernel 'python3' is missing: install it with `pip install ipykernel`") from error
    except PapermillException as error:
        raise GradleakError(f"page '{study.name}': {str(error).strip().partition(chr(10))[0]}") from error


def _cleaned(page: Any, named: dict[str, str]) -> Any:
    """Remove what names this machine: papermill's notes, times, and the paths of tracebacks and warnings."""
    page.metadata.pop("papermill", None)
    named = {str(paths.root()): ".", str(_package().parent): ".", sys.prefix: "python", str(Path.home()): "~", **named}
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
        # A home that is the root, as in some containers, would be every slash.
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
    """Show how far a page is: its cells, and below them what its kernel writes into its progress file.

    Gives the function to call after each cell, with the number of all cells.
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
