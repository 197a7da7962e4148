"""Audit your own model

Beyond the papers: every attack of this book that applies, on networks as anyone has them, behind the usual defences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
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
from gradleak.show.summaries import NOTHING, count, mean, median, only, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.federation import Federation, digit_network

PLACE = "Beyond the papers"
# What clients of federations and of DP-SGD have; the latter draw from so many.
DIGITS, PRIVATE = "digits", 500
SHARES = ("labels", "features", "inputs")
MEASURES = (*SHARES, "image-psnr", "image-ssim")
# No trial is to be cut off by the clock: its record would depend on the machine.
MINUTES = 600.0


class Parameters(studies.Parameters):
    """Which networks are audited on which batches and behind which defences, and how federations train."""

    model: list[str] = setting(
        ["lenet"],
        paper=["lenet", "fcn4", "torchvision.models:resnet18"],
        min_length=1,
        about="networks, or module:function",
    )
    data: str = setting("photos", about="a dataset by its name")
    defenses: list[str] = setting(
        ["none", "clip/1"],
        paper=["none", "clip/1", "gaussian/0.01", "prune/0.9"],
        smallest=["none"],
        min_length=1,
        about="defences, as name/level",
    )
    batch_sizes: list[int] = setting([1, 4], smallest=[2], min_length=1, about="samples a batch")
    steps: int = setting(10, paper=100, smallest=2, ge=1, about="steps of a search for inputs")
    rounds: list[int] = setting(
        [10],
        paper=[1, 10, 100, 1000],
        smallest=[1],
        about="rounds of a federation after which its clients are audited",
    )
    clients: int = setting(2, paper=4, ge=1, le=100, about="clients of the federation")
    noises: list[float] = setting(
        [], paper=[0.0, 1e-4, 1e-2, 1.0], about="DP-SGD's noise multipliers (needs gradleak[opacus])"
    )
    draws: int = setting(1, paper=5, ge=1, le=100, about="batches of DP-SGD a noise multiplier")

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

    def experiments(self) -> Iterator[Experiment]:
        """Give the audits of single batches, then federations in both precisions, then clients of DP-SGD."""
        for model, size, defense in product(self.model, self.batch_sizes, self.defenses):
            yield AuditedBatch.of(self, model=model, defense=defense, batch_size=size)
        for precision in ("float32", "float64") if self.rounds else ():
            yield AuditedFederation.of(self, precision=precision)
        for noise, size in product(self.noises, self.batch_sizes):
            yield AuditedPrivateClients.of(self, noise=noise, batch_size=size)

    def about(self) -> str:
        """Return in a few words what is run."""
        cells = len(self.model) * len(self.defenses) * len(self.batch_sizes)
        federated = len(self.rounds) * self.clients
        return f"{cells} audits, {data.title(self.data)}; {federated} clients' updates, digits"


class Measured(Row):
    """What an audit measured, by names of MEASURES; None where an attack gives nothing of the kind."""

    labels: float | None
    features: float | None
    inputs: float | None
    image_psnr: float | None = Field(alias="image-psnr")
    image_ssim: float | None = Field(alias="image-ssim")


class Audited(Row):
    """Which network was audited, behind which defence; `attack` is empty where a row is about the defence alone."""

    part: str
    model: str
    defense: str
    batch_size: int
    attack: str


class Cost(Audited):
    """What the defence costs: the cosine of the gradient that is sent with the true one."""

    cosine: float


class Found(Audited, Measured):
    """What one attack found, and its own word for it; `deceived`: it certified labels that are wrong."""

    certificate: str
    deceived: bool


class Leaked(Measured):
    """The most that any attack found in a client's update.

    `chance`: the share of labels that guessing finds; `certain`: some attack certified the labels, and `deceived`: one
    of them wrongly.
    """

    chance: float
    certain: bool
    deceived: bool


class LeakedByClient(Leaked):
    """The same of one client of a federation, after a round; `accuracy`: of the server's model."""

    part: str
    precision: str
    round: int
    client: int
    accuracy: float


class LeakedByPrivateClient(Leaked):
    """The same of a step of DP-SGD; `drawn`: samples in its batch; `epsilon`: None where no noise was added."""

    part: str
    noise: float
    batch_size: int
    drawn: int
    epsilon: float | None


class AuditedBatch(Experiment):
    """One batch behind one defence, attacked with everything that applies."""

    part: ClassVar[str] = "audit"
    model: str
    defense: str
    batch_size: int
    data: str
    steps: int

    def reads(self) -> list[str]:
        """Return the name of the audited dataset."""
        return [self.data]

    def run(self) -> Iterator[Cost | Found]:
        """Audit the batch: what the defence costs, then what each attack found."""
        samples = bringing.samples_of(self.data)
        report = auditing.audit(
            bringing.model_of(self.model, seed=self.seed).to(self.device),
            samples.inputs.to(self.device),
            samples.targets.to(self.device),
            batch_sizes=(self.batch_size,),
            defenses=(self.defense,),
            pixels=samples.pixels,
            steps=self.steps,
            seed=self.seed,
            images=False,
            minutes=MINUTES,
        )
        place = {"part": self.part, "model": self.model, "defense": self.defense, "batch_size": self.batch_size}
        for cost in report.costs:
            yield Cost.of(**place, attack="", cosine=cost.cosine)
        for one in report.findings:
            yield Found.of(
                **place,
                **{name: one.measures.get(name) for name in MEASURES},
                attack=one.attack,
                certificate=one.certificate,
                deceived=one.certificate == "unique" and one.measures.get("labels", 1.0) < 1,
            )


class AuditedFederation(Experiment):
    """Every client of a federation, after some of its rounds."""

    part: ClassVar[str] = "federation"
    rounds: list[int]
    clients: int
    precision: str

    def reads(self) -> list[str]:
        """Return the name of the digits."""
        return [DIGITS]

    def run(self) -> Iterator[LeakedByClient]:
        """Let the federation train, and audit what its clients send."""
        federation = Federation.of(self.clients, getattr(torch, self.precision), self.seed, self.device)
        for number in range(1, max(self.rounds) + 1):
            sent = federation.round()
            if number not in self.rounds:
                continue
            accuracy = federation.accuracy()
            for client, update in enumerate(sent):
                yield LeakedByClient.of(
                    leaked(update.leak, update.inputs, update.targets, self.seed),
                    part=self.part,
                    precision=self.precision,
                    round=number,
                    client=client,
                    accuracy=accuracy,
                )


class AuditedPrivateClients(Experiment):
    """What clients send that train with DP-SGD by Opacus, with one noise multiplier."""

    part: ClassVar[str] = "dp-sgd"
    noise: float
    batch_size: int
    draws: int

    def reads(self) -> list[str]:
        """Return the name of the digits."""
        return [DIGITS]

    def run(self) -> Iterator[LeakedByPrivateClient]:
        """Let a client draw its batches, and audit each."""
        try:
            from gradleak.auditing.opacus import private_update
        except ImportError as error:
            raise MissingData("DP-SGD's updates are Opacus's: `pip install gradleak[opacus]`") from error
        own = data.load(DIGITS, "train")
        inputs, targets = own.images[:PRIVATE].to(self.device), own.labels[:PRIVATE].to(self.device)
        for draw in range(self.draws):
            update = private_update(
                digit_network(self.seed).to(self.device),
                inputs,
                targets,
                batch_size=self.batch_size,
                noise_multiplier=self.noise,
                seed=self.seed + draw,
            )
            drawn = update.drawn.to(self.device)
            yield LeakedByPrivateClient.of(
                leaked(update.leak, inputs[drawn], targets[drawn], self.seed, update.defense),
                part=self.part,
                noise=self.noise,
                batch_size=self.batch_size,
                drawn=len(drawn),
                epsilon=update.epsilon if math.isfinite(update.epsilon) else None,
            )


def leaked(leak: Leak, inputs: Tensor, targets: Tensor, seed: int, defense: str = "update") -> Leaked:
    """Return the most that attacks get of a client's update, and whether a label was certified, and one wrongly."""
    report = auditing.audit_update(
        leak, inputs=inputs, targets=targets, defense=defense, steps=2, images=False, minutes=MINUTES, seed=seed
    )
    labels = [one for one in report.findings if "labels" in one.measures]
    sure = [one for one in labels if one.certificate == "unique"]
    return Leaked.of(
        **{name: report.worst(name) if name in report.measured else None for name in MEASURES},
        chance=max((one.chance.get("labels", 0.0) for one in labels), default=0.0),
        certain=bool(sure),
        deceived=any(one.measures["labels"] < 1 for one in sure),
    )


def short(model: str) -> str:
    """Return a network's name without its module."""
    return model.rpartition(":")[2]


def worst(record: Record) -> pd.DataFrame:
    """Return the most that any attack got of each measure, a row a network, batch size and defence, and its cosine."""
    keys = ["model", "batch_size", "defense"]
    return record.rows(AuditedBatch).groupby(keys, sort=False)[["cosine", *MEASURES]].max().reset_index()


def table(record: Record) -> pd.DataFrame:
    """Return the table of the worst, ready to be shown."""
    rows = worst(record)
    lines = summary(
        rows.assign(batch_size=rows["batch_size"].astype(int)),
        {"network": "model", "B": "batch_size", "defence": "defense"},
        {
            "cosine": only("cosine", _number(".2f")),
            **{name: only(name, _share) for name in SHARES},
            "PSNR, dB": only("image-psnr", _number(".1f")),
            "SSIM": only("image-ssim", _number(".2f")),
        },
    )
    return lines.assign(network=lines["network"].map(short))


def _share(value: float) -> str:
    return NOTHING if pd.isna(value) else f"{100 * value:.0f} %"


def _number(form: str) -> Callable[[Any], str]:
    return lambda value: NOTHING if pd.isna(value) else format(value, form)


def certificates(record: Record) -> pd.DataFrame:
    """Return how often an attack's own word for its answer was said, and how often all labels were right then."""
    rows = record.rows(AuditedBatch)
    told = rows[rows["attack"].ne("") & rows["labels"].notna()].sort_values("certificate", kind="stable")
    return summary(
        told.assign(right=told["labels"].eq(1)),
        {"word": "certificate"},
        {"times": count(), "all labels right": mean("right", _share)},
    )


def _updates(record: Record, kind: type[Experiment]) -> pd.DataFrame:
    """Return what was measured of clients' updates, in numbers: where nothing was, NaN."""
    rows = record.rows(kind)
    return rows.astype(dict.fromkeys([*MEASURES, "certain"], float)) if len(rows) else rows


def federation_table(record: Record) -> pd.DataFrame:
    """Return what a federation's clients give away, a line a precision and round."""
    rows = _updates(record, AuditedFederation)
    if rows.empty:
        return pd.DataFrame()
    return summary(
        rows.assign(round=rows["round"].astype(int)),
        {"numbers": "precision", "round": "round"},
        {
            "accuracy": only("accuracy", _share),
            **{name: mean(name, _share) for name in SHARES},
            "PSNR, dB": median("image-psnr", _number(".1f")),
            "certified": mean("certain", _share),
        },
    )


def private_table(record: Record) -> pd.DataFrame:
    """Return what clients of DP-SGD give away, a line a noise multiplier and batch size, with the ε of their step."""
    rows = _updates(record, AuditedPrivateClients)
    if rows.empty:
        return pd.DataFrame()
    return summary(
        rows.assign(
            noise=rows["noise"].map("{:g}".format),
            batch_size=rows["batch_size"].astype(int),
            epsilon=rows["epsilon"].astype(float),
        ),
        {"noise": "noise", "B": "batch_size"},
        {
            "ε": median("epsilon", lambda value: "∞" if pd.isna(value) else f"{value:.3g}"),
            **{name: mean(name, _share) for name in SHARES},
            "guessed labels": mean("chance", _share),
            "PSNR, dB": median("image-psnr", _number(".1f")),
        },
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
                    points["cosine"],
                    points[measure].astype(float),
                    s=60 - 30 * (index % 2),
                    label=f"B = {size}",
                    color=figures.COLOURS[index % 6],
                    marker="osD^"[index % 4],
                    zorder=3,
                )
            axis.set(ylim=(-0.08, 1.12), xlim=(-0.05, 1.08))
            if column == 0:
                axis.set_ylabel(label)
            if row == 0:
                axis.set_title(short(name))
            else:
                axis.set_xlabel("cosine with the true gradient")
    figures.legend_below(figure, 4)
    return figure
