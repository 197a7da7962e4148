"""Several graphics cards: every process works on one, and each card has its processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from gradleak.runs import gpus, runner


def test_a_choice_of_cards_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpus.visible() == ["0", "1", "2"]
    assert [runner.processes(None, trials, "cuda") for trials in (100, 2)] == [3, 2]
    monkeypatch.setenv(gpus.VISIBLE, "5,GPU-8d3f,7,-1,9")
    assert gpus.visible() == ["5", "GPU-8d3f", "7"], "CUDA counts up to the first name that is not a card"


def test_every_process_takes_a_card_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpus, "folder", lambda: tmp_path)
    taken, locks = [], []
    for _ in range(5):
        monkeypatch.setenv(gpus.VISIBLE, "4,5")
        monkeypatch.setattr(gpus, "_own", None)  # as in a new process
        for _ in range(2):
            gpus.take()
        taken.append(os.environ[gpus.VISIBLE])
        locks.append(gpus._own)
        if len(locks) == 4:
            locks[1].release()  # the process with this lock has ended
    assert taken == ["4", "5", "4", "5", "5"], "a process stays on its card, and the cards are shared evenly"
    monkeypatch.setattr(gpus, "_own", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    gpus.take()
    assert gpus._own is None, "there is nothing to choose"
