"""How time and memory grow with what an attack is given, on one thread: a series an attack and a quantity."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradleak import augment, data, models
from gradleak.images import Distance, Prior, peel
from gradleak.images.matching.objective import Objective
from gradleak.labels import count_labels, recover_batch, recover_soft_labels, reveal_labels
from gradleak.leak import observe
from gradleak.models.language import batch_of, build_language_model
from gradleak.sequences import read_sentences

Work = Callable[[], Any]
# A series ends with the first size that takes so many seconds of the processor.
LONGEST = 30.0


@dataclass(frozen=True)
class Series:
    """An attack that is given more and more of something: `prepare` makes what is measured, size by size."""

    attack: str
    grows: str
    sizes: tuple[int, ...]
    prepare: Callable[[int], Work]


def growths() -> list[dict[str, Any]]:
    """Return a row a series and size: CPU seconds of one call, the least of two at least, and its peak of memory."""
    rows = []
    for series in ALL:
        for size in series.sizes:
            work = series.prepare(size)
            grown, first = peak(work)
            taken = [first]
            while len(taken) < 2 or (sum(taken) < 0.3 and len(taken) < 50):
                if first > 1:
                    break
                taken.append(cpu_seconds(work))
            rows.append({"attack": series.attack, "grows": series.grows, "size": size, "cpu seconds": min(taken)})
            rows[-1]["MiB"] = grown
            print(f"{series.attack}, {series.grows} = {size}: {min(taken):.3g} CPU-s, {grown} MiB", flush=True)
            if first > LONGEST:
                break
    return rows


def cpu_seconds(work: Work) -> float:
    """Return the processor's time of one call: it does not depend on who else is at work."""
    started = time.process_time()
    work()
    return time.process_time() - started


def peak(work: Work) -> tuple[float | None, float]:
    """Return by how many MiB a call raises this process's memory at most, where the system says so, and its time."""
    reset = Path("/proc/self/clear_refs")
    if not os.access(reset, os.W_OK):
        return None, cpu_seconds(work)
    reset.write_text("5")
    before = _status("VmRSS")
    taken = cpu_seconds(work)
    return round((_status("VmHWM") - before) / 1024, 1), taken


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def heads(classes: int, samples: int, features: int = 64) -> tuple[Tensor, Tensor]:
    """Return gradients (N, C, I) of smoothed labels and the weight, logits of a trained network's scale, in float64."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(classes, features, generator=generator, dtype=torch.float64)
    hidden = torch.rand(samples, features, generator=generator, dtype=torch.float64)
    hidden = 3 * hidden / (hidden @ weight.T).std(dim=1, keepdim=True)
    epsilon = torch.rand(samples, generator=generator, dtype=torch.float64) / 2
    label = augment.smooth(torch.randint(classes, (samples,), generator=generator), classes, epsilon)
    error = (hidden @ weight.T).softmax(dim=1) - label
    return error.unsqueeze(2) * hidden.unsqueeze(1), weight


def _exact(classes: int, samples: int) -> Work:
    gradients, weight = heads(classes, samples)
    return lambda: recover_soft_labels(gradients.float(), weight.float())


def _batch(classes: int, samples: int) -> Work:
    gradients, weight = heads(classes, samples)
    return lambda: _whole(recover_batch(gradients.mean(dim=0), weight, batch_size=samples))


def _whole(found: Any) -> None:
    assert found.status != "failed", found.reason


def _rlg(classes: int) -> Work:
    generator = torch.Generator().manual_seed(0)
    weight, hidden = torch.randn(classes, 256, generator=generator) / 16, torch.randn(40, 256, generator=generator)
    labels = torch.randint(classes, (40,), generator=generator)
    errors = (hidden @ weight.T).softmax(dim=1) - augment.one_hot(labels, classes)
    return lambda: reveal_labels(errors.T @ hidden / 40)


def _matching(attacks: int, width: int) -> Work:
    """Return one step of so many attacks on a network of one hidden layer."""
    photos = data.load("photos", "test")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3072, width), nn.Sigmoid(), nn.Linear(width, 10)).eval()
    inputs = data.normalise(photos.images[:attacks])
    labels = augment.smooth(photos.labels[:attacks], 10, 0.2)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(attacks)]
    objective = Objective(leaks, labels.unsqueeze(1), None, Distance(), Prior())
    places = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0)).flatten(1)
    return lambda: objective.evaluate(places, torch.arange(attacks))


def _sentences(words: int) -> Work:
    """Return the reading of so many words: sentences of eight, drawn from a vocabulary of 500."""
    model = build_language_model("lstm", pieces=500, width=256)
    generator = torch.Generator().manual_seed(0)
    private = [torch.randint(3, 500, (8,), generator=generator).tolist() for _ in range(words // 8)]
    leak = observe(model, *batch_of(private))
    return lambda: _whole(read_sentences(leak))


def _peeled(samples: int) -> Work:
    photos = data.load("photos", "test")
    model = models.build("resnet18-cifar", classes=100, in_channels=3, image_size=16)
    images = nn.functional.adaptive_avg_pool2d(photos.images[: 10 * samples : 10].double(), 16)
    leak = observe(model, data.normalise(images).float(), 7 * torch.arange(samples))
    return lambda: _whole(peel(leak, steps=1))


def _llg(samples: int) -> Work:
    """Return what the paper's experiment does with one batch: take the gradient, and count its labels."""
    photos = data.load("photos", "test")
    model = models.build("lenet")
    picked = torch.arange(samples) % len(photos)
    inputs, labels = data.normalise(photos.images[picked]), photos.labels[picked]
    return lambda: count_labels(observe(model, inputs, labels), "llg")


ALL = (
    Series("soft labels, exact, N = 32", "C", (10, 32, 100, 320, 1000), lambda c: _exact(c, 32)),
    Series("soft labels, exact, C = 10", "N", (16, 64, 256, 1024, 4096), lambda n: _exact(10, n)),
    Series("a batch, C = 100", "B", (2, 4, 8, 16, 32), lambda b: _batch(100, b)),
    Series("a batch, B = 4", "C", (20, 50, 100, 200), lambda c: _batch(c, 4)),
    Series("classes by RLG, B = 40", "C", (1000, 2000, 4000, 8000, 16_328), _rlg),
    Series("a step of matching, 25,000 parameters", "attacks", (4, 16, 64, 256), lambda n: _matching(n, 8)),
    Series("a step of matching, 4 attacks", "hidden units", (8, 32, 128, 512), lambda w: _matching(4, w)),
    Series("sentences, LSTM of 256", "words", (16, 32, 64, 128, 256), _sentences),
    Series("peeling, ResNet18, 16 × 16", "B", (1, 2), _peeled),
    Series("gradient and LLG, LeNet", "B", (1, 2, 4, 8, 16, 32, 64, 128), _llg),
)
