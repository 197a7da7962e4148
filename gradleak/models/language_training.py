"""Train the small language models that the studies attack, with a cache by a hash of the full recipe.

Training always runs on the CPU, even in a study on a GPU, so that a recipe gives the same network everywhere.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data
from gradleak.losses import PADDING
from gradleak.models.language import batch_of, build_language_model
from gradleak.models.training import Cached, epochs, kept, shuffled


class LanguageRecipe(Cached):
    """The settings of a language model, which is trained on the training split of a text."""

    text: str
    kind: str
    width: Annotated[int, Field(ge=4)] = 256
    layers: Annotated[int, Field(ge=1)] = 1
    tied: bool = False
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 5
    batch_size: Annotated[int, Field(ge=1)] = 16
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    seed: int = 0

    def build(self) -> nn.Module:
        """Return the model before training."""
        pieces = len(data.vocabulary(self.text))
        return build_language_model(
            self.kind, pieces=pieces, width=self.width, layers=self.layers, tied=self.tied, seed=self.seed
        )


def train_language_model(recipe: LanguageRecipe) -> tuple[nn.Module, tuple[float, float, float]]:
    """Train a recipe's model, or load it from the cache.

    Returns:
        The model in eval mode, and its mean loss per token: in the first epoch, in the last epoch, and on the
        sentences to attack.
    """
    model = recipe.build()
    identity = hashlib.sha256("\n".join(data.texts(recipe.text, "train")).encode()).hexdigest()
    content, _ = kept(f"language-{recipe.key(identity)}", model, lambda: {"losses": _fit(model, recipe)})
    first, last, test = content["losses"]
    return model, (first, last, test)


def _fit(model: nn.Module, recipe: LanguageRecipe) -> list[float]:
    pieces = data.vocabulary(recipe.text)
    sentences = [pieces.encode(sentence) for sentence in data.texts(recipe.text, "train")]
    order = shuffled(len(sentences), recipe.batch_size, torch.Generator().manual_seed(recipe.seed))

    def loss(indices: Tensor) -> tuple[Tensor, int]:
        return _loss(model, [sentences[one] for one in indices.tolist()], pieces.start, pieces.end)

    optimizer = torch.optim.Adam(model.parameters(), recipe.learning_rate)
    model.train()
    losses = epochs(recipe.epochs, optimizer, order, loss, f"a language model ({recipe.kind}) on {recipe.text}")
    model.eval()
    with torch.no_grad():
        test, _ = _loss(model, [pieces.encode(one) for one in data.texts(recipe.text, "test")[:64]])
    return [losses[0], losses[-1], float(test)]


def _loss(model: nn.Module, sentences: list[list[int]], *marks: int) -> tuple[Tensor, int]:
    """Return the mean cross-entropy over all tokens of some sentences, and the number of the tokens."""
    tokens, targets = batch_of(sentences, *marks)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=PADDING)
    return loss, int((targets != PADDING).sum())
