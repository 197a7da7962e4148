"""Runs of gradient matching side by side on the same images and starts, and how they are told apart."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import augment, claims, data, metrics, studies
from gradleak.images import LBFGS, Adam, Distance, Prior, match
from gradleak.images.matching.objective import Kind
from gradleak.images.presets import preset
from gradleak.leak import observe
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import least, mean, spread, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import STAGES, AttackedNetwork, Stage
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.restored import Quality, quality

# wang2024's weights of total variation.
VARIATION = {"untrained": 1e-2, "trained": 1e-3}
# Points of a curve, images of a strip, draws of a bootstrap.
POINTS, SHOWN, DRAWS = 20, 6, 4000
# In dB: what is under the first is no image; equal images count as the second in a mean.
LOST, TOP = 15, 200.0


class Parameters(studies.Parameters):
    """How many images and starts each row of the table has, on which networks, and for how many steps."""

    pairs: int = setting(2, paper=45, ge=2, le=10_000, about="mixed images, one a pair of classes")
    images: int = setting(2, paper=30, ge=2, le=10_000, about="images with smoothed labels")
    restarts: int = setting(1, paper=10, ge=1, le=100, about="random starts an image")
    l2_steps: int = setting(1, paper=300, ge=1, le=100_000, about="L-BFGS steps of L2 matching, 20 gradients each")
    cosine_steps: int = setting(10, paper=4800, ge=1, le=1_000_000, about="Adam steps of cosine matching")
    whole: int = setting(0, paper=45, ge=0, le=10_000, about="images of each untrained L2 row that get whole steps")
    whole_starts: int = setting(1, paper=10, ge=1, le=100, about="random starts of those")
    stages: list[Stage] = setting(["untrained"], paper=list(STAGES), about="networks: untrained, trained")
    dataset: str = setting("photos", paper="cifar10", about="private images, test split")

    def sees(self) -> list[Sees]:
        """Return LeNet in its states, and the images that it is shown."""
        return [Fixed(**vars(one), lpips=1) for one in lenets(self.dataset, self.stages)]

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        return f"{self.pairs} mixed and {self.images} smoothed images, {data.title(self.dataset)}"


class OfRun(Row):
    """What came out of a run of matching, by the run's name; `what` says which sort of row it is."""

    what: str
    run: str


class MatchedImage(OfRun, Quality):
    """An image that one start led to: `lost` is 1 where it diverged, `bad` counts losses that were not finite.

    `label_error`: of the label in L1, at the start that the attacker chooses by its loss.
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
    """The best so far at a step: the median loss, and the mean PSNR."""

    step: int
    loss: float
    psnr: float


class Strip(OfRun):
    """The first images of a run, or the private ones, side by side."""

    picture: str


class PairedRuns(OfRun):
    """How much higher the first run's PSNR is, and between which numbers its mean lies with 95 % confidence.

    `apart`: within this of no difference, with the same confidence.
    """

    images: int
    difference: float
    low: float
    high: float
    apart: float


class Trained(Row):
    """The test accuracy of a row's network, where it is trained."""

    what: str
    accuracy: float | None


@dataclass(frozen=True)
class Matching:
    """How a run matches, and where it has its labels from: None where it knows them."""

    distance: Distance
    prior: Prior
    optimizer: Adam | LBFGS
    labels: str | None = None


class Private(NamedTuple):
    """A network, its test accuracy if it is trained, and the private inputs and labels that it is shown."""

    model: nn.Module
    accuracy: float | None
    inputs: Tensor
    targets: Tensor

    def first(self, count: int) -> Private:
        """Return the same with the first samples alone."""
        return self._replace(inputs=self.inputs[:count], targets=self.targets[:count])


class OnLeNet(Experiment):
    """Images that LeNet is shown in one of its states."""

    stage: Stage
    dataset: str

    def reads(self) -> list[str]:
        """Return the datasets that the images come from, and that a trained network has learned."""
        return [self.dataset, *([_lenet(self.dataset, "trained").training] if self.stage == "trained" else [])]


class Matched(OnLeNet):
    """A row of a table: images with one kind of label, matched by one distance."""

    labels: str
    distance: Kind
    samples: int
    steps: int
    restarts: int

    @classmethod
    def every(cls, parameters: Parameters, **inputs: Any) -> Iterator[Self]:
        """Give a table's rows, with these inputs beside their own."""
        samples = {"mixup": parameters.pairs, "smoothing": parameters.images}
        steps = {"l2": parameters.l2_steps, "cosine": parameters.cosine_steps}
        for labels, distance, stage in itertools.product(samples, steps, parameters.stages):
            own = {"labels": labels, "distance": distance, "stage": stage}
            yield cls.of(parameters, samples=samples[labels], steps=steps[distance], **own, **inputs)

    def private(self) -> Private:
        """Return the network, and the row's inputs and labels."""
        return private(self.labels, self.stage, self.samples, self.dataset, self.seed, self.device)

    def matching(self, *, labels: str | None = None, whole: bool = False, **weights: float) -> Matching:
        """Return how wang2024 matches the row, with these labels and weights of its distance; steps may be `whole`."""
        distance = Distance(self.distance, **weights)
        return Matching(distance, prior(self.stage), optimizer(self.distance, self.steps, whole=whole), labels)

    def compared(self, shown: Private, runs: Mapping[str, Matching]) -> list[OfRun]:
        """Run `match` on every sample's gradient in each of these ways, from the same starts.

        Rows: one an image and start, points of curves, a strip of images.
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

    Mixup: one image of each class of a pair, the pairs of classes in random order, each once before any comes again.
    Smoothing: classes in turn, no image twice while a class has others.
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
    """Return wang2024's optimiser of a distance; L-BFGS with a line search instead, unless its steps are `whole`."""
    own: Adam | LBFGS = replace(preset(f"wang2024-{distance}")["optimizer"], steps=steps)
    return LBFGS(steps=steps) if isinstance(own, LBFGS) and not whole else own


def _lenet(dataset: str, stage: str) -> AttackedNetwork:
    return AttackedNetwork.of(f"{dataset}/lenet/{stage}")


def lenets(dataset: str, stages: Sequence[str]) -> list[Sees]:
    """Return LeNet in its states, and the images that it is shown."""
    return [_lenet(dataset, stage).sees for stage in stages]


def private(labels: str, stage: str, samples: int, dataset: str, seed: int, device: str) -> Private:
    """Return LeNet in its state, and private inputs and labels of one kind."""
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
    """Compare runs image by image: the mean difference in PSNR, and where 95 % of a bootstrap over images put it."""
    means: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if isinstance(row, MatchedImage):
            # A lost image's PSNR is minus infinity: it counts as nothing.
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
                run=f"{first} against {second}",
                images=len(values),
                difference=float(values.mean()),
                low=low,
                high=high,
                apart=max(abs(low), abs(high)),
            )
        )
    return found


def rows_of(record: Record, what: str) -> pd.DataFrame:
    """Return a record's rows of one sort: image, curve, paired, picture."""
    frame = record.frame()
    return frame[frame["what"] == what]


def counted(psnr: pd.Series[Any]) -> pd.Series[float]:
    """Return PSNRs as a mean counts them: what is lost as nothing, and equal images as 200 dB."""
    return psnr.astype(float).clip(0, TOP)


def mean_text(psnr: pd.Series[Any]) -> str:
    """Return a mean PSNR as a table shows it."""
    return f"{counted(psnr).mean():.1f}"


def psnr_table(record: Record, runs: Sequence[str]) -> pd.DataFrame:
    """Return mean PSNR of 8-bit pixels, and the paper's, a line a row of the table and a column a run."""
    cells = claims.published(record.study, "eight_bit", ("labels", "distance", "stage", "run"))
    networks = rows_of(record, "network").to_dict("records")
    trained = {(row["labels"], row["stage"]): row["accuracy"] for row in networks if row["stage"] == "trained"}
    lines = []
    for keys, group in rows_of(record, "image").groupby(["labels", "distance", "stage"], sort=False):
        line = dict(zip(("labels", "distance", "LeNet"), keys, strict=True))
        if (keys[0], keys[2]) in trained:
            line["LeNet"] = f"trained to {100 * trained[keys[0], keys[2]]:.0f} %"
        for name in runs:
            own = group[group["run"] == name]
            stated = cells.get((*keys, name), "–")
            line[name] = f"{mean_text(own['eight_bit'])} / {stated}"
        lines.append(line)
    return pd.DataFrame(lines)


def interval_table(record: Record, runs: Sequence[str], run: str = "label from") -> pd.DataFrame:
    """Return where runs' mean PSNR of 8-bit pixels lies, by a bootstrap over images, beside the paper's."""
    cells = claims.published(record.study, "eight_bit", ("labels", "distance", "stage", "run"))
    lines = []
    for keys, group in rows_of(record, "image").groupby(["labels", "distance", "stage", "run"], sort=False):
        if keys[3] not in runs:
            continue
        psnr = counted(group["eight_bit"])
        values = psnr.groupby(group["image"]).mean().to_numpy()
        picked = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
        low, high = np.quantile(values[picked].mean(axis=1), [0.025, 0.975])
        stated = cells.get(keys)
        lines.append(
            dict(zip(("labels", "distance", "LeNet", run), keys, strict=True))
            | {
                "n": f"{len(values)} × {group['restart'].nunique()}",
                "mean": f"{values.mean():.1f}",
                "95 %": f"{low:.1f} … {high:.1f}",
                "paper": "–" if stated is None else f"{stated}",
                "paper's lies": "–" if stated is None else _side(stated, low, high),
                f"under {LOST} dB": f"{100 * (psnr < LOST).mean():.0f} %",
            }
        )
    return pd.DataFrame(lines)


def _side(value: float, low: float, high: float) -> str:
    return "below" if value < low else "above" if value > high else "within"


def detail_table(record: Record, run: str = "label from") -> pd.DataFrame:
    """Return what Table 3 says besides PSNR: SSIM, LPIPS, the label's error, runs that diverged, seconds an image."""
    rows = rows_of(record, "image")
    rows = rows.astype({"lpips": float, "label_error": float}).assign(
        counted=counted(rows["psnr"]),
        psnr=rows["psnr"].astype(float).clip(lower=0),
        diverged=rows["status"].eq("diverged"),
    )
    return summary(
        rows,
        {"labels": "labels", "distance": "distance", "LeNet": "stage", run: "run"},
        {
            "PSNR": spread("counted", ".1f"),
            "least": least("psnr", ".1f"),
            "SSIM": mean("ssim", ".3f"),
            "LPIPS": mean("lpips", lambda value: "n/a" if math.isnan(value) else f"{value:.3f}"),
            "L_r": mean("label_error", ".1e"),
            "diverged": total("diverged", ".0f"),
            "s": mean("seconds", ".2g"),
        },
    )


def paired_table(record: Record) -> pd.DataFrame:
    """Return the paper's sentences as differences between runs on the same images and starts."""
    lines = [
        {
            "labels": row["labels"],
            "distance": row["distance"],
            "LeNet": row["stage"],
            "compared": row["run"],
            "difference, dB": f"{row['difference']:+.2f}",
            "95 %": f"{row['low']:+.2f} … {row['high']:+.2f}",
            "n": int(row["images"]),
        }
        for row in rows_of(record, "paired").to_dict("records")
    ]
    return pd.DataFrame(lines)


def draw_strips(record: Record, runs: Sequence[str]) -> Figure:
    """Draw the first images of every row of a table, as each run restored them."""
    groups = list(rows_of(record, "picture").groupby(["labels", "distance", "stage"], sort=False))
    figure, axes = figures.grid(len(groups), 2, height=3.6)
    figure.set_layout_engine("compressed")
    for axis, (keys, group) in zip(axes, groups, strict=True):
        strips = group.set_index("run")["picture"]
        names = ["private", *runs]
        show(axis, [strips[name] for name in names], names)
        axis.set_title(", ".join(map(str, keys)))
    return figure


def draw_curves(record: Record, runs: Sequence[str], column: str = "psnr") -> Figure:
    """Draw the best iterates over the steps for every row of a table, a line a run: their mean PSNR or median loss."""
    groups = list(rows_of(record, "curve").groupby(["labels", "distance", "stage"], sort=False))
    figure, axes = figures.grid(len(groups), 2, height=2.1)
    for axis, (keys, group) in zip(axes, groups, strict=True):
        for index, run in enumerate(runs):
            own = group[group["run"] == run].sort_values("step")
            style = {"color": figures.COLOURS[index], "linestyle": figures.DASHES[index]}
            axis.plot(own["step"], own[column].astype(float), label=run, **style)
        axis.set_title(", ".join(map(str, keys)))
        if column == "loss":
            axis.set_yscale("log")
    for axis in axes[::2]:
        axis.set_ylabel("PSNR, dB" if column == "psnr" else "loss")
    for axis in axes[-2:]:
        axis.set_xlabel("step")
    figures.legend_below(figure, len(runs))
    return figure


def prior(stage: str) -> Prior:
    """Return wang2024's prior for a network's state."""
    return Prior(variation=VARIATION[stage])
