"""Train the small language models that the studies attack, with a cache by a hash of the full recipe.

Training always runs on the CPU, even in a study on a GPU, so that a recipe gives the same network everywhere.
"""

from __future__ import annotations

import hashlib
import time
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn
from torch.nn import functional as F

from gradleak import data, paths, reporting
from gradleak.errors import GradleakError
from gradleak.losses import PADDING
from gradleak.models.language import batch_of, build_language_model
from gradleak.models.training import cached_state
from gradleak.storage import locked, write_whole

# Increase this when a change of the code below changes the result, so that cached models are trained again.
VERSION = 1


class LanguageRecipe(BaseModel):
    """All settings that determine a trained language model; it is trained on the training split of a text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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

    def key(self) -> str:
        """Return the hash under which the trained model is cached."""
        sentences = hashlib.sha256("\n".join(data.texts(self.text, "train")).encode()).hexdigest()
        return hashlib.sha256(f"{VERSION} {sentences} {self.model_dump_json()}".encode()).hexdigest()[:16]


def train_language_model(recipe: LanguageRecipe) -> tuple[nn.Module, tuple[float, float, float]]:
    """Train a recipe's model, or load it from the cache.

    Returns:
        The model in eval mode, and its mean loss per token: in the first epoch, in the last epoch, and on the
        sentences to attack.
    """
    file = paths.cache() / "networks" / f"language-{recipe.key()}.pt"
    model = recipe.build()
    with locked(file):
        cached = cached_state(file)
        if cached is None:
            started = time.perf_counter()
            losses = _fit(model, recipe)
            seconds = time.perf_counter() - started
            cached = {"state": model.state_dict(), "losses": losses, "seconds": seconds}
            content = cached
            write_whole(file, lambda stream: torch.save(content, stream))
    model.load_state_dict(cached["state"])
    first, last, test = cached["losses"]
    return model.eval(), (first, last, test)


def _fit(model: nn.Module, recipe: LanguageRecipe) -> list[float]:
    pieces = data.vocabulary(recipe.text)
    sentences = [pieces.encode(sentence) for sentence in data.texts(recipe.text, "train")]
    generator = torch.Generator().manual_seed(recipe.seed)
    optimizer = torch.optim.Adam(model.parameters(), recipe.learning_rate)
    losses: list[float] = []
    # The order of sums depends on the number of threads, so use one thread: a recipe must give one result.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model.train()
    try:
        description = f"training a language model ({recipe.kind}) on {recipe.text}"
        for _ in reporting.steps(range(recipe.epochs), recipe.epochs, description):
            total, count = 0.0, 0
            for indices in torch.randperm(len(sentences), generator=generator).split(recipe.batch_size):
                tokens, targets = batch_of([sentences[one] for one in indices.tolist()], pieces.start, pieces.end)
                optimizer.zero_grad(set_to_none=True)
                loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=PADDING)
                loss.backward()
                optimizer.step()
                target_count = int((targets != PADDING).sum())
                total, count = total + float(loss.detach()) * target_count, count + target_count
            losses.append(total / count)
    finally:
        torch.set_num_threads(threads)
    if not all(map(torch.isfinite, torch.tensor(losses))):
        raise GradleakError(f"training a language model diverged: lower the learning rate {recipe.learning_rate:g}")
    model.eval()
    tokens, targets = batch_of([pieces.encode(one) for one in data.texts(recipe.text, "test")[:64]])
    with torch.no_grad():
        test = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=PADDING)
    return [losses[0], losses[-1], float(test)]
