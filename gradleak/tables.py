"""The one table renderer: HTML in a notebook, a numbered MyST table in the book."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Table:
    """A frame of ready-made texts with a caption; `name` is what the book's cross-references point to."""

    frame: pd.DataFrame
    caption: str
    name: str
    notes: str = ""

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        return [str(c) for c in self.frame.columns], [[_text(v) for v in row] for row in self.frame.values.tolist()]

    def _repr_html_(self) -> str:
        head, rows = self._cells()
        top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        notes = f"<p>{html.escape(self.notes)}</p>" if self.notes else ""
        return (
            f'<div class="gradleak-table" style="overflow-x:auto"><table><caption>{html.escape(self.caption)}</caption>'
            f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>{notes}"
        )

    def _repr_markdown_(self) -> str:
        head, rows = self._cells()
        align = ["---:" if all(_is_number(row[i]) for row in rows) and rows else "---" for i in range(len(head))]
        lines = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in [head, *rows]]
        lines.insert(1, "| " + " | ".join(align) + " |")
        body = "\n".join(lines)
        notes = f"\n\n{{.gradleak-notes}}\n{_escaped(self.notes)}\n" if self.notes else ""
        return (
            f":::{{table}} {_escaped(self.caption)}\n:name: {self.name}\n:class: gradleak-table\n\n{body}\n:::\n{notes}"
        )

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string(index=False)}"


def _text(value: object) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    return str(value)


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[–+\-−]?[\d.,  ]*(e[+\-]?\d+)?\s*%?( ± [\d.e+\-]+)?|–|inf|nan", text))


def _escaped(text: str) -> str:
    # Markdown would read these as markup; a newline would end the row.
    return re.sub(r"([\\|*_`$<\[\]])", r"\\\1", text).replace("\n", " ")
