"""Memory: the most that a process held since a moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradleak.runs import memory

# In a process of its own: another test's larger peak would hide this one where the system cannot reset it.
FREED = """
from gradleak.runs import memory
memory.begin_peak()
before = memory.peak()
block = bytearray(200 * 2**20)
block[:: 2**12] = b"x" * len(block[:: 2**12])
del block
assert memory.peak() >= before + 150 * 2**20
"""


def test_the_peak_remembers_what_was_freed() -> None:
    subprocess.run([sys.executable, "-c", FREED], check=True)


def test_without_proc_it_is_the_most_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    monkeypatch.setattr(memory, "RESET", tmp_path / "no" / "folder")
    memory.begin_peak()
    assert memory.peak() > 2**20
