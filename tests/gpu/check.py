"""Try every page on a real GPU: `make gpu-check`, or `python -m tests.gpu.check [--device cuda] [page …]`.

The smallest trial of every part of every page runs on the CPU and on the GPU. A table says to how many digits their
rows agree, and how long each took. The exit code is 1 where a trial fails on the GPU, or a column differs by more than
its kind allows: texts, statuses and counts must be the same; numbers below 1e-3 in size are errors near the precision
and may differ by a factor of 100; all others may differ by a fiftieth, since sums are taken in another order.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gradleak import devices
from gradleak.book import spot
from tests.gpu.rows import exact, parts, rows_on
from tests.pretended import NAME, pretended_gpu

SMALL, FACTOR, SHARE = 1e-3, 100.0, 0.02


@dataclass(frozen=True)
class Checked:
    """How a trial's rows agree: to so many `digits` at worst, and the first `trouble`, if any."""

    digits: float
    trouble: str = ""


def agreed(found: Any, expected: Any) -> Checked:
    """Return how rows on a GPU agree with those on the CPU."""
    digits, troubles = math.inf, []
    for place, own, wanted in spot.unlike(found, expected, exact):
        alike, fine = _digits(own, wanted)
        digits = min(digits, alike)
        if not fine:
            troubles.append(f"{place}: {own!r} where the CPU has {wanted!r}")
    return Checked(digits, troubles[0] if troubles else "")


def _digits(own: Any, wanted: Any) -> tuple[float, bool]:
    """Return to how many digits two values that differ agree, and whether that is enough for their kind."""
    if not all(isinstance(one, float) and math.isfinite(one) for one in (own, wanted)):
        return 0, False
    least, size = sorted((abs(own), abs(wanted)))
    if size < SMALL:
        return math.inf, size <= FACTOR * max(least, torch.finfo(torch.float64).eps)
    apart = abs(own - wanted) / size
    return -math.log10(apart), apart <= SHARE


def check(name: str, part: str, device: str) -> tuple[Checked, float, float]:
    """Run a trial on the CPU and on the GPU; return how they agree, and the seconds that each took."""
    started = time.perf_counter()
    expected = rows_on("cpu", name, part)
    middle = time.perf_counter()
    try:
        with pretended_gpu() if device == NAME else contextlib.nullcontext():
            found = agreed(rows_on(device, name, part), expected)
    except Exception as error:  # whatever a page does on a GPU, the others are tried
        found = Checked(0, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return found, middle - started, time.perf_counter() - middle


def main(arguments: list[str] | None = None) -> int:
    """Check all pages, or those that are named, and print a table; return the exit code."""
    reader = argparse.ArgumentParser(description="Try every page on a GPU.")
    reader.add_argument("--device", default="cuda", choices=["cuda", NAME], help="the GPU, or the pretended one")
    reader.add_argument("page", nargs="*", help="pages to try; all where none is named")
    asked = reader.parse_args(arguments)
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("no GPU is at hand: torch.cuda.is_available() says so", file=sys.stderr)
        return 2
    chosen = [(name, part) for name, part in parts() if not asked.page or name in asked.page]
    if not chosen:
        print(f"no page is called {', '.join(asked.page)}", file=sys.stderr)
        return 2
    about = devices.described("cuda") if asked.device == "cuda" else "a pretended GPU"
    table = Table("page", "part", "digits alike", "CPU s", "GPU s", "trouble", title=f"Every page on {about}")
    wrong = 0
    for name, part in chosen:
        found, here, there = check(name, part, asked.device)
        digits = "all" if found.digits == math.inf else f"{found.digits:.0f}"
        table.add_row(name, part, digits, f"{here:.1f}", f"{there:.1f}", found.trouble)
        wrong += bool(found.trouble)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(f"{len(chosen) - wrong} of {len(chosen)} trials agree")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
