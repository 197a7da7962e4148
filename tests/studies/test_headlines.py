"""Every page opens with its finding: a sentence that its record supports, with numbers that are read and not typed."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator

import pytest

from gradleak import claims, studies
from gradleak.claims import Judgement
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show.summary import Summary

# A sentence is read at once.
MOST_WORDS = 45
# A share of fewer cases is written as numbers, such as "9 of 24".
FEW = 50
# A digit that is typed may only be a part of a name: ResNet18, float32, Table 3.
NAMES = re.compile(r"\b[A-Za-z]+-?\d[\w.-]*|\b[23]D\b|\b(Tables?|Figures?|Theorem) \d+( and \d+)?")
PAGES = [name for name in studies.names() if hasattr(studies.load(name).module, "summary")]


def record_of(name: str) -> Record:
    record = records.recorded(name)
    assert record is not None
    return record


def summary(name: str) -> Summary:
    found = studies.load(name).summary(record_of(name))
    assert found is not None
    return found


@pytest.mark.parametrize("name", PAGES)
def test_the_record_supports_the_sentence(name: str) -> None:
    found = summary(name)
    assert found.true is True
    assert claims.judgements(record_of(name))[found.claim].value is not None, "the key number is measured"
    assert found.sentence.endswith(".")
    assert len(found.sentence.split()) <= MOST_WORDS
    assert not re.search(r"\bnan\b|\binf\b|None|–(?= )", found.sentence)


def _typed(node: ast.AST) -> Iterator[str]:
    """Yield the typed texts of a sentence: without what its braces compute."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif not isinstance(node, ast.FormattedValue):
        for inner in ast.iter_child_nodes(node):
            yield from _typed(inner)


@pytest.mark.parametrize("name", PAGES)
def test_no_number_of_a_sentence_is_typed(name: str) -> None:
    function = ast.parse(inspect.getsource(studies.load(name).module.summary))
    (call,) = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Summary"
    ]
    typed = " ".join(_typed(call.args[0]))
    assert not re.search(r"\d", NAMES.sub("", typed))
    # What is true must depend on the record: a constant would hold for every record.
    (true,) = [keyword.value for keyword in call.keywords if keyword.arg == "true"]
    assert any(isinstance(node, ast.Name) for node in ast.walk(true))


@pytest.mark.parametrize("name", PAGES)
def test_a_share_of_few_cases_is_quoted_as_their_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quoted: list[Judgement] = []

    def text(judgement: Judgement) -> str:
        quoted.append(judgement)
        return judgement.claim.formatted(judgement.value)

    monkeypatch.setattr(Judgement, "text", property(text))
    summary(name)
    shares = [one for one in quoted if one.claim.measure.reduce == "share"]
    assert [one.claim.id for one in shares if one.count < FEW] == []


@pytest.mark.parametrize("name", PAGES)
def test_the_page_opens_with_the_box_and_the_best_figure(name: str) -> None:
    cells = json.loads(studies.load(name).notebook.read_text("utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "run_study(" in codes[1]
    assert codes[1].rstrip().endswith("claims.opening(shown)")
    module = studies.load(name).module
    assert f"{module.__name__.rpartition('.')[2]}.{summary(name).figure.__name__}(shown" in codes[2]


@pytest.mark.parametrize("name", PAGES)
def test_code_that_does_not_teach_is_folded(name: str) -> None:
    for cell in json.loads(studies.load(name).notebook.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        tags = cell["metadata"].get("tags", [])
        plumbing = re.search(r"^Table\(|figures\.titled\(|run_study\(|claims\.verdicts|provenance\.table", text, re.M)
        if cell["cell_type"] == "code" and (plumbing or "parameters" in tags):
            assert "hide-input" in tags or "remove-input" in tags, text
