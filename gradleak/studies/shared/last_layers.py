"""Large networks, run once over all images: what the last layer takes in, and the gradient of any batch from that."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from gradleak import data, models
from gradleak.leak import head_inputs
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.studies import Experiment
from gradleak.studies.shared.attacked_networks import built

TRAINED = "efficientnet-lite0"
# The pixel statistics that it was trained with.
MEAN, STD = 0.498, 0.502


class SeenNetwork(Form):
    """A network and the images that it is run over: its activation, if there is a choice, and its classes."""

    dataset: str
    network: str
    activation: str
    classes: Whole = Field(ge=3)

    @property
    def sees(self) -> Sees:
        """The network and what it is shown."""
        return Sees(self.network, self.dataset, activation=self.activation, channels=3 * (self.network == TRAINED))


@dataclass(frozen=True)
class Seen:
    """Last-layer inputs (N, I) and predictions (N, C) of all images; `labels` (N,) where the network knows classes."""

    features: Tensor
    predicted: Tensor
    labels: Tensor | None

    def labels_of(self, chosen: Tensor, generator: torch.Generator, *, repeats: bool = True) -> Tensor:
        """Return the classes of a batch (B,): its own, or any, for an untrained network does not know them."""
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


def seen(dataset: str, network: str, activation: str, classes: int, seed: int, device: str) -> Seen:
    """Run a network over all test images of a dataset."""
    private = data.load(dataset, "test")
    if network == TRAINED:
        inputs, model = (private.images - MEAN) / STD, models.efficientnet_lite0()
    else:
        inputs = data.normalise(private.images)
        options = {"classes": classes, "init": "torch", "activation": activation or None}
        model = built(network, private, seed, device, **options)
    features, scores = head_inputs(model.to(device), inputs.to(device), chunk=50)
    labels = private.labels.to(device) if network == TRAINED else None
    return Seen(features, scores.softmax(dim=1), labels)


class OnLastLayer(Experiment):
    """Batches whose gradient is that of the last layer alone."""

    dataset: str
    network: str
    activation: str
    classes: int

    def seen(self) -> Seen:
        """Run the network over all images."""
        return seen(self.dataset, self.network, self.activation, self.classes, self.seed, self.device)
