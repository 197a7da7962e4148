"""The study of audits: what it finds on its smallest networks, that no certificate lies, and what it refuses."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak import studies
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.errors import InputError
from gradleak.studies.wang2024 import audit

STUDY = "audit"
CHOSEN = {"model": ["lenet"], "defenses": ["none", "prune/0.9"], "batch_sizes": [1, 3], "steps": 2}


def test_every_audit_has_its_cost_and_its_findings(record: Record) -> None:
    frame = record.frame()
    cells = frame.groupby(["batch_size", "defense"])
    assert len(cells) == 4
    assert (cells["cosine"].count() == 1).all()
    assert (cells["certificate"].count() > 3).all()
    assert not frame["deceived"].fillna(False).astype(bool).any()


def test_the_worst_is_what_an_audit_reports(record: Record) -> None:
    worst = audit.worst(record).set_index(["batch_size", "defense"])
    assert worst.loc[(1, "none"), "image-psnr"] > 60
    assert worst.loc[(1, "prune/0.9"), "image-psnr"] < 20
    assert worst.loc[(3, "none"), "features"] == 1
    assert worst.loc[(3, "prune/0.9"), "cosine"] < 0.99


def test_tables_and_figures(record: Record) -> None:
    table = audit.table(record)
    assert next(iter(table["labels"])) == "100 %"
    words = audit.certificates(record).set_index("word")
    assert words.loc["unique", "all labels right"] == "100 %"
    figure = audit.figure_frontier(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("model", "lenett", "did you mean 'lenet'"),
        ("defenses", "clap/1", "did you mean 'clip'"),
        ("defenses", "prune/2", "share must lie in 0 … 1"),
        ("data", "photo", "did you mean 'photos'"),
        ("batch_sizes", "0", "a batch has at least 1 sample"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        studies.parameters("audit", "quick", {name: text})
