"""The networks that label studies attack, named "dataset/network/stage", and how the trained ones came about."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor, nn

from gradleak import data, models
from gradleak.data.base import Dataset
from gradleak.errors import InputError
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form

Stage = Literal["untrained", "trained"]
STAGES: tuple[Stage, ...] = get_args(Stage)
# What a trained network of this name on these private images was trained on, and how. The papers' recipes are
# unpublished.
RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("photos", "lenet"): {"epochs": 12, "learning_rate": 3e-3, "batch_size": 64, "init": "torch"},
    ("photos", "small-cnn"): {"epochs": 12, "learning_rate": 5e-3, "batch_size": 64},
    ("digits", "lenet"): {"epochs": 12, "learning_rate": 3e-3, "batch_size": 64, "init": "torch"},
    ("digits", "small-cnn"): {"epochs": 12, "learning_rate": 5e-3, "batch_size": 64},
    ("cifar10", "lenet"): {"dataset": "cifar10-jpeg", "epochs": 20, "learning_rate": 3e-3, "init": "torch"},
    ("cifar10", "resnet18"): {"dataset": "cifar10-jpeg", "epochs": 12, "learning_rate": 2e-3},
    ("cifar10", "resnet20"): {"epochs": 6, "learning_rate": 1e-3, "pretrained": "cifar10_resnet20.pt"},
    ("flowers17", "alexnet"): {"epochs": 15, "learning_rate": 3e-4, "batch_size": 32, "init": "torch"},
    ("flowers17", "resnet18"): {"epochs": 4, "learning_rate": 1e-3, "batch_size": 32},
}


class Row(Form):
    """One line of a table: on which private images, which network, in which state."""

    dataset: str
    network: str
    stage: Stage

    def check(self) -> None:
        """Say so where there is no recipe for a trained network."""
        if self.stage == "trained" and (self.dataset, self.network) not in RECIPES:
            known = ", ".join("/".join(key) for key in RECIPES)
            raise InputError(
                f"there is no training recipe for '{self.dataset}/{self.network}'; there is one for {known}"
            )

    @property
    def sees(self) -> Sees:
        """The network, what it is shown, and what it was trained on."""
        return Sees(self.network, self.dataset, learns=self.training if self.stage == "trained" else "")

    @property
    def training(self) -> str:
        """The dataset that the network is trained on."""
        return str(RECIPES.get((self.dataset, self.network), {}).get("dataset", self.dataset))


def built(network: str, private: Dataset, seed: int, device: str, **options: Any) -> nn.Module:
    """Return an untrained network that fits a dataset's images and classes."""
    _, channels, _, side = private.images.shape
    fitting = {"classes": private.classes, "in_channels": channels, "image_size": side}
    return models.build(network, seed=seed, **(fitting | options)).to(device)


class OnPixels(nn.Module):
    """A network that normalises what it is shown itself: pixels in [0, 1], made up ones as well as real ones."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.model(data.normalise(x))
        return out


def network(row: Row, labels: str, private: Dataset, seed: int, device: str) -> tuple[nn.Module, float | None]:
    """Return a row's network, without a bias in its last layer, and, where it is trained, its test accuracy.

    It is trained with the kind of label that is attacked, and with smoothing where that is one-hot.
    """
    if row.stage == "untrained":
        return built(row.network, private, seed, "cpu", bias=False), None
    kind = "mixup" if labels == "mixup" else "smoothing"
    own = {"dataset": row.dataset} | RECIPES[row.dataset, row.network]
    trained = training.train(
        training.Recipe(network=row.network, labels=kind, bias=False, seed=seed, **own),
        device=device,
    )
    return trained.model, trained.accuracy
