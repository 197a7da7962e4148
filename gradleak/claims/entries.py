"""Expand the entries of a claims file into claims.

The first entry of a file may be `papers`: fields that all claims of the paper share, but not our own claims. Every
other entry is one of these:

    a claim, which begins with `name: statement`, or has an `id`;
    a list `claims` of such entries, beside the fields that they share;
    a published table, with an `id` that starts the ids of its cells, `table` (its title), `columns` and `rows` by
        name, and the fields that all cells share. Its `statement` may contain {group}, {row} and {column}. Ids contain
        the names of groups, rows and columns; `heads` maps a name to the words that readers see in its place.

A row is a list of published cells, one for each column, with `~` for an empty cell. Or it is a mapping with `cells` and
further fields of the row. A row without cells makes a claim of every column, whose published value the table states. A
row that contains `rows` is a group of rows. A cell may be a mapping, too.

`by` names the column of the record that holds the rows' names. In the form {where: size, needs: sizes} it also names
the parameter that must contain them.

More specific fields override more general ones, in the order file, list or table, column, group, row, cell. The
mappings `where`, `needs`, `setting`, `used` and `immaterial` are merged, and a name with the value `~` is removed.
Lists of `changed` are concatenated. In a rule, `published` is the published number: `rule: {at_least: published}`. The
unit of a measured share is per cent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gradleak.claims.model import Claim

Entry = dict[str, Any]
FIELDS = {*Claim.model_fields, "where"}
JOINED = ("where", "needs", "setting", "used", "immaterial", "measure")


def expanded(entries: list[Any]) -> Iterator[Entry]:
    """Yield the claims of a file's entries as plain data, in order; the claims themselves are not validated here.

    Raises:
        ValueError: An entry or the layout of a table is invalid.
    """
    papers: Entry = {}
    for entry in entries:
        if isinstance(entry, dict) and entry.keys() == {"papers"}:
            papers = entry["papers"]
            continue
        try:
            for claim in _claims(entry, {}):
                yield _finished(claim if claim.get("ours") else _joined(papers, claim))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{str(entry)[:80]} is no claim, list or table: {error!r}") from error


def _claims(entry: Any, shared: Entry) -> Iterator[Entry]:
    """Yield the claims of an entry, each joined with the fields of the lists that contain the entry."""
    if "table" in entry:
        yield from _cells(entry)
    elif "claims" in entry:
        shared = _joined(shared, _without(entry, "claims"))
        for inner in entry["claims"]:
            yield from _claims(inner, shared)
    else:
        yield _joined(shared, _named(entry))


def _named(entry: Entry) -> Entry:
    """Return a claim that is written `name: statement` with an id and a statement."""
    names = [name for name in entry if name not in FIELDS]
    if "id" in entry or len(names) != 1:
        return entry
    return {"id": names[0], "statement": entry[names[0]]} | _without(entry, names[0])


def _cells(entry: Entry) -> Iterator[Entry]:
    columns, heads = entry["columns"], entry.get("heads", {})
    table = _without(entry, "columns", "rows", "by")
    for group, label, row in _rows(entry["rows"], entry.get("by")):
        cells = row.pop("cells", [{}] * len(columns))
        if len(cells) != len(columns):
            raise ValueError(f"table '{entry['id']}', row '{label}': expected a list of {len(columns)} cells")
        for (column, fields), cell in zip(columns.items(), cells, strict=True):
            if cell is None:
                continue
            claim = _joined(table, fields or {}, row, cell if isinstance(cell, dict) else {"published": cell})
            names = {"group": group, "row": label, "column": str(column)}
            claim["id"] = "-".join(_slug(part) for part in (entry["id"], *names.values()) if part)
            words = {kind: heads.get(name, name) for kind, name in names.items()}
            claim["statement"] = claim.get("statement", "{column}, {row}").format(**words)
            yield claim | names


def _rows(rows: Entry, by: Any) -> Iterator[tuple[str, str, Entry]]:
    """Yield a table's rows: the name of the group, the name of the row, and the fields of both."""
    for label, row in rows.items():
        fields: Entry = {"cells": row} if isinstance(row, list) else row
        if "rows" in fields:
            group = _without(fields, "rows", "by")
            for _, name, own in _rows(fields["rows"], fields.get("by", by)):
                yield str(label), name, _joined(group, own)
        else:
            # The fields that follow from the row's name.
            columns = by if isinstance(by, dict) else {"where": by} if by else {}
            yield "", str(label), _joined({key: {column: label} for key, column in columns.items()}, fields)


def _without(entry: Entry, *names: str) -> Entry:
    return {name: value for name, value in entry.items() if name not in names}


def _joined(*parts: Mapping[str, Any]) -> Entry:
    """Merge several mappings of fields; a later one overrides an earlier one."""
    merged: Entry = {}
    for part in parts:
        for key, value in part.items():
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
    if isinstance(measure, dict) and measure.get("reduce") == "share":
        entry.setdefault("unit", "%")
    for name in ("needs", "setting", "used", "immaterial"):
        if isinstance(entry.get(name), dict):
            entry[name] = {key: value for key, value in entry[name].items() if value is not None}
    return entry


def _slug(text: Any) -> str:
    """Return a name as part of an id."""
    return re.sub(r"[^\w.+*]+", "-", str(text).lower()).strip("-")
