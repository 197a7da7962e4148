"""Show how run times grow: measured exponents beside derived ones, and the times on clusters of workers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gradleak import studies
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.tables import Table, duration
from gradleak.wording import counted

# For each attack and each size that grows: the derived exponent of the dominant cost, with its reason.
DERIVED = {
    ("soft labels", "C"): (1, "each residual has C numbers"),
    ("soft labels", "N"): (1, "samples are independent"),
    ("a batch", "B"): (2, "normal equations of B + 1 unknowns"),
    ("a batch", "C"): (2, "a search for each of C classes, of C numbers each"),
    ("classes by RLG", "C"): (1, "C rows to decompose, linear programs with C rows"),
    ("a step of matching", "attacks"): (1, "attacks are independent"),
    ("a step of matching", "hidden units"): (1, "each parameter is used equally often"),
    ("sentences", "words"): (2, "each word is compared with a span that has a dimension for every word"),
    ("peeling", "B"): (2, "B times as many unknowns, and no more equations"),
    ("gradient and LLG", "B"): (1, "the gradient of B images"),
}
# The seconds of wainakh2021, Figure 2(a) (section 6.1), on a V100: for a hundred batches of each size from 1 to 128.
PUBLISHED = {"LLG": 54.0, "LLG+": 14.6 * 60, "LLG*": 32.2 * 60, "DLG, 100 steps": 17.4 * 3600}
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
# Exponents are fitted to this number of the largest sizes, because constant costs dominate at small sizes.
LARGEST = 3
COUNTS = (1, 2, 100)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent with which values grow with the size, fitted to the largest sizes; NaN if it is undefined."""
    if len(values) < 2 or min(values[-LARGEST:]) <= 0:
        return math.nan
    logs = np.log(np.asarray(sizes[-LARGEST:], dtype=float)), np.log(np.asarray(values[-LARGEST:], dtype=float))
    return float(np.polyfit(*logs, 1)[0])


def _series(rows: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """Return the rows grouped by attack and by the size that grows, in the order of the rows."""
    groups = rows.groupby(["attack", "grows"], sort=False)
    return [((str(name[0]), str(name[1])), group) for name, group in groups]


def growth_table(rows: pd.DataFrame) -> Table:
    """Return a table with a row for each attack and size: range, time and memory at the largest size, exponents."""
    cells = []
    for (attack, grows), group in _series(rows):
        power, reason = DERIVED[attack.partition(",")[0], grows]
        fitted = exponent(group["size"].tolist(), group["cpu seconds"].tolist())
        last = group.iloc[-1]
        cells.append(
            {
                "attack": attack,
                "what grows": f"{grows}, {group['size'].iloc[0]:,} to {last['size']:,}",
                "CPU time at the largest size": duration(float(last["cpu seconds"])),
                "memory (MiB)": f"{last['MiB']:,.0f}" if pd.notna(last["MiB"]) else "–",
                "fitted exponent": f"{fitted:.2f}" if math.isfinite(fitted) else "–",
                "derived exponent": f"{power}",
                "reason for the derived exponent": reason,
            }
        )
    caption = (
        f"How CPU time grows with size: the exponent fitted to the largest {LARGEST} sizes (or to all, if there are "
        "fewer), beside the exponent that is derived for the most expensive part. If the fitted exponent is smaller, "
        "fixed costs still matter at these sizes. Memory: what a single call adds."
    )
    return Table(pd.DataFrame(cells), caption, "tab-performance-growth")


def draw(rows: pd.DataFrame) -> Figure:
    """Draw CPU time over size, one line for each attack, and beside it the published times per batch of wainakh2021."""
    figure, axes = figures.panels(1, 2, height=4.2)
    ours, theirs = axes[0]
    for number, ((attack, grows), group) in enumerate(_series(rows)):
        ours.plot(
            group["size"], group["cpu seconds"], marker="o", markersize=3.5,
            color=figures.COLOURS[number % len(figures.COLOURS)],
            linestyle=figures.DASHES[number // len(figures.COLOURS) + number % 2],
            label=f"{attack.partition(',')[0]} over {grows}",
        )  # fmt: skip
    ours.set(xscale="log", yscale="log", xlabel="size", ylabel="CPU time (s)", title="Measured here")
    llg = rows[rows["attack"].str.startswith("gradient and LLG")]
    theirs.plot(llg["size"], llg["cpu seconds"], marker="o", color=figures.COLOURS[0], label="LLG here, one batch")
    for number, (name, seconds) in enumerate(PUBLISHED.items(), 1):
        mean = seconds / (100 * len(SIZES))
        theirs.plot(SIZES, [mean] * len(SIZES), ":", color=figures.COLOURS[number], label=f"{name}, published mean")
    theirs.set(xscale="log", yscale="log", xlabel="batch size B", title="Beside wainakh2021, Figure 2(a)")
    figures.legend_below(figure, 3)
    return figure


def finish(seconds: Sequence[float], workers: int, each: float = 0.0) -> float:
    """Return the time (s) at which the last trial ends, if each goes in order to the worker that is free first.

    Args:
        seconds: The run time of each trial.
        workers: The number of workers.
        each: The overhead (s) of a trial for its worker.

    Examples:
        >>> finish([3.0, 1.0, 1.0], workers=2)
        3.0
    """
    free = [0.0] * min(workers, max(1, len(seconds)))
    for taken in seconds:
        heapq.heapreplace(free, free[0] + taken + each)
    return max(free)


def overhead(scaling: pd.DataFrame) -> float:
    """Return the overhead (s) of a trial for its worker, from the measured run with one worker."""
    single = scaling.iloc[0]
    return max(0.0, (float(single["seconds"]) - float(single["in trials"])) / int(single["trials"]))


def clusters_text(scaling: pd.DataFrame) -> str:
    """Return a text on the gain of more workers: measured for one and two, and computed from the recorded trials."""
    # Run times on a GPU do not apply to workers with one core.
    recorded = filter(None, map(records.recorded, studies.names()))
    cpu_records = [record for record in recorded if not record.accelerated]
    text, trial_overhead = "The speed-up is not measured yet: run `make bench`.\n", 0.0
    if len(scaling):
        first, last, trial_overhead = scaling.iloc[0], scaling.iloc[-1], overhead(scaling)
        text = (
            f"Measured with {first['trials']:.0f} trials on the workers of one machine: {first['workers']:.0f} worker "
            f"took {first['seconds']:.1f} s, {last['workers']:.0f} took {last['seconds']:.1f} s, "
            f"{first['seconds'] / last['seconds']:.2f} times as fast. The overhead of a trial was "
            f"{1000 * trial_overhead:.0f} ms.\n"
        )
    return f"{text}\n{hundred(cpu_records, trial_overhead)._repr_markdown_()}\n" if cpu_records else text


def hundred(kept: list[Record], each: float) -> Table:
    """Return a table of the times that the longest recorded runs would take on one, two and a hundred workers.

    Args:
        kept: The records.
        each: The overhead (s) of a trial for its worker.
    """
    cells = []
    for record in sorted(kept, key=lambda run: -run.seconds)[:8]:
        seconds = [trial.seconds for trial in record.trials]
        ends = [finish(seconds, count, each) for count in COUNTS]
        cells.append(
            {"page": record.study, "trials": f"{len(seconds):,}", "longest trial": duration(max(seconds))}
            | {counted(count, "worker"): duration(end) for count, end in zip(COUNTS, ends, strict=True)}
            | {f"speed-up with {COUNTS[-1]} workers": f"{ends[0] / ends[-1]:.0f}"}
        )
    caption = (
        "Times of the longest recordings with more workers, computed from the recorded time of each trial: each trial "
        "goes to the worker that is free first. A page cannot end before its longest trial."
    )
    return Table(pd.DataFrame(cells), caption, "tab-clusters-hundred")


def draw_scaling(scaling: pd.DataFrame) -> Figure:
    """Draw the measured speed-up over the number of workers, beside the ideal speed-up."""
    figure, axes = figures.panels(1, 1, height=3.0, width=4.6)
    axis = axes[0][0]
    axis.plot(scaling["workers"], scaling["workers"] / scaling["workers"].iloc[0], ":", color="0.5", label="ideal")
    axis.plot(
        scaling["workers"],
        scaling["seconds"].iloc[0] / scaling["seconds"],
        "o-",
        color=figures.COLOURS[0],
        label="measured",
    )
    axis.set(xlabel="workers", ylabel="speed-up", xticks=scaling["workers"])
    axis.legend()
    return figure
