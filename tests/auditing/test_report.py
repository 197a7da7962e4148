"""A report as data, as files and as a page: whole, self-contained, and strict about what it is asked."""

from __future__ import annotations

import base64
import functools
import io
import json
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import gradleak
from gradleak.auditing import Report
from gradleak.auditing.sentences import stopped
from tests.auditing.networks import mlp


@functools.cache
def report() -> Report:
    photos = gradleak.data.load("digits", "test")
    model = torch.nn.Sequential(torch.nn.Flatten(), *mlp(64, 10)).double()
    return gradleak.audit(
        model, photos.images[:40].double(), photos.labels[:40], batch_sizes=(1, 2), defenses=("none", "clip/1")
    )


def test_json_comes_back_as_it_was() -> None:
    text = report().to_json()
    assert json.loads(text)["schema"] == "gradleak-audit/1"
    assert Report.from_json(text) == report().model_copy(update={"pictures": []})
    assert "png" not in text


def test_a_report_prints_its_verdict() -> None:
    assert str(report()).startswith(report().verdict)
    assert repr(report()) == f"Report({report().verdict!r})"


def test_the_page_is_whole_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    page = report().write(tmp_path / "a folder")
    text = page.read_text("utf-8")
    assert not re.search(r"https?:(?!//www.w3.org/2000/svg')|<script|<link|url\(|@import", text)
    assert set(re.findall(r"src='([^:']+)", text)) <= {"data"}
    # Findings link to the pages of a book that is built beside the package, and to nothing else.
    assert all(re.search(r"/book/executed/.*\.html$", link) for link in re.findall(r"href='([^']+)", text))
    for word in ("prefers-color-scheme: dark", "@media print", "What was not tried, and why", "What the counts alone"):
        assert word in text
    for one in report().findings:
        assert one.attack in text
    pictures = sorted(file.name for file in (page.parent / "figures").iterdir())
    assert "frontier.svg" in pictures
    assert "linear-layers-backwards-none-batch-2.png" in pictures
    assert str(tmp_path) not in text
    assert Report.from_json((page.parent / "report.json").read_bytes()).findings == report().findings


def test_pictures_show_the_private_above_the_recovered() -> None:
    one = next(p for p in report().pictures if (p.attack, p.defense, p.batch_size) == ("unit by unit", "none", 1))
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(one.png))))
    upper, lower = pixels[: len(pixels) // 2], pixels[len(pixels) // 2 :]
    assert upper.std() > 30
    assert np.abs(upper.astype(int) - lower).max() <= 1


def test_what_was_not_measured_is_not_called_stopped() -> None:
    whole = report()
    (one,) = [f for f in whole.findings if (f.attack, f.defense, f.batch_size) == ("RLG", "none", 2)]
    rivals = [f.model_copy(update={"defense": "clip/1", "measures": {}}) for f in whole.findings]
    assert "Stopped" not in stopped(one, [one, *rivals], whole.costs)
    none = [f.model_copy(update={"measures": {"classes": 0.0}}) for f in rivals]
    assert stopped(one, [one, *none], whole.costs).startswith("Stopped here by clip/1")
