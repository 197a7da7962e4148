"""The words' study: bags of single utterances, of several and their steps, and behind defences."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.dang2021 import words
from gradleak.studies.shared.recognisers import AttackedRecogniser, attacked_texts

STUDY = "words"
CHOSEN = {
    "rows": ["small/0/6/2", "small/2/2/2"],
    "batches": ["1/2/1"],
    "defenses": ["none/0", "sign/0"],
    "defended": 2,
}


def test_ours_is_exact_and_counts(record: Record) -> None:
    frame = record.frame()
    alone = frame[frame["part"] == "table 2"]
    ours = alone[alone["attack"] == "ours"]
    assert len(ours) == 8
    assert ours["exact"].all()
    assert (ours["length_error"] == 0).all()
    assert len(alone[alone["attack"] == "as coded"]) == 4


def test_signs_stop_the_planes_and_not_who_knows_of_them(record: Record) -> None:
    frame = record.frame()
    behind = frame[(frame["part"] == "table 4") & (frame["defense"] == "sign/0") & (frame["trained"] == 0)]
    f1 = behind.groupby("attack")["f1"].mean()
    assert f1["outlying rows"] == 1
    assert f1["as coded"] < 0.9


def test_sums_of_steps_are_counted(record: Record) -> None:
    frame = record.frame()
    together = frame[frame["part"] == "table 3"].set_index("attack")
    assert together.loc["ours, sum", "exact"]
    assert together.loc["ours, sum", "length_error"] == 0
    assert set(together.index) == {"ours, sum", "ours, difference", "as coded"}


def test_tables_and_figure(record: Record) -> None:
    assert list(words.table(record)["attack"]) == ["ours", "as coded"] * 2
    assert list(words.batch_table(record)["local steps"]) == ["2"] * 3
    assert "6 utterances per recogniser" in records.about(record)
    figure = words.figure_defenses(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_parameters_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="a recogniser is one of"):
        AttackedRecogniser.of("large/0/5")
    with pytest.raises(InputError, match="its coded, input should be greater than or equal to 1"):
        words.Compared.of("small/0/5/0")
    with pytest.raises(InputError, match="at least 1"):
        words.Batch.of("0/1/1")
    with pytest.raises(InputError, match="utterances to attack"):
        attacked_texts("sentences", 10_000)
