"""RLG's study: sets of labels, whatever the sign of features, and behind defences."""

from __future__ import annotations

import torch

from gradleak.runs.records import Record
from gradleak.studies.dang2021 import reveal_labels
from gradleak.studies.shared.last_layers import Seen

STUDY = "reveal-labels"
CHOSEN = {
    "rows": reveal_labels.Shown.listed(
        ("photos", "lenet5", "relu", 60, "plain"),
        ("photos", "lenet5", "relu", 60, "centred"),
        ("photos", "lenet5", "tanh", 60, "plain"),
    ),
    "sizes": [6],
    "batches": 5,
    "coded": 2,
    "defenses": ["none/0", "grad-drop/0.9"],
}


def test_planes_part_classes_whatever_the_sign_of_features(record: Record) -> None:
    frame = record.frame()
    keys = ["activation", "features", "attack"]
    exact = frame[frame["part"] == "table 1"].groupby(keys)["exact"].mean()
    for kind in (("relu", "plain"), ("tanh", "plain"), ("relu", "centred")):
        assert exact[(*kind, "RLG")] == 1
        assert exact[(*kind, "RLG as coded")] == 1
        assert exact[(*kind, "minimum rule")] == (kind == ("relu", "plain"))


def test_a_mean_in_the_bias_leaves_predictions_as_they_are() -> None:
    rng = torch.Generator().manual_seed(0)
    features, weight, bias = (torch.randn(shape, generator=rng).double() for shape in ((9, 4), (5, 4), (5,)))
    run = Seen(features, (features @ weight.T + bias).softmax(dim=1), None)
    moved = reveal_labels.centred(run)
    scores = moved.features @ weight.T + bias + weight @ features.mean(dim=0)
    assert moved.features.mean(dim=0).abs().max() < 1e-12
    torch.testing.assert_close(scores.softmax(dim=1), moved.predicted)
