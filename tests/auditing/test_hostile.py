"""Hostile models, files, folders and moments: an audit says one line, ends with a code, and loses nothing."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import gradleak
from gradleak.answers import Answer
from gradleak.auditing import Report, folders, loading
from gradleak.auditing.measuring import Truth
from gradleak.errors import GradleakError
from tests.auditing.made_up import brought
from tests.auditing.networks import Net
from tests.test_cli import call

WORDS = ["--data", "brought:batches", "--batch-size", "1,2", "--steps", "2"]


def fails(error: BaseException) -> None:
    raise error


# What a network does in each forward pass from one on.
DEEDS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "raise": lambda: fails(RuntimeError("first\nsecond")),
    "exit": lambda: sys.exit(0),
    "spoil": lambda: float("nan"),
    "ctrl-c": lambda: signal.raise_signal(signal.SIGINT),
}


def at(moment: int, deed: str) -> nn.Module:
    """Return a network that does a deed in each forward pass from this one on."""

    def compute(net: Any, x: Tensor) -> object:
        factor = DEEDS[deed]() if net.passes >= moment else None
        return net.body(x) * (1 if factor is None else factor)

    return Net(compute, body=brought.make())


Audit = Callable[..., tuple[int, str]]


@pytest.fixture
def audited(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Audit:
    """Audit a network that does a deed; return the code and the errors, of which there is one line at most."""

    def run(deed: str = "nothing", moment: int = 1) -> tuple[int, str]:
        monkeypatch.setattr(brought, "at", lambda: at(moment, deed), raising=False)
        code, _, err = call(capsys, "audit", "brought:at", *WORDS)
        assert err.count("\n") == (code != 0)
        assert err == "" or err.startswith("gradleak: ")
        return code, err

    return run


@functools.cache
def plain() -> Report:
    """Return the report of a model without a fault, with a picture."""
    return gradleak.audit(brought.make(), *brought.batches(), batch_sizes=(1, 2), defenses=("none", "clip/1"), steps=2)


def earlier() -> dict[str, bytes]:
    """Write a report, and a file of somebody's own; return what lies in the folder."""
    plain().write("report")
    put("report/figures/mine.png")
    return content("report")


def content(place: str) -> dict[str, bytes]:
    """Return the files of a folder by their names, the lock's left out."""
    files = (file for file in Path(place).rglob("*") if file.is_file() and file.suffix != ".lock")
    return {str(file.relative_to(place)): file.read_bytes() for file in files}


def written() -> Report:
    """Return the report that lies in the folder; it is whole, and so are the files that it lists."""
    report = Report.from_json(Path("report/report.json").read_bytes())
    assert {one.name for one in report.files} == content("report").keys() - {"report.json", "figures/mine.png"}
    assert all(folders._sha256(Path("report") / one.name) == one.sha256 for one in report.files)
    return report


# ------------------------------------------------------------------------------------------------------------- models
@pytest.mark.parametrize(("deed", "moment"), [("raise", 2), ("raise", 9), ("exit", 4), ("spoil", 5)])
def test_what_was_found_before_a_model_broke_down_is_kept(audited: Audit, deed: str, moment: int) -> None:
    before = earlier()
    code, err = audited(deed, moment)
    assert "second" not in err
    if moment == 2:  # nothing was observed yet
        assert (code, content("report")) == (2, before)
        return
    assert code == 3
    report = written()
    assert err.startswith(f"gradleak: the audit is not whole: {report.broken[0]}")
    assert any(one.attack == "exact labels" or "RLG" in one.attack for one in report.findings)
    assert all(f"Not whole: {one}" in report.notes for one in report.broken)
    assert content("report")["figures/mine.png"] == b"mine"


@pytest.mark.parametrize("value", [1e300, float("inf"), float("nan")])
def test_what_an_attack_found_is_measured_however_large_it_is(value: float) -> None:
    rows = torch.eye(3, 4).double()
    wrong = rows.clone()
    wrong[1, 0] = value
    found = Truth(rows, rows, rows, "vectors").measured(Answer(labels=wrong, features=wrong, inputs=wrong))
    assert found == {name: pytest.approx(2 / 3) for name in ("labels", "features", "inputs", "recognisable")}


# -------------------------------------------------------------------------------------------------------------- files
def put(name: str, data: bytes = b"mine") -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(data)


def link(name: str, target: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).symlink_to(target)


@pytest.mark.parametrize(
    ("read", "write", "message"),
    [
        (
            lambda: loading.samples_of("data"),
            lambda: (put("data/a"), Image.new("1", (14_000, 14_000)).save("data/a.png")),
            "'a.png' cannot be read as an image: Image size",
        ),
        (lambda: loading.state_of(Path("a.pt")), lambda: os.mkfifo("a.pt"), "there is no file 'a.pt'"),
    ],
)
def test_hostile_files_are_refused_in_one_line(
    read: Callable[[], object], write: Callable[[], object], message: str
) -> None:
    write()
    with pytest.raises(GradleakError, match=re.escape(message)) as caught:
        read()
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ folders
@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda: put("report"), "cannot write files into the folder 'report': File exists"),
        (lambda: put("report/report.json", b'{"mine": 1}'), "is not the report of an audit"),
        (lambda: put("report/index.html"), "'index.html' in the folder 'report' was not"),
        (lambda: (earlier(), put("report/index.html")), "or was changed since: move it"),
        (lambda: link("report/figures", ".."), "'figures' in the folder 'report' was not written"),
    ],
)
def test_a_folder_that_is_not_an_audit_s_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], prepare: Callable[[], object], message: str
) -> None:
    prepare()
    before = content(".")
    code, _, err = call(capsys, "audit", "json:loads", *WORDS)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert content(".") == before


def test_a_second_audit_in_a_folder_is_refused(audited: Audit) -> None:
    with folders.held(Path("report")):
        assert audited() == (2, "gradleak: another process is writing to the folder 'report'\n")


def test_a_report_takes_the_place_of_an_earlier_one_and_of_nothing_else() -> None:
    assert "figures/frontier.svg" in earlier()
    # A listed file that was changed since is somebody's own as well.
    own = {"notes.txt", "figures/own.svg", "figures/deeper/a.png", "figures/frontier.svg", "figures/mine.png"}
    for name in own:
        put(f"report/{name}")
    # What a report lists outside of its folder's own places is never touched.
    put("outside.png")
    outside = folders.Written(name="../outside.png", sha256=folders._sha256(Path("outside.png")))
    report = Report.from_json(Path("report/report.json").read_bytes())
    put("report/report.json", report.model_copy(update={"files": [*report.files, outside]}).to_json().encode())
    plain().model_copy(update={"costs": [], "pictures": []}).write("report")
    after = content("report")
    assert after.keys() == own | {"report.json", "index.html"}
    assert {after[name] for name in own} == {Path("outside.png").read_bytes()} == {b"mine"}


# ------------------------------------------------------------------------------------------------------------ moments


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("moment", ["pass 4", "pass 40", "writing"])
def test_ctrl_c_is_one_line_and_keeps_what_was_found(
    audited: Audit, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before, real, stop = earlier(), folders.replace, DEEDS["ctrl-c"]
    if moment == "writing":
        monkeypatch.setattr(folders, "replace", lambda *arguments: (stop(), real(*arguments)))
    code, err = audited("ctrl-c", int(moment[5:])) if moment.startswith("pass") else audited()
    assert code == 130
    if moment in ("pass 40", "writing"):
        assert err == "gradleak: interrupted; the report has the results so far\n"
        assert written().interrupted == (moment == "pass 40")
        assert written().findings
    else:
        assert err == "gradleak: interrupted; no report is written\n"
        assert content("report") == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
