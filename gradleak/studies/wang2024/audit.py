"""Audit your own model

Beyond the papers: run every applicable attack of this book on common networks behind the usual defences.
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

from gradleak import auditing, claims, data, defenses, models, studies
from gradleak.auditing import loading
from gradleak.errors import GradleakError, MissingData, unknown
from gradleak.leak import Leak
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.records import Record
from gradleak.show.drawn import crossed, drawn, scattered
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, count, mean, median, only, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.federation import SIZE, Federation, digit_network
from gradleak.studies.shared.outcomes import Kind, Measure, Outcome, collected, median_of, share_of
from gradleak.wording import counted

PLACE = "Beyond the papers"
# The dataset of federations and of DP-SGD's clients, and the number of samples that the latter draw from.
DIGITS, PRIVATE = "digits", 500
SHARES = ("labels", "features", "inputs")
MEASURES = (*SHARES, "image-psnr", "image-ssim")
# A time limit that no trial reaches; otherwise its record would depend on the speed of the machine.
MINUTES = 600.0


class Parameters(studies.Parameters):
    """Parameters of the page: networks, batches and defences of the audits, and the training of federations."""

    model: list[str] = setting(paper=["lenet", "fcn4", "torchvision.models:resnet18"], min_length=1)
    data: str
    defenses: list[str] = setting(
        paper=["none", "clip/1", "gaussian/0.01", "prune/0.9"], smallest=["none"], min_length=1
    )
    batch_sizes: list[int] = setting(smallest=[2], min_length=1)
    steps: int = setting(paper=100, smallest=2, ge=1)
    rounds: list[int] = setting(paper=[1, 10, 100, 1000], smallest=[1])
    clients: int = setting(paper=4, ge=1, le=100)
    noises: list[float] = setting(paper=[0.0, 1e-4, 1e-2, 1.0])
    draws: int = setting(paper=5, ge=1, le=100)

    def sees(self) -> list[Sees]:
        """Return the networks that are given by name, and the images that they see."""
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
            raise ValueError("a number of rounds must lie between 1 and 100,000")
        return rounds

    @field_validator("noises")
    @classmethod
    def _noises(cls, noises: list[float]) -> list[float]:
        if any(not 0 <= one < math.inf for one in noises):
            raise ValueError("a noise multiplier is at least 0")
        return noises

    def experiments(self) -> Iterator[Experiment]:
        """Yield the audits of single batches, then federations in both precisions, then clients of DP-SGD."""
        for model, size, defense in product(self.model, self.batch_sizes, self.defenses):
            yield AuditedBatch.of(self, model=model, defense=defense, batch_size=size)
        for precision in ("float32", "float64") if self.rounds else ():
            yield AuditedFederation.of(self, precision=precision)
        for noise, size in product(self.noises, self.batch_sizes):
            yield AuditedPrivateClients.of(self, noise=noise, batch_size=size)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        cells = len(self.model) * len(self.defenses) * len(self.batch_sizes)
        federated = len(self.rounds) * self.clients
        return f"{cells} audits, {data.title(self.data)}; {federated} clients' updates, digits"


class Measured(Row):
    """The success of an attack, by the measures in `MEASURES`; None if the attack gives no answer of this kind.

    Attributes:
        labels: Share of the labels that were found.
        features: Share of the last layer's inputs that were found.
        inputs: Share of the network's inputs that were found.
        image_psnr: PSNR (dB) of the best image.
        image_ssim: Structural similarity of the best image.
    """

    labels: float | None
    features: float | None
    inputs: float | None
    image_psnr: float | None = Field(alias="image-psnr")
    image_ssim: float | None = Field(alias="image-ssim")


class Audited(Row):
    """The audited network and its defence; `attack` is empty if a row describes only the defence."""

    part: str
    model: str
    defense: str
    batch_size: int
    attack: str


class Cost(Audited):
    """The cost of a defence: the cosine of the gradient that is sent with the undefended gradient."""

    cosine: float


class Found(Audited, Measured):
    """The success of one attack.

    Attributes:
        certificate: The status that the attack gives its answer, such as "unique".
        deceived: Whether the attack called labels unique although some are wrong.
    """

    certificate: str
    deceived: bool


class Leaked(Measured):
    """The best result of any attack on a client's update.

    Attributes:
        chance: Share of the labels that guessing finds.
        certain: Whether any attack certified the labels.
        deceived: Whether any of these certificates is wrong.
    """

    chance: float
    certain: bool
    deceived: bool


class LeakedByClient(Leaked):
    """The best attack's result for one client of a federation; `accuracy` is that of the server's model."""

    part: str
    precision: str
    round: int
    client: int
    accuracy: float


class LeakedByPrivateClient(Leaked):
    """The best attack's result for one step of DP-SGD.

    Attributes:
        noise: The noise multiplier.
        drawn: The number of samples in the batch.
        epsilon: The privacy loss ε of the step; None without noise.
    """

    part: str
    noise: float
    batch_size: int
    drawn: int
    epsilon: float | None


class AuditedBatch(Experiment):
    """Audit one batch behind one defence with all applicable attacks."""

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
        """Audit the batch: yield the cost of the defence, then the result of each attack."""
        samples = loading.samples_of(self.data)
        report = auditing.audit(
            loading.model_of(self.model, seed=self.seed).to(self.device),
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
    """Audit every client of a federation after some of its training rounds."""

    part: ClassVar[str] = "federation"
    rounds: list[int]
    clients: int
    precision: str

    def reads(self) -> list[str]:
        """Return the name of the dataset of digits."""
        return [DIGITS]

    def run(self) -> Iterator[LeakedByClient]:
        """Train the federation, and audit the updates of its clients."""
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
    """Audit the updates of clients that train by DP-SGD (Opacus) with one noise multiplier."""

    part: ClassVar[str] = "dp-sgd"
    noise: float
    batch_size: int
    draws: int

    def reads(self) -> list[str]:
        """Return the name of the dataset of digits."""
        return [DIGITS]

    def run(self) -> Iterator[LeakedByPrivateClient]:
        """Draw a client's batches, and audit each update."""
        try:
            from gradleak.auditing.opacus import private_update
        except ImportError as error:
            raise MissingData("updates of DP-SGD need Opacus: `pip install gradleak[opacus]`") from error
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
    """Return the best result of all attacks on a client's update, and whether labels were certified, or wrongly so."""
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


def defence_name(defense: str) -> str:
    """Return the name of a defence, written name/level, as tables and figures show it."""
    words = {
        "clip": "clipped to norm {}",
        "gaussian": "Gaussian noise, σ = {}",
        "prune": "pruned, share {}",
    }
    kind, _, level = defense.partition("/")
    return "no defence" if kind == "none" else words.get(kind, f"{kind} {{}}").format(level).strip()


def short(model: str) -> str:
    """Return a network's name without the name of its module."""
    return model.rpartition(":")[2]


def worst(record: Record) -> pd.DataFrame:
    """Return the maximum of each measure over all attacks, and the defence's cosine.

    Rows: networks, batch sizes and defences.
    """
    keys = ["model", "batch_size", "defense"]
    return record.rows(AuditedBatch).groupby(keys, sort=False)[["cosine", *MEASURES]].max().reset_index()


def headline(record: Record) -> Headline:
    """Return the finding: clipping protects nothing, and noise hides features and images but not labels."""
    known = claims.judgements(record)
    clear, clipped, noisy = (known[f"audit-{name}"] for name in ("lenet", "clip", "noise"))
    rows = worst(record)
    labels = rows.loc[rows["defense"].str.startswith("gaussian/"), "labels"].min()
    return Headline(
        f"Clipping the whole gradient does not protect: an audit restores one LeNet image to {clipped.text} from a "
        f"clipped gradient and to {clear.text} without a defence; behind Gaussian noise no attack of the audit "
        "restores features or images, but all labels are still found.",
        true=bool(clear.agrees and clipped.agrees and noisy.agrees and labels == 1),
        claim="audit-clip",
        what="PSNR of one photograph restored from LeNet's gradient, clipped to norm 1",
        figure=figure_frontier,
        of="attacks that returned an image",
    )


def table(record: Record) -> pd.DataFrame:
    """Return the best attack's success as a table.

    Rows: networks, batch sizes and defences. Columns: the cosine of the sent gradient with the undefended gradient, the
    shares of labels, features and inputs found, and PSNR and SSIM of the best image.
    """
    rows = worst(record)
    lines = summary(
        rows.assign(batch_size=rows["batch_size"].astype(int), defense=rows["defense"].map(defence_name)),
        {"network": "model", "batch size": "batch_size", "defence": "defense"},
        {
            "cosine": only("cosine", _number(".2f")),
            **{f"{name} found": only(name, _share) for name in SHARES},
            "PSNR of the best image (dB)": only("image-psnr", _number(".1f")),
            "SSIM of the best image": only("image-ssim", _number(".2f")),
        },
    )
    return lines.assign(network=lines["network"].map(short))


def _share(value: float) -> str:
    return NOTHING if pd.isna(value) else f"{100 * value:.0f} %"


def _number(form: str) -> Callable[[Any], str]:
    return lambda value: NOTHING if pd.isna(value) else format(value, form)


def certificates(record: Record) -> pd.DataFrame:
    """Return how often attacks on labels gave each certificate.

    Rows: certificates. Columns: how often attacks gave it, and the share of these answers in which all labels are
    right.
    """
    rows = record.rows(AuditedBatch)
    told = rows[rows["attack"].ne("") & rows["labels"].notna()].sort_values("certificate", kind="stable")
    return summary(
        told.assign(right=told["labels"].eq(1)),
        {"status": "certificate"},
        {"answers": count(), "all labels right": mean("right", _share)},
    )


def _updates(record: Record, kind: type[Experiment]) -> pd.DataFrame:
    """Return the rows of clients' updates with numeric measures, NaN for missing ones."""
    rows = record.rows(kind)
    return rows.astype(dict.fromkeys([*MEASURES, "certain"], float)) if len(rows) else rows


def federation_table(record: Record) -> pd.DataFrame:
    """Return what the updates of a federation's clients reveal.

    Rows: the clients' precision and the training round. Columns: the accuracy of the server's model, the number of
    clients, the mean shares of labels, features and inputs found, the median PSNR, and the share of clients whose
    labels are certified.
    """
    rows = _updates(record, AuditedFederation)
    if rows.empty:
        return pd.DataFrame()
    return summary(
        rows.assign(round=rows["round"].astype(int)),
        {"precision": "precision", "round": "round"},
        {
            "test accuracy": only("accuracy", _share),
            "clients": count(),
            **{f"{name} found": mean(name, _share) for name in SHARES},
            "median PSNR (dB)": median("image-psnr", _number(".1f")),
            "labels certified": mean("certain", _share),
        },
    )


def private_table(record: Record) -> pd.DataFrame:
    """Return what the updates of DP-SGD's clients reveal.

    Rows: noise multipliers and batch sizes. Columns: the number of batches, the median privacy loss ε of a step, the
    mean shares of labels, features and inputs found, the share of labels that guessing finds, and the median PSNR.
    """
    rows = _updates(record, AuditedPrivateClients)
    if rows.empty:
        return pd.DataFrame()
    return summary(
        rows.assign(
            noise=rows["noise"].map("{:g}".format),
            batch_size=rows["batch_size"].astype(int),
            epsilon=rows["epsilon"].astype(float),
        ),
        {"noise multiplier": "noise", "expected batch size": "batch_size"},
        {
            "batches": count(),
            "ε of one step": median("epsilon", lambda value: "∞" if pd.isna(value) else f"{value:.3g}"),
            **{f"{name} found": mean(name, _share) for name in SHARES},
            "labels found by guessing": mean("chance", _share),
            "median PSNR (dB)": median("image-psnr", _number(".1f")),
        },
    )


def figure_frontier(record: Record) -> Figure:
    """Plot the best attack's success against the cosine of the sent gradient with the undefended gradient.

    One column of panels for each network: the share of labels found above, the SSIM of the best image below. One point
    for each defence (colour) and batch size (marker).
    """
    shown = {"labels": "share of labels found", "image-ssim": "SSIM of the best image"}
    rows = worst(record).rename(columns=shown)
    sizes = rows["batch_size"].astype(int)
    rows["defense"] = rows["defense"].map(defence_name)
    rows["batch"] = sizes.map(lambda size: counted(size, "sample"))
    names = list(dict.fromkeys(rows["defense"]))
    looks = crossed(names, dict.fromkeys(rows["batch"]))
    for name, look in looks.items():
        # Hollow markers of different sizes show points in the same place.
        size = next(12 - 2.4 * number for number, own in enumerate(names) if name.startswith(f"{own}, "))
        look.update(markersize=max(4.0, size), fillstyle="none", markeredgewidth=1.6)
    return drawn(
        rows.melt(["model", "defense", "batch", "cosine"], list(shown.values()), "measure", "success"),
        scattered("cosine", "success", by=["defense", "batch"], order=list(looks), looks=looks),
        panels=["measure", "model"],
        title=lambda _, model: short(model),
        across=rows["model"].nunique(),
        height=2.7,
        legend=2,
        xlabel="cosine with the clean gradient",
        ylabel=lambda measure, _: measure,
        ylim=(-0.08, 1.12),
        xlim=(-0.05, 1.08),
    )


# The attacks of an audit that other pages name otherwise.
ATTACKS_SHOWN = {
    "linear layers backwards": "closed form",
    "convolutions backwards": "closed form",
    "layers peeled off": "peeling",
    "label of one sample": "exact solver",
    "labels and features of a batch": "batch solver",
}
LEAKING: tuple[tuple[Kind, Measure, str], ...] = (
    ("labels", share_of("labels", "labels found", "batches"), "labels"),
    ("features", share_of("features", "features found", "batches"), "features"),
    ("images", median_of("image-psnr", "PSNR of the best image", "batches"), "image-psnr"),
)


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.rows(AuditedBatch)
    place = ["model", "defense", "batch_size"]
    costs = rows[rows["attack"] == ""].set_index(place)["cosine"]
    rows = rows[rows["attack"] != ""].drop(columns="cosine").join(costs, on=place)
    found: list[Outcome] = []
    for leak, measure, column in LEAKING:
        own = rows[rows[column].notna()]
        found += collected(
            record, own, leak, measure, cosine=own["cosine"], attack=own["attack"].replace(ATTACKS_SHOWN),
            network=own["model"], data=own["data"], batch=own["batch_size"].astype(int), defense=own["defense"],
        )  # fmt: skip
        own = record.rows(AuditedFederation)
        own = own[own[column].notna()]
        found += collected(
            record, own, leak, measure, chance=100 * own["chance"] if leak == "labels" else 0.0,
            attack="best attack of an audit", network="small network for digits", training="trained", data=DIGITS,
            batch=SIZE, client=own["precision"],
            detail=[f"federation after {rounds:g} rounds" for rounds in own["round"]],
        )  # fmt: skip
        own = record.rows(AuditedPrivateClients)
        own = own[own[column].notna()]
        found += collected(
            record, own, leak, measure, chance=100 * own["chance"] if leak == "labels" else 0.0,
            attack="best attack of an audit", network="small network for digits", data=DIGITS,
            batch=own["batch_size"].astype(int), defense=[f"dp-sgd/{noise:g}" for noise in own["noise"]],
        )  # fmt: skip
    return found
