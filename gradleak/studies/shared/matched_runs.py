"""Runs of gradient matching on the same images and random starts, and the comparison of these runs."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor, nn

from gradleak import augment, claims, data, metrics, studies
from gradleak.images import LBFGS, Adam, Distance, Prior, match
from gradleak.images.matching.objective import Kind
from gradleak.images.presets import preset
from gradleak.leak import observe
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import drawn, lines
from gradleak.show.summaries import decibels, joined, least, mean, only, select, spread, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import STAGES, AttackedNetwork, Stage
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.restored import Quality, graded, quality

# wang2024's weights of total variation.
VARIATION = {"untrained": 1e-2, "trained": 1e-3}
# The number of points of a curve, of images in a strip, and of bootstrap resamples.
POINTS, SHOWN, DRAWS = 20, 6, 4000
# The PSNR (dB) that equal images have in a mean.
TOP = 200.0


class Parameters(studies.Parameters):
    """Parameters of the table's rows: images, random starts, networks and steps."""

    pairs: int = setting(2, paper=45, ge=2, le=10_000, about="mixed images, one for each pair of classes")
    images: int = setting(2, paper=30, ge=2, le=10_000, about="images with smoothed labels")
    l2_restarts: int = setting(1, paper=10, ge=1, le=100, about="random starts per image of L2 matching")
    cosine_restarts: int = setting(1, paper=10, ge=1, le=100, about="random starts per image of cosine matching")
    l2_steps: int = setting(1, paper=300, ge=1, le=100_000, about="L-BFGS steps of L2 matching, 20 iterations each")
    cosine_steps: int = setting(10, paper=4800, ge=1, le=1_000_000, about="Adam steps of cosine matching")
    whole: int = setting(
        0,
        paper=45,
        ge=0,
        le=10_000,
        about="images per L2 row of the untrained LeNet that get full L-BFGS steps",
    )
    whole_starts: int = setting(1, paper=10, ge=1, le=100, about="random starts per image of the runs with full steps")
    stages: list[Stage] = setting(["untrained"], paper=list(STAGES), about="stages of training: untrained, trained")
    dataset: str = setting("photos", paper="cifar10", about="private images, test split")

    def sees(self) -> list[Sees]:
        """Return LeNet in each stage of training, with its private images."""
        return [Fixed(**vars(one), lpips=1) for one in lenets(self.dataset, self.stages)]

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return f"{self.pairs} mixed images and {self.images} images with smoothed labels, {data.title(self.dataset)}"


class OfRun(Row):
    """A result of one run of matching, with the name of the run; `what` is the kind of row."""

    what: str
    run: str


class MatchedImage(OfRun, Quality):
    """The image restored from one random start.

    Attributes:
        image: The number of the private image.
        restart: The number of the random start.
        seconds: The run's time (s), divided by the number of its images and starts.
        status: The status that the matching reports.
        loss: The final loss.
        lost: 1 if the start diverged, else 0.
        bad: The number of losses that were not finite.
        label_error: The L1 error of the label; stated only for the start that the attacker chooses, the one of least
            loss.
    """

    image: int
    restart: int
    seconds: float
    status: str
    loss: float
    lost: int
    bad: int
    label_error: float = math.nan


class CurvePoint(OfRun):
    """The best iterates up to a step: their median loss and their mean PSNR (dB)."""

    step: int
    loss: float
    psnr: float


class Strip(OfRun):
    """The first images of a run, or the private ones, side by side."""

    picture: str


class PairedRuns(OfRun):
    """The mean difference in PSNR (dB) between two runs on the same images.

    Attributes:
        images: The number of images.
        difference: The first run's PSNR minus the second run's, mean over images.
        low: The lower end of its 95 % confidence interval.
        high: The upper end.
        apart: The larger absolute value of the two ends, a bound on the size of the difference.
    """

    images: int
    difference: float
    low: float
    high: float
    apart: float


class Trained(Row):
    """The test accuracy of the network of a table row; None if it is untrained."""

    what: str
    accuracy: float | None


@dataclass(frozen=True)
class Matching:
    """The settings of a run; `labels` is how the attacker gets the labels, None if the true labels are known."""

    distance: Distance
    prior: Prior
    optimizer: Adam | LBFGS
    labels: str | None = None


class Private(NamedTuple):
    """A network, its test accuracy (None if untrained), and the private inputs and labels."""

    model: nn.Module
    accuracy: float | None
    inputs: Tensor
    targets: Tensor

    def first(self, count: int) -> Private:
        """Return the same with only the first `count` samples."""
        return self._replace(inputs=self.inputs[:count], targets=self.targets[:count])


class OnLeNet(Experiment):
    """Private images on LeNet at one stage of training."""

    stage: Stage
    dataset: str

    def reads(self) -> list[str]:
        """Return the dataset of the private images and, for a trained network, its training set."""
        return [self.dataset, *([_lenet(self.dataset, "trained").training] if self.stage == "trained" else [])]

    def splits(self, dataset: str) -> list[str]:
        """Return "test" for the dataset of the private images; a network is trained on both splits of another."""
        return ["test"] if dataset == self.dataset else ["train", "test"]


class Matched(OnLeNet):
    """One row of a table: images with one kind of label, restored with one distance of gradients."""

    effort_fields: ClassVar[frozenset[str]] = frozenset({"samples", "steps", "restarts"})

    labels: str
    distance: Kind
    samples: int
    steps: int
    restarts: int

    @classmethod
    def every(cls, parameters: Parameters, **inputs: Any) -> Iterator[Self]:
        """Yield the experiments of all rows of a table; `inputs` are the same for all rows."""
        samples = {"mixup": parameters.pairs, "smoothing": parameters.images}
        steps = {"l2": parameters.l2_steps, "cosine": parameters.cosine_steps}
        restarts = {"l2": parameters.l2_restarts, "cosine": parameters.cosine_restarts}
        for labels, distance, stage in itertools.product(samples, steps, parameters.stages):
            own = {"labels": labels, "distance": distance, "stage": stage, "restarts": restarts[distance]}
            yield cls.of(parameters, samples=samples[labels], steps=steps[distance], **(own | inputs))

    def private(self) -> Private:
        """Return the row's network and its private inputs and labels."""
        return private(self.labels, self.stage, self.samples, self.dataset, self.seed, self.device)

    def matching(self, *, labels: str | None = None, whole: bool = False, **weights: float) -> Matching:
        """Return wang2024's settings for this row.

        Args:
            labels: How the attacker gets the labels; None if the true labels are known.
            whole: Whether L-BFGS takes full steps, without a line search.
            weights: The weights of the distance.
        """
        distance = Distance(self.distance, **weights)
        return Matching(distance, prior(self.stage), optimizer(self.distance, self.steps, whole=whole), labels)

    def compared(self, shown: Private, runs: Mapping[str, Matching]) -> list[OfRun]:
        """Match the gradient of every sample in each run, from the same random starts.

        Args:
            shown: The network with the private inputs and labels.
            runs: The settings of each run, by its name.

        Returns:
            A row for each image and start, the points of each run's curve, a strip of images of each run, and the strip
            of the private images.
        """
        inputs, targets = shown.inputs, shown.targets
        leaks = [observe(shown.model, inputs[n : n + 1], targets[n : n + 1].to(inputs)) for n in range(len(inputs))]
        truth = data.denormalise(inputs.double()).clamp(0, 1)
        rows: list[OfRun] = []
        for name, how in runs.items():
            seen: dict[int, list[float]] = {}

            def watch(who: Tensor, step: int, best: Tensor, seen: dict[int, list[float]] = seen) -> None:
                values = metrics.psnr(data.denormalise(best[:, 0].double()), truth[who // self.restarts])
                seen.setdefault(step, []).extend(values.tolist())

            started = time.perf_counter()
            found = match(
                leaks,
                targets.to(inputs) if how.labels is None else how.labels,
                distance=how.distance,
                prior=how.prior,
                optimizer=how.optimizer,
                restarts=self.restarts,
                seed=self.seed,
                label_prior=self.labels,
                watch=watch,
            )
            seconds = (time.perf_counter() - started) / (len(inputs) * self.restarts)
            errors = metrics.label_error(found.labels.double(), targets)
            for restart in range(self.restarts):
                images = data.denormalise(found.attempts[:, restart, 0].double())
                for n, near in enumerate(quality(images, truth)):
                    row = MatchedImage.of(
                        near,
                        what="image",
                        run=name,
                        image=n,
                        restart=restart,
                        seconds=seconds,
                        status=found.status[n][restart],
                        loss=float(found.losses[n, restart]),
                        lost=int(found.status[n][restart] == "diverged"),
                        bad=int(found.bad[n, restart]),
                    )
                    chosen = restart == int(found.chosen[n])
                    rows.append(MatchedImage.of(row, label_error=float(errors[n])) if chosen else row)
            rows += _curve(name, found.history, found.curves, seen)
            strip = data.denormalise(found.attempts[:SHOWN, 0, 0].double())
            rows.append(Strip(what="picture", run=name, picture=packed(strip, len(strip))))
        strip = truth[:SHOWN]
        return [*rows, Strip(what="picture", run="private", picture=packed(strip, len(strip)))]


def table_samples(dataset: data.Dataset, labels: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return private inputs and labels (float64) as in wang2024, section 4.3.

    Mixup mixes one image of each class of a pair. The pairs of classes come in random order, and none is repeated
    before all have been used. Smoothing takes the classes in turn, and repeats an image only after all images of its
    class.
    """
    generator = torch.Generator().manual_seed(seed)
    classes = dataset.classes
    shares = torch.rand(count, generator=generator, dtype=torch.float64)
    if labels == "smoothing":
        rounds = [torch.randperm(classes, generator=generator) for _ in range(-(-count // classes))]
        own = augment.samples_of(dataset.labels, torch.cat(rounds)[:count], generator)
        return data.normalise(dataset.images[own]), augment.smooth(dataset.labels[own], classes, shares / 2)
    pairs = torch.tensor(list(itertools.combinations(range(classes), 2)))
    rounds = [pairs[torch.randperm(len(pairs), generator=generator)] for _ in range(-(-count // len(pairs)))]
    wanted = torch.cat(rounds)[:count]
    sides = [
        data.normalise(dataset.images[augment.samples_of(dataset.labels, side, generator)])
        for side in wanted.unbind(dim=1)
    ]
    hot = [augment.one_hot(side, classes).double() for side in wanted.unbind(dim=1)]
    part = shares.reshape(-1, 1, 1, 1).to(sides[0])
    return part * sides[0] + (1 - part) * sides[1], shares[:, None] * hot[0] + (1 - shares[:, None]) * hot[1]


def optimizer(distance: str, steps: int, *, whole: bool = False) -> Adam | LBFGS:
    """Return wang2024's optimiser of a distance; L-BFGS gets a line search unless its steps are `whole`."""
    own: Adam | LBFGS = replace(preset(f"wang2024-{distance}")["optimizer"], steps=steps)
    return LBFGS(steps=steps) if isinstance(own, LBFGS) and not whole else own


def _lenet(dataset: str, stage: str) -> AttackedNetwork:
    return AttackedNetwork.of(f"{dataset}/lenet/{stage}")


def lenets(dataset: str, stages: Sequence[str]) -> list[Sees]:
    """Return LeNet in each stage of training, with its private images."""
    return [_lenet(dataset, stage).sees for stage in stages]


def private(labels: str, stage: str, samples: int, dataset: str, seed: int, device: str) -> Private:
    """Return LeNet at a stage of training, and private inputs and labels of one kind."""
    own = data.load(dataset, "test")
    inputs, targets = table_samples(own, labels, samples, seed)
    model, accuracy = attacked_networks.network(_lenet(dataset, stage), labels, own, seed, device)
    return Private(model.to(device), accuracy, inputs.to(device), targets.to(device))


def _curve(name: str, steps: Tensor, curves: Tensor, seen: Mapping[int, list[float]]) -> list[CurvePoint]:
    every = max(1, -(-len(steps) // POINTS))
    return [
        CurvePoint(
            what="curve",
            run=name,
            step=int(steps[place]),
            loss=float(curves[..., place].median()),
            psnr=float(np.mean(seen[int(steps[place])])),
        )
        for place in {*range(0, len(steps), every), len(steps) - 1}
    ]


def paired(rows: Sequence[Row], pairs: Sequence[tuple[str, str]], seed: int) -> list[PairedRuns]:
    """Compare runs image by image: the mean difference in PSNR and its 95 % bootstrap interval over images."""
    means: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if isinstance(row, MatchedImage):
            # The PSNR of a diverged image is minus infinity, and counts as 0 dB.
            means.setdefault(row.run, {}).setdefault(row.image, []).append(max(0.0, min(row.psnr, TOP)))
    generator = np.random.default_rng(seed)
    found = []
    for first, second in pairs:
        values = np.array([np.mean(means[first][n]) - np.mean(means[second][n]) for n in sorted(means[first])])
        draws = values[generator.integers(len(values), size=(DRAWS, len(values)))].mean(axis=1)
        low, high = map(float, np.quantile(draws, [0.025, 0.975]))
        found.append(
            PairedRuns(
                what="paired",
                run=against(first, second),
                images=len(values),
                difference=float(values.mean()),
                low=low,
                high=high,
                apart=max(abs(low), abs(high)),
            )
        )
    return found


def against(first: str, second: str) -> str:
    """Return the name of a pair of runs; a comma ends the first run's name if this name contains a comma."""
    return f"{first}, against {second}" if "," in first else f"{first} against {second}"


def rows_of(record: Record, what: str) -> pd.DataFrame:
    """Return a record's rows of one kind: image, curve, paired, picture or network."""
    frame = record.frame()
    return frame[frame["what"] == what]


def counted(psnr: pd.Series[Any]) -> pd.Series[float]:
    """Return PSNRs limited to 0 … 200 dB, so that lost images and equal images have a mean."""
    return psnr.astype(float).clip(0, TOP)


def mean_text(psnr: pd.Series[Any]) -> str:
    """Return the mean of PSNRs as a table cell."""
    return f"{counted(psnr).mean():.1f}"


def _distance(name: Hashable) -> str:
    """Return the name of a distance as it is shown."""
    return "L2" if name == "l2" else str(name)


def psnr_table(record: Record, runs: Sequence[str], names: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the mean PSNR (dB) of 8-bit pixels beside the paper's, "ours / paper".

    One row for each kind of label, distance and stage of LeNet; one column for each run. `names` gives the heads of
    these columns.
    """
    cells = claims.published(record.study, "eight_bit", ("labels", "distance", "stage", "run"))
    networks = rows_of(record, "network").to_dict("records")
    trained = {(row["labels"], row["stage"]): row["accuracy"] for row in networks if row["stage"] == "trained"}
    lines = []
    for keys, group in rows_of(record, "image").groupby(["labels", "distance", "stage"], sort=False):
        labels, distance, stage = keys
        line = {"labels": labels, "distance": _distance(distance), "LeNet": stage}
        if (labels, stage) in trained:
            line["LeNet"] = f"trained to {100 * trained[labels, stage]:.0f}\u00a0%"
        for name in runs:
            own = group[group["run"] == name]
            stated = cells.get((*keys, name), "–")
            line[(names or {}).get(name, name)] = f"{mean_text(own['eight_bit'])} / {stated}"
        lines.append(line)
    return pd.DataFrame(lines)


def interval_table(record: Record, runs: Mapping[str, str], run: str = "label") -> pd.DataFrame:
    """Return each run's mean PSNR (dB) of 8-bit pixels, with its confidence interval, beside the paper's.

    One row for each kind of label, distance, stage of LeNet and run. Columns: the numbers of images and starts, the
    mean, its 95 % bootstrap interval over images, the paper's value, whether this value lies in the interval, and the
    number of images that are recognisable.

    Args:
        record: The record.
        runs: The names of the runs as they are shown, by their names in the record.
        run: The head of the column with these names.
    """
    cells = claims.published(record.study, "eight_bit", ("labels", "distance", "stage", "run"))
    lines = []
    for keys, group in rows_of(record, "image").groupby(["labels", "distance", "stage", "run"], sort=False):
        labels, distance, stage, name = keys
        if name not in runs:
            continue
        psnr = counted(group["eight_bit"])
        values = psnr.groupby(group["image"]).mean().to_numpy()
        picked = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
        low, high = np.quantile(values[picked].mean(axis=1), [0.025, 0.975])
        stated = cells.get(keys)
        lines.append(
            {
                "labels": labels,
                "distance": _distance(distance),
                "LeNet": stage,
                run: runs[str(name)],
                "images × starts": f"{len(values)} × {group['restart'].nunique()}",
                "mean PSNR (dB)": f"{values.mean():.1f}",
                "95 % interval (dB)": f"{low:.1f} … {high:.1f}",
                "paper (dB)": "–" if stated is None else f"{stated}",
                "paper's value": "–" if stated is None else _side(stated, low, high),
                f"recognisable ({metrics.RECOGNISABLE:.0f} dB)": graded("recognisable")(group),
            }
        )
    return pd.DataFrame(lines)


def _side(value: float, low: float, high: float) -> str:
    return "below" if value < low else "above" if value > high else "within"


def detail_table(record: Record, run: str = "label", names: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the measures of a table besides 8-bit PSNR.

    One row for each kind of label, distance, stage of LeNet and run. Columns: PSNR (dB), its least value, SSIM, LPIPS,
    the label's L1 error L_r, the number of diverged starts, and the time (s) per image and start.
    """
    rows = rows_of(record, "image")
    rows = rows.astype({"lpips": float, "label_error": float}).assign(
        counted=counted(rows["psnr"]),
        psnr=rows["psnr"].astype(float).clip(lower=0),
        diverged=rows["status"].eq("diverged"),
        distance=rows["distance"].map(_distance),
        run=rows["run"].map(lambda name: (names or {}).get(name, name)),
    )
    return summary(
        rows,
        {"labels": "labels", "distance": "distance", "LeNet": "stage", run: "run"},
        {
            "mean PSNR (dB)": spread("counted", ".1f"),
            "lowest PSNR (dB)": least("psnr", ".1f"),
            "SSIM": mean("ssim", ".3f"),
            "LPIPS": mean("lpips", lambda value: "n/a" if math.isnan(value) else f"{value:.3f}"),
            "label error L_r (L1)": mean("label_error", ".1e"),
            "starts diverged": total("diverged", ".0f"),
            "time per start (s)": mean("seconds", ".2g"),
        },
    )


def paired_table(record: Record) -> pd.DataFrame:
    """Return the differences in mean PSNR (dB) between pairs of runs on the same images and starts.

    One row for each pair and table row. Columns: the difference, its 95 % bootstrap interval and the number of images.
    """
    rows = rows_of(record, "paired")
    return summary(
        rows.assign(distance=rows["distance"].map(_distance)),
        {"labels": "labels", "distance": "distance", "LeNet": "stage", "compared": "run"},
        {
            "difference of mean PSNR (dB)": only("difference", "+.2f"),
            "95 % interval (dB)": joined(" … ", only("low", "+.2f"), only("high", "+.2f")),
            "images": only("images", ".0f"),
        },
    )


def draw_strips(
    record: Record, runs: Sequence[str], names: Mapping[str, str] | None = None, **where: Hashable
) -> Figure:
    """Draw the first images of table rows: the private ones above those of each run, each with its PSNR (dB).

    Args:
        record: The record.
        runs: The runs, from top to bottom.
        names: The names of the runs beside the images.
        where: The values of columns that choose table rows; all rows if it is empty.
    """
    keys = ["labels", "distance", "stage"]
    first = rows_of(record, "image").query("restart == 0").sort_values("image").groupby([*keys, "run"])["psnr"]
    shown: dict[Hashable, list[float]] = {name: list(psnr.head(SHOWN)) for name, psnr in first}
    groups = list(select(rows_of(record, "picture"), **where).groupby(keys, sort=False))
    figure, axes = figures.grid(len(groups), 2, height=3.6)
    figure.set_layout_engine("compressed")
    for axis, (values, group) in zip(axes, groups, strict=True):
        strips = group.set_index("run")["picture"]
        show(axis, [strips[name] for name in ["private", *runs]], ["private", *((names or {}).get(n, n) for n in runs)])
        size = abs(axis.get_ylim()[0] - axis.get_ylim()[1]) / (len(runs) + 1)
        for line, name in enumerate(runs, start=1):
            for place, psnr in enumerate(shown[*values, name]):
                axis.text(
                    (place + 0.04) * size, (line + 0.95) * size, decibels(psnr), va="bottom", fontsize=6.5,
                    color="white", path_effects=[withStroke(linewidth=1.6, foreground="black")],
                )  # fmt: skip
        axis.tick_params(axis="y", labelsize=8)
        axis.set_title(_row_name(*values))
    return figure


def _row_name(labels: Hashable, distance: Hashable, stage: Hashable) -> str:
    return f"{labels}, {_distance(distance)}, {stage} LeNet"


def draw_curves(
    record: Record, runs: Sequence[str], column: str = "psnr", names: Mapping[str, str] | None = None
) -> Figure:
    """Draw the best iterates' mean PSNR (dB) or median loss against the step, a panel per table row, a line per run."""
    shown = {name: (names or {}).get(name, name) for name in runs}

    def label(run: str) -> str:
        return shown.get(run, run)

    return drawn(
        rows_of(record, "curve"),
        lines("step", column, by="run", order=list(shown.values()), label=label, marker=""),
        panels=["labels", "distance", "stage"],
        title=_row_name,
        across=2,
        height=2.1,
        legend=3 if names else len(runs),
        sharey=False,
        xlabel="step",
        ylabel="mean PSNR (dB)" if column == "psnr" else "median loss",
        yscale="log" if column == "loss" else "linear",
    )


def prior(stage: str) -> Prior:
    """Return wang2024's image prior for a stage of training."""
    return Prior(variation=VARIATION[stage])
