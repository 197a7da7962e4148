"""The study of transcripts where it is harder: who begins alike is told apart, noise is read through, and its page."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError
from gradleak.models.recogniser import recogniser
from gradleak.runs.records import Record
from gradleak.sequences.observed import FIRST, observe_speech
from gradleak.show import figures
from gradleak.studies.dang2021 import harder_transcripts as study
from gradleak.studies.shared.recognisers import tokens_of

STUDY = "harder-transcripts"
CHOSEN = {
    "alone": ["small/0/30/2", "small-2/0/6/1"],
    "alike": ["2/1"],
    "local": ["2/1"],
    "defended": 1,
    "defenses": ["noise/0.1", "noise/30"],
    "releases": ["0.5/1e-5", "0.5/1"],
    "stages": [0, 4],
    "withheld": ["none", "embedding", "head", "decoder", "decoder and head"],
}


def test_each_reader_where_it_is_made_for(record: Record) -> None:
    last = record.part("last layer")
    assert list(last["length"]) == [30, 30, 6]
    assert last["exact"].all()
    assert last["unique"].all()
    alike = record.part("alike").set_index("reader")
    assert not alike.loc["closed form", "unique"]
    assert alike.loc["root", "exact"]
    assert alike.loc["root", "unique"]
    local = record.part("local").set_index("reader")
    assert local["exact"].all()
    assert not local["unique"].any()
    for part, little, much in (("defended", "noise/0.1", "noise/30"), ("released", "0.5/1e-5", "0.5/1")):
        frame = record.part(part)
        for trained in CHOSEN["stages"]:
            changed = frame[frame["trained"] == trained].set_index(["form", "reader"])
            assert list(changed.loc[little, "exact"]) == [False, True, True]
            assert not changed.loc[much, "exact"].any()
            assert changed.loc[(much, "nearest words"), "failed"]
    shared = record.part("withheld").set_index(["trained", "form"])
    for trained in CHOSEN["stages"]:
        assert list(shared.loc[trained, "exact"]) == [True, True, True, True, False]
        # Without the last layer nobody tells whether the recogniser was sure of words that follow.
        assert list(shared.loc[trained, "unique"]) == [True, True, False, True, False]
        assert shared.loc[trained, "bag_exact"].all()
    # A release is one of DP-SGD only where its gradient is clipped.
    assert (record.part("released")["norm"] > 0.5).all()
    assert not record.frame()["wrongly_sure"].any()


def test_tables_and_figures(record: Record) -> None:
    cases = study.table(record)
    read = ["last layer"] * 2 + ["closed form", "root", "closed form", "nearest words"]
    withheld = ["the decoder's first layer"] * 3 + ["the last layer", "–"]
    assert list(cases["attack"]) == read + 2 * withheld
    assert list(cases["transcripts exact"].str[:6])[:2] == ["2 of 2", "1 of 1"]
    behind = study.defense_table(record)
    assert list(behind["nearest words"]) == list(behind["nearest words, length given"]) == ["1 of 1", "0 of 1"] * 4
    assert list(behind["defence"])[-2:] == ["DP-SGD, noise 1e-05, ε 5e9", "DP-SGD, noise 1, ε 4.4"]
    assert cases["transcripts exact"].iloc[-1] == "0 of 1 (0% to 79%)"
    for draw in (study.figure_defenses, study.figure_frontier):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


def test_a_release_is_clipped_whole() -> None:
    """What the readers see of it is shorter than the clipping norm by what the other layers have of it."""
    model, (said,) = recogniser("small", len(text.vocabulary("sentences"))), text.texts("sentences", "test")[:1]
    (tokens,) = tokens_of("sentences", [said])
    whole = observe_speech(model, [pseudo_speech(said)], [tokens]).gradients
    norm = math.sqrt(sum(float(value.square().sum()) for value in whole.values()))
    sent = study.released(whole, study.Release.of("0.25/0"), torch.Generator())
    assert set(sent) == set(FIRST)
    for name, value in sent.items():
        torch.testing.assert_close(value, whole[name] * 0.25 / norm)
    noisy = study.released(whole, study.Release.of("0.25/2"), torch.Generator().manual_seed(0))
    added = torch.cat([(noisy[name] - sent[name]).flatten() for name in FIRST])
    assert float(added.std()) == pytest.approx(0.5, rel=0.01)


def test_utterances_of_any_length() -> None:
    end = text.vocabulary("sentences").end
    for said in (found := study.running("sentences", 50, 3)):
        assert len(said) == 50
        assert said.index(end) == 49
    assert len({one[0] for one in found}) == 3
    with pytest.raises(InputError, match="there are only"):
        study.running("sentences", 50, 10_000)


def test_two_and_no_more_begin_alike() -> None:
    for said in study.beginning_alike("sentences", 4, 5):
        firsts = [tokens[0] for tokens in tokens_of("sentences", said)]
        assert len(set(said)) == 4
        assert firsts[0] == firsts[1]
        assert len(set(firsts)) == 3
    with pytest.raises(InputError, match="pairs of texts begin alike"):
        study.beginning_alike("sentences", 2, 1000)
