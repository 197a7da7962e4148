"""The study of clients that compute in a coarse precision: certified answers are right, and losses are reported."""

from __future__ import annotations

from typing import get_args

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak.precision import PRECISIONS
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import precision

STUDY = "precision"
CHOSEN = {
    "precisions": ["float32", "bfloat16"],
    "samples": 4,
    "images": ["connected", "matching"],
    "steps": 3,
}


def test_nothing_certified_is_wrong(record: Record) -> None:
    frame = record.frame()
    honest = frame[frame["attacker"].isin(["told", "not told"])]
    assert honest["wrong"].sum() == 0
    assert honest["cases"].sum() > 45


def test_an_attacker_who_knows_the_precision_reads_the_class(record: Record) -> None:
    labels = record.rows(precision.NetworkLabels)
    told = labels[labels["attacker"] == "told"]
    assert (told["right"] == 100).all()
    assert (told["failed_count"] == 0).all()
    # A smoothed label has digits that are lost; a one-hot label has none to lose.
    assert (told[told["labels"] == "smoothing"]["unique_count"] == 0).all()
    coarse = labels[(labels["attacker"] == "not told") & (labels["precision"] != "float32")]
    assert (coarse["unique_count"] == 0).all()


def test_sentences_are_read_from_eight_bits(record: Record) -> None:
    frame = record.rows(precision.ReadSentences).set_index(["precision", "network"])
    assert frame.loc[("float32", "lstm"), "unique_count"] == 1
    assert frame.loc[("bfloat16", "transformer"), "right"] == 100


def test_images_lose_decibels_with_digits(record: Record) -> None:
    frame = record.rows(precision.RestoredImages)
    own = frame[(frame["attack"] == "connected") & (frame["size"] == 1)].set_index(["precision", "attacker"])
    assert own.loc[("float32", "not told"), "psnr"] > 100
    assert 40 < own.loc[("bfloat16", "told"), "psnr"] < 70
    assert own.loc[("bfloat16", "not told"), "not_restored"] == 1


def test_outcomes_name_the_network_that_was_attacked(record: Record) -> None:
    batches = [one for one in precision.outcomes(record) if one.attack == "batch solver"]
    assert {one.network for one in batches} == {"ResNet20"}


def test_tables_and_figures(record: Record) -> None:
    assert list(precision.batches_table(record)["precision"]) == ["float32", "bfloat16"]
    images = precision.images_table(record).set_index(["attack", "B", "attacker"])
    assert set(images["certified"]) == {"0 of 1", "0 of 2", "1 of 2"}
    for draw in (precision.figure_digits, precision.figure_certificates):
        drawn = draw(record)
        assert figures.gray_table(drawn).std() > 0.02
        plt.close(drawn)


def test_a_wrong_certificate_is_counted() -> None:
    true = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    off = (1 + 1e-2) * true.double()
    assert precision.compared(off, true, "exact", 1e-3)["wrong"] == 1
    assert precision.compared(off, true, "exact", 5e-3)["wrong"] == 0
    assert precision.compared(off, true, "partial", 1e-3)["wrong"] == 0
    assert precision.compared(off * torch.nan, true, "unique", None)["wrong"] == 1


def test_the_page_offers_every_precision() -> None:
    field = precision.Parameters.model_fields["precisions"]
    assert set(get_args(get_args(field.annotation)[0])) == set(PRECISIONS)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="float8"):
        precision.Parameters(precisions=["float8"])
