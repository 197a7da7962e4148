"""Summarise a new run of a page: its changed parameters, and what it says of each claim beside the record."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from gradleak import claims, paths
from gradleak.claims import Claim, Judgement
from gradleak.runs.records import Record
from gradleak.show.aggregate import NOTHING
from gradleak.show.tables import Table
from gradleak.storage import write_whole
from gradleak.studies import Parameters, Study
from gradleak.wording import counted

# The most characters of a list or a name in a line.
LONGEST = 60
# How tables name the statistics that claims measure; the mean, a share and a single value have the column's head alone.
STATISTICS = {"max": ", largest", "min": ", least", "median": ", median", "sum": ", sum"}
NOT_JUDGED = (
    "A claim is not judged if this run has fewer samples than the claim needs, or another setting than the paper's; "
    "the claim's page in the book states both."
)
# MyST's roles and numbered equations, and what stands for them in a notebook that nbconvert renders.
PLAIN = (
    (r"\{eq\}`([\w-]+)`", r"$\\eqref{\1}$"),
    (r"\{[\w:]+\}`([^`<]+?)(?:\s*<[^`]*>)?`", r"\1"),
    (r"\$\$([^$]+)\$\$\s*\(([\w-]+)\)", r"\\begin{equation}\\label{\2}\1\\end{equation}"),
)


def folder_of(study: Study, parameters: Parameters) -> str:
    """Return the name of the folder of a run: the study's, with a hash of the parameters if any of them was changed."""
    values = parameters.model_dump()
    if values == study.Parameters().model_dump():
        return study.name
    return f"{study.name}-{hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]}"


def numbers(study: Study, record: Record) -> list[list[dict[str, str]]]:
    """Return this run's values of the columns that the page's claims measure, as tables of texts.

    A table has a line for each combination of the values by which claims select their rows. Its columns hold the
    statistics that these claims measure.
    """
    frame, tables = record.frame(), dict[tuple[str, ...], dict[str, Claim]]()
    for claim in claims.load(study.name):
        measure = claim.measure
        if measure.column in frame and frame[measure.column].notna().any():
            keys = tuple(name for name in frame if name in measure.where)
            head = _head(study, measure.column) + STATISTICS.get(measure.reduce, "")
            tables.setdefault(keys, {}).setdefault(head, claim)
    # A table is left out if another one shows its columns with more keys.
    finest = {
        keys: columns
        for keys, columns in tables.items()
        if not any(set(keys) < set(others) and columns.keys() <= tables[others].keys() for others in tables)
    }
    return [lines for keys, columns in finest.items() if (lines := _lines(study, frame, keys, columns))]


def _lines(
    study: Study, frame: pd.DataFrame, keys: Sequence[str], columns: Mapping[str, Claim]
) -> list[dict[str, str]]:
    """Return a line for each group of rows with the same keys: the keys, and each claim's statistic of its column."""
    measured = [claim.measure.column for claim in columns.values()]
    rows = frame[frame[measured].notna().any(axis=1) & frame[list(keys)].notna().all(axis=1)]
    groups = [group for _, group in rows.groupby(list(keys), sort=False)] if keys else [rows]
    lines = []
    for group in groups:
        line = {_head(study, name): str(group[name].iloc[0]) for name in keys}
        for head, claim in columns.items():
            values = group[claim.measure.column].dropna().astype(float)
            share = claim.measure.reduce == "share"
            statistic = claim.measure.reduce if claim.measure.reduce in STATISTICS else "mean"
            value = getattr(values, statistic)() * (100 if share else 1)
            line[head] = claim.formatted(float(value)) if len(values) else NOTHING
        lines.append(line)
    return lines


def _head(study: Study, column: str) -> str:
    return study.columns[column].head if column in study.columns else column


def summary(study: Study, record: Record) -> tuple[list[dict[str, str]], list[str]]:
    """Compare a new run of a page with the recorded run.

    Args:
        study: The study.
        record: The record of the new run.

    Returns:
        A row for each claim that this run measures, as texts by column, the paper's claims before our own; and the
        counts of verdicts, of claims that are not measured and the changed parameters in sentences.
    """
    lines = claims.lines({study.name: record}, study.name)
    groups = {"of the paper": claims.of_papers(lines), "of our own": claims.of_ours(lines)}
    sentences, rows = [], []
    for whose, own in groups.items():
        verdicts = Counter(verdict(line.fresh) for line in own)
        counts = "; ".join(f"{count} '{words}'" for words, count in verdicts.items())
        sentences += [f"{counted(len(own), 'claim')} {whose}: {counts}."] if own else []
        measured = [line for line in own if line.fresh.agrees is not None]
        rows += [claims.row(line) | {"verdict of this run": verdict(line.fresh)} for line in measured]
    if any("not judged" in row["verdict of this run"] for row in rows):
        sentences.append(NOT_JUDGED)
    return rows, [*sentences, _changed(study, record)]


def write(rows: list[dict[str, str]], sentences: list[str], notebook: Path) -> Path:
    """Put the summary at the head of an executed notebook, render it to an HTML file, and return the file.

    The file holds its figures, styles and scripts, and needs no network.
    """
    import nbformat
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    page = nbformat.read(notebook, 4)
    table = Table(pd.DataFrame(rows), caption="The claims of this page in this run.", name="tab-this-run")
    parts = [*sentences, *([table._repr_html_()] if rows else [])]
    page.cells.insert(0, nbformat.v4.new_markdown_cell("\n\n".join(parts)))
    write_whole(notebook, lambda stream: stream.write(f"{nbformat.writes(page)}\n".encode()))
    for cell in page.cells:
        if cell.cell_type == "markdown":
            for pattern, plain in PLAIN:
                cell.source = re.sub(pattern, plain, cell.source)
    offline = importlib.metadata.distribution("sphinx-mathjax-offline")
    mathjax = Path(str(offline.locate_file("sphinx-mathjax-offline/static/mathjax/tex-svg.js")))
    exporter = HTMLExporter(
        raw_template=Path(__file__).with_name("run.html.j2").read_text("utf-8"),
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        config=Config({"TagRemovePreprocessor": {"enabled": True, "remove_input_tags": {"hide-input"}}}),
    )
    resources = {
        "metadata": {"name": f"A run of {notebook.stem}"},
        "mathjax": mathjax.read_text("utf-8"),
        "styles": _of_book("html_css_files"),
        "scripts": _of_book("html_js_files"),
    }
    text, _ = exporter.from_notebook_node(page, resources)
    file = notebook.with_suffix(".html")
    write_whole(file, lambda stream: stream.write(text.encode()))
    return file


def verdict(judgement: Judgement) -> str:
    """Return in a few words what a run says of a claim."""
    if judgement.agrees is None:
        return "not measured with these parameters"
    if judgement.verdict in claims.DECIDED:
        return "holds" if judgement.agrees else "fails"
    return "agrees, not judged" if judgement.agrees else "disagrees, not judged"


def brief(value: Any) -> str:
    """Return a value as a short text; lists without brackets, and long ones cut."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2].rstrip(' ,')} …"


def _changed(study: Study, record: Record) -> str:
    """Return the parameters that differ from the page's own values, in one sentence."""
    defaults = study.Parameters().model_dump()
    changed = [
        f"{name} = {brief(value)} (the page's own value: {brief(defaults[name])})"
        for name, value in record.parameters.items()
        if value != defaults[name]
    ]
    return f"Changed parameters: {'; '.join(changed)}." if changed else "All parameters have the page's own values."


def _of_book(setting: str) -> str:
    """Return the text of the files in the book's static folder that a setting of `_config.yml` lists."""
    file = paths.root() / "_config.yml"
    config = yaml.safe_load(file.read_text("utf-8"))["sphinx"]["config"] if file.is_file() else {}
    return "\n".join((paths.book() / "_static" / name).read_text("utf-8") for name in config.get(setting, ()))
