"""Progress: silent without a terminal, bars that nest in a terminal, one bar in a notebook."""

from __future__ import annotations

import io
import sys

import pytest

from gradleak import reporting
from gradleak.errors import GradleakWarning
from gradleak.runs import progress as module
from gradleak.runs.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Let standard error be a terminal, and return what is written there."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_silent_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(progress(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    assert capfd.readouterr() == ("", "")


def test_bars_nest_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_a_terminal(monkeypatch)
    found = [
        (outer, inner) for outer in progress(range(2), 2, "outer work") for inner in progress(range(3), 3, "inner work")
    ]
    assert found == [(outer, inner) for outer in range(2) for inner in range(3)]
    assert "outer work:   0%|" in terminal.getvalue()
    assert "inner work:   0%|" in terminal.getvalue()


def test_work_that_breaks_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_terminal(monkeypatch)
    closed = []

    def failing():
        try:
            yield 1
            raise ValueError
        finally:
            closed.append(True)

    with pytest.raises(ValueError):  # noqa: PT011 - ours, from just above
        list(progress(failing(), 2, "work"))
    items = progress(failing(), 2, "work")
    next(items)
    items.close()
    assert closed[0]


def test_quiet_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_a_terminal(monkeypatch)
    with module.quiet():
        assert not module.in_terminal()
        assert list(progress(range(3), 3, "work")) == [0, 1, 2]
    assert terminal.getvalue() == ""
    assert module.in_terminal()


def test_a_notebook_draws_one_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "_in_notebook", lambda: True)
    monkeypatch.setattr(module, "SHORT", 0)
    for _ in progress(range(3), 3, "outer"):
        assert list(progress(range(2), 2, "inner")) == [0, 1]
    drawn = capsys.readouterr().err
    assert "outer:   0%|" in drawn
    assert "inner" not in drawn


def test_warnings() -> None:
    with pytest.warns(GradleakWarning, match="look out"):
        module.warn("look out")


def test_attacks_are_heard() -> None:
    assert (reporting._steps, reporting._warn) == (progress, module.warn)
