"""State what an attacker has besides the gradients: the model, samples of the same kind, and the client's settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.arguments import check_fields
from gradleak.augment import one_hot
from gradleak.errors import InputError, unknown
from gradleak.leak import Defense, head_inputs
from gradleak.losses import Loss

DUMMIES = ("random", "zeros", "ones")
# Random dummy inputs; more of them hardly change the means.
RANDOM = 100


@dataclass(frozen=True)
class Knowledge:
    """What an attacker has besides the gradients.

    Attributes:
        model: The network.
        auxiliary: Samples of the same kind as the private ones: inputs (M, …) and classes (M,).
        input_shape: The shape of one input, for dummy inputs.
        dummy: The kind of dummy inputs, "random", "zeros" or "ones".
        loss: The client's loss, cross-entropy by default.
        epsilon: The smoothing of the client's labels.
        local_steps: The number of steps whose gradients were summed.
        defense: The client's defence.
        seed: Seed of all random numbers.
        chunk: The number of auxiliary or dummy inputs to run through the model at a time.
    """

    model: nn.Module | None = None
    auxiliary: tuple[Tensor, Tensor] | None = None
    input_shape: tuple[int, ...] | None = None
    dummy: str = "random"
    loss: Loss | None = None
    epsilon: float = 0.0
    local_steps: int = 1
    defense: Defense | None = None
    seed: int = 0
    chunk: int = 250

    def __post_init__(self) -> None:
        check_fields(self)

    @cached_property
    def others(self) -> tuple[Tensor, Tensor, Tensor]:
        """Last-layer inputs (M, I), logits (M, C) and classes (M,) of the auxiliary samples."""
        assert self.model is not None
        assert self.auxiliary is not None
        features, scores = head_inputs(self.model, self.auxiliary[0], chunk=self.chunk)
        return features, scores, check_auxiliary(self.auxiliary, scores.shape[1]).to(features.device)

    @cached_property
    def halves(self) -> Tensor:
        """Which auxiliary samples (M,) are in the first half: every second one of each class."""
        labels = self.others[2]
        one_hot = torch.nn.functional.one_hot(labels)
        return (one_hot.cumsum(dim=0) * one_hot).sum(dim=1) % 2 == 1

    @cached_property
    def fitted(self) -> dict[Any, Any]:
        """Regressions that were fitted to auxiliary samples, by kind of gradient."""
        return {}

    @cached_property
    def dummies(self) -> tuple[Tensor, Tensor]:
        """Last-layer inputs (M, I) and logits (M, C) of the dummy inputs."""
        if self.model is None or self.input_shape is None:
            raise InputError("LLG* runs dummy inputs through the model: it needs the model and the shape of one input")
        if self.dummy not in DUMMIES:
            raise unknown("kind of dummy input", self.dummy, DUMMIES)
        parameter = next(self.model.parameters())
        shape = (RANDOM if self.dummy == "random" else 1, *self.input_shape)
        inputs = torch.zeros(shape) if self.dummy == "zeros" else torch.ones(shape)
        if self.dummy == "random":
            inputs = torch.rand(shape, generator=torch.Generator().manual_seed(self.seed))
        return head_inputs(self.model, inputs.to(parameter), chunk=self.chunk)


def check_auxiliary(auxiliary: tuple[Tensor, Tensor], classes: int) -> Tensor:
    """Return the classes of auxiliary samples; refuse labels that are not one class for each input."""
    inputs, labels = auxiliary
    if labels.shape != inputs.shape[:1]:
        raise InputError(f"auxiliary samples need one class each, ({len(inputs)},); got {tuple(labels.shape)}")
    one_hot(labels, classes)
    return labels.long()
