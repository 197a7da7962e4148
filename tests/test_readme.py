"""The Python of the README runs in the order in which it stands there, in one interpreter."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def assigned(block: str) -> set[str]:
    stored = (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Name))
    return {node.id for node in stored if isinstance(node.ctx, ast.Store)} - {"n"}


def test_no_block_gives_a_name_of_an_earlier_block_to_something_else() -> None:
    for number, block in enumerate(BLOCKS):
        for later in BLOCKS[number + 1 :]:
            assert not assigned(block) & assigned(later)


def test_the_blocks_run_and_give_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    printed = []
    for block in BLOCKS:
        if "def make_model" in block:
            (tmp_path / "mine.py").write_text(block, "utf-8")
            continue
        exec(compile(block, "README.md", "exec"), names)
        printed.append(capsys.readouterr().out)
    sys.modules.pop("mine", None)
    labels, batch, counts, texts, matching, coarse, audit = printed
    assert labels.startswith("unique tensor([0.7300, 0.0300,")
    assert batch == "unique\n"
    assert counts.splitlines()[-1] == str([*range(0, 300, 10)])
    assert texts == "unique\n"
    assert matching == ""
    assert coarse.startswith("ambiguous ")
    assert "recovered: 4 of 4 inputs exactly (4 of them guaranteed, unit by unit)" in audit
    assert audit.splitlines()[-1] == "1.0"
    assert (tmp_path / "report" / "index.html").is_file()
