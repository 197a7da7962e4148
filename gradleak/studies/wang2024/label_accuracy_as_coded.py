"""Soft labels from the networks of the published code

wang2024, section 4.1, Tables 1 and 2: a trained trunk under a random last layer, and a ResNet18 with a 3×3 stem.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import claims, data, metrics, models, studies
from gradleak.labels import idlg, recover_soft_labels
from gradleak.labels.soft import search
from gradleak.leak import HeadLeaks, head_inputs
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.last_layers import TRAINED
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples
from gradleak.studies.shared.searched import KNOWN, judged, search_both

PLACE = "Tables 1 and 2"
SMALLEST: dict[str, Any] = {"drawn": 4, "searched": 1, "samples": 10, "searches": 2, "networks": ["small-cnn/1"]}
HEADS = {"torch": "as loaded", "uniform": "U(−½, ½)"}
# Labels are smoothed in training; mixed and one-hot ones are attacked on the same network.
RECIPE: dict[str, Any] = {"labels": "smoothing", "batch_size": 64, "learning_rate": 2e-3, "bias": False}
STEMS = {"resnet18": "ResNet18, 7×7 stem", "resnet18-cifar": "ResNet18, 3×3 stem"}


class Network(Form):
    """A network that is trained here, and for how many epochs."""

    network: str
    epochs: Whole = Field(ge=1, le=10_000)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    datasets: list[str] = Field(["photos"], description="Table 1: private images, test split")
    trunk: str = Field("small-cnn", description="Table 1: the trained network, its last layer drawn at random")
    heads: list[Literal["torch", "uniform"]] = Field(
        ["torch", "uniform"], description="Table 1: what that is drawn from: as the code has it, or U(−0.5, 0.5)"
    )
    draws: int = Field(2, ge=1, le=1000, description="Table 1: last layers, each with its images")
    drawn: int = Field(10, ge=2, le=100_000, description="Table 1: images of a draw and kind of label")
    searched: int = Field(1, ge=1, le=100_000, description="Table 1: of these, how many the search is run on")
    dataset: str = Field("photos", description="Table 2: images, training split to train on, test split private")
    networks: list[Network] = Field(
        ["small-cnn/1", "small-cnn/2"], validate_default=True, description="Table 2: networks, as network/epochs"
    )
    samples: int = Field(50, ge=2, le=100_000, description="Table 2: single images a network and kind of label")
    searches: int = Field(3, ge=1, le=100_000, description="Table 2: of these, how many the search is run on")

    paper: ClassVar[dict[str, Any]] = {
        "datasets": ["tinyimagenet32", "flowers17", "imagenet-sample"],
        "trunk": TRAINED,
        "draws": 10,
        "drawn": 25,
        "searched": 10,
        "dataset": "cifar10",
        "networks": ["resnet18-cifar/3", "resnet18/3", "resnet18/12"],
        "samples": 1000,
        "searches": 100,
    }

    def sees(self) -> list[Sees]:
        """Return the networks, and the images that they are shown."""
        trunks = [
            Sees(TRAINED, dataset, channels=3) if self.trunk == TRAINED else Sees(self.trunk, dataset, learns=dataset)
            for dataset in self.datasets
        ]
        return trunks + [Sees(one.network, self.dataset, learns=self.dataset) for one in self.networks]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    names = ", ".join(map(data.title, parameters.datasets))
    return (
        f"{parameters.draws} draws with {parameters.drawn} images a kind of label, {names}; "
        f"{parameters.samples} images a network, {data.title(parameters.dataset)}"
    )


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys([*parameters.datasets, parameters.dataset]))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a kind of label each, by dataset and last layer, and by network."""
    common = {"seed": parameters.seed, "device": studies.resolve_device(parameters.device)}
    drawn = {name: getattr(parameters, name) for name in ("trunk", "draws", "drawn", "searched")}
    fixed = {name: getattr(parameters, name) for name in ("dataset", "samples", "searches")}
    heads = [
        {"part": "heads", "dataset": dataset, "head": head, "labels": labels} | drawn | common
        for dataset in parameters.datasets
        for head in parameters.heads
        for labels in LABELS
    ]
    trained = [
        {"part": "trained", "network": str(network), "labels": labels} | fixed | common
        for network in parameters.networks
        for labels in LABELS
    ]
    return heads + trained


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Recover the labels of a part's samples, exactly and by the published search; two rows a network."""
    return PARTS[part](**inputs)  # type: ignore[no-any-return, operator]  # each takes its own


def _heads(
    *, dataset: str, head: str, labels: str, trunk: str, draws: int, drawn: int, searched: int, seed: int, device: str
) -> list[dict[str, Any]]:
    private = data.load(dataset, "test")
    body = models.efficientnet_lite0() if trunk == TRAINED else _fitted(trunk, 1, dataset, seed, device).model
    rows = []
    for draw in range(1, draws + 1):
        inputs, targets = private_samples(private, labels, drawn, seed + draw)
        features, _ = head_inputs(body.to(device), inputs.to(device), chunk=50)
        layer = _drawn(features.shape[1], private.classes, head, seed + draw)
        rows += [{"draw": draw} | row for row in _attacked(layer, features, targets, labels, searched, device)]
    return rows


def _drawn(features: int, classes: int, head: str, seed: int) -> nn.Linear:
    """Return a last layer without a bias: PyTorch's default, or as the code draws untrained networks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(features, classes, bias=False)
        if head == "uniform":
            nn.init.uniform_(layer.weight, -0.5, 0.5)
    return layer


def _trained(
    *, network: str, labels: str, dataset: str, samples: int, searches: int, seed: int, device: str
) -> list[dict[str, Any]]:
    form = Network.of(network)
    trained = _fitted(form.network, form.epochs, dataset, seed, device)
    inputs, targets = private_samples(data.load(dataset, "test"), labels, samples, seed)
    features, _ = head_inputs(trained.model.to(device), inputs.to(device))
    layer = trained.model.get_submodule("head")
    rows = _attacked(layer, features, targets, labels, searches, device)
    return [{"test_accuracy": 100 * trained.accuracy} | row for row in rows]


def _fitted(network: str, epochs: int, dataset: str, seed: int, device: str) -> training.Trained:
    recipe = training.Recipe(network=network, dataset=dataset, epochs=epochs, seed=seed, **RECIPE)
    return training.train(recipe, device=device)


PARTS = {"heads": _heads, "trained": _trained}


def _attacked(
    layer: nn.Module, features: Tensor, targets: Tensor, labels: str, searches: int, device: str
) -> list[dict[str, Any]]:
    """Return what the exact solver makes of all samples, and the published search of the first few."""
    leaks, errors = observe_private(layer, features, targets, "float32", device)
    none = leaks.weight_gradients.flatten(1).abs().amax(dim=1).cpu() == 0
    found = recover_soft_labels(leaks.weight_gradients, leaks.weight, prior=labels)
    right = metrics.label_error(found.labels.cpu(), targets) < KNOWN
    top = idlg(leaks.weight_gradients).cpu() == targets.argmax(dim=1)
    exact = judged(found.labels.cpu(), found.status, targets) | {
        "solver": "exact",
        "zero": _percent(none),
        # The published code returns 0 for a zero gradient, and 0 counts as a success there.
        "counted_zero": _percent(right | none),
        "idlg": _percent(top) if labels == "onehot" else None,
        "certain": _percent((errors.cpu() + targets).amax(dim=1)),
    }
    few = replace(leaks, weight_gradients=leaks.weight_gradients[:searches])
    return [exact, _searched(few, targets[:searches], errors[:searches], labels, none[:searches])]


def _searched(leaks: HeadLeaks, targets: Tensor, errors: Tensor, labels: str, none: Tensor) -> dict[str, Any]:
    gradients, weight = leaks.weight_gradients.cpu(), leaks.weight.cpu()
    _, found = search_both(gradients, weight, labels)
    row = gradients.sum(dim=2).abs().argmax(dim=1, keepdim=True)
    truth = 1 / errors.cpu().gather(1, row)[:, 0]
    coefficient = search.COEFFICIENTS["mixup" if labels == "mixup" else "smoothing"]
    misses = metrics.label_error(found.labels, targets)
    return {
        "solver": "search",
        "count": len(gradients),
        "accuracy": _percent(misses < KNOWN),
        "counted": _percent(none | metrics.oracle_success(found.scalars, truth, coefficient)),
        "ended": _percent(found.ended),
        # Scalars that Algorithm 1 gives up before; the swarm's windows end earlier still.
        "out_of_reach": _percent((coefficient * truth).abs() > search.BOUND),
        "median_error": float(misses.nanmedian()),
    }


def _percent(values: Tensor) -> float:
    return 100 * float(values.double().mean())


def _lines(record: Record, part: str, solver: str) -> pd.DataFrame:
    frame = record.part(part)
    return frame[frame["solver"] == solver]


def heads_table(record: Record) -> pd.DataFrame:
    """Return Table 1 with the trained trunk beside the paper's cells, a line a cell and last layer."""
    cells = claims.published("label-accuracy", "drawn", ("dataset", "labels"))
    cells |= claims.published("label-accuracy", "accuracy", ("dataset", "labels"))
    # What is measured in CIFAR-100's place is asked for by both names.
    cells |= {("tinyimagenet32", kind): value for kind, value in _cifar100().items()}
    searched = _lines(record, "heads", "search").groupby(["dataset", "head", "labels"], sort=False)
    lines = []
    for (dataset, head, labels), group in _lines(record, "heads", "exact").groupby(
        ["dataset", "head", "labels"], sort=False
    ):
        other = searched.get_group((dataset, head, labels))
        lines.append(
            {
                "images": data.title(str(dataset)),
                "last layer": HEADS[str(head)],
                "labels": labels,
                "published": _cell(cells.get((dataset, labels))),
                "exact": _spread(group["counted_zero"]),
                "search, oracle": _spread(other["counted"]),
                "search, blind": _spread(other["accuracy"]),
                "its L_r": f"{other['median_error'].median():.0e}",
                "most likely class": f"{group['certain'].mean():.1f} %",
            }
        )
    return pd.DataFrame(lines)


def _cifar100() -> dict[str, Any]:
    """Return what Table 1 has for CIFAR-100, by kind of label."""
    found = {}
    for claim in claims.load("label-accuracy"):
        where = claim.measure.where
        if "cifar100" in where.get("dataset", ()) and claim.measure.column in ("drawn", "accuracy"):
            found[where["labels"]] = claim.published
    return found


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:g} %"


def _spread(values: pd.Series[float]) -> str:
    spread = f" ± {values.std():.1f}" if len(values) > 1 else ""
    return f"{values.mean():.1f}{spread} %"


def trained_table(record: Record) -> pd.DataFrame:
    """Return Table 2's ResNet18 in both forms, a line a network and kind of label."""
    published = claims.published("label-accuracy-intense", "oracle", ("row", "labels"))
    errors = claims.published("label-accuracy-intense", "mean_error", ("row", "labels"))
    searched = _lines(record, "trained", "search").set_index(["network", "labels"])
    lines = []
    for row in _lines(record, "trained", "exact").to_dict("records"):
        other = searched.loc[(row["network"], row["labels"])]
        name, epochs = str(row["network"]).split("/")
        place = (f"{row['dataset']}/resnet18/trained", row["labels"])
        error = errors.get(place)
        lines.append(
            {
                "network": f"{STEMS.get(name, name)}, {epochs} epoch{'s' * (epochs != '1')}",
                "test accuracy": f"{row['test_accuracy']:.1f} %",
                "labels": row["labels"],
                "published": _cell(published.get(place)),
                "exact": f"{row['accuracy']:.1f} %",
                "search, oracle": f"{other['counted']:.0f} %",
                "search, blind": f"{other['accuracy']:.0f} %",
                "out of bounds": f"{other['out_of_reach']:.0f} %",
                "mean L_r": f"{row['mean_error']:.1e}",
                "published L_r": "–" if error is None else f"{error:.1e}",
            }
        )
    return pd.DataFrame(lines)


def figure_found(record: Record) -> Figure:
    """Draw what the search finds, blind, against how certain the network is: a dot a network or draw."""
    figure, axes = figures.panels(1, len(LABELS), height=3.0, sharey=True)
    frame = record.frame()
    exact = frame[frame["solver"] == "exact"].reset_index(drop=True)
    search = frame[frame["solver"] == "search"].reset_index(drop=True)
    kinds = {f"random layer, {HEADS[head]}": exact["head"] == head for head in HEADS if "head" in exact}
    kinds |= {"trained whole": exact["part"] == "trained"}
    for axis, labels in zip(axes[0], LABELS, strict=True):
        for (name, own), colour, marker in zip(kinds.items(), figures.COLOURS, "os^", strict=False):
            chosen = own & (exact["labels"] == labels)
            axis.plot(
                exact["certain"][chosen], search["accuracy"][chosen], marker, color=colour, label=name,
                markersize=5, alpha=0.8,
            )  # fmt: skip
        axis.set(title=labels, xlabel="most likely class, %", xscale="log", xlim=(0.1, 130), ylim=(-4, 104))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
    axes[0][0].set_ylabel("found by the search, %")
    figures.legend_below(figure, len(kinds))
    return figure
