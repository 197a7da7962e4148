"""The transcripts' study: utterances alone and together, the unknowns of matching, and other kinds of speech."""

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
CHOSEN = {
    "rows": ["small/0/6", "small-2/0/2"],
    "batches": ["2/3"],
    "voices": ["en-us/175/50", "en-gb/140/35"],
    "utterances": 4,
    "stages": [0, 2],
}


def test_all_are_exact_and_say_so(record: Record) -> None:
    alone = record.part("alone")
    assert len(alone) == 8
    assert alone["exact"].all()
    assert alone["unique"].all()
    assert (alone["word_errors"] == 0).all()
    assert (alone["worst"] < 1e-5).all()
    assert (alone["other"] > 1e-3).all()


def test_other_speech_is_read(record: Record) -> None:
    heard = record.part("synthesised")
    assert len(heard) == 8
    assert heard["exact"].all()
    assert heard["bag_exact"].all()
    assert (heard["length_error"] == 0).all()
    assert not heard["wrongly_sure"].any()
    if transcripts.can_speak():
        assert set(heard["voice"]) == {"en-us/175/50", "en-gb/140/35"}


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
    assert list(transcripts.table(record)["transcripts exact"]) == ["6 of 6", "2 of 2", "4 of 4", "4 of 4"]
    assert (transcripts.batch_table(record)["certified but wrong"] == "0").all()
    assert "6 utterances per recogniser" in records.about(record)
    assert "4 synthesised utterances" in records.about(record)
    for figure in (transcripts.figure_steps(record), transcripts.figure_misses(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


def test_parameters_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="greater than or equal to 1"):
        transcripts.Together.of("0/1")


def test_speech_is_artificial_only_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "can_speak", lambda: False)
    assert _voices(transcripts.Parameters()) == {transcripts.ARTIFICIAL}
    assert _voices(transcripts.Parameters(stand_in=False)) == {"en-us/175/50", "en-gb/140/35", "en-us+f3/210/65"}


def _voices(parameters: transcripts.Parameters) -> set[str]:
    experiments = parameters.experiments()
    return {voice for one in experiments if isinstance(one, transcripts.SynthesisedTexts) for voice in one.voices}


def test_digits_are_drawn_again_alike() -> None:
    assert transcripts.digits_of(3, 2023) == transcripts.digits_of(3, 2023)
    assert [len(transcripts.digits_of(number, 0).split()) for number in range(7)] == [2, 3, 4, 5, 6, 7, 2]
