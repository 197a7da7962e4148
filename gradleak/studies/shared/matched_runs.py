"""Runs of gradient matching on the same images and random starts, and the comparison of these runs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.random import Generator
from torch import Tensor, nn

from gradleak import augment, claims, data, metrics, studies
from gradleak.images import LBFGS, Distance, Prior, match
from gradleak.images.matching.objective import Kind
from gradleak.images.presets import preset
from gradleak.leak import Leak, observe
from gradleak.runs import parts
from gradleak.show import figures
from gradleak.show.drawn import drawn, grouped, proportions
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import STAGES, AttackedNetwork, Stage, network
from gradleak.studies.shared.mosaics import strip
from gradleak.studies.shared.restored import quality

# wang2024's weights of total variation.
VARIATION = {"untrained": 1e-2, "trained": 1e-3, "published": 1e-3}
# The number of points of a curve, of images in a strip, and of bootstrap resamples.
POINTS, SHOWN, DRAWS = 20, 6, 4000
# The PSNR (dB) that equal images have in a mean.
TOP = 200.0
# The side in pixels of the smallest image that the AlexNet of LPIPS accepts.
LPIPS_SIDE = 31
# The end of the name of a run without line search.
FULL = ", full steps"
# The optimisers in tables and figures: Adam and full L-BFGS steps are the paper's.
PUBLISHED, SEARCHED = "as published", "with line search"
# The columns whose values name a row of the paper's tables, and this name.
ROW = ["labels", "distance", "stage"]
NAMED = "{}, {}, {} LeNet".format
# Draws private inputs and labels from a dataset, given the kind of label, their number and the seed.
Draw = Callable[[data.Dataset, str, int, int], tuple[Tensor, Tensor]]


class Parameters(studies.Parameters):
    """Parameters of the table's rows: images, random starts, networks and steps."""

    pairs: int = setting(paper=45, ge=2, le=10_000)
    images: int = setting(paper=30, ge=2, le=10_000)
    l2_restarts: int = setting(paper=1, ge=1, le=100)
    cosine_restarts: int = setting(paper=10, ge=1, le=100)
    l2_steps: int = setting(paper=300, ge=1, le=100_000)
    cosine_steps: int = setting(paper=4800, ge=1, le=1_000_000)
    whole: int = setting(paper=45, ge=0, le=10_000)
    whole_starts: int = setting(paper=10, ge=1, le=100)
    stages: list[Stage] = setting(paper=list(STAGES))
    dataset: str = setting(paper="cifar10")

    def sees(self) -> list[Sees]:
        """Return LeNet in each stage of training, with its private images."""
        return lenets(self.dataset, self.stages, LPIPS_SIDE)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return f"{self.pairs} mixed images and {self.images} images with smoothed labels, {data.title(self.dataset)}"


class Run(NamedTuple):
    """The settings of a run of matching.

    Attributes:
        labels: How the attacker gets the labels, None if the true labels are known.
        whole: Whether L-BFGS takes full steps, without a line search.
        head: The weight of the last layer's gradient in the distance.
        feature: The weight of the last layer's input.
    """

    labels: str | None = None
    whole: bool = False
    head: float = 1.0
    feature: float = 0.0


class Private(NamedTuple):
    """A network, its test accuracy (None if untrained), and the private inputs and labels."""

    model: nn.Module
    accuracy: float | None
    inputs: Tensor
    targets: Tensor

    def part(self, start: int, end: int) -> Private:
        """Return the same with only the samples from number `start` to number `end`."""
        return self._replace(inputs=self.inputs[start:end], targets=self.targets[start:end])

    def leaks(self, size: int = 1) -> list[Leak]:
        """Return the gradients of the samples, each averaged over `size` samples."""
        batches = zip(self.inputs.split(size), self.targets.to(self.inputs).split(size), strict=True)
        return [observe(self.model, *batch) for batch in batches]


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

    def private(self, labels: str, samples: int, draw: Draw | None = None) -> Private:
        """Return LeNet, and private inputs and labels of one kind, as in the paper or as `draw` draws them."""
        own = data.load(self.dataset, "test")
        inputs, targets = (draw or table_samples)(own, labels, samples, self.seed)
        model, accuracy = network(_lenet(self.dataset, self.stage), labels, own, self.seed, self.device)
        return Private(model.to(self.device), accuracy, inputs.to(self.device), targets.to(self.device))


class Matched(OnLeNet):
    """One row of a table: images with one kind of label, restored with one distance of gradients.

    Attributes:
        runs: The runs that are compared, by name.
        pairs: The names of runs whose images are compared pair by pair.
    """

    runs: ClassVar[Mapping[str, Run]]
    pairs: ClassVar[Sequence[tuple[str, str]]] = ()
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

    def run(self) -> list[Columns]:
        """Match in every run, and compare the pairs of runs."""
        rows = self.matched(self.shown())
        return [*rows, *paired(rows, self.pairs, self.seed)]

    def shown(self) -> Private:
        """Return the network with the private inputs and labels."""
        return self.private(self.labels, self.samples)

    def matched(self, shown: Private) -> list[Columns]:
        """Match the gradient of every sample in each run, from the same random starts.

        A run that has ended is kept if the trial is stopped.

        Returns:
            A row for each image and start, the points of each run's curve (the median loss and the mean PSNR of the
            best iterates), and a strip with the first images of each run.
        """
        leaks = shown.leaks()
        run = partial(self._matched, shown, leaks)
        return [row for name in self.runs for row in parts.rows(name, partial(run, name))]

    def _matched(self, shown: Private, leaks: list[Leak], name: str) -> list[Columns]:
        """Match in one run."""
        inputs, targets, how = shown.inputs, shown.targets, self.runs[name]
        truth = data.denormalise(inputs.double()).clamp(0, 1)
        rows: list[Columns] = []
        seen: dict[int, list[float]] = {}

        def watch(who: Tensor, step: int, best: Tensor) -> None:
            values = metrics.psnr(data.denormalise(best[:, 0].double()), truth[who // self.restarts])
            seen.setdefault(step, []).extend(values.tolist())

        published = replace(preset(f"wang2024-{self.distance}")["optimizer"], steps=self.steps)
        searched = isinstance(published, LBFGS) and not how.whole
        started = time.perf_counter()
        found = match(
            leaks,
            targets.to(inputs) if how.labels is None else how.labels,
            distance=Distance(self.distance, head=how.head, feature=how.feature),
            prior=prior(self.stage),
            optimizer=LBFGS(steps=self.steps) if searched else published,
            restarts=self.restarts,
            seed=self.seed,
            label_prior=self.labels,
            watch=watch,
        )
        about = {"run": name, "seconds": (time.perf_counter() - started) / (len(inputs) * self.restarts)}
        for restart in range(self.restarts):
            images = data.denormalise(found.attempts[:, restart, 0].double())
            errors = metrics.label_error(found.attempt_labels[:, restart, 0].double(), targets)
            for n, near in enumerate(quality(images, truth)):
                row: Columns = {"what": "image", "image": n, "restart": restart, "status": found.status[n][restart]}
                row |= {"loss": float(found.losses[n, restart]), "bad": int(found.bad[n, restart])}
                row["lost"] = int(row["status"] == "diverged")
                if restart == int(found.chosen[n]):  # the start of least loss, whose label the attacker takes
                    row["label_error"] = float(errors[n])
                if how.labels == "dlg":
                    row["start_label_error"] = float(errors[n])
                rows.append(near | about | row)
        every = max(1, -(-len(found.history) // POINTS))
        for place in {*range(0, len(found.history), every), len(found.history) - 1}:
            step, median = int(found.history[place]), float(found.curves[..., place].median())
            psnr = float(np.mean(seen[step]))
            rows.append({"what": "curve", "run": name, "step": step, "loss": median, "psnr": psnr})
        rows.append(strip(name, data.denormalise(found.attempts[:, 0, 0].double()), SHOWN))
        return rows


class WholeRow(Matched):
    """A row of a table with its private images and the network's test accuracy."""

    def run(self) -> list[Columns]:
        """Match in every run, compare the pairs of runs, and describe the row."""
        shown = self.shown()
        rows = self.matched(shown)
        truth = strip("private", data.denormalise(shown.inputs.double()).clamp(0, 1), SHOWN)
        network: Columns = {"what": "network", "test_accuracy": shown.accuracy}
        return [*rows, truth, *paired(rows, self.pairs, self.seed), network]


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


def _lenet(dataset: str, stage: Stage) -> AttackedNetwork:
    return AttackedNetwork(dataset=dataset, network="lenet", stage=stage)


def lenets(dataset: str, stages: Sequence[Stage], least: int = 0) -> list[Sees]:
    """Return LeNet in each stage of training, with its private images, whose side is at least `least` pixels."""
    return [replace(_lenet(dataset, stage).sees, least=least) for stage in stages]


def paired(rows: Sequence[Columns], pairs: Sequence[tuple[str, str]], seed: int) -> Iterator[Columns]:
    """Compare runs image by image: the mean difference in PSNR and its 95 % bootstrap interval over images."""
    images = pd.DataFrame([row for row in rows if row["what"] == "image"])
    means = images.assign(psnr=counted(images["psnr"])).groupby(["run", "image"])["psnr"].mean()
    generator = np.random.default_rng(seed)
    for first, second in pairs:
        values = means[first] - means[second]
        low, high = interval(values, generator)
        # A comma ends the first run's name if this name contains a comma.
        run = f"{first}, against {second}" if "," in first else f"{first} against {second}"
        row: Columns = {"what": "paired", "run": run, "images": len(values), "difference": float(values.mean())}
        yield row | {"lower": low, "upper": high, "apart": max(abs(low), abs(high))}


def interval(values: pd.Series[float], generator: Generator | None = None) -> tuple[float, float]:
    """Return the 95 % bootstrap interval over images of a mean; the index of the values is the number of the image."""
    means = values.groupby(level=0).mean().to_numpy()
    picked = (generator or np.random.default_rng(0)).integers(len(means), size=(DRAWS, len(means)))
    low, high = np.quantile(means[picked].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def counted(psnr: pd.Series[Any]) -> pd.Series[float]:
    """Return PSNRs limited to 0 … 200 dB, so that lost images and equal images have a mean."""
    return psnr.astype(float).clip(0, TOP)


def rows_of(record: Record, what: str) -> pd.DataFrame:
    """Return a record's rows of one kind (image, restart, curve, paired, picture or network)."""
    frame = record.frame()
    return frame[frame["what"] == what].replace({"distance": {"l2": "L2"}})


def images_of(record: Record, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the images of all runs, indexed by their numbers.

    The column `paper` has the paper's mean PSNR, `steps` the optimiser, `name` the run's name from `names`.
    """
    stated = claims.published(record.study, "eight_bit", (*ROW, "run"))
    rows = pd.concat([group for _, group in grouped(rows_of(record, "image"), ROW)])
    full = rows["run"].str.endswith(FULL)
    keys = zip(rows["labels"], rows["distance"].str.lower(), rows["stage"], rows["run"], strict=True)
    return rows.assign(
        paper=[stated.get(key, np.nan) for key in keys],
        full=full,
        steps=np.where(full | rows["distance"].eq("cosine"), PUBLISHED, SEARCHED),
        name=rows["run"].str.removesuffix(FULL).map(names),
        eight_bit=counted(rows["eight_bit"]),
    ).set_index("image")


def draw_means(record: Record, names: Mapping[str, str]) -> Figure:
    """Draw each run's mean PSNR (dB) of 8-bit pixels with its interval, and the paper's mean; a panel per table row."""

    def paper(axis: Axes, rows: pd.DataFrame) -> None:
        means = rows.groupby("name", sort=False)["paper"].first()
        axis.plot(means, range(len(means)), "|", label="paper", color=figures.TRUTH, markersize=13, markeredgewidth=2.2)

    return drawn(
        images_of(record, names),
        paper,
        proportions("eight_bit", "name", by="steps", interval=interval, aside=0.3, order=(PUBLISHED, SEARCHED)),
        panels=ROW,
        title=NAMED,
        across=2,
        height=1.8,
        legend=3,
        xlabel="mean PSNR (dB)",
        xlim=(0, None),
    )


def prior(stage: str) -> Prior:
    """Return wang2024's image prior for a stage of training."""
    return Prior(variation=VARIATION[stage])
