"""A cache in which no network is kept yet."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    return tmp_path
