"""Label attacks compared: networks, training, defences, batch sizes

Beyond the papers: wainakh2021, yin2021, posterior2023, dang2021 and ma2023 side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import model_validator
from torch import nn

from gradleak import claims, data, studies
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form
from gradleak.runs.records import Record
from gradleak.show.drawn import drawn
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, mean, only, percent, select, summary, where_least
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.attacked_networks import OnPixels, built
from gradleak.studies.shared.defended import Defended, named
from gradleak.studies.shared.outcomes import FOUND, WORDS, Outcome, collected, stages, written
from gradleak.studies.shared.tally import LabelAttack, Success, Tally, attack, load, milliseconds, others

PLACE = "Beyond section 6"
ATTACKS = {
    "guess": LabelAttack("guess"),
    "GradInversion": LabelAttack("gradinversion"),
    "row sums": LabelAttack("row sums"),
    "RLG": LabelAttack("rlg"),
    "LLG": LabelAttack("llg"),
    "LLG*": LabelAttack("llg*"),
    "iLRG": LabelAttack("ilrg"),
    "LLG+": LabelAttack("llg+"),
    "posterior": LabelAttack("posterior"),
    "shadow": LabelAttack("shadow"),
}
# The attacks that are run when LLG* knows how inputs are normalised, and the name of LLG* in this case.
BESIDE_TOLD = {name: ATTACKS[name] for name in ("guess", "LLG", "LLG*")}
IN_RANGE = "LLG*, normalised"


class Network(Form):
    """A network and its activation, written "network/activation"; the activation is empty for the network's default."""

    network: str
    activation: str


class Defence(Defended):
    """A defence of this page: the level of "noise" is a standard deviation, that of "clip" a norm."""

    words: ClassVar = {"none": "none", "noise": "gaussian", "clip": "clip", "grad-drop": "grad-drop"}


class Parameters(studies.Parameters):
    """Parameters of the page: networks, stages of training, defences, batch sizes and data."""

    networks: list[Network] = setting(
        paper=["llg-cnn/", "lenet5/relu", "lenet5/tanh", "llg-lenet/", "resnet20/"],
        smallest=["lenet5/tanh"],
        validate_default=True,
    )
    told: list[Network] = setting(
        paper=["llg-cnn/", "lenet5/relu", "lenet5/tanh", "llg-lenet/"], smallest=[], validate_default=True
    )
    epochs: list[int] = setting(paper=[0, 1, 5], smallest=[0])
    defenses: list[Defence] = setting(
        paper=["none/0", "noise/0.001", "noise/0.01", "grad-drop/0.9"], smallest=["none/0"], validate_default=True
    )
    sizes: list[int] = setting(paper=[1, 8, 32, 128], smallest=[1, 4])
    batches: int = setting(paper=50, smallest=2, ge=1, le=10_000)
    auxiliary: int = setting(ge=1, le=1000)
    dataset: str = setting(paper="cifar10")

    def sees(self) -> list[Sees]:
        """Return the networks with their images."""
        return [Sees(one.network, self.dataset, activation=one.activation) for one in (*self.networks, *self.told)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield each network, stage of training and defence, then networks on which LLG* knows the normalisation."""
        for network, epochs, defence in product(self.networks, self.epochs, self.defenses):
            yield ComparedAttacks.of(self, **dict(network), epochs=epochs, **dict(defence), told=False)
        for network, epochs in product(self.told, self.epochs):
            yield ComparedAttacks.of(self, **dict(network), epochs=epochs, **dict(Defence.of("none/0")), told=True)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return (
            f"{len(self.networks)} networks at {len(self.epochs)} stages of training, "
            f"{self.batches} batches of a size, {data.title(self.dataset)}"
        )


class SuccessOnNetwork(Success):
    """The success of an attack on a network.

    Attributes:
        accuracy: The network's test accuracy; None if it is untrained.
        over_llg: The success minus that of LLG, stated only for LLG* with known normalisation.
    """

    accuracy: float | None
    over_llg: float = math.nan


class ComparedAttacks(Experiment):
    """Batches of one network behind one defence, on which every attack is run.

    If `told` is true, only LLG* is reported, and it knows how inputs are normalised.
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
    told: bool = False

    @model_validator(mode="before")
    @classmethod
    def _told_is_stated_only_if_true(cls, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in inputs.items() if name != "told" or value}

    def run(self) -> Iterator[SuccessOnNetwork]:
        """Run every attack on every batch."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        model, accuracy = self._model(private)
        if self.told:
            model = OnPixels(model)
        else:
            private, public = _normalised(private), _normalised(public)
        generator = torch.Generator().manual_seed(self.seed)
        tally = Tally()
        for _ in range(self.batches):
            given = others(public, self.auxiliary, generator)
            defended = self.defense != "none"
            attack(
                tally, model, private, given,
                sizes=self.sizes, balance="unbalanced", generator=generator,
                attacks=BESIDE_TOLD if self.told else ATTACKS,
                defense=named(Defence.words, self.defense, self.level, generator) if defended else None,
            )  # fmt: skip
        rows = [SuccessOnNetwork.of(row, accuracy=accuracy) for row in tally.rows()]
        if not self.told:
            yield from rows
            return
        llg = {row.size: row.success for row in rows if row.attack == "LLG"}
        for row in rows:
            if row.attack == "LLG*":
                yield SuccessOnNetwork.of(row, attack=IN_RANGE, over_llg=row.success - llg[row.size])

    def _model(self, private: data.Dataset) -> tuple[nn.Module, float | None]:
        activation = self.activation or None
        if not self.epochs:
            return built(self.network, private, self.seed, self.device, bias=True, activation=activation), None
        recipe = training.Recipe(
            network=self.network,
            dataset=self.dataset,
            epochs=self.epochs,
            bias=True,
            init="torch",
            activation=activation,
            seed=self.seed,
        )
        trained = training.train(recipe, device=self.device)
        return trained.model.to(self.device), trained.accuracy


def _normalised(dataset: data.Dataset) -> data.Dataset:
    return replace(dataset, images=data.normalise(dataset.images))


def _named(record: Record) -> pd.DataFrame:
    """Return the rows with the names of networks ("net") and defences ("behind") for tables and figures."""
    frame = record.rows(ComparedAttacks)
    frame["net"] = (frame["network"] + " " + frame["activation"]).str.strip()
    frame["behind"] = [
        "no defence" if name == "none" else f"{name} {level:g}"
        for name, level in zip(frame["defense"], frame["level"], strict=True)
    ]
    return frame


def headline(record: Record) -> Headline:
    """Return the finding: two attacks that read the bias and have samples of their own find the most labels."""
    known = claims.judgements(record)
    posterior, shadow = known["compared-posterior"], known["compared-shadow"]
    rows = select(_by_attack(record), defense="none")
    means = rows.groupby("attack")["success"].mean()
    best = set(means.nlargest(2).index)
    return Headline(
        f"Over five networks, untrained and trained, without a defence, the posterior attack finds {posterior.text} "
        f"of the labels and the shadow attack {shadow.text}; both read the bias’s gradient and need labelled samples, "
        f"while LLG, which needs the gradient alone, finds {means['LLG']:.1f} %.",
        true=bool(
            posterior.agrees and shadow.agrees and best == {"posterior", "shadow"} and rows["net"].nunique() == 5
        ),
        claim="compared-posterior",
        what="labels that the posterior attack finds, mean over networks, stages, batch sizes (CIFAR-10, no defence)",
        figure=figure_labels,
        of="batches",
    )


def figure_labels(record: Record) -> Figure:
    """Draw the share of labels that each attack finds (%), without a defence, as a mean over the batch sizes.

    One panel for each network. Rows are attacks, columns are epochs of training.
    """
    return _by_network(record, "success")


def figure_classes(record: Record) -> Figure:
    """Draw the Jaccard index (%) of the found and true sets of classes, without a defence, mean over batch sizes.

    One panel for each network. Rows are attacks, columns are epochs of training.
    """
    return _by_network(record, "classes")


def figure_defenses(record: Record) -> Figure:
    """Draw the share of labels that each attack finds (%) behind each defence, mean over networks and training.

    One panel for each defence. Rows are attacks, columns are batch sizes.
    """
    return _heat(_named(record), "behind", "size", "success", "batch size")


def _by_network(record: Record, column: str) -> Figure:
    frame = _named(record)
    return _heat(frame[frame["behind"] == frame["behind"].iloc[0]], "net", "epochs", column, "training epochs")


def _heat(frame: pd.DataFrame, panel: str, across: str, column: str, label: str) -> Figure:
    """Draw heat maps of means: a panel for each value of the column `panel`, a row for each attack."""
    looks = {"vmin": 0, "vmax": 100, "cmap": "cividis", "annot": True, "fmt": ".0f", "annot_kws": {"size": 9.5}}

    def heat(axis: Axes, rows: pd.DataFrame) -> None:
        means = rows.pivot_table(index="attack", columns=across, values=column, sort=False)
        sns.heatmap(means.reindex(list(ATTACKS)).sort_index(axis=1), ax=axis, cbar=False, linewidths=0.6, **looks)
        axis.tick_params(length=0)
        axis.tick_params("y", labelrotation=0)

    return drawn(frame, heat, panels=panel, across=frame[panel].nunique(), height=3.9, xlabel=label)


def table(record: Record) -> pd.DataFrame:
    """Return the success of every attack, as means over all settings.

    One row for each attack. Columns: the share of labels found without a defence and in all settings, the Jaccard index
    of the sets of classes without a defence, and the time (ms) per batch.
    """
    return summary(
        _by_attack(record),
        {"attack": "attack"},
        {
            "labels found, no defence": among(mean("success", percent(1)), defense="none"),
            "labels found, all settings": mean("success", percent(1)),
            "Jaccard index of classes, no defence": among(mean("classes", percent(1)), defense="none"),
            "time per batch (ms)": milliseconds,
        },
    )


def told_table(record: Record) -> pd.DataFrame:
    """Return the success (%) of LLG*, with and without knowledge of the normalisation, beside LLG.

    One row for each network and number of epochs, without a defence. Columns: LLG, LLG* whose random inputs are pixels,
    and LLG* whose random inputs are normalised. Cells are means over the batch sizes.
    """
    rows = select(_named(record), defense="none")
    told = rows.groupby(["net", "epochs"])["attack"].transform(lambda names: names.eq(IN_RANGE).any())
    names = ("LLG", "LLG*", IN_RANGE)
    measures = {f"{name} (%)": among(mean("success", ".1f"), attack=name) for name in names}
    return summary(rows[told], {"network": "net", "epochs": "epochs"}, measures)


def worst_table(record: Record) -> pd.DataFrame:
    """Return the setting in which each attack finds the smallest share of labels.

    One row for each attack. Columns: this share, and the network, epochs, defence and batch size B of the setting.
    """
    shown = {
        "fewest labels found": only("success", percent()),
        "network": only("net"),
        "epochs": only("epochs", ".0f"),
        "defence": only("behind"),
        "batch size": only("size", ".0f"),
    }
    measures = {head: where_least("success", measure) for head, measure in shown.items()}
    return summary(_by_attack(record), {"attack": "attack"}, measures)


def _by_attack(record: Record) -> pd.DataFrame:
    """Return the rows without those of LLG* with known normalisation."""
    rows = _named(record)
    return rows[rows["attack"].isin(ATTACKS)]


def full_tables(record: Record) -> dict[str, pd.DataFrame]:
    """Return the share of labels found (%) in every setting, one table for each defence.

    One row for each network, number of epochs and batch size B; one column for each attack.
    """
    frame = _named(record)
    tables = {}
    for behind, group in frame.groupby("behind", sort=False):
        wide = group.pivot_table(index=["net", "epochs", "size"], columns="attack", values="success", sort=False)
        lines = wide[list(ATTACKS)].round(0).astype(int).astype(str).reset_index()
        tables[str(behind)] = lines.rename(columns={"net": "network", "size": "batch size"})
    return tables


def threat_table() -> pd.DataFrame:
    """Return the threat model and the assumptions of each attack; one row for each attack."""
    from gradleak.labels import METHODS

    return pd.DataFrame(
        [
            {
                "attack": name,
                "needs beside the gradient": METHODS[own.method].threat,
                "assumes": METHODS[own.method].assumes,
            }
            for name, own in ATTACKS.items()
        ]
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["attack"] != "guess"]
    return collected(
        record, rows, "labels", FOUND, chance=rows["success"] - rows["over_guess"],
        attack=rows["attack"].replace("GradInversion", "GradInversion's rule"),
        network=(rows["network"] + ", " + rows["activation"]).str.rstrip(", "), training=stages(rows["epochs"]),
        data=rows["dataset"], batch=rows["size"], defense=written(rows["defense"], rows["level"], WORDS),
        detail=[f"after {epochs} epochs" if epochs else "" for epochs in rows["epochs"]],
    )  # fmt: skip
