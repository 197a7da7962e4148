"""Recorded texts are shown in plain words, and texts that readers understand stay as they are."""

from __future__ import annotations

import re

import pytest
from torch import nn

from gradleak.images.peeling.layer import short
from gradleak.images.peeling.opening import refused
from gradleak.wording import plain


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("1 equations for 1 unknowns a channel", "1 equation for 1 unknown in each channel"),
        (
            "64 equations for 64 unknowns a channel, joints aside",
            "64 equations for 64 unknowns in each channel, without the entries that residual sums give",
        ),
        ("'conv2': 63 rows of its gradient for 64 positions",
         "'conv2': its gradient has only 63 rows that are not zero, for 64 output positions"),
        ("labels: none of the 1 samples was found in 40 rounds",
         "labels: the sample was not found in 40 rounds of the search"),
        ("2 of 3 samples' maps were not matched at 'relu_7'",
         "the final search for the image did not reproduce the maps at 'relu_7' (2 of 3 samples)"),
        ("GT, whole steps", "GT, full steps"),
        ("Ours, whole steps against DLG, whole steps", "Ours, full steps, against DLG, full steps"),
        ("B = 2 is less than C and I: which classes are in the batch is told (RLG)",
         "B = 2 is less than C and I: the attack RLG finds out which classes are in the batch"),
        ("4 classes, 1 features, mixup, scale, spread 0.51",
         "4 classes, 1 feature, mixup, gradient scale unknown, logits with SD 0.51"),
        ("2 of (6,), 10 classes", "batch of 2, 6 inputs each, 10 classes"),
        ("", ""),
        ("21 features of the label", "21 features of the label"),
    ],
)  # fmt: skip
def test_a_recorded_text_is_shown_in_plain_words(recorded: str, shown: str) -> None:
    assert plain(recorded) == shown
    assert plain(shown) == shown


@pytest.mark.parametrize(
    ("module", "shape", "size"),
    [
        (nn.Linear(4, 3), (3, 1, 1), 1),
        (nn.Conv2d(4, 4, 3, groups=4), (4, 4, 4), 1),
        (nn.Conv2d(4, 40, 1), (40, 4, 4), 1),
        (nn.Conv2d(4, 40, 3, stride=2), (40, 4, 4), 1),
        (nn.Conv2d(4, 8, 3), (8, 4, 4), 1),
        (nn.Conv2d(4, 400, 3), (400, 1, 1), 17),
    ],
)
def test_every_reason_why_peeling_cannot_start_is_reworded(
    module: nn.Conv2d | nn.Linear, shape: tuple[int, ...], size: int
) -> None:
    reason = refused(module, shape, size)
    assert reason
    assert plain(reason) != reason


def test_the_pattern_of_too_few_equations_is_the_attack_s() -> None:
    assert re.fullmatch(r"9 equations for 36 unknowns in each channel", plain(short(9, 36)))
