"""Train small generators and denoisers on public images, with a cache by a hash of the full recipe.

Training always runs on the CPU, even in a study on a GPU, so that a recipe gives the same network everywhere.
"""

from __future__ import annotations

import hashlib
import math
import time
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from gradleak import data, paths, reporting
from gradleak.errors import GradleakError
from gradleak.models.pictures import Autoencoder, Denoiser, Generator
from gradleak.models.training import cached_state
from gradleak.storage import locked, write_whole

# Increase this when a change of the code below changes the result, so that cached networks are trained again.
VERSION = 1


class PictureRecipe(BaseModel):
    """All settings that determine a trained network; it sees only the training split of a dataset."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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

    def key(self, identity: str) -> str:
        """Return the hash under which the trained network is cached; `identity` identifies the training data."""
        return hashlib.sha256(f"{VERSION} {identity} {self.model_dump_json()}".encode()).hexdigest()[:16]


def trained_generator(recipe: PictureRecipe) -> Generator:
    """Return a recipe's trained generator in eval mode, possibly from the cache."""
    model = learned(recipe)
    assert isinstance(model, Autoencoder)
    return model.generator


def learned(recipe: PictureRecipe) -> Autoencoder | Denoiser:
    """Return a recipe's trained network in eval mode, possibly from the cache; its parameters need no gradients."""
    model, learning = recipe.build(), data.load(recipe.dataset, "train")
    file = paths.cache() / "networks" / f"pictures-{recipe.key(f'{learning.source} {len(learning)}')}.pt"
    with locked(file):
        cached = cached_state(file)
        if cached is None:
            started = time.perf_counter()
            losses = _fit(model, data.normalise(learning.images), recipe)
            cached = {"state": model.state_dict(), "losses": losses, "seconds": time.perf_counter() - started}
            content = cached
            write_whole(file, lambda stream: torch.save(content, stream))
    model.load_state_dict(cached["state"])
    return model.eval().requires_grad_(requires_grad=False)


def _fit(model: Autoencoder | Denoiser, images: Tensor, recipe: PictureRecipe) -> list[float]:
    generator = torch.Generator().manual_seed(recipe.seed)
    optimizer = torch.optim.Adam(model.parameters(), recipe.learning_rate)
    steps = recipe.epochs * math.ceil(len(images) / recipe.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=max(2, steps))
    losses: list[float] = []
    # The order of sums depends on the number of threads, so use one thread: a recipe must give one result.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in reporting.steps(range(recipe.epochs), recipe.epochs, f"a {recipe.kind} learns {recipe.dataset}"):
            total = 0.0
            for indices in torch.randperm(len(images), generator=generator).split(recipe.batch_size):
                batch = images[indices]
                mirrored = torch.rand(len(batch), generator=generator) < 0.5
                batch[mirrored] = batch[mirrored].flip(3)
                optimizer.zero_grad(set_to_none=True)
                loss = model.loss(batch, generator)
                loss.backward()
                optimizer.step()
                schedule.step()
                total += float(loss.detach()) * len(indices)
            losses.append(total / len(images))
    finally:
        torch.set_num_threads(threads)
    if not all(map(math.isfinite, losses)):
        raise GradleakError(f"training a {recipe.kind} diverged: lower the learning rate of {recipe.learning_rate:g}")
    return losses
