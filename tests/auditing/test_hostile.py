"""Hostile models, data, folders and moments: the command line says one line, ends with a code, and loses nothing."""

from __future__ import annotations

import functools
import json
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

import gradleak
from gradleak import cli
from gradleak.answers import Answer
from gradleak.auditing import Report, folders, loading, options
from gradleak.auditing.measuring import Truth
from gradleak.book import pages
from gradleak.errors import GradleakError, InputError, StorageError
from tests.book.test_faults import Child
from tests.patience import wait_until
from tests.test_cli import call

# `at(moment, what)`: a network that does something in each forward pass from this one on.
MODULE = """
import os, signal, sys, time
from pathlib import Path
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8)).double()
def batches():
    return torch.randn(12, 20, generator=torch.Generator().manual_seed(0)).double(), torch.arange(12) % 8
def pixels():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))

class Own(BaseException): pass
class Mute(Exception):
    def __str__(self): raise ValueError
def fails(error):
    raise error
def wait():
    Path("waiting").touch()
    while not Path("go").exists():
        time.sleep(0.01)

DEEDS = {
    "raise": lambda: fails(RuntimeError("first\\nsecond")),
    "exit": lambda: sys.exit(0),
    "leave": lambda: fails(Own()),
    "close": lambda: fails(GeneratorExit()),
    "mute": lambda: fails(Mute()),
    "print": lambda: print("noise"),
    "move": lambda: os.chdir("/"),
    "spoil": lambda: float("nan"),
    "ctrl-c": lambda: signal.raise_signal(signal.SIGINT),
    "wait": wait,
}

class At(nn.Module):
    def __init__(self, moment, deed):
        super().__init__()
        self.body, self.moment, self.deed, self.passes = make(), moment, DEEDS[deed], 0
    def forward(self, x):
        self.passes += 1
        factor = self.deed() if self.passes >= self.moment else None
        return self.body(x) * (1 if factor is None else factor)
def at():
    moment, deed = os.environ["AT"].split()
    return At(int(moment), deed)

class Nothing(At):
    def forward(self, x): super().forward(x)
def nothing(): return Nothing(99, "raise")
def half(): return make().half()
def scripted(): return torch.jit.script(make())
def frozen(): return make().requires_grad_(False)
def untrained():
    model = make()
    nn.init.constant_(model[1].weight, float("nan"))
    return model
def exits(): sys.exit(0)
def leaves(): raise Own
def interrupted(): signal.raise_signal(signal.SIGINT)
"""
WORDS = ["--batch-size", "1,2", "--steps", "2", "--out", "report"]


@pytest.fixture(autouse=True)
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brought.py").write_text(MODULE)
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "spare"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "spare").mkdir()
    for name in ("brought", "exiting"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def audited(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run `gradleak audit`, and return its code and its errors, of which there is one line at most."""
    code, _, err = call(capsys, "audit", *WORDS, *words)
    assert err.count("\n") == (code != 0)
    assert err == "" or err.startswith("gradleak: ")
    return code, err


@functools.cache
def plain() -> Report:
    """Return the report of a model without a fault, with a picture."""
    words = options.Options(
        "brought:make", "brought:batches", None, "1,2", None, "none,clip/1", "cross-entropy", 5.0, None, True, None,
        None, 0.1, 1, 0.0, 0.0, None, 0, (), 2,
    )  # fmt: skip
    return options.report(words)


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
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("brought:exits", r"'brought:exits\(\)' failed: SystemExit: 0"),
        ("brought:leaves", r"'brought:leaves\(\)' failed: Own"),
        ("exiting:make", "'exiting:make' cannot be had: SystemExit: 0"),
        ("brought:nothing", "the model returns NoneType, not a tensor of logits"),
        ("brought:half", "the model does not take inputs of shape"),
        ("brought:scripted", "has no Linear layer"),
        ("brought:frozen", "no parameter of Sequential needs a gradient"),
        ("brought:untrained", "'1.weight' holds NaN or infinite values"),
    ],
)
def test_a_model_that_cannot_be_audited_is_one_line(capsys: pytest.CaptureFixture[str], model: str, told: str) -> None:
    before = earlier()
    code, err = audited(capsys, model, "--data", "brought:batches")
    assert code == 2
    assert re.search(told, err)
    assert content(Path("report")) == before


@pytest.mark.parametrize(
    ("deed", "moment"),
    [
        *(("raise", moment) for moment in (1, 2, 3, 4, 5, 6, 7, 9, 12, 15)),
        *((deed, moment) for deed in ("exit", "leave", "close", "mute") for moment in (2, 4, 15)),
        *(("spoil", moment) for moment in (2, 5, 8)),
    ],
)
def test_what_was_found_before_a_model_broke_down_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, deed: str, moment: int
) -> None:
    before = earlier()
    monkeypatch.setenv("AT", f"{moment} {deed}")
    code, err = audited(capsys, "brought:at", "--data", "brought:batches")
    assert "second" not in err
    if moment < 3:  # nothing was observed yet
        assert code == 2
        assert content(Path("report")) == before
        return
    assert code == 3
    report = written()
    assert err.startswith(f"gradleak: the audit is not whole: {report.broken[0]}")
    assert any(one.attack == "exact labels" or "RLG" in one.attack for one in report.findings)
    assert all(f"Not whole: {one}" in report.notes for one in report.broken)
    assert content(Path("report"))["figures/mine.png"] == b"mine"


def test_a_limit_that_nothing_was_measured_for_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT", "5 exit")
    code, err = audited(capsys, "brought:at", "--data", "brought:batches", "--fail-above", "labels=1")
    assert code == 2
    assert err.startswith("gradleak: no attack measured 'labels'")
    assert written().broken


def test_an_update_of_a_model_that_cannot_be_run_is_attacked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT", "1 exit")
    model = loading.model_of("brought:at")
    torch.save(model.state_dict(), "a.pt")
    with torch.no_grad():
        head = model.get_parameter("body.3.weight")
        head -= torch.outer(torch.eye(8, dtype=head.dtype)[3] - 0.125, torch.ones(32, dtype=head.dtype))
    torch.save(model.state_dict(), "b.pt")
    words = ["--before", "a.pt", "--after", "b.pt", "--batch-size", "1", "--shape", "20"]
    assert audited(capsys, "brought:at", *words)[0] == 3
    assert written().findings


@pytest.mark.parametrize("value", [1e300, -1e300, float("inf"), float("nan")])
def test_what_an_attack_found_is_measured_however_large_it_is(value: float) -> None:
    rows = torch.eye(3, 4).double()
    wrong = rows.clone()
    wrong[1, 0] = value
    truth = Truth(rows, rows, rows, "vectors")
    found = truth.measured(Answer(labels=wrong, features=wrong, inputs=wrong))
    assert found == {name: pytest.approx(2 / 3) for name in ("labels", "features", "inputs")}


@pytest.mark.parametrize("deed", ["print", "move"])
def test_a_model_that_prints_or_goes_elsewhere_is_audited(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deed: str
) -> None:
    monkeypatch.setenv("AT", f"1 {deed}")
    assert audited(capsys, "brought:at", "--data", "brought:batches") == (0, "")
    os.chdir(tmp_path)
    assert written().broken == []


# --------------------------------------------------------------------------------------------------------------- data
def picture(name: str) -> None:
    """Write an image."""
    Path(name).parent.mkdir(exist_ok=True)
    Image.fromarray(np.full((40, 40, 3), len(name), dtype=np.uint8)).save(name)


def bomb() -> None:
    """Write an image that says it has 12,000 pixels to a side."""
    Path("data").mkdir()
    head = b"IHDR" + struct.pack(">IIBBBBB", 12_000, 12_000, 8, 2, 0, 0, 0)
    parts = [b"\x89PNG\r\n\x1a\n", struct.pack(">I", 13), head, struct.pack(">I", zlib.crc32(head))]
    parts += [struct.pack(">I", 0), b"IDAT", struct.pack(">I", zlib.crc32(b"IDAT"))]
    Path("data/a.png").write_bytes(b"".join(parts))


def packed() -> None:
    """Write an archive of weights that says it holds more than is ever read."""
    with zipfile.ZipFile("a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(4096))


def made(*deeds: Callable[[], object]) -> Callable[[], None]:
    def prepare() -> None:
        for deed in deeds:
            deed()

    return prepare


RIGHT = functools.partial(picture, "data/a.png")
UPDATE = ["--before", "a.pt", "--after", "a.pt", "--batch-size", "1", "--shape", "3,32,32"]
DATA: dict[str, tuple[Callable[[], None], list[str], str]] = {
    "a folder named as an image": (made(RIGHT, lambda: Path("data/dir.png").mkdir()), ["--data", "data"], ""),
    "nothing but such a folder": (
        lambda: Path("data/dir.png").mkdir(parents=True), ["--data", "data"], "there is no image in the folder 'data'",
    ),
    "an image cut off": (
        made(RIGHT, lambda: Path("data/a.png").write_bytes(Path("data/a.png").read_bytes()[:60])), ["--data", "data"],
        "'a.png' cannot be read as an image",
    ),
    "an empty image": (
        made(RIGHT, lambda: Path("data/b.png").touch()), ["--data", "data"], "'b.png' cannot be read as an image",
    ),
    "an image said to be huge": (bomb, ["--data", "data"], "'a.png' cannot be read as an image: Image size"),
    "a pipe as an image": (
        made(RIGHT, lambda: os.mkfifo("data/b.png")), ["--data", "data"], "'b.png' cannot be read as an image",
    ),
    "an image linked to itself": (
        made(RIGHT, lambda: Path("data/b.png").symlink_to("b.png")), ["--data", "data"], "'b.png' cannot be read as an",
    ),
    "a folder linked into itself": (
        made(RIGHT, lambda: Path("data/again").symlink_to(".")), ["--data", "data"], "",
    ),
    "a folder linked to itself": (lambda: Path("data").symlink_to("data"), ["--data", "data"], "unknown dataset"),
    "a pipe as an archive": (lambda: os.mkfifo("a.npz"), ["--data", "a.npz"], "'a.npz' cannot be read: it is not a"),
    "an empty archive": (lambda: Path("a.npz").touch(), ["--data", "a.npz"], "'a.npz' cannot be read"),
    "an archive linked to itself": (lambda: Path("a.npz").symlink_to("a.npz"), ["--data", "a.npz"], "'a.npz'"),
    "a pipe as weights": (lambda: os.mkfifo("a.pt"), UPDATE, "'a.pt' cannot be read as weights: it is not"),
    "a folder as weights": (lambda: Path("a.pt").mkdir(), UPDATE, "'a.pt' cannot be read as weights: it is not"),
    "weights said to be huge": (packed, UPDATE, "'a.pt' declares a size"),
    "a function that exits": (lambda: None, ["--data", "brought:exits"], r"'brought:exits()' failed: SystemExit: 0"),
    "a name of two lines": (lambda: None, ["--data", "pho\ntos"], "unknown dataset 'pho tos'"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_hostile_data_are_read_or_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    prepare, words, told = DATA[case]
    prepare()
    monkeypatch.setattr(loading, "MOST_BYTES", 2**12 - 1 if case == "weights said to be huge" else loading.MOST_BYTES)
    code, err = audited(capsys, "brought:pixels", *words, *(["--batch-size", "1"] if told == "" else []))
    assert code == (2 if told else 0), err
    assert told in err


# ------------------------------------------------------------------------------------------------------------ folders
def put(name: str, text: str) -> Callable[[], None]:
    def prepare() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)

    return prepare


def of_an_earlier_version() -> None:
    earlier()
    told = json.loads(Path("report/report.json").read_text())
    del told["files"]
    Path("report/report.json").write_text(json.dumps(told))


FOLDERS: dict[str, tuple[Callable[[], object], str]] = {
    "a file": (put("report", "mine"), "cannot write files into the folder 'report': File exists"),
    "a link to itself": (lambda: Path("report").symlink_to("report"), "cannot write files into the folder 'report'"),
    "of the kernel": (lambda: Path("report").symlink_to("/proc/self"), "cannot write files into the folder 'report'"),
    "with a foreign report": (put("report/report.json", '{"mine": 1}'), "is not the report of an audit"),
    "with a report that is none": (put("report/report.json", "mine"), "report.json in the folder 'report' is not"),
    "with a folder for a report": (lambda: Path("report/report.json").mkdir(parents=True), "is not the report of an"),
    "with a report of an earlier version": (of_an_earlier_version, "does not list its files"),
    "with a foreign page": (put("report/index.html", "mine"), "'index.html' in the folder 'report' was not"),
    "with a page that was changed": (made(earlier, put("report/index.html", "mine")), "or was changed since: move it"),
    "with a report beside a foreign page": (
        lambda: (earlier(Path("other")), put("report/index.html", "mine")(),
                 Path("other/report.json").rename("report/report.json")), "'index.html' in the folder 'report'",
    ),
    "with a file for figures": (put("report/figures", "mine"), "'figures' in the folder 'report' was not"),
    "with a report linked to nothing": (
        lambda: (Path("report").mkdir(), Path("report/report.json").symlink_to("gone")), "is not the report",
    ),
    "with a foreign folder for unfinished files": (
        put("report/.gradleak-unfinished/precious.txt", "mine"), "'.gradleak-unfinished/precious.txt' in the folder",
    ),
    "with a link for unfinished files": (
        lambda: (put("elsewhere/1-" + 64 * "a", "mine")(), Path("report").mkdir(),
                 Path("report/.gradleak-unfinished").symlink_to("../elsewhere")), "'.gradleak-unfinished' in the",
    ),
    "with figures linked elsewhere": (
        lambda: (put("elsewhere/mine.png", "mine")(), Path("report").mkdir(),
                 Path("report/figures").symlink_to("../elsewhere")), "'figures' in the folder 'report' was not written",
    ),
    "with figures linked to nothing": (
        lambda: (Path("report").mkdir(), Path("report/figures").symlink_to("gone")), "'figures' in the folder 'report'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_is_not_an_audit_s_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], case: str
) -> None:
    prepare, told = FOLDERS[case]
    prepare()
    before = content(Path())
    code, err = audited(capsys, "nowhere:make", "--data", "photos")
    assert code == 2
    assert told in err
    assert content(Path()) == before


def test_a_report_takes_the_place_of_an_earlier_one_and_of_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    before = earlier()
    assert "figures/frontier.svg" in before
    for name in ("notes.txt", "figures/own.svg", "figures/deeper/a.png"):
        put(f"report/{name}", "mine")()
    # A listed file that was changed since is somebody's own as well.
    put("report/figures/frontier.svg", "mine")()
    # What a report lists outside of its folder's own places is never touched.
    told = json.loads(Path("report/report.json").read_text())
    put("outside.png", "mine")()
    digest = folders._sha256(Path("outside.png"))
    told["files"] += [{"name": name, "sha256": digest} for name in ("../outside.png", "figures/../../outside.png")]
    Path("report/report.json").write_text(json.dumps(told))
    assert audited(capsys, "brought:make", "--data", "brought:batches", "--no-images")[0] == 0
    after = content(Path("report"))
    own = {"notes.txt", "figures/own.svg", "figures/deeper/a.png", "figures/frontier.svg", "figures/mine.png"}
    assert after.keys() == own | {"report.json", "index.html"}
    assert all(after[name] in (b"mine",) for name in own)
    assert Path("outside.png").read_text() == "mine"


def test_the_figures_of_an_earlier_report_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "figures/frontier.svg" in earlier()
    assert audited(capsys, "brought:make", "--data", "brought:batches")[0] == 0
    assert content(Path("report")).keys() == {"report.json", "index.html", "figures/mine.png"}
    written()


def test_a_figure_s_name_that_is_taken_keeps_the_report_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    put("report/figures/frontier.svg", "mine")()
    before = content(Path("report"))
    code, err = audited(capsys, "brought:make", "--data", "brought:batches", "--defense", "none,clip/1")
    assert code == 2
    assert "'figures/frontier.svg' in the folder 'report' was not written by an audit" in err
    assert content(Path("report")) == before
    (page,) = Path("spare").rglob("index.html")
    assert f"the report was written to {page.absolute()} instead" in err
    assert Report.from_json((page.parent / "report.json").read_bytes()).findings


@pytest.mark.parametrize("operation", ["os.fsync", "pathlib.Path.mkdir"])
def test_a_disk_that_is_full_at_the_end_keeps_both_reports(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    before = earlier()
    real = {"os.fsync": os.fsync, "pathlib.Path.mkdir": Path.mkdir}[operation]

    def full(what: int | Path, **options: bool) -> object:
        place = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
        if folders.UNFINISHED in place and str(Path("spare").absolute()) not in place:
            raise OSError(28, "No space left on device")
        return real(what, **options)  # type: ignore[operator]

    monkeypatch.setattr(operation, full)
    code, err = audited(capsys, "brought:make", "--data", "brought:batches")
    assert code == 2
    assert err.startswith("gradleak: cannot write report.json into the folder 'report': No space left on device; the")
    assert content(Path("report")) == before
    assert len(list(Path("spare").rglob("report.json"))) == 1
    monkeypatch.undo()


# ------------------------------------------------------------------------------------------------------------ moments
def dying(write: Callable[[], object], moment: int) -> Callable[[], None]:
    """Return what writes a report and is killed just before so many changes of the disk were made."""

    def work() -> None:
        made = [0]

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def change(*arguments: object, **options: object) -> object:
                made[0] += 1
                if made[0] == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            return change

        for name in ("replace", "unlink", "mkdir", "rmdir"):
            setattr(Path, name, counted(getattr(Path, name)))
        os.fsync = counted(os.fsync)  # type: ignore[assignment]
        write()

    return work


def test_a_kill_at_each_change_of_the_disk_loses_nothing_and_is_mended_by_the_next_report() -> None:
    first = plain()
    second = first.model_copy(update={"costs": [], "pictures": [], "notes": ["the second"]})
    second.write("wanted")
    wanted = content(Path("wanted"))
    moment, phases = 0, set()
    while True:
        moment += 1
        earlier()
        before = content(Path("report"))
        killed = Child(dying(lambda: second.write("report"), moment)).code()
        told = Report.from_json(Path("report/report.json").read_bytes())
        phases.add(bool(told.notes))
        if not told.notes:  # the earlier report is whole
            assert {name: content(Path("report"))[name] for name in before} == before
        again = Child(dying(lambda: second.write("report"), moment)).code()
        assert again in (0, -signal.SIGKILL)
        second.write("report")
        assert content(Path("report")) == wanted | {"figures/mine.png": b"mine"}
        assert not Path("report", folders.UNFINISHED).exists()
        if killed == 0:
            break
    assert phases == {False, True}
    assert moment > 8


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("moment", ["maker", "samples", "1", "4", "9", "15", "writing"])
def test_ctrl_c_is_one_line_and_keeps_what_was_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before = earlier()
    monkeypatch.setenv("AT", f"{moment} ctrl-c" if moment.isdigit() else "1 print")
    model = "brought:interrupted" if moment == "maker" else "brought:at"
    samples = "brought:interrupted" if moment == "samples" else "brought:batches"
    if moment == "writing":
        real = folders.replace
        monkeypatch.setattr(folders, "replace", lambda *told: (signal.raise_signal(signal.SIGINT), real(*told)))
    code, err = audited(capsys, model, "--data", samples)
    assert code == 130
    if moment in ("15", "writing"):
        assert err == "gradleak: interrupted; the report has the results so far\n"
        assert written().interrupted == (moment == "15")
        assert written().findings
    else:
        assert err == "gradleak: interrupted; no report is written\n"
        assert content(Path("report")) == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("module", ["typer", "click", "torch"])
def test_ctrl_c_while_something_is_imported_is_one_line(module: str) -> None:
    code = f"""
import signal, sys
sys.path.insert(0, {str(Path(gradleak.__file__).parents[1])!r})
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
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
    monkeypatch.setenv("AT", "9 wait")
    first = Child(lambda: audited(capsys, "brought:at", "--data", "brought:batches"))
    wait_until(Path("waiting").exists)
    code, err = audited(capsys, "brought:make", "--data", "brought:batches")
    assert (code, err) == (2, "gradleak: another process is writing to the folder 'report'\n")
    with pytest.raises(StorageError, match="another process is writing to"):
        plain().write("report")
    Path("go").touch()
    assert first.code() == 0
    assert written().broken == []
    plain().write("report")


# -------------------------------------------------------------------------------------------------------- one line each
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "theo\nrem1"], "unknown study 'theo rem1': did you mean 'theorem1'?"),
        (["verify", "theo\r\x1b[2Jrem1"], "unknown study 'theo  [2Jrem1'"),
        (["claims", "\udcff"], "unknown study ' '"),
        (["run", "theorem1", "-p", "sam\nples=5"], "unknown parameter of 'theorem1' 'sam ples'"),
        (["run", "theorem1", "-p", "a\nb"], "-p takes NAME=VALUE; got 'a b'"),
        (["audit", "le\nnet", "--data", "photos"], "unknown network 'le net'"),
        (["audit", "lenet", "--data", "photos", "--out", "brought.py/a\nb"], "into the folder 'a b'"),
    ],
)
def test_a_name_with_line_breaks_is_shown_on_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    code, _, err = call(capsys, *words)
    assert code == 2
    assert told in err
    assert err.count("\n") == 1


def test_sys_exit_inside_any_command_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "run_page", lambda *_, **__: sys.exit(0))
    code, _, err = call(capsys, "run", "theorem1")
    assert (code, err) == (2, "gradleak: code that the command ran ended it: SystemExit: 0\n")


def test_a_reader_of_the_output_that_has_gone_is_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            sys.exit(1)

    monkeypatch.setattr(cli, "_show", gone)
    assert call(capsys, "data") == (1, "", "")


def test_a_python_user_sees_the_same_errors() -> None:
    put("report/index.html", "mine")()
    with pytest.raises(InputError, match="was not written by an audit"):
        plain().write("report")
    with pytest.raises(GradleakError, match="SystemExit: 0"):
        loading.model_of("brought:exits")
