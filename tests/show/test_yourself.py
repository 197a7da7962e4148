"""The form "Run this page yourself": what it says without a script, and the command that the script writes."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gradleak import paths, studies
from gradleak.book import browser
from gradleak.runs import records
from gradleak.show import yourself

RECORD = records.recorded("theorem1")
assert RECORD is not None
# A quick run that took a second, where the recorded one took hours.
QUICK = RECORD.model_copy(update={"profile": "quick", "trials": [RECORD.trials[0].model_copy(update={"seconds": 1.0})]})
FORM = yourself.form(QUICK)


def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(html.unescape(re.findall('data-facts="([^"]*)"', FORM.html)[0]))
    return found


def test_a_form_has_every_parameter_with_its_meaning() -> None:
    fields = studies.load("theorem1").Parameters.model_fields
    assert [entry.name for entry in FORM.entries] == list(fields)
    for name, field in fields.items():
        assert f'name="{name}"' in FORM.html
        assert html.escape(field.description or "") in FORM.html
    assert "gradleak run theorem1 --open" in FORM.html
    assert FORM._repr_markdown_().startswith("```{raw} html\n<div")
    assert "gradleak run theorem1" in repr(FORM)


def test_what_a_form_writes_the_command_line_reads() -> None:
    texts = {entry.name: yourself.written(entry.paper) for entry in FORM.entries}
    read = studies.parameters("theorem1", "quick", texts).model_dump()
    assert read == {entry.name: entry.paper for entry in FORM.entries}


def test_the_form_knows_the_sizes_and_the_times_that_were_measured() -> None:
    sizes = facts()["sizes"]
    assert sizes["samples"] == studies.load("theorem1").Parameters().model_dump()["samples"]
    assert not {"seed", "device"} & set(sizes)
    assert FORM.seconds == 1.0
    assert FORM.recorded is not None


def test_without_a_timed_run_there_is_no_estimate() -> None:
    form = yourself.form(QUICK.model_copy(update={"profile": "custom"}))
    assert form.seconds is None
    assert "the recorded run took" in form.times


def test_a_long_list_is_shown_by_its_length() -> None:
    form = dataclasses.replace(FORM, entries=(yourself.Entry("cells", [1], list(range(40)), "what"),))
    assert "(recorded: 40 values)" in form.html


@pytest.mark.parametrize(
    ("value", "contributes"), [(8, 8.0), ([1, 2, 3], 3.0), (True, 0.0), ("lenet", 0.0), (0.5, 0.0), (0, 0.0)]
)
def test_what_a_parameter_contributes_to_the_time(value: Any, contributes: float) -> None:
    assert yourself.size(value) == contributes


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if browser.executable() is None:
        pytest.skip("Chromium is not installed")
    script = (paths.book() / "_static" / "yourself.js").read_text("utf-8")
    file = tmp_path_factory.mktemp("form") / "page.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><script>{script}</script>{FORM.html}", "utf-8")
    with browser.chromium() as started:
        page = started.new_page(viewport={"width": 400, "height": 800})
        page.goto(file.as_uri())
        yield page


@pytest.fixture
def page(opened: Any) -> Any:
    opened.reload()
    return opened


def test_the_script_writes_the_command_and_the_time(page: Any) -> None:
    command, estimate = page.locator("pre code"), page.locator(".gradleak-estimate")
    assert command.text_content() == "gradleak run theorem1 --open"
    assert "about 1 s" in estimate.text_content()
    page.fill("input[name=samples]", "20000")
    page.fill("input[name=dataset]", "it's mine")
    assert command.text_content() == "gradleak run theorem1 -p samples=20000 -p 'dataset=it'\\''s mine' --open"
    seconds = 20000 / studies.load("theorem1").Parameters().model_dump()["samples"]
    assert (
        f"about {round(seconds)} s" in estimate.text_content()
        or f"{round(seconds / 60)} min" in estimate.text_content()
    )


def test_a_longer_list_takes_longer(page: Any) -> None:
    page.fill("input[name=classes]", "2,10,100,1000,5000,7000")
    assert "about 2 s" in page.locator(".gradleak-estimate").text_content()
    assert "-p classes=2,10,100,1000,5000,7000" in page.locator("pre code").text_content()


def test_the_command_can_be_copied_by_keyboard(page: Any) -> None:
    button = page.locator("button")
    assert button.is_visible()
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('button').textContent !== 'Copy the command'")
