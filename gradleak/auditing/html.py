"""Render a report as one HTML file that works offline, in light and dark mode, in print and on a phone."""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from gradleak import paths
from gradleak.auditing import drawing
from gradleak.auditing.findings import MEASURES, NOT_RECOVERED, RECOVERED, Audited, Finding, Place
from gradleak.auditing.sentences import main_measure, of_haste, of_outcomes
from gradleak.errors import GradleakError
from gradleak.metrics import RECOGNISABLE

# A share of at least BAD is shown as bad, and a share of at least MIDDLE as intermediate.
BAD, MIDDLE = 0.5, 0.1
NOISE = 10.0  # PSNR (dB) of an image of noise, about
Link = Callable[[str], str]
# A cell's text and its style class.
Cell = tuple[str, str]


def page(report: Audited, folder: Path) -> str:
    """Return the HTML file for a folder."""
    return templates().get_template("page.html").render(_content(report, book_beside(folder)))


def book_beside(folder: Path) -> Link:
    """Return a function that gives the link from a folder to a page of the built book, "" if there is no such page."""

    def link(name: str) -> str:
        try:
            folder_of_pages = paths.root() / "_build/html/book/executed"
        except GradleakError:
            return ""
        file = next(folder_of_pages.glob(f"*/{name}.html"), None)
        return "" if file is None else os.path.relpath(file, folder.resolve())

    return link


def fragment(report: Audited, link: Link = lambda name: "") -> str:
    """Return the report as an HTML fragment, for a notebook's output."""
    return templates().get_template("report.html").render(_content(report, link))


@functools.cache
def templates(package: str = "gradleak.auditing") -> jinja2.Environment:
    """Return the templates of a package, which refuse names that are not given and escape what they insert."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _content(report: Audited, link: Link) -> dict[str, Any]:
    """Return the variables of the template."""
    summary_head, summary = _summary(report)
    several = len(report.precisions) > 1
    precision = ["precision"] if several else []
    rounded = {one.precision for one in report.costs} - {"float32", "float64"}
    source, _, _ = templates().loader.get_source(templates(), "report.css")  # type: ignore[union-attr]
    return {
        "style": source,
        "report": report,
        "proofs": report.proofs,
        "network": report.facts["network"].partition(",")[0],
        "settings": "; ".join(f"{key}: {value}" for key, value in report.settings.items()),
        "summary_head": summary_head,
        "summary": summary,
        "measures": "; ".join(f"{name}: {MEASURES[name]}" for name in report.measured),
        "outcomes": of_outcomes(report),
        "haste": of_haste(report),
        "coarse": ", ".join(one for one in report.precisions if one not in ("float32", "float64")),
        "cases": _cases(report, link),
        "costs_head": ["defence", "batch size", *precision, "cosine", "loss", "after a step", "undefended"],
        "costs": _costs(report, several=several),
        "compared": "a defence or a precision costs" if several else "a defence costs",
        "computed": ", computed in float32" if rounded else "",
        "frontier": drawing.frontier(report) if _compares(report) else "",
        "left": _left(report),
    }


def _summary(report: Audited) -> tuple[list[str], list[list[Cell]]]:
    rows = report.table()
    cells = [
        [
            (text, f"number {_level(name, report, place) if name in MEASURES and text != '–' else ''}")
            for name, text in row.items()
        ]
        for row, place in zip(rows, report.cases, strict=True)
    ]
    return list(rows[0]) if rows else [], cells


def _level(name: str, report: Audited, place: Place) -> str:
    """Return the style class of a cell; values that are unknown are neither good nor bad."""
    value, state = report.most(name, place), report.outcome(name, place)
    if state is not None and state.outcome == NOT_RECOVERED:
        return "good"
    if value is None:
        return "bad" if state is not None and state.outcome == RECOVERED else "mid"
    return _grade(name, value)


def _grade(name: str, value: float) -> str:
    # A recognisable image is bad.
    share = BAD * (value - NOISE) / (RECOGNISABLE - NOISE) if name == "image-psnr" else value
    return "bad" if share >= BAD else "mid" if share >= MIDDLE else "good"


@dataclass(frozen=True)
class _Shown:
    """The variables of a finding in the template."""

    attack: str
    sentence: str
    grade: str
    cut: bool
    page: str
    link: str
    stops: str
    pictures: list[str]


def _cases(report: Audited, link: Link) -> list[tuple[str, list[_Shown], list[_Shown]]]:
    """Return, for each case with findings, its title, the findings to show first, and the others."""
    cases = []
    for place in report.cases:
        findings = [finding for finding in report.findings if finding.place == place]
        if not findings:
            continue
        name = {"none": "no defence", "update": "the update as it was sent"}.get(place.defense, place.defense)
        inside = f" in {place.precision}" if len(report.precisions) > 1 else ""
        foremost = _foremost(findings)
        cases.append(
            (
                f"{name}, batch of {place.batch_size}{inside}",
                [_finding(report, finding, link) for finding in findings if finding in foremost],
                [_finding(report, finding, link) for finding in findings if finding not in foremost],
            )
        )
    return cases


def _foremost(findings: Sequence[Finding]) -> list[Finding]:
    """Return the worst finding for each main measure; if two are equal, the one with a certificate."""
    best: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda finding: finding.certificate not in ("unique", "exact")):
        name = main_measure(finding)
        name = "inputs" if name == "image-ssim" else name
        if name not in best or _badness(finding) > _badness(best[name]):
            best[name] = finding
    return list(best.values())


def _badness(finding: Finding) -> float:
    name = main_measure(finding)
    return finding.measures[name] if name else 0.0


def _finding(report: Audited, one: Finding, link: Link) -> _Shown:
    name = main_measure(one)
    grade = _grade(name, one.measures[name]) if name else ""
    if name and one.measures[name] <= one.chance.get(name, -1.0):
        grade = "good"
    pngs = [picture.png for picture in report.pictures if (picture.place, picture.attack) == (one.place, one.attack)]
    return _Shown(one.attack, one.sentence, grade, one.cut, one.page, link(one.page), one.stops, pngs)


def _costs(report: Audited, *, several: bool) -> list[list[Cell]]:
    return [
        [
            (cost.defense, ""),
            (str(cost.batch_size), "number"),
            *([(cost.precision, "")] if several else []),
            ("–" if cost.cosine is None else f"{cost.cosine:.3f}", "number"),
            *((f"{loss:.4g}", "number") for loss in (cost.loss_before, cost.loss_after, cost.loss_after_undefended)),
        ]
        for cost in report.costs
    ]


def _left(report: Audited) -> list[list[Cell]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for untried in report.not_tried:
        groups.setdefault((untried.attack, untried.why), []).append(
            f"{report.shown_place(untried.place)}, {untried.batch_size}"
        )
    every = len(report.cases)
    return [
        [(attack, ""), (why, ""), ("everywhere" if len(where) == every else "; ".join(where), "")]
        for (attack, why), where in groups.items()
    ]


def figures(report: Audited) -> Iterator[tuple[str, bytes]]:
    """Yield the file names and contents of a report's figures."""
    for picture in report.pictures:
        inside = picture.precision if len(report.precisions) > 1 else ""
        words = f"{picture.attack} {picture.defense} {inside} batch {picture.batch_size}".replace("/", " ").split()
        yield f"{'-'.join(words)}.png", base64.b64decode(picture.png)
    if _compares(report):
        yield "frontier.svg", drawing.frontier(report).encode()


def _compares(report: Audited) -> bool:
    return bool(report.measured) and len({(cost.defense, cost.precision) for cost in report.costs}) > 1
