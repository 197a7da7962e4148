"""The study of transcripts where it is harder: who begins alike is told apart, noise is read through, and its page."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.data import text
from gradleak.errors import InputError
from gradleak.studies.dang2021 import harder_transcripts as study
from gradleak.studies.dang2021.words import tokens_of

STUDY = "harder-transcripts"
CHOSEN = {
    "alone": ["small/0/30/2", "small-2/0/6/1"],
    "alike": ["2/1"],
    "local": ["2/1"],
    "defended": 1,
    "defenses": ["noise/0.1", "noise/30"],
    "stages": [0],
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
    defended = record.part("defended").set_index(["form", "reader"])
    assert list(defended.loc["noise/0.1", "exact"]) == [False, True, True]
    assert not defended.loc["noise/30", "exact"].any()
    assert defended.loc[("noise/30", "nearest words"), "failed"]
    assert not record.frame()["wrongly_sure"].any()


def test_tables_and_figure(record: Record) -> None:
    assert list(study.alone_table(record)["tokens"]) == ["30", "6"]
    assert list(study.alike_table(record)["reader"]) == ["closed form", "root"]
    assert list(study.local_table(record)["local steps"]) == ["2", "2"]
    assert list(study.defense_table(record)["nearest words"]) == ["1 of 1", "0 of 1"]
    figure = study.figure_defenses(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_utterances_of_any_length() -> None:
    end = text.vocabulary("sentences").end
    for said in (found := study.running("sentences", 50, 3)):
        assert len(said) == 50
        assert said.index(end) == 49
    assert len({one[0] for one in found}) == 3
    with pytest.raises(InputError, match="texts to begin with"):
        study.running("sentences", 50, 10_000)


def test_two_and_no_more_begin_alike() -> None:
    for said in study.beginning_alike("sentences", 4, 5):
        firsts = [tokens[0] for tokens in tokens_of("sentences", said)]
        assert len(set(said)) == 4
        assert firsts[0] == firsts[1]
        assert len(set(firsts)) == 3
    with pytest.raises(InputError, match="pairs of texts begin alike"):
        study.beginning_alike("sentences", 2, 1000)


@pytest.mark.parametrize(
    "form", [(study.Alone, "large/0/9/1"), (study.Alike, "1/1"), (study.Local, "0/1"), (study.Behind, "noise")]
)
def test_parameters_that_make_no_sense(form: tuple[type[study.Alike], str]) -> None:
    kind, written = form
    with pytest.raises(InputError):
        kind.of(written)
