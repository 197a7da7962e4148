"""Records are confirmed by trials that are run again, on several machines, or it is said what differs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from gradleak import claims, devices, studies
from gradleak.book import checked, draws, spot
from gradleak.book.draws import Budget
from gradleak.claims.behind import trials_behind
from gradleak.errors import InputError, StorageError
from gradleak.runs import comparing, confirmations, experiments, records, runner, standing
from gradleak.runs.confirmations import Confirmation, Summary
from gradleak.runs.records import Record, Trial
from gradleak.show import provenance
from tests.checkout import PARTS, Toy
from tests.test_cli import call

# Other code of the same meaning, so that a record made before is not made with today's code.
CHANGED = ("torch.rand(100_003", "torch.rand(100_000 + 3")
KINDS = ('PLACE = "Table 1"\n', 'PLACE = "Table 1"\nCOLUMNS = {"value": kinds.measured(absolute=1)}\n')
IMPORT = ("from gradleak import studies\n", "from gradleak import studies\nfrom gradleak.runs import kinds\n")


def kept() -> Record:
    """Return the toy's record."""
    found = records.recorded("toy")
    assert found is not None
    return found


def recorded(checkout: Toy, *edits: tuple[str, str]) -> Record:
    """Record the toy, and let its trials be computed with other code of the same meaning since."""
    if edits:
        checkout.rewrite(*edits)
    runner.record(checkout.load(), checkout.parameters(), rules=claims.rules("toy"), jobs=1)
    assert standing.state(kept()) == "current"
    checkout.rewrite(*edits, CHANGED)
    assert standing.state(kept()) == "stale"
    assert "none of them was run again" in standing.told(kept())
    return kept()


def lines() -> list[Confirmation]:
    """Return what was appended to the toy's confirmations."""
    return confirmations.read(standing.confirmations_of(kept()))


def summaries() -> list[Summary]:
    """Return what the machines have confirmed of the toy."""
    return standing.confirmed_by(kept())


def elsewhere(monkeypatch: pytest.MonkeyPatch, name: str = "Another processor") -> None:
    """Let this be another machine."""
    monkeypatch.setattr(devices, "processor", lambda: name)


def test_a_check_confirms_and_never_changes_the_record(checkout: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(checkout, *PARTS)
    before, begun = records.file_of("toy").read_bytes(), len(checkout.traced)
    code, out, err = call(capsys, "verify", "toy", "--spot", "--jobs", "1")
    assert code == 0, out
    assert out.startswith("toy: confirmed: 2 of 4 trials (")
    assert "2 of 2 parts and 1 of 1 claims: 2 the same\n" in out
    assert out.endswith("1 records: 0 current, 1 confirmed, 0 differs, 0 stale\n")
    total = (
        "They belong to 1 of 1 records, cover 2 of 2 parts of these records, and affect 1 of 1 claims. "
        "0 of these records differ"
    )
    assert total in out
    assert total in checked.text([checkout.load()])
    assert "toy: 2 trials of its parts; 0.0 of 10.0 minutes used" in err
    assert len(checkout.traced) == begun + 2
    assert records.file_of("toy").read_bytes() == before
    (line,) = lines()
    machine = line.machine
    assert (machine.processor, machine.instructions) == (devices.processor(), devices.instructions())
    assert (machine.torch, machine.threads, machine.device) == (torch.__version__.partition("+")[0], 1, "cpu")
    assert (line.commit, line.minutes, line.claims, line.all_claims) == ("unknown", 10, ["toy-sum"], 1)
    assert set(line.trials["same"]) <= set(kept().digests)
    assert call(capsys, "verify", "toy", "--spot", "--jobs", "1")[0] == 0
    assert (len(lines()), len(checkout.traced)) == (1, begun + 2), "nothing is left to check on this machine"
    assert "confirmed: 2 of 4 trials, of every part" in standing.told(kept())
    assert "confirmed" in call(capsys, "verify", "toy")[1]


def test_what_was_confirmed_is_the_code_of_then(checkout: Toy) -> None:
    recorded(checkout)
    spot.check([kept()], 1, jobs=1)
    assert standing.state(kept()) == "confirmed"
    checkout.edit("torch.rand(100_003", "torch.rand(100_001 + 2")
    assert standing.state(kept()) == "stale"
    checkout.edit("torch.rand(100_003", "torch.rand(100_003")
    assert standing.state(kept()) == "current"
    spot.check([kept()], 1, jobs=1)
    assert standing.state(kept()) == "current", "a current record can be checked too"
    assert len(summaries()) == 1
    assert standing.state(kept().model_copy(update={"sources": None})) == "confirmed"


def test_other_rows_are_shown_and_make_it_differ(checkout: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(checkout)
    checkout.rewrite(("self.scale * torch.rand(100_003", "1.01 * self.scale * torch.rand(100_003"))
    before = records.file_of("toy").read_bytes()
    code, out, _ = call(capsys, "verify", "--all", "--spot", "--jobs", "1")
    assert code == 1
    assert out.startswith("toy: differs: 1 of 4 trials (")
    assert "measured columns that differ beyond tolerance: 2\n  toy: sum: " in out
    assert " is recorded, 1.0e-02 of it, row 1 (number=" in out
    assert "word:" not in out
    assert records.file_of("toy").read_bytes() == before
    assert "differs: trials run again on " in standing.told(kept())
    code, out, _ = call(capsys, "verify", "--stale")
    assert code == 1
    assert out.startswith("toy: differs: ")
    assert out.endswith("1 records: 0 current, 0 confirmed, 1 differs, 0 stale\n")
    begun = len(checkout.traced)
    call(capsys, "verify", "--all", "--spot", "--jobs", "1")
    assert len(checkout.traced) == begun + 1, "what differed is run again: its columns may have another kind since"


def test_what_a_trial_raises_is_shown(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(checkout, *PARTS)
    monkeypatch.setenv("TOY_FAILS", str(draws.for_parts(kept(), [])[0]))
    code, out, _ = call(capsys, "verify", "toy", "--spot", "--jobs", "1")
    assert code == 1
    assert "1 the same, 1 different" in out
    assert "errors: 1\n  toy: ValueError: the toy broke\n" in out
    assert "ValueError: the toy broke" in checked.text([checkout.load()])
    monkeypatch.delenv("TOY_FAILS")
    assert call(capsys, "verify", "toy", "--spot", "--jobs", "1")[0] == 0, "the latest check of a trial counts"


def test_data_that_are_missing_are_said_and_count_as_no_difference(
    checkout: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(checkout)
    missing = "from gradleak.errors import MissingData; raise MissingData('no such data here')"
    checkout.edit("time.sleep(self.pause)", missing)
    code, out, _ = call(capsys, "verify", "toy", "--spot", "--jobs", "1")
    assert code == 1
    assert out.startswith("toy: stale: no trial was run again; not run again: the whole study (no such data here)\n")
    assert lines() == []


def test_another_machine_is_kept_beside_the_first(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(checkout)
    spot.check([kept()], 1, jobs=1)
    first = standing.confirmations_of(kept()).read_bytes()
    elsewhere(monkeypatch)
    spot.check([kept()], 1, jobs=1)
    assert standing.confirmations_of(kept()).read_bytes().startswith(first)
    assert [one.machine.processor for one in summaries()] == [lines()[0].machine.processor, "Another processor"]
    assert [len(one.trials) for one in summaries()] == [1, 1]
    checkout.rewrite(CHANGED, ("value=self.scale * self.number", "value=self.scale * self.number + (self.number == 0)"))
    elsewhere(monkeypatch, "A third processor")
    spot.check([kept()], 1, jobs=1)
    table = provenance.table(kept()).frame.set_index("")["recorded"]
    assert "A third processor, " in table["trials run again"]
    assert table["processor"] == f"{kept().provenance.processor}, {devices.instructions()}"


def test_a_second_machine_that_differs_is_seen_on_a_current_record(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.record(checkout.load(), checkout.parameters(), rules=claims.rules("toy"), jobs=1)
    spot.check([kept()], 1, jobs=1)
    assert standing.state(kept()) == "current"
    elsewhere(monkeypatch)
    plain = runner._work
    monkeypatch.setattr(runner, "_work", lambda *given: _shifted(plain(*given)))
    spot.check([kept()], 1, jobs=1)
    assert standing.state(kept()) == "differs"
    assert [one.differs for one in summaries()] == [False, True]
    text = checked.text([checkout.load()])
    assert "| toy | Another processor, " in text
    assert "| measured | sum | " in text
    monkeypatch.undo()


def _shifted(result: tuple[int, Trial]) -> tuple[int, Trial]:
    place, trial = result
    return place, trial.model_copy(update={"rows": [row | {"sum": row["sum"] * 1.01} for row in trial.rows]})


def test_a_record_that_grows_is_not_confirmed_for_what_is_new(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(checkout, *PARTS)
    checkout.rewrite(*PARTS, ("(A, B)[number % 2]", "(A, B, C)[number % 2 if number < 4 else 2]"), CHANGED)
    spot.check([kept()], 1, jobs=1)
    assert standing.state(kept()) == "confirmed"
    versions = records.versions() | {"gradleak": "another", "named since": "1"}
    monkeypatch.setattr(records, "versions", lambda: versions)
    monkeypatch.setenv("GRADLEAK_CACHE", str(checkout.root / "another cache"))
    before, begun = kept(), len(checkout.traced)
    more = runner.record(checkout.load(), checkout.parameters(samples=5), rules=claims.rules("toy"), jobs=1)
    assert checkout.traced[begun:] == [4], "the others stood in the record"
    assert more.sources == before.sources
    assert standing.state(kept()) == "stale"
    assert standing.told(kept()).endswith("no trial of c was run again")
    assert summaries()[0].untouched == ["c"]
    spot.check([kept()], 1, jobs=1)
    assert checkout.traced[begun:] == [4, 4]
    assert standing.state(kept()) == "confirmed"
    assert len(summaries()[0].trials) == 3
    monkeypatch.setattr(records, "versions", lambda: versions | {"torch": "another"})
    begun = len(checkout.traced)
    runner.record(checkout.load(), checkout.parameters(samples=1), rules=claims.rules("toy"), jobs=1)
    assert checkout.traced[begun:] == [0], "another torch may give other numbers"


def test_a_record_with_other_rows_loses_its_confirmation(checkout: Toy) -> None:
    recorded(checkout)
    spot.check([kept()], 1, jobs=1)
    assert standing.state(kept()) == "confirmed"
    (place,) = (n for n, digest in enumerate(kept().digests) if digest in lines()[0].trials["same"])
    trials = list(kept().trials)
    trials[place] = trials[place].model_copy(update={"rows": [{"sum": 1e-9}]})
    records.write(kept().model_copy(update={"trials": trials}), records.file_of("toy"))
    assert standing.state(kept()) == "stale"
    assert summaries() == []


@pytest.mark.parametrize("edited", ["the record", "the confirmations"])
def test_an_edit_by_hand_confirms_nothing_and_is_said(
    checkout: Toy, capsys: pytest.CaptureFixture[str], edited: str
) -> None:
    recorded(checkout)
    spot.check([kept()], 1, jobs=1)
    assert standing.state(kept()) == "confirmed"
    file = records.file_of("toy") if edited == "the record" else standing.confirmations_of(kept())
    old, new = ('"sum": ', '"sum": 1') if edited == "the record" else ('"same"', '"within"')
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=rf"^{file.name}(, line 1,)? was edited: "):
        standing.state(kept())
    for words in (["verify"], ["verify", "--stale"], ["verify", "--spot", "toy"], ["record", "toy"], ["book"]):
        code, _, err = call(capsys, *words)
        assert code == 2
        assert err.startswith(f"gradleak: {file.name}")
        assert err.count("\n") == 1


def test_a_changed_verdict_is_no_confirmation(checkout: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(checkout, IMPORT, KINDS)
    shifted = ("value=self.scale * self.number", "value=self.scale * self.number + 0.9 * (self.number == 3)")
    checkout.rewrite(IMPORT, KINDS, CHANGED, shifted)
    found = spot.Check(kept(), 1)
    found.run([0, 1], Budget(60), 1)
    assert standing.state(kept()) == "confirmed", "the study lets its values differ by one"
    assert "*No verdict changed on any machine.*" in checked.text([checkout.load()])
    found.run([3], Budget(60), 1)
    assert standing.state(kept()) == "differs"
    (verdict,) = lines()[-1].verdicts
    assert (verdict.claim, verdict.recorded, verdict.found) == ("toy-sum", *_verdicts(0.9))
    assert lines()[-1].trials == {"differs": [kept().digests[3]]}
    assert lines()[0].trials == {"same": [kept().digests[0], kept().digests[1]]}
    assert f"changed verdicts: 1\n  toy: toy-sum: '{verdict.found}' where" in "\n".join(spot.differences([found]))
    assert f"| toy | toy-sum | {verdict.recorded} | {verdict.found} |" in checked.text([checkout.load()])
    another = lines()[-1].model_copy(update={"trials": {"differs": [kept().digests[2]]}})
    (summary,) = confirmations.summaries(kept(), [*lines(), another], another.sources)
    assert summary.verdicts == (verdict,), "two lines with the same change"
    assert call(capsys, "verify", "--stale")[0] == 1


def _verdicts(shift: float) -> tuple[str, str]:
    """Return the verdicts of the toy's claim before and after one of its values is shifted."""
    (claim,) = claims.load("toy")
    own = kept()
    rows = [row | {"value": row["value"] + shift} for row in own.trials[3].rows]
    trials = [*own.trials[:3], own.trials[3].model_copy(update={"rows": rows})]
    fields = {name: getattr(own, name) for name in Record.model_fields} | {"trials": trials}
    before, after = (claims.judge(claim, one).verdict for one in (own, Record(**fields)))
    assert before != after
    return before, after


def test_a_half_written_line_is_left_out_and_ended(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(checkout)
    spot.check([kept()], 1, jobs=1)
    file = standing.confirmations_of(kept())
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:100])
    assert len(lines()) == 1
    elsewhere(monkeypatch)
    spot.check([kept()], 1, jobs=1)
    assert file.read_bytes().startswith(whole + whole[:100] + b"\n{")
    assert [one.machine.processor for one in lines()][1:] == ["Another processor"]
    assert standing.state(kept()) == "confirmed"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    elsewhere(monkeypatch, "A third processor")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"^cannot write toy\.confirmed\.jsonl .*: No space left on device$"):
            spot.check([kept()], 1, jobs=1)
    file.write_text('{"date": 1}\n')
    with pytest.raises(InputError, match=r"^toy\.confirmed\.jsonl, line 1, is no confirmation: date: "):
        lines()


def test_what_was_checked_before_an_interruption_is_kept(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(checkout, *PARTS)
    taken: list[int] = []
    take = spot.Check._take

    def interrupted(self: spot.Check, place: int, found: Any) -> None:
        if taken:
            raise KeyboardInterrupt
        taken.append(place)
        take(self, place, found)

    with monkeypatch.context() as patch:
        patch.setattr(spot.Check, "_take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            spot.check([kept()], 1, jobs=1)
    assert [line.trials for line in lines()] == [{"same": [kept().digests[taken[0]]]}]
    assert standing.state(kept()) == "stale"
    begun = len(checkout.traced)
    spot.check([kept()], 1, jobs=1)
    assert len(checkout.traced) == begun + 1, "the next check goes on from there"
    assert standing.state(kept()) == "confirmed"


def test_long_checks_write_line_after_line(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(checkout, *PARTS)
    monkeypatch.setattr(spot, "SECONDS_A_LINE", 0.0)
    spot.check([kept()], 1, jobs=1)
    assert [len(line.trials["same"]) for line in lines()] == [1, 1]
    assert standing.state(kept()) == "confirmed"


def timed(seconds: list[float], study: str = "toy") -> Record:
    """Return a record whose trials took so long."""
    trials = [
        Trial(inputs={"number": n, "part": "ab"[n % 2], "device": "cpu"}, rows=[{"x": 1.0, "word": "c"}], seconds=one)
        for n, one in enumerate(seconds)
    ]
    return Record.model_construct(study=study, trials=trials)


def test_the_cheapest_trials_are_drawn_part_by_part_and_then_for_the_claims() -> None:
    record = timed([9, 2, 3, 1, 5])
    assert draws.for_parts(record, []) == [3, 2]
    assert draws.for_parts(record, [1]) == [2]
    assert draws.for_parts(record, [0, 1]) == []
    behind = {"one": frozenset({0, 4}), "two": frozenset({4}), "three": frozenset({2, 3}), "four": frozenset({0})}
    assert draws.for_claims(record, behind, [2, 3]) == [(2.5, 4), (9, 0)]
    assert draws.for_claims(record, behind, [0, 2, 4]) == []


def test_the_budget_is_for_all_records_and_for_parts_first(checkout: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    budget = Budget(10)
    chosen = draws.within(budget, [(0, 3), (0, 2), (1, 0), (0, 1)], [timed([9, 2, 3, 1]), timed([7])])
    assert chosen == {0: [3, 2, 1]}, "what does not fit is left out, what follows may fit"
    assert not budget.plan(5)
    assert not budget.over
    budget.spent = 10
    assert budget.over
    recorded(checkout, *PARTS)
    own = kept()
    slow = [one.model_copy(update={"seconds": 100.0 * (n + 1)}) for n, one in enumerate(own.trials)]
    records.write(own.model_copy(update={"trials": slow}), records.file_of("toy"))
    begun = len(checkout.traced)
    code, out, _ = call(capsys, "verify", "toy", "--spot", "--minutes", "2", "--jobs", "1")
    assert code == 1
    assert checkout.traced[begun:] == [0]
    assert out.startswith("toy: stale: 1 of 4 trials (10% of the time), 1 of 2 parts and 1 of 1 claims: 1 the same")
    assert "; not run again: b (the time was too short)\n" in out
    assert call(capsys, "verify", "toy", "--spot", "--minutes", "1", "--jobs", "1")[0] == 1
    assert call(capsys, "verify", "toy", "--spot", "--minutes", "9", "--jobs", "1")[0] == 0
    assert checkout.traced[begun:] == [0, 1]


def test_parts_that_did_not_run_yet_come_before_what_differed(checkout: Toy) -> None:
    recorded(checkout, *PARTS)
    checkout.rewrite(*PARTS, ("self.scale * torch.rand(100_003", "1.01 * self.scale * torch.rand(100_003"))
    found, begun = spot.Check(kept(), 1), len(checkout.traced)
    found.run([0], Budget(60), 1)
    assert found.outcomes == {0: "differs"}
    slow = [one.model_copy(update={"seconds": 100.0 * (n + 1)}) for n, one in enumerate(kept().trials)]
    records.write(kept().model_copy(update={"trials": slow}), records.file_of("toy"))
    spot.check([kept()], 4, jobs=1)
    assert checkout.traced[begun:] == [0, 1], "there is no time for both, and trial 0 is the cheaper one"


def test_claims_that_no_trial_touches_yet_are_said(checkout: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    entry = checkout.claims.read_text()
    for number in (2, 3):
        entry += (
            checkout.claims.read_text()
            .replace("toy-sum", f"toy-{number}")
            .replace("where: {word: a}", f"where: {{word: a, number: {number}}}")
        )
    checkout.claims.write_text(entry)
    recorded(checkout)
    assert trials_behind(claims.load("toy"), kept()) == {
        "toy-sum": frozenset(range(4)),
        "toy-2": frozenset({2}),
        "toy-3": frozenset({3}),
    }
    slow = [one.model_copy(update={"seconds": 10.0 * (n + 1)}) for n, one in enumerate(kept().trials)]
    records.write(kept().model_copy(update={"trials": slow}), records.file_of("toy"))
    begun = len(checkout.traced)
    code, out, _ = call(capsys, "verify", "toy", "--spot", "--minutes", "0.7", "--jobs", "1")
    assert (code, checkout.traced[begun:]) == (0, [0, 2])
    assert "1 of 1 parts and 2 of 3 claims" in out
    assert "records with claims that are not touched yet: 1\n  toy: toy-3\n" in out
    assert call(capsys, "verify", "toy", "--spot", "--minutes", "0.7", "--jobs", "1")[0] == 0
    assert checkout.traced[begun:] == [0, 2, 3]
    assert len(summaries()[0].claims) == 3


def test_a_check_needs_names_or_all_and_some_time(checkout: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--spot"], ["toy", "--spot", "--all"]):
        code, _, err = call(capsys, "verify", *words)
        assert (code, err) == (2, "gradleak: --spot needs either names of studies or --all\n")
    assert call(capsys, "verify", "--all")[2] == "gradleak: --all is an option of --spot: give both\n"
    assert call(capsys, "verify", "--device", "cuda")[2] == "gradleak: --device is an option of --spot: give both\n"
    assert "unknown study 'tyo'" in call(capsys, "verify", "tyo", "--spot")[2]
    for minutes in ("0", "-1", "nan"):
        code, _, err = call(capsys, "verify", "--all", "--spot", "--minutes", minutes)
        assert (code, err) == (2, f"gradleak: the minutes of a spot check must be positive; got {minutes}\n")
    code, out, _ = call(capsys, "verify", "--all", "--spot")
    assert (code, out) == (0, "0 records: 0 current, 0 confirmed, 0 differs, 0 stale\n")
    assert checked.text([checkout.load()]) == "*No recorded trial was run again with today's code yet.*\n"


def test_the_instructions_are_those_that_torch_is_held_to() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from gradleak import devices; print(devices.instructions(), devices.processor())"],
        env=os.environ | {"ATEN_CPU_CAPABILITY": "default"}, capture_output=True, text=True, check=True,
    ).stdout.split(None, 1)  # fmt: skip
    assert found[0] == "DEFAULT"
    assert found[1].strip() == devices.processor()
    assert confirmations.this_machine(1).instructions == devices.instructions()


def _pretend(monkeypatch: pytest.MonkeyPatch, name: str = "A card") -> None:
    """Let there be a GPU on which the toy runs: the toy itself works on the CPU."""
    monkeypatch.setattr(experiments, "resolve_device", lambda device: "cpu" if device == "cpu" else "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    monkeypatch.setattr(devices, "described", lambda device: f"{name}, driver 1")


def test_a_gpus_record_lies_beside_the_cpus(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    here = runner.record(checkout.load(), checkout.parameters(samples=2), rules=claims.rules("toy"), jobs=1)
    with monkeypatch.context() as there:
        _pretend(there)
        found = runner.record(checkout.load(), checkout.parameters(samples=3), rules=claims.rules("toy"), jobs=1)
        assert checkout.traced == [0, 1, 0, 1, 2], "a CPU's trials are none of a GPU's"
        assert (
            runner.record(
                checkout.load(), checkout.parameters(samples=2, device="cpu"), rules=claims.rules("toy"), jobs=1
            ).where
            == "a CPU"
        )
        there.setenv("GRADLEAK_CACHE", str(checkout.root / "another cache"))
        runner.record(checkout.load(), checkout.parameters(samples=3), rules=claims.rules("toy"), jobs=1)
        assert checkout.traced == [0, 1, 0, 1, 2], "all stood in the record"
        _pretend(there, "Another card")
        runner.record(checkout.load(), checkout.parameters(samples=1), rules=claims.rules("toy"), jobs=1)
        assert checkout.traced == [0, 1, 0, 1, 2, 0], "what another card computed is none of this one's"
    assert found.provenance.device.startswith("A card, driver 1, float32 by ")
    assert here.provenance.device.startswith("CPU")
    assert (here.provenance.processor, here.provenance.instructions) == (devices.processor(), devices.instructions())
    there_file = records.file_of("toy", accelerated=True)
    assert kept().digest() == kept().model_copy(update={"trials": here.trials}).digest(), "the CPU's stays what it was"
    assert records.read(there_file).where == "a GPU"


def test_a_gpus_record_is_confirmed_on_a_cpu(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What a library draws from torch's own generator is another number for other inputs, the device among them.
    checkout.rewrite(("float(careless)", "0.0"))
    runner.record(checkout.load(), checkout.parameters(), rules=claims.rules("toy"), jobs=1)
    with monkeypatch.context() as there:
        _pretend(there)
        runner.record(checkout.load(), checkout.parameters(samples=5), rules=claims.rules("toy"), jobs=1)
    assert call(capsys, "verify", "--stale")[1] == "2 records: 2 current, 0 confirmed, 0 differs, 0 stale\n"
    assert "current (GPU)" in call(capsys, "verify")[1]
    checkout.edit("float(careless)", "0.0 * 1")
    code, out, _ = call(capsys, "verify", "--stale")
    assert code == 1
    assert [line.partition(":")[0] for line in out.splitlines()] == ["toy", "toy (GPU)", "2 records"]
    code, out, _ = call(capsys, "verify", "--all", "--spot", "--jobs", "1")
    assert code == 0, out
    assert [line.partition(" trials")[0] for line in out.splitlines()[:2]] == [
        "toy: confirmed: 1 of 4",
        "toy (GPU): confirmed: 1 of 5",
    ]
    again = records.read(records.file_of("toy", accelerated=True))
    assert again.where == "a GPU", "the record itself stays as it was"
    assert standing.confirmations_of(again).name == "toy.gpu.confirmed.jsonl"
    assert standing.confirmed_by(again)[0].machine.device == "cpu"


def test_a_cpus_record_is_confirmed_on_a_gpu(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.rewrite(("float(careless)", "0.0"))
    runner.record(checkout.load(), checkout.parameters(), rules=claims.rules("toy"), jobs=1)
    code, _, err = call(capsys, "verify", "--all", "--spot", "--device", "cuda")
    assert (code, err.count("no GPU is at hand")) == (2, 1)
    with monkeypatch.context() as there:
        _pretend(there)
        devices_of_trials: list[str] = []
        tried = runner.try_trials

        def seen(study: studies.Study, inputs: list[dict[str, Any]], **options: Any) -> Any:
            devices_of_trials.extend(one["device"] for one in inputs)
            return tried(study, inputs, **options)

        there.setattr(runner, "try_trials", seen)
        assert call(capsys, "verify", "--all", "--spot", "--jobs", "1", "--device", "cuda")[0] == 0
        assert set(devices_of_trials) == {"cuda"}
        # What stays on the CPU does so here as well.
        there.setattr(next(iter(checkout.load().experiments.values())), "stays_on_cpu", "it is small")
        assert spot.Check(kept(), 1, "cuda").device == "cpu"
    assert kept().where == "a CPU", "the record itself stays as it was"
    assert [summary.machine.device for summary in summaries()] == ["A card"]


def test_a_record_takes_its_own_current_trials(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    first = runner.record(checkout.load(), checkout.parameters(samples=2), rules=claims.rules("toy"), jobs=1)
    monkeypatch.setenv("GRADLEAK_CACHE", str(checkout.root / "another cache"))
    again = runner.record(checkout.load(), checkout.parameters(samples=3), rules=claims.rules("toy"), jobs=1)
    assert checkout.traced == [0, 1, 2], "two stood in the record"
    assert [trial.date for trial in again.trials[:2]] == [trial.date for trial in first.trials]
    assert {trial.commit for trial in again.trials} == {"unknown"}
    monkeypatch.setenv("GRADLEAK_CACHE", str(checkout.root / "a third cache"))
    checkout.edit(*CHANGED)
    runner.record(checkout.load(), checkout.parameters(samples=1), rules=claims.rules("toy"), jobs=1)
    assert checkout.traced == [0, 1, 2, 0], "what other code computed is no trial of today's"


def test_rows_are_compared_column_by_column_and_times_are_not(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    study = checkout.load()
    monkeypatch.setattr(study.module, "TIMES", ("rate",), raising=False)
    row: dict[str, Any] = {"x": 1.0, "n": 3, "seconds": 1.0, "rate": 5.0, "cpu_seconds": 2.0}
    row |= {"list": [1.0, {"a": 2.0}], "word": "a", "nothing": None, "error": 3e-16}

    def compared(*rows: dict[str, Any]) -> comparing.Comparison:
        one, other = (Trial(inputs={"n": 1}, rows=list(own), seconds=1) for own in ([row] * len(rows), rows))
        return comparing.compare(study, one, other)

    def differences(**changes: Any) -> list[str]:
        return [one.column for one in compared(row | changes).differences if one.outcome == "differs"]

    assert compared(row | {"seconds": 9.0, "rate": 1.0, "cpu_seconds": 7.0}).outcome == "same"
    assert compared(row | {"x": 1.0 + 5e-5, "list": [1.0, {"a": 2.0 - 1e-5}], "error": 4e-16}).outcome == "within"
    assert differences(x=1.001, n=4, nothing=0.0) == ["x", "n", "nothing"]
    assert differences(list=[1.0, {"a": 3.0}]) == ["list[1].a"]
    assert differences(list=[1.0], word="b", new=1) == ["list", "word", "new"]
    (largest,) = compared(row | {"x": 2.0}, row | {"x": 4.0}, row | {"x": 3.0}).differences
    assert (largest.values, largest.row, largest.found, largest.apart) == (3, 2, 4.0, 3.0)
    fewer = comparing.compare(
        study, Trial(inputs={}, rows=[row], seconds=1), Trial(inputs={}, rows=[], seconds=1)
    ).differences
    assert [(one.column, one.recorded, one.found) for one in fewer] == [("number of rows", 1, 0)]
    long = compared(row | {"word": "b" * 1000}).differences[0]
    assert len(long.found) < 100
    assert long.text.startswith("word: 'bbb")


def test_a_study_states_kinds_and_nothing_else(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    study = checkout.load()
    monkeypatch.setattr(study.module, "COLUMNS", {"sum": 0.5}, raising=False)
    with pytest.raises(InputError, match="COLUMNS of 'toy' must map columns to kinds; it does not for sum"):
        comparing.columns(study)


def test_every_study_names_times_and_kinds_of_columns_that_it_has() -> None:
    named = {name: getattr(studies.load(name).module, "TIMES", ()) for name in studies.names()}
    assert named["what-matching-costs"] == ("rate", "gain")
    assert all(isinstance(times, tuple) for times in named.values())
    for name in studies.names():
        stated = comparing.columns(studies.load(name))
        own = records.recorded(name) if stated else None
        if own is not None:
            assert stated.keys() <= own.columns, name
