"""Every public attack, every defence, training, the measures and the audit, each as a function of a device.

The tests run them on the pretended GPU, `make gpu-check` on a real one.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import gradleak
from gradleak import augment, data, defenses, images, labels, metrics, models, sequences
from gradleak.images import presets
from gradleak.labels.hard.attacks import WITH_SAMPLES
from gradleak.leak import Leak, observe
from gradleak.models.language import batch_of, build_language_model
from gradleak.models.training import Recipe, train
from gradleak.models.transformer import VisionTransformer

CLASSES = 10


def _photos(count: int, seed: int = 0, size: int = 32) -> tuple[Tensor, Tensor]:
    photos = data.load("photos", "test")
    chosen = torch.randperm(len(photos), generator=torch.Generator().manual_seed(seed))[:count]
    return data.normalise(photos.images[chosen, :, :size, :size]), photos.labels[chosen]


def _leak(device: str, network: str = "lenet", count: int = 1, *, smooth: bool = True, **options: Any) -> Leak:
    """Observe a client's photographs, with smoothed labels or with classes."""
    inputs, classes = _photos(count, size=options.get("image_size", 32))
    model = models.build(network, seed=1, **options).to(device)
    width = options.get("classes", CLASSES)
    targets = augment.smooth(classes, width, 0.2) if smooth else classes
    return observe(model, inputs.to(device), targets.to(device))


def _network(*widths: int, activation: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def _chain(device: str, count: int = 3) -> Leak:
    """Observe a client whose network is a chain of Linear layers."""
    inputs = torch.rand(count, 1, 5, 6, generator=torch.Generator().manual_seed(0))
    model = _network(30, 64, 48, 40).to(device)
    return observe(model, inputs.to(device), torch.arange(count, device=device))


def _vision(device: str) -> Leak:
    """Observe a client whose network is a vision transformer."""
    torch.manual_seed(0)
    inputs, classes = _photos(1, size=16)
    return observe(VisionTransformer(16, 4, 48).double().to(device), inputs.double().to(device), classes.to(device))


def _language(device: str) -> Leak:
    model = build_language_model("lstm", pieces=50, width=24)
    tokens, targets = batch_of([[5, 7, 9], [11, 4]], device=device)
    return observe(model.to(device), tokens, targets)


def _auxiliary(device: str) -> tuple[Tensor, Tensor]:
    inputs, classes = _photos(60, seed=3)
    return inputs.to(device), classes.to(device)


def _soft(device: str, **options: Any) -> Any:
    leak = _leak(device)
    return labels.recover_soft_labels(leak.weight_gradient, leak.weight, **options)


def _counted(method: str) -> Callable[[str], Any]:
    def run(device: str) -> Any:
        # GradInversion's rule assumes that no class repeats; among six photos one does, and rounding picks another.
        count = 1 if method in ("idlg", "gradinversion") else 6
        leak = _leak(device, "lenet5", count, smooth=False, activation="relu", init="torch")
        knowledge = {"auxiliary": _auxiliary(device)} if method in WITH_SAMPLES else {}
        return labels.count_labels(leak, method, **knowledge)

    return run


def _matched(name: str) -> Callable[[str], Any]:
    def run(device: str) -> Any:
        optimizer = images.Adam(steps=3) if "cosine" in name else images.LBFGS(steps=1, inner=3)
        return presets.preset(name).run(_leak(device), optimizer=optimizer).images

    return run


def _head(device: str, count: int = 3, classes: int = 40) -> tuple[Tensor, Tensor]:
    """Return a last layer's weight gradient and weight, of samples of different classes."""
    generator = torch.Generator().manual_seed(0)
    weight, hidden = torch.randn(classes, 64, generator=generator) / 8, torch.rand(count, 64, generator=generator)
    errors = (hidden @ weight.T).softmax(dim=1) - augment.smooth(torch.arange(count), classes, 0.2)
    return (errors.T @ hidden / count).to(device), weight.to(device)


ATTACKS: dict[str, Callable[[str], Any]] = {
    "one soft label": _soft,
    "one soft label, factor unknown": lambda device: _soft(device, scale=None),
    "one soft label, proved": lambda device: _soft(device, certify="proof"),
    "one soft label, any sign": lambda device: _soft(device, nonnegative=False),
    "one soft label, noise": lambda device: _soft(device, noise=None),
    "one soft label, as published": lambda device: _soft(device, solver="lbfgs"),
    "a batch's soft labels": lambda device: labels.recover_batch(*_head(device)),
    "a batch's soft labels, factor unknown": lambda device: labels.recover_batch(*_head(device), scale=None),
    "a batch's soft labels, jointly": lambda device: labels.recover_jointly(*_head(device, 2, 8), batch_size=2),
    "classes revealed": lambda device: sorted(labels.reveal_labels(_head(device)[0])),
    "iDLG": lambda device: labels.idlg(_leak(device).weight_gradient),
    **{f"counted by {method}": _counted(method) for method in labels.METHODS},
    "fully connected": lambda device: images.invert_fully_connected(_chain(device)),
    "fully connected, traced": lambda device: images.trace_fully_connected(_chain(device)),
    "fully connected, by biases": lambda device: images.bias_attack(_chain(device)),
    "fully connected, unit by unit": lambda device: images.invert_units(_chain(device)).inputs,
    "convolutional": lambda device: images.invert_convolutional(_leak(device, image_size=16)),
    "transformer": lambda device: images.invert_transformer(_vision(device)),
    "transformer, by its attention": lambda device: images.trace_transformer(_vision(device), form="attention").inputs,
    "cocktail party": lambda device: images.unmix_features(_head(device)[0], 3),
    **{f"matched as {name}": _matched(name) for name in presets.MATCHING},
    "matched within a budget": lambda device: images.match(_leak(device), budget=3).images,
    "sentences": lambda device: sequences.read_sentences(_language(device)),
    "prefixes": lambda device: sequences.read_prefixes(_language(device)),
    "words": lambda device: sequences.reveal_words(_language(device)),
}


LEVELS = {"none": "none", "sign": "sign", "half": "half", "bfloat16": "bfloat16", "quantize": "quantize/4"}


def defended(kind: str) -> Callable[[str], Any]:
    """Return what a client behind a defence sends."""

    def sent(device: str) -> Any:
        draws = torch.Generator().manual_seed(3)
        defense = defenses.named(LEVELS.get(kind, f"{kind}/0.5"), generator=draws)
        # One of them takes the last layer for a weight and a bias, as the code that it repeats does.
        return list(defense(_leak(device, "lenet5").gradients).values())

    return sent


def measured(measure: Callable[[Tensor, Tensor], Any]) -> Callable[[str], Any]:
    """Return what a measure makes of two images and two others."""

    def run(device: str) -> Any:
        inputs = _photos(4)[0].to(device)
        return measure(inputs[:2].clamp(0, 1), inputs[2:].clamp(0, 1))

    return run


MEASURES = (metrics.psnr, metrics.ssim, metrics.fft2d, metrics.lpips)
RECIPE = Recipe(network="lenet", dataset="digits", epochs=1, labels="mixup", batch_size=256)


def trained(device: str) -> Any:
    """Train a network, with an empty cache, and return its parameters."""
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, {"GRADLEAK_CACHE": cache}):
        return list(train(RECIPE, device=device).model.state_dict().values())


def audited(device: str) -> Any:
    """Audit a small network and return what is found, without the measured values."""
    inputs, classes = _photos(4)
    model = _network(3 * 32 * 32, 32, CLASSES).to(device)
    found = gradleak.audit(model, inputs.to(device), classes.to(device), batch_sizes=(1, 2), steps=2, images=False)
    return [(one.attack, one.certificate, one.batch_size) for one in found.findings]


# What `make gpu-check` tries beside the pages: a group, and in it a function of a device by its name.
TRIES: dict[str, dict[str, Callable[[str], Any]]] = {
    "attacks": ATTACKS,
    "defences": {kind: defended(kind) for kind in defenses.KINDS},
    "measures": {measure.__name__: measured(measure) for measure in MEASURES},
    "training": {"lenet": trained},
    "audit": {"fully connected": audited},
}


def whole(found: Any, tensor: Callable[[Tensor], Any]) -> Any:
    """Return a result as numbers, texts, lists and dictionaries, and what `tensor` makes of its tensors."""
    if isinstance(found, Tensor):
        return tensor(found.detach())
    if isinstance(found, list | tuple):
        return [whole(one, tensor) for one in found]
    if hasattr(found, "__dataclass_fields__"):
        return {name: whole(getattr(found, name), tensor) for name in found.__dataclass_fields__}
    return found


def plain(found: Any) -> Any:
    """Return a result whose tensors are lists of numbers."""
    return whole(found, lambda tensor: tensor.cpu().double().nan_to_num(-1e300).flatten().tolist())
