"""The book's page on speed, from what `make bench` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from gradleak import paths
from gradleak.book import growth
from gradleak.show import figures
from gradleak.show.tables import Table

SOLVERS = ("exact", "lbfgs", "pso")


def results_file() -> Path:
    """Return where `make bench` leaves its measurements."""
    return paths.root() / "benchmarks" / "results.json"


def write_page(folder: Path) -> str:
    """Write the page's figure into a folder and return its text."""
    file = results_file()
    if not file.is_file():
        return "*Nothing is measured yet: run `make bench`.*\n"
    measured = json.loads(file.read_text())
    picture = folder / "performance.png"
    figure = draw(measured["solvers"])
    figure.savefig(picture)
    plt.close(figure)
    versions = measured["versions"]
    return "\n".join(
        [
            f"Measured on one thread, {_dates(measured)}, torch {versions['torch']}.\n",
            solver_table(measured["solvers"])._repr_markdown_(),
            "```{figure} generated/performance.png",
            ":name: fig-performance-solvers",
            ":alt: Milliseconds a sample for three solvers over the number of classes",
            "",
            "Time a sample. The exact solver is faster in batches; the published searches go sample by sample.",
            "```\n",
            *([alone_text(measured["alone"])] if "alone" in measured else []),
            *([together_table(measured["together"])._repr_markdown_()] if "together" in measured else []),
            batching_table([*measured["matching"], *measured["batching"]])._repr_markdown_(),
            matching_text(measured["matching"][0]),
            restoring_text(measured["matching"][1:]),
            *(_launches(measured["launches"]) if "launches" in measured else ()),
            *(_growth(measured["growth"], folder) if "growth" in measured else ()),
            *(_starts(measured["starts"]) if "starts" in measured else ()),
        ]
    )


def _dates(measured: dict[str, Any]) -> str:
    """Return when the parts were measured, from the first to the last."""
    dates = sorted({*measured["dates"].values()})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def write_clusters(folder: Path) -> str:
    """Write the figure of the page on clusters into a folder and return its generated text."""
    file = results_file()
    scaling = json.loads(file.read_text()).get("scaling", []) if file.is_file() else []
    text = growth.clusters_text(scaling)
    if scaling:
        figure = growth.draw_scaling(scaling)
        figure.savefig(folder / "scaling.png")
        plt.close(figure)
        text += _picture("scaling", "Times faster over the number of workers", "From one worker to two, measured.")
    return text


def _growth(rows: list[dict[str, Any]], folder: Path) -> list[str]:
    figure = growth.draw(rows)
    figure.savefig(folder / "growth.png")
    plt.close(figure)
    told = (
        "Left: processor time over what grows. Right: a batch's gradient and its labels by LLG here, beside the times "
        "that wainakh2021 states for its Figure 2(a), a hundred batches of every size on a V100: their means a batch."
    )
    alt = "Processor time over size, a line an attack"
    return ["## How time grows\n", growth.growth_table(rows)._repr_markdown_(), _picture("growth", alt, told)]


def _launches(rows: list[dict[str, Any]]) -> list[str]:
    text = (
        "On a GPU every operation costs the time of its launch, some microseconds. At a synchronising read the host "
        "waits until all that was launched is done. The table counts both on a pretended GPU, which runs on the CPU "
        "and has 64 GiB of memory, for one call or for one step of a search. CPU times are measured without it. One "
        "step of L-BFGS is one iteration.\n"
    )
    return ["## What a GPU is asked to do\n", text, launches_table(rows)._repr_markdown_()]


def launches_table(rows: list[dict[str, Any]]) -> Table:
    """Return how many operations and synchronising reads each attack takes on a GPU, beside its CPU time."""
    frame = pd.DataFrame(rows)
    shown = {"attack": frame["attack"], "counted for one": frame["for"]}
    shown |= {
        "operations launched": frame["operations"].map("{:,.0f}".format),
        "synchronising reads": frame["reads"].map("{:,.3g}".format),
        "CPU time (ms)": frame["CPU ms"].map("{:,.3g}".format),
    }
    caption = "Operations launched and synchronising reads, counted on the pretended GPU, and CPU time on one thread."
    return Table(pd.DataFrame(shown), caption, "tab-performance-launches")


def _starts(rows: list[dict[str, Any]]) -> list[str]:
    frame = pd.DataFrame([{"what": row["what"], "seconds": f"{row['seconds']:.2g}"} for row in rows])
    caption = "What a person waits for before anything happens."
    return ["## Before anything happens\n", Table(frame, caption, "tab-performance-starts")._repr_markdown_()]


def _picture(name: str, alt: str, told: str) -> str:
    return f"```{{figure}} generated/{name}.png\n:name: fig-performance-{name}\n:alt: {alt}\n\n{told}\n```\n"


def solver_table(rows: list[dict[str, Any]]) -> Table:
    """Return the solvers' times, each beside the exact solver's best for as many classes."""
    frame = pd.DataFrame(rows)
    best = frame[frame["solver"] == "exact"].groupby("classes")["ms a sample"].min()
    return Table(
        pd.DataFrame(
            {
                "solver": frame["solver"],
                "C": frame["classes"],
                "batch N": [
                    f"{n}" if s == "exact" else "any" for s, n in zip(frame["solver"], frame["batch"], strict=True)
                ],
                "measured on": frame["measured on"],
                "ms a sample": frame["ms a sample"].map("{:.3g}".format),
                "samples a second": frame["samples a second"].map("{:,.4g}".format),
                "times the exact one": (frame["ms a sample"] / frame["classes"].map(best)).map("{:,.3g}".format),
            }
        ),
        "Soft labels from gradients of single samples, smoothing, float32.",
        "tab-performance-solvers",
    )


def alone_text(alone: dict[str, Any]) -> str:
    """Return what one sample's time consists of."""
    count, product, total = alone["operations"], alone["product us"], alone["sum us"]
    return (
        f"One sample alone at ten classes takes {alone['ms']:.2g} ms: {count} operations on tensors of a few dozen "
        f"numbers, {1e3 * alone['ms'] / count:.2g} µs each. What they compute is little beside the call of them. A "
        f"product of sixty numbers takes {product:.2g} µs here and a sum over every ten of them {total:.2g} µs, so as "
        f"many products would take {1e-3 * count * product:.2g} ms and as many sums {1e-3 * count * total:.2g} ms.\n"
    )


def together_table(rows: list[dict[str, Any]]) -> Table:
    """Return what batches cost that are found all at once."""
    frame = pd.DataFrame(rows)
    shown = {"C": frame["classes"], "batch B": frame["batch"], "unknowns": frame["unknowns"].map("{:,}".format)}
    shown |= {
        "CPU s": frame["seconds"].map("{:.2g}".format),
        "status": frame["status"],
        "of its starts": frame["reason"],
    }
    shown |= {"largest label error": frame["largest label error"].map("{:.1g}".format)}
    return Table(pd.DataFrame(shown), "One batch all at once, classes told, float64.", "tab-performance-together")


def batching_table(rows: list[dict[str, Any]]) -> Table:
    """Return what doing all samples at once saves."""
    frame = pd.DataFrame(rows)
    shown = {"what": frame["what"]} | {
        name: frame[name].map("{:.3g}".format) for name in ("ms a sample", "plain loop ms", "times faster")
    }
    return Table(pd.DataFrame(shown), "All samples at once, and one by one.", "tab-performance-batching")


def matching_text(row: dict[str, Any]) -> str:
    """Return how far a step of gradient matching is from the least that it can cost."""
    return (
        f"A step of gradient matching costs {row['times a training step']:.2g} times a step of training at the same "
        "batch size. It cannot cost less than 7/3: training multiplies by each layer's weight twice and forms its "
        "gradient; matching does that, and, to move the image, carries the gradient's misfit forward and back through "
        "every layer, two products each way. The rest is that every attack has a misfit of its own, so that half of "
        "these products share no matrix.\n"
    )


def restoring_text(rows: list[dict[str, Any]]) -> str:
    """Return what it saves to restore several starts of a batch as one program; nothing where it was not measured."""
    if not rows:
        return ""
    steps = ", ".join(f"{row['times a training step']:.2g}" for row in rows)
    return (
        f"For every seed such a step costs {steps} steps of training at its own batch size, in the order of the table. "
        "Where a batch is one image, most of a step alone is the calls of it; where it is eight, the cores are busy "
        "with one seed already.\n"
    )


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Draw the time a sample over the number of classes, a line a solver and batch."""
    frame = pd.DataFrame(rows)
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    for index, solver in enumerate(SOLVERS):
        own = frame[frame["solver"] == solver]
        for dash, (batch, group) in enumerate(own.groupby("batch")):
            axis.plot(
                group["classes"],
                group["ms a sample"],
                marker="o",
                color=figures.COLOURS[index],
                linestyle=figures.DASHES[dash],
                label=f"{solver}, N = {batch}" if solver == "exact" else solver,
            )
    axis.set(xscale="log", yscale="log", xlabel="classes C", ylabel="milliseconds a sample")
    axis.legend(ncols=2)
    return figure
