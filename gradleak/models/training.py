"""Train the networks that the studies attack, with a cache by a hash of the full recipe."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, data, paths, reporting
from gradleak.devices import accelerated, model_of
from gradleak.errors import GradleakError, InputError
from gradleak.models.ready import stored
from gradleak.models.registry import build
from gradleak.storage import locked, write_whole

# Increase this when a change of the code changes the result of any recipe, so that cached networks are trained again.
VERSION = 1


class Cached(BaseModel):
    """All settings that determine a trained network."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def key(self, identity: str) -> str:
        """Return the hash under which the trained network is cached; `identity` identifies the training data."""
        text = f"{VERSION} {identity} {self.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Recipe(Cached):
    """The settings of a classifier."""

    network: str
    dataset: str
    labels: Literal["hard", "smoothing", "mixup"] = "hard"
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 10
    batch_size: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    optimizer: Literal["adam", "sgd"] = "adam"
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    smoothing: tuple[float, float] = (0.0, 0.5)
    flips_and_crops: bool = True
    bias: bool | None = None
    init: str | None = None
    activation: str | None = None
    image_size: int | None = None
    pretrained: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        model: The network in eval mode on the CPU.
        accuracy: The share of test images that are classified correctly.
        losses: The mean training loss of each epoch.
        cached: Whether the network was loaded from the cache.
    """

    model: nn.Module
    accuracy: float
    losses: tuple[float, ...]
    cached: bool


def train(recipe: Recipe, *, device: str = "cpu") -> Trained:
    """Train the network of a recipe, or load it from the cache; each GPU model has separate entries there."""
    learning = data.load(recipe.dataset, "train", size=recipe.image_size)
    testing = data.load(recipe.dataset, "test", size=recipe.image_size)
    model = build(
        recipe.network,
        classes=learning.classes,
        bias=recipe.bias,
        init=recipe.init,
        activation=recipe.activation,
        in_channels=learning.images.shape[1],
        image_size=learning.images.shape[-1],
        seed=recipe.seed,
    )
    if recipe.pretrained:
        _load_pretrained(model, recipe.pretrained)
    identity = f"{learning.source} {len(learning)}"
    if accelerated(device):
        # A GPU rounds sums differently, so the trained network differs from that of a CPU.
        identity += f" {model_of(device)}"

    def fit() -> dict[str, Any]:
        losses = _fit(model.to(device), learning, recipe, device)
        right = accuracy(model, testing, device)
        model.cpu()
        return {"accuracy": right, "losses": losses}

    content, cached = kept(recipe.key(identity), model, fit, threads=None if accelerated(device) else 1)
    return Trained(model, content["accuracy"], tuple(content["losses"]), cached)


def kept(
    name: str, model: nn.Module, fit: Callable[[], dict[str, Any]], *, threads: int | None = 1
) -> tuple[dict[str, Any], bool]:
    """Load the parameters of a network from the cache, or train it; the network is in eval mode then.

    Args:
        name: The name of the network's file in the cache.
        model: The network.
        fit: Trains the network, and returns what the file holds besides the parameters.
        threads: The number of threads of the training. On a CPU the order of sums depends on it, so use one thread: a
            recipe must give one result.

    Returns:
        The content of the file, and whether it was there before.
    """
    file = paths.cache() / "networks" / f"{name}.pt"
    # Several processes may need the same network: the first trains it while the rest wait.
    with contextlib.nullcontext() if file.is_file() else locked(file):
        content = cached_state(file)
        cached = content is not None
        if content is None:
            before = torch.get_num_threads()
            torch.set_num_threads(threads or before)
            try:
                facts = fit()
            finally:
                torch.set_num_threads(before)
            content = {"state": model.state_dict(), **facts}
            write_whole(file, functools.partial(torch.save, content))
    model.load_state_dict(content["state"])
    model.eval()
    return content, cached


def epochs(
    count: int,
    optimizer: torch.optim.Optimizer,
    order: Callable[[], Iterable[Tensor]],
    loss: Callable[[Tensor], tuple[Tensor, int]],
    description: str,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> list[float]:
    """Train a network, and return the mean loss of each epoch.

    Args:
        count: The number of epochs.
        optimizer: The optimizer.
        order: Returns the indices of each batch of an epoch.
        loss: Returns a batch's mean loss, and the number of samples over which it is a mean.
        description: What is trained, for messages.
        schedule: The schedule of the learning rate, if it changes.
    """
    losses: list[float] = []
    rate = optimizer.defaults["lr"]
    for _ in reporting.steps(range(count), count, f"training {description}"):
        total, samples = 0.0, 0
        for indices in order():
            optimizer.zero_grad(set_to_none=True)
            mean, size = loss(indices)
            mean.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            total, samples = total + float(mean.detach()) * size, samples + size
        losses.append(total / samples)
        if not math.isfinite(losses[-1]):
            raise GradleakError(
                f"training {description} diverged in epoch {len(losses)}: lower the learning rate of {rate:g}"
            )
    return losses


def shuffled(count: int, batch_size: int, generator: torch.Generator) -> Callable[[], Iterable[Tensor]]:
    """Return a function that returns the indices of each batch of an epoch, in a new random order at each call."""

    def order() -> Iterable[Tensor]:
        batches: tuple[Tensor, ...] = torch.randperm(count, generator=generator).split(batch_size)
        return batches

    return order


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Return the schedule that raises the learning rate to the optimizer's, and then lowers it."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, optimizer.defaults["lr"], total_steps=max(2, steps))


def _fit(model: nn.Module, dataset: data.Dataset, recipe: Recipe, device: str) -> list[float]:
    generator = torch.Generator().manual_seed(recipe.seed)
    images, labels = data.normalise(dataset.images).to(device), dataset.labels
    settings: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(model.parameters(), **settings)
        if recipe.optimizer == "adam"
        else torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, **settings)
    )

    def loss(indices: Tensor) -> tuple[Tensor, int]:
        inputs = images[indices.to(device)]
        if recipe.flips_and_crops:
            inputs = _flip_and_crop(inputs, generator)
        inputs, targets = _with_labels(inputs, labels[indices], dataset.classes, recipe, generator)
        return F.cross_entropy(model(inputs), targets.to(device)), len(indices)

    steps = recipe.epochs * math.ceil(len(labels) / recipe.batch_size)
    schedule = one_cycle(optimizer, steps)
    order = shuffled(len(labels), recipe.batch_size, generator)
    model.train()
    return epochs(recipe.epochs, optimizer, order, loss, f"{recipe.network} on {recipe.dataset}", schedule)


def _with_labels(
    inputs: Tensor, labels: Tensor, classes: int, recipe: Recipe, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    if recipe.labels == "smoothing":
        low, high = recipe.smoothing
        epsilon = low + (high - low) * torch.rand(len(labels), generator=generator)
        return inputs, augment.smooth(labels, classes, epsilon)
    hot = augment.one_hot(labels, classes)
    # The last batch may have a single class, which cannot be mixed.
    if recipe.labels == "mixup" and len(labels.unique()) > 1:
        return augment.mixup(inputs, hot, generator=generator)
    return inputs, hot


def _flip_and_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images and shift each by up to an eighth of its side, with a single gather."""
    count, channels, height, width = images.shape
    reach = max(1, height // 8)
    padded = F.pad(images, (reach,) * 4)
    shift = torch.randint(2 * reach + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = torch.arange(height) + shift[0]
    columns = torch.arange(width).expand(count, -1)
    columns = torch.where(mirrored, columns.flip(1), columns) + shift[1]
    sample = torch.arange(count)[:, None, None]
    picked = padded.permute(0, 2, 3, 1)[
        sample.to(images.device), rows[:, :, None].to(images.device), columns[:, None, :].to(images.device)
    ]
    return picked.permute(0, 3, 1, 2).reshape(count, channels, height, width)


@torch.no_grad()
def accuracy(model: nn.Module, dataset: data.Dataset, device: str) -> float:
    """Return the share of a dataset's images that a network classifies correctly; it is left in eval mode."""
    model.eval()
    right = 0
    for images, labels in zip(dataset.images.split(500), dataset.labels.split(500), strict=True):
        right += int((model(data.normalise(images).to(device)).argmax(dim=1).cpu() == labels).sum())
    return right / len(dataset)


def cached_state(file: Path) -> dict[str, Any] | None:
    """Return the cached content of a trained network, or None if the network has to be trained."""
    if not file.is_file():
        return None
    try:
        content: dict[str, Any] = torch.load(file, weights_only=True)
    except Exception as error:  # torch raises various errors for a damaged archive
        reporting.warn(f"the cached network {file.name} is damaged ({type(error).__name__}) and is trained again")
        with contextlib.suppress(OSError):  # the lock reports a folder that is not writable
            file.unlink()  # so that the warning is given only once
        return None
    return content


def _load_pretrained(model: nn.Module, name: str) -> None:
    """Load all layers that fit from a file in $GRADLEAK_WEIGHTS; only the last layer may be missing."""
    state = model.state_dict()
    fitting = {key: value for key, value in stored(name).items() if key in state and state[key].shape == value.shape}
    optional = ("head.", "num_batches_tracked")
    missing = [key for key in state if key not in fitting and not any(part in key for part in optional)]
    if missing:
        raise InputError(f"{name} does not fit this network: it lacks {missing[0]} and {len(missing) - 1} more")
    state.update(fitting)
    model.load_state_dict(state)
