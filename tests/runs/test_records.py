"""Records: written and read without loss, refused when damaged, and silent about the machine."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.errors import InputError, MissingData, StorageError
from gradleak.runs import records
from gradleak.runs.records import Accepted, Machine, Record, Trial
from gradleak.show import provenance

HERE = Machine(device="CPU, x86_64", versions={"torch": "2.11"})
THERE = Machine(device="NVIDIA Test, 1", processor="Test EPYC", instructions="AVX512", versions={"torch": "2.15"})
# The words for what JSON lacks come back as numbers: no column uses them as text.
words = st.text().filter(lambda text: text not in ("nan", "inf", "-inf"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
rows = st.dictionaries(st.text(max_size=5), values, max_size=4)


def record(*trials: Trial, **changes: object) -> Record:
    facts = {"study": "toy", "profile": "quick", "parameters": {"samples": 2, "seed": 1}}
    return Record(**{**facts, "trials": list(trials), **changes})


def trial(number: int, *found: dict[str, object], seconds: float = 1.0) -> Trial:
    facts = {"date": "2026-01-02T10:00:00Z", "commit": "abc", "machine": HERE}
    return Trial(inputs={"number": number, "seed": 1}, rows=list(found), seconds=seconds, **facts)


@settings(max_examples=20)
@given(found=st.lists(rows, max_size=3), inputs=rows)
def test_what_is_written_is_read(found: list[dict[str, object]], inputs: dict[str, object], tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / "record.json"
    before = record(Trial(inputs=inputs, rows=found, seconds=0.25), trial(2))
    records.write(before, path)
    after = records.read(path)
    assert after.digest() == before.digest()
    assert repr(after.trials[0].rows) == repr(before.trials[0].rows)


def test_digest_sees_content_and_nothing_else() -> None:
    first = record(trial(1, {"x": 1.0}), trial(2, {"x": math.nan}))
    elsewhere = trial(1, {"x": 1.0}, seconds=7.0).model_copy(update={"machine": THERE, "date": "2027-01-01"})
    assert first.digest() == record(elsewhere, trial(2, {"x": math.nan}), data=["digits: scikit-learn"]).digest()
    others = [first.model_copy(update=one) for one in ({"study": "other"}, {"parameters": {}}, {"trials": [elsewhere]})]
    others += [record(trial(1, {"x": x}), trial(2, {"x": math.nan})) for x in (1.0 + 2**-52, math.inf)]
    assert len({one.digest() for one in (first, *others)}) == 6


WHOLE = '{"study": "toy", "profile": "quick", "parameters": {}, "machines": [{}], "trials": [{"inputs": {}, "rows": []'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "[^\n]+") for text in ("[" * 100_000, '{"a":' * 100_000, "[]", "{}", "null", "", WHOLE)),
        (f'{WHOLE}, "machine": 0, "seconds": 1}}], "host": "here"}}', "host: Extra inputs are not permitted"),
        (f'{WHOLE}, "machine": 0}}]}}', r"trials\.0\.seconds: Field required"),
    ],
)
def test_a_damaged_or_missing_record_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"^record\.json is not a record: {message}$"):
        records.read(path)
    with pytest.raises(MissingData, match=r"there is no record nothing\.json"):
        records.read(tmp_path / "nothing.json")
    with pytest.raises(StorageError, match="cannot read the record"):
        records.read(tmp_path)


def test_commit_follows_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_ROOT", str(tmp_path))
    assert records.commit() == "unknown"
    for folder in ("notebooks", "gradleak", "results"):
        (tmp_path / folder).mkdir()
    (tmp_path / "gradleak" / "a.py").write_text("")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert re.fullmatch("[0-9a-f]{7,}", records.commit())
    (tmp_path / "results" / "new.json").write_text("{}")
    assert re.fullmatch("[0-9a-f]{7,}", records.commit()), "a result changes no result"
    (tmp_path / "gradleak" / "a.py").write_text("x = 1\n")
    assert records.commit().endswith("+changes")


@pytest.mark.usefixtures("checkout")
def test_recorded_results_and_the_provenance_table() -> None:
    assert records.recorded("toy") is None
    kept = record(trial(1, {"x": 1.0}), data=["imagenet-sample: $GRADLEAK_DATA/imagenet_sample.npz"])
    records.write(kept, records.file_of("toy"))
    assert records.recorded("toy") == kept
    shown = provenance.table(kept)
    assert list(shown.frame.columns) == ["", "this run", "recorded"]
    text = shown._repr_markdown_().replace("\\", "")
    notes = "imagenet_sample.npz (one image a class, one split only)"
    for word in ("1 trial, 1.0 s in all", "CPU, torch 2.11", notes, "2026-01-02", kept.digest()[:16], "samples = 2"):
        assert word in text, word


def test_every_trial_says_where_it_ran_and_each_machine_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    on_gpu = trial(2, {"x": 2.0}).model_copy(
        update={"machine": THERE, "golden": "12ab", "date": "2026-01-05T10:00:00Z", "inputs": {"device": "cuda"}}
    )
    accepted = Accepted(golden="12ab", why="a column has a new name")
    facts = {"rules": {"claim": {"at_most": 1.5}}, "planned": 4, "waiting": [{"number": 4}], "accepted": accepted}
    both = record(trial(1, {"x": 1.0}), on_gpu, trial(3, {"x": None}), **facts)
    records.write(both, path)
    assert '\n   {"x": 1.0}\n' in path.read_text(), "one line a row"
    content = json.loads(path.read_text())
    assert [one["machine"] for one in content["trials"]] == [0, 1, 0]
    assert len(content["machines"]) == 2
    assert content["machines"][0] == {"device": "CPU, x86_64", "versions": {"torch": "2.11"}}, "only what is known"
    after = records.read(path)
    assert after == both
    assert (after.trials[1].machine, after.size) == (THERE, "3 of 4 trials")
    assert after.where == "CPUs and GPUs"
    assert after.days == ["2026-01-02", "2026-01-05"]
