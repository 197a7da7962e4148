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
from gradleak.runs.records import Record
from gradleak.show import yourself
from tests.recorded import record_of

PAGE = "theorem1"
FIELDS = studies.load(PAGE).Parameters.model_fields


@pytest.fixture(scope="module")
def quick() -> Record:
    """A quick run that took a second, where the recorded one took hours."""
    recorded = record_of(PAGE)
    trials = [recorded.trials[0].model_copy(update={"seconds": 1.0})]
    return recorded.model_copy(update={"profile": "quick", "trials": trials})


@pytest.fixture
def form(quick: Record) -> yourself.Form:
    return yourself.form(quick)


def test_a_form_has_every_parameter_and_writes_what_the_command_line_reads(form: yourself.Form) -> None:
    assert re.findall(r'<input name="(\w+)"', form._repr_html_()) == list(FIELDS)
    for name, field in FIELDS.items():
        assert f'name="{name}"' in form._repr_html_()
        assert html.escape(field.description or "") in form._repr_html_()
    for text in (form._repr_html_(), repr(form)):
        assert "gradleak run theorem1" in text
    assert form._repr_markdown_().startswith("```{raw} html\n<div")
    texts = {name: yourself.written(value) for name, value in form.recorded.items()}
    assert studies.parameters(PAGE, "quick", texts).model_dump() == form.recorded
    long = dataclasses.replace(form, recorded={**form.recorded, "classes": list(range(40))})
    assert "(recorded: 40 values)" in long._repr_html_()


def test_the_form_knows_the_sizes_and_the_times_that_were_measured(form: yourself.Form, quick: Record) -> None:
    sizes = json.loads(html.unescape(re.findall('data-facts="([^"]*)"', form._repr_html_())[0]))["sizes"]
    assert sizes["samples"] == FIELDS["samples"].default
    assert not {"seed", "device"} & set(sizes)
    assert form.seconds == 1.0
    assert "A run with these values took 1" in form._repr_html_()
    assert yourself.form(quick.model_copy(update={"profile": "custom"})).seconds is None
    contributions = {str(value): yourself.size(value) for value in (8, [1, 2, 3], True, "lenet", 0.5, 0)}
    assert contributions == {"8": 8.0, "[1, 2, 3]": 3.0, "True": 0.0, "lenet": 0.0, "0.5": 0.0, "0": 0.0}


@pytest.mark.browser
def test_the_script_writes_the_command_and_the_time(browser: Any, tmp_path: Path, form: yourself.Form) -> None:
    script = (paths.book() / "_static" / "yourself.js").read_text("utf-8")
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><script>{script}</script>{form._repr_html_()}", "utf-8")
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
    seconds = 2 * 20000 / FIELDS["samples"].default
    assert {f"about {round(seconds)} s", f"about {round(seconds / 60)} min"} & set(
        re.findall(r"about \d+ \w+", estimate.text_content())
    )
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('button').textContent !== 'Copy the command'")
