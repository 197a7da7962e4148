"""Measure what pages spend their time on, on one thread, each fast path beside the plain one it replaces."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gradleak import augment, data, models, records
from gradleak.labels import find_minima, label_path, nonnegative_intervals
from gradleak.leak import observe, observe_heads

OUT = Path(__file__).parent / "results.json"


def seconds(work: Callable[[], Any], least: float = 0.5) -> float:
    """Return the time of one call: the best of as many as fit into `least` seconds, two at the least."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < least:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Measure, print, and write results.json."""
    torch.set_num_threads(1)
    photos = data.load("photos", "test")
    rows = []
    for name in ("lenet", "resnet18"):
        model = models.build(name)
        inputs = data.normalise(photos.images[:64])
        labels = augment.smooth(photos.labels[:64], photos.classes, 0.2)

        def loop(model: Any = model, inputs: Any = inputs, labels: Any = labels) -> None:
            for n in range(len(inputs)):
                observe(model, inputs[n : n + 1], labels[n : n + 1])

        fast = seconds(lambda m=model, i=inputs, t=labels: observe_heads(m, i, t)) / 64
        plain = seconds(loop) / 64
        rows.append({"what": f"last-layer gradient, {name}", "ms a sample": 1e3 * fast, "plain loop ms": 1e3 * plain})
    for classes in (10, 100, 1000):
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(classes, 64, generator=generator, dtype=torch.float64) / 8
        hidden = torch.rand(16, 64, generator=generator, dtype=torch.float64)
        label = augment.smooth(torch.randint(classes, (16,), generator=generator), classes, 0.3).double()
        error = (hidden @ weight.T).softmax(dim=1) - label
        path = label_path(error.unsqueeze(2) * hidden.unsqueeze(1), weight)
        for what, work in (("all minima", find_minima), ("valid intervals", nonnegative_intervals)):
            fast = seconds(lambda p=path, w=work: w(p)) / 16
            plain = seconds(lambda p=path, w=work: [w(p[n : n + 1]) for n in range(16)]) / 16
            rows.append({"what": f"{what}, C = {classes}", "ms a sample": 1e3 * fast, "plain loop ms": 1e3 * plain})
    table = Table(*("what", "ms a sample", "plain loop ms", "times faster"))
    for row in rows:
        row["times faster"] = row["plain loop ms"] / row["ms a sample"]
        table.add_row(row["what"], *(f"{row[name]:.3g}" for name in ("ms a sample", "plain loop ms", "times faster")))
    Console().print(table)
    OUT.write_text(json.dumps({"threads": 1, "versions": records.versions(), "rows": rows}, indent=1) + "\n")
    print(f"results {OUT.relative_to(Path.cwd()) if OUT.is_relative_to(Path.cwd()) else OUT.name}")


if __name__ == "__main__":
    main()
