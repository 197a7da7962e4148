"""The words' study: bags of single utterances, of several and their steps, and behind defences."""

from __future__ import annotations

from gradleak.runs.records import Record
from gradleak.studies.dang2021.words import Batch, Compared

STUDY = "words"
CHOSEN = {
    "rows": Compared.listed(("small", 0, 6, 2), ("small", 2, 2, 2)),
    "batches": Batch.listed((1, 2, 1)),
    "defenses": ["none/0", "sign/0"],
    "defended": 2,
    "published": Batch.listed((2, 1, 2), (1, 2, 1)),
    "compressed": ["sign/0/2"],
    "compared": 2,
}


def test_ours_is_exact_and_counts(record: Record) -> None:
    frame = record.frame()
    alone = frame[frame["part"] == "table 2"]
    ours = alone[alone["attack"] == "ours"]
    assert len(ours) == 8
    assert ours["exact"].all()
    assert (ours["length_error"] == 0).all()
    assert len(alone[alone["attack"] == "as coded"]) == 4
