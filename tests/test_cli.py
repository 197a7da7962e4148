"""The command line: one clear line for every mistake, and what it promises on success."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from gradleak import cli, defenses, early
from gradleak.auditing.findings import MEASURES
from gradleak.book import pages
from gradleak.data import base
from gradleak.errors import GradleakError
from gradleak.hunting import FAMILIES
from gradleak.models import registry
from gradleak.runs import records
from gradleak.studies import Study


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gradleak", *words])
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "verify"),
        (["list"], "theorem1"),
        (["audit", "lenett"], "did you mean 'lenet'?"),
        (["audit", "lenet", "--data", "photo"], "did you mean 'photos'?"),
        (["audit", "lenet", "--defense", "none, clipp/1"], "did you mean 'clip'?"),
        (["audit", "lenet", "--fail-above", "lables=1"], "did you mean 'labels'?"),
        (["hunt", "label"], "did you mean 'labels'?"),
        (["rerun", "theorm1"], "did you mean 'theorem1'?"),
        (["run", "theorem1", "-p", "samples=abc"], "input should be a valid integer"),
        (["run", "theorem1", "-p", "samples=0"], "greater than or equal to 1 (int: random layers per number of"),
        (["run", "theorem1", "-p", "training_dataset=photo"], "did you mean 'photos'?"),
        (["run", "llg-attack", "-p", "datasets=digits,photo"], "parameter 'datasets' of 'llg-attack': 'photo' is not"),
        (["run", "noise", "-p", "levels=0.1,inf"], "finite number"),
        (["run", "theorem1", "-p", "device=tpu"], "'auto', 'cpu' or 'cuda'"),
    ],
)
def test_help_wrong_names_and_wrong_values_import_nothing_heavy(words: list[str], said: str) -> None:
    code = f"import sys; sys.argv = {['gradleak', *words]}\ntry:\n    from gradleak.cli import main; main()\n"
    code += "except SystemExit: pass\nassert not {'torch', 'pandas'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert said in result.stdout + result.stderr


def test_names_read_from_sources_are_those_that_commands_take() -> None:
    known = {
        "network": registry.NETWORKS,
        "dataset": base.KNOWN,
        "defence": defenses.KINDS,
        "measure": MEASURES,
        "family of attacks": FAMILIES,
    }
    assert {kind: early.names(kind) for kind in early.KNOWN} == {kind: list(names) for kind, names in known.items()}


def test_version_lists_and_what_a_run_would_be(toy: Study, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (("--version", "gradleak 0."), ("list", "toy"), ("data", "photos"), ("claims", "toy-sum")):
        assert said in call(capsys, words)[1]
    code, out, err = call(capsys, "run", "toy", "--show", "--profile", "paper", "-p", "words=x,y")
    assert (code, "how many draws" in out, "['x', 'y']" in out) == (0, True, True)
    assert "data: digits is in the package (scikit-learn)" in out
    assert "8 trials: 0 are finished already, 8 have to run. Expected time and memory: unknown" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "theorm1"], "unknown study 'theorm1': did you mean 'theorem1'?"),
        (["run", "theorem1", "-p", "samles=5"], "unknown parameter of 'theorem1' 'samles': did you mean 'samples'?"),
        (["run", "theorem1", "-p", "samples=abc"], "parameter 'samples' of 'theorem1': 'abc' is not right"),
        (["run", "theorem1", "-p", "samples=0"], "greater than or equal to 1"),
        (["run", "theorem1", "-p", "seed=4294967296"], "less than 4294967296"),
        (["run", "noise", "-p", "levels=inf"], "finite number"),
        (["run", "theorem1", "-p", "samples"], "-p takes NAME=VALUE; got 'samples'"),
        (["run", "theorem1", "--profile", "fast"], "unknown profile 'fast'"),
        (["run", "theorem1", "-p", "device=tpu"], "'auto', 'cpu' or 'cuda'"),
        (["claims", "theorem2"], "did you mean 'theorem1'?"),
        (["verify", "theo\r\x1b[2Jrem1"], "unknown study 'theo  [2Jrem1'"),
        (["run", "theorem1", "-p", "sam\nples=5"], "unknown parameter of 'theorem1' 'sam ples'"),
    ],
)
def test_mistakes_are_one_clear_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, *words)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


def test_run_writes_page_and_record_and_says_where(
    toy: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADLEAK_RUNS", str(tmp_path / "runs"))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    code, out, err = call(capsys, "run", "toy", "-p", "samples=3", "-p", "words=x,y", "--jobs", "1", "--open")
    assert code == 0, err
    (folder,) = (tmp_path / "runs").glob("toy-*")
    assert opened == [(folder / "toy.html").as_uri()]
    for file in (folder / f"toy.{ending}" for ending in ("ipynb", "json", "html")):
        assert str(file) in out
        assert file.is_file()
    assert "1 claim of the paper: 1 'not measured with these parameters'." in out
    assert (
        "Changed parameters: samples = 3 (the page's own value: 4); words = x, y (the page's own value: a, b)." in out
    )
    record = records.read(folder / "toy.json")
    assert (record.parameters["samples"], record.parameters["words"]) == (3, ["x", "y"])
    assert cli.latest_records()["toy"].digest() == record.digest()
    code, out, err = call(capsys, "run", "toy", "--jobs", "1")
    assert code == 0, err
    assert out.index("sum") < out.index("1 claim of the paper: 1 'holds'."), "numbers come before claims"
    assert (tmp_path / "runs" / "toy" / "toy.json").is_file()
    assert folder.is_dir(), "a run with other parameters is kept"


def test_a_failing_page_and_an_unforeseen_error(
    toy: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for raised, code, said in (
        (GradleakError("page 'toy' failed"), 2, "gradleak: page 'toy' failed\n"),
        (ZeroDivisionError("oh"), 3, "gradleak: ZeroDivisionError: oh (--debug shows where)\n"),
        (KeyboardInterrupt(), 130, "finished trials are kept"),
    ):
        monkeypatch.setattr(pages, "run_page", Mock(side_effect=raised))
        found, _, err = call(capsys, "run", "toy", "--out", str(tmp_path))
        assert found == code
        assert said in err
    with pytest.raises(LookupError):
        call(capsys, "run", "toi", "--debug")


def test_in_a_narrow_terminal_no_row_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    statement = "A long statement of some dozens of letters, at level"
    cli._show([{"place": "Table 1", "claim": f"{statement} {n}", "paper": 0.5, "this run": None} for n in (1, 2)])
    cli._show([{"name": "a", "value": 1}])
    out = capsys.readouterr().out
    for level in (1, 2):
        assert f"place: Table 1; claim: {statement} {level}; paper: 0.5" in " ".join(out.split())
    assert "a      1" in out, "a table that fits"


def test_verify_says_what_holds_by_its_exit_code(toy: Study, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "verify")
    assert code == 0
    assert "1, of which 0 agree" in out
    assert "A clean checkout gives exit code 0" in out
    assert "not run" in call(capsys, "verify", "toy")[1].splitlines()[-2]
    code, out, _ = call(capsys, "record", "toy", "--profile", "quick", "--jobs", "1")
    assert code == 0
    assert (records.file_of("toy")).is_file()
    code, out, _ = call(capsys, "verify", "toy", "--json")
    assert code == 0
    (claim,) = json.loads(out)
    assert claim["verdict"] == "reproduced"
    assert claim["recorded_value"] == 6
    call(capsys, "record", "toy", "--jobs", "1")
    code, summary, err = call(capsys, "verify")
    assert (code, err) == (1, "")
    assert "A clean checkout gives exit code 1: its records hold 1 claim that failed at the scale needed." in summary
    assert "This checkout gives exit code 1: it has 0 further runs, with 0 failing." in summary
    assert len(summary.splitlines()) < 20
    code, out, _ = call(capsys, "verify", "--failing")
    assert code == 1
    assert out.splitlines()[-2:] == [
        "toy-sum: recorded 28 (n = 8), fresh –; holds if ± 0.5",
        "1 of the papers' claims and 0 of ours fail at the scale they need",
    ]
