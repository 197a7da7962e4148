"""CNN reconstruction: images from LeNet by gradient matching, label by label

wang2024, section 4.3: Table 3.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from pydantic import Field

from gradleak import claims, data
from gradleak.images import LevenbergMarquardt, match, trace_convolutional
from gradleak.runs.fitting import Fixed
from gradleak.show import figures
from gradleak.show.aggregate import decibels, select
from gradleak.show.drawn import drawn
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared import matched_runs
from gradleak.studies.shared.attacked_networks import Stage
from gradleak.studies.shared.matched_runs import FULL, Matched, OnLeNet, Run, WholeRow, counted, images_of, rows_of
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.outcomes import PSNR, Outcome, collected
from gradleak.studies.shared.restored import quality

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
PAIRS = [("Ours", "GT"), ("GT", "iDLG"), ("DLG + Ours", "GT"), ("Ours", "DLG")]
WHOLE_PAIRS = [("Ours" + FULL, "iDLG" + FULL), ("Ours" + FULL, "DLG" + FULL)]


class Start(Group):
    """A state of LeNet, the start of second-order matching on LeNet, and the number of images."""

    stage: Stage
    start: Literal["random", "closed form"]
    images: int = Field(ge=1)


class Parameters(matched_runs.Parameters):
    """Parameters of the page: images and starts for each row of Table 3, for many starts, and for second order."""

    again: int = setting(paper=3, ge=0, le=10_000)
    again_restarts: int = setting(paper=5, ge=2, le=100)
    second_order_steps: int = setting(paper=40, ge=1, le=1000)
    second_order_starts: list[Start] = setting(
        paper=[
            {"stage": "untrained", "start": "random", "images": 30},
            {"stage": "trained", "start": "closed form", "images": 30},
            {"stage": "trained", "start": "random", "images": 2},
        ]
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
            for place in range(min(self.images, one.images)):
                about = {"stage": one.stage, "place": place, "start": one.start, "steps": self.second_order_steps}
                yield SecondOrder.of(self, samples=self.images, **about)


class EveryLabel(WholeRow):
    """Match the images of a row of Table 3 with the label from each source."""

    part: ClassVar[str] = "row"
    runs: ClassVar[Mapping[str, Run]] = RUNS
    pairs: ClassVar[Sequence[tuple[str, str]]] = PAIRS


class ManyStarts(Matched):
    """Match the first images of a row from many starts with known labels."""

    part: ClassVar[str] = "restarts"
    effort_fields: ClassVar[frozenset[str]] = Matched.effort_fields | {"again"}
    runs: ClassVar[Mapping[str, Run]] = {"GT": Run()}
    first: ClassVar[str] = "again"
    again: int

    def run(self) -> list[Columns]:
        """Match from every start; return only the rows of images."""
        return [row | {"what": "restart"} for row in super().run() if row["what"] == "image"]


class WholeSteps(Matched):
    """Match the first images of a row without line search (L-BFGS steps of full length), with unknown labels."""

    part: ClassVar[str] = "whole"
    effort_fields: ClassVar[frozenset[str]] = Matched.effort_fields | {"whole"}
    runs: ClassVar[Mapping[str, Run]] = {name: run for name, run in WHOLE.items() if run.labels}
    pairs: ClassVar[Sequence[tuple[str, str]]] = WHOLE_PAIRS
    first: ClassVar[str] = "whole"
    whole: int


class KnownLabel(Matched):
    """Match all images of a row without line search (L-BFGS steps of full length), with the known label.

    The starts are those of `EveryLabel`.
    """

    part: ClassVar[str] = "whole, known label"
    runs: ClassVar[Mapping[str, Run]] = {name: run for name, run in WHOLE.items() if not run.labels}


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
        shown = self.private("smoothing", self.samples).part(self.place, self.place + 1)
        (leak,) = shown.leaks()
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
        truth = data.denormalise(shown.inputs.double()).clamp(0, 1)
        (near,) = quality(data.denormalise(found.images.double()), truth)
        return [
            near
            | {"image": self.place, "seconds": seconds, "status": found.status[0][0]}
            | {"loss": float(found.losses[0, 0]), "steps": int(found.history[-1]), "exact": near["psnr"] >= ROUNDED}
        ]


def summary(record: Record) -> Summary:
    """Return the finding: the recovered label is worth as much as the true one, a one-hot guess is worth nothing."""
    known = claims.judgements(record)
    recovered, true, guessed, searched = (
        known[f"t3-mixup-l2-untrained-lenet-{label}-psnr"] for label in ("ours", "gt", "idlg", "dlg")
    )
    apart = known["s43-mixup-l2-untrained-ours-from-gt-at-most"]
    return Summary(
        f"On an untrained LeNet, gradient matching with the L2 distance restores mixed images to {recovered.text} with "
        f"the recovered label, {true.text} with the true label, {searched.text} with a searched label, and only "
        f"{guessed.text} with a one-hot guess.",
        true=bool(apart.agrees and (recovered.value or 0) > 40 and (guessed.value or 99) < 20),
        claim="t3-mixup-l2-untrained-lenet-ours-psnr",
        what="mean PSNR of mixed CIFAR-10 images, untrained LeNet, L2, recovered label, L-BFGS with line search",
        figure=figure_sources,
        of="images",
        leaks=leaks(record),
        outcomes=outcomes(record),
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


def figure_second_order(record: Record) -> Figure:
    """Plot the PSNR (dB) of every smoothed image by attack, all with the recovered label; a panel for each network.

    The attack's name contains its mean time (s).
    """
    second = record.rows(SecondOrder)
    if second.empty:
        return figures.nothing("Second order was not run with these parameters")
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
    rows = select(images_of(record, NAMES), labels="mixup", distance="L2", run="Ours")
    stages = rows.groupby("stage", sort=False)
    means = ", ".join(f"{psnr:.1f} dB {stage}" for stage, psnr in stages["eight_bit"].mean().items())
    return Leaks(
        "the image, by matching",
        "one image; LeNet, CIFAR-10",
        f"{means} ({stages.size().iloc[0]} images each)",
        f"{stages['seconds'].mean().iloc[0]:.2g} s elapsed",
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
