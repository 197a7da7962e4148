"""All attacks answer in one shape, with words of one list."""

from __future__ import annotations

from typing import get_args

import gradleak
from gradleak import answers
from gradleak.answers import MEANINGS
from gradleak.auditing import TARGETS


def test_every_word_is_explained_once() -> None:
    assert set(get_args(answers.Status)) == set(MEANINGS)
    families = (answers.LabelStatus, answers.InversionStatus, answers.SearchStatus, answers.ReadingStatus)
    for family in families:
        assert set(get_args(family)) <= set(MEANINGS)
    assert len(set(MEANINGS.values())) == len(MEANINGS)


def test_the_catalogue_tells_what_each_attack_needs() -> None:
    every = gradleak.attacks()
    names = [one.name for one in every]
    assert len(names) == len(set(names)) == 19
    assert all(one.needs and one.remedy and one.finds and one.page for one in every)
    assert names[0] == "label of one sample"
    assert {target for one in every for target in one.finds} == set(TARGETS)
    assert [one.name for one in every if one.searches] == ["gradient matching", "matching with batch norm's statistics"]
