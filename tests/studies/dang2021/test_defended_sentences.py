"""The study of what keeps sentences from being read: clipping stops counts, noise what is left, and its page."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak import studies
from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.dang2021 import defended_sentences

STUDY = "defended-sentences"
CHOSEN = {
    "cells": ["lstm/64/1/untrained/3/2"],
    "noise": [0, 1e-6, 1],
    "sizes": ["lstm/64/1/untrained/2/1", "lstm/64/1/untrained/32/1"],
    "withheld": ["embedding", "head", "recurrent"],
}


def test_clipping_stops_counts_and_noise_prefixes(record: Record) -> None:
    frame = record.frame()
    frame = frame[frame["part"] == "dp"]
    counts = frame[frame["reader"] == "counts"]
    assert len(counts) == 2
    assert not counts["exact"].any()
    assert not counts["status"].eq("unique").any()
    prefixes = frame[frame["reader"] == "prefixes"].groupby("level")["right"].mean()
    assert prefixes[0] == 1
    assert prefixes[1] == 0
    assert not frame["wrongly_sure"].any()


def test_more_prefixes_than_the_span_holds_are_not_read(record: Record) -> None:
    frame = record.frame()
    right = frame[frame["part"] == "size"].groupby("size")["right"].mean()
    assert right[2] == 1
    assert right[32] == 0


def test_layers_that_are_not_sent(record: Record) -> None:
    frame = record.frame()
    right = frame[frame["part"] == "layers"].groupby(["withheld", "reader"])["right"].mean()
    assert right["embedding", "counts"] == 1
    assert right["head", "counts"] == 0
    assert right["head", "prefixes"] == 1
    assert right["recurrent", "prefixes"] == 0


def test_table_and_figure(record: Record) -> None:
    lines = list(defended_sentences.table(record)["protection"])
    assert lines[1:4] == ["clipped, noise 0 (ε ∞)", "clipped, noise 1e-06 (ε 5e11)", "clipped, noise 1 (ε 4.4)"]
    assert lines[4:9] == ["batches of 2"] * 2 + ["batches of 32"] * 2 + ["all but the embedding"]
    assert len(lines) == 14
    assert records.about(record) == "4 batches, 3 levels of noise, sentences of our own"
    figure = defended_sentences.figure_frontier(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_parameters_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="noise"):
        studies.parameters(STUDY, "quick", {"noise": [-1]})
    with pytest.raises(InputError, match="withheld"):
        studies.parameters(STUDY, "quick", {"withheld": ["ear"]})
