"""Measure what pages spend their time on, on one thread, each fast path beside the plain one it replaces.

`python -m benchmarks` measures all; `python -m benchmarks alone together` these parts, the others are kept.
"""

from __future__ import annotations

import datetime
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.growth import growths
from benchmarks.launches import launched
from benchmarks.matching import steps
from benchmarks.scaling import scaled
from gradleak import augment, data, metrics, models
from gradleak.images import Distance, Prior, observe_statistics
from gradleak.images.gradinversion.attack import Target, known_of
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.images.gradinversion.statistics import stacked
from gradleak.images.matching.objective import Objective
from gradleak.labels import (
    find_minima,
    label_path,
    nonnegative_intervals,
    recover_jointly,
    recover_soft_labels,
    reveal_labels,
)
from gradleak.leak import observe, observe_heads
from gradleak.runs import records

OUT = Path(__file__).parent / "results.json"
CLASSES, FEATURES = (10, 100, 1000), 64
# Starts of one batch that are restored together.
SEEDS = 8


def seconds(work: Callable[[], Any], least: float = 0.5) -> float:
    """Return the time of one call: the best of as many as fit into `least` seconds, two at the least."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < least:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def heads() -> list[dict[str, Any]]:
    """Last-layer gradients of many clients: at once, and one by one."""
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
        rows.append(_row(f"last-layer gradient, {name}", fast, seconds(loop) / 64))
    return rows


def landscapes() -> list[dict[str, Any]]:
    """All minima, and the intervals of valid labels: over samples at once, and one by one."""
    rows = []
    for classes in CLASSES:
        gradients, weight = layer(classes, 16)
        path = label_path(gradients, weight)
        for what, work in (("all minima", find_minima), ("valid intervals", nonnegative_intervals)):
            fast = seconds(lambda p=path, w=work: w(p)) / 16
            plain = seconds(lambda p=path, w=work: [w(p[n : n + 1]) for n in range(16)]) / 16
            rows.append(_row(f"{what}, C = {classes}", fast, plain))
    return rows


def matching() -> list[dict[str, Any]]:
    """A step of gradient matching: 64 attacks at once, one by one, and beside a step of ordinary training."""
    photos = data.load("photos", "test")
    model = models.build("lenet")
    inputs = data.normalise(photos.images[:64])
    labels = augment.smooth(photos.labels[:64], photos.classes, 0.2)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(64)]
    start = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))
    parameters = list(model.parameters())

    def loss(own: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return -(label * model(own).log_softmax(dim=1)).sum()

    def loop() -> None:
        for n, leak in enumerate(leaks):
            own = start[n : n + 1].clone().requires_grad_()
            found = torch.autograd.grad(loss(own, labels[n : n + 1]), parameters, create_graph=True)
            pairs = zip(found, leak.gradients.values(), strict=True)
            torch.autograd.grad(torch.stack([(a - b).square().sum() for a, b in pairs]).sum(), [own])

    objective = Objective(leaks, labels.unsqueeze(1), None, Distance(), Prior())
    places, owners = start.flatten(1), torch.arange(64)
    plain = seconds(loop) / 64
    training = seconds(lambda: torch.autograd.grad(loss(inputs, labels), parameters)) / 64
    fast = seconds(lambda: objective.evaluate(places, owners)) / 64
    return [_step("step of gradient matching, LeNet, 64 attacks", fast, plain, training)]


def restoring() -> list[dict[str, Any]]:
    """A step of GradInversion: eight seeds of a batch at once, one by one, and beside a step of ordinary training."""
    photos = data.load("photos", "test")
    settings = SETTINGS["gradinversion+pyramid"]
    rows = []
    for name, size in itertools.product(("lenet", "resnet20"), (1, 8)):
        model = models.build(name).eval()
        inputs, labels = data.normalise(photos.images[:size]), photos.labels[:size]
        leak, parameters = observe(model, inputs, labels), list(model.parameters())
        # LeNet has no batch norm, whose statistics could be a prior.
        sent = None if name == "lenet" else stacked([observe_statistics(model, inputs)])
        target = Target([leak], known_of([leak], labels), settings, sent)
        places = settings.spread * torch.randn(SEEDS, target.size, generator=torch.Generator().manual_seed(0))
        owners = torch.zeros(SEEDS, dtype=torch.long)

        def train(m: Any = model, i: Any = inputs, t: Any = labels, p: Any = parameters) -> None:
            torch.autograd.grad(torch.nn.functional.cross_entropy(m(i), t), p)

        training = seconds(train)
        plain = seconds(lambda t=target, p=places, o=owners: t.evaluate(p[:1], o[:1]))
        fast = seconds(lambda t=target, p=places, o=owners: t.evaluate(p, o)) / SEEDS
        rows.append(_step(f"step of GradInversion, {name}, {SEEDS} seeds of B = {size}", fast, plain, training))
    return rows


def solvers() -> list[dict[str, Any]]:
    """Soft labels by each solver: the published ones go sample by sample, so that a few stand for any number."""
    rows = []
    for classes in CLASSES:
        for batch in (1, 32, 1000):
            gradients, weight = layer(classes, batch)
            once = classes * batch > 100_000
            fast = seconds(lambda g=gradients, w=weight: recover_soft_labels(g, w), 0 if once else 0.5) / batch
            rows.append(_solver("exact", classes, batch, batch, fast))
            print(f"exact, C = {classes}, N = {batch}: {1e3 * fast:.3g} ms a sample", flush=True)
        gradients, weight = layer(classes, 32)
        more: dict[str, dict[str, Any]] = {
            "exact, proved": {"certify": "proof"},
            "exact, factor unknown": {"scale": None},
        }
        for name, options in more.items():
            fast = seconds(lambda g=gradients, w=weight, o=options: recover_soft_labels(g, w, **o)) / 32
            rows.append(_solver(name, classes, 32, 32, fast))
        gradients, weight = layer(classes, 16)
        for solver, count in (("lbfgs", 16), ("pso", 4)):
            started = time.perf_counter()
            recover_soft_labels(gradients[:count], weight, solver=solver)  # type: ignore[arg-type]
            rows.append(_solver(solver, classes, 1, count, (time.perf_counter() - started) / count))
    return rows


class Counted(TorchDispatchMode):
    """Counts the operations on tensors inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def alone() -> dict[str, Any]:
    """One sample alone at ten classes: how many operations it takes, and what they cost on as few numbers."""
    gradients, weight = layer(10, 1)
    with Counted() as counted:
        recover_soft_labels(gradients, weight)
    taken = seconds(lambda: recover_soft_labels(gradients, weight), 2.0)
    few = torch.rand(1, 6, 10, dtype=torch.float64)
    with torch.inference_mode():
        product = seconds(lambda: [few * few for _ in range(1000)]) / 1000
        total = seconds(lambda: [few.sum(dim=2) for _ in range(1000)]) / 1000
    return {"ms": 1e3 * taken, "operations": counted.count, "product us": 1e6 * product, "sum us": 1e6 * total}


def together() -> list[dict[str, Any]]:
    """Batches found all at once, their classes told, as few starts each as are taken: seconds of one core."""
    rows = []
    for classes, size in ((10, 6), (50, 30), (100, 50)):
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(classes, 256, generator=generator, dtype=torch.float64) / 16
        hidden = torch.randn(size, 256, generator=generator, dtype=torch.float64).relu()
        hidden = hidden / (hidden @ weight.T).std()
        told = torch.randperm(classes, generator=generator)[:size]
        label = augment.smooth(told, classes, torch.rand(size, generator=generator, dtype=torch.float64) / 2)
        gradient = ((hidden @ weight.T).softmax(dim=1) - label).T @ hidden / size
        started = time.process_time()
        found = recover_jointly(gradient, weight, classes=told, starts=1)
        taken = time.process_time() - started
        order = metrics.match_batch(found.features, hidden)
        error = float(metrics.label_error(found.labels[order], label).max())
        about = {"classes": classes, "batch": size, "unknowns": size * (size + 1), "seconds": taken}
        rows.append(about | {"status": found.status, "reason": found.reason, "largest label error": error})
        print(rows[-1], flush=True)
    return rows


def revealed() -> list[dict[str, Any]]:
    """The classes that RLG reveals of a batch of 40, in few classes and in many."""
    rows = []
    for classes in (1000, 16_000):
        generator = torch.Generator().manual_seed(0)
        weight, hidden = torch.randn(classes, 256, generator=generator) / 16, torch.randn(40, 256, generator=generator)
        labels = torch.randint(classes, (40,), generator=generator)
        errors = (hidden @ weight.T).softmax(dim=1) - augment.one_hot(labels, classes)
        started = time.perf_counter()
        found = reveal_labels(errors.T @ hidden / 40)
        taken = (time.perf_counter() - started) / 40
        assert found == set(labels.tolist())
        rows.append(_solver("rlg", classes, 40, 40, taken))
    return rows


def starts() -> list[dict[str, Any]]:
    """What a person waits for before anything happens, the best of three, beside what it may take on an idle machine;
    of the import without torch's own."""
    call = "import sys; sys.argv = {}; from gradleak.cli import main; main()"
    package = "import torch, time; t = time.perf_counter(); import gradleak; gradleak.observe; "
    package += "print(time.perf_counter() - t)"
    asked = {
        "gradleak --help": (call.format(["gradleak", "--help"]), 0.5),
        "gradleak list": (call.format(["gradleak", "list"]), 1.0),
        "import gradleak, after torch": (package, 0.3),
    }
    rows = []
    for what, (code, most) in asked.items():
        found = []
        for _ in range(3):
            started = time.perf_counter()
            told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            found.append(float(told) if code is package else time.perf_counter() - started)
        rows.append({"what": what, "seconds": min(found), "may take": most})
    return rows


def layer(classes: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 gradients (N, C, I) of smoothed labels and the weight, logits of a trained network's scale."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(classes, FEATURES, generator=generator)
    hidden = torch.rand(samples, FEATURES, generator=generator)
    hidden = 3 * hidden / (hidden @ weight.T).std(dim=1, keepdim=True)
    epsilon = torch.rand(samples, generator=generator) / 2
    label = augment.smooth(torch.randint(classes, (samples,), generator=generator), classes, epsilon)
    error = (hidden @ weight.T).softmax(dim=1) - label
    return error.unsqueeze(2) * hidden.unsqueeze(1), weight


def _row(what: str, fast: float, plain: float) -> dict[str, Any]:
    return {"what": what, "ms a sample": 1e3 * fast, "plain loop ms": 1e3 * plain, "times faster": plain / fast}


def _step(what: str, fast: float, plain: float, training: float) -> dict[str, Any]:
    beside = {"training step ms": 1e3 * training, "times a training step": fast / training}
    return _row(what, fast, plain) | beside


def _solver(solver: str, classes: int, batch: int, measured: int, taken: float) -> dict[str, Any]:
    about = {"solver": solver, "classes": classes, "batch": batch, "measured on": measured}
    return about | {"ms a sample": 1e3 * taken, "samples a second": 1 / taken}


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "alone": lambda: [alone()],
    "matching": lambda: [*matching(), *restoring()],
    "steps": steps,
    "batching": lambda: [*heads(), *landscapes()],
    "solvers": lambda: [*solvers(), *revealed()],
    "together": together,
    "launches": launched,
    "starts": starts,
    "growth": growths,
    "scaling": scaled,
}


def main(parts: list[str]) -> None:
    """Measure some parts, or all; print them as they come, and write them into results.json."""
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    torch.set_num_threads(1)
    kept = json.loads(OUT.read_text()) if OUT.is_file() else {}
    for name in parts or PARTS:
        started = time.perf_counter()
        rows = PARTS[name]()
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
        Console().print(table)
        print(f"{name} took {time.perf_counter() - started:.0f} s", flush=True)
        kept[name] = rows[0] if name == "alone" else rows
        kept["dates"] = kept.get("dates", {}) | {name: datetime.date.today().isoformat()}
        OUT.write_text(json.dumps(kept | {"threads": 1, "versions": records.versions()}, indent=1) + "\n")
    print(f"results {OUT.relative_to(Path.cwd()) if OUT.is_relative_to(Path.cwd()) else OUT.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
