"""What tests of the audit share: an empty working directory, a module `brought` to audit, and short searches."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

import gradleak
from tests.auditing.made_up import brought


@pytest.fixture(autouse=True)
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "brought", brought)  # type: ignore[arg-type]
    monkeypatch.setitem(inspect.unwrap(gradleak.audit).__kwdefaults__, "steps", 3)
