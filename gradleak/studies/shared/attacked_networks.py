"""The networks that label studies attack, named "dataset/network/stage", and how the trained ones came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gradleak import models
from gradleak.data.base import Dataset
from gradleak.errors import InputError
from gradleak.models import training

STAGES = ("untrained", "trained")
# What a trained network of this name on these private images was trained on, and how. The papers' recipes are
# unpublished.
RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("photos", "lenet"): {"epochs": 12, "learning_rate": 3e-3, "batch_size": 64, "init": "torch"},
    ("photos", "small-cnn"): {"epochs": 12, "learning_rate": 5e-3, "batch_size": 64},
    ("cifar10", "lenet"): {"dataset": "cifar10-jpeg", "epochs": 20, "learning_rate": 3e-3, "init": "torch"},
    ("cifar10", "resnet18"): {"dataset": "cifar10-jpeg", "epochs": 12, "learning_rate": 2e-3},
    ("cifar10", "resnet20"): {"epochs": 6, "learning_rate": 1e-3, "pretrained": "cifar10_resnet20.pt"},
    ("flowers17", "alexnet"): {"epochs": 15, "learning_rate": 3e-4, "batch_size": 32, "init": "torch"},
    ("flowers17", "resnet18"): {"epochs": 4, "learning_rate": 1e-3, "batch_size": 32},
}


@dataclass(frozen=True)
class Row:
    """One line of a table: which network, in which state, on which private images."""

    dataset: str
    network: str
    stage: str

    @property
    def training(self) -> str:
        """The dataset that the network is trained on."""
        return str(RECIPES.get((self.dataset, self.network), {}).get("dataset", self.dataset))


def check_stages(stages: Sequence[str]) -> None:
    """Say which of a study's stages there is none of."""
    for stage in stages:
        if stage not in STAGES:
            raise InputError(f"stages are {' and '.join(STAGES)}; got '{stage}'")


def parse(text: str) -> Row:
    """Return the row that "dataset/network/stage" names, or say what is wrong with it."""
    parts = text.split("/")
    if len(parts) != 3 or parts[2] not in STAGES:
        raise InputError(f"a row is dataset/network/stage with a stage of {' or '.join(STAGES)}; got '{text}'")
    row = Row(*parts)
    if row.stage == "trained" and (row.dataset, row.network) not in RECIPES:
        known = ", ".join("/".join(key) for key in RECIPES)
        raise InputError(f"there is no training recipe for '{row.dataset}/{row.network}'; there is one for {known}")
    return row


def network(row: Row, labels: str, private: Dataset, seed: int, device: str) -> tuple[nn.Module, float | None]:
    """Return a row's network, without a bias in its last layer, and, where it is trained, its test accuracy.

    It is trained with the kind of label that is attacked, and with smoothing where that is one-hot.
    """
    if row.stage == "untrained":
        size = private.images.shape[-1]
        return models.build(row.network, classes=private.classes, bias=False, image_size=size, seed=seed), None
    kind = "mixup" if labels == "mixup" else "smoothing"
    own = {"dataset": row.dataset} | RECIPES[row.dataset, row.network]
    trained = training.train(
        training.Recipe(network=row.network, labels=kind, bias=False, seed=seed, **own),
        device=device,
    )
    return trained.model, trained.accuracy
