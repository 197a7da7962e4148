"""A report as one HTML file: opens offline, follows light and dark, prints, and fits a phone."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from gradleak import paths
from gradleak.auditing import drawing
from gradleak.auditing.findings import MEASURES, NOT_RECOVERED, RECOVERED, Audited, Finding, Place
from gradleak.auditing.sentences import main_measure, of_haste, of_outcomes
from gradleak.errors import GradleakError

STYLE = """
.audit { --ink: #1c2730; --soft: #57656f; --line: #d9dfe3; --ground: #fff; --panel: #f5f7f8; --strong: #14405c;
  --bad: #a5311c; --mid: #8a5a00; --good: #1a6b33; color: var(--ink); background: var(--ground);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; max-width: 72rem; margin: 0 auto;
  padding: 1.5rem clamp(0.8rem, 3vw, 2rem); box-sizing: border-box; overflow-wrap: anywhere; }
.audit h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 0.3rem; }
.audit h2 { font-size: 1.2rem; margin: 2rem 0 0.6rem; color: var(--strong); }
.audit h3 { font-size: 1rem; margin: 1.4rem 0 0.3rem; }
.audit p { margin: 0.4rem 0; max-width: 60rem; }
.audit .soft { color: var(--soft); }
.audit .wide { overflow-x: auto; }
.audit table { border-collapse: collapse; font-size: 0.94rem; margin: 0.5rem 0; }
.audit th, .audit td { text-align: left; padding: 0.35rem 0.9rem 0.35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: normal; }
.audit thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.audit td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.audit .bad { color: var(--bad); font-weight: 650; } .audit .mid { color: var(--mid); font-weight: 650; }
.audit .good { color: var(--good); }
.audit .finding { border-left: 4px solid var(--line); padding: 0.1rem 0 0.1rem 0.9rem; margin: 0.7rem 0;
  break-inside: avoid; }
.audit .finding.is-bad { border-color: var(--bad); } .audit .finding.is-mid { border-color: var(--mid); }
.audit .finding.is-good { border-color: var(--good); }
.audit img { max-width: 100%; height: auto; border-radius: 4px; display: block; margin: 0.4rem 0; }
.audit img.pixels { image-rendering: pixelated; min-width: 64px; }
.audit figure { margin: 0.4rem 0; break-inside: avoid; } .audit figcaption { color: var(--soft); font-size: 0.86rem; }
.audit a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: 0.15em; }
.audit details { margin: 0.6rem 0; } .audit summary { cursor: pointer;
  color: var(--strong); } .audit ul { padding-left: 1.2rem; margin: 0.3rem 0; }
@media (prefers-color-scheme: dark) { .audit { --ink: #e3e8eb; --soft: #9fadb6; --line: #39454d; --ground: #14191d;
  --panel: #1d252b; --strong: #8cc3e6; --bad: #ff8f78; --mid: #efc06c; --good: #7fd39a; } }
@media print { .audit { --ink: #000; --soft: #444; --ground: #fff; --line: #bbb; --strong: #14405c; --bad: #a5311c;
  --mid: #8a5a00; --good: #1a6b33; max-width: none; padding: 0; font-size: 10.5pt; } }
"""
BODY = (
    "<style>html{background:Canvas;color-scheme:light dark}body{margin:0}@media(prefers-color-scheme:dark)"
    "{html{background:#14191d}}@media print{html{background:#fff}}</style>"
)
# From here on something is called bad, and from there on it is in between.
BAD, MIDDLE = 0.5, 0.1
Link = Callable[[str], str]


def page(report: Audited, folder: Path) -> str:
    """Return the whole file, to lie in a folder."""
    title = escape(f"What {report.facts['network'].partition(',')[0]} gives away")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>{BODY}</head><body>{fragment(report, book_beside(folder))}</body></html>\n"
    )


def book_beside(folder: Path) -> Link:
    """Return how a page of the book is linked from a folder: into the checkout's built book, where there is one."""

    def link(name: str) -> str:
        try:
            folder_of_pages = paths.root() / "_build/html/book/executed"
        except GradleakError:
            return ""
        file = next(folder_of_pages.glob(f"*/{name}.html"), None)
        return "" if file is None else os.path.relpath(file, folder.resolve())

    return link


def fragment(report: Audited, link: Link = lambda name: "") -> str:
    """Return the report as a piece of HTML, for a notebook's output or the file's body."""
    parts = [
        _head(report), _summary(report), _network(report), _proved(report), *_cases(report, link), _costs(report),
        _left(report),
    ]  # fmt: skip
    return f'<style>{STYLE}</style><div class="audit">{"".join(parts)}</div>'


def _head(report: Audited) -> str:
    name = escape(report.facts["network"].partition(",")[0])
    settings = "; ".join(f"{key}: {value}" for key, value in report.settings.items())
    broken = "<p class='bad'>The audit was interrupted: this is the report so far.</p>" if report.interrupted else ""
    notes = "".join(f"<p class='soft'>Note: {escape(note)}.</p>" for note in report.notes)
    return (
        f"<h1>What {name} gives away</h1>"
        f"<p class='soft'>gradleak {escape(report.version)}, {report.seconds:.0f} s. {escape(settings)}.</p>"
        f"{broken}{notes}"
    )


def _network(report: Audited) -> str:
    facts = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in report.facts.items())
    return f"<h2>The network, as the server knows it</h2><div class='wide'><table>{facts}</table></div>"


def _summary(report: Audited) -> str:
    rows = report.table()
    if not rows:
        return "<h2>What was recovered, and what was not attacked</h2><p>Nothing was attacked.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = ""
    for row, place in zip(rows, report.cases, strict=True):
        cells = ""
        for name, text in row.items():
            level = _level(name, report, place) if name in MEASURES and text != "–" else ""
            cells += f"<td class='number {level}'>{escape(text)}</td>"
        body += f"<tr>{cells}</tr>"
    known = "; ".join(f"{name}: {MEASURES[name]}" for name in report.measured)
    blind = "" if known else "<p>Nothing was measured: there was no private batch to compare with.</p>"
    silent = "".join(f"<li>{escape(line)}.</li>" for line in of_outcomes(report))
    haste = f"<p><strong>{escape(told)}</strong></p>" if (told := of_haste(report)) else ""
    return (
        "<h2>What was recovered, and what was not attacked</h2><div class='wide'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{blind}<ul>{silent}</ul>"
        f"{haste}<p class='soft'>The most that any attack got. {escape(known)}.</p>"
    )


def _level(name: str, report: Audited, place: Place) -> str:
    """Return the colour of a cell; what was not attacked is coloured as neither good nor bad."""
    value, state = report.most(name, place), report.outcome(name, place)
    if state is not None and state.outcome == NOT_RECOVERED:
        return "good"
    if value is None:
        return "bad" if state is not None and state.outcome == RECOVERED else "mid"
    return _grade(name, value)


def _grade(name: str, value: float) -> str:
    share = (value - 10) / 20 if name == "image-psnr" else value
    return "bad" if share >= BAD else "mid" if share >= MIDDLE else "good"


def _proved(report: Audited) -> str:
    lines = "".join(f"<li>{escape(one)}.</li>" for one in report.proofs)
    coarse = [one for one in report.precisions if one not in ("float32", "float64")]
    note = (
        "<p class='soft'>The counts assume that nothing is rounded. In "
        f"{escape(', '.join(coarse))} several answers may fit: the findings say where only one does.</p>"
    )
    return f"<h2>What the counts alone prove</h2><ul>{lines}</ul>{note if coarse else ''}"


def _cases(report: Audited, link: Link) -> list[str]:
    parts = ["<h2>Findings</h2>"]
    for place in report.cases:
        own = [one for one in report.findings if one.place == place]
        if not own:
            continue
        name = {"none": "no defence", "update": "the update as it was sent"}.get(place.defense, place.defense)
        inside = f" in {place.precision}" if len(report.precisions) > 1 else ""
        parts.append(f"<h3>{escape(name)}, batch of {place.batch_size}{inside}</h3>")
        first = _foremost(own)
        parts += [_finding(report, one, link) for one in own if one in first]
        others = [_finding(report, one, link) for one in own if one not in first]
        if others:
            parts.append(f"<details><summary>{len(others)} more attacks</summary>{''.join(others)}</details>")
    return parts if len(parts) > 1 else []


def _foremost(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that are to be seen at once: of every main measure the worst, the certain ones first."""
    best: dict[str, Finding] = {}
    for one in sorted(findings, key=lambda one: one.certificate not in ("unique", "exact")):
        name = main_measure(one)
        name = "inputs" if name == "image-ssim" else name
        if name not in best or _badness(one) > _badness(best[name]):
            best[name] = one
    return list(best.values())


def _badness(finding: Finding) -> float:
    name = main_measure(finding)
    return finding.measures[name] if name else 0.0


def _finding(report: Audited, one: Finding, link: Link) -> str:
    name = main_measure(one)
    grade = _grade(name, one.measures[name]) if name else ""
    if name and one.measures[name] <= one.chance.get(name, -1.0):
        grade = "good"
    cut = " <span class='soft'>The clock cut it off.</span>" if one.cut else ""
    stops = f"<p class='soft'>{escape(one.stops)}</p>" if one.stops else ""
    image = "".join(
        f"<figure><img class='pixels' alt='private images above, recovered ones below' "
        f"src='data:image/png;base64,{picture.png}'><figcaption>Above: private. Below: recovered.</figcaption></figure>"
        for picture in report.pictures
        if (picture.place, picture.attack) == (one.place, one.attack)
    )
    return (
        f"<div class='finding is-{grade}'><p><strong>{escape(one.attack)}.</strong> {escape(one.sentence)}{cut} "
        f"<span class='soft'>{_page(one.page, link)}</span></p>{stops}{image}</div>"
    )


def _page(name: str, link: Link) -> str:
    place = link(name)
    return f"<a href='{escape(place)}'>{escape(name)}</a>" if place else f"(the book's page <em>{escape(name)}</em>)"


def _costs(report: Audited) -> str:
    if not report.costs:
        return ""
    several = len(report.precisions) > 1
    rows = "".join(
        f"<tr><td>{escape(one.defense)}</td><td class='number'>{one.batch_size}</td>"
        f"{f'<td>{escape(one.precision)}</td>' if several else ''}"
        f"<td class='number'>{'–' if one.cosine is None else format(one.cosine, '.3f')}</td>"
        f"<td class='number'>{one.loss_before:.4g}</td><td class='number'>{one.loss_after:.4g}</td>"
        f"<td class='number'>{one.loss_after_undefended:.4g}</td></tr>"
        for one in report.costs
    )
    picture = f"<figure class='wide'>{drawing.frontier(report)}</figure>" if _compares(report) else ""
    head, column = ("a defence or a precision costs", "<th>precision</th>") if several else ("a defence costs", "")
    true = "" if {one.precision for one in report.costs} <= {"float32", "float64"} else ", computed in float32"
    return (
        f"<h2>What leaks against what {head}</h2><div class='wide'><table><thead><tr><th>defence</th>"
        f"<th>batch size</th>{column}<th>cosine</th><th>loss</th><th>after a step</th><th>undefended</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{picture}"
        f"<p class='soft'>Cosine of the gradient that is sent with the true one{true}; the batch's loss before and "
        "after one step along it.</p>"
    )


def _left(report: Audited) -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for one in report.not_tried:
        groups.setdefault((one.attack, one.why), []).append(f"{report.shown_place(one.place)}, {one.batch_size}")
    every = len(report.cases)
    rows = "".join(
        f"<tr><td>{escape(attack)}</td><td>{escape(why)}</td><td>{_where(where, every)}</td></tr>"
        for (attack, why), where in groups.items()
    )
    return (
        "<h2>What was not tried, and why</h2><div class='wide'><table><thead><tr><th>attack</th><th>why</th>"
        f"<th>where</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _where(where: Sequence[str], every: int) -> str:
    return "everywhere" if len(where) == every else escape("; ".join(where))


def figures(report: Audited) -> Iterator[tuple[str, bytes]]:
    """Give the figures of a report, by the names of their files."""
    for one in report.pictures:
        inside = one.precision if len(report.precisions) > 1 else ""
        words = f"{one.attack} {one.defense} {inside} batch {one.batch_size}".replace("/", " ").split()
        yield f"{'-'.join(words)}.png", base64.b64decode(one.png)
    if _compares(report):
        yield "frontier.svg", drawing.frontier(report).encode()


def _compares(report: Audited) -> bool:
    return bool(report.measured) and len({(one.defense, one.precision) for one in report.costs}) > 1
