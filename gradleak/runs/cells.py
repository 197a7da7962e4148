"""The cell of a page that states its parameters, written from the study's declaration of them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from gradleak.errors import InputError
from gradleak.runs.experiments import Parameters as Common
from gradleak.runs.studies import Study, written_types
from gradleak.storage import parsed

# The tag by which papermill finds the cell, and the length of a notebook's lines.
TAG, WIDTH = "parameters", 88


def cell(study: Study) -> str:
    """Return the cell's source: each parameter with its type, its quick value and, as a comment, what it is."""
    values, fields = study.Parameters().model_dump(), study.Parameters.model_fields
    # The parameters that all pages have come last.
    names = [*(name for name in fields if name not in Common.model_fields), *Common.model_fields]
    return "\n".join(line for name in names for line in _stated(name, fields[name], values[name]))


def _stated(name: str, field: FieldInfo, value: Any) -> Iterator[str]:
    """Give the lines of one parameter, as ruff would format them."""
    description = field.description or ""
    # papermill reads every "=" as an assignment, also in a comment, and warns when it cannot parse the line.
    if not description or "=" in description:
        raise InputError(f"parameter '{name}' needs a description without '='; got '{description}'")
    start = f"{name}: {written_types(field.annotation)[0]} = "
    assignment = f"{start}{_literal(value)}"
    if len(assignment) + len(description) + 4 <= WIDTH:
        yield f"{assignment}  # {description}"
        return
    yield from (f"# {line}" for line in textwrap.wrap(description, WIDTH - 2))
    if len(assignment) <= WIDTH or not isinstance(value, list):
        yield assignment
    else:
        yield from (f"{start}[", *(f"    {_literal(item)}," for item in value), "]")


def _literal(value: Any) -> str:
    """Return a value as Python code in the style of ruff."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value).replace("e-0", "e-")


def source(study: Study) -> str:
    """Return the source of the cell as it stands in the page's notebook."""
    return "".join(_tagged(study, read(study))["source"])


def check(study: Study) -> None:
    """Check that the page states the parameters as its study declares them.

    Raises:
        InputError: The notebook has no cell tagged `parameters`, or the cell is not as the study declares it.
    """
    expected, found = cell(study).splitlines(), source(study).splitlines()
    if found == expected:
        return
    unexpected = [line for line in found if line not in expected] or ["nothing"]
    missing = [line for line in expected if line not in found] or ["nothing"]
    raise InputError(
        f"{_place(study)} does not state the parameters as the study declares them: it has `{unexpected[0]}` where "
        f"`{missing[0]}` is expected; `gradleak cells {study.name}` writes the cell"
    )


def write(study: Study) -> bool:
    """Write the cell into the page's notebook where it differs, and return whether it did."""
    content = read(study)
    tagged, expected = _tagged(study, content), cell(study)
    if "".join(tagged["source"]) == expected:
        return False
    tagged["source"] = expected.splitlines(keepends=True)
    study.notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return True


def read(study: Study) -> Any:
    """Return the content of a page's notebook.

    Raises:
        InputError: The file is not a notebook.
    """
    try:
        content = parsed(study.notebook.read_text("utf-8"))
        _with_tag(content)
        content["metadata"], content["nbformat"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{_place(study)} is not a notebook, or was cut off") from error
    return content


def _with_tag(content: Any) -> list[Any]:
    return [cell for cell in content["cells"] if TAG in cell["metadata"].get("tags", [])]


def _tagged(study: Study, content: Any) -> Any:
    tagged = _with_tag(content)
    if len(tagged) != 1:
        raise InputError(f"{_place(study)} must have one cell tagged '{TAG}'; it has {len(tagged)}")
    return tagged[0]


def _place(study: Study) -> str:
    return f"notebooks/{study.paper}/{study.name}.ipynb"
