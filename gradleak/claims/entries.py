"""Expand the entries of a claims file into claims.

The first entry of a file may be `papers`: fields that all claims of the paper share, but not our own claims. Every
other entry is one of these:

    a claim, which has an `id`;
    a list `claims`, beside the fields that they share;
    a published table, with an `id` that starts the ids of its cells, `table` (its title), `columns` and `rows` by
        name, and the fields that all cells share. Its `statement` may contain {group}, {row} and {column}. Ids contain
        the names of groups, rows and columns; `heads` maps a name to the words that readers see in its place.

A row is a list of published cells, one for each column, with `~` for an empty cell. Or it is a mapping with `cells` and
further fields of the row. A row without cells makes a claim of every column, whose published value the table states. A
row that contains `rows` is a group of rows. A cell may be a mapping, too.

`by` names the column of the record that holds the rows' names. In the form {where: size, needs: sizes} it also names
the parameter that must contain them.

More specific fields override more general ones, in the order file, table, column, group, row, cell. The mappings
`where`, `needs`, `setting`, `used` and `immaterial` are merged, and a name with the value `~` is removed. Lists of
`changed` are concatenated. In a rule, `published` stands for the published number: `rule: {at_least: published}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Entry = dict[str, Any]
JOINED = ("where", "needs", "setting", "used", "immaterial", "measure")


def expanded(entries: list[Any]) -> Iterator[Entry]:
    """Yield the claims of a file's entries as plain data, in order; the claims themselves are not validated here.

    Raises:
        ValueError: An entry or the layout of a table is invalid.
    """
    papers: Entry = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ValueError(f"an entry is not a mapping: {entry!r}")
        if number == 0 and "papers" in entry:
            papers = entry["papers"]
            continue
        for claim in _claims(entry):
            yield _finished(claim if claim.get("ours") else _joined(papers, claim))


def _claims(entry: Entry) -> Iterator[Entry]:
    if "table" in entry:
        yield from _cells(entry)
    elif "claims" in entry:
        common = {name: value for name, value in entry.items() if name != "claims"}
        for claim in _mappings(entry["claims"], f"the claims of '{entry.get('place', 'a list')}'"):
            yield _joined(common, claim)
    else:
        yield _joined(entry)


def _mappings(value: Any, what: str) -> list[Entry]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{what} must be a list of mappings")
    return value


def _cells(entry: Entry) -> Iterator[Entry]:
    name = f"table '{entry.get('id', 'without id')}'"
    common = {key: value for key, value in entry.items() if key not in ("columns", "rows", "by")}
    columns, rows = entry.get("columns"), entry.get("rows")
    if not isinstance(columns, dict) or not isinstance(rows, dict) or not columns or not rows or "id" not in entry:
        raise ValueError(f"{name} must have an id, columns and rows")
    heads, used = _heads(entry, name), set[str]()
    for group, label, row in _rows(rows, entry.get("by"), name):
        cells = row.pop("cells", [{}] * len(columns))
        if not isinstance(cells, list) or len(cells) != len(columns):
            raise ValueError(f"{name}, row '{label}': expected a list of {len(columns)} cells, a column each")
        for (column, column_fields), cell in zip(columns.items(), cells, strict=True):
            if cell is None:
                continue
            cell_fields = cell if isinstance(cell, dict) else {"published": cell}
            claim = _joined(common, column_fields or {}, row, cell_fields)
            names = {"group": group, "row": label, "column": str(column)}
            claim["id"] = "-".join(_slug(part) for part in (entry["id"], *names.values()) if part)
            shown = {kind: heads.get(one, one) for kind, one in names.items()}
            claim["statement"] = _filled(str(claim.get("statement", "{column}, {row}")), shown, name)
            used |= set(names.values())
            yield claim | names
    if unknown := sorted(heads.keys() - used):
        raise ValueError(f"{name}: 'heads' names '{unknown[0]}', which is no group, row or column of the table")
    if len({heads.get(one, one) for one in used}) < len(used):
        raise ValueError(f"{name}: 'heads' gives two groups, rows or columns the same words")


def _heads(entry: Entry, name: str) -> dict[str, str]:
    """Return the words that readers see in place of names of a table's groups, rows and columns."""
    heads = entry.get("heads", {})
    if not isinstance(heads, dict) or not all(isinstance(text, str) for item in heads.items() for text in item):
        raise ValueError(f"{name}: 'heads' must map names to words")
    return heads


def _filled(statement: str, names: Mapping[str, str], name: str) -> str:
    try:
        return statement.format(**names)
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"{name}: the statement may contain {{group}}, {{row}} and {{column}}, but not {error}"
        ) from error


def _rows(rows: Entry, by: Any, name: str) -> Iterator[tuple[str, str, Entry]]:
    """Yield a table's rows: the name of the group, the name of the row, and the fields of both."""
    for label, row in rows.items():
        if not isinstance(row, dict) or "rows" not in row:
            yield "", str(label), _joined(_by(by, label), _row(row, label, name))
            continue
        common = {key: value for key, value in row.items() if key not in ("rows", "by")}
        if not isinstance(row["rows"], dict):
            raise ValueError(f"{name}, group '{label}': its rows must be a mapping")
        for inner, inner_row in row["rows"].items():
            yield str(label), str(inner), _joined(common, _by(row.get("by", by), inner), _row(inner_row, inner, name))


def _by(by: Any, label: Any) -> Entry:
    """Return the fields that follow from a row's name."""
    names = by if isinstance(by, dict) else {"where": by} if by else {}
    return {key: {column: label} for key, column in names.items()}


def _row(row: Any, label: Any, name: str) -> Entry:
    if isinstance(row, list):
        return {"cells": row}
    if not isinstance(row, dict):
        raise ValueError(f"{name}, row '{label}': expected a list of cells or a mapping")
    return dict(row)


def _joined(*parts: Mapping[str, Any]) -> Entry:
    """Merge several mappings of fields; a later one overrides an earlier one."""
    merged: Entry = {}
    for part in parts:
        measure = part.get("measure")
        fields = dict(part)
        if isinstance(measure, dict) and "where" in measure:
            fields["measure"] = {key: value for key, value in measure.items() if key != "where"}
            fields["where"] = measure["where"]
        for key, value in fields.items():
            if key == "changed":
                merged[key] = [*merged.get(key, []), *(value if isinstance(value, list) else [value])]
            elif key in JOINED and isinstance(value, dict) and isinstance(merged.get(key), dict):
                merged[key] = merged[key] | value
            else:
                merged[key] = value
    return merged


def _finished(entry: Entry) -> Entry:
    rule, measure = entry.get("rule"), entry.get("measure")
    if isinstance(rule, dict):
        entry["rule"] = {key: entry.get("published") if value == "published" else value for key, value in rule.items()}
    if "where" in entry and isinstance(measure, dict):
        entry["measure"] = measure | {"where": entry.pop("where")}
    for name in ("needs", "setting", "used", "immaterial"):
        if isinstance(entry.get(name), dict):
            entry[name] = {key: value for key, value in entry[name].items() if value is not None}
    return entry


def _slug(text: Any) -> str:
    """Return a name as part of an id."""
    return re.sub(r"[^\w.+*]+", "-", str(text).lower()).strip("-")
