"""A whole batch of images, exactly

Beyond wang2024, section 4.2: every image of a batch out of one averaged gradient of a fully connected network.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, ClassVar, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data, defenses, metrics, models, studies
from gradleak.book import figures, kinds
from gradleak.book.records import Record
from gradleak.images import bias_attack, spear, trace_fully_connected
from gradleak.leak import Leak, observe
from gradleak.studies.fitting import Sees
from gradleak.studies.shared.defended import Defence, defended_trials, defense_cells, sent_behind
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.samples import DTYPES, soft_labels

PLACE = "Beyond section 4.2"
# Of an exact batch, the least PSNR in dB says how large the rounding errors are.
COLUMNS = {"least": kinds.rounding(decibels=True)}
SMALLEST: dict[str, Any] = {}
SIZE = 64
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-9, 1e-8, 1e-7, 1e-6, 1e-5),
    "clip": (0.5,),
    "quantize": (16,),
    "half": (16,),
}
ATTACKS = ("closed form", "bias attack")
# Beside SPEAR: pixels a side, units and classes of a network of two layers, and draws at most.
NARROW, WIDTH, MANY, DRAWS = 16, 400, 100, 200_000


class Parameters(studies.Parameters):
    """What a rerun may change."""

    sizes: list[int] = Field([2], description="batch sizes B")
    repeats: int = Field(1, ge=1, le=1000, description="batches a size and precision")
    precisions: list[str] = Field(["float32"], description="what gradients are computed in")
    classes: int = Field(20, ge=4, le=10_000, description="classes C of the network; images are given any")
    shown: int = Field(2, ge=1, le=256, description="the batch size that is shown and defended; one of sizes")
    defenses: list[Defence] = Field(["quantize"], min_length=1, description="defences that are tried on that batch")
    dataset: str = Field("photos", description="private images, test split, at 64 pixels")

    paper: ClassVar[dict[str, Any]] = {
        "sizes": [1, 2, 4, 8, 16, 24, 32, 40, 44, 48],
        "repeats": 10,
        "precisions": list(DTYPES),
        "classes": 100,
        "shown": 16,
        "defenses": list(DEFENSES),
        "dataset": "flowers17",
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees("fcn4", self.dataset, size=SIZE, channels=3)]

    @model_validator(mode="after")
    def _shown_is_one_of_the_sizes(self) -> Self:
        if self.shown not in self.sizes:
            raise ValueError(f"'shown' must be one of the sizes; got {self.shown} and {self.sizes}")
        return self


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    sizes = sorted(parameters.sizes)
    return f"{parameters.repeats} batches a size, B from {sizes[0]} to {sizes[-1]}, {data.title(parameters.dataset)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a batch size and precision each, and the defences."""
    device = studies.resolve_device(parameters.device)
    names = ("classes", "dataset", "seed")
    common = {name: getattr(parameters, name) for name in names} | {"device": device}
    closed = [
        {
            "part": "closed",
            "size": size,
            "dtype": dtype,
            "repeats": parameters.repeats,
            "shown": size == parameters.shown,
        }
        | common
        for size in parameters.sizes
        for dtype in parameters.precisions
    ]
    defended = defended_trials({name: DEFENSES[name] for name in parameters.defenses}, size=parameters.shown, **common)
    return closed + defended


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Invert batches, or defend one; a row a batch and attack."""
    return _closed(**inputs) if part == "closed" else _defended(**inputs)


def _private(dataset: str, classes: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    private = data.load(dataset, "test", size=SIZE)
    generator = torch.Generator().manual_seed(seed)
    images = private.images[torch.randperm(len(private), generator=generator)[:size]].double()
    chosen = torch.randint(classes, (size,), generator=generator)
    return images, soft_labels("smoothing", chosen, classes, generator)


def _network(classes: int, bias: bool, dtype: str, seed: int, device: str) -> nn.Module:
    return models.build("fcn4", classes=classes, bias=bias, image_size=SIZE, seed=seed).to(device, DTYPES[dtype])


def _leak(model: nn.Module, images: Tensor, labels: Tensor) -> Leak:
    weight = next(model.parameters())
    return observe(model, data.normalise(images).to(weight), labels.to(weight))


def _closed(
    size: int, dtype: str, repeats: int, shown: bool, classes: int, dataset: str, seed: int, device: str
) -> list[dict[str, Any]]:
    model, rows = _network(classes, False, dtype, seed, device), []
    biased = _network(classes, True, dtype, seed, device)
    for n in range(repeats):
        images, labels = _private(dataset, classes, size, seed + n)
        leak = _leak(model, images, labels)
        started = time.perf_counter()
        found = trace_fully_connected(leak)
        seconds = time.perf_counter() - started
        restored = data.denormalise(found.inputs.cpu().reshape(images.shape))
        row = {"batch": n, "attack": "closed form", "seconds": seconds, "status": found.status, "reason": found.reason}
        row |= {"exact": found.status == "exact"}
        rows.append(row | judge(restored, images))
        started = time.perf_counter()
        best = nearest(bias_attack(_leak(biased, images, labels)), data.normalise(images).flatten(1))
        seconds = time.perf_counter() - started
        units = data.denormalise(best.cpu().reshape(images.shape))
        rows.append(
            {"batch": n, "attack": "bias attack", "seconds": seconds, "status": "best unit"} | judge(units, images)
        )
        if shown and n == 0 and dtype == "float32":
            order = metrics.match_batch(restored, images)
            strip = torch.cat([images, units, restored[order]])
            rows.append({"picture": packed(strip, size)})
    return rows


def nearest(said: Tensor, truth: Tensor) -> Tensor:
    """Return, for each true input (B, D), what the nearest unit (O, D) says: a choice no attacker has."""
    said = said[said.isfinite().all(dim=1)]
    return said[torch.cdist(truth.to(said), said).argmin(dim=1)]


def judge(restored: Tensor, images: Tensor) -> dict[str, Any]:
    """Return how near a batch is to the truth in its best order."""
    order = metrics.match_batch(restored, images)
    psnr, lost = metrics.psnr(restored[order], images), ~restored.isfinite().flatten(1).all(dim=1)
    return {
        "images": len(images),
        "psnr": float(psnr.mean()),
        "least": float(psnr.min()),
        "ssim": float(metrics.ssim(restored[order], images).mean()),
        "over_40": 100 * float((psnr > 40).double().mean()),
        "lost": int(lost.sum()),
    }


def _defended(
    defense: str, level: float, size: int, classes: int, dataset: str, seed: int, device: str
) -> list[dict[str, Any]]:
    model = _network(classes, False, "float32", seed, device)
    images, labels = _private(dataset, classes, size, seed)
    clean = _leak(model, images, labels)
    sent = replace(clean, gradients=sent_behind(defense, level, clean.gradients, seed))
    utility = defenses.utility(clean.gradients, sent.gradients)
    rows = []
    for attacker, noise in (("unaware", 0.0), ("aware", None)):
        found = trace_fully_connected(sent, noise=noise)
        restored = data.denormalise(found.inputs.cpu().reshape(images.shape))
        row = {"attacker": attacker, "status": found.status, "utility": utility}
        rows.append(row | judge(restored, images))
    return rows


def table(record: Record) -> pd.DataFrame:
    """Return the batches by their size, a line a size and precision, the bias attack beside the closed form."""
    frame = record.frame()
    frame = frame[(frame["part"] == "closed") & frame["attack"].notna()]
    lines = []
    for (size, dtype), group in frame.groupby(["size", "dtype"], sort=False):
        own, other = (group[group["attack"] == name] for name in ATTACKS)
        lines.append(
            {
                "B": f"{size}",
                "gradients": dtype,
                "batches": len(own),
                "exact": f"{own['exact'].sum():.0f}",
                "mean PSNR": _decibels(own["psnr"].mean()),
                "least": _decibels(own["least"].min()),
                "seconds": f"{own['seconds'].median():.2g}",
                "bias attack: PSNR": _decibels(other["psnr"].mean()),
                "over 40 dB": f"{other['over_40'].mean():.0f} %",
            }
        )
    return pd.DataFrame(lines)


def _decibels(value: float) -> str:
    return "lost" if value == -float("inf") else f"{value:.1f}"


def defense_table(record: Record) -> pd.DataFrame:
    """Return what defences leave of one batch, and of its gradient."""
    frame = record.frame()
    frame = frame[frame["part"] == "defense"]
    lines = []
    for (defense, level), group in frame.groupby(["defense", "level"], sort=False):
        own = group.set_index("attacker")
        lines.append(
            {
                **defense_cells(defense, level),
                "cosine": f"{group['utility'].mean():.5f}",
                "unaware says": own["status"]["unaware"],
                "PSNR": _decibels(own["psnr"]["unaware"]),
                "aware says": own["status"]["aware"],
                "its PSNR": _decibels(own["psnr"]["aware"]),
            }
        )
    return pd.DataFrame(lines)


def beside_spear(sizes: list[int], dataset: str, seed: int) -> pd.DataFrame:
    """Run SPEAR's core and the closed form here and now on one batch a size: two layers, the first with a bias."""
    lines = []
    for size in sizes:
        private = data.load(dataset, "test", size=SIZE)
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(private), generator=generator)[:size]
        images = F.adaptive_avg_pool2d(private.images[chosen], NARROW)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            first = nn.Linear(images[0].numel(), WIDTH)
            model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(WIDTH, MANY, bias=False))
        leak = observe(model, data.normalise(images), torch.randint(MANY, (size,), generator=generator))
        line: dict[str, Any] = {"B": f"{size}", "of 2ᴮ⁻¹": f"{2 ** (size - 1):,}"}
        started = time.process_time()
        sent = leak.gradients["1.weight"], leak.gradients["1.bias"]
        drawn = spear(first.weight, first.bias, *sent, size, draws=DRAWS, seed=seed)
        line |= {"SPEAR: draws": f"{drawn.draws:,}", "CPU s": f"{time.process_time() - started:.2f}"}
        line["least dB"] = "lost" if drawn.inputs is None else _least(drawn.inputs, images)
        started = time.process_time()
        closed = trace_fully_connected(leak)
        line["closed form: CPU s"] = f"{time.process_time() - started:.2f}"
        lines.append(line | {"its least dB": _least(closed.inputs, images)})
    return pd.DataFrame(lines)


def _least(inputs: Tensor, images: Tensor) -> str:
    return _decibels(judge(data.denormalise(inputs.reshape(images.shape)), images.double())["least"])


def figure_batch(record: Record) -> Figure:
    """Draw one batch: the private images, the bias attack's best units, and the closed form."""
    frame = record.frame()
    row = frame[frame["picture"].notna()].iloc[0]
    count = int(row["size"])
    figure, axes = figures.panels(1, 1, height=min(3.6, max(1.2, 8.4 * 3 / count)))
    show(axes[0][0], row["picture"], ["private", "bias attack", "closed form"])
    return figure


def figure_sizes(record: Record) -> Figure:
    """Draw PSNR against batch size for both attacks, up to where the equations run out."""
    frame = record.frame()
    frame = frame[(frame["part"] == "closed") & frame["attack"].notna()]
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    for index, dtype in enumerate(dict.fromkeys(frame["dtype"])):
        own = frame[(frame["attack"] == "closed form") & (frame["dtype"] == dtype) & (frame["psnr"] > -float("inf"))]
        mean, least = own.groupby("size")["psnr"].mean(), own.groupby("size")["least"].min()
        axis.plot(mean.index, mean, marker="o", color=figures.COLOURS[2 * index], label=f"closed form, {dtype}")
        axis.fill_between(mean.index, least, mean, color=figures.COLOURS[2 * index], alpha=0.18)
    other = frame[(frame["attack"] == "bias attack") & (frame["dtype"] == "float32")].groupby("size")["psnr"].mean()
    axis.plot(
        other.index, other, marker="x", color=figures.COLOURS[1], linestyle=figures.DASHES[1], label="bias attack"
    )
    classes = int(record.parameters["classes"])
    axis.axvline((classes - 2) / 2, color=figures.TRUTH, linewidth=1.2, linestyle=(0, (4, 2)), label="B = (C − 2) / 2")
    axis.set(xlabel="batch size B", ylabel="mean PSNR, dB (shaded: least)", ylim=(0, None))
    figures.legend_below(figure, 4)
    return figure
