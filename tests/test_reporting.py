"""What attacks say while they work: nothing, until someone listens."""

from __future__ import annotations

import pytest

from gradleak import reporting
from gradleak.errors import GradleakWarning


def test_silence_and_a_listener(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("_steps", "_warn"):
        monkeypatch.setattr(reporting, name, None)
    assert list(reporting.steps("ab", 2, "letters")) == ["a", "b"]
    assert capfd.readouterr() == ("", "")
    with pytest.warns(GradleakWarning, match="look out") as told:
        reporting.warn("look out")
    assert told[0].filename == __file__
    heard: list[object] = []
    reporting.to(lambda items, total, description: iter([description, total, *items]), heard.append)
    assert list(reporting.steps("ab", 2, "letters")) == ["letters", 2, "a", "b"]
    reporting.warn("look out")
    assert heard == ["look out"]
