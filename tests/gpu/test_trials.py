"""A trial of every part of every page gives its golden rows on the pretended GPU."""

from __future__ import annotations

import pytest

from gradleak import studies
from tests.gpu.rows import parts, rows_on, trials
from tests.pretended import pretended_gpu
from tests.studies import golden


@pytest.mark.parametrize(("name", "part"), parts())
def test_rows_are_the_golden_ones(name: str, part: str) -> None:
    with pretended_gpu() as gpu:
        found = rows_on(gpu.device, name, part)
    before = trials(name)[part]
    again = before.model_copy(update={"rows": found})
    assert [one.text for one in golden._beyond(studies.load(name), before, again)] == []
