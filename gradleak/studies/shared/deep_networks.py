"""Networks with batch norm whose batches are restored, by name, and their features, which identify images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradleak import augment, data, models
from gradleak.leak import head_inputs
from gradleak.models import training
from gradleak.models.ready import IMAGENET, READY

# The small network that is trained here.
SMALL = "small-cnn"
TRAINING: dict[str, Any] = {"epochs": 2, "batch_size": 64, "learning_rate": 5e-3}
# Fine-tuning of the last layer: number of training images, label smoothing ε, and iterations of L-BFGS.
TUNED, SMOOTHING, ITERATIONS = 2000, 0.1, 200
# The images on which each network is trained that comes with its weights.
TRAINED_ON = {name: "cifar10" for network in READY for name in (network, f"{network}+head")}
TRAINED_ON |= dict.fromkeys(IMAGENET, "imagenet")
NAMES = (SMALL, *TRAINED_ON)
# The number of images that are converted together.
TOGETHER = 250


def made(name: str, dataset: str, seed: int) -> nn.Module:
    """Return a trained network in eval mode.

    A name that ends with "+head" is a pretrained network whose last layer is fine-tuned on smoothed labels.
    """
    if name == SMALL:
        return training.train(training.Recipe(network=name, dataset=dataset, seed=seed, **TRAINING)).model
    model = models.pretrained(name.removesuffix("+head"))
    return with_new_head(model, data.load(dataset, "train")) if name.endswith("+head") else model


def with_new_head(model: nn.Module, learning: data.Dataset) -> nn.Module:
    """Fine-tune a network's last layer on smoothed labels of some training images; the other layers stay the same."""
    features, _ = head_inputs(model, data.normalise(learning.images[:TUNED]))
    labels = augment.smooth(learning.labels[:TUNED], learning.classes, SMOOTHING)
    head = next(layer for layer in reversed([*model.modules()]) if isinstance(layer, nn.Linear))
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = -(labels * head(features).log_softmax(dim=1)).sum(dim=1).mean()
        loss.backward()
        return loss

    optimizer.step(evaluate)
    model.zero_grad(set_to_none=True)
    return model


def pooled(model: nn.Module, images: Tensor) -> Tensor:
    """Return a network's last-layer inputs (N, I) for images in [0, 1]."""
    return torch.cat([head_inputs(model, data.normalise(part))[0] for part in images.split(TOGETHER)])
