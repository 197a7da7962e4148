"""Render all tables: as HTML in a notebook, and as numbered MyST tables in the book."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import pandas as pd

from gradleak.wording import MISSING as MISSING
from gradleak.wording import duration as duration

# More notes than this on a visible table are folded.
MOST_NOTES = 3


@dataclass(frozen=True)
class Table:
    """A table with a caption.

    Attributes:
        frame: The cells, which are texts or numbers.
        caption: The caption.
        name: The label to which cross-references in the book point.
        notes: A text below the table, or several, which are shown as a list.
        formats: The format specifications of numbers, by column.
        kind: An additional style class; "cells" for a table whose marked cells are numbers.
        marks: Words in the shape of the frame; a word other than "" shows its cell as the coloured badge of that name.
        fold: The title of a fold that hides the table until a reader opens it, or "" for a table that is visible.
        links: The targets of the cells' links in the book, in the shape of the frame, each as "role:target", such as
            "claim:theorem1-bias"; "" for a cell without a link.
    """

    frame: pd.DataFrame
    caption: str
    name: str
    notes: str | Sequence[str] = ""
    formats: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    marks: Sequence[Sequence[str]] = ()
    fold: str = ""
    links: Sequence[Sequence[str]] = ()

    @property
    def _head(self) -> list[str]:
        return [str(name) for name in self.frame.columns]

    @property
    def _rows(self) -> list[list[str]]:
        # Read the cells by column, because pandas would convert the whole numbers of a mixed row to floats.
        columns = [
            [_text(value, self.formats.get(name, "")) for value in self.frame.iloc[:, index].tolist()]
            for index, name in enumerate(self._head)
        ]
        return [list(row) for row in zip(*columns, strict=True)]

    @property
    def _badges(self) -> list[list[str]]:
        """The style classes of every cell's badge, or "" for a cell without a badge."""
        marks = self.marks or [[""] * len(self.frame.columns)] * len(self.frame)
        return [[badge(word) if word else "" for word in row] for row in marks]

    @property
    def _right(self) -> list[bool]:
        """For each column whether it is aligned to the right: if it holds numbers."""
        rows = self._rows
        marked = [any(column) for column in zip(*self.marks, strict=True)] if self.kind == "cells" else []
        numbers = [bool(rows) and all(map(_is_number, column)) for column in zip(*rows, strict=True)]
        return [number or mark for number, mark in zip_longest(numbers or [False] * len(self._head), marked)]

    @property
    def remarks(self) -> list[str]:
        """The texts below the table."""
        return [text for text in ([self.notes] if isinstance(self.notes, str) else self.notes) if text]

    @property
    def _classes(self) -> str:
        return f"gradleak-table {self.kind}".rstrip()

    def _repr_html_(self) -> str:
        sides = [f' style="text-align:{"right" if numbers else "left"}"' for numbers in self._right]

        def line(tag: str, cells: list[str]) -> str:
            return "".join(f"<{tag}{side}>{cell}</{tag}>" for cell, side in zip(cells, sides, strict=True))

        def shown(cell: str, badge: str) -> str:
            text = html.escape(cell)
            return f'<span class="{badge}">{text}</span>' if badge else text

        top = line("th", [html.escape(name) for name in self._head])
        cells = [list(map(shown, row, badges)) for row, badges in zip(self._rows, self._badges, strict=True)]
        body = "".join(f"<tr>{line('td', row)}</tr>" for row in cells)
        texts = [html.escape(text) for text in self.remarks]
        notes = "<ul>" + "".join(f"<li>{text}</li>" for text in texts) + "</ul>" if texts[1:] else ""
        notes = notes or "".join(f"<p>{text}</p>" for text in texts)
        if self._folds_notes:
            notes = f"<details><summary>{self._notes_title}</summary>{notes}</details>"
        caption = html.escape(self.caption)
        table = (
            f'<div class="{self._classes}" style="overflow-x:auto"><table><caption>{caption}</caption>'
            f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>{notes}"
        )
        return f"<details><summary>{html.escape(self.fold)}</summary>{table}</details>" if self.fold else table

    @property
    def _folds_notes(self) -> bool:
        """Whether the notes are folded: if there are many, and the table itself is visible."""
        return len(self.remarks) > MOST_NOTES and not self.fold

    @property
    def _notes_title(self) -> str:
        return f"{len(self.remarks)} notes on this table"

    def _repr_markdown_(self) -> str:
        align = ["---:" if numbers else "---" for numbers in self._right]

        def shown(cell: str, badge: str, link: str) -> str:
            text = _linked(cell, link) if link else _escaped(cell)
            return f"[{text}]{{.{badge.replace(' ', ' .')}}}" if badge else text

        links = self.links or [[""] * len(align)] * len(self.frame)
        shown_rows = (list(map(shown, *cells)) for cells in zip(self._rows, self._badges, links, strict=True))
        cells = [[_escaped(name) for name in self._head], align, *shown_rows]
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        body = "\n".join(lines)
        texts = [("- " if self.remarks[1:] else "") + _escaped(text) for text in self.remarks]
        notes = "\n\n{.gradleak-notes}\n" + "\n".join(texts) + "\n" if texts else ""
        if self._folds_notes:
            notes = f"\n:::{{dropdown}} {self._notes_title}{notes}:::\n"
        options = f":name: {self.name}\n:class: {self._classes}"
        table = f":::{{table}} {_escaped(self.caption)}\n{options}\n\n{body}\n:::\n{notes}"
        return f"::::{{dropdown}} {_escaped(self.fold)}\n{table}\n::::\n" if self.fold else table

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string(index=False)}"


def _text(value: object, specification: str) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return "–"
    return str(value) if isinstance(value, str) else format(value, specification)


def badge(text: str) -> str:
    """Return the style classes of a badge, which are made from its words outside brackets."""
    return "badge badge-" + "-".join(re.sub(r"\(.*|[^\w -]", "", text).lower().split())


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[–+\-−]?[\d.,  ]*(e[+\-]?\d+)?\s*%?( ± [\d.e+\-]+)?|–|∞|lost|inf|nan", text))


def _linked(text: str, link: str) -> str:
    """Return a link of a cell as a MyST role, whose text is not Markdown."""
    role, _, target = link.partition(":")
    words = re.sub(r"[`<>\s]+", " ", text).replace("|", r"\|").strip()
    return f"{{{role}}}`{words} <{target}>`"


def _escaped(text: str) -> str:
    # Markdown would interpret these characters as markup, and a newline would end the row of the table.
    return re.sub(r"([\\|*_`$<~{}\[\]])", r"\\\1", text).replace("\n", " ")
