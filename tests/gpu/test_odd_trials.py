"""Every other page's smallest trials give on a GPU the rows that they give on the CPU."""

from __future__ import annotations

import pytest

from tests.gpu.rows import compared, parts


@pytest.mark.parametrize(("name", "part"), parts()[1::2])
def test_rows_are_the_same_on_a_gpu(name: str, part: str) -> None:
    assert compared(name, part) == []
