"""Label attacks compared: networks, training, defences, batch sizes

Beyond the papers: wainakh2021, yin2021, posterior2023, dang2021 and ma2023 side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from time import perf_counter
from typing import Any, ClassVar, Literal, get_args

import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from gradleak import claims, data, models, studies
from gradleak.labels import METHODS, Knowledge, count_heads
from gradleak.leak import HeadLeaks, head_inputs, observe_heads
from gradleak.models import training
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import Adapted, built
from gradleak.studies.shared.attempts import timed, unless_refused
from gradleak.studies.shared.defended import Defended, named
from gradleak.studies.shared.outcomes import FOUND, WORDS, Outcome, collected, network_in_words, stages, written
from gradleak.studies.shared.tally import Balance, Batches, averaged, batch_of, found, load, others

PLACE = "Beyond section 6"
ATTACKS = ("guess", "GradInversion", "row sums", "RLG", "LLG", "LLG*", "iLRG", "LLG+", "posterior", "shadow")
# The attacks that are run when LLG* knows how inputs are normalised, and the name of LLG* in this case.
WITH_NORMALISATION = ("guess", "LLG", "LLG*")
IN_RANGE = "LLG*, normalised"
# The network with batch norm, on which LLG* is run without this knowledge only.
BATCH_NORM = "resnet20"
LENETS = [("lenet5", "relu"), ("lenet5", "tanh")]
# The attacks on networks that were trained to the end. They see only the last layer, so there is no LLG*, whose made-up
# inputs need the whole network.
LEARNED = "learned"
ON_TRAINED = ("guess", "GradInversion", "RLG", "LLG", "iLRG", "LLG+", "posterior", "shadow", LEARNED)
# Private samples: of the training set, or of the half of the test set from which no auxiliary samples are drawn.
Split = Literal["train", "test"]


class Network(Group):
    """A network and its activation, which is empty for the network's default."""

    network: str
    activation: str = ""


class TrainedNetwork(Group):
    """A network and its epochs of training; 0 for the published weights of a pretrained network."""

    network: str
    epochs: int = Field(ge=0)


class Defence(Defended):
    """A defence of this page: the level of "noise" is a standard deviation, that of "clip" a norm."""

    words: ClassVar = {"none": "none", "noise": "gaussian", "clip": "clip", "grad-drop": "grad-drop"}


class Parameters(studies.Parameters):
    """Parameters of the page: networks, stages of training, defences, batch sizes and data."""

    networks: list[Network] = setting(
        paper=Network.listed(("llg-cnn", ""), *LENETS, ("llg-lenet", ""), (BATCH_NORM, "")),
        smallest=Network.listed(LENETS[1]),
    )
    epochs: list[int] = setting(paper=[0, 1, 5], smallest=[0])
    defenses: list[Defence] = setting(
        paper=["none/0", "noise/0.001", "noise/0.01", "grad-drop/0.9"], smallest=["none/0"]
    )
    sizes: list[int] = setting(paper=[1, 8, 32, 128], smallest=[1, 4])
    batches: int = setting(paper=50, smallest=2, ge=1, le=10_000)
    auxiliary: int = setting(ge=1, le=1000)
    dataset: str = setting(paper="cifar10")
    trained: list[TrainedNetwork] = setting(
        paper=TrainedNetwork.listed(("cifar10-resnet20", 0), ("cifar10-resnet56", 0), ("cifar10-vit-8", 0)),
        smallest=TrainedNetwork.listed(("lenet5", 1)),
    )
    trained_sizes: list[PositiveInt] = setting(paper=[4, 8, 16, 32, 64], smallest=[4])
    trained_batches: int = setting(paper=200, smallest=2, ge=1, le=10_000)
    images: int = setting(paper=2000, smallest=50, ge=50)

    def sees(self) -> list[Sees]:
        """Return the networks with their images."""
        return [Sees(one.network, self.dataset, activation=one.activation) for one in self.networks]

    def experiments(self) -> Iterator[Experiment]:
        """Yield each network, stage of training and defence, then LLG* with the normalisation, without a defence."""
        for network, epochs, defence in product(self.networks, self.epochs, self.defenses):
            yield ComparedAttacks.of(self, **dict(network), epochs=epochs, **dict(defence))
        for network, epochs in product(self.networks, self.epochs):
            if network.network != BATCH_NORM:
                yield ComparedAttacks.of(self, **dict(network), epochs=epochs, defense="none", level=0.0, told=True)
        for one, split, balance in product(self.trained, get_args(Split), get_args(Balance)):
            own = {"sizes": self.trained_sizes, "batches": self.trained_batches}
            yield OnTrained.of(self, **dict(one), split=split, balance=balance, **own)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return (
            f"{len(self.networks)} networks at {len(self.epochs)} stages of training, "
            f"{self.batches} batches of a size; "
            f"{len(self.trained)} trained to the end, {self.trained_batches} batches; {data.title(self.dataset)}"
        )


class ComparedAttacks(Experiment):
    """Batches of one network behind one defence, on which every attack is run.

    If `in_range` is true, only LLG* is reported, and it knows how inputs are normalised.
    """

    network: str
    activation: str
    epochs: int
    defense: str
    level: float
    sizes: list[int]
    batches: int
    auxiliary: int
    dataset: str
    in_range: bool = Field(False, alias="told")

    def run(self) -> list[Columns]:
        """Run every attack on every batch."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        model, accuracy = self._model(private)
        if self.in_range:
            model = Adapted(data.normalise, model)
        else:
            private, public = _normalised(private), _normalised(public)
        drawn, found = Batches(private, public, self.seed), []
        for _ in range(self.batches):
            given = drawn.others(self.auxiliary)
            clear = self.defense == "none"
            defence = None if clear else named(Defence.words, self.defense, self.level, drawn.generator)
            found += drawn.attacked(
                model, given, self.sizes, WITH_NORMALISATION if self.in_range else ATTACKS, defense=defence
            )
        rows: list[dict[str, Any]] = [{"test_accuracy": accuracy} | row for row in averaged(found)]
        if not self.in_range:
            return rows
        llg = {row["size"]: row["success"] for row in rows if row["attack"] == "LLG"}
        return [
            row | {"attack": IN_RANGE, "over_llg": row["success"] - llg[row["size"]]}
            for row in rows
            if row["attack"] == "LLG*"
        ]

    def _model(self, private: data.Dataset) -> tuple[nn.Module, float | None]:
        activation = self.activation or None
        if not self.epochs:
            return built(self.network, private, self.seed, self.device, bias=True, activation=activation), None
        stated = self.model_dump(include={"network", "dataset", "epochs", "seed"})
        recipe = training.Recipe(**stated, bias=True, init="torch", activation=activation)
        trained = training.train(recipe, device=self.device)
        return trained.model.to(self.device), trained.accuracy


class OnTrained(Experiment, part="trained"):
    """Batches of a network that was trained to the end, which pass only through its last layer.

    All batches of a setting are attacked with the same auxiliary samples.
    """

    network: str
    epochs: int
    split: Split
    balance: Balance
    sizes: list[int]
    batches: int
    images: int
    auxiliary: int
    dataset: str

    def run(self) -> list[dict[str, Any]]:
        """Run the network over all images, and count the labels of batches by every attack."""
        model, public = self._model(), load(self.dataset, "test")
        even = torch.arange(len(public)) % 2 == 0
        if self.split == "train":
            private = load(self.dataset, "train")
        else:
            private = replace(public, images=public.images[~even], labels=public.labels[~even])
        public = replace(public, images=public.images[even], labels=public.labels[even])
        generator = torch.Generator().manual_seed(self.seed)
        few = torch.randperm(len(private), generator=generator)[: self.images]
        private = self._seen(model, replace(private, images=private.images[few], labels=private.labels[few]))
        inputs, classes = others(self._seen(model, public), self.auxiliary, generator)
        head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        known = Knowledge(head, (inputs.to(self.device), classes.to(self.device)), seed=self.seed)
        results = []
        for size in self.sizes:
            chosen = torch.cat([batch_of(private.labels, size, self.balance, generator) for _ in range(self.batches)])
            labels = private.labels[chosen]
            sent = observe_heads(head, private.images[chosen].to(self.device), labels.to(self.device), batch_size=size)
            truth = torch.stack([own.bincount(minlength=private.classes) for own in labels.split(size)])
            for name in ON_TRAINED:
                counts, seconds = timed(_counted, name.lower(), sent, known, clock=perf_counter)
                results += [
                    found(name, own.unsqueeze(0), true.unsqueeze(0), seconds / len(truth))
                    for own, true in zip(counts, truth, strict=True)
                ]
        rows = averaged(results)
        for row in rows:
            if row["attack"] == LEARNED:
                rest = [one["success"] for one in rows if one["size"] == row["size"] and one["attack"] != LEARNED]
                row["over_others"] = row["success"] - max(rest)
        return rows

    def _model(self) -> nn.Module:
        if not self.epochs:
            return models.pretrained(self.network).to(self.device)
        recipe = training.Recipe(
            network=self.network, dataset=self.dataset, epochs=self.epochs, init="torch", seed=self.seed
        )
        return training.train(recipe, device=self.device).model.to(self.device)

    def _seen(self, model: nn.Module, dataset: data.Dataset) -> data.Dataset:
        """Return a dataset with the last layer's inputs in place of its images."""
        return replace(dataset, images=head_inputs(model, data.normalise(dataset.images).to(self.device))[0].cpu())


def _counted(method: str, sent: HeadLeaks, known: Knowledge) -> Tensor:
    """Return the counts (N, C) of a method; they are 0 for batches that it refuses."""
    if method == "rlg":  # it may refuse some batches only
        parts = [replace(sent, weight_gradients=own.unsqueeze(0), bias_gradients=None) for own in sent.weight_gradients]
        return torch.cat([_of(method, one, known) for one in parts])
    return _of(method, sent, known)


def _of(method: str, sent: HeadLeaks, known: Knowledge) -> Tensor:
    nothing = torch.zeros(sent.weight_gradients.shape[:2], dtype=torch.long)
    return unless_refused(lambda: count_heads(sent, method, known, whatever_holds=True).cpu(), nothing)


def _normalised(dataset: data.Dataset) -> data.Dataset:
    return replace(dataset, images=data.normalise(dataset.images))


def _named(record: Record) -> pd.DataFrame:
    """Return the rows with the names of networks ("net") and defences ("behind") for tables and figures."""
    frame = record.frame()
    frame = frame[frame["defense"].notna()].copy()  # without the networks that were trained to the end
    frame["net"] = (frame["network"] + " " + frame["activation"]).str.strip()
    levels = zip(frame["defense"], frame["level"], strict=True)
    frame["behind"] = ["no defence" if name == "none" else f"{name} {level:g}" for name, level in levels]
    return frame


def summary(record: Record) -> Summary:
    """Return the finding: two attacks that read the bias and have samples of their own find the most labels."""
    known = claims.judgements(record)
    posterior, shadow = known["compared-posterior"], known["compared-shadow"]
    frame = _named(record)
    rows = select(frame, defense="none")
    means = rows.groupby("attack")["success"].mean()
    best = set(means.nlargest(2).index) == {"posterior", "shadow"}
    own = frame[frame["attack"] != "guess"]
    return Summary(
        f"Over five networks, untrained and trained, without a defence, the posterior attack finds {posterior.text} "
        f"of the labels and the shadow attack {shadow.text}; both read the bias’s gradient and need labelled samples, "
        f"while LLG, which needs the gradient alone, finds {means['LLG']:.1f} %.",
        true=bool(posterior.agrees and shadow.agrees and best and rows["net"].nunique() == 5),
        claim="compared-posterior",
        what="labels that the posterior attack finds, mean over networks, stages, batch sizes (CIFAR-10, no defence)",
        figure=figure_labels,
        of="batches",
        outcomes=collected(
            record, own, "labels", FOUND, chance=own["success"] - own["over_guess"],
            attack=own["attack"].replace("GradInversion", "GradInversion's rule"),
            network=(own["network"] + ", " + own["activation"]).str.rstrip(", "), training=stages(own["epochs"]),
            data=own["dataset"], batch=own["size"], defense=written(own["defense"], own["level"], WORDS),
            detail=[f"after {epochs} epochs" if epochs else "" for epochs in own["epochs"]],
        ) + _on_trained(record),
    )  # fmt: skip


def _on_trained(record: Record) -> list[Outcome]:
    """Return what each attack reached on networks that were trained to the end."""
    rows = record.rows(OnTrained)
    rows = rows[rows["attack"] != "guess"]
    images = rows["split"].map({"train": "training images", "test": "test images"})
    return collected(
        record, rows, "labels", FOUND, chance=rows["success"] - rows["over_guess"],
        attack=rows["attack"].replace({"GradInversion": "GradInversion's rule", LEARNED: "learned counts"}),
        network=rows["network"], training="trained", data=rows["dataset"], batch=rows["size"],
        detail="trained to the end, " + rows["balance"] + ", " + images,
    )  # fmt: skip


def figure_labels(record: Record) -> Figure:
    """Draw the share of labels that each attack finds (%), without a defence, as a mean over the batch sizes.

    One panel for each network. Rows are attacks, columns are epochs of training. “LLG*, normalised” was not run on
    resnet20.
    """
    return _heat(select(_named(record), defense="none"), "net", "epochs", "training epochs")


def figure_defenses(record: Record) -> Figure:
    """Draw the share of labels that each attack finds (%) behind each defence, mean over networks and training.

    One panel for each defence. Rows are attacks, columns are batch sizes.
    """
    rows = _named(record)
    return _heat(rows[rows["attack"] != IN_RANGE], "behind", "size", "batch size")


def figure_trained(record: Record) -> Figure:
    """Draw the share of labels that each attack finds (%) on networks that were trained to the end.

    One panel for each network and kind of batch, mean over training and test images. Rows are attacks, columns are
    batch sizes.
    """
    rows = record.rows(OnTrained)
    return _heat(
        rows.assign(of=rows["network"].map(network_in_words) + ", " + rows["balance"]),
        "of",
        "size",
        "batch size",
        wide=2,
    )


def _heat(frame: pd.DataFrame, panel: str, across: str, label: str, wide: int = 0) -> Figure:
    """Draw heat maps of mean success: a panel for each value of the column `panel`, a row for each attack.

    `wide`: the most panels side by side, by default all.
    """
    looks = {"vmin": 0, "vmax": 100, "cmap": "cividis", "annot": True, "fmt": ".0f", "annot_kws": {"size": 9.5}}
    attacks = [name for name in (*ATTACKS, LEARNED, IN_RANGE) if name in set(frame["attack"])]

    def heat(axis: Axes, rows: pd.DataFrame) -> None:
        means = rows.pivot_table(index="attack", columns=across, values="success", sort=False)
        sns.heatmap(means.reindex(attacks).sort_index(axis=1), ax=axis, cbar=False, linewidths=0.6, **looks)
        axis.tick_params(length=0)
        axis.tick_params("y", labelrotation=0)
        axis.grid(visible=False)  # seen through fields without a value

    return drawn(frame, heat, panels=panel, across=wide or frame[panel].nunique(), height=3.9, xlabel=label)


def threat_table() -> pd.DataFrame:
    """Return the threat model and the assumptions of each attack; one row for each attack."""
    lines = [(name, METHODS[name.lower()].threat, METHODS[name.lower()].assumes) for name in (*ATTACKS, LEARNED)]
    return pd.DataFrame(lines, columns=["attack", "threat model", "assumes"])
