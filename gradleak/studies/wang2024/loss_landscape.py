"""The loss over the scalar: one minimum, or many

wang2024, Figures 1 and 7, section 3.3, appendix C: where the variance loss has its minima, before and after training.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field

from gradleak import data, studies
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.labels import LabelPath, Minima, find_minima, label_loss, nonnegative_intervals
from gradleak.models import training
from gradleak.studies.fitting import Sees
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.samples import observe_private, private_samples, reduced

PLACE = "Section 3.3, Figures 1 and 7, Appendix C"
SMALLEST: dict[str, Any] = {"samples": 12, "epochs": 1, "untrained": "lenet"}

# The paper's code multiplies the variance by 1000 and accepts a loss below 1e-9 (FACTS of Algorithm 1).
ACCEPTED = 1e-9 / 1000
# It counts a scalar as found within 0.01, after scaling it by its coefficient of 4.
FOUND = 0.01 / 4
STARTS = {"first": 1.0, "first_scaled": 0.25}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    samples: int = Field(300, ge=1, le=100_000, description="single images a network and kind of label")
    dataset: str = Field("photos", description="private images, test split")
    untrained: str = Field("resnet18", description="the network as initialised")
    trained: str = Field("small-cnn", description="the network that is trained first")
    training_dataset: str = Field("photos", description="what it is trained on, training split")
    epochs: int = Field(12, ge=1, le=1000, description="training epochs")
    pretrained: str = Field("", description="a weights file to start the training from; empty: from scratch")

    paper: ClassVar[dict[str, Any]] = {
        "samples": 500,
        "dataset": "cifar10",
        "trained": "resnet18-cifar",
        "training_dataset": "cifar10-jpeg",
        "epochs": 30,
    }

    def sees(self) -> list[Sees]:
        """Return both networks and the images that they are shown."""
        return [Sees(self.untrained, self.dataset), Sees(self.trained, self.dataset, learns=self.training_dataset)]


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
    """Find the minima of all three losses for every sample of one network; one row a sample and kind of label."""
    rows: list[dict[str, Any]] = []
    for labels in ("smoothing", "mixup"):
        path, truth, accuracy = paths_of(labels=labels, **inputs)
        found = {kind: find_minima(path, labels, kind, start=STARTS["first_scaled"]) for kind in ("variance", "square")}
        intervals = nonnegative_intervals(path)
        for n, true in enumerate(truth.tolist()):
            variance, square = found["variance"][n], found["square"][n]
            near = [pair for pair in intervals[n] if pair[0] * true > 0]
            firsts = {name: first_minimum(variance, true, start) for name, start in STARTS.items()}
            rows.append(
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
    return rows


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


def table(record: Record) -> pd.DataFrame:
    """Return how often each rule for choosing a minimum goes wrong, a line a network and kind of label."""
    keys = ["stage", "network", "labels"]
    groups = record.frame().groupby(keys, sort=False)
    return pd.DataFrame([dict(zip(keys, key, strict=True)) | _line(group) for key, group in groups])


def _line(group: pd.DataFrame) -> dict[str, str]:
    def percent(column: str) -> str:
        return f"{group[column].mean():.1%}"

    return {
        "samples": f"{len(group)}",
        "minima, mean (most)": f"{group['minima'].mean():.2f} ({group['minima'].max()})",
        "first from ±1 wrong": percent("first_wrong"),
        "first from ±¼ wrong": percent("first_scaled_wrong"),
        "least wrong": percent("best_wrong"),
        "wrong one accepted": percent("accepted_wrong"),
        "square loss right": percent("square_right"),
        "negative mass 0 on an interval": percent("negative_interval"),
    }


def training_line(record: Record) -> str:
    """Return one sentence about the trained network."""
    frame = record.frame()
    line = frame[frame["stage"] == "trained"].iloc[0]
    return (
        f"{line['network']}, trained with label smoothing on {record.parameters['training_dataset']} for "
        f"{record.parameters['epochs']} epochs: {line['test_accuracy']:.1%} test accuracy"
    )


def example(record: Record, stage: str, labels: str = "smoothing") -> tuple[LabelPath, float, int]:
    """Return the label path, the true scalar and the number of the sample worth a closer look.

    It is the first sample whose first minimum from ±1 is wrong, else the one with the most minima.
    """
    frame = record.frame()
    frame = frame[(frame["stage"] == stage) & (frame["labels"] == labels)].reset_index()
    wrong = frame[frame["first_wrong"]]
    sample = int(wrong["sample"].iloc[0]) if len(wrong) else int(frame["sample"][frame["minima"].argmax()])
    inputs = next(trial.inputs for trial in record.trials if trial.inputs["stage"] == stage)
    path, truth, _ = paths_of(labels=labels, **inputs)
    return path[sample : sample + 1], float(truth[sample]), sample


def figure_landscape(cases: dict[str, tuple[LabelPath, float, int]], prior: str = "smoothing") -> Figure:
    """Redraw Figures 1 and 7: a row a network; the loss on both sides, near all its minima, and at the first one."""
    figure, axes = figures.panels(len(cases), 3, height=2.9, width=9.6)
    for row, (name, (path, truth, sample)) in zip(axes, cases.items(), strict=True):
        minima = find_minima(path, prior, start=STARTS["first_scaled"])[0]
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
        titles = (f"{name}, sample {sample}", "all minima on the true side", "at the first minimum from ±1")
        for axis, scalars, title in zip(row, windows, titles, strict=True):
            _draw_loss(axis, path, scalars, prior)
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
        row[1].legend(loc="best")
    return figure


def _draw_loss(axis: Axes, path: LabelPath, scalars: np.ndarray[Any, Any], prior: str) -> None:
    at = torch.tensor(scalars, dtype=path.ratios.dtype)[None]
    values = label_loss(path.labels(at), prior)[0].clamp(min=1e-18)
    axis.plot(scalars, values, color=figures.COLOURS[0])
    axis.set_yscale("log")


def figure_alternatives(cases: dict[str, tuple[LabelPath, float, int]], prior: str = "smoothing") -> Figure:
    """Draw the variance loss and both losses of appendix C over the same samples."""
    names = {
        "variance": "variance (Eqn. 5)",
        "square": "mean square (App. C)",
        "negative": "negative mass (App. C)",
    }
    figure, axes = figures.panels(1, len(cases), height=3.3, width=9.0, sharey=True)
    for axis, (name, (path, truth, _)) in zip(axes[0], cases.items(), strict=True):
        scalars = truth * np.geomspace(0.4, 4, 1200)
        labels = path.labels(torch.tensor(scalars, dtype=path.ratios.dtype)[None])[0]
        for index, (kind, label) in enumerate(names.items()):
            values = label_loss(labels, prior, kind).clamp(min=1e-12)  # type: ignore[arg-type]
            axis.plot(scalars, values, color=figures.COLOURS[index], linestyle=figures.DASHES[index], label=label)
        figures.mark_truth(axis, truth)
        axis.set(title=name, xlabel="λ", yscale="log", ylim=(1e-9, None))
    axes[0][0].set_ylabel("loss")
    axes[0][0].legend(loc="best")
    return figure


def figure_minima(record: Record) -> Figure:
    """Draw how many minima the loss has on the true side, before and after training."""
    frame = record.frame()
    kinds = list(dict.fromkeys(frame["labels"]))
    figure, axes = figures.panels(1, len(kinds), height=2.8, sharey=True)
    for axis, kind in zip(axes[0], kinds, strict=True):
        for index, (stage, group) in enumerate(frame[frame["labels"] == kind].groupby("stage", sort=False)):
            counts = group["minima"].value_counts(normalize=True).sort_index()
            axis.bar(
                counts.index + (index - 0.5) * 0.38, counts.values, width=0.36,
                color=figures.COLOURS[2 * index], label=stage,
            )  # fmt: skip
        axis.set(title=kind, xlabel="minima on the true side")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0][0].set_ylabel("share of samples")
    axes[0][-1].legend()
    return figure
