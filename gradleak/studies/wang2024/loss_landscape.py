"""The loss over the scalar: one minimum, or many

wang2024, Figures 1 and 7, section 3.3, appendix C: where the variance loss has its minima, before and after training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field

from gradleak import data, studies
from gradleak.labels import LabelPath, Minima, find_minima, label_loss, nonnegative_intervals
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.samples import observe_private, private_samples, read, reduced, written

PLACE = "Section 3.3, Figures 1 and 7, Appendix C"
SMALLEST: dict[str, Any] = {"samples": 12, "epochs": 1, "untrained": "lenet"}

# The paper's code multiplies the variance by 1000 and accepts a loss below 1e-9 (FACTS of Algorithm 1).
ACCEPTED = 1e-9 / 1000
# It counts a scalar as found within 0.01, after scaling it by its coefficient of 4.
FOUND = 0.01 / 4
STARTS = {"first": 1.0, "first_scaled": 0.25}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    samples: int = Field(12, ge=1, le=100_000, description="single images a network and kind of label")
    dataset: str = Field("photos", description="private images, test split")
    untrained: str = Field("resnet18", description="the network as initialised")
    trained: str = Field("small-cnn", description="the network that is trained first")
    training_dataset: str = Field("photos", description="what it is trained on, training split")
    epochs: int = Field(1, ge=1, le=1000, description="training epochs")
    pretrained: str = Field("", description="a weights file to start the training from; empty: from scratch")

    paper: ClassVar[dict[str, Any]] = {
        "samples": 500,
        "dataset": "cifar10",
        "trained": "resnet20",
        "training_dataset": "cifar10",
        "epochs": 3,
        "pretrained": "cifar10_resnet20.pt",
    }

    def sees(self) -> list[Sees]:
        """Return both networks and the images that they are shown."""
        return [Sees(self.untrained, self.dataset), Sees(self.trained, self.dataset, learns=self.training_dataset)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.samples} images a network and kind of label, {data.title(parameters.dataset)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys([parameters.dataset, parameters.training_dataset]))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network, so that a network is trained once."""
    common = {
        "dataset": parameters.dataset,
        "samples": parameters.samples,
        "seed": parameters.seed,
        "device": studies.resolve_device(parameters.device),
    }
    recipe = training.Recipe(
        network=parameters.trained,
        dataset=parameters.training_dataset,
        labels="smoothing",
        epochs=parameters.epochs,
        pretrained=parameters.pretrained or None,
        bias=False,
        batch_size=64 if parameters.training_dataset == "photos" else 128,
        learning_rate=5e-3,
        seed=parameters.seed,
    )
    return [
        {"stage": "untrained", "network": parameters.untrained, "recipe": None, **common},
        {
            "stage": "trained",
            "network": parameters.trained,
            "recipe": recipe.model_dump(mode="json"),
            **common,
        },
    ]


def trial(**inputs: Any) -> list[dict[str, Any]]:
    """Find the minima of all three losses for every sample of one network; one row a sample and kind of label.

    One more row holds the sample that the figures show.
    """
    rows: list[dict[str, Any]] = []
    for labels in ("smoothing", "mixup"):
        path, truth, accuracy = paths_of(labels=labels, **inputs)
        found = {kind: find_minima(path, labels, kind, start=STARTS["first_scaled"]) for kind in ("variance", "square")}
        own: list[dict[str, Any]] = []
        intervals = nonnegative_intervals(path)
        for n, true in enumerate(truth.tolist()):
            variance, square = found["variance"][n], found["square"][n]
            near = [pair for pair in intervals[n] if pair[0] * true > 0]
            firsts = {name: first_minimum(variance, true, start) for name, start in STARTS.items()}
            own.append(
                {
                    "labels": labels,
                    "sample": n,
                    "truth": true,
                    "minima": len(variance.side(true).scalars),
                    **firsts,
                    **{f"{name}_wrong": not _found(value, true) for name, value in firsts.items()},
                    "best": variance.best,
                    "best_wrong": not _found(variance.best, true),
                    "accepted_wrong": _accepted_wrong(variance, true),
                    "square_right": _found(square.best, true),
                    "negative_interval": any(high / low > 1 + 1e-4 for low, high in near),
                    "test_accuracy": accuracy,
                }
            )
        rows += own
        if labels == "smoothing":
            sample = _example(own)
            rows.append(
                {"what": "example", "sample": sample, "truth": float(truth[sample])}
                | written(path[sample : sample + 1])
            )
    return rows


def _example(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the sample worth a closer look: the first whose first minimum is wrong, else one with the most minima."""
    wrong = (row["sample"] for row in rows if row["first_wrong"])
    return int(next(wrong, max(rows, key=lambda row: row["minima"])["sample"]))


def paths_of(
    *,
    labels: str,
    network: str,
    recipe: dict[str, Any] | None,
    dataset: str,
    samples: int,
    seed: int,
    device: str,
    **_: Any,
) -> tuple[LabelPath, torch.Tensor, float | None]:
    """Return the label paths of private samples on one network, their true scalars (N,), and its test accuracy."""
    private = data.load(dataset, "test")
    inputs, targets = private_samples(private, labels, samples, seed)
    if recipe is None:
        accuracy = None
        model = built(network, private, seed, device)
    else:
        trained = training.train(training.Recipe(**recipe), device=device)
        model, accuracy = trained.model, trained.accuracy
    leaks, errors = observe_private(model, inputs, targets, "float32", device)
    return *reduced(leaks, errors), accuracy


def first_minimum(minima: Minima, truth: float, start: float) -> float:
    """Return the first minimum that a walk outward from ±start meets, on the side of the true scalar."""
    side = minima.side(truth)
    beyond = side.scalars[side.scalars.abs() >= start * (1 - 1e-3)]
    return float(beyond[0]) if len(beyond) else float("nan")


def _found(scalar: float, truth: float) -> bool:
    # The relative part is for scalars in the hundreds, where float32 gradients cannot carry an absolute 0.0025.
    return abs(scalar - truth) <= max(FOUND, 1e-3 * abs(truth))


def _accepted_wrong(minima: Minima, truth: float) -> bool:
    low_enough = minima.scalars[(minima.losses <= ACCEPTED) & (minima.scalars.abs() >= STARTS["first_scaled"])]
    return any(not _found(scalar, truth) for scalar in low_enough.tolist())


def _samples(record: Record) -> pd.DataFrame:
    """Return a line a sample and kind of label."""
    return pd.DataFrame([line for line in record.lines if line.get("what") != "example"])


def table(record: Record) -> pd.DataFrame:
    """Return how often each rule for choosing a minimum goes wrong, a line a network and kind of label."""
    return _shares(
        record,
        {
            "first from ±1 wrong": "first_wrong",
            "first from ±¼ wrong": "first_scaled_wrong",
            "least wrong": "best_wrong",
            "wrong one accepted": "accepted_wrong",
        },
    )


def alternatives_table(record: Record) -> pd.DataFrame:
    """Return what the two losses of appendix C do, a line a network and kind of label."""
    columns = {"square loss right": "square_right", "negative mass 0 on an interval": "negative_interval"}
    return _shares(record, columns)


def _shares(record: Record, columns: Mapping[str, str]) -> pd.DataFrame:
    lines = []
    for (stage, network, labels), group in _samples(record).groupby(["stage", "network", "labels"], sort=False):
        line = {"network": f"{network}, {stage}", "labels": labels}
        lines.append(line | {name: f"{group[column].mean():.1%}" for name, column in columns.items()})
    return pd.DataFrame(lines)


def training_line(record: Record) -> str:
    """Return one sentence about the trained network."""
    frame = _samples(record)
    line = frame[frame["stage"] == "trained"].iloc[0]
    start = f", from {record.parameters['pretrained']}" if record.parameters["pretrained"] else ""
    return (
        f"{line['network']}, trained with label smoothing on {data.title(record.parameters['training_dataset'])} for "
        f"{record.parameters['epochs']} epochs{start}: {line['test_accuracy']:.1%} test accuracy"
    )


def _examples(record: Record) -> dict[str, Mapping[str, Any]]:
    """Return the sample that figures show of each network; a record may be older than the figures."""
    return {trial.inputs["stage"]: row for trial in record.trials for row in trial.rows if row.get("what") == "example"}


def figure_landscape(record: Record) -> Figure:
    """Redraw Figures 1 and 7: a row a network; the loss on both sides, near all its minima, and at the first one."""
    cases = _examples(record)
    if not cases:
        return figures.nothing("This record is older than the figure and lacks what it shows")
    figure, axes = figures.panels(len(cases), 3, height=2.7)
    for row, (name, case) in zip(axes, cases.items(), strict=True):
        path, truth = read(case), case["truth"]
        minima = find_minima(path, "smoothing", start=STARTS["first_scaled"])[0]
        side = minima.side(truth)
        marks = np.append(side.scalars.abs().numpy(), abs(truth))
        first = first_minimum(minima, truth, STARTS["first"])
        reach = 1.5 * float(marks.max())
        sign = float(np.sign(truth))
        windows = [
            np.concatenate([-np.geomspace(reach, 0.25, 900), [np.nan], np.geomspace(0.25, reach, 900)]),
            sign * np.geomspace(0.8 * marks.min(), 1.25 * marks.max(), 1200),
            first * np.linspace(0.93, 1.07, 600),
        ]
        titles = (f"{name}, both signs", "the true side", "the first minimum")
        for axis, scalars, title in zip(row, windows, titles, strict=True):
            _draw_loss(axis, path, scalars)
            inside = (side.scalars.numpy() >= np.nanmin(scalars)) & (side.scalars.numpy() <= np.nanmax(scalars))
            axis.plot(
                side.scalars[inside],
                side.losses[inside].clamp(min=1e-18),
                "o",
                color=figures.COLOURS[1],
                markersize=5,
                label="minimum",
            )
            if np.nanmin(scalars) <= truth <= np.nanmax(scalars):
                figures.mark_truth(axis, truth)
            axis.set(title=title, xlabel="λ")
        row[0].set_ylabel("variance loss")
    figures.legend_below(figure, 2)
    return figure


def _draw_loss(axis: Axes, path: LabelPath, scalars: np.ndarray[Any, Any]) -> None:
    values = label_loss(path.labels(torch.from_numpy(scalars)[None]))[0].clamp(min=1e-18)
    axis.plot(scalars, values, color=figures.COLOURS[0])
    axis.set_yscale("log")


def figure_alternatives(record: Record) -> Figure:
    """Draw the variance loss and both losses of appendix C over the same samples."""
    names = {
        "variance": "variance (Eqn. 5)",
        "square": "mean square (App. C)",
        "negative": "negative mass (App. C)",
    }
    cases = _examples(record)
    if not cases:
        return figures.nothing("This record is older than the figure and lacks what it shows")
    figure, axes = figures.panels(1, len(cases), height=3.5, sharey=True)
    for axis, (name, case) in zip(axes[0], cases.items(), strict=True):
        scalars = case["truth"] * np.geomspace(0.4, 4, 1200)
        labels = read(case).labels(torch.from_numpy(scalars)[None])[0]
        for index, (kind, label) in enumerate(names.items()):
            values = label_loss(labels, "smoothing", kind).clamp(min=1e-12)  # type: ignore[arg-type]
            axis.plot(scalars, values, color=figures.COLOURS[index], linestyle=figures.DASHES[index], label=label)
        figures.mark_truth(axis, case["truth"])
        axis.set(title=name, xlabel="λ", yscale="log", ylim=(1e-9, None))
    axes[0][0].set_ylabel("loss")
    figures.legend_below(figure, 4)
    return figure


def figure_minima(record: Record) -> Figure:
    """Draw how many minima the loss has on the true side, before and after training."""
    frame = _samples(record)
    kinds = list(dict.fromkeys(frame["labels"]))
    figure, axes = figures.panels(1, len(kinds), height=2.9, sharey=True)
    for axis, kind in zip(axes[0], kinds, strict=True):
        sns.histplot(
            frame[frame["labels"] == kind], x="minima", hue="stage", ax=axis, discrete=True, multiple="dodge",
            stat="proportion", common_norm=False, shrink=0.8, legend=axis is axes[0][-1],
            palette=[figures.COLOURS[0], figures.COLOURS[2]],
        )  # fmt: skip
        axis.set_xticks(range(1, int(frame["minima"].max()) + 1))
        axis.set(title=kind, xlabel="minima on the true side", ylabel="")
    axes[0][0].set_ylabel("share of samples")
    axes[0][-1].get_legend().set_title("")
    return figure
