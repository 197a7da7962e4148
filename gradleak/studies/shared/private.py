"""The client's side of a study: its private samples, and the truths that metrics may look at afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak import augment, data, defenses, metrics
from gradleak.errors import unknown
from gradleak.labels import LabelPath, label_path, recover_soft_labels
from gradleak.labels.soft.single import Solver
from gradleak.leak import Defense, Gradients, HeadLeaks, observe_heads

DTYPES = {"float32": torch.float32, "float64": torch.float64}
LABELS = ("smoothing", "mixup", "onehot")
# A label within this of the truth (L1) counts as recovered.
KNOWN = 1e-3
POOL = 100


def private_samples(dataset: data.Dataset, labels: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return private inputs (N, C, H, W), normalised, and their labels (N, classes) as wang2024 makes them.

    Images are drawn with replacement; smoothing ε ~ U(0, 0.5), mixup of two classes with λ ~ U(0, 1). The labels are in
    float64, so that they are what they are in either precision of the client.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(dataset), (count,), generator=generator)
    inputs, classes = data.normalise(dataset.images[chosen]), dataset.labels[chosen]
    if labels == "onehot":
        return inputs, augment.one_hot(classes, dataset.classes).double()
    if labels == "smoothing":
        epsilon = torch.rand(count, generator=generator, dtype=torch.float64) / 2
        return inputs, augment.smooth(classes, dataset.classes, epsilon)
    if labels == "mixup":
        return augment.mixup(inputs, augment.one_hot(classes, dataset.classes).double(), generator=generator)
    raise unknown("kind of label", labels, LABELS)


def observe_private(
    model: nn.Module, inputs: Tensor, targets: Tensor, dtype: str, device: str
) -> tuple[HeadLeaks, Tensor]:
    """Let N clients with one sample each send their last-layer gradients; return those and p − y (N, C), the truth."""
    model = model.to(device, DTYPES[dtype])
    inputs, targets = inputs.to(device, DTYPES[dtype]), targets.to(device, DTYPES[dtype])
    leaks = observe_heads(model, inputs, targets)
    with torch.no_grad():
        # In float64 the subtraction keeps its digits, so that the truth is truer than what it is compared with.
        errors = torch.cat([model.double()(part.double()).softmax(dim=1) for part in inputs.split(250)])
    return leaks, errors - targets.double()


def reduced(leaks: HeadLeaks, errors: Tensor, *, exact: bool = True) -> tuple[LabelPath, Tensor]:
    """Return the label paths of the leaks and the true scalars λ* = 1 / (p_r − y_r), (N,).

    `exact`: float64 arithmetic over all columns; otherwise one column in the gradient's precision, as in the paper.
    """
    path = label_path(
        leaks.weight_gradients,
        leaks.weight,
        bias=leaks.bias,
        columns="all" if exact else "one",
        dtype=torch.float64 if exact else None,
    )
    return path, 1 / errors.gather(1, path.row[:, None])[:, 0]


def pooled_samples(dataset: data.Dataset, labels: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return private inputs and labels, drawn from one pool: fewer samples are the first of more."""
    inputs, targets = private_samples(dataset, labels, max(POOL, count), seed)
    return inputs[:count], targets[:count]


def inputs_of(modules: Iterable[nn.Module], model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Return what modules of a model take in, in the order in which they run: truths that no attack is given."""
    seen: list[Tensor] = []
    handles = [module.register_forward_hook(lambda module, args, output: seen.append(args[0])) for module in modules]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def quality(images: Tensor, truth: Tensor) -> list[dict[str, Any]]:
    """Return how near each of N images (N, C, H, W) is to the truth, by all measures; what is not finite is lost."""
    distance = metrics.lpips(images, truth)
    columns = {
        "psnr": metrics.psnr(images, truth),
        "eight_bit": metrics.wrapped_psnr(images, truth),
        "ssim": metrics.ssim(images, truth),
    }
    rows: list[dict[str, Any]] = [
        {key: float(values[n]) for key, values in columns.items()} for n in range(len(images))
    ]
    for n, row in enumerate(rows):
        row["lpips"] = None if distance.values is None else float(distance.values[n])
    return rows


def defended_trials(levels: Mapping[str, Sequence[float]], **common: Any) -> list[dict[str, Any]]:
    """Return the inputs of the trials that try every defence at every level."""
    return [
        {"part": "defense", "defense": name, "level": float(level)} | common
        for name, own in levels.items()
        for level in own
    ]


def defense_cells(defense: Any, level: Any) -> dict[str, str]:
    """Return how a table names a defence and its strength."""
    if defense == "half":
        return {"defence": "float16 numbers", "strength": "–"}
    return {"defence": str(defense), "strength": f"{level:g}"}


def defender(name: str, level: float, clean: Gradients, seed: int) -> Defense:
    """Return a defence by its name: of clip the level is a share of the clean norm; half are numbers of 16 bits."""
    if name == "gaussian":
        return defenses.gaussian(level, torch.Generator().manual_seed(seed))
    if name == "clip":
        return defenses.clip(level * sum(float(value.double().square().sum()) for value in clean.values()) ** 0.5)
    if name == "quantize":
        return defenses.quantize(int(level))
    if name == "half":
        return lambda gradients: {key: value.half() for key, value in gradients.items()}
    raise unknown("defence", name, ("gaussian", "clip", "quantize", "half"))


@dataclass(frozen=True)
class Search:
    """What a published search found of N samples: scalars (N,), NaN where it found none; labels (N, C); its seconds."""

    scalars: Tensor
    labels: Tensor
    seconds: float

    @property
    def ended(self) -> Tensor:
        """Whether the search stopped by itself, (N,)."""
        return ~self.scalars.isnan()


def search(gradients: Tensor, weight: Tensor, prior: str, solver: Solver) -> Search:
    """Run one of the paper's algorithms on the CPU, as it was published."""
    started = time.perf_counter()
    found = recover_soft_labels(gradients.cpu(), weight.cpu(), prior=prior, solver=solver)
    return Search(found.scalars, found.labels, time.perf_counter() - started)


def search_both(gradients: Tensor, weight: Tensor, prior: str) -> tuple[Search, Search]:
    """Run Algorithm 1; and Algorithm 2 where it found nothing, as the paper does. Return the first alone, and both."""
    first = search(gradients, weight, prior, "lbfgs")
    lost = (~first.ended).nonzero()[:, 0]
    if len(lost) == 0:
        return first, first
    second = search(gradients.cpu()[lost], weight, prior, "pso")
    scalars, labels = first.scalars.clone(), first.labels.clone()
    scalars[lost], labels[lost] = second.scalars, second.labels
    return first, Search(scalars, labels, first.seconds + second.seconds)


def judged(labels: Tensor, status: Sequence[str], targets: Tensor) -> dict[str, Any]:
    """Return accuracy and statuses in percent, errors in L1; `silent` labels are wrong and not said to be."""
    errors = metrics.label_error(labels, targets.to(labels))
    right, unique = errors < KNOWN, torch.tensor([one == "unique" for one in status], device=labels.device)
    known = errors[unique] if unique.any() else errors.new_full((1,), torch.nan)
    return {
        "count": len(labels),
        "accuracy": 100 * float(right.double().mean()),
        **{name: 100 * status.count(name) / len(status) for name in ("unique", "ambiguous", "failed")},
        "silent": int((unique & ~right).sum()),
        "mean_error": float(known.mean()),
        "spread_error": float(known.std()) if len(known) > 1 else None,
        "median_error": float(known.median()),
        "largest_error": float(known.max()),
    }
