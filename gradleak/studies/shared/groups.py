"""Write groups of named values, such as a network and its images, as plain data."""

from __future__ import annotations

from typing import Any

from gradleak.studies import Group


def listed(kind: type[Group], *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return groups of a kind as dictionaries, each from the values of its fields in their order."""
    return [dict(zip(kind.model_fields, row, strict=True)) for row in rows]


def written(group: Group) -> str:
    """Return the values of a group in one text, separated by slashes, as trials state some of their inputs."""
    return "/".join(str(value) for _, value in group)
