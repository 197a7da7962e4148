"""Try everything on a real GPU: `make gpu-check`, or `python -m tests.gpu.check [--device cuda] [name …]`.

The smallest trial of every part of every page, every attack, defence and measure, training and the audit run on the CPU
and on the GPU; the open cells of every page run on a machine that has one. A table says to how many digits results
agree, and how long each took. The exit code is 1 where something fails on the GPU, or differs by more than its kind
allows: texts, statuses and counts must be the same; numbers below 1e-3 in size are errors near the precision and may
differ by a factor of 100; all others, and tensors as a whole, may differ by a fiftieth, since sums are taken in another
order. A name is a page's, or one of attacks, defences, measures, training and audit.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gradleak import devices, studies
from gradleak.runs import comparing, runner
from tests.gpu import cells
from tests.gpu.attacks import TRIES, whole
from tests.gpu.rows import exact, parts, rows_on
from tests.pretended import NAME, pretended_gpu

SMALL, FACTOR, SHARE = 1e-3, 100.0, 0.02


@dataclass(frozen=True)
class Checked:
    """How results agree: to so many `digits` at worst, and the first `trouble`, if any."""

    digits: float
    trouble: str = ""


@dataclass(frozen=True)
class Try:
    """Something to run on both: its page or group, its name there, and a function of the device."""

    name: str
    part: str
    run: Callable[[str], Any]


def tries() -> Iterator[Try]:
    """Give all that is tried, the quick parts first."""
    for group, members in TRIES.items():
        for part, run in members.items():
            yield Try(group, part, partial(_settled, run))
    for name in studies.names():
        yield Try(name, "(open cells)", partial(_opened, name))
    for name, part in parts():
        # Looked up when it runs, so that a test may put another in its place.
        yield Try(name, part, lambda device, name=name, part=part: rows_on(device, name, part))


def _settled(run: Callable[[str], Any], device: str) -> Any:
    with runner._settled(1, accelerated=device == "cuda"):
        return whole(run(device), lambda tensor: tensor)


def _opened(name: str, device: str) -> None:
    """Run a page's open cells, once: they compute on the CPU, and must do so beside a GPU."""
    if device != "cpu":
        with runner._settled(1, accelerated=device == "cuda"):
            cells.run(name, device)


def agreed(found: Any, expected: Any) -> Checked:
    """Return how results on a GPU agree with those on the CPU."""
    digits, troubles = math.inf, []
    for place, own, wanted in comparing.unlike(found, expected, _same):
        alike, fine = _digits(own, wanted)
        digits = min(digits, alike)
        if not fine:
            troubles.append(f"{place}: {_short(own)} where the CPU has {_short(wanted)}")
    return Checked(digits, troubles[0] if troubles else "")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return exact(one, other)


def _short(value: Any) -> str:
    return f"a tensor of norm {value.double().norm():.3g}" if isinstance(value, Tensor) else repr(value)


def _digits(own: Any, wanted: Any) -> tuple[float, bool]:
    """Return to how many digits two values that differ agree, and whether that is enough for their kind."""
    if isinstance(own, Tensor) and isinstance(wanted, Tensor):
        return _digits_of_tensors(own, wanted)
    if not all(isinstance(one, float) and math.isfinite(one) for one in (own, wanted)):
        return 0, False
    least, size = sorted((abs(own), abs(wanted)))
    if size < SMALL:
        return math.inf, size <= FACTOR * max(least, torch.finfo(torch.float64).eps)
    apart = abs(own - wanted) / size
    return -math.log10(apart), apart <= SHARE


def _digits_of_tensors(own: Tensor, wanted: Tensor) -> tuple[float, bool]:
    """Compare two tensors by the norm of their difference; where one is not finite the other must not be either."""
    if own.shape != wanted.shape or own.dtype != wanted.dtype:
        return 0, False
    if not own.is_floating_point():
        return (math.inf, True) if torch.equal(own, wanted) else (0, False)
    there = own.isfinite()
    if not torch.equal(there, wanted.isfinite()):
        return 0, False
    one, other = own[there].double(), wanted[there].double()
    if float(max(one.abs().amax(), other.abs().amax()) if len(one) else 0) < SMALL:
        least, size = sorted((float(one.norm()), float(other.norm())))
        return math.inf, size <= FACTOR * max(least, len(one) * torch.finfo(torch.float64).eps)
    apart = float((one - other).norm() / max(one.norm(), other.norm()))
    return -math.log10(apart) if apart else math.inf, apart <= SHARE


def check(one: Try, device: str) -> tuple[Checked, float, float]:
    """Run something on the CPU and on the GPU; return how they agree, and the seconds that each took."""
    started = time.perf_counter()
    expected = one.run("cpu")
    middle = time.perf_counter()
    try:
        with pretended_gpu() if device == NAME else contextlib.nullcontext():
            found = agreed(one.run(device), expected)
    except Exception as error:  # whatever it does on a GPU, the others are tried
        found = Checked(0, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return found, middle - started, time.perf_counter() - middle


def main(arguments: list[str] | None = None) -> int:
    """Check all, or what is named, and print a table; return the exit code."""
    reader = argparse.ArgumentParser(description="Try every page, attack and defence on a GPU.")
    reader.add_argument("--device", default="cuda", choices=["cuda", NAME], help="the GPU, or the pretended one")
    reader.add_argument("name", nargs="*", help="pages or groups to try; all where none is named")
    asked = reader.parse_args(arguments)
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("no GPU is at hand: torch.cuda.is_available() says so", file=sys.stderr)
        return 2
    chosen = [one for one in tries() if not asked.name or one.name in asked.name]
    if not chosen:
        print(f"no page is called {', '.join(asked.name)}", file=sys.stderr)
        return 2
    about = devices.described("cuda") if asked.device == "cuda" else "a pretended GPU"
    table = Table("page", "part", "digits alike", "CPU s", "GPU s", "trouble", title=f"Everything on {about}")
    wrong, started = 0, time.perf_counter()
    for one in chosen:
        found, here, there = check(one, asked.device)
        digits = "all" if found.digits == math.inf else f"{found.digits:.0f}"
        table.add_row(one.name, one.part, digits, f"{here:.1f}", f"{there:.1f}", found.trouble)
        wrong += bool(found.trouble)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(f"{len(chosen) - wrong} of {len(chosen)} agree, {time.perf_counter() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
