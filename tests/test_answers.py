"""All attacks answer in one shape, with words of one list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import nn

import gradleak
from gradleak import answers, augment, models
from gradleak.answers import CERTAIN, MEANINGS, Answer
from gradleak.auditing import TARGETS
from gradleak.images import Adam, match, peel, trace_convolutional, trace_fully_connected
from gradleak.labels import recover_batch, recover_jointly, recover_soft_labels
from gradleak.leak import Leak, observe
from gradleak.models.language import build_language_model
from gradleak.sequences import batch_of, read_sentences, reveal_words


def connected(size: int) -> Leak:
    """Return the leak of a fully connected network."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Linear(24, 12, bias=False)).double()
        inputs = torch.rand(size, 30, dtype=torch.float64)
    return observe(model, inputs, augment.smooth(torch.arange(size), 12, 0.2).double())


def spoken() -> Leak:
    """Return the leak of a small language model."""
    return observe(build_language_model("gru", pieces=30, width=32), *batch_of([[5, 6, 7], [8, 9]]))


def pictured() -> Leak:
    """Return the leak of a small convolutional network."""
    model = models.build("lenet", classes=10, in_channels=1, image_size=28, seed=1)
    return observe(model, torch.rand(1, 1, 28, 28), torch.tensor([3]))


def head(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient and the weight of a last layer."""
    leak = connected(size)
    return leak.weight_gradient, leak.weight


RESULTS: dict[str, Callable[[], Any]] = {
    "recover_soft_labels": lambda: recover_soft_labels(*head(1)),
    "the published search": lambda: recover_soft_labels(*head(1), solver="lbfgs"),
    "recover_batch": lambda: recover_batch(*head(3), batch_size=3),
    "recover_jointly": lambda: recover_jointly(*head(8), batch_size=8, starts=4, multisets=2, steps=5),
    "trace_fully_connected": lambda: trace_fully_connected(connected(2)),
    "trace_convolutional": lambda: trace_convolutional(pictured(), prior="onehot"),
    "peel": lambda: peel(pictured(), prior="onehot", steps=2),
    "read_sentences": lambda: read_sentences(spoken()),
    "reveal_words": lambda: reveal_words(spoken()),
    "match": lambda: match([connected(1)] * 2, augment.smooth(torch.zeros(2).long(), 12, 0.2), optimizer=Adam(steps=2)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_has_answers_with_words_of_the_list(name: str) -> None:
    result = RESULTS[name]()
    assert len(result.answers) in (1, 2)
    for answer in result.answers:
        assert isinstance(answer, Answer)
        assert answer.status in MEANINGS
        assert answer.certain == (answer.status in CERTAIN)
        assert not answer.failed or answer.status == "failed"


def test_every_word_is_explained_once() -> None:
    assert set(get_args(answers.Status)) == set(MEANINGS)
    families = (answers.LabelStatus, answers.InversionStatus, answers.SearchStatus, answers.ReadingStatus)
    for family in families:
        assert set(get_args(family)) <= set(MEANINGS)
    assert len(set(MEANINGS.values())) == len(MEANINGS)


def test_an_answer_without_content_has_failed() -> None:
    assert Answer("found").failed
    assert Answer("failed", labels=torch.zeros(1, 2)).failed
    assert not Answer("found", words={1}).failed
    assert not Answer("partial", inputs=torch.zeros(1)).certain


def test_the_catalogue_tells_what_each_attack_needs() -> None:
    every = gradleak.attacks()
    names = [one.name for one in every]
    assert len(names) == len(set(names)) == 19
    assert all(one.needs and one.remedy and one.finds and one.page for one in every)
    assert names[0] == "label of one sample"
    assert {target for one in every for target in one.finds} == set(TARGETS)
    assert [one.name for one in every if one.searches] == ["gradient matching", "matching with batch norm's statistics"]
