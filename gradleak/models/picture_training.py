"""Train small generators and denoisers on public images, with a cache by a hash of the full recipe.

Training always runs on the CPU, even in a study on a GPU, so that a recipe gives the same network everywhere.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from gradleak import data
from gradleak.models.pictures import Autoencoder, Denoiser
from gradleak.models.training import Cached, epochs, kept, one_cycle, shuffled


class PictureRecipe(Cached):
    """The settings of a generator or denoiser, which sees only the training split of a dataset."""

    kind: Literal["generator", "denoiser"]
    dataset: str
    width: Annotated[int, Field(ge=2)] = 64
    depth: Annotated[int, Field(ge=4)] = 24
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 10
    batch_size: Annotated[int, Field(ge=1)] = 64
    learning_rate: Annotated[float, Field(gt=0)] = 4e-3
    seed: int = 0

    def build(self) -> Autoencoder | Denoiser:
        """Return the network before training."""
        channels, side = data.shape(self.dataset)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.kind == "denoiser":
                return Denoiser(channels, self.depth)
            return Autoencoder(self.width, channels, side, self.depth)


def learned(recipe: PictureRecipe) -> Autoencoder | Denoiser:
    """Return a recipe's trained network in eval mode, possibly from the cache; its parameters need no gradients."""
    model, learning = recipe.build(), data.load(recipe.dataset, "train")
    name = f"pictures-{recipe.key(f'{learning.source} {len(learning)}')}"
    kept(name, model, lambda: {"losses": _fit(model, data.normalise(learning.images), recipe)})
    return model.requires_grad_(requires_grad=False)


def _fit(model: Autoencoder | Denoiser, images: Tensor, recipe: PictureRecipe) -> list[float]:
    generator = torch.Generator().manual_seed(recipe.seed)

    def loss(indices: Tensor) -> tuple[Tensor, int]:
        batch = images[indices]
        mirrored = torch.rand(len(batch), generator=generator) < 0.5
        batch[mirrored] = batch[mirrored].flip(3)
        return model.loss(batch, generator), len(indices)

    optimizer = torch.optim.Adam(model.parameters(), recipe.learning_rate)
    order = shuffled(len(images), recipe.batch_size, generator)
    schedule = one_cycle(optimizer, recipe.epochs * math.ceil(len(images) / recipe.batch_size))
    return epochs(recipe.epochs, optimizer, order, loss, f"a {recipe.kind} on {recipe.dataset}", schedule)
