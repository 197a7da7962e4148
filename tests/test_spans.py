"""Rows of one length show the rank that a gradient's large rows hide, whatever the shape and the folding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradleak.labels import reveal_labels
from gradleak.spans import classes_span, inputs_span, limit


def repeated(classes: int, width: int, labels: list[int], seed: int) -> Tensor:
    """Return the float32 gradient of a text whose features hardly vary and whose words come again."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(labels), width, generator=generator)
    features = 0.1 * features + torch.randn(width, generator=generator)
    weight = 0.02 * torch.randn(classes, width, generator=generator) / width**0.5
    errors = (features @ weight.T).softmax(dim=1)
    errors[torch.arange(len(labels)), labels] -= 1
    return errors.T @ features / len(labels)


@pytest.mark.parametrize(("classes", "width"), [(3000, 40), (3000, 300), (300, 300)])
def test_words_that_come_again_are_counted(classes: int, width: int) -> None:
    for seed in range(5):
        gradient = repeated(classes, width, [7, 8, 7, 9, 7, 2, 8], seed)
        span = classes_span(gradient)
        assert span.rank == 7
        # The space is the right one: nothing of the gradient lies outside.
        equal = gradient / gradient.norm(dim=1, keepdim=True)
        left = equal.double() - span.vectors @ (span.vectors.T @ equal.double())
        assert float(left.norm()) < 1e-4 * float(equal.norm())


def test_the_bag_is_whole_where_the_raw_rank_falls_short() -> None:
    short = 0
    for seed in range(5):
        gradient = repeated(3000, 60, [7, 8, 7, 9, 7, 2, 8], seed)
        singular = torch.linalg.svdvals(gradient.double())
        short += int((singular > limit(gradient) * singular[0]).sum()) < 7
        assert reveal_labels(gradient) == {2, 7, 8, 9}
    assert short == 5, "if the raw rank were right, this would test nothing"


def test_a_large_gradient_is_folded_and_says_the_same() -> None:
    gradient = repeated(9000, 500, [*range(40, 60), 44, 45], 0)
    assert gradient.numel() > 4_000_000
    assert reveal_labels(gradient) == set(range(40, 60))
    assert classes_span(gradient).rank == 22
    wide = classes_span(repeated(2000, 400, list(range(150)), 0))
    assert wide.rank == 150, "more than the first folding shows"


def test_the_rows_span_is_the_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(9, 200, generator=generator)
    gradient = torch.randn(1000, 9, generator=generator) @ inputs
    gradient[5] = 0
    gradient[6] = 1e-40
    span = inputs_span(gradient)
    assert span.rank == 9
    rest = inputs.double() - (inputs.double() @ span.vectors) @ span.vectors.T
    assert float(rest.norm()) < 1e-5 * float(inputs.norm())
    assert inputs_span(torch.zeros(6, 5)).rank == 0
