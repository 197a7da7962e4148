"""Draw the outputs of a page for both of its runs: each cell that shows one run is executed again for the other run."""

from __future__ import annotations

import ast
from typing import Any

# The name under which a page holds the run that its figures and tables show, and the key of our metadata.
SHOWN, KEY = "shown", "gradleak"
SWAP = f"from gradleak.show import provenance\n{SHOWN} = provenance.other({SHOWN})"


def add_copies(page: Any) -> None:
    """Append copies of the cells that show a run to a notebook, behind a cell that switches to the other run.

    The copies may fail, since a record may lack what a figure of a new run shows.
    """
    import nbformat

    first = next((index for index, cell in enumerate(page.cells) if _is_code(cell) and _assigns(cell.source)), None)
    if first is None:
        return
    copied = [cell for cell in page.cells[first + 1 :] if _is_code(cell) and _reads(cell.source)]
    for original, source in [("", SWAP), *((cell.id, cell.source) for cell in copied)]:
        copy = nbformat.v4.new_code_cell(source, metadata={"tags": ["raises-exception"], KEY: {"copy of": original}})
        page.cells.append(copy)


def is_copy(cell: Any) -> bool:
    """Whether `add_copies` added a cell."""
    return "copy of" in cell.metadata.get(KEY, {})


def drop_errors(page: Any) -> None:
    """Remove the errors of copies from an executed notebook, so that they do not count as errors of the page."""
    for cell in filter(is_copy, page.cells):
        cell.outputs = [output for output in cell.outputs if output.output_type != "error"]


def fold(page: Any) -> None:
    """Remove the copies from an executed notebook, and keep their outputs in the metadata of the original cells."""
    outputs = {cell.metadata[KEY]["copy of"]: cell.outputs for cell in filter(is_copy, page.cells)}
    page.cells = [cell for cell in page.cells if not is_copy(cell)]
    for cell in page.cells:
        if outputs.get(cell.get("id")):
            cell.metadata[KEY] = {"beside": outputs[cell.id]}


def of_other_run(cell: Any) -> list[Any]:
    """Return the outputs of a cell for the other run; there are none if the cell does not show a run."""
    return list(cell.metadata.get(KEY, {}).get("beside", ()))


def _is_code(cell: Any) -> bool:
    return bool(cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", ()))


def _names(source: str) -> list[ast.Name]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a cell with an IPython command
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == SHOWN]


def _assigns(source: str) -> bool:
    return any(isinstance(node.ctx, ast.Store) for node in _names(source))


def _reads(source: str) -> bool:
    return bool(_names(source)) and not _assigns(source)
