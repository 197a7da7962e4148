"""Feature matching: images from LeNet by matching the last layer's input as well

wang2024, section 5.1: Table 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from matplotlib.figure import Figure

from gradleak import claims
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn, lines
from gradleak.show.summary import Summary
from gradleak.studies import Experiment, Record
from gradleak.studies.shared import matched_runs
from gradleak.studies.shared.attacked_networks import Stage
from gradleak.studies.shared.matched_runs import FULL, NAMED, ROW, Matched, Run, WholeRow, rows_of
from gradleak.studies.shared.outcomes import PSNR, collected

PLACE = "Section 5.1, Table 4"


def weighted(*pairs: tuple[int, int], whole: bool = False) -> dict[str, Run]:
    """Return a run for each pair of weights: α of the last layer's gradient, and β of the last layer's input."""
    return {f"α={head} β={feature}{FULL * whole}": Run("recovered", whole, head, feature) for head, feature in pairs}


# The paper's columns.
RUNS = weighted((1, 0), (0, 1), (1, 1), (0, 2), (2, 2))
# The weights that the paper's code uses for the last column: the code does not apply α, so α stays 1.
CODED = weighted((1, 2))
WHOLE = weighted((1, 0), (0, 1), (1, 1), (0, 2), (1, 2), whole=True)
BASE, BEST = "α=1 β=0", "α=0 β=2"


def compared(names: Iterable[str], end: str = "") -> list[tuple[str, str]]:
    """Return the best setting with each other one, and the input alone with both; `end` is the end of all names."""
    others = [name for name in names if name != BEST + end]
    return [*((BEST + end, name) for name in others), ("α=0 β=1" + end, "α=1 β=1" + end)]


# The runs' names in tables and figures.
NAMES = {name: name for name in RUNS} | {"α=1 β=2": "α=1 β=2 (code)"}


class Parameters(matched_runs.Parameters):
    """Parameters of the page: images, starts, networks and steps for each row of Table 4."""

    stages: list[Stage]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the rows of Table 4 with the weights of the paper, with those of its code, and without line search."""
        yield from Stated.every(self)
        yield from (row for row in Coded.every(self) if row.distance == "cosine")
        if self.whole:
            for row in WholeSteps.every(self, restarts=self.whole_starts):
                if row.distance == "l2":
                    yield row.model_copy(update={"samples": min(self.whole, row.samples)})


class Stated(WholeRow, part="as stated"):
    """Match with the paper's five pairs of weights."""

    runs: ClassVar[Mapping[str, Run]] = RUNS
    pairs: ClassVar[Sequence[tuple[str, str]]] = compared(RUNS)


class Coded(Matched, part="as coded"):
    """Match with the weights that the paper's code uses for the last pair."""

    runs: ClassVar[Mapping[str, Run]] = CODED


class WholeSteps(Matched, part="full steps"):
    """Match with the code's pairs of weights without line search (full L-BFGS steps), as in the paper's code."""

    runs: ClassVar[Mapping[str, Run]] = WHOLE
    pairs: ClassVar[Sequence[tuple[str, str]]] = compared(WHOLE, FULL)


def summary(record: Record) -> Summary:
    """Return the finding: matching the input instead of the last layer's gradient helps with the cosine distance."""
    known = claims.judgements(record)
    images = record.frame()
    images = images[images["what"] == "image"]
    mixed, smoothed = (known[f"s51-{labels}-cosine-β-2-over-α-1"] for labels in ("mixup", "label-smoothing"))
    (undecided,) = select(
        rows_of(record, "paired"), labels="smoothing", distance="L2", run=f"{BEST} against {BASE}"
    ).to_dict("records")
    return Summary(
        f"With the cosine distance, matching the last layer's input instead of its gradient gains at least "
        f"{mixed.text} PSNR for mixed images and {smoothed.text} for smoothed labels (lower confidence bounds); with "
        "L2 and a line search the gain for smoothed labels is uncertain.",
        true=bool(mixed.agrees and smoothed.agrees and undecided["lower"] < 0 < undecided["upper"]),
        claim="t4-mixup-cosine-α-0-β-2-psnr",
        what="mean PSNR of mixed CIFAR-10 images, untrained LeNet, cosine, input matched instead of gradient",
        figure=figure_curves,
        of="images",
        outcomes=collected(
            record, images, "images", PSNR, attack="gradient and feature matching, " + images["distance"],
            network="lenet", training=images["stage"], data=images["dataset"],
            detail=images["labels"] + " labels, " + images["run"],
        ),
    )  # fmt: skip


def figure_curves(record: Record) -> Figure:
    """Plot the PSNR against the step, one panel for each row of Table 4, one line for each pair of weights."""
    return drawn(
        rows_of(record, "curve"),
        lines("step", "psnr", by="run", order=list(RUNS), marker=""),
        panels=ROW,
        title=NAMED,
        across=2,
        height=2.1,
        legend=len(RUNS),
        sharey=False,
        xlabel="step",
        ylabel="mean PSNR (dB)",
    )
