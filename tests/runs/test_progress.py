"""Progress: silent without a terminal, lines in a file for a page's runner, bars that nest in a terminal."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path

import pytest

from gradleak import reporting
from gradleak.errors import GradleakWarning
from gradleak.runs import progress as module
from gradleak.runs.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADLEAK_PROGRESS", raising=False)


def test_silent_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(progress(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    assert capfd.readouterr() == ("", "")


def test_bars_nest_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    found = []
    for outer in progress(range(2), 2, "outer work"):
        for inner in progress(range(3), 3, "inner work"):
            with module.display() as bars:
                assert bars is not None
                assert len(bars.tasks) == 2
                bars.refresh()
            found.append((outer, inner))
    assert found == [(outer, inner) for outer in range(2) for inner in range(3)]
    assert "outer work" in terminal.getvalue()
    assert "inner work" in terminal.getvalue()
    assert module._bars is None


def test_bars_end_when_the_work_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    items = progress(range(9), 9, "work")
    next(items)
    assert module._bars is not None
    items.close()
    assert module._bars is None

    def failing():
        yield 1
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - ours, from just above
        list(progress(failing(), 2, "work"))
    assert module._bars is None


def test_quiet_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with module.quiet():
        assert list(progress(range(3), 3, "work")) == [0, 1, 2]
    assert terminal.getvalue() == ""
    assert not module._quiet


def test_lines_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "progress"
    assert module.read(file, 0) == ([], 0)
    monkeypatch.setenv("GRADLEAK_PROGRESS", str(file))
    items = progress(range(1000), 1000, "thousand")
    for _ in range(10):
        next(items)
    items.close()
    assert list(progress("ab", 2, "two")) == ["a", "b"]
    module.warn("look out")
    with file.open("a") as stream:
        stream.write('{"half a li')
    lines, end = module.read(file, 0)
    assert lines[0]["description"] == "thousand"
    assert lines[0]["total"] == 1000
    assert lines[0]["done"] == 0
    ended = [line for line in lines if "ended" in line]
    # Of the ten that were handed out the tenth was not finished.
    assert [(line["description"], line["done"]) for line in ended] == [("thousand", 9), ("two", 2)]
    assert len({line["task"] for line in ended}) == 2
    assert lines[-1] == {"warning": "look out"}
    with file.open("a") as stream:
        stream.write('ne": 1}\n')
    assert module.read(file, end)[0] == [{"half a line": 1}]
    assert len(lines) < 10, "a few lines a second, not one an item"


def test_a_line_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_PROGRESS", str(tmp_path / "gone" / "progress"))
    assert list(progress(range(3), 3, "work")) == [0, 1, 2]


def test_warnings_without_a_file() -> None:
    with pytest.warns(GradleakWarning, match="look out"):
        module.warn("look out")


def test_lines_are_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_PROGRESS", str(tmp_path / "progress"))
    list(progress(range(2), 2, 'a "quoted"\nname'))
    assert all(json.loads(line) for line in (tmp_path / "progress").read_text().splitlines())


def test_attacks_are_heard() -> None:
    assert (reporting._steps, reporting._warn) == (progress, module.warn)


def test_a_notebook_draws_one_bar_for_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    import IPython.display

    drawn: list[str] = []

    class Handle:
        def update(self, bar: IPython.display.HTML) -> None:
            drawn.append(str(bar.data))

    class Shell:
        kernel = object()

    def display(bar: IPython.display.HTML, display_id: bool) -> Handle:
        assert display_id
        drawn.append(str(bar.data))
        return Handle()

    monkeypatch.setattr(IPython, "get_ipython", Shell)
    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(module, "SHORT", math.inf)
    assert list(progress(range(3), 3, "short")) == [0, 1, 2]
    assert drawn == []
    monkeypatch.setattr(module, "SHORT", -1.0)
    for _ in progress(range(3), 3, "a < b"):
        assert list(progress(range(2), 2, "inner")) == [0, 1]
    assert drawn[0].startswith('<progress max="3" value="1"></progress> a &lt; b: 1 of 3')
    assert drawn[-1].startswith('<progress max="3" value="3"></progress>')
    assert not any("inner" in bar for bar in drawn)
    with module.quiet():
        before = len(drawn)
        assert list(progress(range(2), 2, "quiet")) == [0, 1]
        assert len(drawn) == before
    # A page that is run writes to a file instead.
    monkeypatch.setenv("GRADLEAK_PROGRESS", "/dev/null")
    assert list(progress(range(2), 2, "page")) == [0, 1]
    assert len(drawn) == before
