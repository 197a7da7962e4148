"""The queue of trials that decide claims: what decides most per second comes first."""

from __future__ import annotations

import pytest

from gradleak import claims
from gradleak.book import queue
from gradleak.runs import recording, records
from tests.checkout import Toy
from tests.recorded import record_of

EFFORT = (
    "    words: list[str]\n\n    def reads",
    '    words: list[str]\n    effort_fields = frozenset({"scale"})\n\n    def reads',
)
CLAIMS = """
- paper: toy2020
  place: Table 1
  study: toy
  setting: any
  measure: {column: value, reduce: sum}
  rule: {at_least: 0}
  claims:
  - {id: dear, statement: Two dear draws, where: {number: [1, 2]}, needs: {scale: 10}}
  - {id: cheap, statement: A cheap draw, where: {number: 0}, needs: {scale: 10}}
  - {id: more, statement: More of the dear ones, where: {number: 2}, needs: {scale: 10}}
  - {id: decided, statement: Decided already, where: {number: 3}, needs: {scale: 1}}
  - {id: other, statement: Large, where: {number: 3}, setting: {network: large}, needs: {scale: 10}, stand_in: a toy}
  - {id: replaced, statement: At full scale, where: {number: 1}, setting: {scale: 10}, stand_in: a smaller scale}
"""
SECONDS = {0: 1.0, 1: 40.0, 2: 20.0, 3: 1.0}


def undecided(checkout: Toy) -> Toy:
    """Record a toy whose claims need ten times the recorded effort."""
    checkout.rewrite(EFFORT)
    checkout.claims.write_text(CLAIMS)
    record = recording.record(checkout.load(), checkout.parameters(), rules=claims.rules("toy"), jobs=1)
    trials = [one.model_copy(update={"seconds": SECONDS[place]}) for place, one in enumerate(record.trials)]
    records.write(record.model_copy(update={"trials": trials}), records.file_of("toy"))
    return checkout


recorded = pytest.fixture(undecided, name="recorded")


def test_most_claims_per_second_come_first_and_finished_trials_leave_the_queue(
    recorded: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = queue.queue()
    expected = [(0, ("cheap",)), (2, ("more",)), (1, ("dear", "replaced"))]
    assert [(entry.inputs["number"], entry.decides) for entry in entries] == expected
    assert [entry.seconds for entry in entries] == [10.0, 200.0, 400.0], "ten times the effort takes ten times as long"
    assert all(entry.inputs["scale"] == 10 for entry in entries)
    assert queue.summary(entries).startswith("3 trials would decide 4 claims; expected time: 10 min")
    assert len(recorded.traced) == 4, "a queue is only a list"
    assert verdicts() == ["trend: agrees", "trend: agrees", "trend: agrees", "reproduced"]
    monkeypatch.setenv("TOY_FAILS", "1")
    failed, ended = queue.run(entries, minutes=None, jobs=1)
    assert failed.startswith("toy failed (number=1")
    assert ended == "2 of 3 trials ended.", "a failed trial does not lose the others"
    # What was decided stays so while the record grows.
    assert verdicts() == ["trend: agrees", "reproduced", "reproduced", "reproduced"]
    assert record_of("toy").size == "2 of 4 trials"
    assert [entry.inputs["number"] for entry in queue.queue()] == [1]


def test_a_need_that_would_drop_recorded_trials_is_left_out(recorded: Toy) -> None:
    recorded.claims.write_text(CLAIMS.replace("needs: {scale: 1}", "needs: {words: [a, b, c]}"))
    parameters = queue.asked(recorded.load()).model_dump()
    assert (parameters["scale"], parameters["words"]) == (10, ["a", "b"])


def verdicts() -> list[str]:
    judged = claims.judgements(record_of("toy"))
    return [judged[name].verdict for name in ("dear", "cheap", "more", "decided")]
