"""Loss landscape: one minimum over the scalar, or many

wang2024, Figures 1 and 7, section 3.3, appendix C: the minima of the variance loss before and after training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import PlainSerializer

from gradleak import claims, data, studies
from gradleak.labels import LabelPath, Minima, find_minima, label_loss, nonnegative_intervals
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.summaries import share, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.samples import observe_private, private_samples, read, reduced, written

PLACE = "Section 3.3, Figures 1 and 7, Appendix C"
# The paper's code multiplies the variance by 1000 and its Algorithm 1 accepts a loss below 1e-9.
ACCEPTED = 1e-9 / 1000
# The paper's code multiplies the scalar by 4 and counts it as found within 0.01.
FOUND = 0.01 / 4
# The starts of a walk outward: ±1, and ±¼, which is ±1 divided by the coefficient of 4.
START, START_SCALED = 1.0, 0.25
KINDS = ("smoothing", "mixup")
EXAMPLE = "example"
# A training recipe that is written to a trial's inputs with all fields, as JSON.
StatedRecipe = Annotated[training.Recipe, PlainSerializer(lambda recipe: recipe.model_dump(mode="json"))]


class Parameters(studies.Parameters):
    """Parameters of the page: the untrained and the trained network, the training, and the images."""

    samples: int = setting(12, paper=500, ge=1, le=100_000, about="single images per network and kind of label")
    dataset: str = setting("photos", paper="cifar10", about="dataset of the private images, test split")
    untrained: str = setting("resnet18", smallest="lenet", about="the network that is attacked without training")
    trained: str = setting("small-cnn", paper="resnet20", about="the network that is trained before the attack")
    training_dataset: str = setting("photos", paper="cifar10", about="dataset of the training, training split")
    epochs: int = setting(1, paper=3, ge=1, le=1000, about="training epochs")
    pretrained: str = setting(
        "",
        paper="cifar10_resnet20.pt",
        about="file of weights from which the training starts; empty to train from scratch",
    )

    def sees(self) -> list[Sees]:
        """Return both networks and the images that they see."""
        return [Sees(self.untrained, self.dataset), Sees(self.trained, self.dataset, learns=self.training_dataset)]

    def experiments(self) -> list[Experiment]:
        """Return one experiment for each network, so that each network is trained only once."""
        recipe = training.Recipe(
            network=self.trained,
            dataset=self.training_dataset,
            labels="smoothing",
            epochs=self.epochs,
            pretrained=self.pretrained or None,
            bias=False,
            batch_size=64 if self.training_dataset == "photos" else 128,
            learning_rate=5e-3,
            seed=self.seed,
        )
        return [
            Landscape.of(self, stage="untrained", network=self.untrained, recipe=None),
            Landscape.of(self, stage="trained", network=self.trained, recipe=recipe),
        ]

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{self.samples} images for each network and kind of label, {data.title(self.dataset)}"


class SampleMinima(Row):
    """The minima of one sample's variance loss, and which rules for choosing a minimum are wrong.

    Attributes:
        truth: The true scalar.
        minima: The number of minima with the sign of the true scalar.
        first: The first minimum on a walk outward from ±1.
        first_scaled: The first minimum on a walk outward from ±¼.
        best: The minimum with the least loss.
        accepted_wrong: Whether the loss of a wrong minimum is low enough for the paper's code to accept it.
        square_right: Whether the least minimum of the mean square is right.
        negative_interval: Whether labels without negative entries fill an interval of scalars instead of a point.
        test_accuracy: The network's test accuracy if it is trained.
    """

    labels: str
    sample: int
    truth: float
    minima: int
    first: float
    first_scaled: float
    first_wrong: bool
    first_scaled_wrong: bool
    best: float
    best_wrong: bool
    accepted_wrong: bool
    square_right: bool
    negative_interval: bool
    test_accuracy: float | None


class Example(Row):
    """The sample that figures show, with its true scalar and label path; `what` is "example"."""

    what: str
    sample: int
    truth: float
    logits: list[float]
    ratios: list[float]


class Landscape(Experiment):
    """Find the minima of the loss of single images in one network, untrained or trained by `recipe`."""

    stage: str
    network: str
    recipe: StatedRecipe | None
    dataset: str
    samples: int

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        return [self.dataset, self.recipe.dataset] if self.recipe else [self.dataset]

    def run(self) -> Iterator[SampleMinima | Example]:
        """Find the minima of every sample for both kinds of label, and choose the sample that figures show."""
        for labels in KINDS:
            path, truth, accuracy = self._paths(labels)
            rows = sample_minima(path, truth, labels, accuracy)
            yield from rows
            if labels == "smoothing":
                sample = _example(rows)
                kept = written(path[sample : sample + 1])
                yield Example(what=EXAMPLE, sample=sample, truth=float(truth[sample]), **kept)

    def _paths(self, labels: str) -> tuple[LabelPath, torch.Tensor, float | None]:
        """Return the label paths of the samples, their true scalars (N,), and a trained network's test accuracy."""
        private = data.load(self.dataset, "test")
        inputs, targets = private_samples(private, labels, self.samples, self.seed)
        if self.recipe is None:
            accuracy = None
            model = built(self.network, private, self.seed, self.device)
        else:
            trained = training.train(self.recipe, device=self.device)
            model, accuracy = trained.model, trained.accuracy
        return *reduced(*observe_private(model, inputs, targets, "float32", self.device)), accuracy


def sample_minima(path: LabelPath, truth: torch.Tensor, labels: str, test_accuracy: float | None) -> list[SampleMinima]:
    """Find the minima of the variance and of the mean square, and compare them with the true scalars.

    Args:
        path: The label paths of N samples.
        truth: The true scalars (N,).
        labels: The kind of label.
        test_accuracy: The network's test accuracy if it is trained.

    Returns:
        A row for each sample.
    """
    variances = find_minima(path, labels, "variance", start=START_SCALED)
    squares = find_minima(path, labels, "square", start=START_SCALED)
    rows = []
    for n, (true, variance, square, intervals) in enumerate(
        zip(truth.tolist(), variances, squares, nonnegative_intervals(path), strict=True)
    ):
        first, first_scaled = (first_minimum(variance, true, start) for start in (START, START_SCALED))
        rows.append(
            SampleMinima(
                labels=labels,
                sample=n,
                truth=true,
                minima=len(variance.side(true).scalars),
                first=first,
                first_scaled=first_scaled,
                first_wrong=not _found(first, true),
                first_scaled_wrong=not _found(first_scaled, true),
                best=variance.best,
                best_wrong=not _found(variance.best, true),
                accepted_wrong=_accepted_wrong(variance, true),
                square_right=_found(square.best, true),
                negative_interval=any(high / low > 1 + 1e-4 for low, high in intervals if low * true > 0),
                test_accuracy=test_accuracy,
            )
        )
    return rows


def _example(rows: Sequence[SampleMinima]) -> int:
    """Return the first sample whose first minimum is wrong, else a sample with the most minima."""
    return next((row.sample for row in rows if row.first_wrong), max(rows, key=lambda row: row.minima).sample)


def first_minimum(minima: Minima, truth: float, start: float) -> float:
    """Return the first minimum on a walk outward from ±start with the sign of the true scalar, NaN if there is none."""
    side = minima.side(truth)
    beyond = side.scalars[side.scalars.abs() >= start * (1 - 1e-3)]
    return float(beyond[0]) if len(beyond) else float("nan")


def _found(scalar: float, truth: float) -> bool:
    # The relative tolerance is for scalars in the hundreds, whose rounding errors in float32 exceed 0.0025.
    return abs(scalar - truth) <= max(FOUND, 1e-3 * abs(truth))


def _accepted_wrong(minima: Minima, truth: float) -> bool:
    low_enough = minima.scalars[(minima.losses <= ACCEPTED) & (minima.scalars.abs() >= START_SCALED)]
    return any(not _found(scalar, truth) for scalar in low_enough.tolist())


def _samples(record: Record) -> pd.DataFrame:
    """Return a row for each sample and kind of label."""
    return pd.DataFrame([line for line in record.lines if line.get("what") != EXAMPLE])


def headline(record: Record) -> Headline:
    """Return the finding: training adds wrong minima before the right one, which stays the lowest."""
    known = claims.judgements(record)
    untrained, trained, lowest = (
        known[f"loss-landscape-{name}"] for name in ("untrained-first", "trained-first", "least")
    )
    return Headline(
        f"A search that stops at the first minimum of its loss finds a wrong scalar for {untrained.text} of the "
        f"smoothed labels on an untrained ResNet18, but for {trained.text} on a trained ResNet20; the lowest minimum "
        f"is wrong for {lowest.text} there.",
        true=bool(untrained.agrees and lowest.agrees and (trained.value or 0) > 20),
        claim="loss-landscape-trained-first",
        what="smoothed labels whose first minimum is a wrong scalar, trained ResNet20, CIFAR-10 images",
        figure=figure_landscape,
        of="images",
    )


def table(record: Record) -> pd.DataFrame:
    """Return how often each rule for choosing a minimum is wrong.

    Rows: networks and kinds of label. Columns: the shares of samples with a wrong first minimum from ±1, a wrong first
    minimum from ±¼, a wrong lowest minimum, and a wrong minimum that the paper's code accepts.
    """
    return _shares(
        _samples(record),
        {
            "first minimum from ±1 wrong": "first_wrong",
            "first minimum from ±¼ wrong": "first_scaled_wrong",
            "lowest minimum wrong": "best_wrong",
            "wrong minimum accepted": "accepted_wrong",
        },
    )


def alternatives_table(record: Record) -> pd.DataFrame:
    """Return the results of the two losses of appendix C.

    Rows: networks and kinds of label. Columns: the share of samples for which the square loss is right, and the share
    for which the negative mass is 0 on an interval.
    """
    columns = {
        "mean square: lowest minimum right": "square_right",
        "negative mass: zero on an interval": "negative_interval",
    }
    return _shares(_samples(record), columns)


def _shares(rows: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    return summary(
        rows.assign(name=rows["network"] + ", " + rows["stage"]),
        {"network": "name", "labels": "labels"},
        {head: share(column, ".1%") for head, column in columns.items()},
    )


def training_line(record: Record) -> str:
    """Return a sentence on the trained network: its training and its test accuracy."""
    frame = _samples(record)
    line = frame[frame["stage"] == "trained"].iloc[0]
    stated = record.stated(Parameters)
    start = f", from {stated.pretrained}" if stated.pretrained else ""
    return (
        f"{line['network']}, trained with label smoothing on {data.title(stated.training_dataset)} for "
        f"{stated.epochs} epochs{start}\ntest accuracy: {line['test_accuracy']:.1%}"
    )


def _examples(record: Record) -> dict[str, Example]:
    """Return the sample that figures show for each network; older records have none."""
    return {
        str(trial.inputs["stage"]): Example.model_validate(row)
        for trial in record.trials
        for row in trial.rows
        if row.get("what") == EXAMPLE
    }


def figure_landscape(record: Record) -> Figure:
    """Plot the variance loss of one sample against the scalar λ, as Figures 1 and 7 do; one row for each network.

    Left: both signs of λ. Middle: all minima with the sign of the true scalar. Right: the first minimum.
    """
    cases = _examples(record)
    if not cases:
        return figures.nothing("This record is older than the figure and lacks what it shows")
    figure, axes = figures.panels(len(cases), 3, height=2.7)
    for row, (name, case) in zip(axes, cases.items(), strict=True):
        path, truth = read(case.logits, case.ratios), case.truth
        minima = find_minima(path, "smoothing", start=START_SCALED)[0]
        side = minima.side(truth)
        marks = np.append(side.scalars.abs().numpy(), abs(truth))
        first = first_minimum(minima, truth, START)
        reach = 1.5 * float(marks.max())
        sign = float(np.sign(truth))
        windows = [
            np.concatenate([-np.geomspace(reach, 0.25, 900), [np.nan], np.geomspace(0.25, reach, 900)]),
            sign * np.geomspace(0.8 * marks.min(), 1.25 * marks.max(), 1200),
            first * np.linspace(0.93, 1.07, 600),
        ]
        titles = (f"{name}, both signs", "sign of the true scalar", "near the first minimum")
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
    """Plot the variance loss and both losses of appendix C against the scalar λ, one panel for each network."""
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
        scalars = case.truth * np.geomspace(0.4, 4, 1200)
        labels = read(case.logits, case.ratios).labels(torch.from_numpy(scalars)[None])[0]
        for index, (kind, label) in enumerate(names.items()):
            values = label_loss(labels, "smoothing", kind).clamp(min=1e-12)  # type: ignore[arg-type]
            axis.plot(scalars, values, color=figures.COLOURS[index], linestyle=figures.DASHES[index], label=label)
        figures.mark_truth(axis, case.truth)
        axis.set(title=name, xlabel="λ", yscale="log", ylim=(1e-9, None))
    axes[0][0].set_ylabel("loss")
    figures.legend_below(figure, 4)
    return figure


def figure_minima(record: Record) -> Figure:
    """Plot the distribution of the number of minima with the true scalar's sign, for the untrained and trained network.

    One panel for each kind of label.
    """
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
        axis.set(title=kind, xlabel="minima with the sign of the true scalar", ylabel="")
    axes[0][0].set_ylabel("share of samples")
    axes[0][-1].get_legend().set_title("")
    return figure
