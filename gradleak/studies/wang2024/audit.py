"""Audit your own model

Beyond the papers: run every applicable attack of this book on common networks behind the usual defences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from gradleak import auditing, claims, data, defenses, studies
from gradleak.auditing import loading
from gradleak.errors import MissingData
from gradleak.leak import Leak
from gradleak.show.drawn import crossed, drawn, lines, places, scattered
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared.federation import SIZE, Federation, digit_network
from gradleak.studies.shared.outcomes import AXES, Kind, Measure, Outcome, collected, median_of, share_of
from gradleak.wording import counted

PLACE = "Beyond the papers"
# The dataset of federations and of DP-SGD's clients, and the number of samples that the latter draw from.
DIGITS, PRIVATE = "digits", 500
# The measures of an audit by the columns that hold them, None where an attack has no answer of this kind.
MEASURES = {
    "labels_found": "labels",
    "features_found": "features",
    "inputs": "inputs",
    "recognisable": "recognisable",
    "image-psnr": "image-psnr",
    "image-ssim": "image-ssim",
}
# Audits are of clients in eval mode and make no pictures. No trial reaches their time limit; otherwise its record would
# depend on the machine's speed.
UNHURRIED: dict[str, Any] = {"images": False, "minutes": 600.0, "mode": "eval"}


class Parameters(studies.Parameters):
    """Parameters of the page: networks, batches and defences of the audits, and the training of federations."""

    model: list[str] = setting(paper=["lenet", "fcn4", "torchvision.models:resnet18"], min_length=1)
    data: str
    defenses: list[str] = setting(
        paper=["none", "clip/1", "gaussian/0.01", "prune/0.9"], smallest=["none"], min_length=1
    )
    batch_sizes: list[PositiveInt] = setting(smallest=[2], min_length=1)
    steps: int = setting(paper=100, smallest=2, ge=1)
    rounds: list[Annotated[int, Field(ge=1, le=100_000)]] = setting(paper=[1, 10, 100, 1000], smallest=[1])
    clients: int = setting(paper=4, ge=1, le=100)
    noises: list[NonNegativeFloat] = setting(paper=[0.0, 1e-4, 1e-2, 1.0])
    draws: int = setting(paper=5, ge=1, le=100)

    def sees(self) -> list[Sees]:
        """Return the networks that are given by name, and the images that they see."""
        return [Sees(name, self.data, channels=3, side=32, classes=10) for name in self.model if ":" not in name]

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


class AuditedBatch(Experiment, part="audit"):
    """Audit one batch behind one defence with all applicable attacks."""

    model: str
    defense: str
    batch_size: int
    data: str
    steps: int

    def reads(self) -> list[str]:
        """Return the name of the audited dataset."""
        return [self.data]

    def run(self) -> Iterator[Columns]:
        """Audit the batch: yield the cost of the defence, then the result of each attack."""
        samples = loading.samples_of(self.data)
        model = loading.model_of(self.model, seed=self.seed).to(self.device)
        private = samples.inputs.to(self.device), samples.targets.to(self.device)
        options = UNHURRIED | {"pixels": samples.pixels, "steps": self.steps, "seed": self.seed}
        report = auditing.audit(model, *private, batch_sizes=(self.batch_size,), defenses=(self.defense,), **options)
        place: Columns = {name: getattr(self, name) for name in ("part", "model", "defense", "batch_size")}
        yield from (place | {"attack": "", "cosine": cost.cosine} for cost in report.costs)
        for one in report.findings:
            found: Columns = {column: one.measures.get(name) for column, name in MEASURES.items()}
            deceived = one.certificate == "unique" and one.measures.get("labels", 1.0) < 1
            yield place | found | {"attack": one.attack, "certificate": one.certificate, "deceived": deceived}


class AuditedFederation(Experiment, part="federation"):
    """Audit every client of a federation after some of its training rounds."""

    dataset: ClassVar[str] = DIGITS
    rounds: list[int]
    clients: int
    precision: str

    def run(self) -> Iterator[Columns]:
        """Train the federation, and audit the updates of its clients."""
        federation = Federation(self.clients, getattr(torch, self.precision), self.seed, self.device)
        for number in range(1, max(self.rounds) + 1):
            sent = federation.round()
            if number not in self.rounds:
                continue
            about: Columns = {"part": self.part, "precision": self.precision, "round": number}
            about |= {"test_accuracy": federation.accuracy()}
            for client, update in enumerate(sent):
                yield about | {"client": client} | leaked(*update, self.seed)


class AuditedPrivateClients(Experiment, part="dp-sgd"):
    """Audit the updates of clients that train by DP-SGD (Opacus) with one noise multiplier."""

    stays_on_cpu: ClassVar[str] = "Opacus draws its noise from a generator of the CPU"
    dataset: ClassVar[str] = DIGITS
    noise: float
    batch_size: int
    draws: int

    def run(self) -> Iterator[Columns]:
        """Draw a client's batches, and audit each update."""
        try:
            from gradleak.auditing.opacus import private_update
        except ImportError as error:
            raise MissingData("updates of DP-SGD need Opacus: `pip install gradleak[opacus]`") from error
        own = data.load(DIGITS, "train")
        inputs, targets = own.images[:PRIVATE].to(self.device), own.labels[:PRIVATE].to(self.device)
        for draw in range(self.draws):
            update = private_update(
                digit_network(self.seed).to(self.device), inputs, targets,
                batch_size=self.batch_size, noise_multiplier=self.noise, seed=self.seed + draw,
            )  # fmt: skip
            drawn = update.drawn.to(self.device)
            yield leaked(update.leak, inputs[drawn], targets[drawn], self.seed, update.defense) | {
                "part": self.part,
                "noise": self.noise,
                "batch_size": self.batch_size,
                "samples_drawn": len(drawn),
                "epsilon": update.epsilon if math.isfinite(update.epsilon) else None,
            }


def leaked(leak: Leak, inputs: Tensor, targets: Tensor, seed: int, defense: str = "update") -> Columns:
    """Return the best result of all attacks on a client's update, and whether labels were certified, or wrongly so."""
    report = auditing.audit_update(
        leak, inputs=inputs, targets=targets, defense=defense, steps=2, seed=seed, **UNHURRIED
    )
    labels = [one for one in report.findings if "labels" in one.measures]
    sure = [one for one in labels if one.certificate == "unique"]
    best: Columns = {
        column: report.worst(name) if name in report.measured else None for column, name in MEASURES.items()
    }
    return best | {
        "chance": max((one.chance.get("labels", 0.0) for one in labels), default=0.0),
        "labels_certified": bool(sure),
        "deceived": any(one.measures["labels"] < 1 for one in sure),
    }


def worst(record: Record) -> pd.DataFrame:
    """Return the maximum of each measure over all attacks, and the defence's cosine.

    Rows: networks, batch sizes and defences, also in words.
    """
    keys = ["model", "batch_size", "defense"]
    rows = record.rows(AuditedBatch).groupby(keys, sort=False)[["cosine", *MEASURES]].max().reset_index()
    return rows.assign(
        network=rows["model"].str.split(":").str[-1],
        batch_size=rows["batch_size"].astype(int),
        defence=rows["defense"].map(defenses.shown).replace("none", "no defence"),
    )


def summary(record: Record) -> Summary:
    """Return the finding: clipping protects nothing, and noise hides features and images but not labels."""
    known = claims.judgements(record)
    clear, clipped, noisy = (known[f"audit-{name}"] for name in ("lenet", "clip", "noise"))
    rows = worst(record)
    behind = rows[rows["defense"].str.startswith("gaussian/")]
    labels, levels = behind["labels_found"].min(), behind["defense"].str.removeprefix("gaussian/").unique()
    return Summary(
        f"Clipping the whole gradient does not protect: an audit restores one LeNet image to {clipped.text} from a "
        f"clipped gradient ({clear.text} without a defence); behind Gaussian noise of {' or '.join(levels)} "
        "no attack restores features or images, but all labels are still found.",
        true=bool(clear.agrees and clipped.agrees and noisy.agrees and labels == 1),
        claim="audit-clip",
        what="PSNR of one photograph restored from LeNet's gradient, clipped to norm 1",
        figure=figure_frontier,
        of="attacks that returned an image (the best counts)",
        outcomes=outcomes(record),
    )


def figure_frontier(record: Record) -> Figure:
    """Plot the best attack's success against the cosine of the sent gradient with the undefended gradient.

    One column of panels for each network: the share of labels found above, the SSIM of the best image below. One point
    for each defence (colour) and batch size (marker).
    """
    shown = {"labels_found": "share of labels found", "image-ssim": "SSIM of the best image"}
    rows = worst(record).rename(columns=shown)
    rows["batch"] = rows["batch_size"].map(lambda size: counted(size, "sample"))
    names, sizes = rows["defence"].unique(), rows["batch"].unique()
    # Defences of one batch size follow each other, so that their hollow markers have different sizes.
    order, looks = [f"{name}, {size}" for size in sizes for name in names], crossed(names, sizes)
    return drawn(
        rows.melt(["network", "defence", "batch", "cosine"], list(shown.values()), "measure", "success"),
        scattered("cosine", "success", ["defence", "batch"], order=order, looks=looks, fillstyle="none"),
        panels=["measure", "network"],
        title=lambda _, network: network,
        across=rows["network"].nunique(),
        legend=2,
        xlabel="cosine with the clean gradient",
        ylabel=lambda measure, _: measure,
        xlim=(-0.05, 1.08),
    )


def figure_updates(record: Record) -> Figure:
    """Plot what one update reveals: the mean shares (%) of labels, features and inputs found.

    Clients of a federation, against the training round, for both precisions; clients of DP-SGD, against the noise
    multiplier, for each batch size.
    """
    found = ["labels found", "labels guessed", "features found", "inputs found"]
    heads = dict(zip(("labels_found", "chance", "features_found", "inputs"), found, strict=True))
    rows = record.frame().reindex(columns=["part", "precision", "batch_size", "round", "noise", *heads])
    rows = rows[rows["part"] != AuditedBatch.part].rename(columns=heads)
    private = rows["batch_size"].map("DP-SGD, batches of {:.0f}".format)
    rows["client"] = ("federation, " + rows["precision"].astype("str")).fillna(private)
    rows["strength"] = rows["round"].fillna(rows["noise"])
    shares = rows.melt(["client", "strength"], found, "found", "share")
    return drawn(
        shares.assign(percent=100 * shares["share"].astype(float)),
        lines("strength", "percent", by="found", aside=0.05),
        places("strength", "{:g}".format),
        panels="client",
        across=2,
        legend=4,
        xlabel="training round, or noise multiplier",
        ylabel="found (mean, %)",
        ylim=(-4, 104),
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
    ("labels", share_of("labels_found", "labels found", "batches"), "labels_found"),
    ("features", share_of("features_found", "features found", "batches"), "features_found"),
    ("images", median_of("image-psnr", "PSNR of the best image", "batches"), "image-psnr"),
)


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    federated = rows["part"] == AuditedFederation.part
    rows = rows.assign(
        cosine=rows.groupby(["model", "defense", "batch_size"])["cosine"].transform("max"),
        attack=rows["attack"].replace(ATTACKS_SHOWN).fillna("best attack of an audit"),
        network=rows["model"].fillna("small network for digits"),
        training=federated.map({True: "trained", False: "untrained"}),
        data=rows["data"].fillna(DIGITS),
        batch=rows["batch_size"].fillna(SIZE).astype(int),
        defense=rows["defense"].fillna(rows["noise"].map("dp-sgd/{:g}".format, na_action="ignore")).fillna("none"),
        client=rows["precision"].fillna("float32"),
        detail=rows["round"].map("federation after {:g} rounds".format, na_action="ignore").fillna(""),
        chance=100 * rows["chance"].fillna(0.0),
    )
    found: list[Outcome] = []
    for leak, measure, column in LEAKING:
        own = rows[rows[column].notna() & rows["attack"].ne("")]
        chance = own["chance"] if leak == "labels" else 0.0
        axes = {axis: own[axis] for axis in AXES}
        found += collected(record, own, leak, measure, chance=chance, cosine=own["cosine"], **axes)
    return found
