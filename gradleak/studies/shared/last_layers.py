"""Large networks, run once over all images: their last-layer inputs, from which any batch's gradient follows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data, models
from gradleak.leak import head_inputs
from gradleak.models.ready import IMAGENET
from gradleak.studies import Experiment, Group, Sees
from gradleak.studies.shared.attacked_networks import built

TRAINED = "efficientnet-lite0"
# The mean and standard deviation by which the pixels were normalised when this network was trained.
MEAN, STD = 0.498, 0.502


class ShownImages(Group):
    """A network, its images, and the number of its classes; an empty activation is the network's default."""

    dataset: str
    network: str
    activation: str = ""
    classes: int = Field(ge=3)

    @property
    def sees(self) -> Sees:
        """The network with its images."""
        channels = 3 if self.network in (TRAINED, *IMAGENET) else 0
        return Sees(self.network, self.dataset, activation=self.activation, channels=channels)


@dataclass(frozen=True)
class Seen:
    """The forward pass of all images.

    Attributes:
        features: The last layer's inputs (N, I).
        predicted: The predicted probabilities (N, C).
        labels: The images' classes (N,), or None for an untrained network, which has learned no classes.
    """

    features: Tensor
    predicted: Tensor
    labels: Tensor | None

    def labels_of(self, chosen: Tensor, generator: torch.Generator, *, repeats: bool = True) -> Tensor:
        """Return the classes (B,) of a batch: the true ones, or random ones for an untrained network.

        Args:
            chosen: The indices (B,) of the batch's images.
            generator: The source of random classes.
            repeats: Whether random classes may occur more than once.
        """
        classes = self.predicted.shape[1]
        if self.labels is not None:
            return self.labels[chosen]
        if repeats:
            return torch.randint(classes, (len(chosen),), generator=generator).to(chosen.device)
        return torch.randperm(classes, generator=generator)[: len(chosen)].to(chosen.device)

    def gradient(self, chosen: Tensor, labels: Tensor) -> Tensor:
        """Return the last layer's gradient (C, I) of the mean cross-entropy over a batch."""
        errors = self.predicted[chosen] - F.one_hot(labels, self.predicted.shape[1])
        return errors.T @ self.features[chosen] / len(chosen)


def seen(model: nn.Module, inputs: Tensor, device: str, labels: Tensor | None = None) -> Seen:
    """Run a network over inputs (N, C, H, W)."""
    features, scores = head_inputs(model.to(device), inputs.to(device), chunk=50)
    return Seen(features, scores.softmax(dim=1), None if labels is None else labels.to(device))


class OnLastLayer(Experiment):
    """Batches whose client sends the gradient of the last layer only."""

    dataset: str
    network: str
    activation: str
    classes: int

    def seen(self) -> Seen:
        """Run the network over all test images of the dataset."""
        private = data.load(self.dataset, "test")
        if self.network == TRAINED:
            return seen(models.efficientnet_lite0(), (private.images - MEAN) / STD, self.device, private.labels)
        if self.network in IMAGENET:
            return seen(models.pretrained(self.network), data.normalise(private.images), self.device, private.labels)
        options = {"classes": self.classes, "init": "torch", "activation": self.activation or None}
        model = built(self.network, private, self.seed, self.device, **options)
        return seen(model, data.normalise(private.images), self.device)
