"""Read the cell of a page that states its parameters: their types, quick values and, in comments, what they are."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.errors import InputError
from gradleak.storage import parsed

# The tag by which papermill finds the cell.
TAG = "parameters"


@dataclass(frozen=True)
class Stated:
    """A parameter as a page states it.

    Attributes:
        kind: The type, as the page writes it.
        value: The value in a quick run.
        about: The description, from the comment behind or above the parameter.
    """

    kind: str
    value: Any
    about: str


def stated(notebook: Path) -> dict[str, Stated]:
    """Return the parameters that a page states, in their order."""
    tagged = [cell for cell in read(notebook)["cells"] if TAG in cell["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise InputError(f"{_place(notebook)} must have one cell tagged '{TAG}'; it has {len(tagged)}")
    source = "".join(tagged[0]["source"])
    try:
        lines: list[Any] = ast.parse(source).body
    except SyntaxError as error:
        raise InputError(f"{_place(notebook)}: the cell tagged '{TAG}' is not Python") from error
    parameters, begin = {}, 0
    for line in lines:
        written = "\n".join(source.split("\n")[begin : line.end_lineno])
        about, begin = " ".join(re.findall(r"(?:^|\s)# *(.*)", written)), line.end_lineno
        try:
            parameters[line.target.id] = Stated(ast.unparse(line.annotation), ast.literal_eval(line.value), about)
        except (AttributeError, ValueError) as error:
            written = ast.unparse(line).splitlines()[0]
            raise InputError(f"{_place(notebook)}: `{written}` must read as `size: int = 4  # what it is`") from error
    return parameters


def read(notebook: Path) -> Any:
    """Return the content of a page's notebook; a file that is not a notebook is an error."""
    try:
        content = parsed(notebook.read_text("utf-8"))
        for cell in content["cells"]:
            cell["metadata"].get("tags", []), cell["source"]
        content["metadata"], content["nbformat"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{_place(notebook)} is not a notebook, or was cut off") from error
    return content


def _place(notebook: Path) -> str:
    return "/".join(("notebooks", *notebook.parts[-2:]))
