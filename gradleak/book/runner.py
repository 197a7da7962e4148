"""Runs studies: their trials through joblib, with a cache."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradleak
from gradleak import data, paths, studies
from gradleak.book import progress, records
from gradleak.book.records import Record, Trial
from gradleak.errors import InputError
from gradleak.storage import storage_error
from gradleak.studies import Parameters, Study


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
    sources = sources_of(study, parameters)
    inputs = [
        records.plain(one, f"trial {number} of '{study.name}'")
        for number, one in enumerate(study.module.trials(parameters), 1)
    ]
    if not inputs:
        raise InputError(f"study '{study.name}' has no trials with these parameters")
    threads = getattr(study.module, "THREADS", 1)
    workers = _jobs(jobs, len(inputs), device, threads)
    kept = _Kept(study.name, decides(study, device, sources))
    done = [kept.get(one) for one in inputs]
    missing = [index for index, trial in enumerate(done) if trial is None]
    alone = cluster is None and min(workers, len(missing)) <= 1
    work = (joblib.delayed(_work)(study.name, index, inputs[index], threads, alone) for index in missing)
    with _backend(cluster, threads, alone), warnings.catch_warnings():
        # A worker whose memory has grown is replaced between trials; nobody has to know.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs", category=UserWarning)
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


def sources_of(study: Study, parameters: Parameters) -> list[str]:
    """Return where a study's datasets come from; one that is not at hand is an error before any work starts."""
    states = {state.name: state.state for state in data.states()}
    names = study.module.datasets(parameters)
    for name in names:
        if states.get(name, "unknown") in ("unknown", "missing", "damaged"):
            data.load(name)  # says what is wrong
    return [data.source(name) for name in names]


def decides(study: Study, device: str, sources: list[str]) -> str:
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


def package() -> Path:
    return Path(gradleak.__file__).resolve().parent


def _file_of(name: str) -> Path | None:
    parts = name.split(".")
    if parts[0] != "gradleak":
        return None
    bases = [package().joinpath(*parts[1:])]
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
