"""What tests share: a cache of their own."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.checkout"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests' trials and networks out of the user's cache, and let tests share theirs."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("GRADLEAK_CACHE", str(folder))
    for name in ("GRADLEAK_RECORD", "GRADLEAK_PROGRESS", "GRADLEAK_JOBS", "GRADLEAK_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
