"""Operations that attacks launch on a GPU, and reads for which its host waits, counted on the pretended GPU.

The pretended GPU is part of the tests (`tests.pretended`), and a process that has it computes gradients in threads of
their own. So it counts in a process of its own, `python -m benchmarks.launches`, and times are measured without it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from benchmarks.growth import heads
from gradleak import augment, data, models
from gradleak.images import LBFGS, Adam, match, peel
from gradleak.labels import recover_batch, recover_soft_labels
from gradleak.labels.priors import resolve
from gradleak.labels.soft.equations import Fit
from gradleak.labels.soft.problem import reduce_gradients
from gradleak.labels.soft.single import Clients
from gradleak.leak import Leak, observe

# Steps of a search whose launches are counted, and how many more tell what each step adds.
STEPS = 20
# Pairs in the history of L-BFGS, which is full before the steps that are counted.
HISTORY = 10
# Leaks that are matched together, and starts of each.
LEAKS, RESTARTS = 4, 2


@dataclass(frozen=True)
class Work:
    """An attack whose launches are counted: `run` takes a device and, of a search, how many steps to take."""

    what: str
    run: Callable[[str, int], Any]
    searches: bool = False


def launched() -> list[dict[str, Any]]:
    """Return a row for each attack: operations and reads of one call, or of one step of a search, and CPU time."""
    command = [sys.executable, "-m", "benchmarks.launches"]
    counts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return [row | {"CPU ms": 1e3 * _seconds(work)} for work, row in zip(ALL, counts, strict=True)]


def counted(work: Work) -> dict[str, Any]:
    """Return how many operations and reads one call takes on the pretended GPU, or one step more of a search."""
    fewer, more = _counts(work, STEPS), (0, 0)
    if work.searches:
        fewer, more = _counts(work, 2 * STEPS), fewer
    share = STEPS if work.searches else 1
    operations, reads = ((one - other) / share for one, other in zip(fewer, more, strict=True))
    about = {"attack": work.what, "for": "step" if work.searches else "call"}
    return about | {"operations": operations, "reads": reads}


def _counts(work: Work, steps: int) -> tuple[int, int]:
    from tests.pretended import LARGE, pretended_gpu

    with pretended_gpu(memory=LARGE) as gpu:
        work.run(gpu.device, steps)
    return gpu.operations, gpu.reads


def _seconds(work: Work) -> float:
    """Return the CPU's time of a call or of a step, the least of three."""

    def taken(steps: int) -> float:
        started = time.process_time()
        work.run("cpu", steps)
        return time.process_time() - started

    if not work.searches:
        return min(taken(STEPS) for _ in range(3))
    return (min(taken(2 * STEPS) for _ in range(3)) - min(taken(STEPS) for _ in range(3))) / STEPS


def _exact(classes: int, samples: int) -> Work:
    gradients, weight = (one.float() for one in heads(classes, samples))
    what = f"soft labels, exact, C = {classes}, N = {samples}"
    return Work(what, lambda device, _: recover_soft_labels(gradients.to(device), weight.to(device)))


def _newton(classes: int, samples: int) -> Work:
    """Return the steps alone that refine the scalars of samples in the exact solver."""
    gradients, weight = (one.float() for one in heads(classes, samples))
    prior = resolve("smoothing", classes)

    def run(device: str, steps: int) -> Any:
        reduced = reduce_gradients(gradients.to(device), weight.to(device))
        clients = Clients(gradients.to(device), weight.to(device), None, prior)
        problem = clients.problem(reduced, torch.zeros_like(reduced.size))
        ends = (problem.least[:, None], 2 * problem.least[:, None])
        fit = Fit.at(problem, prior, 1.1 * ends[0])
        for _ in range(steps):
            fit = fit.at_scalars(fit.moved(ends))
        return fit.scalars

    return Work(f"one step of its iteration, C = {classes}, N = {samples}", run, searches=True)


def _batch(classes: int, samples: int) -> Work:
    gradients, weight = heads(classes, samples)
    whole = gradients.mean(dim=0)
    what = f"a batch, C = {classes}, B = {samples}"
    return Work(what, lambda device, _: recover_batch(whole.to(device), weight.to(device), batch_size=samples))


def _peeled() -> Work:
    def run(device: str, _: int) -> Any:
        model = models.build("resnet18-cifar", classes=100, in_channels=3, image_size=16).to(device)
        photo = nn.functional.adaptive_avg_pool2d(data.load("photos", "test").images[:1].double(), 16)
        leak = observe(model, data.normalise(photo).float().to(device), torch.zeros(1, dtype=torch.long, device=device))
        return peel(leak, steps=1)

    return Work("peeling, ResNet18, 16 × 16, B = 1", run)


def _leaks(device: str) -> tuple[list[Leak], torch.Tensor]:
    photos = data.load("photos", "test")
    model = models.build("lenet", seed=1).to(device)
    inputs, labels = data.normalise(photos.images[:LEAKS]).to(device), augment.smooth(photos.labels[:LEAKS], 10, 0.2)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1].to(device)) for n in range(LEAKS)]
    return leaks, labels.to(device)


def _matched(what: str, settings: Adam | LBFGS) -> Work:
    def run(device: str, steps: int) -> Any:
        leaks, labels = _leaks(device)
        iterations = settings.inner if isinstance(settings, LBFGS) else 1
        return match(leaks, labels, optimizer=replace(settings, steps=steps // iterations), restarts=RESTARTS)

    return Work(f"matching, LeNet, {LEAKS * RESTARTS} attacks, {what}", run, searches=True)


# Of L-BFGS, one iteration a step. In a line search attacks wait for each other only after all iterations of a step.
ALL = (
    _exact(10, 1),
    _exact(10, 1000),
    _exact(10, 4000),
    _exact(100, 1000),
    _exact(1000, 100),
    _newton(10, 1000),
    _batch(20, 4),
    _batch(100, 8),
    _peeled(),
    _matched("Adam", Adam()),
    _matched("L-BFGS, full steps", LBFGS(inner=1, history=HISTORY, search=False)),
    _matched("L-BFGS, line search", LBFGS(inner=STEPS, history=HISTORY)),
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([counted(work) for work in ALL]))
