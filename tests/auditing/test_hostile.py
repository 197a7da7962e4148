"""Hostile models, files, folders and moments: an audit says one line, ends with a code, and loses nothing."""

from __future__ import annotations

import functools
import os
import re
import signal
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import gradleak
from gradleak import cli
from gradleak.answers import Answer
from gradleak.auditing import Report, folders, loading, options
from gradleak.auditing.measuring import Truth
from gradleak.book import pages
from gradleak.errors import GradleakError, StorageError
from tests.book.test_faults import AUDITED, Child, brought
from tests.patience import wait_until
from tests.test_cli import call

WORDS = ["audit", "brought:at", "--data", "brought:batches", "--batch-size", "1,2", "--steps", "2", "--out", "report"]


class Mute(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError


def fails(error: BaseException) -> None:
    raise error


def wait() -> None:
    Path("waiting").touch()
    wait_until(Path("go").exists)


# What a network does in each forward pass from one on.
DEEDS: dict[str, Callable[[], float | None]] = {
    "raise": lambda: fails(RuntimeError("first\nsecond")),
    "exit": lambda: sys.exit(0),
    "leave": lambda: fails(BaseException()),
    "mute": lambda: fails(Mute()),
    "print": lambda: print("noise"),
    "move": lambda: os.chdir("/"),
    "spoil": lambda: float("nan"),
    "ctrl-c": lambda: signal.raise_signal(signal.SIGINT),
    "wait": wait,
}


class At(nn.Module):
    """A network that does a deed in each forward pass from this one on."""

    def __init__(self, moment: int, deed: str) -> None:
        super().__init__()
        self.body, self.moment, self.deed, self.passes = brought.make(), moment, DEEDS[deed], 0

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        self.passes += 1
        factor = self.deed() if self.passes >= self.moment else None
        logits: Tensor = self.body(x) * (1 if factor is None else factor)
        return logits


@pytest.fixture(autouse=True)
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "brought", brought)  # type: ignore[arg-type]
    monkeypatch.setenv("TMPDIR", str(tmp_path / "spare"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "spare").mkdir()


def audited(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, at: str = "99 raise", *words: str
) -> tuple[int, str]:
    """Audit a network that does a deed; return the code and the errors, of which there is one line at most."""
    moment, deed = at.split()
    monkeypatch.setattr(brought, "at", lambda: At(int(moment), deed), raising=False)
    code, _, err = call(capsys, *WORDS, *words)
    assert err.count("\n") == (code != 0)
    assert err == "" or err.startswith("gradleak: ")
    return code, err


@functools.cache
def plain() -> Report:
    """Return the report of a model without a fault, with a picture."""
    return options.report(AUDITED)


def earlier(place: Path = Path("report")) -> dict[str, bytes]:
    """Write a report into a folder, and a file of somebody's own; return what lies there."""
    plain().write(place)
    (place / folders.FIGURES / "mine.png").write_bytes(b"mine")
    return content(place)


def content(place: Path) -> dict[str, bytes]:
    """Return the files of a folder by their names, the lock's left out."""
    files = (file for file in place.rglob("*") if file.is_file() and file.suffix != ".lock")
    return {str(file.relative_to(place)): file.read_bytes() for file in files}


def written() -> Report:
    """Return the report that lies in the folder; it is whole, and so are the files that it lists."""
    report = Report.from_json(Path("report/report.json").read_bytes())
    assert {one.name for one in report.files} == content(Path("report")).keys() - {"report.json", "figures/mine.png"}
    assert all(folders._sha256(Path("report") / one.name) == one.sha256 for one in report.files)
    return report


# ------------------------------------------------------------------------------------------------------------- models
def untrained() -> nn.Module:
    model = brought.make()
    nn.init.constant_(model[0].weight, float("nan"))
    return model


MODELS: dict[str, Callable[[], object]] = {
    "'brought:model()' failed: SystemExit: 0": lambda: sys.exit(0),
    "'brought:model()' failed: BaseException": lambda: fails(BaseException()),
    "the model returns int, not a tensor of logits": lambda: nn.Sequential(brought.make(), Constant()),
    "the model does not take inputs of shape": lambda: brought.make().half(),
    "no parameter of Sequential needs a gradient": lambda: brought.make().requires_grad_(False),
    "'0.weight' holds NaN or infinite values": untrained,
}


class Constant(nn.Module):
    """A layer that returns a number."""

    def forward(self, x: Tensor) -> int:
        """Return 1."""
        return 1


@pytest.mark.parametrize("message", MODELS)
def test_a_model_that_cannot_be_audited_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    before = earlier()
    monkeypatch.setattr(brought, "model", MODELS[message], raising=False)
    code, _, err = call(capsys, "audit", "brought:model", *WORDS[2:])
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert content(Path("report")) == before


@pytest.mark.parametrize("deed", ["2 raise", "3 raise", "5 raise", "9 raise", "4 exit", "4 leave", "4 mute", "5 spoil"])
def test_what_was_found_before_a_model_broke_down_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    before = earlier()
    code, err = audited(capsys, monkeypatch, deed)
    assert "second" not in err
    if deed[0] == "2":  # nothing was observed yet
        assert (code, content(Path("report"))) == (2, before)
        return
    assert code == 3
    report = written()
    assert err.startswith(f"gradleak: the audit is not whole: {report.broken[0]}")
    assert any(one.attack == "exact labels" or "RLG" in one.attack for one in report.findings)
    assert all(f"Not whole: {one}" in report.notes for one in report.broken)
    assert content(Path("report"))["figures/mine.png"] == b"mine"


@pytest.mark.parametrize("value", [1e300, float("inf"), float("nan")])
def test_what_an_attack_found_is_measured_however_large_it_is(value: float) -> None:
    rows = torch.eye(3, 4).double()
    wrong = rows.clone()
    wrong[1, 0] = value
    found = Truth(rows, rows, rows, "vectors").measured(Answer(labels=wrong, features=wrong, inputs=wrong))
    assert found == {name: pytest.approx(2 / 3) for name in ("labels", "features", "inputs")}


@pytest.mark.parametrize("deed", ["1 print", "1 move"])
def test_a_model_that_prints_or_goes_elsewhere_is_audited(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deed: str
) -> None:
    assert audited(capsys, monkeypatch, deed) == (0, "")
    os.chdir(tmp_path)
    assert written().broken == []


# -------------------------------------------------------------------------------------------------------------- files
def put(name: str, data: bytes = b"mine") -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(data)


def link(name: str, target: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).symlink_to(target)


def picture(name: str) -> bytes:
    """Write an image, and return its bytes."""
    Path(name).parent.mkdir(exist_ok=True)
    Image.fromarray(np.full((40, 40, 3), 9, dtype=np.uint8)).save(name)
    return Path(name).read_bytes()


def claiming(side: int) -> bytes:
    """Return an image that says it has so many pixels to a side."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    ends = struct.pack(">I", zlib.crc32(head)), struct.pack(">I", 0), b"IDAT", struct.pack(">I", zlib.crc32(b"IDAT"))
    return b"".join([b"\x89PNG\r\n\x1a\n", struct.pack(">I", 13), head, *ends])


def packed(name: str, size: int) -> None:
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(size))


def promising(name: str) -> None:
    """Write a header of weights that are not there."""
    header = b'{"w": {"dtype": "F32", "shape": [1099511627776], "data_offsets": [0, 4398046511104]}}'
    put(name, struct.pack("<Q", len(header)) + header)


IMAGES = functools.partial(loading.samples_of, "data")
WEIGHTS = functools.partial(loading.state_of, Path("a.pt"))
ARCHIVE = functools.partial(loading.samples_of, "a.npz")
# The file, the function that reads it, and the message.
FILES: list[tuple[Callable[[], object], Callable[[], object], str]] = [
    (lambda: Path("data/dir.png").mkdir(parents=True), IMAGES, "there is no image in the folder 'data'"),
    (lambda: put("data/a.png", picture("data/a.png")[:60]), IMAGES, "'a.png' cannot be read as an image"),
    (lambda: put("data/a.png", claiming(12_000)), IMAGES, "'a.png' cannot be read as an image: Image size"),
    (lambda: link("data/a.png", "a.png"), IMAGES, "'a.png' cannot be read as an image"),
    (lambda: (put("data/a"), os.mkfifo("data/a.png")), IMAGES, "'a.png' cannot be read as an image: it is not a"),
    (lambda: link("data", "data"), IMAGES, "unknown dataset"),
    (lambda: put("a.npz", b""), ARCHIVE, "'a.npz' cannot be read"),
    (lambda: os.mkfifo("a.npz"), ARCHIVE, "'a.npz' cannot be read: it is not a"),
    (lambda: packed("a.npz", 4096), ARCHIVE, "'a.npz' declares a size"),
    (lambda: os.mkfifo("a.pt"), WEIGHTS, "'a.pt' cannot be read as weights: it is not"),
    (lambda: packed("a.pt", 4096), WEIGHTS, "'a.pt' declares a size"),
    (lambda: promising("a.safetensors"), lambda: loading.state_of(Path("a.safetensors")), "its header declares"),
    (lambda: None, lambda: loading.samples_of("brought:at"), "'brought:at' cannot be had"),
    (lambda: None, lambda: loading.samples_of("pho\ntos"), "unknown dataset 'pho tos'"),
]


@pytest.mark.parametrize(("prepare", "read", "message"), FILES)
def test_hostile_files_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, prepare: Callable[[], object], read: Callable[[], object], message: str
) -> None:
    monkeypatch.setattr(loading, "MOST_BYTES", 4095)
    prepare()
    with pytest.raises(GradleakError, match=re.escape(message)) as caught:
        read()
    assert "\n" not in str(caught.value)


def test_a_folder_linked_into_itself_is_read() -> None:
    picture("data/a.png")
    link("data/again", ".")
    assert len(loading.samples_of("data").inputs) == 1


# ------------------------------------------------------------------------------------------------------------ folders
FOLDERS: list[tuple[Callable[[], object], str]] = [
    (lambda: put("report"), "cannot write files into the folder 'report': File exists"),
    (lambda: link("report", "/proc/self"), "cannot write files into the folder 'report'"),
    (lambda: put("report/report.json", b'{"mine": 1}'), "is not the report of an audit"),
    (lambda: put("report/report.json"), "report.json in the folder 'report' is not"),
    (lambda: link("report/report.json", "gone"), "is not the report of an audit"),
    (lambda: put("report/report.json", b'{"schema": "gradleak-audit/1"}'), "does not list its files"),
    (lambda: put("report/index.html"), "'index.html' in the folder 'report' was not"),
    (lambda: (earlier(), put("report/index.html")), "or was changed since: move it"),
    (lambda: put("report/figures"), "'figures' in the folder 'report' was not"),
    (lambda: link("report/figures", ".."), "'figures' in the folder 'report' was not written"),
    (lambda: put(f"report/{folders.UNFINISHED}/mine"), "'.gradleak-unfinished/mine' in the folder"),
    (lambda: link(f"report/{folders.UNFINISHED}", ".."), "'.gradleak-unfinished/"),
]


@pytest.mark.parametrize(("prepare", "message"), FOLDERS)
def test_a_folder_that_is_not_an_audit_s_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], prepare: Callable[[], object], message: str
) -> None:
    prepare()
    before = content(Path())
    code, _, err = call(capsys, "audit", "nowhere:make", *WORDS[2:])
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert content(Path()) == before


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
    after = content(Path("report"))
    assert after.keys() == own | {"report.json", "index.html"}
    assert {after[name] for name in own} == {Path("outside.png").read_bytes()} == {b"mine"}


def test_a_figure_s_name_that_is_taken_keeps_the_report_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put("report/figures/frontier.svg")
    before = content(Path("report"))
    code, err = audited(capsys, monkeypatch, "99 raise", "--defense", "none,clip/1")
    assert code == 2
    assert "'figures/frontier.svg' in the folder 'report' was not written by an audit" in err
    assert content(Path("report")) == before
    (page,) = Path("spare").rglob("index.html")
    assert f"the report was written to {page.absolute()} instead" in err
    assert Report.from_json((page.parent / "report.json").read_bytes()).findings


# ------------------------------------------------------------------------------------------------------------ moments
def dying(write: Callable[[], object], moment: int) -> Callable[[], None]:
    """Return what writes a report and is killed just before so many changes of the disk were made."""
    count = [0]

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def change(*arguments: object, **options: object) -> object:
            count[0] += 1
            if count[0] == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return change

    def work() -> None:
        for name in ("replace", "unlink", "mkdir", "rmdir"):
            setattr(Path, name, counted(getattr(Path, name)))
        os.fsync = counted(os.fsync)  # type: ignore[assignment]
        write()

    return work


def test_a_kill_at_each_change_of_the_disk_loses_nothing_and_is_mended_by_the_next_report() -> None:
    second = plain().model_copy(update={"costs": [], "pictures": [], "notes": ["the second"]})
    second.write("wanted")
    wanted = content(Path("wanted"))
    moment, phases, killed = 0, set(), -signal.SIGKILL
    while killed:
        moment += 1
        before = earlier()
        killed = Child(dying(lambda: second.write("report"), moment)).code()
        new = bool(Report.from_json(Path("report/report.json").read_bytes()).notes)
        phases.add(new)
        if not new:  # the earlier report is whole
            assert content(Path("report")).items() >= before.items()
        assert Child(dying(lambda: second.write("report"), moment)).code() in (0, -signal.SIGKILL)
        second.write("report")
        assert content(Path("report")) == wanted | {"figures/mine.png": b"mine"}
        assert not Path("report", folders.UNFINISHED).exists()
    assert phases == {False, True}
    assert moment > 8


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("moment", ["maker", "4", "15", "writing"])
def test_ctrl_c_is_one_line_and_keeps_what_was_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before, real, make = earlier(), folders.replace, brought.make
    if moment == "maker":
        monkeypatch.setattr(brought, "make", lambda: (DEEDS["ctrl-c"](), make())[1])
    if moment == "writing":
        monkeypatch.setattr(folders, "replace", lambda *told: (signal.raise_signal(signal.SIGINT), real(*told)))
    code, err = audited(capsys, monkeypatch, f"{moment} ctrl-c" if moment.isdigit() else "1 print")
    assert code == 130
    if moment in ("15", "writing"):
        assert err == "gradleak: interrupted; the report has the results so far\n"
        assert written().interrupted == (moment == "15")
        assert written().findings
    else:
        assert err == "gradleak: interrupted; no report is written\n"
        assert content(Path("report")) == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_something_is_imported_is_one_line() -> None:
    code = f"""
import signal, sys
sys.path.insert(0, {str(Path(gradleak.__file__).parents[1])!r})
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["gradleak", "audit", "brought:make", "--data", "brought:batches"]
from gradleak.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "gradleak: interrupted; nothing was begun\n")


def test_a_second_audit_in_a_folder_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Child(lambda: audited(capsys, monkeypatch, "9 wait"))
    wait_until(Path("waiting").exists)
    line = "another process is writing to the folder 'report'"
    assert audited(capsys, monkeypatch) == (2, f"gradleak: {line}\n")
    with pytest.raises(StorageError, match=line):
        plain().write("report")
    Path("go").touch()
    assert first.code() == 0
    assert written().broken == []
    plain().write("report")


# ---------------------------------------------------------------------------------------------------- other commands


def gone(*_: object) -> None:
    try:
        raise BrokenPipeError
    except BrokenPipeError:
        sys.exit(1)


def test_only_a_reader_that_has_gone_ends_a_command_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "run_page", lambda *_, **__: sys.exit(0))
    ended = "gradleak: code that the command ran ended it: SystemExit: 0\n"
    assert call(capsys, "run", "theorem1") == (2, "", ended)
    monkeypatch.setattr(cli, "_show", gone)
    assert call(capsys, "data") == (1, "", "")
