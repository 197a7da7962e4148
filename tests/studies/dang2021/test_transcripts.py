"""The transcripts' study: utterances alone and together, the unknowns of matching, one sentence step by step."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.dang2021 import transcripts
from gradleak.studies.shared.transcript_errors import edits

STUDY = "transcripts"
CHOSEN = {"rows": ["small/0/6", "small-2/0/2"], "batches": ["2/3"]}


def test_all_are_exact_and_say_so(record: Record) -> None:
    alone = record.part("alone")
    assert len(alone) == 8
    assert alone["exact"].all()
    assert alone["unique"].all()
    assert (alone["word_errors"] == 0).all()
    assert (alone["worst"] < 1e-5).all()
    assert (alone["other"] > 1e-3).all()


def test_nothing_wrong_is_called_unique(record: Record) -> None:
    together = record.part("together")
    assert not together["wrongly_sure"].any()
    assert together[together["shared"] == False]["exact"].all()  # noqa: E712


@pytest.mark.parametrize(
    ("found", "truth", "count"), [("a b c", "a b c", 0), ("a c", "a b c", 1), ("", "a b", 2), ("x b y z", "a b c", 3)]
)
def test_words_in_error(found: str, truth: str, count: int) -> None:
    assert edits(found.split(), truth.split()) == count


def test_tables_and_figure(record: Record) -> None:
    assert list(transcripts.table(record)["transcripts exact"]) == ["6 of 6", "2 of 2"]
    assert (transcripts.batch_table(record)["certified but wrong"] == "0").all()
    assert "6 utterances per recogniser" in records.about(record)
    figure = transcripts.figure_steps(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_parameters_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="greater than or equal to 1"):
        transcripts.Together.of("0/1")
