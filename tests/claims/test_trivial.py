"""Who only guesses, on the same batches or the same kind of data, fails every claim that an attack does well."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from gradleak import claims, data, metrics, studies
from gradleak.claims import Claim
from gradleak.claims.judging import judge, selected
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.studies.shared.samples import LABELS, soft_labels

GUESSES = ("guess", "guess, drawn")
# What one attack has over another, or a setting over another.
GAINS = ("low", "lower", "over_guess", "over_llg", "lost", "gain", "identified_gain", "bag_gains", "starts_gain")
# What is wrong of the answers that are called unique.
PROMISES = ("silent", "silently", "wrongly_sure", "deceived", "wrong", "proved_wrong")
# Shares of labels that are right to so much, L1, and of texts that are exact.
RECOVERED = dict.fromkeys(("accuracy", "counted_zero", "drawn", "right", "searched_right", "whole", "within_one"), 1e-3)
RECOVERED |= {"within_tenth": 0.1}
PSNR = ("psnr", "image-psnr", "eight_bit")


@cache
def recorded() -> list[tuple[Claim, Record]]:
    """Return all claims of the project, each with the record of its page."""
    kept = {name: records.recorded(name) for name in studies.names()}
    return [(claim, record) for claim in claims.load() if (record := kept[claim.study]) is not None]


def demanding(columns: tuple[str, ...]) -> list[Claim]:
    """Return the claims that ask for much in one of these columns."""
    return [one for one, _ in recorded() if one.measure.column in columns and one.rule.at_least is not None]


def about(claim: Claim, **attack: str) -> Claim:
    """Return the claim as it would be about another attack; without one, as it would be about all of them."""
    where = {name: value for name, value in claim.measure.where.items() if name != "attack"} | attack
    return claim.model_copy(update={"measure": claim.measure.model_copy(update={"where": where})})


def test_a_guess_fails_what_is_said_of_attacks() -> None:
    tried, met = 0, []
    for claim, record in recorded():
        attack = claim.measure.where.get("attack")
        # A claim that an attack finds little is one about a defence, and a guess may well meet it.
        if attack is None or attack in GUESSES or claim.rule.at_least is None:
            continue
        found = {row.get("attack") for row in selected(about(claim), record)}
        for guess in found.intersection(GUESSES):
            tried += 1
            if judge(about(claim, attack=guess), record).agrees:
                met.append(f"{claim.study}: {claim.id} is met by a {guess}")
    assert not met, "\n".join(met)
    assert tried > 30


def test_nothing_gains_over_itself() -> None:
    # "Worse by no more than" is met by what is alike, and says so.
    gains = [one for one in demanding(GAINS) if (one.rule.at_least or 0) >= 0]
    assert len(gains) > 50
    assert not [f"{one.study}: {one.id}" for one in gains if one.holds(0.0)]


def test_who_is_never_sure_breaks_no_promise_and_finds_nothing() -> None:
    kept = recorded()
    promises = [one for one, _ in kept if one.measure.column in PROMISES and one.rule.at_most == 0]
    assert len(promises) > 15
    for promise in promises:
        beside = [(one, record) for one, record in kept if one.study == promise.study and not one.holds(0.0)]
        assert any(judge(one, record).agrees for one, record in beside), f"{promise.study} asks for no answers"


@pytest.mark.parametrize("kind", LABELS)
def test_a_label_that_is_made_up_is_not_recovered(kind: str) -> None:
    classes, count = 10, 20_000
    generator = torch.Generator().manual_seed(0)
    truth, drawn = (
        soft_labels(kind, torch.randint(classes, (count,), generator=generator), classes, generator) for _ in range(2)
    )
    constant = torch.full_like(truth, 1 / classes)
    for column, near in RECOVERED.items():
        shares = [float((metrics.label_error(own, truth) < near).double().mean()) for own in (drawn, constant)]
        if kind != "onehot":
            assert max(shares) < 0.03
        # A class that is drawn is right for one of ten; no claim has fewer classes and asks for so little.
        for claim in demanding((column,)):
            best = max(shares) * (100 if claim.unit == "%" else 1)
            assert not claim.holds(best), f"{claim.study}: {claim.id} is met by a label that is made up"


def test_the_mean_of_other_images_is_no_reconstruction() -> None:
    private, public = (data.load("photos", split).images for split in ("train", "test"))
    grey, mean = torch.full_like(private, 0.5), public.mean(dim=0, keepdim=True).expand_as(private)
    best = max(float(metrics.psnr(own, private).mean()) for own in (grey, mean))
    assert 5 < best < 13
    asked = demanding(PSNR)
    assert len(asked) > 10
    assert not [f"{one.study}: {one.id}" for one in asked if one.holds(best)]
