"""A report as data, as files and as a page: whole, self-contained, and strict about what it is asked."""

from __future__ import annotations

import base64
import functools
import inspect
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gradleak
from gradleak import paths
from gradleak.auditing import MEASURES, Report
from gradleak.auditing.findings import NotTried
from gradleak.auditing.html import fragment
from gradleak.auditing.sentences import of_haste, stopped
from gradleak.errors import GradleakError, InputError
from tests.auditing.test_audit import mlp


@functools.cache
def report() -> Report:
    photos = gradleak.data.load("digits", "test")
    model = torch.nn.Sequential(torch.nn.Flatten(), *mlp(64, 10)).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(inspect.unwrap(gradleak.audit).__kwdefaults__, "steps", 3)
        return gradleak.audit(
            model, photos.images[:40].double(), photos.labels[:40], batch_sizes=(1, 2), defenses=("none", "prune/0.9")
        )


def test_no_sentence_of_the_page_ends_twice() -> None:
    leak = gradleak.observe(mlp(), torch.rand(1, 40), torch.tensor([3]))
    blind = gradleak.audit_update(leak, steps=1)
    for one in (report(), blind, blind.model_copy(update={"notes": ["it failed."]})):
        text = re.sub(r"<[^>]*>", "", fragment(one))
        assert not re.search(r"\.\s*\.(?!\d)", text)


def test_json_comes_back_as_it_was() -> None:
    text = report().to_json()
    assert json.loads(text)["schema"] == "gradleak-audit/1"
    assert Report.from_json(text) == report().model_copy(update={"pictures": []})
    assert "png" not in text


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema": "gradleak-audit/2"}', "\x00\xff", '{"schema": NaN}', "1" * 10_000],
)
def test_what_is_no_report_is_one_clear_line(text: str) -> None:
    with pytest.raises(InputError, match="this is no audit report") as caught:
        Report.from_json(text)
    assert "\n" not in str(caught.value)


def test_worst_is_the_most_over_what_is_asked() -> None:
    one = report()
    assert one.worst("inputs") == one.worst("inputs", defense="none", batch_size=1) == 1
    assert one.worst("inputs", defense="prune/0.9") < 1
    with pytest.raises(GradleakError, match="unknown measure 'lables': did you mean 'labels'"):
        one.worst("lables")
    with pytest.raises(InputError, match=r"no attack measured 'sentences' \(none, batch of 1 and in 3 more cases\)"):
        one.worst("sentences")


def test_limits_are_passed_or_not() -> None:
    one = report()
    assert one.above({"labels": 1.0, "inputs": 1.0}) == []
    assert one.above({"labels": 0.5, "inputs": 1.0}) == ["labels = 1 is above 0.5"]
    with pytest.raises(InputError, match="no attack measured 'words'"):
        one.above({"words": 0.5})


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


def test_what_the_time_cut_short_is_said_beside_the_worst() -> None:
    whole = report()
    assert of_haste(whole) == ""
    assert "Cut short" not in whole._repr_html_()
    late = NotTried(
        defense="none", batch_size=1, attack="RLG", why="stopped after 3 s, its share of the time", page="", late=True
    )
    cut = [one.model_copy(update={"cut": one.attack == "gradient matching"}) for one in whole.findings]
    hasty = whole.model_copy(update={"not_tried": [*whole.not_tried, late], "findings": cut})
    assert of_haste(hasty) == "Cut short by the time: RLG, gradient matching. More minutes may find more."
    assert of_haste(hasty) in hasty._repr_html_()


def test_without_images_there_is_none(tmp_path: Path) -> None:
    report().write(tmp_path)  # an audit before, with images
    bare = report().model_copy(update={"pictures": []})
    page = bare.write(tmp_path)
    assert [file.name for file in (tmp_path / "figures").iterdir()] == ["frontier.svg"]
    assert page.read_text().count("<img") == 0


def test_pictures_show_the_private_above_the_recovered() -> None:
    one = next(p for p in report().pictures if (p.attack, p.defense, p.batch_size) == ("bias attack", "none", 1))
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(one.png))))
    upper, lower = pixels[: len(pixels) // 2], pixels[len(pixels) // 2 :]
    assert upper.std() > 30
    assert np.abs(upper.astype(int) - lower).max() <= 1


def test_what_was_not_measured_is_not_called_stopped() -> None:
    whole = report()
    (one,) = [f for f in whole.findings if (f.attack, f.defense, f.batch_size) == ("RLG", "none", 2)]
    rivals = [f.model_copy(update={"defense": "prune/0.9", "measures": {}}) for f in whole.findings]
    assert "Stopped" not in stopped(one, [one, *rivals], whole.costs)
    found = [f.model_copy(update={"measures": {"labels": 1.0}}) for f in rivals]
    assert "Stopped" not in stopped(one, [one, *found], whole.costs), "whoever has the labels has the classes"
    none = [f.model_copy(update={"measures": {"classes": 0.0}}) for f in rivals]
    assert stopped(one, [one, *none], whole.costs).startswith("Stopped here by prune/0.9")
    poor = one.model_copy(update={"measures": {"classes": 0.05}})
    assert stopped(poor, [poor, *none], whole.costs) == ""


def test_a_notebook_shows_it_by_itself() -> None:
    shown = report()._repr_html_()
    assert shown == fragment(report())
    assert "<html" not in shown
    assert all(name in MEASURES for name in report().measured)


def test_the_book_explains_every_column() -> None:
    page = (paths.root() / "book/explorer.ipynb").read_text("utf-8")
    assert [name for name in MEASURES if f"**{name}**" not in page] == []


def test_a_hostile_name_is_shown_as_text() -> None:
    changed = report().model_copy(update={"facts": {"network": "<script>alert(1)</script>, 1 parameter"}})
    assert "<script" not in fragment(changed)
