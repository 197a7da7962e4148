"""Records: written and read without loss, refused when damaged, and silent about the machine."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak import paths
from gradleak.book import generated
from gradleak.book.pages import PageRun
from gradleak.errors import InputError, MissingData, StorageError
from gradleak.runs import records
from gradleak.runs.plain import plain
from gradleak.runs.records import Provenance, Record, Trial
from gradleak.show import provenance
from gradleak.studies import Study
from tests.checkout import PARTS, Toy

PROVENANCE = Provenance(
    device="CPU, x86_64", versions={"torch": "2.11"}, commit="abc", date="2026-01-02", seed=1, wall_seconds=1.5, data=[]
)
values = st.recursive(
    # The words for what JSON lacks come back as numbers: no column uses them as text.
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text().filter(lambda t: t not in ("nan", "inf", "-inf")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
rows = st.dictionaries(st.text(max_size=5), values, max_size=4)


def record(*trials: Trial, **changes: object) -> Record:
    facts = {"study": "toy", "profile": "quick", "parameters": {"samples": 2, "seed": 1}, "provenance": PROVENANCE}
    return Record(**{**facts, "trials": list(trials), **changes})


def trial(number: int, *found: dict[str, object], seconds: float = 1.0) -> Trial:
    return Trial(inputs={"number": number, "seed": 1}, rows=list(found), seconds=seconds)


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
    other = PROVENANCE.model_copy(update={"wall_seconds": 9.0, "date": "2027-01-01"})
    same = record(trial(1, {"x": 1.0}, seconds=7.0), trial(2, {"x": math.nan}), provenance=other)
    assert first.digest() == same.digest()
    digests = {
        record(trial(1, {"x": 1.0}), trial(2, {"x": math.nan}), **change).digest()
        for change in ({"study": "other"}, {"parameters": {"samples": 3}})
    }
    digests |= {record(trial(1, {"x": x}), trial(2, {"x": math.nan})).digest() for x in (1.0 + 2**-52, math.inf)}
    digests |= {first.digest(), record(trial(2, {"x": math.nan}), trial(1, {"x": 1.0})).digest()}
    assert len(digests) == 6


def test_frame_joins_inputs_and_a_row_wins() -> None:
    frame = record(trial(1, {"x": 1.0}, {"x": 2.0, "seed": 5}), trial(2, {"x": 3.0})).frame()
    assert frame["x"].tolist() == [1.0, 2.0, 3.0]
    assert frame["number"].tolist() == [1, 1, 2]
    assert frame["seed"].tolist() == [1, 5, 1]


def test_rows_are_those_of_one_kind_of_experiment(checkout: Toy) -> None:
    checkout.rewrite(*PARTS)
    kinds = checkout.load().experiments
    trials = [
        Trial(inputs={"part": part, "number": number}, rows=[{"x": number / 2}], seconds=1.0)
        for number, part in enumerate("aba")
    ]
    found = record(*trials).rows(kinds["a"])
    assert found[["part", "number", "x"]].to_numpy().tolist() == [["a", 0, 0.0], ["a", 2, 1.0]]
    whole = record(trial(1, {"x": 1.0}), trial(2, {"x": 3.0}))
    assert whole.rows(kinds[""])["x"].tolist() == [1.0, 3.0], "all, where a study has no parts"
    own = record(*trials)
    given = own.rows(kinds["b"])
    given["x"] = 9.0
    assert own.rows(kinds["b"])["x"].tolist() == [0.5], "who changes what was given changes no record"


def test_plain_converts_numbers_and_refuses_the_rest() -> None:
    found = plain({"a": np.float64(0.5), "b": torch.tensor([1, 2]), "c": (np.bool_(True), torch.tensor(2.0))}, "row")
    assert json.dumps(found) == '{"a": 0.5, "b": [1, 2], "c": [true, 2.0]}'
    with pytest.raises(InputError, match=r"^row\.a\[1\] is a set: a record holds"):
        plain({"a": [1, {2}]}, "row")


def test_extra_fields_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write(record(trial(1, {"x": 1.0})), path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"host": "here"}))
    with pytest.raises(InputError, match=r"^record\.json is not a record: host: Extra inputs are not permitted$"):
        records.read(path)
    del content["trials"][0]["seconds"]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"trials\.0\.seconds: Field required$"):
        records.read(path)


EDITS = {
    "rows": {"trials": [{"inputs": {"number": 1, "seed": 1}, "rows": [{"x": 2.0}], "seconds": 1.0}]},
    "parameters": {"parameters": {"samples": 20000, "seed": 1}},
    "sources": {"sources": "today's"},
    "rules": {"rules": {"claim": {"at_most": 9}}},
    "sha256": {"sha256": "0" * 64},
    "a wrong type": {"sha256": 1},
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_record_that_was_edited_is_refused(edit: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write(record(trial(1, {"x": 1.0}), sources="12ab", rules={"claim": {"at_most": 1}}), path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content, indent=4))
    records.read(path)  # spaces and line breaks are no content
    path.write_text(json.dumps(content | EDITS[edit]))
    with pytest.raises(InputError, match=r"^record\.json was edited: its content does not have the SHA-256 that it"):
        records.read(path)
    del content["sha256"]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"^record\.json was edited, or an earlier version wrote it: it does not"):
        records.read(path)


def test_damaged_and_missing_records(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write(record(trial(1, {"x": 1.0})), path)
    path.write_text(path.read_text()[:200])
    with pytest.raises(InputError, match=r"^record\.json is not a record: [^\n]+$"):
        records.read(path)
    with pytest.raises(MissingData, match=r"there is no record nothing\.json"):
        records.read(tmp_path / "nothing.json")
    with pytest.raises(StorageError, match="cannot read the record"):
        records.read(tmp_path)


def test_writing_replaces_the_whole_file_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    records.write(record(trial(1, {"x": 1.0})), path)
    before = path.read_bytes()
    assert b'\n   {"x": 1.0}\n' in before, "one line a row"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"^cannot write record\.json into .*: No space left on device$"):
        records.write(record(trial(2, {"x": 2.0})), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_commit_follows_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_ROOT", str(tmp_path))
    for folder in ("notebooks", "gradleak", "results"):
        (tmp_path / folder).mkdir()
    assert records.provenance("cpu", 1, 0.0, []).commit == "unknown"
    (tmp_path / "gradleak" / "a.py").write_text("")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert re.fullmatch("[0-9a-f]{7,}", records.provenance("cpu", 1, 0.0, []).commit)
    (tmp_path / "results" / "new.json").write_text("{}")
    assert re.fullmatch("[0-9a-f]{7,}", records.provenance("cpu", 1, 0.0, []).commit), "a result changes no result"
    (tmp_path / "gradleak" / "a.py").write_text("x = 1\n")
    assert records.provenance("cpu", 1, 0.0, []).commit.endswith("+changes")


def test_recorded_results_and_the_provenance_table(checkout: Toy) -> None:
    assert records.recorded("toy") is None
    kept = record(trial(1, {"x": 1.0}), provenance=PROVENANCE.model_copy(update={"data": ["digits: scikit-learn"]}))
    records.write(kept, records.file_of("toy"))
    assert records.recorded("toy") == kept
    shown = provenance.table(kept)
    text = shown._repr_markdown_()
    assert list(shown.frame.columns) == ["", "this run", "recorded"]
    total = sum(one.seconds for one in kept.trials)
    assert f"{len(kept.trials)}, {total:.1f} s in all" in text.replace("\\", "")
    assert shown.name == "tab-toy-provenance"
    for word in ("CPU, x86", "torch 2.11", "digits: scikit-learn", "2026-01-02", kept.digest()[:16], "samples = 2"):
        assert word in text.replace("\\", ""), word
    records.file_of("toy").unlink()
    assert "recorded" not in provenance.table(kept).frame


def on_gpu(own: Record, **changes: object) -> Record:
    """Return a record as if its trials had run on a GPU."""
    trials = [one.model_copy(update={"inputs": one.inputs | {"device": "cuda"}}) for one in own.trials]
    facts = own.provenance.model_copy(update={"device": "NVIDIA Test, driver 1, float32 by IEEE"})
    parameters = own.parameters | changes
    return own.model_copy(update={"trials": trials, "provenance": facts, "parameters": parameters})


SCALE = {"samples": 4, "words": ["a", "b"], "rounded": False, "seed": 1, "device": "auto"}


@pytest.mark.parametrize(
    ("changes", "drawn"),
    [
        ({}, "a CPU"),
        ({"device": "cuda", "seed": 2}, "a CPU"),
        ({"samples": 8}, "a GPU"),
        ({"samples": 2}, "a CPU"),
        ({"words": ["b", "c", "a"]}, "a GPU"),
        ({"words": ["a", "c", "d"]}, "a CPU"),
        ({"samples": 8, "words": ["a"]}, "a CPU"),
        ({"samples": 8, "rounded": True}, "a CPU"),
        ({"samples": 8, "more": 1}, "a CPU"),
    ],
)
@pytest.mark.usefixtures("checkout")
def test_the_gpus_record_is_drawn_where_its_scale_is_larger(changes: dict[str, object], drawn: str) -> None:
    here = record(trial(1, {"x": 1.0}), parameters=SCALE)
    there = on_gpu(here, **changes)
    records.write(there, records.file_of("toy", accelerated=True))
    assert records.recorded("toy") == there, "there is no other"
    records.write(here, records.file_of("toy"))
    kept = records.recorded("toy")
    assert kept is not None
    assert kept.where == drawn
    assert records.all_recorded("toy") == [here, there]
    assert records.beside(kept) == (there if drawn == "a CPU" else here)


@pytest.mark.usefixtures("checkout")
def test_a_page_says_on_which_device_its_record_was_made_and_names_the_other() -> None:
    own = record(trial(1, {"x": 1.0}), parameters=SCALE)
    records.write(own, records.file_of("toy"))
    text = provenance.shown(own)._repr_markdown_()
    assert "recorded on a CPU: 4 draws." in text
    assert "beside" not in text
    assert list(provenance.table(own).frame.columns) == ["", "this run", "recorded"]
    records.write(on_gpu(own, samples=8), records.file_of("toy", accelerated=True))
    text = provenance.shown(own)._repr_markdown_()
    assert "recorded on a GPU: 8 draws. A run recorded on a CPU is kept as well and is not shown." in text
    table = provenance.table(own).frame.set_index("").loc["device"].to_dict()
    assert table["recorded"].startswith("NVIDIA Test")
    assert table["also recorded, not shown"] == "CPU, x86_64"


@pytest.mark.usefixtures("checkout")
def test_a_page_says_what_is_to_know_of_the_copies_that_it_ran_on() -> None:
    data = ["cifar10: $GRADLEAK_DATA/cifar10.npz", "imagenet-sample: $GRADLEAK_DATA/imagenet_sample.npz"]
    own = record(trial(1), provenance=PROVENANCE.model_copy(update={"data": data}))
    text = provenance.table(own).frame.set_index("").loc["data", "this run"]
    assert "cifar10.npz (lossless; part of the training set and the first of the test set); imagenet" in text
    assert text.endswith("imagenet_sample.npz (one image a class, one split only)")
    whole = PROVENANCE.model_copy(update={"data": ["cifar10: torchvision"]})
    text = provenance.table(record(trial(1), provenance=whole)).frame.set_index("").loc["data", "this run"]
    assert text == "cifar10: torchvision"


def test_a_record_of_many_runs_shows_their_span() -> None:
    days = ("2026-01-05T10:00:00Z", None, "2026-01-03T23:59:59Z")
    trials = [trial(n).model_copy(update={"date": day, "commit": day and "def"}) for n, day in enumerate(days)]
    assert records.span(record(*trials)) == ["2026-01-02", "2026-01-05"], "the day without one is the record's own"
    assert records.span(record(trials[0])) == ["2026-01-05"]
    assert records.span(record(trials[1])) == ["2026-01-02"]


def test_what_is_not_known_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write(record(trial(1, {"x": None})), path)
    content = json.loads(path.read_text())
    assert set(content) == {"study", "profile", "parameters", "provenance", "sha256", "trials"}
    assert set(content["trials"][0]) == {"inputs", "seconds", "rows"}
    assert content["trials"][0]["rows"] == [{"x": None}]
    dated = trial(1).model_copy(update={"date": "2026-01-05T10:00:00Z", "commit": "def"})
    full = record(dated, sources="12ab", rules={"claim": {"at_most": 1.5}})
    records.write(full, path)
    assert records.read(path) == full


def test_recorded_results_of_the_checkout_can_be_read() -> None:
    files = list(paths.results().glob("*/*.json"))
    assert files
    for file in files:
        kept = records.read(file)
        assert file == records.file_of(kept.study, accelerated=kept.accelerated)


def test_the_status_page_lists_the_record_that_is_not_shown(toy: Study) -> None:
    own = record(trial(1, {"x": 1.0}), parameters=SCALE)
    runs = {"toy": PageRun(toy.notebook, toy.notebook, 1.0, cached=False)}
    assert "not recorded" in generated._status([toy], runs, {"toy": own})
    records.write(own, records.file_of("toy"))
    records.write(on_gpu(own), records.file_of("toy", accelerated=True))
    first, second = generated._status([toy], runs, {"toy": own}).splitlines()[-3:-1]
    assert "| CPU | 2026-01-02 | 1 |" in first
    assert second.startswith(
        "| (also recorded, not shown) | [stale]{.badge .badge-stale} {bookfile}`JSON <records/toy2020/"
    )
    assert "| NVIDIA Test |" in second


def test_a_copy_with_other_trials_has_lines_of_its_own() -> None:
    record = records.recorded("theorem1")
    assert record is not None
    first = record.trials[:1]
    before = len(record.lines), len(record.digests), len(record.frame())
    copied = record.model_copy(update={"trials": first})
    rows = len(first[0].rows)
    assert (len(copied.lines), len(copied.digests), len(copied.frame())) == (rows, 1, rows)
    assert (len(record.lines), len(record.digests), len(record.frame())) == before
