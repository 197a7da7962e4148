"""CNN reconstruction: images from LeNet by gradient matching, label by label

wang2024, section 4.3: Table 3.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import ClassVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from pydantic import Field

from gradleak import claims, data, metrics
from gradleak.errors import unknown
from gradleak.images import LevenbergMarquardt, match, trace_convolutional
from gradleak.leak import observe
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import drawn
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import decibels, mean, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import matched_runs
from gradleak.studies.shared.attacked_networks import Stage
from gradleak.studies.shared.matched_runs import FULL, SEARCHED, Matched, OnLeNet, Run, counted, draw_paired, rows_of
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.outcomes import PSNR, Outcome, collected
from gradleak.studies.shared.restored import quality
from gradleak.studies.wang2024.columns import COLUMNS

__all__ = ["COLUMNS", "draw_paired"]
PLACE = "Section 4.3, Table 3"
# The paper's columns: the source of the label.
RUNS = {
    "GT": Run(),
    "iDLG": Run("idlg"),
    "DLG": Run("dlg"),
    "Ours": Run("recovered"),
    "DLG + Ours": Run("recovered-start"),
}
# The sources' names in tables and figures.
NAMES = {
    "GT": "true (GT)",
    "iDLG": "one-hot (iDLG)",
    "DLG": "searched (DLG)",
    "Ours": "recovered (Ours)",
    "DLG + Ours": "both (DLG + Ours)",
}
WHOLE = {name + FULL: run._replace(whole=True) for name, run in RUNS.items()}
ROUNDED = 100.0  # the claim's limit for second order: above this PSNR (dB) only rounding errors remain
STARTS = ("untrained/random", "trained/random", "trained/closed form")
PAIRS = [("Ours", "GT"), ("GT", "iDLG"), ("DLG + Ours", "GT"), ("Ours", "DLG")]
WHOLE_PAIRS = [("Ours" + FULL, "iDLG" + FULL), ("Ours" + FULL, "DLG" + FULL)]


class Start(Form):
    """A state of LeNet, the start of second-order matching on LeNet, and the maximum number of images."""

    stage: Stage
    start: str
    images: Whole = Field(sys.maxsize, ge=1)

    def check(self) -> None:
        """Raise an error if this state and start are not offered."""
        if f"{self.stage}/{self.start}" not in STARTS:
            raise unknown("network and start", f"{self.stage}/{self.start}", STARTS)


class Parameters(matched_runs.Parameters):
    """Parameters of the page: images and starts for each row of Table 3, for many starts, and for second order."""

    again: int = setting(paper=3, ge=0, le=10_000)
    again_restarts: int = setting(paper=5, ge=2, le=100)
    second_order: int = setting(paper=30, ge=0, le=10_000)
    second_order_steps: int = setting(paper=40, ge=1, le=1000)
    second_order_starts: list[Start] = setting(
        paper=["untrained/random", "trained/closed form", "trained/random/2"], validate_default=True
    )

    def sees(self) -> list[Sees]:
        """Return LeNet in each state, and the images that it sees."""
        stages = [*self.stages, *(start.stage for start in self.second_order_starts)]
        return [Fixed(**vars(one), lpips=1) for one in matched_runs.lenets(self.dataset, stages)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the rows of Table 3 as published, from many starts, and without line search; then second order."""
        yield from EveryLabel.every(self)
        if self.again:
            yield from ManyStarts.every(self, restarts=self.again_restarts)
        if self.whole:
            rows = KnownLabel.every(self, restarts=self.whole_starts)
            yield from (row for row in rows if row.distance == "l2")
            for row in WholeSteps.every(self, restarts=self.whole_starts):
                # The paper's training recipe is unpublished, so the effect of full steps cannot be compared on trained
                # networks.
                if (row.distance, row.stage) == ("l2", "untrained"):
                    yield row
        for one in self.second_order_starts:
            for place in range(min(self.second_order, self.images, one.images)):
                yield SecondOrder.of(
                    self,
                    stage=one.stage,
                    place=place,
                    samples=self.images,
                    start=one.start,
                    steps=self.second_order_steps,
                )


class EveryLabel(Matched):
    """Match the images of a row of Table 3 with the label from each source."""

    part: ClassVar[str] = "row"

    def run(self) -> list[Columns]:
        """Match with the label from each source, and compare the results."""
        return self.row_of_table(RUNS, PAIRS)


class ManyStarts(Matched):
    """Match the first images of a row from many starts with known labels."""

    part: ClassVar[str] = "restarts"
    effort_fields: ClassVar[frozenset[str]] = Matched.effort_fields | {"again"}
    again: int

    def run(self) -> list[Columns]:
        """Match from every start; return only the rows of images."""
        rows = self.compared(self.private().first(self.again), {"GT": RUNS["GT"]})
        return [row | {"what": "restart"} for row in rows if row["what"] == "image"]


class WholeSteps(Matched):
    """Match the first images of a row without line search (L-BFGS steps of full length), with unknown labels."""

    part: ClassVar[str] = "whole"
    effort_fields: ClassVar[frozenset[str]] = Matched.effort_fields | {"whole"}
    whole: int

    def run(self) -> list[Columns]:
        """Match with the label from each of these sources, and compare the results."""
        runs = {name: run for name, run in WHOLE.items() if run.labels}
        rows = self.compared(self.private().first(self.whole), runs)
        return [*rows, *matched_runs.paired(rows, WHOLE_PAIRS, self.seed)]


class KnownLabel(Matched):
    """Match all images of a row without line search (L-BFGS steps of full length), with the known label."""

    part: ClassVar[str] = "whole, known label"

    def run(self) -> list[Columns]:
        """Match from the same starts as `EveryLabel`."""
        return self.compared(self.private(), {"GT" + FULL: WHOLE["GT" + FULL]})


class SecondOrder(OnLeNet):
    """Match one smoothed image by Levenberg-Marquardt with the recovered label.

    The start is random or the closed form's image.
    """

    part: ClassVar[str] = "second order"
    place: int
    samples: int
    start: str
    steps: int

    def run(self) -> list[Columns]:
        """Restore the image."""
        shown = matched_runs.private("smoothing", self.stage, self.samples, self.dataset, self.seed, self.device)
        own, target = (part[self.place : self.place + 1] for part in (shown.inputs, shown.targets))
        leak = observe(shown.model, own, target.to(own))
        start = trace_convolutional(leak).inputs if self.start == "closed form" else None
        started = time.perf_counter()
        found = match(
            leak,
            "recovered",
            optimizer=LevenbergMarquardt(steps=self.steps),
            seed=self.seed + self.place,
            start=start,
            label_prior="smoothing",
        )
        seconds = time.perf_counter() - started
        truth = data.denormalise(own.double()).clamp(0, 1)
        (near,) = quality(data.denormalise(found.images.double()), truth)
        return [
            near
            | {"image": self.place, "seconds": seconds, "status": found.status[0][0]}
            | {"loss": float(found.losses[0, 0]), "steps": int(found.history[-1]), "exact": near["psnr"] >= ROUNDED}
        ]


def headline(record: Record) -> Headline:
    """Return the finding: the recovered label is worth as much as the true one, a one-hot guess is worth nothing."""
    known = claims.judgements(record)
    recovered, true, guessed, searched = (
        known[f"t3-mixup-l2-untrained-lenet-{label}-psnr"] for label in ("ours", "gt", "idlg", "dlg")
    )
    apart = known["s43-mixup-l2-untrained-ours-from-gt-at-most"]
    return Headline(
        f"On an untrained LeNet, gradient matching with the L2 distance restores mixed images to {recovered.text} with "
        f"the recovered label, {true.text} with the true label, {searched.text} with a searched label, and only "
        f"{guessed.text} with a one-hot guess.",
        true=bool(apart.agrees and (recovered.value or 0) > 40 and (guessed.value or 99) < 20),
        claim="t3-mixup-l2-untrained-lenet-ours-psnr",
        what="mean PSNR of mixed CIFAR-10 images, untrained LeNet, L2, recovered label, L-BFGS with line search",
        figure=figure_sources,
        of="images",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 3, ours and the paper's. Rows: rows of Table 3 and sources of the label."""
    return matched_runs.means_table(record, NAMES, "label")


def restart_table(record: Record) -> pd.DataFrame:
    """Return the effect of random starts with the label known.

    Rows: labels, distances and states of LeNet. Columns: numbers of images and starts; the mean PSNR (dB); its standard
    deviations between images and between starts of an image; the mean PSNR of each image's start with the least loss,
    and of each image's best start.
    """
    rows = rows_of(record, "restart")
    return summary(
        rows.assign(psnr=counted(rows["psnr"])),
        {"labels": "labels", "distance": "distance", "LeNet": "stage"},
        {
            "images × starts": lambda own: f"{own['image'].nunique()} × {own['restart'].nunique()}",
            "mean PSNR (dB)": mean("psnr", ".1f"),
            "SD between images (dB)": lambda own: f"{own.groupby('image')['psnr'].mean().std():.1f}",
            "SD between starts (dB)": lambda own: f"{own.groupby('image')['psnr'].std().mean():.1f}",
            "start of least loss (dB)": lambda own: mean("psnr", ".1f")(own.loc[own.groupby("image")["loss"].idxmin()]),
            "best start (dB)": lambda own: f"{own.groupby('image')['psnr'].max().mean():.1f}",
        },
    )


def figure_sources(record: Record) -> Figure:
    """Show the first images of Table 3's rows of L2 on the untrained LeNet, private and as restored with each label.

    Each restored image has its PSNR (dB).
    """
    images, pictures = (
        select(rows_of(record, what), distance="L2", stage="untrained") for what in ("image", "picture")
    )
    psnr = select(images, restart=0).sort_values("image").groupby(["labels", "run"])["psnr"]
    names = {"private": "private"} | {name: text.replace(" (", "\n(") for name, text in NAMES.items()}
    figure, axes = figures.grid(pictures["labels"].nunique(), 2, height=3.6)
    figure.set_layout_engine("compressed")
    for axis, (labels, strips) in zip(axes, pictures.groupby("labels", sort=False), strict=True):
        show(axis, list(strips.set_index("run")["picture"][list(names)]), list(names.values()))
        size = abs(axis.get_ylim()[0] - axis.get_ylim()[1]) / len(names)
        for row, name in enumerate(RUNS, start=1):
            for place, value in enumerate(psnr.get_group((labels, name)).head(matched_runs.SHOWN)):
                axis.text(
                    (place + 0.04) * size, (row + 0.95) * size, decibels(value), va="bottom", fontsize=6.5,
                    color="white", path_effects=[withStroke(linewidth=1.6, foreground="black")],
                )  # fmt: skip
        axis.tick_params(axis="y", labelsize=8)
        axis.set_title(f"{labels}, L2, untrained LeNet")
    return figure


def figure_means(record: Record) -> Figure:
    """Plot the mean PSNR (dB) for every source of the label, ours and the paper's; a panel for each row of Table 3."""
    return matched_runs.draw_means(record, NAMES)


def figure_losses(record: Record) -> Figure:
    """Plot the loss against the step, one panel for each row of Table 3, one line for each source of the label."""
    return matched_runs.draw_curves(record, "loss", NAMES, ylabel="median loss", yscale="log")


def figure_second_order(record: Record) -> Figure:
    """Plot the PSNR (dB) of every smoothed image by attack, all with the recovered label; a panel for each network.

    The attack's name contains its mean time (s).
    """
    second = record.rows(SecondOrder)
    if second.empty:
        return figures.nothing("Second order was not run: second_order = 0")
    first = select(rows_of(record, "image"), labels="smoothing", run="Ours")
    first, second = (
        rows.assign(attack=f"{order} order,\n" + rows[column])
        for order, column, rows in (("first", "distance", first), ("second", "start", second))
    )
    rows = pd.concat([first[first["stage"].isin(second["stage"])], second])
    seconds = rows.groupby(["stage", "attack"])["seconds"].transform("mean")

    def attacks(axis: Axes, own: pd.DataFrame) -> None:
        figures.swarms(axis, {str(name): counted(psnr) for name, psnr in own.groupby("attack", sort=False)["psnr"]})
        axis.tick_params(axis="x", labelsize=8.5)

    return drawn(
        rows.assign(attack=rows["attack"] + seconds.map(",\n{:.0f} s".format)),
        attacks,
        panels="stage",
        title="{} LeNet".format,
        height=3.2,
        ylabel="PSNR (dB)",
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    rows = [line(table(record), "mixup", "L2", stage, NAMES["Ours"]) for stage in ("untrained", "trained")]
    untrained, trained = (row[f"{SEARCHED}: mean PSNR (dB)"].partition(" (")[0] for row in rows)
    images = rows[0][f"{SEARCHED}: recognisable ({metrics.RECOGNISABLE:.0f} dB)"].partition(" of ")[2]
    return Leaks(
        "the image, by matching",
        "one image; LeNet, CIFAR-10",
        f"{untrained} dB untrained, {trained} dB trained ({images} images each)",
        f"{rows[0]['time per start (s)']} s elapsed",
        kind="images",
        attack="gradient matching",
        network="LeNet",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["what"] == "image"]
    found = collected(
        record, rows, "images", PSNR, attack="gradient matching, " + rows["distance"], network="lenet",
        training=rows["stage"], data=rows["dataset"],
        detail=rows["labels"] + " labels; label from: " + rows["run"].replace("GT", "the truth"),
    )  # fmt: skip
    rows = record.part("second order")
    return found + collected(
        record, rows, "images", PSNR, attack="gradient matching, Levenberg–Marquardt", network="lenet",
        training=rows["stage"], data=rows["dataset"], detail="start: " + rows["start"],
    )  # fmt: skip
