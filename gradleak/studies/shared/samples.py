"""The client's side of a study: private samples, and true values that only the metrics use."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from gradleak import augment, data
from gradleak.devices import in_chunks
from gradleak.errors import unknown
from gradleak.labels import LabelPath, label_path
from gradleak.leak import HeadLeaks, observe_heads
from gradleak.studies import Columns

DTYPES = {"float32": torch.float32, "float64": torch.float64}
LABELS = ("smoothing", "mixup", "onehot")
POOL = 100


def random_layer(
    classes: int, features: int, samples: int, spread: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return a random last layer (C, I) and nonnegative features (N, I).

    Args:
        classes: The number of classes C.
        features: The number of features I.
        samples: The number of samples N.
        spread: The standard deviation of each sample's logits.
        generator: The source of randomness.
    """
    weight = torch.randn(classes, features, generator=generator, dtype=torch.float64)
    hidden = torch.randn(samples, features, generator=generator, dtype=torch.float64).relu()
    return weight, hidden / (hidden @ weight.T).std(dim=1, keepdim=True).clamp(min=1e-12) * spread


def soft_labels(labels: str, first: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Return soft labels (N, C) in float64 as wang2024 draws them, for samples of the classes `first` (N,).

    Smoothing has ε ~ U(0, 0.5). Mixup adds another class, with λ ~ U(0, 1).
    """
    share = torch.rand(len(first), generator=generator, dtype=torch.float64)
    if labels == "smoothing":
        return augment.smooth(first, classes, share / 2)
    hot = augment.one_hot(first, classes).double()
    if labels == "onehot":
        return hot
    if labels == "mixup":
        second = (first + torch.randint(1, classes, (len(first),), generator=generator)) % classes
        return share[:, None] * hot + (1 - share[:, None]) * augment.one_hot(second, classes)
    raise unknown("kind of label", labels, LABELS)


def private_samples(dataset: data.Dataset, labels: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return private inputs (N, C, H, W), normalised, and their labels (N, classes) as wang2024 makes them.

    Images are drawn with replacement. Mixup mixes the images of two classes as well. The labels are in float64, so that
    they are the same for clients of either precision.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(dataset), (count,), generator=generator)
    inputs, classes = data.normalise(dataset.images[chosen]), dataset.labels[chosen]
    if labels == "mixup":
        return augment.mixup(inputs, augment.one_hot(classes, dataset.classes).double(), generator=generator)
    return inputs, soft_labels(labels, classes, dataset.classes, generator)


def pooled_samples(dataset: data.Dataset, labels: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return private inputs and labels from one pool: a smaller `count` gives the first samples of a larger one."""
    inputs, targets = private_samples(dataset, labels, max(POOL, count), seed)
    return inputs[:count], targets[:count]


def observe_private(
    model: nn.Module, inputs: Tensor, targets: Tensor, dtype: str, device: str
) -> tuple[HeadLeaks, Tensor]:
    """Return the last-layer gradients of N clients with one sample each, and their true errors p − y (N, C)."""
    model = model.to(device, DTYPES[dtype])
    inputs, targets = inputs.to(device, DTYPES[dtype]), targets.to(device, DTYPES[dtype])
    leaks = observe_heads(model, inputs, targets)
    with torch.no_grad():
        # In float64 the subtraction loses few digits, so that the truth is more precise than the recovered values.
        parts = in_chunks(len(inputs), 250, lambda part: model.double()(inputs[part].double()).softmax(dim=1))
        errors = torch.cat(list(parts))
    return leaks, errors - targets.double()


def reduced(leaks: HeadLeaks, errors: Tensor, *, exact: bool = True) -> tuple[LabelPath, Tensor]:
    """Return the label paths of the leaks and the true scalars λ* = 1 / (p_r − y_r), (N,).

    `exact` means float64 arithmetic over all columns; otherwise one column is used in the gradient's precision, as in
    the paper.
    """
    path = label_path(
        leaks.weight_gradients,
        leaks.weight,
        bias=leaks.bias,
        columns="all" if exact else "one",
        dtype=torch.float64 if exact else None,
    )
    return path, 1 / errors.gather(1, path.row[:, None])[:, 0]


def inputs_of(kind: type[nn.Module], model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Return the inputs of a model's modules of one kind, by name, in the order of the run; no attack sees them."""
    own, seen = copy.deepcopy(model), dict[str, Tensor]()
    for name, module in own.named_modules():
        if isinstance(module, kind):
            module.register_forward_hook(lambda _m, args, _o, name=name: seen.__setitem__(name, args[0]))
    with torch.no_grad():
        own(inputs)
    return seen


def written(path: LabelPath) -> Columns:
    """Return the part of one sample's label path that a record keeps: all that is needed to compute its labels."""
    return {"logits": path.logits[0].tolist(), "ratios": path.ratios[0].tolist()}


def read(logits: list[float], ratios: list[float]) -> LabelPath:
    """Return the label path that a row holds, without its direction."""
    path = [torch.tensor([values], dtype=torch.float64) for values in (logits, ratios)]
    return LabelPath(path[0].new_zeros(1, 0), path[0], path[1], None, torch.zeros(1, dtype=torch.long))
