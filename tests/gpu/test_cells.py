"""The open cells of a page run on a machine with a GPU."""

from __future__ import annotations

import re

import pytest

from gradleak import studies
from tests.gpu import cells
from tests.pretended import NAME, pretended_gpu

# Other open cells work on the CPU's tensors alone, as in the book's own run.
DEVICE = re.compile(r"\bdevice\b(?!:)|cuda|studies")


@pytest.mark.parametrize("name", [name for name in studies.names() if DEVICE.search("\n".join(cells.opened(name)))])
def test_a_pages_open_cells(name: str) -> None:
    with pretended_gpu():
        assert cells.run(name, NAME)["device"] == "auto"
