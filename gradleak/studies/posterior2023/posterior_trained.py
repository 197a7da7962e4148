"""Counting labels from the posteriors of a trained model

posterior2023, sections 4.3 and 4.4: Figures 3 and 4, after an epoch over a whole training set.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from gradleak import data, metrics, studies
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import head_inputs, observe_heads
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.posterior2023.posterior_attack import skewed
from gradleak.studies.shared.tally import LOOKS, load, others

PLACE = "Sections 4.3 and 4.4, Figures 3 and 4"
SMALLEST: dict[str, Any] = {"sizes": [16], "shares": [0.0], "scales": [1], "batches": 2, "optimizers": ["adam"]}
ATTACKS = {"posterior": "posterior", "iLRG": "ilrg", "guess": "guess"}
# Figure 4's batches.
SIZE = 32
NAMES = {"adam": "Adam", "sgd": "SGD"}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    dataset: str = Field("photos", description="private images, training split; auxiliary ones: test split")
    learns: str = Field("photos", description="what the model is trained on, training split")
    network: str = Field("lenet5", description="the model")
    epochs: int = Field(1, ge=1, le=100, description="passes over the training set, at a rate of 0.001")
    optimizers: list[Literal["adam", "sgd"]] = Field(["adam", "sgd"], description="what trains the model")
    sizes: list[PositiveInt] = Field([64, 256], description="Figure 3: samples in a batch")
    shares: list[float] = Field([0.0, 0.5, 0.9], description="Figure 3: share of one class in a batch; 0: even")
    scales: list[PositiveInt] = Field([1, 5, 20], description="Figure 4: auxiliary samples of a class")
    auxiliary: int = Field(20, ge=1, le=1000, description="Figure 3: auxiliary samples of a class")
    batches: int = Field(10, ge=2, le=10_000, description="batches a setting")

    paper: ClassVar[dict[str, Any]] = {
        "dataset": "cifar10",
        "learns": "cifar10-jpeg",
        "network": "vgg16",
        "sizes": [64, 128, 256, 512, 1024],
        "shares": [0.0, 0.1, 0.3, 0.5, 0.7, 0.9],
        "scales": [1, 5, 10, 50, 100],
        "auxiliary": 100,
        "batches": 20,
    }

    def sees(self) -> list[Sees]:
        """Return the model, the images that it is shown, and those that it is trained on."""
        return [Sees(self.network, self.dataset, activation="relu", learns=self.learns)]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys((parameters.dataset, parameters.learns)))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one an optimizer."""
    common = parameters.model_dump(exclude={"optimizers", "device"})
    common["device"] = studies.resolve_device(parameters.device)
    return [{"optimizer": optimizer} | common for optimizer in parameters.optimizers]


def trial(
    *,
    optimizer: Literal["adam", "sgd"],
    dataset: str,
    learns: str,
    network: str,
    epochs: int,
    sizes: list[int],
    shares: list[float],
    scales: list[int],
    auxiliary: int,
    batches: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Train a model, and count the labels of batches of every size, imbalance and amount of auxiliary data."""
    model, accuracy = _model(optimizer, learns, network, epochs, seed, device)
    # No sample knows of another: what the last layer takes in is worked out once.
    private, public = (_seen(model, load(dataset, split), device) for split in ("train", "test"))
    head = model.get_submodule("head")
    generator = torch.Generator().manual_seed(seed)
    settings = [("settings", size, share, auxiliary) for size in sizes for share in shares]
    rows = []
    for part, size, share, each in (*settings, *(("scale", SIZE, 0.0, amount) for amount in scales)):
        found: dict[str, list[Tensor]] = {name: [] for name in ATTACKS}
        for number in range(batches):
            chosen = skewed(private, size, share, generator)
            labels = private.labels[chosen]
            heads = observe_heads(head, private.images[chosen].to(device), labels.to(device), batch_size=size)
            truth = labels.bincount(minlength=private.classes).unsqueeze(0)
            given, classes = others(public, each, generator)
            known = Knowledge(head, (given.to(device), classes.to(device)), seed=seed + number)
            for name, method in ATTACKS.items():
                counts = count_heads(heads, method, known, whatever_holds=True).cpu()
                both = [metrics.class_jaccard(counts, truth), metrics.count_jaccard(counts, truth)]
                found[name].append(torch.cat(both))
        for name, parts in found.items():
            results = torch.stack(parts)
            rows.append(
                {"part": part, "attack": name, "size": size, "share": share, "given": each}
                | {"classes": float(results[:, 0].mean()), "instances": float(results[:, 1].mean())}
                | {"spread": float(results[:, 1].std()), "count": len(results), "accuracy": 100 * accuracy}
            )
    return rows


def _seen(model: nn.Module, dataset: data.Dataset, device: str) -> data.Dataset:
    """Return a dataset with what the last layer takes in, in place of its images."""
    features, _ = head_inputs(model, data.normalise(dataset.images).to(device))
    return replace(dataset, images=features.cpu())


def _model(
    optimizer: Literal["adam", "sgd"], learns: str, network: str, epochs: int, seed: int, device: str
) -> tuple[nn.Module, float]:
    recipe = training.Recipe(
        network=network,
        dataset=learns,
        epochs=epochs,
        learning_rate=1e-3,
        optimizer=optimizer,
        weight_decay=0,
        flips_and_crops=False,
        activation="relu",
        init="torch",
        seed=seed,
    )
    trained = training.train(recipe, device=device)
    return trained.model.to(device), trained.accuracy


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    images = data.title(parameters.dataset)
    return f"{parameters.batches} batches a setting, {parameters.epochs} epoch of {parameters.network}, {images}"


def models_table(record: Record) -> pd.DataFrame:
    """Return how well each model does after its training."""
    frame = record.frame().drop_duplicates("optimizer")
    return pd.DataFrame(
        [
            {"trained by": NAMES[str(line["optimizer"])], "test accuracy, %": f"{line['accuracy']:.1f}"}
            for line in frame.to_dict("records")
        ]
    )


def settings_table(record: Record) -> pd.DataFrame:
    """Return Figure 3: the posterior attack's instance accuracy by batch size and imbalance, the guess's beside it."""
    frame = record.part("settings")
    lines = []
    for (optimizer, share), group in frame.groupby(["optimizer", "share"], sort=False):
        line = {"trained by": NAMES[str(optimizer)], "one class": f"{share:.0%}" if share else "even"}
        for size, own in group.groupby("size"):
            values = own.set_index("attack")["instances"]
            line[f"B = {size:.0f}"] = f"{values['posterior']:.3f} ({values['guess']:.3f})"
        lines.append(line)
    return pd.DataFrame(lines)


def scale_table(record: Record) -> pd.DataFrame:
    """Return Figure 4: the posterior attack's instance accuracy by the auxiliary samples of a class."""
    frame = record.part("scale")
    frame = frame[frame["attack"] == "posterior"]
    return pd.DataFrame(
        [
            {"trained by": NAMES[str(optimizer)]}
            | {
                f"{line['given']:.0f}": f"{line['instances']:.3f} ± {line['spread']:.3f}"
                for line in group.to_dict("records")
            }
            for optimizer, group in frame.groupby("optimizer", sort=False)
        ]
    )


def figure_trained(record: Record) -> Figure:
    """Draw instance accuracy against the batch size, the imbalance and the auxiliary samples, a row an optimizer."""
    frame = record.frame()
    optimizers = list(dict.fromkeys(frame["optimizer"]))
    figure, axes = figures.panels(len(optimizers), 3, height=2.6, sharey=True)
    for row, optimizer in zip(axes, optimizers, strict=True):
        part = frame[frame["optimizer"] == optimizer]
        settings, amounts = part[part["part"] == "settings"], part[part["part"] == "scale"]
        even = settings[settings["share"] == settings["share"].min()]
        middle = settings[settings["size"] == settings["size"].min()]
        for axis, own, column in zip(row, (even, middle, amounts), ("size", "share", "given"), strict=True):
            for name in ATTACKS:
                line, (colour, dash) = own[own["attack"] == name].sort_values(column), LOOKS[name]
                axis.plot(line[column], line["instances"], color=colour, linestyle=dash, marker="o", label=name)
            axis.set(ylim=(0, 1.05))
            if column != "share":
                axis.set_xscale("log", base=2)
                axis.xaxis.set_major_formatter("{x:g}")
                axis.minorticks_off()
        row[0].set_ylabel(f"instance accuracy, {NAMES[optimizer]}")
    for axis, label in zip(axes[-1], ("samples in a batch", "share of one class", "auxiliary of a class"), strict=True):
        axis.set_xlabel(label)
    figures.legend_below(figure, len(ATTACKS))
    return figure
