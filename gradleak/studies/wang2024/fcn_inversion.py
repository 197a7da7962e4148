"""Images from a fully connected network

wang2024, section 4.2, Figures 3 to 5, Table 6: one image at a time, in closed form, and what the last digits depend on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import data, defenses, metrics, models, studies
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.images import LBFGS, Adam, Inversion, match, trace_fully_connected
from gradleak.leak import observe
from gradleak.studies.fitting import Sees
from gradleak.studies.shared.defended import Defence, defended_trials, defense_cells, sent_behind
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.restored import clock, quality
from gradleak.studies.shared.samples import DTYPES, pooled_samples

PLACE = "Figures 3–5, Table 6"
SMALLEST: dict[str, Any] = {}
SIZE = 64
LABELS = ("smoothing", "mixup")
VARIANTS = {"ours": "least-squares", "mean over rows": "mean", "as published": "published"}
# The settings of the paper's comparison, but for the number of steps.
RATES = {"l2": 0.3, "cosine": 0.02}
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    "clip": (0.5,),
    "quantize": (16, 8),
    "half": (16,),
}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    samples: int = Field(1, ge=1, le=100_000, description="single images a kind of label, float32 gradients")
    doubles: int = Field(1, ge=1, le=100_000, description="of these, how many are observed in float64 as well")
    compared: int = Field(0, ge=0, le=1000, description="of these, how many gradient matching is run on")
    l2_steps: int = Field(1, ge=1, le=100_000, description="L-BFGS steps of L2 matching, 20 gradients each")
    cosine_steps: int = Field(1, ge=1, le=100_000, description="Adam steps of cosine matching")
    defended: int = Field(1, ge=1, le=1000, description="images a defence is tried on")
    defenses: list[Defence] = Field(["clip"], min_length=1, description="defences that are tried on them")
    dataset: str = Field("photos", description="private images, test split, at 64 pixels")

    paper: ClassVar[dict[str, Any]] = {
        "samples": 100,
        "doubles": 20,
        "compared": 1,
        "l2_steps": 20,
        "cosine_steps": 400,
        "defended": 10,
        "defenses": list(DEFENSES),
        "dataset": "flowers17",
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees("fcn4", self.dataset, size=SIZE)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.samples} images a kind of label, {data.title(parameters.dataset)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial."""
    device = studies.resolve_device(parameters.device)
    common = {"dataset": parameters.dataset, "seed": parameters.seed, "device": device}
    closed = [
        {"part": "closed", "labels": labels, "dtype": dtype, "samples": count} | common
        for labels in LABELS
        for dtype, count in (("float32", parameters.samples), ("float64", min(parameters.doubles, parameters.samples)))
    ]
    steps = {"l2": parameters.l2_steps, "cosine": parameters.cosine_steps}
    compared = [
        {"part": "matching", "distance": distance, "steps": count, "samples": parameters.compared} | common
        for distance, count in steps.items()
        if parameters.compared
    ]
    defended = defended_trials(
        {name: DEFENSES[name] for name in parameters.defenses}, samples=parameters.defended, **common
    )
    return closed + compared + defended


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Invert images in closed form, match their gradients, or defend them; a row an image and variant."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]]
    parts = {"closed": _closed, "matching": _matching, "defense": _defended}
    return parts[part](**inputs)


def _private(dataset: str, labels: str, samples: int, seed: int) -> tuple[Tensor, Tensor, int]:
    private = data.load(dataset, "test", size=SIZE)
    return *pooled_samples(private, labels, samples, seed), private.classes


def _closed(labels: str, dtype: str, samples: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    inputs, targets, classes = _private(dataset, labels, samples, seed)
    model = models.build("fcn4", classes=classes, image_size=SIZE, seed=seed).to(device, DTYPES[dtype])
    variants = VARIANTS if dtype == "float32" else {"ours": "least-squares"}
    rows, restored, now = [], [], clock(device)
    for n in range(samples):
        sent = inputs[n : n + 1].to(device, DTYPES[dtype])
        leak = observe(model, sent, targets[n : n + 1].to(device, DTYPES[dtype]))
        truth = data.denormalise(sent.double()).cpu()
        for name, rule in variants.items():
            started = now()
            found = trace_fully_connected(leak, prior=labels, rule=rule)  # type: ignore[arg-type]
            seconds = now() - started
            image = _image(found)
            rows.append({"image": n, "variant": name, "seconds": seconds, "status": found.status} | judge(image, truth))
            if name == "ours":
                restored.append(image)
    if dtype == "float32":
        rows.append({"variant": "picture", "picture": packed(torch.cat(restored), min(20, samples))})
    return rows


def _image(found: Inversion) -> Tensor:
    return data.denormalise(found.inputs.cpu().reshape(1, 3, SIZE, SIZE))


def judge(image: Tensor, truth: Tensor) -> dict[str, Any]:
    """Return how near an image (1, C, H, W) is to the truth, by all measures; NaN counts as lost."""
    return quality(image, truth.clamp(0, 1))[0]


def _matching(distance: str, steps: int, samples: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    inputs, targets, classes = _private(dataset, "smoothing", samples, seed)
    model = models.build("fcn4", classes=classes, image_size=SIZE, seed=seed).to(device)
    optimizer = (
        LBFGS(steps=steps, rate=RATES["l2"], search=False)
        if distance == "l2"
        else Adam(steps=steps, rate=RATES["cosine"], decay=())
    )
    rows, images, now = [], [], clock(device)
    for n in range(samples):
        sent, target = inputs[n : n + 1].to(device), targets[n : n + 1].to(device)
        leak = observe(model, sent, target)
        started = now()
        found = match(leak, target, distance=distance, optimizer=optimizer, seed=seed + n)  # type: ignore[arg-type]
        seconds = now() - started
        image = data.denormalise(found.images.double()).cpu()
        images.append(image)
        truth = data.denormalise(sent.double()).cpu()
        rows.append({"image": n, "seconds": seconds, "status": "matched"} | judge(image, truth))
    return [*rows, {"picture": packed(torch.cat(images), samples)}]


def _defended(defense: str, level: float, samples: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    inputs, targets, classes = _private(dataset, "smoothing", samples, seed)
    model = models.build("fcn4", classes=classes, image_size=SIZE, seed=seed).to(device)
    rows = []
    for n in range(samples):
        sent, target = inputs[n : n + 1].to(device), targets[n : n + 1].to(device)
        clean = observe(model, sent, target)
        leak = replace(clean, gradients=sent_behind(defense, level, clean.gradients, seed + n))
        utility = defenses.utility(clean.gradients, leak.gradients)
        truth = data.denormalise(sent.double()).cpu()
        for attacker, noise in (("unaware", 0.0), ("aware", None)):
            found = trace_fully_connected(leak, noise=noise)
            image = _image(found)
            row = {"image": n, "attacker": attacker, "status": found.status, "utility": utility}
            rows.append(row | {"psnr": float(metrics.psnr(image, truth.clamp(0, 1)))})
    return rows


def table(record: Record) -> pd.DataFrame:
    """Return Table 6, a line a kind of label, precision and variant of the recursion."""
    frame = record.frame()
    frame = frame[(frame["part"] == "closed") & (frame["variant"] != "picture")]
    lines = []
    for (labels, dtype, variant), group in frame.groupby(["labels", "dtype", "variant"], sort=False):
        lpips = group["lpips"].astype(float)
        lines.append(
            {
                "labels": labels,
                "gradients": dtype,
                "recursion": variant,
                "n": len(group),
                "PSNR": f"{group['psnr'].mean():.1f}" + (f" ± {group['psnr'].std():.1f}" if len(group) > 1 else ""),
                "least": f"{group['psnr'].min():.1f}",
                "8-bit PSNR": _short(group["eight_bit"].replace(float("inf"), float("nan"))),
                "SSIM": f"{group['ssim'].mean():.4f}",
                "LPIPS": "n/a" if lpips.isna().all() else f"{lpips.mean():.1e}",
                "ms": f"{1e3 * group['seconds'].median():.0f}",
            }
        )
    return pd.DataFrame(lines)


def _short(values: pd.Series[float]) -> str:
    return "–" if values.isna().all() else f"{values.mean():.1f}"


def comparison_table(record: Record) -> pd.DataFrame:
    """Return Figure 3's numbers: matching and the closed form on the same images."""
    frame = record.frame()
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, "distance", "steps"])))
    matching = frame[(frame["part"] == "matching") & frame["image"].notna()]
    lines = []
    for (distance, steps), group in matching.groupby(["distance", "steps"], sort=False):
        lines.append(_line(f"matching, {distance}, {steps:.0f} steps", group))
    closed = frame[(frame["part"] == "closed") & (frame["dtype"] == "float32") & (frame["labels"] == "smoothing")]
    closed = closed[closed["variant"] == "ours"]
    if len(matching):
        closed = closed[closed["image"].isin(matching["image"])]
    return pd.DataFrame([*lines, _line("closed form", closed)])


def _line(name: str, group: pd.DataFrame) -> dict[str, Any]:
    return {
        "attack": name,
        "n": len(group),
        "mean PSNR": f"{group['psnr'].mean():.1f}",
        "8-bit PSNR": _short(group["eight_bit"].replace(float("inf"), float("nan"))),
        "seconds an image": f"{group['seconds'].mean():.3g}",
    }


def defense_table(record: Record) -> pd.DataFrame:
    """Return what defences leave of the image, and of the gradient."""
    frame = record.frame()
    frame = frame[frame["part"] == "defense"]
    lines = []
    for (defense, level), group in frame.groupby(["defense", "level"], sort=False):
        own = {name: part["psnr"] for name, part in group.groupby("attacker")}
        lines.append(
            {
                **defense_cells(defense, level),
                "cosine": f"{group['utility'].mean():.4f}",
                "unaware: refused": f"{100 * own['unaware'].eq(-float('inf')).mean():.0f} %",
                "aware: median PSNR": "lost"
                if own["aware"].median() == -float("inf")
                else f"{own['aware'].median():.1f}",
            }
        )
    return pd.DataFrame(lines)


def figure_mosaic(record: Record, labels: str) -> Figure:
    """Redraw Figure 4 (smoothing) or 5 (mixup): every restored image."""
    frame = record.frame()
    picture = frame[(frame["variant"] == "picture") & (frame["labels"] == labels)]["picture"].iloc[0]
    count = int(frame[(frame["variant"] == "picture") & (frame["labels"] == labels)]["samples"].iloc[0])
    rows = -(-count // 20)
    figure, axes = figures.panels(1, 1, height=max(1.0, 8.4 * rows / min(20, count)))
    show(axes[0][0], picture)
    return figure


def figure_digits(record: Record) -> Figure:
    """Draw the PSNR of every image, by what it is measured on: numbers, or 8-bit pixels as the paper's code does."""
    frame = record.frame()
    frame = frame[(frame["part"] == "closed") & frame["image"].notna() & (frame["dtype"] == "float32")]
    own = {"psnr": "as numbers", "eight_bit": "as truncated 8-bit pixels"}
    long = frame.melt(["labels", "variant"], list(own), "column", "PSNR, dB").replace({"column": own})
    # Where truncation finds every pixel equal there is no finite figure.
    long["PSNR, dB"] = long["PSNR, dB"].astype(float).replace([math.inf, -math.inf], math.nan)
    figure, axes = figures.panels(1, 2, height=3.3, sharey=True)
    palette = [figures.COLOURS[2], figures.COLOURS[1]]
    for axis, labels in zip(axes[0], LABELS, strict=True):
        sns.boxenplot(
            long[long["labels"] == labels].dropna(), x="variant", y="PSNR, dB", hue="column", ax=axis,
            order=list(VARIANTS), hue_order=list(own.values()), palette=palette, width=0.7, gap=0.15, showfliers=False,
        )  # fmt: skip
        axis.set(title=labels, xlabel="")
        axis.get_legend().remove()
    figures.legend_below(figure, 2)
    return figure
