"""Clients that train a language model on sentences: the model, its training, and the clients' defences."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import nn

from gradleak import data, defenses
from gradleak.defenses import Each
from gradleak.errors import InputError
from gradleak.leak import Defense
from gradleak.models.language import KINDS
from gradleak.models.language_training import LanguageRecipe, train_language_model
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.studies import Experiment

# The names of the kinds of model in tables.
SHOWN = {"lstm": "LSTM", "gru": "GRU", "transformer": "transformer"}


class Cell(Form):
    """A language model and the batches to read from it, written "kind/width/layers/stage/size/batches".

    Attributes:
        kind: The kind of model.
        width: The width of its layers.
        layers: The number of layers.
        stage: Whether it is trained.
        size: The number of sentences in a batch.
        batches: The number of batches.
    """

    kind: str
    width: Whole
    layers: Whole
    stage: Literal["untrained", "trained"]
    size: Whole
    batches: Whole

    def check(self) -> None:
        """Raise an error if there is no such model or no batch."""
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of model '{self.kind}': choose one of {', '.join(KINDS)}")
        if min(self.layers, self.size, self.batches) < 1 or self.width < 4 or self.width % 4:
            raise ValueError("layers, size and batches must be at least 1, and the width a multiple of 4")


class ClientDefense(Form):
    """A defence that a client applies to its gradient, and its level, which some defences ignore."""

    words: ClassVar = ("none", "noise", "half", "bfloat16", "quantize", "grad-drop", "sign")
    defense: str
    level: float

    def check(self) -> None:
        """Raise an error if there is no such defence."""
        client_defense(self.defense, self.level, torch.Generator())


def client_defense(defense: str, level: float, generator: torch.Generator) -> Defense:
    """Return a defence by its name; the level of noise is a share of each tensor's root mean square."""
    if defense == "noise":
        return Each(
            lambda value: value + level * value.square().mean().sqrt() * torch.randn(value.shape, generator=generator)
        )
    if defense == "bfloat16":
        return Each(lambda value: value.bfloat16())
    if defense not in ClientDefense.words:
        raise InputError(f"unknown defence '{defense}': choose one of {', '.join(ClientDefense.words)}")
    return defenses.named(f"{defense}/{level}", generator=generator)


class OnLanguageModel(Experiment):
    """Batches of `size` sentences on a language model."""

    kind: str
    width: int
    layers: int
    stage: str
    size: int
    text: str
    epochs: int

    def model(self) -> tuple[nn.Module, Columns]:
        """Return the model and, if it is trained, its losses in the first and last epoch and on attacked sentences."""
        recipe = LanguageRecipe(
            text=self.text, kind=self.kind, width=self.width, layers=self.layers, epochs=self.epochs, seed=self.seed
        )
        if self.stage == "untrained":
            return recipe.build(), {}
        model, losses = train_language_model(recipe)
        return model, dict(zip(("loss_first", "loss_last", "loss_test"), losses, strict=True))

    def words(self) -> range:
        """Return all words of the vocabulary."""
        return range(len(data.vocabulary(self.text)))

    def reads(self) -> list[str]:
        """Return the name of the text."""
        return [self.text]
