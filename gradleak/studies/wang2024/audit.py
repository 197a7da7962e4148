"""Audit your own model

Beyond the papers: every attack of this book that applies, on networks as anyone has them, behind the usual defences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, field_validator
from torch import Tensor

from gradleak import auditing, data, defenses, models, studies
from gradleak.auditing import bringing
from gradleak.errors import GradleakError, MissingData, unknown
from gradleak.leak import Leak
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.federation import Federation, digit_network

PLACE = "Beyond the papers"
SMALLEST: dict[str, Any] = {"model": ["lenet"], "defenses": ["none"], "batch_sizes": [2], "steps": 2, "rounds": [1]}
# What clients of federations and of DP-SGD have; the latter draw from so many.
DIGITS, PRIVATE = "digits", 500
MEASURES = ("labels", "features", "inputs", "image-psnr", "image-ssim")
# No trial is to be cut off by the clock: its record would depend on the machine.
MINUTES = 600.0


class Parameters(studies.Parameters):
    """What a rerun may change."""

    model: list[str] = Field(["lenet"], min_length=1, description="networks, or module:function")
    data: str = Field("photos", description="a dataset by its name")
    defenses: list[str] = Field(["none", "clip/1"], min_length=1, description="defences, as name/level")
    batch_sizes: list[int] = Field([1, 4], min_length=1, description="samples a batch")
    steps: int = Field(10, ge=1, description="steps of a search for inputs")
    rounds: list[int] = Field([10], description="rounds of a federation after which its clients are audited")
    clients: int = Field(2, ge=1, le=100, description="clients of the federation")
    noises: list[float] = Field([], description="DP-SGD's noise multipliers (needs gradleak[opacus])")
    draws: int = Field(1, ge=1, le=100, description="batches of DP-SGD a noise multiplier")

    paper: ClassVar[dict[str, Any]] = {
        "model": ["lenet", "fcn4", "torchvision.models:resnet18"],
        "defenses": ["none", "clip/1", "gaussian/0.01", "prune/0.9"],
        "steps": 100,
        "rounds": [1, 10, 100, 1000],
        "clients": 4,
        "noises": [0.0, 1e-4, 1e-2, 1.0],
        "draws": 5,
    }

    def sees(self) -> list[Sees]:
        """Return the networks, made as an audit makes them by name, and what they are shown."""
        own = [name for name in self.model if ":" not in name]
        return [Fixed(name, self.data, channels=3, side=32, classes=10) for name in own]

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

    @field_validator("rounds")
    @classmethod
    def _rounds(cls, rounds: list[int]) -> list[int]:
        if any(not 1 <= one <= 100_000 for one in rounds):
            raise ValueError("rounds are counted from 1")
        return rounds

    @field_validator("noises")
    @classmethod
    def _noises(cls, noises: list[float]) -> list[float]:
        if any(not 0 <= one < math.inf for one in noises):
            raise ValueError("a noise multiplier is at least 0")
        return noises


def datasets(parameters: Parameters) -> list[str]:
    """Return the datasets that this page reads."""
    others = bool(parameters.rounds or parameters.noises) and parameters.data != DIGITS
    return [parameters.data, *([DIGITS] if others else [])]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return one trial for every network, defence and batch size, every federation, and every noise of DP-SGD."""
    common = {"seed": parameters.seed, "device": studies.resolve_device(parameters.device)}
    audits = [
        {"part": "audit", "model": model, "defense": defense, "batch_size": size, "data": parameters.data}
        | {"steps": parameters.steps}
        for model in parameters.model
        for size in parameters.batch_sizes
        for defense in parameters.defenses
    ]
    precisions = ("float32", "float64") if parameters.rounds else ()
    federations = [
        {"part": "federation", "rounds": parameters.rounds, "clients": parameters.clients, "precision": precision}
        for precision in precisions
    ]
    private = [
        {"part": "dp-sgd", "noise": noise, "batch_size": size, "draws": parameters.draws}
        for noise in parameters.noises
        for size in parameters.batch_sizes
    ]
    return [one | common for one in (*audits, *federations, *private)]


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Audit a batch behind a defence, the clients of a federation as it trains, or clients of DP-SGD."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]] = {
        "audit": _audited,
        "federation": _federated,
        "dp-sgd": _private,
    }
    return [{"part": part} | row for row in parts[part](**inputs)]


def _audited(
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


def _federated(rounds: list[int], clients: int, precision: str, seed: int, device: str) -> list[dict[str, Any]]:
    """Audit every client of a federation after some of its rounds: a row a client and round."""
    federation = Federation.of(clients, getattr(torch, precision), seed, device)
    rows = []
    for number in range(1, max(rounds) + 1):
        sent = federation.round()
        if number in rounds:
            accuracy = federation.accuracy()
            for client, update in enumerate(sent):
                report = _update(update.leak, update.inputs, update.targets, seed)
                rows.append({"precision": precision, "round": number, "client": client, "accuracy": accuracy} | report)
    return rows


def _private(noise: float, batch_size: int, draws: int, seed: int, device: str) -> list[dict[str, Any]]:
    """Audit what a client sends that trains with DP-SGD by Opacus: a row a batch that it draws."""
    try:
        from gradleak.auditing.opacus import private_update
    except ImportError as error:
        raise MissingData("DP-SGD's updates are Opacus's: `pip install gradleak[opacus]`") from error
    own = data.load(DIGITS, "train")
    inputs, targets = own.images[:PRIVATE].to(device), own.labels[:PRIVATE].to(device)
    rows = []
    for draw in range(draws):
        update = private_update(
            digit_network(seed).to(device), inputs, targets, batch_size=batch_size, noise_multiplier=noise,
            seed=seed + draw,
        )  # fmt: skip
        drawn = update.drawn.to(device)
        report = _update(update.leak, inputs[drawn], targets[drawn], seed, update.defense)
        epsilon = update.epsilon if math.isfinite(update.epsilon) else None
        rows.append({"noise": noise, "batch_size": batch_size, "drawn": len(drawn), "epsilon": epsilon} | report)
    return rows


def _update(leak: Leak, inputs: Tensor, targets: Tensor, seed: int, defense: str = "update") -> dict[str, Any]:
    """Return the most that attacks get of a client's update, and whether a label was certified, and one wrongly."""
    report = auditing.audit_update(
        leak, inputs=inputs, targets=targets, defense=defense, steps=2, images=False, minutes=MINUTES, seed=seed
    )
    labels = [one for one in report.findings if "labels" in one.measures]
    sure = [one for one in labels if one.certificate == "unique"]
    worst = {name: report.worst(name) if name in report.measured else None for name in MEASURES}
    chance = max((one.chance.get("labels", 0.0) for one in labels), default=0.0)
    return worst | {
        "chance": chance,
        "certain": bool(sure),
        "deceived": any(one.measures["labels"] < 1 for one in sure),
    }


def scale(parameters: Parameters) -> str:
    """Return in a few words what is run."""
    cells = len(parameters.model) * len(parameters.defenses) * len(parameters.batch_sizes)
    federated = len(parameters.rounds) * parameters.clients
    return f"{cells} audits, {data.title(parameters.data)}; {federated} clients' updates, digits"


def short(model: str) -> str:
    """Return a network's name without its module."""
    return model.rpartition(":")[2]


def worst(record: Record) -> pd.DataFrame:
    """Return the most that any attack got of each measure, a row a network, batch size and defence, and its cosine."""
    frame = record.part("audit")
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
    frame = record.part("audit")
    told = frame[frame["attack"].ne("") & frame["labels"].notna()]
    groups = told.groupby("certificate", sort=True)
    return pd.DataFrame(
        [
            {"word": word, "times": len(own), "all labels right": _share(float(own["labels"].eq(1).mean()))}
            for word, own in groups
        ]
    )


def federation_table(record: Record) -> pd.DataFrame:
    """Return what a federation's clients give away, a row a precision and round."""
    frame, lines = record.part("federation"), []
    for _, own in frame.groupby(["precision", "round"], sort=False) if len(frame) else ():
        first = own.iloc[0]
        shares = {name: _share(own[name].astype(float).mean()) for name in ("labels", "features", "inputs")}
        place = {"numbers": first["precision"], "round": int(first["round"]), "accuracy": _share(first["accuracy"])}
        best = {"PSNR, dB": _number(own["image-psnr"].astype(float).median(), ".1f")}
        lines.append(place | shares | best | {"certified": _share(own["certain"].astype(float).mean())})
    return pd.DataFrame(lines)


def private_table(record: Record) -> pd.DataFrame:
    """Return what clients of DP-SGD give away, a row a noise multiplier and batch size, with the ε of their step."""
    frame, lines = record.part("dp-sgd"), []
    for _, own in frame.groupby(["noise", "batch_size"], sort=False) if len(frame) else ():
        first, epsilon = own.iloc[0], own["epsilon"].astype(float).median()
        place = {
            "noise": f"{first['noise']:g}",
            "B": int(first["batch_size"]),
            "ε": "∞" if pd.isna(epsilon) else f"{epsilon:.3g}",
        }
        shares = {name: _share(own[name].astype(float).mean()) for name in ("labels", "features", "inputs")}
        guess = {"guessed labels": _share(own["chance"].astype(float).mean())}
        lines.append(place | shares | guess | {"PSNR, dB": _number(own["image-psnr"].astype(float).median(), ".1f")})
    return pd.DataFrame(lines)


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
