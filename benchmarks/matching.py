"""A step of gradient matching, one attack alone and many together, each beside a plain loop in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, data, models
from gradleak.devices import differentiable, keep_freed_memory
from gradleak.images import Adam, Distance, Prior
from gradleak.images.matching import engine
from gradleak.images.matching.objective import Objective
from gradleak.images.matching.optimizers import Track, adam
from gradleak.leak import Leak, observe
from gradleak.models.transformer import VisionTransformer
from gradleak.tracing import traced

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "LeNet": lambda: models.build("lenet"),
    "ResNet20": lambda: models.build("resnet20"),
    "a small vision transformer": VisionTransformer,
}
# Attacks that are run together. The smallest network's attacks still gain beyond 16.
TOGETHER = {"LeNet": (1, 4, 16, 64), "ResNet20": (1, 4, 16), "a small vision transformer": (1, 4, 16)}
# Steps in one measurement, and measurements of each kind, taken in turn. The first step also checks the network.
STEPS, ROUNDS = 30, 5
# The weight of the total variation, and the rate of Adam.
VARIATION, RATE = 1e-4, 0.1


def plain(leak: Leak, label: Tensor, start: Tensor, box: tuple[Tensor, Tensor], steps: int) -> Tensor:
    """Match one leak by two calls of autograd a step and Adam written by hand; return the last image."""
    model, parameters = leak.model, list(leak.model.parameters())
    observed = [leak.gradients[name] for name, _ in model.named_parameters()]
    image, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step in range(1, steps + 1):
        image.requires_grad_()
        entropy = -(label * F.log_softmax(model(image), dim=1)).sum(dim=1).mean()
        own = torch.autograd.grad(entropy, parameters, create_graph=True)
        product = sum((a * b).sum() for a, b in zip(own, observed, strict=True))
        sizes = [sum(a.square().sum() for a in side) for side in (own, observed)]
        total = image.diff(dim=-1).abs().mean() + image.diff(dim=-2).abs().mean()
        loss = 1 - product / (sizes[0] * sizes[1]).sqrt() + VARIATION * total
        (slope,) = torch.autograd.grad(loss, [image])
        with torch.no_grad():
            slope = slope.sign()
            mean = 0.9 * mean + 0.1 * slope
            square = 0.999 * square + 0.001 * slope.square()
            move = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
            image = torch.minimum(torch.maximum(image - RATE * move, box[0]), box[1])
    return image


def steps() -> list[dict[str, Any]]:
    """Return rows with the CPU time of a step for each network and each number of attacks."""
    # Recordings run like this.
    keep_freed_memory()
    return [row for name in NETWORKS for row in measured(name)]


def measured(name: str) -> list[dict[str, Any]]:
    """Return the CPU time of a step of one attack, for each number of attacks together, beside the plain loop's.

    The first steps of a search run the network's code; in a long search the step is recorded and replayed.
    """
    model, photos, counts = NETWORKS[name]().eval(), data.load("photos", "test"), TOGETHER[name]
    most = max(counts)
    inputs, labels = data.normalise(photos.images[:most]), photos.labels[:most]
    low, high = (data.normalise(torch.full((1, 3, 1, 1), edge))[0] for edge in (0.0, 1.0))
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(most)]
    targets = augment.one_hot(labels, photos.classes).float()
    starts = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))
    prior, settings = Prior(VARIATION, (low, high)), Adam(steps=STEPS, rate=RATE, signed=True, decay=())

    def together(count: int, recorded: bool) -> Callable[[], Any]:
        objective = Objective(leaks[:count], targets[:count, None], None, Distance("cosine"), prior, attacks=count)
        places, owners = starts[:count].flatten(1), torch.arange(count)
        if not recorded:
            return lambda: engine.search(settings, objective, None, places, owners, Track.start(places, STEPS))
        # The first evaluation checks the network and the owners, which cannot be recorded.
        objective.evaluate(places, owners)
        replay: Any = traced(lambda at: objective.evaluate(at, owners), [places])
        begin = objective.boxed(places)
        return lambda: adam(
            settings, lambda at, _: replay(at), begin, Track.start(places, STEPS), objective.boxed, enough=0.0
        )

    times: list[list[float]] = [[] for _ in range(1 + 2 * len(counts))]
    with differentiable(model, twice=True):
        works = [
            # The engine evaluates the last images as well, so the plain loop takes one step more.
            lambda: plain(leaks[0], targets[:1], starts[:1], (low, high), STEPS + 1),
            *(together(count, recorded) for recorded in (False, True) for count in counts),
        ]
        for _ in range(ROUNDS):
            for work, own, count in zip(works, times, (1, *counts, *counts), strict=True):
                started = time.process_time()
                work()
                own.append(1e3 * (time.process_time() - started) / (STEPS + 1) / count)

    def share(own: list[float]) -> float:
        # A search and the plain loop are measured one after the other, so other work on the machine slows both.
        return statistics.median(a / b for a, b in zip(own, times[0], strict=True))

    return [
        {
            "network": name,
            "attacks": count,
            "ms a step": min(own),
            "recorded ms": min(recorded),
            "plain loop ms": min(times[0]),
            "of the plain loop": share(own),
            "recorded, of the plain loop": share(recorded),
        }
        for count, own, recorded in zip(counts, times[1:], times[1 + len(counts) :], strict=False)
    ]
