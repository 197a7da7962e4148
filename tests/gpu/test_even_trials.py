"""Every other trial of the pages gives on a GPU the rows that it gives on the CPU: two files, for two workers."""

from __future__ import annotations

import pytest

from tests.gpu.rows import compared, parts


@pytest.mark.parametrize(("name", "part"), parts()[0::2])
def test_rows_are_the_same_on_a_gpu(name: str, part: str) -> None:
    assert compared(name, part) == []
