"""Several graphics cards: every process works on one, and none is left out."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from gradleak import devices
from gradleak.runs import gpus, runner
from tests.checkout import Toy


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process see three cards."""
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


@pytest.mark.usefixtures("three")
def test_a_choice_of_cards_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.visible() == ["0", "1", "2"]
    monkeypatch.setenv(gpus.VISIBLE, "5,GPU-8d3f,7,-1,9")
    assert gpus.visible() == ["5", "GPU-8d3f", "7"], "CUDA counts as far as the first that is none"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv(gpus.VISIBLE, "")
    assert gpus.visible() == []


@pytest.mark.usefixtures("three")
def test_unasked_every_card_has_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runner.processes(None, 100, "cuda") == 3
    assert runner.processes(None, 2, "cuda") == 2
    monkeypatch.setenv("GRADLEAK_JOBS", "6")
    assert runner.processes(None, 100, "cuda") == 6


def test_processes_take_the_card_with_the_fewest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = []

    def taken(*names: str) -> str:
        """Return what another process takes."""
        monkeypatch.setattr(gpus, "_own", None)
        gpus.take(names, tmp_path)
        held.append(gpus._own)
        return os.environ[gpus.VISIBLE]

    monkeypatch.setenv(gpus.VISIBLE, "as it was")
    assert taken("0") == "as it was", "there is nothing to choose"
    assert [taken("0", "1", "2") for _ in range(7)] == ["0", "1", "2", "0", "1", "2", "0"]
    assert taken("0", "2") == "2"
    gpus.take(["1", "2"], tmp_path)
    assert os.environ[gpus.VISIBLE] == "2", "for the rest of its life"
    held[2].release()  # as when the process ends
    assert taken("0", "1", "2") == "1"


def test_where_cuda_has_begun_its_current_device_is_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(gpus, "_own", None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv(gpus.VISIBLE, "3,4")
    (tmp_path / "other").mkdir()
    other = gpus._locked(tmp_path / "other" / "3-0.lock")
    assert other is not None
    gpus.take(["3", "4"], tmp_path / "other")
    assert chosen == [1]
    assert os.environ[gpus.VISIBLE] == "3,4"


NOTED = """        with open(os.environ["TOY_TRACE"] + " cards", "a") as file:
            file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
        # Each of the three processes runs a trial before one ends.
        while len({line.split()[0] for line in open(os.environ["TOY_TRACE"] + " cards")}) < 3:
            time.sleep(0.02)
        from gradleak import devices
        devices.described = lambda device: "A card, driver 1"
"""


# Two cards are pretended where trials are handed out; processes that run them see what they were told.
SCRIPT = """
import torch
from pathlib import Path
from gradleak import studies
from gradleak.runs import gpus, experiments, runner
experiments.resolve_device = lambda device: "cuda"
torch.cuda.device_count = lambda: 2
torch.cuda.get_device_name = lambda *_: "A card"
gpus.folder = lambda: Path("cards").resolve()
study = studies.load("toy")
record = runner.run_study(study, studies.parameters(study, "paper", {"samples": 9}), jobs=3)
print(*(trial.inputs["number"] for trial in record.trials))
"""


@pytest.mark.slow
def test_every_worker_sees_a_card_of_its_own(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.edit("        time.sleep(self.pause)\n", NOTED)
    monkeypatch.setenv(gpus.VISIBLE, "4,5,6")
    assert checkout.python(SCRIPT) == " ".join(map(str, range(9))), "no trial is lost"
    noted = [line.split() for line in (checkout.root / "trace cards").read_text().splitlines()]
    assert len(noted) == 9
    pairs = {(process, card) for process, card in noted}
    assert len({process for process, _ in pairs}) == len(pairs), "a process stays on its card"
    assert Counter(card for _, card in pairs) == {"4": 2, "5": 1}, "three processes share two cards"


def test_a_clusters_worker_finds_the_cards_of_its_own_machine(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken: list[object] = []
    monkeypatch.setattr(gpus, "visible", lambda: ["0", "1"])
    monkeypatch.setattr(gpus, "folder", lambda: tmp_path)
    monkeypatch.setattr(gpus, "take", lambda *words: taken.append(words))
    monkeypatch.setattr(devices, "described", lambda device: "A card, driver 1")
    inputs = checkout.load().trials(checkout.parameters())[0]
    for device, alone in (("cuda", False), ("cpu", False), ("cuda", True)):
        runner._work("toy", 0, inputs | {"device": device}, 1, alone, None)
    assert taken == [(["0", "1"], tmp_path)], "neither a trial on the CPU nor a process alone takes a card"
