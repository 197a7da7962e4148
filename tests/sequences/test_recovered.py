"""Steps that are recovered from the last layer's gradient are put in order, or it is said that they are not."""

from __future__ import annotations

import pytest

from gradleak.errors import InputError
from gradleak.models.recogniser import recogniser
from gradleak.sequences.recovered import read_recovered
from tests.sequences.test_output import CLASSES, leaked, noisy


@pytest.mark.parametrize("size", ["small", "small-2"])
@pytest.mark.parametrize("said", [[2], [9, 2], [5, 6, 5, 6, 8, 2], [*range(20, 31), 25, 2]])
def test_it_is_read_in_order(size: str, said: list[int]) -> None:
    found = read_recovered(leaked(recogniser(size, CLASSES, seed=2), said))
    assert found.tokens == said
    assert found.status == "unique", found.reason
    assert found.steps == len(said)
    assert found.misses[0] < 1e-4


def test_what_is_not_recovered_is_said() -> None:
    with pytest.raises(InputError, match="RLG needs fewer samples"):
        read_recovered(noisy(leaked(recogniser("small", CLASSES, seed=2), [5, 9, 7, 2])))
