"""CNN reconstruction: images from LeNet by gradient matching, label by label

wang2024, section 4.3: Table 3.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from matplotlib.figure import Figure
from pydantic import Field

from gradleak import claims, data
from gradleak.images import LevenbergMarquardt, match, trace_convolutional
from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared import matched_runs
from gradleak.studies.shared.attacked_networks import Stage
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.matched_runs import FULL, Matched, OnLeNet, Run, WholeRow, counted, images_of, rows_of
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.outcomes import PSNR, collected
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
SOURCES = ("true", "one-hot", "searched", "recovered", "both")
NAMES = {run: f"{source} ({run})" for run, source in zip(RUNS, SOURCES, strict=True)}
WHOLE = {name + FULL: run._replace(whole=True) for name, run in RUNS.items()}
ROUNDED = 100.0  # the claim's limit for second order: above this PSNR (dB) only rounding errors remain


class Start(Group):
    """A state of LeNet, the start of second-order matching on LeNet, and the number of images."""

    stage: Stage
    start: Literal["random", "closed form"]
    images: int = Field(ge=1)


class Parameters(matched_runs.Parameters):
    """Parameters of the page: images and starts for each row of Table 3, and for second order."""

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
        return matched_runs.lenets(self.dataset, stages, matched_runs.LPIPS_SIDE)

    def experiments(self) -> Iterator[Experiment]:
        """Yield the rows of Table 3 as published and without line search; then second order."""
        yield from EveryLabel.every(self)
        if self.whole:
            for part in (KnownLabel, WholeSteps):
                yield from (row for row in part.every(self, restarts=self.whole_starts) if row.distance == "l2")
        for one in self.second_order_starts:
            for place in range(min(self.images, one.images)):
                about = {"stage": one.stage, "place": place, "start": one.start, "steps": self.second_order_steps}
                yield SecondOrder.of(self, samples=self.images, **about)


class EveryLabel(WholeRow, part="row"):
    """Match the images of a row of Table 3 with the label from each source."""

    runs: ClassVar[Mapping[str, Run]] = RUNS
    pairs: ClassVar[Sequence[tuple[str, str]]] = [("Ours", "GT"), ("GT", "iDLG"), ("DLG + Ours", "GT"), ("Ours", "DLG")]


class WholeSteps(Matched, part="whole"):
    """Match the first images of a row without line search (L-BFGS steps of full length), with unknown labels."""

    effort_fields: ClassVar[frozenset[str]] = Matched.effort_fields | {"whole"}
    runs: ClassVar[Mapping[str, Run]] = {name: run for name, run in WHOLE.items() if run.labels}
    pairs: ClassVar[Sequence[tuple[str, str]]] = [("Ours" + FULL, "iDLG" + FULL), ("Ours" + FULL, "DLG" + FULL)]
    whole: int

    def shown(self) -> matched_runs.Private:
        """Return the network with the first private inputs and labels."""
        return super().shown().part(0, self.whole)


class KnownLabel(Matched, part="whole, known label"):
    """Match all images of a row without line search (L-BFGS steps of full length), with the known label.

    The starts are those of `EveryLabel`.
    """

    runs: ClassVar[Mapping[str, Run]] = {name: run for name, run in WHOLE.items() if not run.labels}


class SecondOrder(OnLeNet, part="second order"):
    """Match one smoothed image by Levenberg-Marquardt with the recovered label.

    The start is random or the closed form's image.
    """

    place: int
    samples: int
    start: str
    steps: int

    def run(self) -> list[Columns]:
        """Restore the image."""
        shown = self.private("smoothing", self.samples).part(self.place, self.place + 1)
        (leak,) = shown.leaks()
        start = trace_convolutional(leak).inputs if self.start == "closed form" else None
        options = {"optimizer": LevenbergMarquardt(steps=self.steps), "label_prior": "smoothing", "start": start}
        clock = time.perf_counter
        found, seconds = timed(match, leak, "recovered", clock=clock, seed=self.seed + self.place, **options)
        truth = data.denormalise(shown.inputs.double()).clamp(0, 1)
        (near,) = quality(data.denormalise(found.images.double()), truth)
        near |= {"image": self.place, "seconds": seconds, "status": found.status[0][0]}
        near |= {"loss": float(found.losses[0, 0]), "steps": int(found.history[-1])}
        return [near | {"exact": near["psnr"] >= ROUNDED}]


def summary(record: Record) -> Summary:
    """Return the finding: the recovered label is worth as much as the true one, a one-hot guess is worth nothing."""
    known = claims.judgements(record)
    recovered, true, guessed, searched = (
        known[f"t3-mixup-l2-untrained-lenet-{label}-psnr"] for label in ("ours", "gt", "idlg", "dlg")
    )
    apart = known["s43-mixup-l2-untrained-ours-from-gt-at-most"]
    rows, second = record.frame(), record.rows(SecondOrder)
    rows = rows[rows["what"] == "image"]
    return Summary(
        f"On an untrained LeNet, L2 gradient matching with a line search, which the paper's code lacks, restores mixed "
        f"images to {recovered.text} with the recovered label, {true.text} with the true, {searched.text} with a "
        f"searched and {guessed.text} with a one-hot label.",
        true=bool(apart.agrees and (recovered.value or 0) > 40 and (guessed.value or 99) < 20),
        claim="t3-mixup-l2-untrained-lenet-ours-psnr",
        what="mean PSNR of mixed CIFAR-10 images, untrained LeNet, L2, recovered label, L-BFGS with line search",
        figure=figure_sources,
        of="images",
        leaks=leaks(record),
        outcomes=[
            *collected(
                record, rows, "images", PSNR, attack="gradient matching, " + rows["distance"], network="lenet",
                training=rows["stage"], data=rows["dataset"],
                detail=rows["labels"] + " labels; label from: " + rows["run"].replace("GT", "the truth"),
            ),
            *collected(
                record, second, "images", PSNR, attack="gradient matching, Levenberg–Marquardt", network="lenet",
                training=second["stage"], data=second["dataset"], detail="start: " + second["start"],
            ),
        ],
    )  # fmt: skip


def figure_sources(record: Record) -> Figure:
    """Show the first images of Table 3's rows of L2 on the untrained LeNet, private and as restored with each label.

    Beside each source of the label is the mean PSNR (dB) over all images of the row.
    """
    images, pictures = (
        select(rows_of(record, what), distance="L2", stage="untrained") for what in ("image", "picture")
    )
    means = counted(images["psnr"]).groupby([images["labels"], images["run"]]).mean().map("\n{:.1f} dB".format)
    names = {"private": "private"} | NAMES
    figure, axes = figures.grid(pictures["labels"].nunique(), 2, height=3.6)
    figure.set_layout_engine("compressed")
    for axis, (labels, strips) in zip(axes, pictures.groupby("labels", sort=False), strict=True):
        own = [name + means.get((labels, run), "") for run, name in names.items()]
        show(axis, list(strips.set_index("run")["picture"][list(names)]), own)
        axis.tick_params(axis="y", labelsize=8)
        axis.set_title(f"{labels}, L2, untrained LeNet")
    return figure


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
