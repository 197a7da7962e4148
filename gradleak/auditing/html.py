"""Render a report as one HTML file that works offline, in light and dark mode, in print and on a phone."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from gradleak import paths
from gradleak.auditing.findings import MEASURES, Finding, Place
from gradleak.auditing.sentences import main_measure, of_haste, of_outcomes
from gradleak.errors import GradleakError
from gradleak.metrics import RECOGNISABLE

if TYPE_CHECKING:
    from gradleak.auditing.report import Report

# A share of at least BAD is shown as bad, and a share of at least MIDDLE as intermediate.
BAD, MIDDLE = 0.5, 0.1
NOISE = 10.0  # PSNR (dB) of an image of noise, about
# The side of a panel's axes, its margins, and its total size, in pixels.
SIDE, LEFT, TOP, WIDTH, HEIGHT = 130, 52, 44, 240, 240
COLOURS = ("#2f7fb5", "#d0654c", "#b98a2e", "#5f9166", "#8d6a9f", "#7d8890")


def page(report: Report, folder: Path) -> str:
    """Return the HTML file for a folder, with links to the pages of the book if it is built."""
    links = {}
    with contextlib.suppress(GradleakError):  # there may be no checkout
        pages = (paths.root() / "_build/html/book/executed").glob("*/*.html")
        links = {file.stem: os.path.relpath(file, folder.resolve()) for file in pages}
    return templates().get_template("page.html").render(_content(report, links))


def fragment(report: Report) -> str:
    """Return the report as an HTML fragment, for a notebook's output."""
    return templates().get_template("report.html").render(_content(report, {}))


@functools.cache
def templates() -> jinja2.Environment:
    """Return the templates, which refuse names that are not given and escape what they insert."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("gradleak.auditing"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _content(report: Report, links: Mapping[str, str]) -> dict[str, Any]:
    """Return the variables of the template."""
    several = any(map(report.varied, report.cases))
    rounded = {one.precision for one in report.costs} - {"float32", "float64"}
    return {
        "report": report,
        "several": several,
        "varied": lambda cost: ", ".join(report.varied(cost.place).values()),
        "network": report.facts["network"].partition(",")[0],
        "settings": "; ".join(f"{key}: {value}" for key, value in report.settings.items()),
        "summary": [
            {name: (text, _level(name, report, place) if name in MEASURES and text != "–" else "")
             for name, text in row.items()}
            for row, place in zip(report.table(), report.cases, strict=True)
        ],
        "alarm": "bad" if any(outcome.outcome == "recovered" for outcome in report.outcomes) else "",
        "measures": "; ".join(f"{name}: {MEASURES[name]}" for name in report.measured),
        "outcomes": of_outcomes(report),
        "haste": of_haste(report),
        "coarse": ", ".join(one for one in report.precisions if one not in ("float32", "float64")),
        "cases": _cases(report),
        "grade": _finding_grade,
        "links": links,
        "compared": "a defence or a precision costs" if len(report.precisions) > 1 else "a defence costs",
        "computed": ", computed in float32" if rounded else "",
        "frontier": frontier(report) if _compares(report) else "",
        "left": _left(report),
    }  # fmt: skip


def _level(name: str, report: Report, place: Place) -> str:
    """Return the style class of a cell: what was not recovered is not thereby safe, and has none."""
    value, state = report.most(name, place), report.outcome(name, place)
    if state is not None and (state.grade is not None or state.outcome == "not recovered"):
        return "bad" if state.outcome == "recovered" else ""
    if value is None:
        return "bad" if state is not None and state.outcome == "recovered" else "mid"
    return _grade(name, value)


def _grade(name: str, value: float) -> str:
    # A recognisable image is bad, and so is one that is better than a flat one; that none was found is not good.
    if name in ("recognisable", "image-gain"):
        return "bad" if value > 0 else ""
    share = BAD * (value - NOISE) / (RECOGNISABLE - NOISE) if name == "image-psnr" else value
    low = "" if name.startswith("image") else "good"
    return "bad" if share >= BAD else "mid" if share >= MIDDLE else low


def _cases(report: Report) -> list[tuple[str, list[Finding], list[Finding]]]:
    """Return, for each case with findings, its title, the findings to show first, and the others."""
    cases = []
    for place in report.cases:
        findings = [finding for finding in report.findings if finding.place == place]
        if findings:
            name = {"none": "no defence", "update": "the update as it was sent"}.get(place.defense, place.defense)
            inside = "".join(f", {text}" for text in report.varied(place).values())
            first = _foremost(findings)
            title = f"{name}, batch of {place.batch_size}{inside}"
            cases.append((title, first, [finding for finding in findings if finding not in first]))
    return cases


def _foremost(findings: Sequence[Finding]) -> list[Finding]:
    """Return the worst finding for each main measure; if two are equal, the one with a certificate."""
    best: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda finding: finding.certificate not in ("unique", "exact")):
        name = main_measure(finding)
        if name not in best or _badness(finding) > _badness(best[name]):
            best[name] = finding
    return [finding for finding in findings if finding in best.values()]


def _badness(finding: Finding) -> tuple[float, ...]:
    name = main_measure(finding)
    return tuple(finding.measures.get(measure, 0.0) for measure in (name, "inputs", "image-psnr"))


def _finding_grade(one: Finding) -> str:
    """Return the style class of a finding, "" without a measure; what guessing finds is good."""
    name = main_measure(one)
    lucky = name and one.measures[name] <= one.chance.get(name, -1.0)
    return "good" if lucky else _grade(name, one.measures[name]) if name else ""


def _left(report: Report) -> list[tuple[str, str, str]]:
    """Return the attacks that were not tried, the reasons, and the cases."""
    groups: dict[tuple[str, str], list[str]] = {}
    for untried in report.not_tried:
        place = f"{report.shown_place(untried.place)}, {untried.batch_size}"
        groups.setdefault((untried.attack, untried.why), []).append(place)
    every = len(report.cases)
    return [(*key, "everywhere" if len(where) == every else "; ".join(where)) for key, where in groups.items()]


def figures(report: Report) -> Iterator[tuple[str, bytes]]:
    """Yield the file names and contents of a report's figures."""
    for picture in report.pictures:
        inside = " ".join(report.varied(picture.place).values())
        words = f"{picture.attack} {picture.defense} {inside} batch {picture.batch_size}".replace("/", " ").split()
        yield f"{'-'.join(words)}.png", base64.b64decode(picture.png)
    if _compares(report):
        yield "frontier.svg", frontier(report).encode()


def _compares(report: Report) -> bool:
    return bool(report.measured) and len({(cost.defense, cost.precision) for cost in report.costs}) > 1


def frontier(report: Report) -> str:
    """Return a chart of the leakage against the cosine of the sent with the true gradient, as an SVG.

    Each row of panels is a batch size and each column a measure. Each ring is a defence and a precision; rings have
    different radii, so that all are visible at the same point. The text has the colour of the surrounding page.
    """
    names = [name for name in ("labels", "words", "inputs", "image-ssim") if name in report.measured]
    sizes = list(dict.fromkeys(cost.batch_size for cost in report.costs))
    legend = list(dict.fromkeys(report.shown_place(cost.place) for cost in report.costs))
    panels = [
        (LEFT + WIDTH * column, TOP + HEIGHT * row, f"{name}, batch of {size}", _rings(report, name, size))
        for row, size in enumerate(sizes)
        for column, name in enumerate(names)
    ]
    bottom = HEIGHT * len(sizes) + 12
    return templates().get_template("frontier.svg").render(
        panels=panels, legend=legend, colours=COLOURS, side=SIDE, left=LEFT, bottom=bottom, width=WIDTH * len(names),
        height=bottom + 20 * len(legend),
    )  # fmt: skip


def _rings(report: Report, name: str, size: int) -> list[tuple[int, int, int]]:
    """Return the position of each ring in a panel, and its index among the panel's costs."""
    rings = []
    for index, cost in enumerate(entry for entry in report.costs if entry.batch_size == size):
        findings = [finding for finding in report.findings if finding.place == cost.place]
        values = [finding.measures[name] for finding in findings if name in finding.measures]
        if cost.cosine is not None and values:
            x, y = (max(0.0, min(1.0, value)) for value in (cost.cosine, max(values)))
            rings.append((round(SIDE * x), round(SIDE * (1 - y)), index))
    return rings
