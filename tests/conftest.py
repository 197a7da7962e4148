"""What tests share: a cache of their own, and Ctrl-C as in the foreground."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest_plugins = ["tests.checkout"]
# Kernels must not depend on the processor: the rows of pages are compared with those of other machines. torch and its
# libraries read these variables when they are loaded. torch's own kernels for AVX2 are the same on every processor that
# has it, and take a fifth less time than the plainest; those of the other two libraries differ.
KERNELS = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
for variable, value in KERNELS.items():
    os.environ.setdefault(variable, value)
# Two workers on two cores: more threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Workers keep a GiB that they have freed: half the time of a large network's gradients is asking for memory anew.
os.environ.setdefault("MALLOC_MMAP_MAX_", "0")
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**30))
# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("gradleak", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("gradleak")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the tests on the pretended GPU to a run of their own, `pytest tests/gpu`.

    With a second device autograd keeps threads, and a process that was forked could not take a gradient any more.
    """
    folder, here = Path(__file__).parent / "gpu", config.invocation_params.dir
    alone = any((here / argument.partition("::")[0]).resolve().is_relative_to(folder) for argument in config.args)
    return True if collection_path == folder and not alone else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that run or open pages: at the end a worker would wait for them."""
    long = {item.path for item in items if {"record", "visits"} & set(getattr(item, "fixturenames", ()))}
    long |= {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture
def listening() -> Iterator[None]:
    """Listen to Ctrl-C, as a process does that a person started; workers of the tests and background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start Chromium; without it the tests are skipped, but not where it is required."""
    from gradleak.book.printing import chromium, executable

    if executable() is None and os.environ.get("GRADLEAK_REQUIRE_BROWSER") != "1":
        pytest.skip("no Chromium on this machine")
    with chromium() as started:
        yield started


def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache of this run's tests; workers have one together, so that a network is trained once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests' trials and networks out of the user's cache, and let tests share theirs."""
    monkeypatch.setenv("GRADLEAK_CACHE", str(shared_cache(tmp_path_factory)))
    monkeypatch.delenv("GRADLEAK_JOBS", raising=False)
