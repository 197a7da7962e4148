"""Stale records are seen, and spot checks confirm them or say what differs."""

from __future__ import annotations

import math

import pytest
import torch

from gradleak import devices, studies
from gradleak.book import records, runner, spot
from gradleak.book.records import Record, Trial
from gradleak.errors import InputError
from tests.checkout import Toy
from tests.test_cli import call

CHANGED = ("torch.rand(100_003", "torch.rand(100_000 + 3")


def recorded(checkout: Toy) -> Record:
    """Record the toy, and let its trials be computed with other code of the same meaning since."""
    runner.record(checkout.load(), checkout.parameters(), jobs=1)
    kept = records.recorded("toy")
    assert kept is not None
    assert records.state(kept) == "current"
    assert "current" in records.standing(kept)
    checkout.edit(*CHANGED)
    assert records.state(kept) == "stale"
    return kept


def test_a_record_is_current_confirmed_or_stale(checkout: Toy) -> None:
    kept = recorded(checkout)
    found = spot.check(kept, 2, limit=100, seed=0, jobs=1)
    assert found.troubles == ()
    confirmed = found.record.confirmed
    assert confirmed is not None
    assert (confirmed.trials, confirmed.of) == (2, 4)
    assert records.state(found.record) == "confirmed"
    assert "2 of 4 trials" in records.standing(found.record)
    records.write(found.record, records.file_of("toy"))
    again = records.recorded("toy")
    assert again is not None
    assert again.confirmed == confirmed
    checkout.edit("torch.rand(100_003", "torch.rand(100_001 + 2")
    assert records.state(found.record) == "stale", "what was confirmed is the code of then"
    checkout.edit("torch.rand(100_003", "torch.rand(100_003")
    assert records.state(found.record) == "current"
    assert records.state(kept.model_copy(update={"sources": None})) == "stale"


@pytest.mark.parametrize(
    ("trials", "of", "share", "state"),
    [(1, 9, 0.05, "stale"), (1, 9, 0.1, "confirmed"), (2, 9, 0.01, "confirmed"), (1, 1, 0.0, "confirmed")],
)
def test_two_trials_or_a_tenth_of_the_time_are_enough(
    checkout: Toy, trials: int, of: int, share: float, state: str
) -> None:
    kept = runner.run_study("toy", checkout.parameters(samples=1), jobs=1)
    assert kept.sources is not None
    found = records.Confirmed(
        trials=trials, of=of, seconds=1, share=share, date="2026-01-01T00:00:00Z", commit="a", sources=kept.sources
    )
    assert records.state(kept.model_copy(update={"sources": "before", "confirmed": found})) == state


def test_other_rows_leave_it_stale_and_say_where(checkout: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(checkout)
    checkout.edit("scale * torch.rand(100_003", "1.01 * scale * torch.rand(100_003")
    before = records.file_of("toy").read_bytes()
    code, out, _ = call(capsys, "verify", "--spot", "2", "--jobs", "1")
    assert code == 1
    assert out.startswith("toy: stale\n  sum is ")
    assert " is recorded, row 1 (number=" in out
    assert "word is" not in out
    assert records.file_of("toy").read_bytes() == before
    checkout.edit("    time.sleep(pause)\n", "    raise ValueError('no longer')\n")
    assert "ValueError: no longer" in call(capsys, "verify", "--spot", "1", "--jobs", "1")[1]


def test_verify_confirms_and_lists(checkout: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "verify", "--stale")[:2] == (0, "0 records: 0 current, 0 confirmed, 0 stale\n")
    recorded(checkout)
    code, out, _ = call(capsys, "verify", "--stale")
    assert code == 1
    assert out.startswith("toy: stale: ")
    assert out.endswith("1 records: 0 current, 0 confirmed, 1 stale\n")
    begun = len(checkout.traced)
    code, out, _ = call(capsys, "verify", "--spot", "9", "--limit", "0", "--jobs", "1")
    assert (code, len(checkout.traced)) == (1, begun)
    assert "none of its 4 trials can be run here in 0 s or less" in out
    code, out, _ = call(capsys, "verify", "--spot", "3", "--seed", "4", "--jobs", "1")
    assert code == 0
    assert out.startswith("toy: confirmed: 3 of 4 trials (")
    assert len(checkout.traced) == begun + 3
    assert call(capsys, "verify", "--stale")[:2] == (0, "1 records: 0 current, 1 confirmed, 0 stale\n")
    assert call(capsys, "verify", "--spot", "3")[:2] == (0, ""), "nothing is left to check"
    assert "confirmed" in call(capsys, "verify", "toy")[1]
    table = records.provenance_table(runner.run_study("toy", checkout.parameters(), jobs=1)).frame
    states = table[table[""] == "state"].to_dict("records")[0]
    assert states["this run"].startswith("current")
    assert states["recorded"].startswith("confirmed: 3 of 4")


def _pretend(monkeypatch: pytest.MonkeyPatch, name: str = "A card") -> None:
    """Let there be a GPU on which the toy runs: the toy itself works on the CPU."""
    monkeypatch.setattr(studies, "resolve_device", lambda device: "cpu" if device == "cpu" else "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    monkeypatch.setattr(devices, "described", lambda device: f"{name}, driver 1")


def test_a_gpus_record_lies_beside_the_cpus(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    here = runner.record(checkout.load(), checkout.parameters(samples=2), jobs=1)
    with monkeypatch.context() as there:
        _pretend(there)
        found = runner.record(checkout.load(), checkout.parameters(samples=3), jobs=1)
        assert checkout.traced == [0, 1, 0, 1, 2], "a CPU's trials are none of a GPU's"
        assert runner.record(checkout.load(), checkout.parameters(samples=2, device="cpu"), jobs=1).where == "a CPU"
        there.setenv("GRADLEAK_CACHE", str(checkout.root / "another cache"))
        runner.record(checkout.load(), checkout.parameters(samples=3), jobs=1)
        assert checkout.traced == [0, 1, 0, 1, 2], "all stood in the record"
        _pretend(there, "Another card")
        runner.record(checkout.load(), checkout.parameters(samples=1), jobs=1)
        assert checkout.traced == [0, 1, 0, 1, 2, 0], "what another card computed is none of this one's"
    assert found.provenance.device.startswith("A card, driver 1, float32 by ")
    assert here.provenance.device.startswith("CPU")
    kept = records.read(records.file_of("toy"))
    assert kept.digest() == kept.model_copy(update={"trials": here.trials}).digest(), "the CPU's stays what it was"
    assert records.read(records.file_of("toy", accelerated=True)).where == "a GPU"


def test_a_gpus_record_is_confirmed_on_a_cpu(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What a library draws from torch's own generator is another number for other inputs, the device among them.
    steady = ("float(careless)", "0.0")
    checkout.edit(*steady)
    runner.record(checkout.load(), checkout.parameters(), jobs=1)
    with monkeypatch.context() as there:
        _pretend(there)
        runner.record(checkout.load(), checkout.parameters(samples=5), jobs=1)
    assert call(capsys, "verify", "--stale")[:2] == (0, "2 records: 2 current, 0 confirmed, 0 stale\n")
    assert "current (GPU)" in call(capsys, "verify")[1]
    checkout.edit("float(careless)", "0.0 * 1")
    code, out, _ = call(capsys, "verify", "--stale")
    assert code == 1
    assert [line.partition(":")[0] for line in out.splitlines()] == ["toy", "toy (GPU)", "2 records"]
    code, out, _ = call(capsys, "verify", "--spot", "2", "--jobs", "1")
    assert code == 0, out
    assert [line.partition(" trials")[0] for line in out.splitlines()] == [
        "toy: confirmed: 2 of 4",
        "toy (GPU): confirmed: 2 of 5",
    ]
    again = records.read(records.file_of("toy", accelerated=True))
    assert again.where == "a GPU", "the record itself stays as it was"
    assert again.confirmed is not None
    assert records.read(records.file_of("toy")).confirmed is not None


def test_a_record_takes_its_own_current_trials(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    first = runner.record(checkout.load(), checkout.parameters(samples=2), jobs=1)
    monkeypatch.setenv("GRADLEAK_CACHE", str(checkout.root / "another cache"))
    again = runner.record(checkout.load(), checkout.parameters(samples=3), jobs=1)
    assert checkout.traced == [0, 1, 2], "two stood in the record"
    assert [trial.date for trial in again.trials[:2]] == [trial.date for trial in first.trials]
    assert {trial.commit for trial in again.trials} == {"unknown"}
    monkeypatch.setenv("GRADLEAK_CACHE", str(checkout.root / "a third cache"))
    checkout.edit(*CHANGED)
    runner.record(checkout.load(), checkout.parameters(samples=1), jobs=1)
    assert checkout.traced == [0, 1, 2, 0], "what other code computed is no trial of today's"


def test_a_record_takes_its_own_confirmed_trials(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recorded(checkout)
    assert call(capsys, "verify", "--spot", "3", "--jobs", "1")[0] == 0
    monkeypatch.setenv("GRADLEAK_CACHE", str(checkout.root / "another cache"))
    # Neither a package that records have named since nor this one's own version says that the code is another.
    versions = records.versions() | {"gradleak": "another", "named since": "1"}
    monkeypatch.setattr(records, "versions", lambda: versions)
    begun = len(checkout.traced)
    more = runner.record(checkout.load(), checkout.parameters(samples=len(before.trials) + 1), jobs=1)
    assert checkout.traced[begun:] == [len(before.trials)], "the others stood in the record"
    assert more.sources == before.sources
    assert records.state(more) == "confirmed", "not all of it was computed with today's code"
    monkeypatch.setattr(records, "versions", lambda: versions | {"torch": "another"})
    begun = len(checkout.traced)
    runner.record(checkout.load(), checkout.parameters(samples=1), jobs=1)
    assert checkout.traced[begun:] == [0], "another torch may give other numbers"


def test_draws_are_random_seeded_and_within_the_limit() -> None:
    trials = [Trial(inputs={"number": n, "device": "cpu"}, rows=[], seconds=n) for n in range(20)]
    record = Record.model_construct(study="toy", trials=trials)
    draws = [[one.inputs["number"] for one in spot.draw(record, 3, 9.0, seed)] for seed in range(20)]
    assert draws == [[one.inputs["number"] for one in spot.draw(record, 3, 9.0, seed)] for seed in range(20)]
    assert {number for drawn in draws for number in drawn} == set(range(10))
    assert len(spot.draw(record, 99, 4.0, 0)) == 5
    with pytest.raises(InputError, match="at least 1 trial; got 0"):
        spot.draw(record, 0, 1.0, 0)


def test_times_are_not_compared_and_rounding_is_allowed(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    study = checkout.load()
    monkeypatch.setattr(study.module, "TIMES", ("rate",), raising=False)
    row = {"x": 1.0, "n": 3, "good": True, "seconds": 1.0, "rate": 5.0, "cpu_seconds": 2.0, "nan": math.nan}
    row |= {"list": [1.0, {"a": 2.0}], "word": "a", "nothing": None, "error": 3e-16}

    def differences(**changes: object) -> list[str]:
        one, other = ([row], [row | changes])
        return [
            text.split(" is ")[0]
            for text in spot.compare(
                study, Trial(inputs={"n": 1}, rows=one, seconds=1), Trial(inputs={"n": 1}, rows=other, seconds=2)
            )
        ]

    assert differences(seconds=9.0, rate=1.0, cpu_seconds=7.0, x=1.0 + 5e-7, list=[1.0, {"a": 2.0 - 1e-7}]) == []
    assert differences(error=4e-16) == []
    assert differences(error=4e-12) == ["error"]
    assert differences(x=1.00001, n=4, good=False) == ["x", "n", "good"]
    assert differences(n=3.0, good=1, nan=1.0, nothing=0.0) == ["n", "good", "nan", "nothing"]
    assert differences(list=[1.0, {"a": 3.0}]) == ["list[1].a"]
    assert differences(list=[1.0], word="b", new=1) == ["list", "word", "new"]
    short = spot.compare(study, Trial(inputs={}, rows=[row], seconds=1), Trial(inputs={}, rows=[], seconds=1))
    assert short == ["0 rows where 1 are recorded ()"]


def test_every_study_names_times_that_it_has() -> None:
    named = {name: getattr(studies.load(name).module, "TIMES", ()) for name in studies.names()}
    assert named["what-matching-costs"] == ("rate", "gain")
    assert all(isinstance(times, tuple) for times in named.values())
