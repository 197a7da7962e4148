"""Read the cell of a page that states its parameters: their types, quick values and, in comments, what they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from gradleak.errors import InputError
from gradleak.storage import parsed

# The tag by which papermill finds the cell.
TAG = "parameters"


def stated(notebook: Path) -> dict[str, tuple[str, Any, str]]:
    """Return the parameters that a page states, in their order: each one's type, quick value and description.

    The description is the comment behind or above the parameter. A file that is not a notebook is an error.
    """
    place = "/".join(("notebooks", *notebook.parts[-2:]))
    try:
        content = parsed(notebook.read_text("utf-8"))
        tagged = ["".join(cell["source"]) for cell in content["cells"] if TAG in cell["metadata"].get("tags", [])]
        content["metadata"], content["nbformat"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{place} is not a notebook, or was cut off") from error
    if len(tagged) != 1:
        raise InputError(f"{place} must have one cell tagged '{TAG}'; it has {len(tagged)}")
    (source,) = tagged
    try:
        lines: list[Any] = ast.parse(source).body
    except SyntaxError as error:
        raise InputError(f"{place}: the cell tagged '{TAG}' is not Python") from error
    parameters, begin = {}, 0
    for line in lines:
        written = "\n".join(source.split("\n")[begin : line.end_lineno])
        about, begin = " ".join(re.findall(r"(?:^|\s)# *(.*)", written)), line.end_lineno
        try:
            parameters[line.target.id] = ast.unparse(line.annotation), ast.literal_eval(line.value), about
        except (AttributeError, ValueError) as error:
            written = ast.unparse(line).splitlines()[0]
            raise InputError(f"{place}: `{written}` must read as `size: int = 4  # what it is`") from error
    return parameters
