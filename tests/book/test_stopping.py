"""Which defence stops a kind of leak: decided on made-up outcomes."""

from __future__ import annotations

import math

import pytest

from gradleak.book.stopping import LEAST, Stop, stop
from tests.book.made_up import outcome

NOTHING = {"value": 0.0}
ALL = {"value": 100.0}


def test_the_defence_with_the_largest_cosine_is_named() -> None:
    found = stop(
        "labels",
        [
            outcome(defense="gaussian/1", cosine=0.4, page="strong", **NOTHING),
            outcome(defense="prune/0.9", cosine=0.8, page="mild", **NOTHING),
        ],
    )
    assert found == Stop("pruning", 0.8, "mild")


def test_what_no_defence_stops_has_none() -> None:
    assert stop("labels", []) is None
    assert stop("labels", [outcome(**NOTHING)]) is None  # without a defence nothing was stopped by one
    assert stop("labels", [outcome(defense="gaussian/1", cosine=0.4, **ALL)]) is None


@pytest.mark.parametrize("defense", ["clip/1", "clip-share/0.5", "dp-sgd/0", "release/0.5/0"])
def test_a_rescaling_is_never_named(defense: str) -> None:
    assert stop("images", [outcome(leak="images", defense=defense, cosine=1.0, **NOTHING)]) is None


@pytest.mark.parametrize(
    ("other", "refuted"),
    [
        ({"attack": "another", "network": "another", "page": "another"}, True),
        ({"cosine": 0.3}, True),  # a stronger defence, and still a success
        ({"cosine": 0.9}, False),  # a weaker defence
        ({"leak": "images"}, False),  # another kind of leak
        ({"defense": "prune/0.9"}, False),  # another family
        ({"defense": "dp/1"}, True),  # clipping and noise is noise, and clipping does not help
        ({"defense": "clip/1"}, False),
        ({"value": 9.9}, False),  # below a tenth
        ({"value": 10.0}, True),
        ({"value": 55.0, "chance": 50.0}, True),  # a tenth of what a guess misses
        ({"value": 54.0, "chance": 50.0}, False),
        ({"count": 1}, True),  # one success is enough
        ({"cosine": math.nan, "defense": "gaussian/2"}, True),  # by its level
        ({"cosine": math.nan, "defense": "gaussian/0.5"}, False),
        ({"cosine": math.nan, "defense": "laplace/2"}, False),  # cannot be compared
    ],
)
def test_a_success_of_any_attack_of_the_book_refutes_a_stop(other: dict[str, object], refuted: bool) -> None:
    seems = outcome(defense="gaussian/1", cosine=0.5, page="seems", **NOTHING)
    against = outcome(**{"defense": "gaussian/1", "cosine": 0.5, "value": 100.0} | other)
    assert stop("labels", [seems, against]) == (None if refuted else Stop("noise", 0.5, "seems"))


def test_few_cases_prove_no_stop() -> None:
    assert stop("labels", [outcome(defense="gaussian/1", cosine=0.5, count=LEAST - 1, **NOTHING)]) is None
    assert stop("labels", [outcome(defense="gaussian/1", cosine=0.5, count=LEAST, **NOTHING)])


def test_a_defence_without_a_cosine_is_not_named() -> None:
    assert stop("labels", [outcome(defense="gaussian/1", **NOTHING)]) is None


@pytest.mark.parametrize(("precision", "refuted"), [("bfloat16", True), ("float16", False), ("float64", False)])
def test_a_client_that_rounds_more_counts_against_rounding(precision: str, refuted: bool) -> None:
    # Ten bits are fewer than float16 keeps, and more than bfloat16 keeps.
    seems = outcome(defense="quantize/10", cosine=0.999, **NOTHING)
    found = stop("labels", [seems, outcome(client=precision, **ALL)])
    assert (found is None) == refuted


def test_images_are_stopped_below_twenty_decibels() -> None:
    def behind(value: float) -> Stop | None:
        return stop("images", [outcome(leak="images", unit="dB", defense="gaussian/1", cosine=0.5, value=value)])

    assert behind(-math.inf)
    assert behind(19.9)
    assert behind(20.0) is None
