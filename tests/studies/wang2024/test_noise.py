"""The noise study: what each attack keeps, tables and figures."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.wang2024 import noise

STUDY = "noise"
CHOSEN = noise.Parameters.at("smallest") | {"samples": 12, "levels": [1e-4, 1e-1]}


def test_little_noise_leaves_the_label_and_much_takes_it(record: Record) -> None:
    frame = record.frame()
    little, much = (select(frame, attack=noise.KNOWN, reading="deviation", level=level) for level in (1e-4, 1e-1))
    assert (little["within_tenth"] >= 90).all()
    assert (little["label_error"] < 0.01).all()
    assert much["label_error"].min() > 10 * little["label_error"].max()
    variances = select(frame, reading="variance")
    assert (variances["std"] == variances["level"] ** 0.5).all()


def test_an_attack_that_expects_no_noise_says_that_there_is_some(record: Record) -> None:
    unaware = select(record.frame(), attack=noise.EXACT)
    assert (unaware["failed"][unaware["defense"].isin(noise.NOISES)] == 100).all()


def test_defences_keep_what_they_are_known_to_keep(record: Record) -> None:
    frame = record.frame()
    aware = select(frame, attack=noise.ESTIMATED, place="layer")
    assert aware["utility"].between(0, 1 + 1e-6).all()
    assert (select(aware, defense="clip")["utility"] > 1 - 1e-6).all()
    assert (select(aware, defense="quantize", level=16)["within_tenth"] == 100).all()
    assert (select(frame, attack=noise.EXACT, defense="clip", level=0.1)["within_tenth"] == 0).all()
    unknown = select(frame, attack=noise.UNSCALED)
    assert len(unknown) == len(noise.STRENGTHS["clip"])
    assert (unknown["unique"] == 100).all()
    assert (unknown["label_error"] < 1e-5).all()


def test_table_and_figures(record: Record) -> None:
    assert len(noise.table(record)) == 8 + sum(map(len, noise.STRENGTHS.values()))
    for figure in (noise.figure_errors(record), noise.figure_utility(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
