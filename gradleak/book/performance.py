"""Write the book's page on speed from the measurements of `make bench`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from gradleak import paths
from gradleak.book import gpu_check, growth
from gradleak.show import figures
from gradleak.show.tables import Table

SOLVERS = ("exact", "lbfgs", "pso")
SOLVER_NAMES = {
    "exact": "exact", "exact, proved": "exact, with certificate", "exact, factor unknown": "exact, scale unknown",
    "lbfgs": "published search (L-BFGS)", "pso": "published swarm (PSO)", "rlg": "RLG (linear programs)",
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """The results of `make bench`.

    Attributes:
        versions: The versions of the packages.
        dates: The day on which each table was measured, by table.
        tables: The tables, by name.
    """

    versions: dict[str, str]
    dates: dict[str, str]
    tables: dict[str, pd.DataFrame]

    @classmethod
    def read(cls, file: Path) -> Measured:
        """Read the results from a file; a part that is a single mapping becomes a table of one row."""
        content = json.loads(file.read_text("utf-8"))
        versions, dates = content.pop("versions"), content.pop("dates")
        del content["threads"]
        tables = {name: pd.DataFrame(rows if isinstance(rows, list) else [rows]) for name, rows in content.items()}
        return cls(versions, dates, tables)


def results_file() -> Path:
    """Return the file to which `make bench` writes its measurements."""
    return paths.root() / "benchmarks" / "results.json"


def write_page(folder: Path) -> str:
    """Write the figures of the page into a folder and return the page's text in Markdown."""
    file = results_file()
    if not file.is_file():
        return "*Nothing is measured yet: run `make bench`.*\n"
    measured = Measured.read(file)
    tables = measured.tables
    picture = folder / "performance.png"
    figure = draw(tables["solvers"])
    figure.savefig(picture)
    plt.close(figure)
    return "\n".join(
        [
            f"Measured on one thread, {_dates(measured)}, torch {measured.versions['torch']}. Not all tables were "
            "measured on the same day, and the machine was shared, so compare times within a table only.\n",
            solver_table(tables["solvers"])._repr_markdown_(),
            "```{figure} generated/performance.png",
            ":name: fig-performance-solvers",
            ":alt: Milliseconds per sample for three solvers against the number of classes",
            "",
            "Time per sample against the number of classes, for the exact solver with batches of N samples and for the "
            "published searches, which process one sample after the other. With few classes the exact solver is faster "
            "in batches.",
            "```\n",
            *([alone_text(tables["alone"].iloc[0])] if "alone" in tables else []),
            *([together_table(tables["together"])._repr_markdown_()] if "together" in tables else []),
            batching_table(pd.concat([tables["matching"], tables["batching"]]))._repr_markdown_(),
            matching_text(tables["matching"].iloc[0]),
            restoring_text(tables["matching"].iloc[1:]),
            *(_launches(tables["launches"]) if "launches" in tables else ()),
            *gpu_check.section(),
            *(_growth(tables["growth"], folder) if "growth" in tables else ()),
            *(_starts(tables["starts"]) if "starts" in tables else ()),
        ]
    )


def _dates(measured: Measured) -> str:
    """Return the first and the last day of the measurements, as a text."""
    dates = sorted({*measured.dates.values()})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def write_clusters(folder: Path) -> str:
    """Write the figure of the page on clusters into a folder and return the page's generated text in Markdown."""
    file = results_file()
    tables = Measured.read(file).tables if file.is_file() else {}
    scaling = tables.get("scaling", pd.DataFrame())
    text = growth.clusters_text(scaling)
    if len(scaling):
        figure = growth.draw_scaling(scaling)
        figure.savefig(folder / "scaling.png")
        plt.close(figure)
        caption = (
            "Speed-up against the number of workers: measured (line), and if every worker were fully used (dotted)."
        )
        text += _picture("scaling", "Speed-up against the number of workers", caption)
    return text


def _growth(rows: pd.DataFrame, folder: Path) -> list[str]:
    figure = growth.draw(rows)
    figure.savefig(folder / "growth.png")
    plt.close(figure)
    caption = (
        "Left: CPU time of each attack against the size that grows. Right: mean time per batch for the gradient and "
        "its labels by LLG, here and as wainakh2021 states for its Figure 2(a) (a hundred batches of every size, V100)."
    )
    alt = "CPU time against size, with one line for each attack"
    return ["## How time grows\n", growth.growth_table(rows)._repr_markdown_(), _picture("growth", alt, caption)]


def _launches(rows: pd.DataFrame) -> list[str]:
    text = (
        "On a GPU the launch of every operation takes some microseconds. A synchronising read makes the host wait "
        "until all launched operations have finished. The table counts both, for one call of an attack or for one step "
        "of a search, on a pretended GPU: a device for tests that runs on the CPU and reports 64 GiB of memory. CPU "
        "times are measured without it. A CUDA graph repeats operations that were recorded before; each repetition is "
        "a single launch, so it counts as one operation. Matching runs on a GPU with such graphs, and so do the "
        "descents that separate the samples of a batch. The graphs of these descents have not run on a real GPU yet. A "
        "step of L-BFGS is one iteration.\n"
    )
    return ["## Operations on a GPU\n", text, launches_table(rows)._repr_markdown_()]


def launches_table(rows: pd.DataFrame) -> Table:
    """Return a table of each attack's operations and synchronising reads on a GPU, and of its CPU time."""
    shown = {"attack": rows["attack"], "counted for": "one " + rows["for"]}
    shown |= {
        "operations launched": rows["operations"].map("{:,.0f}".format),
        "synchronising reads": rows["reads"].map(number),
        "CPU time (ms)": rows["CPU ms"].map(number),
    }
    caption = "Operations launched and synchronising reads, counted on the pretended GPU, and CPU time on one thread."
    return Table(pd.DataFrame(shown), caption, "tab-performance-launches")


def _starts(rows: pd.DataFrame) -> list[str]:
    lines = ["| command or import | time (s) |", "| --- | ---: |"]
    for what, seconds in zip(rows["what"], rows["seconds"], strict=True):
        # Inline code, because Sphinx would turn the two hyphens of an option into a dash.
        code, comma, rest = str(what).partition(",")
        lines.append(f"| `{code}`{comma}{rest} | {seconds:.2g} |")
    head = ":::{table} Time until a command or an import is ready for work.\n:name: tab-performance-starts\n"
    return ["## Start-up times\n", f"{head}:class: gradleak-table\n\n" + "\n".join(lines) + "\n:::\n"]


def _picture(name: str, alt: str, caption: str) -> str:
    return f"```{{figure}} generated/{name}.png\n:name: fig-performance-{name}\n:alt: {alt}\n\n{caption}\n```\n"


def solver_table(rows: pd.DataFrame) -> Table:
    """Return a table of the solvers' times, also relative to the exact solver's best time for as many classes."""
    best = rows[rows["solver"] == "exact"].groupby("classes")["ms a sample"].min()
    batches = zip(rows["solver"], rows["batch"], strict=True)
    return Table(
        pd.DataFrame(
            {
                "solver": rows["solver"].map(lambda name: SOLVER_NAMES.get(name, name)),
                "classes": rows["classes"].map("{:,}".format),
                "batch size": [f"{batch:,}" if solver == "exact" else "any" for solver, batch in batches],
                "samples timed": rows["measured on"].map("{:,}".format),
                "time per sample (ms)": rows["ms a sample"].map(number),
                "samples per second": rows["samples a second"].map(number),
                "time relative to the exact solver": (rows["ms a sample"] / rows["classes"].map(best)).map(number),
            }
        ),
        "Time to recover the soft label of one sample from its gradient (label smoothing, float32), by solver, number "
        "of classes and batch size. The last column divides by the exact solver's fastest time for as many classes. "
        "RLG, for comparison, finds only the set of classes of a batch.",
        "tab-performance-solvers",
    )


def number(value: float) -> str:
    """Return a number with three digits, without an exponent, or "–" for NaN.

    Examples:
        >>> number(1117.3), number(0.1518), number(float("nan"))
        ('1,117', '0.152', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def alone_text(alone: pd.Series) -> str:
    """Return a text on the parts of the time for a single sample."""
    count, product, total = alone["operations"], alone["product us"], alone["sum us"]
    return (
        f"One sample on its own takes {alone['ms']:.2g} ms at ten classes. The solver makes {count:.0f} calls on "
        f"tensors of a few dozen numbers, at {1e3 * alone['ms'] / count:.2g} µs per call; most of this time is the "
        f"overhead of the calls. For comparison, one product of sixty numbers takes {product:.2g} µs on this machine "
        f"and one sum over groups of ten takes {total:.2g} µs, so {count:.0f} products alone would take "
        f"{1e-3 * count * product:.2g} ms and {count:.0f} sums {1e-3 * count * total:.2g} ms.\n"
    )


def together_table(rows: pd.DataFrame) -> Table:
    """Return a table of the times of solving for all labels of a batch together."""
    shown = {
        "classes": rows["classes"],
        "batch size": rows["batch"],
        "unknowns": rows["unknowns"].map("{:,}".format),
        "CPU time (s)": rows["seconds"].map("{:.2g}".format),
        "status": rows["status"],
        "starting points that reach this answer": rows["reason"].str.partition(" starts")[0],
        "largest label error": rows["largest label error"].map("{:.1g}".format),
    }
    caption = (
        "Time to solve for all labels of one batch together, with known classes, in float64. Status “found”: all "
        "starting points that reach an answer reach the same one. This does not prove that there is no other answer."
    )
    return Table(pd.DataFrame(shown), caption, "tab-performance-together")


def batching_table(rows: pd.DataFrame) -> Table:
    """Return a table of the gain of processing all samples at once instead of one by one."""
    columns = {
        "ms a sample": "time per sample, batched (ms)",
        "plain loop ms": "time per sample, one by one (ms)",
        "times faster": "speed-up",
    }
    shown = {"computation": rows["what"]} | {head: rows[name].map(number) for name, head in columns.items()}
    caption = (
        "Time per sample when all samples are processed in one batch, and when they are processed one by one. B: "
        "images in a batch; C: classes. All minima: the local minima of a label's loss over the unknown scalar λ. "
        "Valid intervals: the ranges of λ for which the label has no negative entry."
    )
    return Table(pd.DataFrame(shown), caption, "tab-performance-batching")


def matching_text(row: pd.Series) -> str:
    """Return a text that compares the cost of a step of gradient matching with its lower bound."""
    return (
        f"A step of gradient matching costs {row['times a training step']:.2g} times a step of training at the same "
        "batch size. The lower bound is 7/3: for each layer, training computes three matrix products: two "
        "with the weight, and one that gives the weight's gradient. Matching computes the same three, and then carries "
        "the difference of gradients forward and back through the layer, with two products in each direction. The "
        "remaining cost comes from batching: attacks share the weights, but each has its own difference of gradients. "
        "Half of the last four products therefore cannot be merged into one product for all attacks.\n"
    )


def restoring_text(rows: pd.DataFrame) -> str:
    """Return a text on the gain of restoring several starts of a batch together, or "" if it was not measured."""
    if rows.empty:
        return ""
    cases = zip(rows["what"].str.removeprefix("step of GradInversion, "), rows["times a training step"], strict=True)
    steps = ", ".join(f"{steps:.2g} ({case})" for case, steps in cases)
    return (
        f"With several seeds, a step of GradInversion costs, per seed, as much as this number of training steps: "
        f"{steps}. With one image per batch, the overhead of calls takes most of the time of a single seed, so "
        "batching seeds helps. With eight images, the arithmetic of one seed already takes most of the time.\n"
    )


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the time per sample over the number of classes, one line for each solver and batch size."""
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    for index, solver in enumerate(SOLVERS):
        solver_rows = rows[rows["solver"] == solver]
        for dash, (batch, group) in enumerate(solver_rows.groupby("batch")):
            axis.plot(
                group["classes"],
                group["ms a sample"],
                marker="o",
                color=figures.COLOURS[index],
                linestyle=figures.DASHES[dash],
                label=f"{solver}, N = {batch:,}" if solver == "exact" else SOLVER_NAMES[solver],
            )
    axis.set(xscale="log", yscale="log", xlabel="number of classes C", ylabel="time per sample (ms)")
    axis.legend(ncols=2)
    return figure
