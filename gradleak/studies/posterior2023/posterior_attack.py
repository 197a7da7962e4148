"""Counting labels from posteriors: networks, losses, batches, auxiliary data

posterior2023, section 4: Tables 2 and 3, Figures 3 and 4.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import augment, data, metrics, studies
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import observe_heads
from gradleak.losses import CrossEntropy, Focal, Loss
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import OnPixels, built
from gradleak.studies.shared.tally import LOOKS, load, others

PLACE = "Section 4, Tables 2 and 3, Figures 3 and 4"
SMALLEST: dict[str, Any] = {
    "rows": ["photos/lenet5/sigmoid/8"],
    "networks": 1,
    "batches": 2,
    "auxiliary": 2,
    "told": ["photos/lenet5/sigmoid/8"],
    "begun": ["photos/lenet5/sigmoid/8/kaiming"],
    "variants": ["ce/0.8/0"],
    "sizes": [8],
    "shares": [0.5],
    "scales": [1],
    "epochs": 1,
}
ATTACKS = {"LLG": "llg*", "iLRG": "ilrg", "posterior": "posterior", "guess": "guess"}
# As published these two are made for cross-entropy, and LLG's random inputs are pixels, where those of the client are
# normalised. Told, both follow the loss and the smoothing, and random inputs are normalised as well.
TOLD = {name: ATTACKS[name] for name in ("LLG", "iLRG", "guess")}
LossName = Literal["ce", "focal"]
LOSSES: tuple[LossName, ...] = get_args(LossName)
# Auxiliary samples in all, where there are many classes.
MOST = 2000
ROW = ["dataset", "network", "activation", "size"]


class Row(Form):
    """A network that is attacked, on its private images, and the size of the batches."""

    dataset: str
    network: str
    activation: str
    size: Whole = Field(ge=1)


class Begun(Row):
    """The same, with the random weights that it begins with."""

    init: Literal["torch", "kaiming", "uniform"]


class Variant(Form):
    """A loss, its temperature, and the smoothing ε of its labels."""

    loss: LossName
    temperature: float = Field(gt=0)
    epsilon: float = Field(ge=0, lt=1)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    rows: list[Row] = Field(
        ["photos/lenet5/sigmoid/32", "photos/lenet5/tanh/32", "photos/lenet5/elu/32"],
        validate_default=True,
        description="Table 2: dataset/network/activation/batch size; the last row stands for the figures and Table 3",
    )
    init: str = Field("torch", description="random weights: torch, kaiming or uniform")
    told: list[Row] = Field(
        ["photos/lenet5/sigmoid/32", "photos/lenet5/tanh/32"],
        validate_default=True,
        description="rows of Table 2 where LLG is told how inputs are normalised; Table 3 is told in any case",
    )
    begun: list[Begun] = Field(
        ["photos/lenet5/tanh/32/kaiming"],
        validate_default=True,
        description="rows of Table 2 with other random weights: dataset/network/activation/batch size/weights",
    )
    networks: int = Field(2, ge=1, le=1000, description="networks a row, with random weights")
    batches: int = Field(5, ge=1, le=10_000, description="batches a network")
    auxiliary: int = Field(
        20, ge=1, le=1000, description=f"auxiliary samples of a class, test split; {MOST:,} in all where that is fewer"
    )
    variants: list[Variant] = Field(
        [
            *(f"{loss}/{temperature}/0" for loss in LOSSES for temperature in (0.8, 1.2)),
            *(f"{loss}/1/{epsilon}" for loss in LOSSES for epsilon in (0.1, 0.25)),
        ],
        validate_default=True,
        description="Table 3: loss/temperature/smoothing",
    )
    sizes: list[int] = Field([64, 256], description="Figure 3: samples in a batch, the model trained")
    shares: list[float] = Field([0.1, 0.5, 0.9], description="Figure 3: share of one class in a batch")
    scales: list[int] = Field([1, 5, 20], description="Figure 4: auxiliary samples of a class")
    epochs: int = Field(1, ge=1, le=100, description="how long the model of Figure 3 is trained")

    paper: ClassVar[dict[str, Any]] = {
        "rows": [
            "mnist/lenet5/sigmoid/32",
            "mnist/lenet5/tanh/32",
            "tinyimagenet32/resnet50-cifar/relu/256",
            "tinyimagenet32/resnet50-cifar/selu/256",
            "cifar10/vgg16/elu/32",
            "cifar10/vgg16/relu/32",
        ],
        "told": [
            "mnist/lenet5/sigmoid/32",
            "mnist/lenet5/tanh/32",
            "cifar10/vgg16/elu/32",
            "cifar10/vgg16/relu/32",
        ],
        "begun": [
            f"mnist/lenet5/{activation}/32/{init}"
            for activation in ("sigmoid", "tanh")
            for init in ("kaiming", "uniform")
        ],
        "networks": 4,
        "batches": 5,
        "auxiliary": 100,
        "sizes": [64, 128, 256, 512, 1024],
        "shares": [0.1, 0.3, 0.5, 0.7, 0.9],
        "scales": [1, 5, 10, 50, 100],
    }

    def sees(self) -> list[Sees]:
        """Return the networks of all rows, and the images that they are shown."""
        return [Sees(row.network, row.dataset, activation=row.activation) for row in self.every]

    @property
    def every(self) -> list[Row]:
        """The rows of all parts."""
        return [*self.rows, *self.told, *self.begun]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys(row.dataset for row in parameters.every))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a row, a loss, a batch size, a share or a scale, each on several networks."""
    common = parameters.model_dump(include={"init", "networks", "batches", "auxiliary", "seed"})
    common |= {"device": studies.resolve_device(parameters.device)} | dict(Variant.of("ce/1/0"))
    common |= {"share": 0.0, "epochs": 0}
    rows = [common | {"part": "table 2"} | dict(row) for row in parameters.rows]
    main = {name: rows[-1][name] for name in ("dataset", "network", "activation", "size")}
    trained = common | main | {"epochs": parameters.epochs, "networks": 1, "batches": 20}
    return [
        *rows,
        *(common | main | {"part": "table 3"} | dict(variant) for variant in parameters.variants),
        *(trained | {"part": "batch size", "size": size} for size in parameters.sizes),
        *(trained | {"part": "imbalance", "share": share} for share in parameters.shares),
        *(common | main | {"part": "scale", "auxiliary": scale} for scale in parameters.scales),
        *(common | {"part": "told"} | dict(row) for row in parameters.told),
        *(common | main | {"part": "told"} | dict(variant) for variant in parameters.variants),
        *(common | {"part": "begun"} | dict(row) for row in parameters.begun),
    ]


def trial(
    *,
    part: str,
    dataset: str,
    network: str,
    activation: str,
    init: str,
    size: int,
    networks: int,
    batches: int,
    auxiliary: int,
    loss: str,
    temperature: float,
    epsilon: float,
    share: float,
    epochs: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Count the labels of batches on networks of one kind, by every attack, and return its two accuracies."""
    told = part == "told"
    attacks = TOLD if told else ATTACKS
    private, public = load(dataset, "train"), load(dataset, "test")
    generator = torch.Generator().manual_seed(seed)
    used: Loss = CrossEntropy(temperature) if loss == "ce" else Focal(temperature=temperature)
    found: dict[str, list[Tensor]] = {}
    seconds = dict.fromkeys(attacks, 0.0)
    for number in range(networks):
        model = _model(dataset, network, activation, init, private, seed + number, epochs, device)
        given, classes = others(public, max(1, min(auxiliary, MOST // public.classes)), generator)
        chosen = torch.cat([skewed(private, size, share, generator) for _ in range(batches)])
        labels = private.labels[chosen]
        targets = augment.smooth(labels, private.classes, epsilon, convention="posterior2023")
        inputs = private.images[chosen]
        if told:
            model = OnPixels(model)
        else:
            inputs, given = data.normalise(inputs), data.normalise(given)
        inputs = inputs.to(device)
        heads = observe_heads(model, inputs, targets.to(device), loss=used, batch_size=size)
        truth = torch.stack([one.bincount(minlength=private.classes) for one in labels.split(size)])
        known = Knowledge(
            model,
            (given.to(device), classes.to(device)),
            tuple(inputs.shape[1:]),
            loss=used,
            epsilon=epsilon,
            seed=seed + number,
        )
        untold = replace(known, loss=None, epsilon=0.0)
        for name, method in attacks.items():
            started = time.perf_counter()
            own = known if told or name == "posterior" else untold
            counts = count_heads(heads, method, own, whatever_holds=True).cpu()
            seconds[name] += time.perf_counter() - started
            both = torch.stack([metrics.class_jaccard(counts, truth), metrics.count_jaccard(counts, truth)], dim=1)
            found.setdefault(name, []).append(both)
    rows = []
    for name, parts in found.items():
        both = torch.cat(parts)
        rows.append(
            {"attack": name, "classes": float(both[:, 0].mean()), "instances": float(both[:, 1].mean())}
            | {"spread": float(both[:, 1].std()) if len(both) > 1 else 0.0, "count": len(both)}
            | {"seconds": seconds[name] / len(both)}
        )
    return rows


def _model(
    dataset: str,
    network: str,
    activation: str,
    init: str,
    private: data.Dataset,
    seed: int,
    epochs: int,
    device: str,
) -> nn.Module:
    if epochs:
        recipe = training.Recipe(
            network=network,
            dataset=dataset,
            epochs=epochs,
            learning_rate=1e-3,
            activation=activation,
            init=init,
            seed=seed,
        )
        return training.train(recipe, device=device).model.to(device)
    return built(network, private, seed, device, init=init, activation=activation)


def skewed(private: data.Dataset, size: int, share: float, generator: torch.Generator) -> Tensor:
    """Return a batch's indices (B,): classes at random, or this share of one class and the rest of the others."""
    wanted = torch.randint(private.classes, (size,), generator=generator)
    if share:
        few = round(share * size)
        others_ = wanted[few:] % (private.classes - 1)
        first = int(torch.randint(private.classes, (1,), generator=generator))
        wanted = torch.cat([torch.full((few,), first), others_ + (others_ >= first)])
    return augment.samples_of(private.labels, wanted, generator)


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    images = ", ".join(data.title(name) for name in datasets(parameters))
    return f"{parameters.networks} networks a row with {parameters.batches} batches each; {images}"


def table(record: Record) -> pd.DataFrame:
    """Return Table 2: class and instance accuracy of every attack."""
    return _both(record.part("table 2"), ROW)


def begun_table(record: Record) -> pd.DataFrame:
    """Return rows of Table 2 by their networks' random weights."""
    frame, begun = record.part("table 2"), record.part("begun")
    rows = begun[ROW].drop_duplicates()
    return _both(pd.concat([frame.merge(rows, on=ROW), begun]).sort_values("activation", kind="stable"), [*ROW, "init"])


def _both(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    lines = []
    for values, group in frame.groupby(keys, sort=False):
        about, own = dict(zip(keys, values, strict=True)), group.set_index("attack")
        line = {
            "dataset": data.title(str(about["dataset"])),
            "network": about["network"],
            "activation": about["activation"],
            "B": f"{about['size']:.0f}",
        }
        line |= {"weights": about["init"]} if "init" in about else {}
        for name in ATTACKS:
            line[name] = f"{own['classes'][name]:.3f} / {own['instances'][name]:.3f}"
        lines.append(line | {"n": f"{group['count'].iloc[0]:.0f}"})
    return pd.DataFrame(lines)


def told_table(record: Record) -> pd.DataFrame:
    """Return the instance accuracy of LLG and iLRG as published, and when they are told loss and normalisation."""
    frame = record.frame()
    keys = [*ROW, "loss", "temperature", "epsilon"]
    plain = frame[frame["part"].isin(["table 2", "table 3"])].set_index([*keys, "attack"])["instances"]
    lines = []
    for values, group in record.part("told").groupby(keys, sort=False):
        about, own = dict(zip(keys, values, strict=True)), group.set_index("attack")["instances"]
        line = {name: str(about[name]) for name in ("network", "activation", "loss")}
        line |= {"τ": f"{about['temperature']:g}", "ε": f"{about['epsilon']:g}"}
        for name in ("LLG", "iLRG"):
            before = plain.get((*values, name))
            line |= {name: "–" if before is None else f"{before:.3f}", f"{name}, told": f"{own[name]:.3f}"}
        lines.append(line | {"guess": f"{own['guess']:.3f}"})
    return pd.DataFrame(lines)


def variant_table(record: Record) -> pd.DataFrame:
    """Return Table 3: instance accuracy by loss, temperature and smoothing."""
    lines = []
    keys = ["loss", "temperature", "epsilon"]
    for (loss, temperature, epsilon), group in record.part("table 3").groupby(keys, sort=False):
        own = group.set_index("attack")
        lines.append(
            {"loss": loss, "τ": f"{temperature:g}", "ε": f"{epsilon:g}"}
            | {name: f"{own['instances'][name]:.3f} ± {own['spread'][name]:.3f}" for name in ATTACKS}
            | {"n": f"{group['count'].iloc[0]:.0f}"}
        )
    return pd.DataFrame(lines)


def figure_settings(record: Record) -> Figure:
    """Draw instance accuracy against batch size, imbalance (Figure 3) and auxiliary samples (Figure 4)."""
    figure, axes = figures.panels(1, 3, height=3.0, sharey=True)
    panels = (
        ("batch size", "size", "samples in a batch", "trained"),
        ("imbalance", "share", "share of one class", "trained"),
        ("scale", "auxiliary", "auxiliary samples of a class", "untrained"),
    )
    for axis, (part, column, label, title) in zip(axes[0], panels, strict=True):
        _draw(axis, record.part(part), column)
        if part != "imbalance":
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
        axis.set(title=title, xlabel=label, ylim=(0, 1.05), xticks=sorted(record.part(part)[column].unique()))
    axes[0][0].set_ylabel("instance accuracy")
    figures.legend_below(figure, len(ATTACKS))
    return figure


def _draw(axis: Axes, frame: pd.DataFrame, column: str) -> None:
    for name in ATTACKS:
        own = frame[frame["attack"] == name].sort_values(column)
        colour, dash = LOOKS[name]
        middle, spread = own["instances"].astype(float), own["spread"].astype(float)
        axis.plot(own[column], middle, color=colour, linestyle=dash, marker="o", markersize=4, label=name)
        axis.fill_between(own[column], middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
