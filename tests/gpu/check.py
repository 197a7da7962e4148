"""Try everything on a real GPU: `make gpu-check`, or `python -m tests.gpu.check [--device cuda] [--jobs 8] [name …]`.

The smallest trial of every part of every page, every attack, defence and measure, training and the audit run on the CPU
and on the GPU; the open cells of every page run on a machine that has one. A table says to how many digits results
agree, and how long each took. The exit code is 1 where something fails on the GPU, or differs by more than its kind
allows: texts, statuses and counts must be the same; rounding errors, by the kind of their column or below 1e-3 in size,
may differ by a factor of 100; all others, and tensors as a whole, may differ by a fiftieth, since sums are taken in
another order. What differs more is computed on the CPU once more, by kernels that round otherwise, and may differ as
much as the CPU's two results do. A name is a page's, or one of attacks, defences, measures, training and audit.

With `--jobs` several processes share the tries and the GPU; a process that crashes costs only its present try. With
`--output` the results are written to a JSON file, anew after each try, so that a run that is stopped leaves what it
has. The book shows the file `benchmarks/gpu-check.json`.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import datetime
import functools
import io
import json
import math
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gradleak import devices, storage, studies
from gradleak.runs import comparing, experiments, kinds, runner
from gradleak.runs.columns import Columns
from gradleak.runs.kinds import Kind
from tests.gpu import cells
from tests.gpu.attacks import TRIES, whole
from tests.gpu.rows import exact, parts, rows_on
from tests.gpu.sharing import shared

SMALL, FACTOR, SHARE = 1e-3, 100.0, 0.02
# The most characters of a value that a trouble shows.
LONGEST = 60
COLUMN = re.compile(r"\[\d+\]\.(\w+)")
# The part of a page's cells that run on a machine with a GPU and are not compared with the CPU.
OPEN_CELLS = "(open cells)"
# What a check on the CPU itself, which tests run, states as its device.
PRETENDED = "a pretended GPU"
# The pretended GPU's name. Its module is imported only if it is asked for: it registers an accelerator, and then torch
# computes no gradients on a real GPU.
NAME = "pretended"


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
    declared: Columns = field(default_factory=Columns)


def tries() -> Iterator[Try]:
    """Give all that is tried, the quick parts first."""
    for group, members in TRIES.items():
        for part, run in members.items():
            yield Try(group, part, partial(_settled, run))
    for name in studies.names():
        yield Try(name, OPEN_CELLS, partial(_opened, name))
    for name, part in parts():
        declared = studies.load(name).columns
        # Looked up when it runs, so that a test may put another in its place.
        yield Try(name, part, lambda device, name=name, part=part: rows_on(device, name, part), declared)


def _settled(run: Callable[[str], Any], device: str) -> Any:
    with runner._settled(1, accelerated=device == "cuda"):
        return whole(run(device), lambda tensor: tensor)


def _opened(name: str, device: str) -> None:
    """Run a page's open cells, once: they compute on the CPU, and must do so beside a GPU."""
    if device != "cpu":
        with runner._settled(1, accelerated=device == "cuda"):
            cells.run(name, device)


def agreed(found: Any, expected: Any, declared: Columns | None = None) -> Checked:
    """Return how results on a GPU agree with those on the CPU; a study may have declared the kinds of its columns."""
    digits, troubles = math.inf, []
    for place, own, wanted in comparing.pairs(found, expected):
        if _same(own, wanted):
            continue
        column = COLUMN.match(place)
        if comparing.is_picture(own) and comparing.is_picture(wanted):
            alike, fine = _digits_of_pictures(own, wanted)
        else:
            alike, fine = _digits(own, wanted, (declared or Columns()).kind(column[1]) if column else None)
        digits = min(digits, alike)
        if not fine:
            troubles.append(f"{place}: {_short(own)} where the CPU has {_short(wanted)}")
    return Checked(digits, troubles[0] if troubles else "")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return exact(one, other)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of norm {value.double().norm():.3g}"
    text = "(an image)" if comparing.is_picture(value) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _digits(own: Any, wanted: Any, kind: Kind | None = None) -> tuple[float, bool]:
    """Return to how many digits two values that differ agree, and whether that is enough for their kind."""
    if isinstance(own, Tensor) and isinstance(wanted, Tensor):
        return _digits_of_tensors(own, wanted)
    if not all(isinstance(one, float) and math.isfinite(one) for one in (own, wanted)):
        return 0, False
    if kind is not None:
        compared = kinds.compared(kind, wanted, own)
        if compared.kind == "rounding" and compared.apart is not None:
            return math.inf, compared.apart <= FACTOR
    least, size = sorted((abs(own), abs(wanted)))
    if size < SMALL:
        return math.inf, size <= FACTOR * max(least, torch.finfo(torch.float64).eps)
    apart = abs(own - wanted) / size
    return -math.log10(apart), apart <= SHARE


def _digits_of_pictures(own: str, wanted: str) -> tuple[float, bool]:
    """Compare two pictures by their pixels: if rounding moves one pixel by a level, most bytes of the file differ."""
    one, other = (np.asarray(Image.open(io.BytesIO(base64.b64decode(text))), dtype=float) for text in (own, wanted))
    if one.shape != other.shape:
        return 0, False
    apart = float(np.abs(one - other).mean()) / 255
    return -math.log10(apart) if apart else math.inf, apart <= SHARE


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


@dataclass(frozen=True)
class Result:
    """The result of one try, with the seconds that it took on the CPU and on the GPU."""

    name: str
    part: str
    checked: Checked
    on_cpu: float = 0.0
    on_gpu: float = 0.0

    @property
    def digits(self) -> float | None:
        """To how many digits the results agree, or None if they are the same."""
        return None if self.checked.digits == math.inf else round(self.checked.digits, 2)

    @property
    def shown(self) -> str:
        """The digits as a text."""
        return "all" if self.digits is None else f"{self.digits:.0f}"

    def entry(self) -> dict[str, Any]:
        """Return the entry of the results file."""
        found = {"name": self.name, "part": self.part, "digits alike": self.digits}
        times = {"CPU s": round(self.on_cpu, 3), "GPU s": round(self.on_gpu, 3)}
        return found | times | {"trouble": self.checked.trouble}


def check(one: Try, device: str) -> Result:
    """Run something on the CPU and on the GPU, and compare the results; an error on either side is the trouble."""
    with _gpu(device):
        pass  # registers the pretended GPU, which must come before the first gradient
    started = time.perf_counter()
    try:
        expected = one.run("cpu")
    except Exception as error:
        return Result(one.name, one.part, Checked(0, f"on the CPU: {_line(error)}"), time.perf_counter() - started)
    middle = time.perf_counter()
    try:
        with _gpu(device):
            results = one.run(device)
        ended = time.perf_counter()
        found = agreed(results, expected, one.declared)
        if found.trouble and as_far_on_the_cpu(one, expected, found):
            found = Checked(found.digits)
    except Exception as error:  # whatever it does on a GPU, the others are tried
        ended, found = time.perf_counter(), Checked(0, _line(error))
    return Result(one.name, one.part, found, middle - started, ended - middle)


def as_far_on_the_cpu(one: Try, expected: Any, found: Checked) -> bool:
    """Whether the CPU's results differ from each other as much, if it takes kernels that round otherwise.

    A search amplifies rounding errors with every step, so that after some tens of steps no digit may be the same.
    """
    with torch.backends.mkldnn.flags(enabled=False):
        again = agreed(one.run("cpu"), expected, one.declared)
    return bool(again.trouble) and found.digits >= again.digits - 1


def _gpu(device: str) -> contextlib.AbstractContextManager[Any]:
    if device != NAME:
        return contextlib.nullcontext()
    from tests.pretended import pretended_gpu

    return pretended_gpu()


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@functools.cache
def _tries() -> dict[tuple[str, str], Try]:
    return {(one.name, one.part): one for one in tries()}


def _tried(asked: tuple[str, str, str]) -> Result:
    """Check what is asked for by its name, part and device."""
    name, part, device = asked
    return check(_tries()[name, part], device)


def _crashed(asked: tuple[str, str, str], end: str) -> Result:
    return Result(*asked[:2], Checked(0, end))


def _spoiled(result: Result) -> bool:
    """Whether an error of CUDA came up, after which a process can do nothing more on the GPU."""
    return "CUDA error" in result.checked.trouble


def results(chosen: Sequence[Try], device: str, jobs: int = 1) -> Iterator[Result]:
    """Check what is chosen, and yield each result when it is there."""
    if jobs == 1:
        yield from (check(one, device) for one in chosen)
    else:
        yield from shared(_tried, [(one.name, one.part, device) for one in chosen], jobs, _crashed, _spoiled)


def described(device: str) -> dict[str, str]:
    """Describe the GPU, the machine and the versions, as the results file does."""
    return {
        "device": devices.described("cuda") if device == "cuda" else PRETENDED,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": devices.processor(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def write(file: Path, about: dict[str, str], jobs: int, chosen: Sequence[Try], found: Sequence[Result]) -> None:
    """Write the results so far, in the order of the tries."""
    entries = [one.entry() for one in _ordered(chosen, found)]
    content = {"about": about, "jobs": jobs, "chosen": len(chosen), "tries": entries}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    storage.write_whole(file, lambda stream: stream.write(text.encode()))


def _ordered(chosen: Sequence[Try], found: Sequence[Result]) -> list[Result]:
    place = {(one.name, one.part): index for index, one in enumerate(chosen)}
    return sorted(found, key=lambda one: place[one.name, one.part])


def main(arguments: list[str] | None = None) -> int:
    """Check all, or what is named, and print a table; return the exit code."""
    reader = argparse.ArgumentParser(description="Try every page, attack and defence on a GPU.")
    reader.add_argument("--device", default="cuda", choices=["cuda", NAME], help="the GPU, or the pretended one")
    reader.add_argument("--jobs", type=int, default=1, help="the number of processes that share the tries and the GPU")
    reader.add_argument("--output", type=Path, help="a JSON file for the results, written anew after each try")
    reader.add_argument("name", nargs="*", help="pages or groups to try; all where none is named")
    asked = reader.parse_args(arguments)
    if asked.jobs < 1:
        reader.error(f"--jobs must be a positive number; got {asked.jobs}")
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("no GPU is at hand: torch.cuda.is_available() says so", file=sys.stderr)
        return 2
    chosen = [one for one in tries() if not asked.name or one.name in asked.name]
    if not chosen:
        print(f"no page is called {', '.join(asked.name)}", file=sys.stderr)
        return 2
    if asked.device == "cuda":
        experiments.resolve_device("cuda")  # before CUDA starts, here and in the processes
    about, started = described(asked.device), time.perf_counter()
    found: list[Result] = []
    for one in results(chosen, asked.device, asked.jobs):
        found.append(one)
        _report(one, f"{len(found)}/{len(chosen)}")
        if asked.output:
            write(asked.output, about, asked.jobs, chosen, found)
    table = Table("page", "part", "digits alike", "CPU s", "GPU s", "trouble", title=f"Everything on {about['device']}")
    for one in _ordered(chosen, found):
        times = f"{one.on_cpu:.1f}", f"{one.on_gpu:.1f}"
        table.add_row(one.name, one.part, one.shown, *times, one.checked.trouble)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    wrong = sum(bool(one.checked.trouble) for one in found)
    print(f"{len(chosen) - wrong} of {len(chosen)} agree, {time.perf_counter() - started:.0f} s")
    return int(wrong > 0)


def _report(one: Result, count: str) -> None:
    """Print a line on a finished try to the error stream."""
    times = f"CPU {one.on_cpu:.1f} s, GPU {one.on_gpu:.1f} s"
    trouble = f", trouble: {one.checked.trouble}" if one.checked.trouble else ""
    print(f"[{count}] {one.name} {one.part}: {one.shown} digits, {times}{trouble}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
