"""A batch peeled out of a residual network

Beyond wang2024, section 4.2: every image of a batch out of one averaged gradient of a ResNet18, layer by layer.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from gradleak import data, metrics, models, studies
from gradleak.images import Adam, match, peel
from gradleak.images.peeling.attack import counts_of
from gradleak.images.peeling.network import Network
from gradleak.leak import Leak, observe
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.defended import sent_behind
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.peeled import FACTOR, decibels, judged, layer_line, layers_of, short

PLACE = "Beyond section 4.2"
# Of an exact batch, the least PSNR in dB says how large the rounding errors are, and the ratio compares these with what
# the attack claims.
COLUMNS = {"least": kinds.rounding(decibels=True), "images_ratio": kinds.rounding(near=10.0)}
SMALLEST: dict[str, Any] = {}
NETWORK = "resnet18-cifar"
COUNTED = (1, 2, 4, 8, 16)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    sizes: list[int] = Field([1], description="batch sizes B")
    repeats: int = Field(1, ge=1, le=1000, description="batches a size, each with images and weights of its own")
    large: list[int] = Field([], description="further batch sizes, of one batch each")
    noises: list[float] = Field([1e-5], description="noise on single gradients: its standard deviation")
    matching: int = Field(2, ge=1, le=100_000, description="steps of gradient matching on one batch a size, to compare")
    classes: int = Field(100, ge=4, le=10_000, description="classes C of the network; images are given any")
    side: int = Field(16, ge=8, le=64, description="pixels a side that images are brought down to")
    steps: int = Field(50, ge=1, le=100_000, description="steps of the search in front of the last layer reached")
    dataset: str = Field("photos", description="private images, test split")

    paper: ClassVar[dict[str, Any]] = {
        "sizes": [1, 4],
        "repeats": 10,
        "noises": [1e-8, 1e-6],
        "matching": 200,
        "side": 32,
        "steps": 1200,
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees(NETWORK, self.dataset)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    sizes = ", ".join(map(str, parameters.sizes))
    return f"{parameters.repeats} batches a size, B = {sizes}, {data.title(parameters.dataset)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a batch each, peeled, peeled from noise, or matched."""
    device = studies.resolve_device(parameters.device)
    names = ("classes", "side", "dataset", "seed")
    common = {name: getattr(parameters, name) for name in names} | {"device": device}
    steps = {"steps": parameters.steps}
    batches = [(size, parameters.repeats) for size in parameters.sizes] + [(size, 1) for size in parameters.large]
    peeled = [
        {"part": "peeled", "size": size, "batch": batch} | steps | common
        for size, count in batches
        for batch in range(count)
    ]
    noisy = [{"part": "noise", "level": level} | steps | common for level in parameters.noises]
    rival = [{"part": "matched", "size": size, "steps": parameters.matching} | common for size in parameters.sizes]
    return peeled + noisy + rival


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Peel a batch, with or without noise, or match it; a row a batch, and one a layer that was reached."""
    return _peeled(**inputs) if part == "peeled" else _noisy(**inputs) if part == "noise" else _matched(**inputs)


def _private(
    size: int, batch: int, classes: int, side: int, dataset: str, seed: int, device: str
) -> tuple[Tensor, Tensor, Leak]:
    """Return a batch's images and inputs, and the leak of a network with weights of its own."""
    private = data.load(dataset, "test")
    generator = torch.Generator().manual_seed(seed + batch)
    images = private.images[torch.randperm(len(private), generator=generator)[:size]].double()
    images = F.adaptive_avg_pool2d(images, side)
    labels = torch.randint(classes, (size,), generator=generator)
    model = models.build(NETWORK, classes=classes, in_channels=images.shape[1], image_size=side, seed=seed + batch)
    inputs = data.normalise(images).to(device)
    return images, inputs, observe(model.to(device), inputs.float(), labels.to(device))


def _peeled(size: int, batch: int, steps: int, **which: Any) -> list[dict[str, Any]]:
    images, inputs, leak = _private(size, batch, **which)
    started, cpu = time.perf_counter(), time.process_time()
    found = peel(leak, steps=steps)
    row: dict[str, Any] = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    row |= judged(found, images, inputs)
    if batch == 0:
        restored = data.denormalise(found.images.cpu())
        row["picture"] = packed(torch.cat([images, restored[metrics.match_batch(restored, images)]]), size)
    return [row, *layers_of(leak.model, found, inputs)]


def _noisy(level: float, steps: int, **which: Any) -> list[dict[str, Any]]:
    images, inputs, clean = _private(1, 0, **which)
    leak = replace(clean, gradients=sent_behind("gaussian", level, clean.gradients, which["seed"]))
    rows = []
    for attacker, noise in (("unaware", 0.0), ("aware", level)):
        found = peel(leak, noise=noise, steps=steps)
        rows.append({"attacker": attacker} | judged(found, images, inputs))
    return rows


def _matched(size: int, steps: int, **which: Any) -> list[dict[str, Any]]:
    images, _, leak = _private(size, 0, **which)
    cpu = time.process_time()
    found = match(leak, distance="cosine", optimizer=Adam(steps=steps, signed=True), seed=which["seed"])
    seconds = time.process_time() - cpu
    restored = data.denormalise(found.images.cpu().double())
    order = metrics.match_batch(restored, images)
    psnr = metrics.psnr(restored[order], images)
    row = {"what": "batch", "cpu_seconds": seconds, "psnr": float(psnr.mean()), "least": float(psnr.min())}
    return [row | {"picture": packed(restored[order], size)}]


def table(record: Record) -> pd.DataFrame:
    """Return the batches by their size, matching beside them."""
    frame, rivals = record.part("peeled"), record.part("matched")
    lines = []
    for size, group in frame[frame["what"] == "batch"].groupby("size"):
        rival = rivals[rivals["size"] == size]
        lines.append(
            {
                "B": f"{size:.0f}",
                "n": len(group),
                "unique": f"{(group['status'] == 'unique').sum()}",
                "above 60 dB": f"{group['back'].sum():.0f}",
                "wrong": f"{group['silently'].sum():.0f}",
                "least dB": decibels(group["least"].min()),
                "CPU s": f"{group['cpu_seconds'].median():.0f}",
                "matching": decibels(rival["psnr"].mean()) if len(rival) else "–",
                "its CPU s": f"{rival['cpu_seconds'].mean():.0f}" if len(rival) else "–",
            }
        )
    return pd.DataFrame(lines)


def layer_table(record: Record) -> pd.DataFrame:
    """Return each layer by batch size: in how many batches its inputs were had, claimed and true errors."""
    frame = record.part("peeled")
    lines = []
    for (size, _, layer), group in frame[frame["what"] == "layer"].groupby(["size", "number", "layer"]):
        lines.append({"B": f"{size:.0f}"} | layer_line(str(layer), group))
    return pd.DataFrame(lines)


def noise_table(record: Record) -> pd.DataFrame:
    """Return how deep a single sample is peeled out of a gradient with noise."""
    lines = []
    for level, group in record.part("noise").groupby("level"):
        own = group.set_index("attacker")
        line: dict[str, Any] = {"noise": f"{level:.0e}"}
        for attacker in ("unaware", "aware"):
            row = own.loc[attacker]
            line |= {f"{attacker} says": row["status"], f"layers, {attacker}": f"{row['layers']:.0f}"}
            line[f"PSNR, {attacker}"] = decibels(row["least"])
        lines.append(line)
    return pd.DataFrame(lines)


def counts_table() -> pd.DataFrame:
    """Return where each network's count ends the way down, a line for each batch size from which it is elsewhere."""
    lines, side = [], 32
    for name, label in (
        ("resnet18-cifar", "ResNet18, CIFAR form"),
        ("resnet18", "ResNet18, 7×7 stem"),
        ("resnet20", "ResNet20"),
        ("resnet50-cifar", "ResNet50, CIFAR form"),
    ):
        model, before = models.build(name, classes=100, image_size=side).to("meta"), ""
        network = Network(model, (3, side, side))
        for size in COUNTED:
            stops = next(count for count in counts_of(network, size) if count.reason)
            if stops.name != before:
                where = short(stops.name)
                lines.append({"network": label, "from B": f"{size}", "gives up at": where, "because": stops.reason})
            before = stops.name
    return pd.DataFrame(lines)


def figure_batch(record: Record) -> Figure:
    """Draw the first batch of the largest repeated size: private, peeled, and matched."""
    frame, size = record.frame(), record.part("matched")["size"].max()
    frame = frame[frame["picture"].notna()]
    own = frame[frame["size"] == size].set_index("part")["picture"]
    figure, axes = figures.panels(1, 1, height=3.4)
    show(axes[0][0], [own["peeled"], own["matched"]], ["private", "peeled", "matching"])
    return figure


def figure_layers(record: Record) -> Figure:
    """Draw claimed against true errors of every layer's inputs, all batches."""
    frame = record.part("peeled")
    frame = frame[(frame["what"] == "layer") & (frame["reason"] == "")]
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    for index, (size, group) in enumerate(frame.groupby("size")):
        axis.scatter(group["off"], group["claimed"], s=12, color=figures.COLOURS[index], label=f"B = {size:.0f}")
    ends = [frame[["off", "claimed"]].min().min() / 3, frame[["off", "claimed"]].max().max() * 3]
    axis.plot(ends, ends, color=figures.TRUTH, linewidth=1.2)
    for factor in (FACTOR, 1 / FACTOR):
        axis.plot(ends, [end * factor for end in ends], color=figures.TRUTH, linewidth=0.8, linestyle=(0, (4, 2)))
    axis.set(
        xscale="log", yscale="log", xlabel="true error of a layer's inputs", ylabel="claimed", xlim=ends, ylim=ends
    )
    figures.legend_below(figure, 3)
    return figure
