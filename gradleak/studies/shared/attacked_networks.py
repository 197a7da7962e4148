"""The networks attacked in studies of labels, and the training of the trained ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer
from torch import Tensor, nn

from gradleak import models
from gradleak.data.base import Dataset
from gradleak.errors import InputError
from gradleak.models import ready, training
from gradleak.studies import Group, Sees

# A network is untrained, trained by us, or trained by the authors of wang2024.
Stage = Literal["untrained", "trained", "published"]
STAGES: tuple[Stage, ...] = ("untrained", "trained")


# Training recipes by (dataset of the private images, network). A recipe states its training set if that is another form
# of the private images, such as JPEG files. The papers' recipes are unpublished.
RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("photos", "lenet"): {"epochs": 12, "learning_rate": 3e-3, "batch_size": 64, "init": "torch"},
    ("photos", "small-cnn"): {"epochs": 12, "learning_rate": 5e-3, "batch_size": 64},
    ("digits", "lenet"): {"epochs": 12, "learning_rate": 3e-3, "batch_size": 64, "init": "torch"},
    ("digits", "small-cnn"): {"epochs": 12, "learning_rate": 5e-3, "batch_size": 64},
    ("cifar10", "lenet"): {"dataset": "cifar10-jpeg", "epochs": 20, "learning_rate": 3e-3, "init": "torch"},
    ("cifar10", "resnet18"): {"dataset": "cifar10-jpeg", "epochs": 12, "learning_rate": 2e-3},
    ("cifar10", "resnet18-cifar"): {"dataset": "cifar10-jpeg", "epochs": 1, "learning_rate": 2e-3, "batch_size": 64},
    ("cifar10", "resnet20"): {"epochs": 6, "learning_rate": 1e-3, "pretrained": "cifar10_resnet20.pt"},
    ("flowers17", "alexnet"): {"epochs": 15, "learning_rate": 3e-4, "batch_size": 32, "init": "torch"},
    ("flowers17", "resnet18"): {"epochs": 4, "learning_rate": 1e-3, "batch_size": 32},
}


class AttackedNetwork(Group):
    """A network, its private images, and the stage of training in which it is attacked."""

    dataset: str
    network: str
    stage: Stage

    def check(self) -> None:
        """Raise an error if the network is to be trained, or was published, and there is no such network."""
        name = f"{self.dataset}/{self.network}"
        trained = ["/".join(key) for key in RECIPES]
        if self.stage == "trained" and name not in trained:
            raise InputError(f"there is no training recipe for '{name}'; there is one for {', '.join(trained)}")
        if self.stage == "published" and name not in ready.WANG2024:
            known = ", ".join(ready.WANG2024)
            raise InputError(f"wang2024 published no trained network '{name}'; it published {known}")

    @property
    def sees(self) -> Sees:
        """The network, its private images and, if it is trained, its training set."""
        return Sees(self.network, self.dataset, learns=self.training if self.stage == "trained" else "")

    @property
    def training(self) -> str:
        """The dataset that the network is trained on."""
        return str(RECIPES.get((self.dataset, self.network), {}).get("dataset", self.dataset))


def _read(value: Any) -> Any:
    return dict(zip(AttackedNetwork.model_fields, value.split("/"), strict=True)) if isinstance(value, str) else value


# A network as the inputs of trials name it: "cifar10/lenet/trained".
NamedNetwork = Annotated[AttackedNetwork, BeforeValidator(_read), PlainSerializer(str)]


def built(network: str, private: Dataset, seed: int, device: str, **options: Any) -> nn.Module:
    """Return an untrained network that fits a dataset's images and classes."""
    _, channels, _, side = private.images.shape
    fitting = {"classes": private.classes, "in_channels": channels, "image_size": side}
    return models.build(network, seed=seed, **(fitting | options)).to(device)


class Adapted(nn.Module):
    """A network whose inputs are changed first.

    With `data.normalise` as the change, the network takes pixels in [0, 1], and an attacker's made-up inputs are then
    treated as pixels as well.
    """

    def __init__(self, change: Callable[[Tensor], Tensor], body: nn.Module) -> None:
        super().__init__()
        self.change, self.body = change, body

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.body(self.change(x))
        return out


def network(
    attacked: AttackedNetwork, labels: str, private: Dataset, seed: int, device: str
) -> tuple[nn.Module, float | None]:
    """Return a network to attack, without a bias in its last layer, and its test accuracy (None if untrained).

    Training uses the kind of label that is attacked, but smoothed labels if the attacked ones are one-hot.
    """
    kind = "mixup" if labels == "mixup" else "smoothing"
    if attacked.stage == "untrained":
        return built(attacked.network, private, seed, "cpu", bias=False), None
    if attacked.stage == "published":
        model = ready.published(f"{attacked.dataset}/{attacked.network}", kind)
        return model, training.accuracy(model.to(device), private, device)
    options = {"network": attacked.network, "dataset": attacked.dataset} | RECIPES[attacked.dataset, attacked.network]
    trained = training.train(training.Recipe(**options, bias=False, labels=kind, seed=seed), device=device)
    return trained.model, trained.accuracy
