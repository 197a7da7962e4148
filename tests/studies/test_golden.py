"""Golden rows hold every part of their page's record, and tell a change of behaviour from a rewording.

The fixture `record` of each page's test compares them with the page's smallest run.
"""

from __future__ import annotations

import sys

import pytest

from gradleak import devices, studies
from gradleak.runs import golden as files
from gradleak.runs import records
from gradleak.runs.records import part_of
from tests.checkout import Toy
from tests.studies import golden

# Parts that need what the test environment lacks: the weights of EfficientNet-Lite0, and recordings of spoken digits.
ELSEWHERE = {"gradinversion-many": {"pictures"}, "transcripts": {"recorded"}}


# What decides the branch that a trial takes, and where the smallest runs leave some of its values out.
BRANCHES = ("stage", "dtype", "kind", "optimizer")
LEFT_OUT = {
    ("cnn-reconstruction", "stage"): "the stage changes only the network that is attacked, as in batches",
    ("peeling", "stage"): "a stage states image side, epochs and batch size; the smallest run has one",
    ("posterior-attack", "optimizer"): "the optimiser changes only the network that is attacked",
}


@pytest.mark.parametrize("name", studies.names())
def test_golden_rows_hold_every_part_and_branch_of_the_record(name: str) -> None:
    record = records.recorded(name)
    assert record is not None
    small = golden.stored(studies.load(name))
    assert set(map(part_of, small)) >= set(map(part_of, record.trials)) - ELSEWHERE.get(name, set())
    for field in BRANCHES:
        recorded, reached = (
            {str(one.inputs[field]) for one in run if field in one.inputs} for run in (record.trials, small)
        )
        assert recorded <= reached or (name, field) in LEFT_OUT, f"{name}: {field} {recorded - reached}"


@pytest.mark.parametrize("name", ["theorem1"])
def test_work_in_small_chunks_gives_the_golden_rows(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The smallest runs fit into one chunk each, and the recorded ones do not."""
    cache = tmp_path_factory.mktemp("chunks")
    monkeypatch.setenv("GRADLEAK_CACHE", str(cache))
    study, counted = studies.load(name), []

    def little(device: object, on_cpu: int, bytes_each: int = 8) -> int:
        counted.append(on_cpu)
        return on_cpu // 1000

    study.module  # noqa: B018  # imports what its trials use
    for module in [one for key, one in sys.modules.items() if key.startswith("gradleak.") and one is not devices]:
        if hasattr(module, "entries_at_once"):
            monkeypatch.setattr(module, "entries_at_once", little)
    assert golden.differences(study, golden.smallest(study)) == []
    assert counted


def test_a_change_of_behaviour_is_seen_and_a_rewording_is_not(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "widened", lambda study: checkout.parameters(samples=2))
    study = checkout.load()
    assert golden.write(study, golden.smallest(study))
    first = files.digest("toy")
    assert not golden.write(study, golden.smallest(study)), "the same rows leave the file as it is"
    assert golden.differences(study, golden.smallest(study)) == []

    checkout.edit('"the toy broke', '"the toy is broken')
    assert golden.differences(checkout.load(), golden.smallest(checkout.load())) == []
    checkout.edit("value=self.scale * self.number", "value=self.scale * self.number * (1 + 1e-9)")
    study = checkout.load()
    assert golden.differences(study, golden.smallest(study)) == [], "rounding is within the tolerance of the column"
    assert not golden.write(study, golden.smallest(study)), "and the file keeps its numbers"

    checkout.edit("value=self.scale * self.number", "value=self.scale * self.number * 1.001")
    study = checkout.load()
    (line,) = golden.differences(study, golden.smallest(study))
    assert line.startswith("value: 1.001 where 1.0 is recorded")
    assert golden.write(study, golden.smallest(study))
    assert files.digest("toy") != first

    monkeypatch.setattr(golden, "widened", lambda study: checkout.parameters(samples=1))
    assert golden.differences(study, golden.smallest(study))[0].startswith("a trial is gone")
