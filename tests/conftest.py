"""What tests share: a cache of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.checkout"]
# Two workers on two cores: more threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache of this run's tests; workers have one together, so that a network is trained once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests' trials and networks out of the user's cache, and let tests share theirs."""
    monkeypatch.setenv("GRADLEAK_CACHE", str(shared_cache(tmp_path_factory)))
    for name in ("GRADLEAK_RECORD", "GRADLEAK_PROGRESS", "GRADLEAK_JOBS", "GRADLEAK_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
