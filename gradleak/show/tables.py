"""Render all tables: as HTML in a notebook, and as numbered MyST tables in the book."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
from jinja2 import Template

from gradleak.wording import MISSING as MISSING
from gradleak.wording import duration as duration

# More notes than this on a visible table are folded.
MOST_NOTES = 3
PAGE = Template(
    """\
{%- if table.fold %}<details><summary>{{ table.fold }}</summary>{% endif -%}
<div class="{{ ("gradleak-table " + table.kind).rstrip() }}" style="overflow-x:auto"><table>
<caption>{{ table.caption }}</caption>
<thead><tr>{% for name, side in head %}<th style="text-align:{{ side }}">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell, side in row -%}
<td style="text-align:{{ side }}">
{%- if cell.badge %}<span class="{{ badge(cell.badge) }}">{{ cell }}</span>{% else %}{{ cell }}{% endif -%}
</td>
{%- endfor %}</tr>{% endfor %}</tbody></table></div>
{%- if notes_title %}<details><summary>{{ notes_title }}</summary>{% endif -%}
{%- if table.remarks[1:] %}<ul>{% for text in table.remarks %}<li>{{ text }}</li>{% endfor %}</ul>
{%- elif table.remarks %}<p>{{ table.remarks[0] }}</p>{% endif -%}
{%- if notes_title %}</details>{% endif %}{% if table.fold %}</details>{% endif %}""",
    autoescape=True,
)


@dataclass(frozen=True)
class Cell:
    """A text in a table that is shown as a badge, or leads somewhere in the book.

    Attributes:
        text: The text.
        badge: A word whose coloured badge the cell shows; "" for none.
        link: The target of the link as "role:target", such as "claim:theorem1-bias"; "" for none.
    """

    text: str
    badge: str = ""
    link: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    """A table with a caption.

    Attributes:
        frame: The cells, which are texts, numbers or `Cell`s.
        caption: The caption.
        name: The label to which cross-references in the book point.
        notes: A text below the table, or several, which are shown as a list.
        formats: The format specifications of numbers, by column.
        kind: An additional style class; "cells" for a table whose cells with a badge are numbers.
        fold: The title of a fold that hides the table until a reader opens it, or "" for a table that is visible.
    """

    frame: pd.DataFrame
    caption: str
    name: str
    notes: str | Sequence[str] = ""
    formats: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    fold: str = ""

    @property
    def _columns(self) -> list[list[Cell]]:
        """All cells with their texts, column by column."""
        # In a mixed row pandas would convert whole numbers to floats.
        return [
            [_cell(value, self.formats.get(str(name), "")) for value in self.frame.iloc[:, place].tolist()]
            for place, name in enumerate(self.frame.columns)
        ]

    @property
    def _sides(self) -> list[str]:
        """For each column the side to which it is aligned: "right" if it holds numbers."""

        def right(column: list[Cell]) -> bool:
            marked = self.kind == "cells" and any(cell.badge for cell in column)
            return bool(column) and (marked or all(_is_number(cell.text) for cell in column))

        return ["right" if right(column) else "left" for column in self._columns]

    @property
    def remarks(self) -> list[str]:
        """The texts below the table."""
        return [text for text in ([self.notes] if isinstance(self.notes, str) else self.notes) if text]

    @property
    def _notes_title(self) -> str:
        """The title of the fold of the notes: if there are many, and the table itself is visible."""
        folded = len(self.remarks) > MOST_NOTES and not self.fold
        return f"{len(self.remarks)} notes on this table" if folded else ""

    def _repr_html_(self) -> str:
        head = zip(map(str, self.frame.columns), self._sides, strict=True)
        rows = [zip(row, self._sides, strict=True) for row in zip(*self._columns, strict=True)]
        return str(PAGE.render(table=self, head=list(head), rows=rows, notes_title=self._notes_title, badge=badge))

    def _repr_markdown_(self) -> str:
        def shown(cell: Cell) -> str:
            text = _linked(cell) if cell.link else _escaped(cell.text)
            return f"[{text}]{{.{badge(cell.badge).replace(' ', ' .')}}}" if cell.badge else text

        align = ["---:" if side == "right" else "---" for side in self._sides]
        rows = [map(shown, row) for row in zip(*self._columns, strict=True)]
        lines = [[_escaped(str(name)) for name in self.frame.columns], align, *rows]
        body = "\n".join("| " + " | ".join(row) + " |" for row in lines)
        texts = [("- " if self.remarks[1:] else "") + _escaped(text) for text in self.remarks]
        notes = "\n\n{.gradleak-notes}\n" + "\n".join(texts) + "\n" if texts else ""
        if self._notes_title:
            notes = f"\n:::{{dropdown}} {self._notes_title}{notes}:::\n"
        options = f":name: {self.name}\n:class: gradleak-table {self.kind}".rstrip()
        table = f":::{{table}} {_escaped(self.caption)}\n{options}\n\n{body}\n:::\n{notes}"
        return f"::::{{dropdown}} {_escaped(self.fold)}\n{table}\n::::\n" if self.fold else table

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string(index=False)}"


def _cell(value: object, specification: str) -> Cell:
    if isinstance(value, Cell):
        return value
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return Cell("–")
    return Cell(str(value) if isinstance(value, str) else format(value, specification))


def badge(text: str) -> str:
    """Return the style classes of a badge, which are made from its words outside brackets."""
    return "badge badge-" + "-".join(re.sub(r"\(.*|[^\w -]", "", text).lower().split())


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[–+\-−]?[\d.,  ]*(e[+\-]?\d+)?\s*%?( ± [\d.e+\-]+)?|–|∞|lost|inf|nan", text))


def _linked(cell: Cell) -> str:
    """Return a link of a cell as a MyST role, whose text is not Markdown."""
    role, _, target = cell.link.partition(":")
    words = re.sub(r"[`<>\s]+", " ", cell.text).replace("|", r"\|").strip()
    return f"{{{role}}}`{words} <{target}>`"


def _escaped(text: str) -> str:
    # Markdown would interpret these characters as markup, and a newline would end the row of the table.
    return re.sub(r"([\\|*_`$<~{}\[\]])", r"\\\1", text).replace("\n", " ")
