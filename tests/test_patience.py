"""No verdict of a test depends on how busy the machine is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = [*ROOT.glob("gradleak/**/*.py"), *ROOT.glob("tests/**/*.py")]


def test_every_limit_on_a_wait_is_a_long_one() -> None:
    short = {
        f"{file.relative_to(ROOT)}: {limit}"
        for file in CODE
        for limit in re.findall(r"timeout=\d+|default_timeout\(\d+", file.read_text())
        if not limit.endswith("=0")
    }
    assert short == set()


def test_every_browser_waits_long() -> None:
    begun = [file.name for file in CODE if re.search(r"^\s*from playwright", file.read_text(), re.MULTILINE)]
    assert begun == ["printing.py"]
