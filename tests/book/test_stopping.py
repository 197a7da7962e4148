"""Which defences stop the attack of a row: decided on made-up outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gradleak.book.stopping import LEAST, stopped, stopping, tried
from gradleak.show.summary import Leaks
from gradleak.studies.shared.outcomes import Outcome
from tests.book.made_up import outcome

ROW = Leaks("labels", "batches of 8", "all", "1 s", kind="labels", attack="guesser", batch=8)
PAGE = "own-page"
NOTHING = {"value": 0.0}
ALL = {"value": 100.0}


def named(outcomes: Sequence[Outcome], row: Leaks = ROW) -> list[str]:
    """Return the defences that stop the attack."""
    return [one.defense for one in stopping(row, PAGE, outcomes)]


def test_the_mildest_defence_of_each_family_is_named_and_the_mildest_family_first() -> None:
    behind = [
        outcome(defense="gaussian/1", cosine=0.4, **NOTHING),
        outcome(defense="gaussian/0.5", cosine=0.6, **NOTHING),
        outcome(defense="prune/0.9", cosine=0.8, **NOTHING),
        outcome(defense="prune/0.95", cosine=0.7, **NOTHING),
    ]
    assert named(behind) == ["prune/0.9", "gaussian/0.5"]


def test_without_cosines_the_lower_level_and_the_more_bits_are_milder() -> None:
    noise = [outcome(defense=f"gaussian/{level}", **NOTHING) for level in ("1", "1e-06", "0.1")]
    assert named(noise) == ["gaussian/1e-06"]
    rounding = [outcome(client=client, page=PAGE, **NOTHING) for client in ("bfloat16", "float16")]
    assert stopped(ROW, PAGE, rounding) == "computing in float16 (n = 100, LeNet)"


def test_what_no_defence_stops_has_none() -> None:
    assert stopped(ROW, PAGE, []) == "not measured"
    assert stopped(ROW, PAGE, [outcome(**NOTHING)]) == "not measured"  # without a defence nothing was stopped by one
    assert stopped(ROW, PAGE, [outcome(defense="gaussian/1", cosine=0.4, **ALL)]) == "none of those measured"
    for rescaling in ("clip/1", "clip-share/0.5", "dp-sgd/0", "release/0.5/0"):
        assert named([outcome(defense=rescaling, cosine=1.0, **NOTHING)]) == []


def test_an_attack_that_fails_without_a_defence_is_stopped_by_none() -> None:
    behind = outcome(defense="gaussian/1", **NOTHING)
    assert named([behind, outcome(**NOTHING)]) == []
    assert named([behind, outcome(**ALL)]) == ["gaussian/1"]


@pytest.mark.parametrize(
    ("other", "refuted"),
    [
        ({"attack": "another"}, False),  # another attack
        ({"leak": "images"}, False),  # another kind of leak
        ({"network": "another", "page": "another"}, True),  # the same attack on another network
        ({"detail": "noise known"}, True),  # an attacker who knows the defence
        ({"cosine": 0.3}, True),  # a stronger defence, and still a success
        ({"cosine": 0.9, "defense": "gaussian/0.5"}, False),  # a weaker defence
        ({"defense": "prune/0.9"}, False),  # another family
        ({"defense": "dp/1"}, True),  # clipping and noise is noise, and clipping does not help
        ({"defense": "clip/1"}, False),
        ({"value": 9.9}, False),  # below a tenth
        ({"value": 10.0}, True),
        ({"value": 55.0, "chance": 50.0}, True),  # a tenth of what a guess misses
        ({"value": 54.0, "chance": 50.0}, False),
        ({"count": 1}, True),  # one success is enough
        ({"cosine": 0.9}, True),  # the same defence, though it changes this gradient less
        ({"batch": 4}, False),  # the nearest batch size counts
        ({"cosine": math.nan, "defense": "gaussian/2"}, True),  # by its level
        ({"cosine": math.nan, "defense": "gaussian/0.5"}, False),
        ({"cosine": math.nan, "defense": "laplace/2"}, False),  # cannot be compared
    ],
)
def test_a_success_of_the_same_attack_refutes_a_stop(other: dict[str, object], refuted: bool) -> None:
    seems = outcome(defense="gaussian/1", cosine=0.5, **NOTHING)
    against = outcome(**{"defense": "gaussian/1", "cosine": 0.5, "value": 100.0} | other)
    assert ("gaussian/1" in named([seems, against])) != refuted


def test_the_network_of_the_row_counts_and_few_cases_of_another_page_do_not() -> None:
    behind = [
        outcome(defense="gaussian/1", cosine=0.5, **NOTHING),
        outcome(defense="gaussian/1", cosine=0.5, network="another", **ALL),
        outcome(defense="prune/0.9", cosine=0.9, network="another", **NOTHING),
    ]
    assert named(behind, replace(ROW, network="LeNet")) == ["gaussian/1"]
    few = {"defense": "gaussian/1", "cosine": 0.5, "count": LEAST - 1, **NOTHING}
    assert named([outcome(**few)]) == []
    enough = outcome(defense="prune/0.9", cosine=0.1, count=LEAST, **NOTHING)
    assert named([outcome(**few, page=PAGE), enough]) == ["prune/0.9", "gaussian/1"], "many cases come first"


def test_on_each_page_the_nearest_batch_size_counts_and_single_samples_only_on_the_own_page() -> None:
    behind = [
        outcome(defense="gaussian/1", batch=batch, page=page)
        for page, batches in (("another", (1, 2, 32)), ("single", (1,)), (PAGE, (1,)))
        for batch in batches
    ]
    known = [(one.page, one.batch) for one in tried(replace(ROW, batch=16), PAGE, behind)]
    assert known == [("another", 32), (PAGE, 1)]
    known = [(one.page, one.batch) for one in tried(replace(ROW, batch=1), PAGE, behind)]
    assert known == [("another", 1), ("single", 1), (PAGE, 1)]


@pytest.mark.parametrize(("precision", "refuted"), [("bfloat16", True), ("float16", False), ("float64", False)])
def test_a_client_that_rounds_more_counts_against_rounding(precision: str, refuted: bool) -> None:
    # Ten bits are fewer than float16 keeps, and more than bfloat16 keeps.
    seems = outcome(defense="quantize/10", cosine=0.999, **NOTHING)
    assert (named([seems, outcome(client=precision, **ALL)]) == []) == refuted


def test_layers_that_are_not_sent_are_not_compared_by_the_cosine_of_the_rest() -> None:
    behind = [
        outcome(defense="withheld/recurrent", cosine=1.0, **NOTHING),
        outcome(defense="withheld/head", cosine=1.0, **ALL),
        outcome(defense="gaussian/1", cosine=0.5, **NOTHING),
    ]
    assert named(behind) == ["gaussian/1", "withheld/recurrent"]


def test_a_stop_says_what_still_leaks_and_where_it_was_measured() -> None:
    behind = [
        outcome(defense="prune/0.8", value=3.0, count=50, batch=4, network="another", page="noise"),
        outcome(leak="features", defense="prune/0.8", value=99.6, measure="classes right", network="another", batch=4),
        outcome(leak="images", defense="prune/0.8", network="another", batch=4, **NOTHING),
    ]
    assert stopped(ROW, PAGE, behind) == (
        "dropping the smallest 80% of all entries, which leaves 3 % (labels found) and 99.6 % (classes right) "
        "(n = 50, batches of 4, another, {page}`noise`)"
    )
    guessed = outcome(defense="sign/0", value=41.0, chance=40.0, page=PAGE)
    other = outcome(defense="sign/0", value=20.0, chance=40.0, network="LSTM")
    words = "sending signs only, which leaves 41 % (labels found; a guess: 40 %) (n = 100, LeNet)"
    assert stopped(ROW, PAGE, [guessed, other]) == words
