"""Try everything on a real GPU: `make gpu-check`, or `python -m tests.gpu.check [--device cuda] [--jobs 8] [name …]`.

A trial of every part of every page, every attack, defence and measure, training and the audit run on the CPU and on the
GPU; the open cells of every page run on a machine that has one. A table says to how many digits results agree, and how
long each took. The exit code is 1 where something fails on the GPU, or differs by more than its kind allows:

- texts, statuses and counts must be the same;
- rounding errors, by the kind of their column or below 1e-3 in size, may differ by a factor of 100;
- all others, and tensors and pictures as a whole, may differ by a fiftieth, since sums are taken in another order.

What differs more is computed on the CPU once more, by kernels that round otherwise, and may differ as much as the CPU's
two results do. A name is a page's, or one of attacks, defences, measures, training and audit.

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
import multiprocessing
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
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
from tests.gpu.rows import parts, rows_on, same
from tests.studies.golden import is_picture

SMALL, FACTOR, SHARE = 1e-3, 100.0, 0.02
# The most characters of a value that a trouble shows.
LONGEST = 60
COLUMN = re.compile(r"\[\d+\]\.(\w+)")
# The part of a page's cells that run on a machine with a GPU and are not compared with the CPU.
OPEN_CELLS = "(open cells)"
# The pretended GPU's name. Its module is imported only if it is asked for: it registers an accelerator, and then torch
# computes no gradients on a real GPU.
NAME = "pretended"
Try = tuple[str, str]


@dataclass(frozen=True)
class Result:
    """The result of a try, by its page or group and its part there.

    Attributes:
        name: The page or group.
        part: The part.
        digits: To how many digits the results agree at worst; inf if they are the same.
        trouble: The first difference that is too large, or an error; "" if there is none.
        on_cpu: The time on the CPU (s).
        on_gpu: The time on the GPU (s).
    """

    name: str
    part: str
    digits: float
    trouble: str = ""
    on_cpu: float = 0.0
    on_gpu: float = 0.0

    def entry(self) -> dict[str, Any]:
        """Return the entry of the results file."""
        digits = None if self.digits == math.inf else round(self.digits, 2)
        times = {"CPU s": round(self.on_cpu, 3), "GPU s": round(self.on_gpu, 3)}
        return {"name": self.name, "part": self.part, "digits alike": digits} | times | {"trouble": self.trouble}


@functools.cache
def tries() -> dict[Try, Callable[[str], Any]]:
    """Return all that is tried as functions of the device, the quick parts first."""
    found = {(group, part): functools.partial(_settled, run) for group in TRIES for part, run in TRIES[group].items()}
    found |= {(name, OPEN_CELLS): functools.partial(_opened, name) for name in studies.names()}
    return found | {(name, part): functools.partial(_rows, name, part) for name, part in parts()}


def _settled(run: Callable[[str], Any], device: str) -> Any:
    with runner._settled(accelerated=device == "cuda"):
        return whole(run(device), lambda tensor: tensor.cpu())


def _opened(name: str, device: str) -> None:
    """Run a page's open cells, once: they compute on the CPU, and must do so beside a GPU."""
    if device != "cpu":
        with runner._settled(accelerated=device == "cuda"):
            cells.run(name, device)


def _rows(name: str, part: str, device: str) -> Any:
    return rows_on(device, name, part)


def agreed(found: Any, expected: Any, declared: Columns | None = None) -> tuple[float, str]:
    """Return to how many digits results on a GPU agree with the CPU's, and the first difference that is too large.

    A study may have declared the kinds of its columns.
    """
    digits, troubles = math.inf, []
    for place, own, wanted in comparing.pairs(found, expected):
        if torch.equal(own, wanted) if torch.is_tensor(own) and torch.is_tensor(wanted) else same(own, wanted):
            continue
        column = COLUMN.match(place)
        alike, fine = _digits(own, wanted, (declared or Columns()).kind(column[1]) if column else None)
        digits = min(digits, alike)
        if not fine:
            troubles.append(f"{place}: {_short(own)} where the CPU has {_short(wanted)}")
    return digits, troubles[0] if troubles else ""


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of norm {value.double().norm():.3g}"
    text = "(an image)" if is_picture(value) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _digits(own: Any, wanted: Any, kind: Kind | None = None) -> tuple[float, bool]:
    """Return to how many digits two values that differ agree, and whether that is enough for their kind.

    Numbers, pictures and tensors are compared by the norm of their difference.
    """
    if kind is not None and isinstance(own, float) and isinstance(wanted, float) and math.isfinite(own - wanted):
        ratio = kinds.rounding_ratio(kind, wanted, own)
        if own != wanted and ratio is not None:
            return math.inf, ratio <= FACTOR
    one, other = _tensor(own), _tensor(wanted)
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return 0, False
    there = one.isfinite()
    if not one.is_floating_point() or not torch.equal(there, other.isfinite()) or not there.any():
        return 0, False
    one, other = one[there].double(), other[there].double()
    if float(torch.maximum(one.abs(), other.abs()).max()) < SMALL:
        least, size = sorted((float(one.norm()), float(other.norm())))
        return math.inf, size <= FACTOR * max(least, len(one) * torch.finfo(torch.float64).eps)
    apart = float((one - other).norm() / max(one.norm(), other.norm()))
    return -math.log10(apart) if apart else math.inf, apart <= SHARE


def _tensor(value: Any) -> Tensor | None:
    """Return a number, the pixels of a picture or a tensor as a tensor, None for other values."""
    if is_picture(value):
        return torch.from_numpy(np.asarray(Image.open(io.BytesIO(base64.b64decode(value))), dtype=float))
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    return value if isinstance(value, Tensor) else None


def check(one: Try, device: str) -> Result:
    """Run something on the CPU and on the GPU, and compare the results; an error on either side is the trouble."""
    run = tries()[one]
    declared = studies.load(one[0]).columns if one[0] in studies.names() else None
    with _gpu(device):
        pass  # registers the pretended GPU, which must come before the first gradient
    started = time.perf_counter()
    try:
        expected = run("cpu")
    except Exception as error:
        return Result(*one, 0, f"on the CPU: {_line(error)}", time.perf_counter() - started)
    middle = time.perf_counter()
    try:
        with _gpu(device):
            found = run(device)
        ended = time.perf_counter()
        digits, trouble = agreed(found, expected, declared)
        if trouble:
            # A search amplifies rounding errors with every step, so that after some tens of steps no digit may be the
            # same. Then the CPU's results differ as much from each other, if it takes kernels that round otherwise.
            with torch.backends.mkldnn.flags(enabled=False):
                least, apart = agreed(run("cpu"), expected, declared)
            trouble = "" if apart and digits >= least - 1 else trouble
    except Exception as error:  # whatever it does on a GPU, the others are tried
        ended, digits, trouble = time.perf_counter(), 0, _line(error)
    return Result(*one, digits, trouble, middle - started, ended - middle)


def _gpu(device: str) -> contextlib.AbstractContextManager[Any]:
    if device != NAME:
        return contextlib.nullcontext()
    from tests.pretended import pretended_gpu

    return pretended_gpu()


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def results(chosen: Sequence[Try], device: str, jobs: int = 1) -> Iterator[Result]:
    """Check what is chosen, and yield each result when it is there.

    With several jobs each has a process of its own. Where it ends, or where an error of CUDA came up, after which it
    can do nothing more on the GPU, a new one takes its place.
    """
    if jobs == 1:
        yield from (check(one, device) for one in chosen)
        return
    own, spawn = threading.local(), multiprocessing.get_context("spawn")

    def checked(one: Try) -> Result:
        if getattr(own, "process", None) is None:
            own.process = ProcessPoolExecutor(1, spawn, torch.set_num_threads, (1,))
        try:
            result = own.process.submit(check, one, device).result()
            usable = "CUDA error" not in result.trouble
        except BrokenProcessPool:
            result, usable = Result(*one, 0, "the process ended"), False
        if not usable:
            own.process.shutdown()
            own.process = None
        return result

    threads = ThreadPoolExecutor(jobs)
    try:
        yield from (one.result() for one in as_completed([threads.submit(checked, one) for one in chosen]))
    finally:
        threads.shutdown(cancel_futures=True)


def described(device: str) -> dict[str, str]:
    """Describe the GPU, the machine and the versions, as the results file does."""
    return {
        "device": devices.described("cuda") if device == "cuda" else "a pretended GPU",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": devices.processor(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


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
    chosen = [one for one in tries() if not asked.name or one[0] in asked.name]
    if not chosen:
        print(f"no page is called {', '.join(asked.name)}", file=sys.stderr)
        return 2
    if asked.device == "cuda":
        experiments.resolve_device("cuda")  # before CUDA starts, here and in the processes
    about, started = described(asked.device), time.perf_counter()
    found: dict[Try, dict[str, Any]] = {}
    for one in results(chosen, asked.device, asked.jobs):
        found[one.name, one.part] = one.entry()
        print(f"[{len(found)}/{len(chosen)}] {one.entry()}", file=sys.stderr, flush=True)
        if asked.output:
            entries = [found[name] for name in chosen if name in found]
            content = {"about": about, "jobs": asked.jobs, "chosen": len(chosen), "tries": entries}
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            storage.write_whole(asked.output, lambda stream, text=text: stream.write(text.encode()))
    table = Table("page", "part", "digits alike", "CPU s", "GPU s", "trouble", title=f"Everything on {about['device']}")
    for name in chosen:
        table.add_row(*("all" if value is None else str(value) for value in found[name].values()))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    wrong = sum(bool(entry["trouble"]) for entry in found.values())
    print(f"{len(chosen) - wrong} of {len(chosen)} agree, {time.perf_counter() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
