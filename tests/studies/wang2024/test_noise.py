"""The noise study: what each attack keeps, tables and figures."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import noise

STUDY = "noise"
CHOSEN = noise.Parameters.at("smallest") | {"samples": 12, "levels": [1e-4, 1e-1]}


def test_little_noise_leaves_the_label_and_much_takes_it(record: Record) -> None:
    frame = record.frame()
    known = frame[(frame["attack"] == "exact, noise known") & (frame["reading"] == "deviation")]
    little, much = (known[known["level"] == level] for level in (1e-4, 1e-1))
    assert (little["within_tenth"] >= 90).all()
    assert (little["label_error"] < 0.01).all()
    assert much["label_error"].min() > 10 * little["label_error"].max()
    assert (frame["std"][frame["reading"] == "variance"] == frame["level"][frame["reading"] == "variance"] ** 0.5).all()


def test_an_attack_that_expects_no_noise_says_that_there_is_some(record: Record) -> None:
    frame = record.frame()
    unaware = frame[(frame["attack"] == "exact") & frame["defense"].isin(noise.NOISES)]
    assert (unaware["failed"] == 100).all()


def test_defences_keep_what_they_are_known_to_keep(record: Record) -> None:
    frame = record.frame()
    aware = frame[(frame["attack"] == "exact, noise estimated") & (frame["place"] == "layer")]
    assert aware["utility"].between(0, 1 + 1e-6).all()
    clipped = aware[aware["defense"] == "clip"]
    assert (clipped["utility"] > 1 - 1e-6).all()
    unaware = frame[(frame["attack"] == "exact") & (frame["defense"] == "clip") & (frame["level"] == 0.1)]
    assert (unaware["within_tenth"] == 0).all()
    unknown = frame[frame["attack"] == "exact, scale unknown"]
    assert len(unknown) == len(noise.STRENGTHS["clip"])
    assert (unknown["unique"] == 100).all()
    assert (unknown["label_error"] < 1e-5).all()
    sixteen = aware[(aware["defense"] == "quantize") & (aware["level"] == 16)]
    assert (sixteen["within_tenth"] == 100).all()


def test_tables_and_figures(record: Record) -> None:
    assert len(noise.table(record)) == 4
    assert len(noise.layer_table(record)) == 8
    assert len(noise.defense_table(record)) == sum(map(len, noise.STRENGTHS.values()))
    for figure in (noise.figure_errors(record), noise.figure_utility(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
