"""Clients that train a language model on sentences: the model, its training, and the clients' defences."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import nn

from gradleak import data, defenses
from gradleak.defenses import Each
from gradleak.leak import Defense
from gradleak.models.language_training import LanguageRecipe, train_language_model
from gradleak.runs.forms import Form
from gradleak.studies import Columns, Experiment, Group

# The names of the kinds of model in tables and figures.
SHOWN = {"lstm": "LSTM", "gru": "GRU", "transformer": "transformer"}


class Cell(Group):
    """A language model, whether it is trained, the number of sentences in a batch, and the number of batches."""

    kind: Literal["lstm", "gru", "transformer"]
    width: int = Field(ge=4, multiple_of=4)
    layers: PositiveInt
    stage: Literal["untrained", "trained"]
    size: PositiveInt
    batches: PositiveInt


class ClientDefense(Form):
    """A defence that a client applies to its gradient, and its level, which some defences ignore."""

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
        recipe = LanguageRecipe(**self.model_dump(include={"text", "kind", "width", "layers", "epochs", "seed"}))
        if self.stage == "untrained":
            return recipe.build(), {}
        model, losses = train_language_model(recipe)
        return model, dict(zip(("loss_first", "loss_last", "loss_test"), losses, strict=True))

    def words(self) -> range:
        """Return all words of the vocabulary."""
        return range(len(data.vocabulary(self.text)))
