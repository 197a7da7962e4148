"""Audit your own model

Beyond the papers: every attack of this book that applies, on networks as anyone has them, behind the usual defences.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, field_validator

from gradleak import auditing, data, defenses, models, studies
from gradleak.auditing import bringing
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.errors import GradleakError, unknown

PLACE = "Beyond the papers"
SMALLEST: dict[str, Any] = {"model": ["lenet"], "defenses": ["none"], "batch_sizes": [2], "steps": 2}
MEASURES = ("labels", "features", "inputs", "image-psnr", "image-ssim")
# No trial is to be cut off by the clock: its record would depend on the machine.
MINUTES = 600.0


class Parameters(studies.Parameters):
    """What a rerun may change."""

    model: list[str] = Field(["lenet", "resnet20"], min_length=1, description="networks, or module:function")
    data: str = Field("photos", description="a dataset by its name")
    defenses: list[str] = Field(["none", "clip/1"], min_length=1, description="defences, as name/level")
    batch_sizes: list[int] = Field([1, 4], min_length=1, description="samples a batch")
    steps: int = Field(10, ge=1, description="steps of a search for inputs")

    paper: ClassVar[dict[str, Any]] = {
        "model": ["lenet", "fcn4", "torchvision.models:resnet18"],
        "defenses": ["none", "clip/1", "gaussian/0.01", "prune/0.9", "sign"],
        "steps": 100,
    }

    @field_validator("model")
    @classmethod
    def _networks(cls, names: list[str]) -> list[str]:
        for name in names:
            if ":" not in name and name not in models.names():
                raise ValueError(str(unknown("network", name, models.names())))
        return names

    @field_validator("defenses")
    @classmethod
    def _defences(cls, names: list[str]) -> list[str]:
        for name in names:
            try:
                defenses.named(name, generator=torch.Generator())
            except GradleakError as error:
                raise ValueError(str(error)) from error
        return names

    @field_validator("data")
    @classmethod
    def _dataset(cls, name: str) -> str:
        if name not in data.names():
            raise ValueError(str(unknown("dataset", name, data.names())))
        return name

    @field_validator("batch_sizes")
    @classmethod
    def _sizes(cls, sizes: list[int]) -> list[int]:
        if any(size < 1 for size in sizes):
            raise ValueError("a batch has at least 1 sample")
        return sizes


def datasets(parameters: Parameters) -> list[str]:
    """Return the datasets that this page reads."""
    return [parameters.data]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return one trial for every network, defence and batch size."""
    common = {"data": parameters.data, "steps": parameters.steps, "seed": parameters.seed}
    common |= {"device": studies.resolve_device(parameters.device)}
    return [
        {"model": model, "defense": defense, "batch_size": size} | common
        for model in parameters.model
        for size in parameters.batch_sizes
        for defense in parameters.defenses
    ]


def trial(
    model: str, defense: str, batch_size: int, data: str, steps: int, seed: int, device: str
) -> list[dict[str, Any]]:
    """Audit one batch behind one defence: a row for what it costs, and a row an attack."""
    samples = bringing.samples_of(data)
    report = auditing.audit(
        bringing.model_of(model, seed=seed).to(device), samples.inputs.to(device), samples.targets.to(device),
        batch_sizes=(batch_size,), defenses=(defense,), pixels=samples.pixels, steps=steps, seed=seed, images=False,
        minutes=MINUTES,
    )  # fmt: skip
    place = {"model": model, "defense": defense, "batch_size": batch_size}
    costs = [place | {"attack": "", "cosine": one.cosine} for one in report.costs]
    rows = [
        place
        | {"attack": one.attack, "certificate": one.certificate}
        | {name: one.measures.get(name) for name in MEASURES}
        | {"deceived": one.certificate == "unique" and one.measures.get("labels", 1.0) < 1}
        for one in report.findings
    ]
    return costs + rows


def scale(parameters: Parameters) -> str:
    """Return in a few words what is run."""
    cells = len(parameters.model) * len(parameters.defenses) * len(parameters.batch_sizes)
    return f"{cells} audits, {data.title(parameters.data)}"


def short(model: str) -> str:
    """Return a network's name without its module."""
    return model.rpartition(":")[2]


def worst(record: Record) -> pd.DataFrame:
    """Return the most that any attack got of each measure, a row a network, batch size and defence, and its cosine."""
    frame = record.frame()
    keys = ["model", "batch_size", "defense"]
    return frame.groupby(keys, sort=False)[["cosine", *MEASURES]].max().reset_index()


def table(record: Record) -> pd.DataFrame:
    """Return the table of the worst, ready to be shown."""
    lines = []
    for row in worst(record).to_dict("records"):
        shares = {name: _share(row[name]) for name in ("labels", "features", "inputs")}
        images = {"PSNR, dB": _number(row["image-psnr"], ".1f"), "SSIM": _number(row["image-ssim"], ".2f")}
        place = {"network": short(str(row["model"])), "B": int(row["batch_size"]), "defence": row["defense"]}
        lines.append(place | {"cosine": _number(row["cosine"], ".2f")} | shares | images)
    return pd.DataFrame(lines)


def _share(value: float) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.0f} %"


def _number(value: float, form: str) -> str:
    return "–" if pd.isna(value) else format(value, form)


def certificates(record: Record) -> pd.DataFrame:
    """Return how often an attack's own word for its answer was said, and how often all labels were right then."""
    frame = record.frame()
    told = frame[frame["attack"].ne("") & frame["labels"].notna()]
    groups = told.groupby("certificate", sort=True)
    return pd.DataFrame(
        [
            {"word": word, "times": len(own), "all labels right": _share(float(own["labels"].eq(1).mean()))}
            for word, own in groups
        ]
    )


def figure_frontier(record: Record) -> Figure:
    """Draw what leaks against what the gradient is still worth, a point a defence and batch size."""
    frame = worst(record)
    names = list(dict.fromkeys(frame["model"]))
    figure, axes = figures.panels(2, len(names), height=2.7, sharex=True, sharey="row")
    for column, name in enumerate(names):
        own = frame[frame["model"] == name]
        for row, (measure, label) in enumerate((("labels", "labels found"), ("image-ssim", "SSIM of the best image"))):
            axis = axes[row][column]
            for index, (size, points) in enumerate(own.groupby("batch_size", sort=False)):
                axis.scatter(
                    points["cosine"], points[measure].astype(float), s=60 - 30 * (index % 2), label=f"B = {size}",
                    color=figures.COLOURS[index % 6], marker="osD^"[index % 4], zorder=3,
                )  # fmt: skip
            axis.set(ylim=(-0.08, 1.12), xlim=(-0.05, 1.08))
            if column == 0:
                axis.set_ylabel(label)
            if row == 0:
                axis.set_title(short(name))
            else:
                axis.set_xlabel("cosine with the true gradient")
    figures.legend_below(figure, 4)
    return figure
