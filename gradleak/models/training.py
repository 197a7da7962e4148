"""Train the networks that the studies attack, with a cache by a hash of the full recipe."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
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

# Increase this when a change of the code below changes the result, so that cached networks are trained again.
VERSION = 1


class Recipe(BaseModel):
    """All settings that determine a trained network."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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

    def key(self, identity: str) -> str:
        """Return the hash under which the trained network is cached; `identity` identifies the training data."""
        text = f"{VERSION} {identity} {self.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        model: The network in eval mode on the CPU.
        accuracy: The share of test images that are classified correctly.
        losses: The mean training loss of each epoch.
        recipe: The settings of the training.
        seconds: The training time (s).
        cached: Whether the network was loaded from the cache.
    """

    model: nn.Module
    accuracy: float
    losses: tuple[float, ...]
    recipe: Recipe
    seconds: float
    cached: bool


def train(recipe: Recipe, *, device: str = "cpu", show_progress: bool = True) -> Trained:
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
    file = paths.cache() / "networks" / f"{recipe.key(identity)}.pt"
    if (cached := _kept(model, recipe, file)) is not None:
        return cached
    # Several processes may need the same network: the first trains it while the rest wait.
    with locked(file):
        return _kept(model, recipe, file) or _trained(model, learning, testing, recipe, file, device, show_progress)


def _kept(model: nn.Module, recipe: Recipe, file: Path) -> Trained | None:
    content = cached_state(file)
    if content is None:
        return None
    model.load_state_dict(content["state"])
    facts = content["accuracy"], tuple(content["losses"]), recipe, content["seconds"]
    return Trained(model.eval(), *facts, cached=True)


def _trained(
    model: nn.Module,
    learning: data.Dataset,
    testing: data.Dataset,
    recipe: Recipe,
    file: Path,
    device: str,
    show_progress: bool,
) -> Trained:
    started = time.perf_counter()
    # On a CPU the order of sums depends on the number of threads, so use one thread: a recipe must give one result.
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else threads)
    try:
        losses = _fit(model.to(device), learning, recipe, device, show_progress)
    finally:
        torch.set_num_threads(threads)
    accuracy = _accuracy(model, testing, device)
    seconds = time.perf_counter() - started
    model = model.cpu().eval()
    content = {"state": model.state_dict(), "accuracy": accuracy, "losses": list(losses), "seconds": seconds}
    write_whole(file, lambda stream: torch.save(content, stream))
    return Trained(model, accuracy, losses, recipe, seconds, cached=False)


def _fit(
    model: nn.Module, dataset: data.Dataset, recipe: Recipe, device: str, show_progress: bool
) -> tuple[float, ...]:
    generator = torch.Generator().manual_seed(recipe.seed)
    images, labels = data.normalise(dataset.images).to(device), dataset.labels
    batches = math.ceil(len(labels) / recipe.batch_size)
    if recipe.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(
            model.parameters(), recipe.learning_rate, momentum=0.9, nesterov=True, weight_decay=recipe.weight_decay
        )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=max(2, recipe.epochs * batches)
    )
    losses: list[float] = []
    model.train()
    epochs = range(recipe.epochs)
    description = f"training {recipe.network} on {recipe.dataset}"
    for _ in reporting.steps(epochs, recipe.epochs, description) if show_progress else epochs:
        total = 0.0
        for indices in torch.randperm(len(labels), generator=generator).split(recipe.batch_size):
            inputs = images[indices.to(device)]
            if recipe.flips_and_crops:
                inputs = _flip_and_crop(inputs, generator)
            inputs, targets = _with_labels(inputs, labels[indices], dataset.classes, recipe, generator)
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(inputs), targets.to(device))
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(indices)
        losses.append(total / len(labels))
        if not math.isfinite(losses[-1]):
            raise GradleakError(
                f"training {recipe.network} on {recipe.dataset} diverged in epoch {len(losses)}: "
                f"lower the learning rate of {recipe.learning_rate:g}"
            )
    model.eval()
    return tuple(losses)


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
def _accuracy(model: nn.Module, dataset: data.Dataset, device: str) -> float:
    model.eval()
    right = 0
    for images, labels in zip(dataset.images.split(500), dataset.labels.split(500), strict=True):
        right += int((model(data.normalise(images).to(device)).argmax(dim=1).cpu() == labels).sum())
    return right / len(dataset)


# Return the cached content of a trained network, or None if the network has to be trained.
def cached_state(file: Path) -> dict[str, Any] | None:
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
