"""Run studies: run their trials in parallel with joblib, and read finished trials from the cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Literal

from gradleak import data, devices
from gradleak.data import text
from gradleak.errors import GradleakError, InputError, first_line
from gradleak.runs import code, experiments, golden, gpus, parts, progress, records, studies
from gradleak.runs.experiments import Parameters
from gradleak.runs.plain import Columns, plain
from gradleak.runs.records import Record, Trial
from gradleak.runs.studies import Study
from gradleak.runs.trials import Trials, known, short

# The time (s) to wait for the first worker of a cluster.
WAIT = 15 * 60


def run_study(
    study: Study | str,
    parameters: Parameters,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
) -> Record:
    """Run the trials of a study that are not in the cache, and return the record of all its trials.

    Finished trials are cached, so a run that was interrupted continues where it stopped.

    Args:
        study: The study or its name.
        parameters: The parameters of the run.
        jobs: The number of processes; by default $GRADLEAK_JOBS, or else one for a quick run and one per core or GPU
            for other runs.
        cluster: The address of a Dask scheduler.

    Raises:
        InputError: The study has no trials with these parameters.
    """
    study = studies.load(study) if isinstance(study, str) else study
    inputs = study.trials(parameters)
    if profile_of(study, parameters) == "quick" and jobs is None and not os.environ.get("GRADLEAK_JOBS"):
        jobs = 1  # the imports in other processes would take longer than the work
    trials = finished(study, parameters, inputs, jobs=jobs, cluster=cluster)
    done = {known(trial.inputs): trial for trial in trials}
    return record_of(study, parameters, planned=len(inputs), trials=[done[known(one)] for one in inputs])


def record_of(study: Study, parameters: Parameters, **facts: Any) -> Record:
    """Return the record of a run with these parameters; `facts` are its trials and further fields of the record."""
    values, data_sources = parameters.model_dump(), list(sources_of(study, parameters).values())
    profile = profile_of(study, parameters)
    return Record(study=study.name, profile=profile, parameters=values, data=data_sources, **facts)


def finished(
    study: Study,
    parameters: Parameters,
    inputs: Sequence[Columns],
    *,
    jobs: int | None = None,
    cluster: str | None = None,
) -> Generator[Trial, None, None]:
    """Yield the trials with these inputs: first those in the cache, then each when it ends, which is then cached.

    Arguments as in `run_study` and `run_trials`.
    """
    cache = cache_of(study, parameters)
    cached = {known(trial_inputs): cache.get(trial_inputs) for trial_inputs in inputs}
    yield from (trial for trial in cached.values() if trial is not None)
    missing = [(study, trial_inputs) for trial_inputs in inputs if cached[known(trial_inputs)] is None]
    with contextlib.closing(run_trials(missing, jobs=jobs, cluster=cluster)) as running:
        for _, result in running:
            if isinstance(result, GradleakError):
                raise result
            cache.put(result)
            yield result


def run_trials(
    trials: Sequence[tuple[Study, Columns]],
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    caught: bool = False,
) -> Generator[tuple[int, Trial | GradleakError], None, None]:
    """Run trials, and yield each, or its error, with its index, in the order in which the trials end.

    Args:
        trials: The study and the inputs of each trial.
        jobs: The number of processes, as in `run_study`.
        cluster: The address of a Dask scheduler.
        caught: Whether every error of a trial is yielded; if not, only a lack of memory is yielded, and other errors
            are raised.
    """
    import joblib

    if not trials:
        return
    accelerated = any(records.on_gpu(inputs) for _, inputs in trials)
    workers = processes(jobs, len(trials), "cuda" if accelerated else "cpu")
    alone = cluster is None and workers <= 1
    work = (
        joblib.delayed(_work)(study.name, index, inputs, alone, caught) for index, (study, inputs) in enumerate(trials)
    )
    with _backend(cluster, alone), warnings.catch_warnings():
        # joblib replaces workers whose memory has grown. That is harmless, so the warning is hidden.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs", category=UserWarning)
        # A caller whose time budget is used up stops early on purpose, so this warning is hidden as well.
        warnings.filterwarnings("ignore", message=r"\d+ tasks which were still being processed", category=UserWarning)
        # A cluster gets all trials at once, so that workers that join later receive trials, too.
        ahead = "2*n_jobs" if cluster is None else "all"
        parallel = joblib.Parallel(1 if alone else workers, return_as="generator_unordered", pre_dispatch=ahead)
        with contextlib.closing(parallel(work)) as finished:
            commit, names = records.commit(), dict.fromkeys(study.name for study, _ in trials)
            for index, result in progress.progress(finished, len(trials), f"{' and '.join(names)}: trials"):
                if isinstance(result, Trial):
                    facts = {"commit": commit, "golden": golden.digest(trials[index][0].name)}
                    result = result.model_copy(update=facts)
                yield index, result


def sources_of(study: Study, parameters: Parameters) -> dict[str, str]:
    """Return the origin of each dataset that a study reads; a missing one raises an error before any work starts."""
    states = {state.name: state.state for state in (*data.states(), *text.states())}
    names = study.datasets(parameters)
    for name in names:
        if states.get(name, "unknown") in ("unknown", "missing", "damaged"):
            text.texts(name) if name in text.NAMES else data.load(name)  # says what is wrong
    return {name: _source(name) for name in names}


def _source(name: str) -> str:
    return text.source(name) if name in text.NAMES else data.source(name)


def cache_of(study: Study, parameters: Parameters) -> Trials:
    """Return the cache of a study's trials. A trial is found again in any run that reads the same of its data."""
    sources, key = sources_of(study, parameters), code.key(study)

    @functools.cache
    def of(names: tuple[str, ...]) -> str:
        return _hashed(key, parameters.device, [sources[name] for name in names])

    return Trials(study.name, lambda inputs: of(tuple(study.experiment(inputs).reads())))


def decides(study: Study, parameters: Parameters, key: str) -> str:
    """Return a hash of everything that determines a run's results besides its inputs; `key` is that of its code."""
    return _hashed(key, parameters.device, list(sources_of(study, parameters).values()))


def _hashed(key: str, device: str, sources: list[str]) -> str:
    facts = [key, records.versions(), sources, devices.model_of(experiments.resolve_device(device))]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _work(study: str, index: int, inputs: Columns, alone: bool, caught: bool) -> tuple[int, Trial | GradleakError]:
    """Run one trial, in this process or in a worker process, and return it with its index.

    A lack of memory is returned as an error. If a worker process raised it, joblib would drop finished trials that were
    not fetched yet. With `caught`, all other errors are returned as well.
    """
    import torch

    accelerated = records.on_gpu(inputs)
    if accelerated and not alone:
        gpus.take()
    loaded_study = studies.load(study)

    def decided() -> str:
        sources = [_source(name) for name in loaded_study.experiment(inputs).reads()]
        return _hashed(code.key(loaded_study), str(inputs.get("device", "cpu")), sources)

    kept = parts.Parts(study, inputs, decided)
    bars = contextlib.nullcontext() if alone else progress.quiet()
    with (
        bars,
        _settled(accelerated),
        # A trial on the CPU must not initialise CUDA, because afterwards its process could no longer choose a GPU.
        torch.random.fork_rng([torch.cuda.current_device()] if accelerated and torch.cuda.device_count() else []),
        _interruptible(),
        parts.of(kept),
    ):
        # Trials use their own generators. Some libraries use the global one, so seed it by the inputs: then the order
        # of the trials does not matter.
        torch.manual_seed(int.from_bytes(hashlib.sha256(known(inputs).encode()).digest()[:4]))
        started = time.perf_counter()
        try:
            rows = loaded_study.run(inputs)
        except torch.OutOfMemoryError:
            return index, GradleakError(
                f"a trial of '{study}' needs more memory than the GPU has free, also in the smallest chunks "
                f"({short(inputs)}): make its batch or network smaller, run fewer trials at once, or take the CPU with "
                "`-p device=cpu`; finished trials are kept"
            )
        except Exception as error:
            error.add_note(f"in a trial of '{study}': {short(inputs)}")
            if caught:
                wrapped = GradleakError(f"{type(error).__name__}: {first_line(error)}")
                return index, error if isinstance(error, GradleakError) else wrapped
            raise
        seconds = time.perf_counter() - started + kept.seconds
    kept.forget()
    # Convert the rows to plain values, so that a fresh trial equals one that was read from the cache.
    rows = plain(rows, f"rows of '{study}'")
    machine = records.this_machine("cuda" if accelerated else "cpu")
    # macOS counts bytes, other systems kibibytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)
    return index, Trial(inputs=inputs, rows=rows, seconds=seconds, date=records.now(), peak=peak, machine=machine)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a trial, even if its attack catches the interrupt and returns its best result so far."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def remember(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _settled(accelerated: bool) -> Iterator[None]:
    """Use one thread, and the same precision and algorithms, wherever a trial runs."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    devices.keep_freed_memory()
    # The number of threads determines the order of summation, so it must not depend on the number of jobs.
    with threadpool_limits(1), devices.ieee(), warnings.catch_warnings():
        # torch warns of each operation without a deterministic CUDA version. Rows then agree up to rounding errors.
        warnings.filterwarnings("ignore", ".*does not have a deterministic implementation", UserWarning)
        warnings.filterwarnings("ignore", "Memory Efficient attention defaults to a non-deterministic", UserWarning)
        # torch says this of the mode by which matching finds out whether its kernels can be a CUDA graph.
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature", UserWarning)
        torch.set_num_threads(1)
        if accelerated:
            torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            if accelerated:
                torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])


def processes(jobs: int | None, trials: int, device: str) -> int:
    """Return the number of trials that run at once.

    Args:
        jobs: The wanted number; by default $GRADLEAK_JOBS, or else one per core or per GPU. If there are more processes
            than GPUs, the processes share the GPUs evenly.
        trials: The number of trials, which is an upper bound.
        device: "cpu" or "cuda".
    """
    requested = os.environ.get("GRADLEAK_JOBS") or None if jobs is None else str(jobs)
    if requested is not None and (not requested.isdigit() or int(requested) < 1):
        raise InputError(f"jobs, or $GRADLEAK_JOBS, must be a positive number; got {requested}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    default = max(1, len(gpus.visible())) if device == "cuda" else cores
    return min(int(requested or default), trials)


@contextlib.contextmanager
def _backend(cluster: str | None, alone: bool) -> Iterator[None]:
    import joblib

    if alone:
        yield
        return
    if cluster is None:
        with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
            yield
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("a cluster needs Dask: install it with `pip install 'gradleak[cluster]'`") from error
    # Dask would log connection errors, which are raised below with a clear message.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        client = Client(cluster)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at '{cluster}': {error}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=WAIT)
        except TimeoutError as error:
            raise InputError(f"no worker has come to the Dask scheduler at '{cluster}' in {WAIT} s") from error
        if (most_threads := max(client.nthreads().values())) > 1:
            # Trials seed torch's global generator, which all threads of a process share.
            raise InputError(f"a worker of '{cluster}' has {most_threads} threads: start it with `--nthreads 1`")
        try:
            with joblib.parallel_config(backend="dask"):
                yield
        except (CancelledError, OSError) as error:
            if client.status == "running":
                raise
            advice = "finished trials are kept, and the same command goes on from there"
            raise GradleakError(f"the Dask scheduler at '{cluster}' went away; {advice}") from error


def profile_of(study: Study, parameters: Parameters) -> Literal["quick", "paper", "custom"]:
    """Return the profile whose parameters these are, but for the device; "custom" if there is none."""
    values = parameters.model_dump()
    profiles: tuple[Literal["quick", "paper"], ...] = ("quick", "paper")
    for profile in profiles:
        if values == studies.parameters(study, profile, {"device": values["device"]}).model_dump():
            return profile
    return "custom"
