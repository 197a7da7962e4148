"""The study of harder transcripts: what is read is right, much noise stops it, and a release is clipped whole."""

from __future__ import annotations

import math

import pytest
import torch

from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.models.recogniser import recogniser
from gradleak.runs.records import Record
from gradleak.sequences.observed import FIRST, observe_speech
from gradleak.studies.dang2021 import harder_transcripts as study
from gradleak.studies.shared.recognisers import tokens_of

STUDY = "harder-transcripts"
CHOSEN = {
    "alone": study.Alone.listed(("small", 0, 30, 2), ("small-2", 0, 6, 1)),
    "alike": study.Alike.listed((2, 1)),
    "local": study.Local.listed((2, 1)),
    "defended": 1,
    "defenses": ["noise/0.1", "noise/30"],
    "releases": ["0.5/1e-5", "0.5/1"],
    "stages": [4],
    "withheld": ["none", "embedding", "head", "decoder", "decoder and head"],
}


def test_nothing_is_read_behind_much_noise_and_nothing_read_is_wrong_without_saying_so(record: Record) -> None:
    for part, little, much in (("defended", "noise/0.1", "noise/30"), ("released", "0.5/1e-5", "0.5/1")):
        frame = record.part(part)
        assert frame.loc[frame["form"] == little, "exact"].any()
        assert not frame.loc[frame["form"] == much, "exact"].any()
    # Without the last layer nobody tells whether the recogniser was sure of words that follow.
    withheld = record.part("withheld").groupby("form")["unique"]
    assert (withheld.all()["none"], withheld.any()["head"]) == (True, False)
    assert not record.frame()["wrongly_sure"].any()


def test_a_release_is_clipped_whole() -> None:
    """What the readers see of it is shorter than the clipping norm by what the other layers have of it."""
    model, (said,) = recogniser("small", len(text.vocabulary("sentences"))), text.texts("sentences", "test")[:1]
    (tokens,) = tokens_of("sentences", [said])
    whole = observe_speech(model, [pseudo_speech(said)], [tokens]).gradients
    norm = math.sqrt(sum(float(value.square().sum()) for value in whole.values()))
    sent = study.released(whole, study.Release.model_validate("0.25/0"), torch.Generator())
    assert set(sent) == set(FIRST)
    for name, value in sent.items():
        torch.testing.assert_close(value, whole[name] * 0.25 / norm)
    noisy = study.released(whole, study.Release.model_validate("0.25/2"), torch.Generator().manual_seed(0))
    added = torch.cat([(noisy[name] - sent[name]).flatten() for name in FIRST])
    assert float(added.std()) == pytest.approx(0.5, rel=0.01)
