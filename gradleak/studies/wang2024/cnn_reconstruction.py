"""CNN reconstruction: images from LeNet by gradient matching, label by label

wang2024, section 4.3: Table 3.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable, Iterator
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field

from gradleak import claims, data, metrics
from gradleak.errors import unknown
from gradleak.images import LevenbergMarquardt, match, trace_convolutional
from gradleak.leak import observe
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import select, spread_if_many
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import matched_runs
from gradleak.studies.shared.attacked_networks import Stage
from gradleak.studies.shared.matched_runs import (
    Matched,
    MatchedImage,
    OnLeNet,
    Trained,
    counted,
    draw_curves,
    draw_strips,
    interval_table,
    lenets,
    mean_text,
    paired,
    paired_table,
    private,
    psnr_table,
    rows_of,
)
from gradleak.studies.shared.outcomes import PSNR, Outcome, collected
from gradleak.studies.shared.restored import Quality, graded, quality

__all__ = ["paired_table", "table"]
PLACE = "Section 4.3, Table 3"
# The paper's columns: the source of the label.
MODES: dict[str, str | None] = {
    "GT": None,
    "iDLG": "idlg",
    "DLG": "dlg",
    "Ours": "recovered",
    "DLG + Ours": "recovered-start",
}
# The sources' names in tables and figures.
NAMES = {
    "GT": "true label (GT)",
    "iDLG": "one-hot guess (iDLG)",
    "DLG": "searched (DLG)",
    "Ours": "recovered (Ours)",
    "DLG + Ours": "recovered, then searched (DLG + Ours)",
}
BESIDE = {name: text.replace(" (", "\n(").replace(", ", ",\n") for name, text in NAMES.items()}
WHOLE = {name: f"{name}, full steps" for name in MODES}
ROUNDED = 100.0  # the claim's limit for second order: above this PSNR (dB) only rounding errors remain
STARTS = ("untrained/random", "trained/random", "trained/closed form")
PAIRS = (("Ours", "GT"), ("GT", "iDLG"), ("DLG + Ours", "GT"), ("Ours", "DLG"))
WHOLE_PAIRS = tuple((WHOLE[first], WHOLE[second]) for first, second in (("Ours", "iDLG"), ("Ours", "DLG")))


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

    again: int = setting(
        0, paper=3, ge=0, le=10_000, about="images of each row that are matched again from many random starts"
    )
    again_restarts: int = setting(2, paper=5, ge=2, le=100, about="random starts of each of these images")
    second_order: int = setting(
        0,
        paper=30,
        ge=0,
        le=10_000,
        about="number of smoothed images that are matched by Levenberg-Marquardt (second order)",
    )
    second_order_steps: int = setting(
        1, paper=40, ge=1, le=1000, about="steps of Levenberg-Marquardt, one Jacobian each"
    )
    second_order_starts: list[Start] = setting(
        ["untrained/random"],
        paper=["untrained/random", "trained/closed form", "trained/random/2"],
        validate_default=True,
        about=f"states of LeNet and starts of second order: {', '.join(STARTS)}; with /N at the end for N images only",
    )

    def sees(self) -> list[Sees]:
        """Return LeNet in each state, and the images that it sees."""
        stages = [*self.stages, *(start.stage for start in self.second_order_starts)]
        return [Fixed(**vars(one), lpips=1) for one in lenets(self.dataset, stages)]

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


class SecondOrderImage(Quality):
    """An image that second-order matching restored.

    Attributes:
        steps: The number of Jacobians.
        exact: Whether the PSNR shows that only rounding errors remain.
    """

    image: int
    seconds: float
    status: str
    loss: float
    steps: int
    exact: bool


class EveryLabel(Matched):
    """Match the images of a row of Table 3 with the label from each source."""

    part: ClassVar[str] = "row"

    def run(self) -> list[Row]:
        """Match with the label from each source, and compare the results."""
        shown = self.private()
        runs = {name: self.matching(labels=mode) for name, mode in MODES.items()}
        rows = self.compared(shown, runs)
        return [*rows, *paired(rows, PAIRS, self.seed), Trained(what="network", accuracy=shown.accuracy)]


class ManyStarts(Matched):
    """Match the first images of a row from many starts with known labels."""

    part: ClassVar[str] = "restarts"
    effort_fields: ClassVar[frozenset[str]] = Matched.effort_fields | {"again"}
    again: int

    def run(self) -> list[Row]:
        """Match from every start; return only the rows of images."""
        rows = self.compared(self.private().first(self.again), {"GT": self.matching()})
        return [MatchedImage.of(row, what="restart") for row in rows if isinstance(row, MatchedImage)]


class WholeSteps(Matched):
    """Match the first images of a row without line search (L-BFGS steps of full length), with unknown labels."""

    part: ClassVar[str] = "whole"
    effort_fields: ClassVar[frozenset[str]] = Matched.effort_fields | {"whole"}
    whole: int

    def run(self) -> list[Row]:
        """Match with the label from each of these sources, and compare the results."""
        runs = {WHOLE[name]: self.matching(labels=mode, whole=True) for name, mode in MODES.items() if mode is not None}
        rows = self.compared(self.private().first(self.whole), runs)
        return [*(row for row in rows if row.run != "private"), *paired(rows, WHOLE_PAIRS, self.seed)]


class KnownLabel(Matched):
    """Match all images of a row without line search (L-BFGS steps of full length), with the known label."""

    part: ClassVar[str] = "whole, known label"

    def run(self) -> list[Row]:
        """Match, and leave out the private images, which `EveryLabel` has."""
        rows = self.compared(self.private(), {WHOLE["GT"]: self.matching(whole=True)})
        return [row for row in rows if row.run != "private"]


class SecondOrder(OnLeNet):
    """Match one smoothed image by Levenberg-Marquardt with the recovered label.

    The start is random or the closed form's image.
    """

    part: ClassVar[str] = "second order"
    place: int
    samples: int
    start: str
    steps: int

    def run(self) -> list[SecondOrderImage]:
        """Restore the image."""
        shown = private("smoothing", self.stage, self.samples, self.dataset, self.seed, self.device)
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
        row = SecondOrderImage.of(
            near,
            image=self.place,
            seconds=seconds,
            status=found.status[0][0],
            loss=float(found.losses[0, 0]),
            steps=int(found.history[-1]),
            exact=near.psnr >= ROUNDED,
        )
        return [row]


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
    """Return the mean PSNR (dB) of Table 3, ours and the paper's.

    Rows: kinds of label, distances and states of LeNet. Columns: sources of the label.
    """
    return psnr_table(record, list(MODES), NAMES)


def whole_table(record: Record) -> pd.DataFrame:
    """Return the 95 % confidence intervals of the mean PSNR in Table 3's L2 rows without line search.

    The published mean stands beside each interval. On trained networks only the known label was tried.
    """
    return interval_table(record, {WHOLE[name]: NAMES[name] for name in MODES})


def all_table(record: Record) -> pd.DataFrame:
    """Return the 95 % confidence interval of the mean PSNR for every cell of Table 3, beside the published mean."""
    return interval_table(record, NAMES)


def detail_table(record: Record) -> pd.DataFrame:
    """Return the other measures of Table 3, such as SSIM and LPIPS. Rows: rows of Table 3 and sources of the label."""
    steps = {name: f"{NAMES[short]}, full steps" for short, name in WHOLE.items()}
    return matched_runs.detail_table(record, names=NAMES | steps)


def second_order_table(record: Record) -> pd.DataFrame:
    """Compare second-order matching (Levenberg-Marquardt) with first order, both with the recovered label.

    Rows: states of LeNet and starts. Columns: n images; the mean PSNR (dB) of first order for each distance; mean and
    median PSNR of second order, the number of exact images, and mean Jacobians and time (s) per image.
    """
    lines = []
    for (stage, start), group in _second_order(record).groupby(["stage", "start"], sort=False):
        line = {"LeNet": stage, "start": start, "images": f"{len(group)}"}
        line |= {f"first order, {name}: mean PSNR (dB)": mean_text(psnr) for name, psnr in _first_order(record, stage)}
        line |= {
            "second order: mean PSNR (dB)": spread_if_many("psnr", ".1f")(group.assign(psnr=counted(group["psnr"]))),
            "second order: median PSNR (dB)": f"{group['psnr'].astype(float).median():.1f}",
            f"exact ({metrics.EXACT:.0f} dB)": graded("exact")(group),
            "Jacobians per image": f"{group['steps'].mean():.0f}",
            "time per image (s)": f"{group['seconds'].mean():.0f}",
        }
        lines.append(line)
    return pd.DataFrame(lines)


def _second_order(record: Record) -> pd.DataFrame:
    rows = record.rows(SecondOrder)
    return rows.reindex(columns=list(dict.fromkeys([*rows.columns, "start"])))


def _first_order(record: Record, stage: Hashable) -> Iterator[tuple[str, pd.Series[float]]]:
    """Yield each distance with the PSNR of all smoothed images that it restored with the recovered label."""
    rows = select(rows_of(record, "image"), stage=stage, labels="smoothing", run="Ours")
    for distance, group in rows.groupby("distance", sort=False):
        yield "L2" if distance == "l2" else str(distance), group["psnr"]


def restart_table(record: Record) -> pd.DataFrame:
    """Return the effect of random starts with the label known.

    Rows: labels, distances and states of LeNet. Columns: numbers of images and starts; the mean PSNR (dB); its standard
    deviations between images and between starts of an image; the mean PSNR of each image's start with the least loss,
    and of each image's best start.
    """
    lines, rows = [], rows_of(record, "restart")
    rows = rows.assign(psnr=counted(rows["psnr"]))
    for keys, group in rows.groupby(["labels", "distance", "stage"], sort=False):
        psnr = group.pivot(index="image", columns="restart", values="psnr")
        chosen = group.groupby("image")["loss"].idxmin()
        lines.append(
            dict(zip(("labels", "distance", "LeNet"), keys, strict=True))
            | {
                "distance": "L2" if keys[1] == "l2" else keys[1],
                "images": len(psnr),
                "starts": psnr.shape[1],
                "mean PSNR (dB)": f"{psnr.to_numpy().mean():.1f}",
                "SD between images (dB)": f"{psnr.mean(axis=1).std():.1f}",
                "SD between starts (dB)": f"{psnr.std(axis=1).mean():.1f}",
                "start of least loss (dB)": mean_text(group.loc[chosen, "psnr"]),
                "best start (dB)": f"{psnr.max(axis=1).mean():.1f}",
            }
        )
    return pd.DataFrame(lines)


def figure_losses(record: Record) -> Figure:
    """Plot the loss against the step, one panel for each row of Table 3, one line for each source of the label."""
    return draw_curves(record, list(MODES), "loss", NAMES)


def figure_sources(record: Record) -> Figure:
    """Show the first images of Table 3's rows of L2 on the untrained LeNet, as restored with each label."""
    return draw_strips(record, list(MODES), BESIDE, distance="l2", stage="untrained")


def figure_images(record: Record) -> Figure:
    """Show the first images of every row of Table 3, private and as restored with the label from each source."""
    return draw_strips(record, list(MODES), BESIDE)


def figure_curves(record: Record) -> Figure:
    """Plot the PSNR against the step, one panel for each row of Table 3, one line for each source of the label."""
    return draw_curves(record, list(MODES), names=NAMES)


def figure_second_order(record: Record) -> Figure:
    """Plot the PSNR (dB) of every smoothed image by attack (first and second order), one panel for each network."""
    second = _second_order(record)
    stages = list(dict.fromkeys(second["stage"]))
    if not stages:
        return figures.nothing("Second order was not run: second_order = 0")
    figure, axes = figures.panels(1, len(stages), height=3.2, sharey=True)
    for axis, stage in zip(axes[0], stages, strict=True):
        own = second[second["stage"] == stage].groupby("start", sort=False)["psnr"]
        groups = {f"{name},\nfirst order": psnr for name, psnr in _first_order(record, stage)}
        groups |= {f"second order,\n{start}": psnr for start, psnr in own}
        figures.swarms(axis, {name: counted(psnr) for name, psnr in groups.items()})
        axis.tick_params(axis="x", labelsize=8.5)
        axis.set_title(f"{stage} LeNet")
    axes[0][0].set_ylabel("PSNR (dB)")
    return figure


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    untrained, trained = (
        line(all_table(record), "mixup", "L2", stage, NAMES["Ours"]) for stage in ("untrained", "trained")
    )
    images = untrained["images × starts"].partition(" ")[0]
    return Leaks(
        "the image, by matching",
        "one image; LeNet, CIFAR-10",
        f"{untrained['mean PSNR (dB)']} dB untrained, {trained['mean PSNR (dB)']} dB trained ({images} images each)",
        f"{line(detail_table(record), 'mixup', 'L2', 'untrained', NAMES['Ours'])['time per start (s)']} s elapsed",
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
