"""All attacks answer in one shape, with words of one list, and the catalogue tells what each needs."""

from __future__ import annotations

from typing import get_args

import gradleak
from gradleak import answers
from gradleak.auditing import TARGETS


def test_every_word_is_explained_and_every_attack_says_what_it_needs() -> None:
    assert set(get_args(answers.Status)) == set(answers.MEANINGS)
    every = gradleak.attacks()
    assert len({one.name for one in every}) == len(every) == 23
    assert all(one.needs and one.remedy and one.finds and one.page for one in every)
    assert {target for one in every for target in one.finds} == set(TARGETS)
    searching = ["matching in the first layer's span", "gradient matching", "matching with batch norm's statistics"]
    assert [one.name for one in every if one.searches] == searching
