"""Write the section of the page on speed that shows the results of `make gpu-check`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gradleak import paths
from gradleak.show.tables import Table

# The part of a page's cells that run on a machine with a GPU and are not compared with the CPU.
OPEN_CELLS = "(open cells)"
# What a check on the CPU itself, which tests run, states as its device.
PRETENDED = "a pretended GPU"


@dataclass(frozen=True)
class GpuCheck:
    """The results of `make gpu-check`.

    Attributes:
        about: The GPU, the versions, the processor and the date.
        jobs: The number of processes that shared the GPU.
        chosen: The number of parts that the run was to try; `tries` has fewer rows if the run was stopped.
        tries: A row for each part that was tried: name, part, digits alike (NaN if all), CPU s, GPU s and trouble.
    """

    about: dict[str, str]
    jobs: int
    chosen: int
    tries: pd.DataFrame

    @classmethod
    def read(cls, file: Path) -> GpuCheck:
        """Read the results from a file."""
        content = json.loads(file.read_text("utf-8"))
        tries = pd.DataFrame(content["tries"])
        tries["digits alike"] = tries["digits alike"].astype(float)
        return cls(content["about"], content["jobs"], content["chosen"], tries)


def results_file() -> Path:
    """Return the file in which the results of `make gpu-check` are kept."""
    return paths.root() / "benchmarks" / "gpu-check.json"


def section() -> list[str]:
    """Return the section's heading, texts and tables in Markdown, or nothing if no check on a real GPU is kept."""
    file = results_file()
    if not file.is_file():
        return []
    check = GpuCheck.read(file)
    if check.about["device"] == PRETENDED:
        return []
    return [
        "## Checked on a real GPU\n",
        summary(check),
        by_page(check.tries)._repr_markdown_(),
        by_part(check.tries)._repr_markdown_(),
    ]


def summary(check: GpuCheck) -> str:
    """Return a text that states the machine, how many parts agree, and what the times mean."""
    about, tried, compared = check.about, len(check.tries), _compared(check.tries)
    unlike = int((compared["digits alike"] < 1).sum())
    agree = int((check.tries["trouble"] == "").sum())
    stopped = f" The run was stopped after {tried} of {check.chosen} parts." if tried < check.chosen else ""
    together = f" {check.jobs} processes shared the GPU." if check.jobs > 1 else ""
    return (
        f"On {about['date']}, {agree} of {tried} parts ran without trouble on {about['device']} and on the CPU "
        f"{about['processor']} (torch {about['torch']}, Python {about['python']}). The results of {len(compared)} "
        f"parts are compared; in {unlike} of them no digit is alike.{stopped} `make gpu-check` runs the smallest "
        "trial of every part of every page, every attack, defence and measure, training and an audit on both "
        "devices. The open cells of a page, whose code is shown unfolded, only have to run without an error on the "
        "machine with the GPU. In trials as small as these, a GPU spends most of its time on launching operations, "
        f"so the times are no benchmark.{together} A search amplifies rounding errors with every step. On pages "
        "without a digit alike, two runs on the CPU differ as much if one of them computes without oneDNN's "
        "kernels.\n"
    )


def by_page(tries: pd.DataFrame) -> Table:
    """Return a table with one row for each page or group of attacks, defences or measures."""
    groups = [(str(name), rows) for name, rows in tries.groupby("name", sort=False)]
    shown = {
        "page or group": [name for name, _ in groups],
        "parts tried": [str(len(rows)) for _, rows in groups],
        "fewest digits alike": [_fewest(rows) for _, rows in groups],
        "CPU time (s)": [_cpu_time(rows) for _, rows in groups],
        "GPU time (s)": [f"{rows['GPU s'].sum():.2f}" for _, rows in groups],
        "trouble": [_troubles(rows) for _, rows in groups],
    }
    caption = (
        "Agreement of GPU and CPU, by page: the smallest number of decimal digits to which the results of a part "
        "agree (“all”: they are equal to the last bit), and the sums of the parts' times."
    )
    return Table(pd.DataFrame(shown), caption, "tab-performance-gpu")


def by_part(tries: pd.DataFrame) -> Table:
    """Return a folded table with one row for each part."""
    rows = [tries.iloc[[index]] for index in range(len(tries))]
    shown = {
        "page or group": tries["name"],
        "part": tries["part"].replace("", "–"),
        "digits alike": [_fewest(row) for row in rows],
        "CPU time (s)": [_cpu_time(row) for row in rows],
        "GPU time (s)": tries["GPU s"].map("{:.2f}".format),
        "trouble": tries["trouble"].replace("", "–"),
    }
    caption = (
        "Agreement of GPU and CPU, by part. Open cells (code that is shown unfolded) run only on the machine with the "
        "GPU, so there is nothing to compare."
    )
    return Table(pd.DataFrame(shown), caption, "tab-performance-gpu-parts", fold="All parts of the check on a GPU")


def _compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the parts whose results are compared with those of the CPU."""
    return rows[rows["part"] != OPEN_CELLS]


def _fewest(rows: pd.DataFrame) -> str:
    """Return the smallest number of digits alike, "all" if the results are equal, or "–" if none are compared."""
    digits = _compared(rows)["digits alike"]
    if digits.empty:
        return "–"
    return "all" if digits.isna().all() else f"{max(0.0, digits.min()):.1f}"


def _cpu_time(rows: pd.DataFrame) -> str:
    """Return the time (s) on the CPU, or "–" if nothing ran there."""
    compared = _compared(rows)
    return f"{compared['CPU s'].sum():.2f}" if len(compared) else "–"


def _troubles(rows: pd.DataFrame) -> str:
    """Return the parts that do not agree, each with the reason, or "–"."""
    troubled = rows[rows["trouble"] != ""]
    pairs = zip(troubled["part"], troubled["trouble"], strict=True)
    return "; ".join(f"{part}: {trouble}" if part else str(trouble) for part, trouble in pairs) or "–"
