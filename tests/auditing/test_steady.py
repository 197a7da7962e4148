"""An audit compares a model before and after a forward pass, and two passes on one batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gradleak
from gradleak.auditing import Report
from gradleak.errors import InputError
from tests.test_cli import call


class Own(nn.Module):
    """A network that changes something in its forward pass."""

    def __init__(self, deed: Callable[[Own, Tensor], Tensor | None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.deed, self.passes = nn.Linear(6, 8), nn.Linear(8, 5), deed, 0
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        self.passes += 1
        changed = self.deed(self, x)
        logits: Tensor = self.head(self.first(x if changed is None else changed).relu())
        return logits


@torch.no_grad()
def shrinks(model: Own, _: Tensor) -> None:
    model.first.weight *= 0.9


@torch.no_grad()
def renormalises(model: Own, _: Tensor) -> None:
    model.head.weight /= model.head.weight.norm()


@torch.no_grad()
def counts(model: Own, _: Tensor) -> None:
    model.calls += 1


def audited(deed: Callable[[Own, Tensor], Tensor | None]) -> Report:
    inputs = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    return gradleak.audit(Own(deed), inputs, torch.arange(4), batch_sizes=(1, 2), steps=1)


def test_weights_that_change_in_each_pass_are_refused() -> None:
    with pytest.raises(InputError, match=r"each forward pass of Own changes its own parameters \('first.weight'\)"):
        audited(shrinks)


@pytest.mark.parametrize(
    ("deed", "note"),
    [
        (lambda model, x: None, ""),
        (renormalises, "the first forward pass changed 'head.weight', and the audit is of the network with these"),
        (counts, "each forward pass changes 'calls', but a second pass gives the same gradient"),
        (lambda model, x: x + 0.1 * torch.randn_like(x), "a second pass on the same batch gives another gradient"),
        (lambda model, x: x * model.passes, "a second pass on the same batch gives another gradient"),
    ],
)
def test_what_changes_is_said_in_one_line(deed: Callable[[Own, Tensor], Tensor | None], note: str) -> None:
    report = audited(deed)
    # A network that changes tensors in place cannot be run for several attacks at once, which other notes say.
    told = [one[: len(note)] for one in report.notes if not one.startswith("Not whole: ")]
    assert told == ([note] if note else [])
    assert not any("vmap" in one for one in report.notes)
    assert not any(one.certificate == "exact" and one.measures["inputs"] < 1 for one in report.findings)


def test_the_command_says_it_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "brought", raising=False)
    (tmp_path / "brought.py").write_text(
        "import torch\nfrom tests.auditing.test_steady import Own, counts\n"
        "def make(): return Own(counts)\ndef batches(): return torch.rand(4, 6), torch.arange(4)\n"
    )
    words = ["audit", "brought:make", "--data", "brought:batches", "--batch-size", "1", "--steps", "1"]
    out = call(capsys, *words)[1]
    assert "each forward pass changes 'calls'" in out
