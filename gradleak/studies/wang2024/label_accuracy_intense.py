"""Soft labels from two networks in depth

wang2024, section 4.1, Table 2: recovered labels of untrained and trained networks, by three solvers.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import data, metrics, studies
from gradleak.labels import recover_soft_labels
from gradleak.labels.soft import search
from gradleak.leak import HeadLeaks, observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import attacked_networks, searched
from gradleak.studies.shared.attacked_networks import Row
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples
from gradleak.studies.shared.searched import KNOWN, Search, judged, search_both

PLACE = "Table 2"
SMALLEST: dict[str, Any] = {"samples": 20, "rows": ["photos/lenet/untrained"]}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    samples: int = Field(50, ge=2, le=100_000, description="single images a network and kind of label")
    doubles: int = Field(20, ge=2, le=100_000, description="of these, how many are observed in float64 as well")
    searches: int = Field(4, ge=1, le=100_000, description="of these, how many the published L-BFGS search is run on")
    swarms: int = Field(1, ge=1, le=100_000, description="of these, how many the particle swarm is run on alone")
    rows: list[Row] = Field(
        ["photos/lenet/untrained", "photos/resnet18/untrained"],
        validate_default=True,
        description="networks, as dataset/network/stage",
    )

    paper: ClassVar[dict[str, Any]] = {
        "samples": 1000,
        "doubles": 200,
        "searches": 200,
        "swarms": 20,
        "rows": [
            "cifar10/lenet/untrained",
            "cifar10/lenet/trained",
            "cifar10/resnet18/untrained",
            "cifar10/resnet18/trained",
            "cifar10/resnet20/trained",
            "flowers17/alexnet/untrained",
            "flowers17/alexnet/trained",
            "flowers17/resnet18/untrained",
            "flowers17/resnet18/trained",
        ],
    }

    def sees(self) -> list[Sees]:
        """Return the networks of all rows, and the images that they are shown."""
        return [row.sees for row in self.rows]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    names = dict.fromkeys(data.title(str(row).partition("/")[0]) for row in parameters.rows)
    return f"{parameters.samples} images a network and kind of label, {', '.join(names)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    trained = [row.training for row in parameters.rows if row.stage == "trained"]
    return list(dict.fromkeys([*(row.dataset for row in parameters.rows), *trained]))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a network and a kind of label each."""
    common = {name: getattr(parameters, name) for name in ("samples", "doubles", "searches", "swarms", "seed")}
    return [
        {"row": str(row), "labels": labels, "device": studies.resolve_device(parameters.device), **common}
        for row in parameters.rows
        for labels in LABELS
    ]


def trial(
    *, row: str, labels: str, samples: int, doubles: int, searches: int, swarms: int, seed: int, device: str
) -> list[dict[str, Any]]:
    """Recover the labels of one network's private samples by every solver; one row a solver."""
    line = Row.of(row)
    private = data.load(line.dataset, "test")
    inputs, targets = private_samples(private, labels, samples, seed)
    model, accuracy = attacked_networks.network(line, labels, private, seed, device)
    about = {"dataset": line.dataset, "network": line.network, "stage": line.stage, "test_accuracy": accuracy}
    leaks = observe_heads(model.to(device), inputs.to(device), targets.to(device))
    results = [{"solver": "exact", "dtype": "float32"} | exact_row(leaks, targets, labels)]
    few, errors = observe_private(model, inputs[:searches], targets[:searches], "float32", device)
    results += search_rows(few, targets[:searches], errors, labels, swarms)
    double, _ = observe_private(model, inputs[:doubles], targets[:doubles], "float64", device)
    results.append({"solver": "exact", "dtype": "float64"} | exact_row(double, targets[:doubles], labels))
    return [about | result for result in results]


def exact_row(leaks: HeadLeaks, targets: Tensor, prior: str) -> dict[str, Any]:
    """Return what the exact solver makes of all samples at once."""
    started = time.perf_counter()
    found = recover_soft_labels(leaks.weight_gradients, leaks.weight, prior=prior)
    seconds = time.perf_counter() - started
    return {"milliseconds": 1e3 * seconds / len(found)} | judged(found.labels, found.status, targets)


def search_rows(leaks: HeadLeaks, targets: Tensor, errors: Tensor, prior: str, swarms: int) -> list[dict[str, Any]]:
    """Return what the published searches make of the samples: L-BFGS, a swarm where that fails, and swarms alone."""
    gradients, weight = leaks.weight_gradients.cpu(), leaks.weight.cpu()
    row = gradients.sum(dim=2).abs().argmax(dim=1, keepdim=True)
    truth = 1 / errors.cpu().gather(1, row)[:, 0]
    coefficient = search.COEFFICIENTS["mixup" if prior == "mixup" else "smoothing"]

    def row_of(name: str, found: Search) -> dict[str, Any]:
        count = len(found.scalars)
        misses = metrics.label_error(found.labels, targets[:count].cpu())
        right = misses < KNOWN
        return {
            "solver": name,
            "dtype": "float32",
            "count": count,
            "accuracy": 100 * float(right.double().mean()),
            "oracle": 100 * float(metrics.oracle_success(found.scalars, truth[:count], coefficient).double().mean()),
            # Scalars that Algorithm 1 gives up before; the swarm's windows end earlier still.
            "out_of_reach": 100 * float((coefficient * truth[:count]).abs().gt(search.BOUND).double().mean()),
            "failed": 100 * float((~found.ended).double().mean()),
            "silent": int((found.ended & ~right).sum()),
            "mean_error": float(misses[right].mean()) if right.any() else None,
            "milliseconds": 1e3 * found.seconds / count,
        }

    first, both = search_both(gradients, weight, prior)
    alone = searched.search(gradients[:swarms], weight, prior, "pso")
    return [row_of("lbfgs", first), row_of("lbfgs, then pso", both), row_of("pso", alone)]


def table(record: Record) -> pd.DataFrame:
    """Return Table 2 as the exact solver has it, a line a network and kind of label."""
    frame = _solver(record, "exact", "float32")
    return pd.DataFrame(
        {
            "images": frame["dataset"].map(data.title),
            "network": _networks(frame),
            "labels": frame["labels"],
            "accuracy": frame["accuracy"].map("{:.1f} %".format),
            "silently wrong": frame["silent"].astype(int),
            "mean L_r": frame["mean_error"].map("{:.1e}".format),
            "largest": frame["largest_error"].map("{:.1e}".format),
            "mean, float64": _solver(record, "exact", "float64")["mean_error"].map("{:.1e}".format).to_numpy(),
        }
    )


def _networks(frame: pd.DataFrame) -> list[str]:
    """Return what each line's network is called, with its test accuracy where it is trained."""
    return [
        f"{row['network']}, {row['stage']}"
        + ("" if pd.isna(row["test_accuracy"]) else f" ({row['test_accuracy']:.0%})")
        for row in frame.to_dict("records")
    ]


def solver_table(record: Record) -> pd.DataFrame:
    """Return the solvers side by side, over all networks, a line a solver and kind of label."""
    frame = record.frame()
    frame = frame[frame["dtype"] == "float32"]
    lines = []
    for (labels, solver), group in frame.groupby(["labels", "solver"], sort=False):
        weight = group["count"] / group["count"].sum()
        lines.append(
            {
                "labels": labels,
                "solver": solver,
                "samples": f"{group['count'].sum():.0f}",
                "blind": f"{(group['accuracy'] * weight).sum():.1f} %",
                "with an oracle": "–" if solver == "exact" else f"{(group['oracle'] * weight).sum():.1f} %",
                "silently wrong": f"{group['silent'].sum():.0f}",
                "ms": f"{(group['milliseconds'] * weight).sum():.3g}",
                "× exact": _ratio(group, frame, labels),
            }
        )
    return pd.DataFrame(lines)


def search_table(record: Record) -> pd.DataFrame:
    """Return the published search on every network, and how many of the true scalars it cannot reach."""
    frame = _solver(record, "lbfgs, then pso", "float32")
    return pd.DataFrame(
        {
            "images": frame["dataset"].map(data.title),
            "network": frame["network"] + ", " + frame["stage"],
            "labels": frame["labels"],
            "blind": frame["accuracy"].map("{:.0f} %".format),
            "with an oracle": frame["oracle"].map("{:.0f} %".format),
            "out of bounds": frame["out_of_reach"].map("{:.0f} %".format),
            "silently wrong": frame["silent"].astype(int),
            "ms": frame["milliseconds"].map("{:.3g}".format),
        }
    )


def _ratio(group: pd.DataFrame, frame: pd.DataFrame, labels: Any) -> str:
    exact = frame[(frame["labels"] == labels) & (frame["solver"] == "exact")].set_index("row")["milliseconds"]
    return f"{(group.set_index('row')['milliseconds'] / exact).median():,.0f}"


def _solver(record: Record, solver: str, dtype: str) -> pd.DataFrame:
    frame = record.frame()
    return frame[(frame["solver"] == solver) & (frame["dtype"] == dtype)]


def figure_errors(record: Record) -> Figure:
    """Draw the label error of every network in both precisions: mean over the known samples, and the largest."""
    figure, axes = figures.panels(1, len(LABELS), height=0.42 * record.frame()["row"].nunique() + 1.2, sharey=True)
    for axis, labels in zip(axes[0], LABELS, strict=True):
        for index, dtype in enumerate(("float32", "float64")):
            frame = _solver(record, "exact", dtype)
            frame = frame[frame["labels"] == labels]
            places = range(len(frame))
            # One-hot labels have no digits to lose: their error is exactly 0, drawn at the axis' end.
            mean = frame["mean_error"].astype(float).clip(lower=1e-17)
            largest = frame["largest_error"].astype(float).clip(lower=1e-17)
            colour = figures.COLOURS[2 * index]
            axis.hlines(places, mean, largest, color=colour, linewidth=1.2)
            axis.plot(mean, places, "o", color=colour, label=f"{dtype}, mean")
            axis.plot(largest, places, "|", color=colour, markersize=9, label=f"{dtype}, largest")
        names = (frame["stage"] + " " + frame["network"] + ", " + frame["dataset"].map(data.title)).tolist()
        axis.set(title=labels, xscale="log", xlim=(3e-18, 3e-2), xlabel="label error L_r (L1)")
        axis.set_yticks(range(len(names)), names)
    axes[0][0].invert_yaxis()
    figures.legend_below(figure, 4)
    return figure


def figure_times(record: Record) -> Figure:
    """Draw the time a sample takes, a point a network and kind of label."""
    frame = record.frame()
    frame = frame[frame["dtype"] == "float32"]
    names = ["exact", "lbfgs", "lbfgs, then pso", "pso"]
    figure, axes = figures.panels(1, 1, height=2.8)
    axis = axes[0][0]
    sns.swarmplot(
        frame, x="milliseconds", y="solver", hue="solver", order=names, hue_order=names, ax=axis, log_scale=True,
        palette=list(figures.COLOURS[:4]), size=4.5, legend=False, warn_thresh=1,
    )  # fmt: skip
    axis.set(xlabel="milliseconds a sample", ylabel="")
    return figure
