"""Clients that train a language model on sentences: the model, how it is trained, and what a client sends."""

from __future__ import annotations

import math
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
from gradleak.studies import Experiment, Row

# How a table names a model by its kind.
SHOWN = {"lstm": "LSTM", "gru": "GRU", "transformer": "transformer"}


class Cell(Form):
    """A language model, whether it is trained, and how many batches of how many sentences are read from it."""

    kind: str
    width: Whole
    layers: Whole
    stage: Literal["untrained", "trained"]
    size: Whole
    batches: Whole

    def check(self) -> None:
        """Say so where there is no such model, or nothing to read."""
        if self.kind not in KINDS:
            raise ValueError(f"'{self.kind}' is none of {', '.join(KINDS)}")
        if min(self.layers, self.size, self.batches) < 1 or self.width < 4 or self.width % 4:
            raise ValueError("layers, size and batches must be at least 1, and the width a multiple of 4")


class ClientDefense(Form):
    """What a client does to its gradient before it sends it, and how strongly; the level of some means nothing."""

    words: ClassVar = ("none", "noise", "half", "bfloat16", "quantize", "grad-drop", "sign")
    defense: str
    level: float

    def check(self) -> None:
        """Say so where there is no such defence."""
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
        raise InputError(f"defence '{defense}' is none of {', '.join(ClientDefense.words)}")
    return defenses.named(f"{defense}/{level}", generator=generator)


class Training(Row):
    """The mean loss a token of a trained model: in its first and last epoch, and on the sentences that are attacked."""

    loss_first: float = math.nan
    loss_last: float = math.nan
    loss_test: float = math.nan


class OnLanguageModel(Experiment):
    """Batches of `size` sentences, whose gradients a language model gives."""

    kind: str
    width: int
    layers: int
    stage: str
    size: int
    text: str
    epochs: int

    def model(self) -> tuple[nn.Module, Training]:
        """Return the model and, if it is trained, what it has learned."""
        recipe = LanguageRecipe(
            text=self.text, kind=self.kind, width=self.width, layers=self.layers, epochs=self.epochs, seed=self.seed
        )
        if self.stage == "untrained":
            return recipe.build(), Training()
        model, (first, last, test) = train_language_model(recipe)
        return model, Training(loss_first=first, loss_last=last, loss_test=test)

    def words(self) -> range:
        """Return all words of the vocabulary."""
        return range(len(data.vocabulary(self.text)))

    def reads(self) -> list[str]:
        """Return the name of the text."""
        return [self.text]
