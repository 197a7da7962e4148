"""RLG reveals which classes a batch holds, whatever its features' signs, and refuses what no one could part."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.errors import InputError
from gradleak.labels import reveal_labels
from gradleak.labels.hard.rlg import rlg
from gradleak.labels.hard.rlg_as_coded import rlg_as_coded_on_images


def synthetic(
    classes: int, width: int, size: int, seed: int, dtype: torch.dtype, relu: bool, spread: float = 1.0
) -> tuple[Tensor, set[int]]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, width, generator=generator, dtype=torch.float64) * spread
    features = features.relu() if relu else features
    weight = torch.randn(classes, width, generator=generator, dtype=torch.float64) / width**0.5
    labels = torch.randint(classes, (size,), generator=generator)
    errors = (features @ weight.T).softmax(dim=1) - F.one_hot(labels, classes)
    return (errors.T @ features / size).to(dtype), set(labels.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("relu", [False, True])
def test_rlg_reveals_classes_whatever_the_sign_of_features(dtype: torch.dtype, relu: bool) -> None:
    for seed in range(10):
        gradient, truth = synthetic(60, 40, 1 + seed, seed, dtype, relu)
        assert reveal_labels(gradient) == truth


def test_as_coded_on_images_every_class_is_found_at_full_rank() -> None:
    gradient, truth = synthetic(60, 70, 5, 0, torch.float32, relu=False)
    assert rlg_as_coded_on_images(gradient, 5) == truth == reveal_labels(gradient)
    noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0)) * gradient.std()
    assert len(rlg_as_coded_on_images(gradient + noise, 60)) == 60
    assert len(rlg_as_coded_on_images(gradient + noise, 5)) < 60


def test_rlg_tells_one_label_from_none_and_refuses_full_rank() -> None:
    gradient, truth = synthetic(10, 12, 1, 0, torch.float64, relu=True)
    assert rlg(gradient) == truth
    assert rlg(torch.zeros(5, 4)) == set()
    # scipy's solver crashes if there are no other rows.
    one_row = torch.zeros(6, 8)
    one_row[2] = torch.linspace(1, 2, 8)
    assert rlg(one_row) == {2}
    with pytest.raises(InputError, match="than classes less one"):
        rlg(synthetic(6, 12, 30, 0, torch.float64, relu=True)[0])


def test_rlg_gives_up_in_time_and_guesses_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    # Nothing but signs: every program is as hard as one of its size can be.
    gradient = torch.randn(3000, 128, generator=generator).sign()
    with pytest.raises(InputError, match=r"3000 classes in 100 dimensions in the time it is given"):
        rlg(gradient, rank=100, seconds=0.01)


def test_rounding_is_not_taken_for_more_classes_than_there_are_samples() -> None:
    for seed in range(20):
        gradient, _ = synthetic(40, 64, 8, seed, torch.float64, relu=True, spread=0.1)
        # Whether a singular value of rounding passes for a sample's depends on the processor.
        with contextlib.suppress(InputError):
            assert len(reveal_labels(gradient)) <= 8
