"""Refuse wrong parameters from the command line at once: from the text of a page, without importing its study."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, create_model

from gradleak.errors import InputError
from gradleak.runs import cells
from gradleak.runs.experiments import Parameters
from gradleak.runs.studies import Study, filled

PLAIN: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}
# The limits of a parameter that are checked here; all others are checked when the study is imported.
LIMITS = frozenset({"ge", "gt", "le", "lt", "min_length", "max_length"})


def refuse(study: Study, profile: str, settings: Mapping[str, str]) -> None:
    """Raise an error for an unknown profile or parameter, or for a value that its type or its limits exclude.

    Importing a study takes seconds, reading its text milliseconds. A value that passes here may still be invalid, since
    checks that a study defines by code, such as whether a network fits a dataset, need the import.

    Args:
        study: The study, which is not imported.
        profile: The name of the profile.
        settings: The texts from the command line, by parameter.
    """
    filled(study, outline(study), profile, settings)


def outline(study: Study) -> type[Parameters]:
    """Return a class with the names, types and limits of a study's parameters that can be read from texts alone.

    The page's parameters cell states every parameter; the study's module limits some of them further.
    """
    source = cells.source(study)
    about = dict(_comments(source))
    limited = _limited(study.module_file.read_text("utf-8"))
    fields: dict[str, Any] = {}
    for line in ast.parse(source).body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
            name = line.target.id
            kind, limits = limited.get(name, (None, {}))
            fields[name] = (
                kind or _type(line.annotation) or Any,
                Field(ast.literal_eval(line.value), description=about.get(name, ""), **limits),
            )
    own: dict[str, Any] = {name: field for name, field in fields.items() if name not in Parameters.model_fields}
    try:
        return create_model("Parameters", __base__=Parameters, **own)
    except TypeError as error:
        raise InputError(f"the parameters of '{study.name}' cannot be read: {error}") from error


def _comments(source: str) -> Iterator[tuple[str, str]]:
    """Yield each parameter's name and its comment, which stands behind the assignment or in the lines above it."""
    above: list[str] = []
    for line in source.splitlines():
        if line.startswith("#"):
            above.append(line.lstrip("# "))
        elif assigned := re.match(r"(\w+): ", line):
            yield assigned[1], " ".join(above) or line.rpartition("  # ")[2]
            above = []


def _limited(text: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return the type and the limits of each parameter in a study's class `Parameters`, where they are literals."""
    tree = ast.parse(text)
    aliases = {
        line.targets[0].id: line.value
        for line in tree.body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
    }
    classes = (line for line in tree.body if isinstance(line, ast.ClassDef) and line.name == "Parameters")
    return {
        line.target.id: (_type(line.annotation, aliases), _limits(line.value))
        for declared in classes
        for line in declared.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }


def _type(node: ast.expr, aliases: Mapping[str, ast.expr] | None = None) -> Any:
    """Return the type that an annotation writes: a plain one, a Literal or a list of these; None for any other."""
    if isinstance(node, ast.Name):
        named = (aliases or {}).get(node.id)
        return PLAIN.get(node.id) or (_type(named) if named is not None else None)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        if node.value.id == "list":
            inner = _type(node.slice, aliases)
            return None if inner is None else types.GenericAlias(list, (inner,))
        if node.value.id == "Literal":
            words = ast.literal_eval(node.slice)
            return Literal[words if isinstance(words, tuple) else (words,)]
    return None


def _limits(call: ast.expr | None) -> dict[str, Any]:
    """Return the limits that a call of `setting` states as literals."""
    stated = call.keywords if isinstance(call, ast.Call) else ()
    return {
        keyword.arg: keyword.value.value
        for keyword in stated
        if keyword.arg in LIMITS and isinstance(keyword.value, ast.Constant)
    }
