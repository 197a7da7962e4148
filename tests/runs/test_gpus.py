"""Several graphics cards: every process works on one, and each card has its processes."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from gradleak.runs import gpus, runner
from tests.checkout import Toy


def test_a_choice_of_cards_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpus.visible() == ["0", "1", "2"]
    assert [runner.processes(None, trials, "cuda") for trials in (100, 2)] == [3, 2]
    monkeypatch.setenv(gpus.VISIBLE, "5,GPU-8d3f,7,-1,9")
    assert gpus.visible() == ["5", "GPU-8d3f", "7"], "CUDA counts up to the first name that is not a card"


NOTED = """        with open(os.environ["TOY_TRACE"] + " cards", "a") as file:
            file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
        # Each of the three processes runs a trial before one ends.
        while len({line.split()[0] for line in open(os.environ["TOY_TRACE"] + " cards")}) < 3:
            time.sleep(0.02)
        from gradleak import devices
        devices.described = lambda device: "A card, driver 1"
"""
# Two cards are pretended where trials are handed out; the processes that run them see the variable.
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
    noted = [tuple(line.split()) for line in (checkout.root / "trace cards").read_text().splitlines()]
    assert len(noted) == 9
    pairs = set(noted)
    assert len({process for process, _ in pairs}) == len(pairs), "a process stays on its card"
    assert Counter(card for _, card in pairs) == {"4": 2, "5": 1}, "three processes share two cards"
