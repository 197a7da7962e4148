"""The form "Run this page yourself": what it says without a script, and the command that the script writes."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gradleak import paths, studies
from gradleak.runs import records
from gradleak.show import yourself

RECORD = records.recorded("theorem1")
assert RECORD is not None
# A quick run that took a second, where the recorded one took hours.
QUICK = RECORD.model_copy(update={"profile": "quick", "trials": [RECORD.trials[0].model_copy(update={"seconds": 1.0})]})
FORM = yourself.form(QUICK)
SAMPLES = studies.load("theorem1").Parameters().model_dump()["samples"]


def test_a_form_has_every_parameter_and_writes_what_the_command_line_reads() -> None:
    fields = studies.load("theorem1").Parameters.model_fields
    assert re.findall(r'<input name="(\w+)"', FORM.html) == list(fields)
    for name, field in fields.items():
        assert f'name="{name}"' in FORM.html
        assert html.escape(field.description or "") in FORM.html
    for text in (FORM.html, repr(FORM)):
        assert "gradleak run theorem1" in text
    assert FORM._repr_markdown_().startswith("```{raw} html\n<div")
    texts = {name: yourself.written(value) for name, value in FORM.recorded.items()}
    assert studies.parameters("theorem1", "quick", texts).model_dump() == FORM.recorded
    long = dataclasses.replace(FORM, recorded={**FORM.recorded, "classes": list(range(40))})
    assert "(recorded: 40 values)" in long.html


def test_the_form_knows_the_sizes_and_the_times_that_were_measured() -> None:
    sizes = json.loads(html.unescape(re.findall('data-facts="([^"]*)"', FORM.html)[0]))["sizes"]
    assert sizes["samples"] == SAMPLES
    assert not {"seed", "device"} & set(sizes)
    assert FORM.seconds == 1.0
    assert "A run with these values took 1" in FORM.html
    untimed = yourself.form(QUICK.model_copy(update={"profile": "custom"}))
    assert untimed.seconds is None
    contributions = {str(value): yourself.size(value) for value in (8, [1, 2, 3], True, "lenet", 0.5, 0)}
    assert contributions == {"8": 8.0, "[1, 2, 3]": 3.0, "True": 0.0, "lenet": 0.0, "0.5": 0.0, "0": 0.0}


@pytest.mark.browser
def test_the_script_writes_the_command_and_the_time(browser: Any, tmp_path: Path) -> None:
    script = (paths.book() / "_static" / "yourself.js").read_text("utf-8")
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><script>{script}</script>{FORM.html}", "utf-8")
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(file.as_uri())
    command, estimate, button = (page.locator(name) for name in ("pre code", ".gradleak-estimate", "button"))
    assert command.text_content() == "gradleak run theorem1 --open"
    assert "about 1 s" in estimate.text_content()
    page.fill("input[name=classes]", "2,10,100,1000,5000,7000")
    assert "about 2 s" in estimate.text_content(), "a longer list takes longer"
    page.fill("input[name=samples]", "20000")
    page.fill("input[name=dataset]", "it's mine")
    written = command.text_content()
    assert written.startswith("gradleak run theorem1 ")
    for part in ("-p samples=20000", "-p classes=2,10,100,1000,5000,7000", "-p 'dataset=it'\\''s mine'", " --open"):
        assert part in written
    seconds = 2 * 20000 / SAMPLES
    assert {f"about {round(seconds)} s", f"about {round(seconds / 60)} min"} & set(
        re.findall(r"about \d+ \w+", estimate.text_content())
    )
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('button').textContent !== 'Copy the command'")
