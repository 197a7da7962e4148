"""The failures: each is what it is said to be, and what the solver says of it can be proved from the gradient."""

from __future__ import annotations

import torch

from gradleak.labels import recover_soft_labels
from gradleak.runs.records import Record
from gradleak.studies.wang2024 import failure_analysis

STUDY = "failure-analysis"
CHOSEN = failure_analysis.Parameters.at("smallest") | {"samples": 40}


def test_nothing_is_wrong_without_saying_so(record: Record) -> None:
    frame = record.frame()
    assert (frame["silent"] == 0).all()
    cases = frame[frame["part"] == "case"].set_index("case")
    for solved in ("disturbed", "out of bound", "one-hot probability"):
        assert cases.loc[solved, "accuracy"] >= 95
    for open_ended in ("certain and smoothed", "certain and mixed"):
        assert cases.loc[open_ended, "ambiguous"] >= 95
    assert cases.loc["certain and smoothed", "class_right"] >= 95
    assert cases.loc["certain and right", "failed"] >= 80


def test_the_cases_are_what_they_are_said_to_be() -> None:
    gradients, weight, _ = failure_analysis.make_case("out of bound", 64, 50, 0)
    found = recover_soft_labels(gradients, weight, nonnegative=False)
    assert (4 * found.scalars).abs().median() > 100, "outside the bound of the search"
    gradients, _, _ = failure_analysis.make_case("certain and right", 64, 50, 0)
    assert (gradients.flatten(1).abs().amax(dim=1) == 0).double().mean() > 0.8


def test_two_smoothed_labels_give_one_saturated_gradient() -> None:
    """What a status of ambiguous stands for: another label and feature, and the same gradient to the last digit."""
    gradients, weight, targets = failure_analysis.make_case("certain and smoothed", 64, 20, 0)
    found = recover_soft_labels(gradients, weight)
    row = next(n for n in range(20) if found.status[n] == "ambiguous" and len(found.candidates[n]) > 1)
    reduced, other = gradients[row].double(), int(targets[row].argmin())
    for label in found.candidates[row]:
        feature = -reduced[other] / label[other]
        prediction = (weight.double() @ feature).softmax(dim=0)
        rebuilt = torch.outer(prediction - label, feature)
        assert float((rebuilt - reduced).norm() / reduced.norm()) < 1e-5
    assert float((found.candidates[row][0] - found.candidates[row][1]).abs().sum()) > 1e-3
    assert float((targets[row] - found.labels[row]).abs().sum()) < 2
