"""What leaks: every number of the first page's table comes from a record, and so do the defences that it names."""

from __future__ import annotations

import ast
import re
from functools import cache

import nbformat
import pytest

from gradleak import studies
from gradleak.book import landing
from gradleak.book.generated import summaries
from gradleak.book.stopping import LEAST, stopped, stopping
from gradleak.runs import records
from gradleak.show import provenance
from gradleak.show.summary import Leaks
from gradleak.studies.shared.outcomes import AXES, KINDS, RESCALING, Outcome, family
from tests.recorded import record_of, summary_of

# A digit in a name, such as ResNet18 or CIFAR-10, is no number.
NAME = re.compile(r"\b[A-Za-z]+-?[A-Za-z]*\d[\w-]*")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?")
# Each page of the table, a column of its record, another value for it, and the words that the row then shows.
ROWS = [
    ("label-accuracy", "accuracy", 12.5, "12.5 % of 10000 smoothed labels"),
    ("label-accuracy", "milliseconds", 7.0, "7 ms elapsed"),
    ("batches", "largest_error", 0.25, "label error (L1) at most 2.5e-01"),
    ("fcn-inversion", "psnr", 11.0, "11.0 ± 0.0 dB"),
    ("batches", "seconds", 42.0, "42 s elapsed"),
    ("cnn-inversion", "psnr", 13.0, "13.0 ± 0.0 dB trained"),
    ("cnn-reconstruction", "eight_bit", 9.0, "9.0 dB trained"),
    ("llg-attack", "success", 21.0, "21.0 % of labels"),
    ("posterior-attack", "instances", 0.5, "instance accuracy (Jaccard index) 0.500"),
    ("reveal-labels", "exact", False, "0 % of sets"),
    ("batch-restoration", "accuracy", 33.0, "33.00 ± "),
    ("sentences", "exact", False, "0 of 100"),
    ("transcripts", "exact", False, "0 of "),
    ("language-models", "exact", False, "0 of 10 texts"),
    ("transformers", "psnr", 13.0, "13.0 dB or more"),
    ("peeling", "lowest_psnr", 12.0, "lowest PSNR 12.0 dB"),
]
WITH_LEAKS = sorted({page for page, *_ in ROWS})


@cache
def outcomes() -> list[Outcome]:
    """Return the outcomes of all records."""
    return [one for name in studies.names() for one in summary_of(name).outcomes]


def row(page: str) -> Leaks:
    """Return a page's row."""
    found = summary_of(page).leaks
    assert found is not None
    return found


def numbers(text: str) -> set[str]:
    """Return the numbers in a text, without those in names and without commas between thousands."""
    return {found.replace(",", "").strip(".") for found in NUMBER.findall(NAME.sub("", text))}


def page_text(name: str) -> str:
    """Return the texts in which a page shows its record: box, tables and captions."""
    record = record_of(name)
    names: dict[str, object] = {**record.parameters, "record": record, "shown": provenance.shown(record)}
    texts = []
    for cell in nbformat.read(studies.load(name).notebook, 4).cells:
        if cell.cell_type != "code" or "parameters" in cell.metadata.get("tags", []):
            continue
        shows = re.search("shown|verdicts", cell.source) and "figures.titled" not in cell.source
        lines = ast.parse(cell.source).body
        last = lines.pop() if shows else None
        if not shows or "run_study(" in cell.source:
            lines = [line for line in lines if isinstance(line, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(lines, []), name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
            texts.append(value._repr_markdown_() if hasattr(value, "_repr_markdown_") else value._repr_html_())
    return re.sub(r"<[^>]*>", " ", "\n".join(texts))


@pytest.mark.parametrize(("page", "column", "value", "shown"), ROWS)
def test_a_row_says_what_its_record_says(page: str, column: str, value: object, shown: str) -> None:
    kept = record_of(page)
    trials = [
        trial.model_copy(update={"rows": [line | ({column: value} if column in line else {}) for line in trial.rows]})
        for trial in kept.trials
    ]
    with pytest.MonkeyPatch.context() as patch:
        recorded, other = records.recorded, kept.model_copy(update={"trials": trials})
        patch.setattr(records, "recorded", lambda name: other if name == page else recorded(name))
        summary = studies.load(page).summary(other)
    assert summary is not None
    assert summary.leaks is not None
    assert summary.leaks != row(page)
    assert shown in f"{summary.leaks.exactness} {summary.leaks.time}"


@pytest.mark.parametrize("name", WITH_LEAKS)
def test_a_page_shows_every_number_of_its_row_and_measured_the_defences_in_it(name: str) -> None:
    own = row(name)
    said = numbers(f"{own.source} {own.exactness} {own.time}")
    assert said
    assert said <= numbers(page_text(name))
    assert re.search(r"\d (batches|images|texts|transcripts|(smoothed |mixed )?labels)\b", own.exactness), (
        "how many cases"
    )
    assert any((one.leak, one.attack) == (own.kind, own.attack) for one in outcomes()), "the row names an attack"
    assert own.network in {"", *(one.network for one in outcomes() if one.page == name)}
    for stop in stopping(own, name, outcomes()):
        assert own.network in ("", stop.network)
        assert stop.family != RESCALING
        assert stop.severity == 0
        assert stop.count >= LEAST or stop.page == name


def test_every_row_leads_to_its_page_and_says_what_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [studies.load(name) for name in studies.names()]
    assert [study.name for study in pages if summary_of(study.name).leaks] == WITH_LEAKS
    text = landing.text({study.name: summary_of(study.name) for study in pages})
    for name in WITH_LEAKS:
        assert f"<executed/{studies.paper_of(name)}/{name}>`" in text
    assert text.count("not recorded") < 5
    monkeypatch.setattr(records, "recorded", lambda name: None)
    assert summaries(pages) == {}
    assert "{doc}" not in landing.text({}).split(":::\n")[1]


def test_outcomes_are_numbers_with_their_intervals_each_in_its_own_setting() -> None:
    settings = [(one.page, one.measure, *(getattr(one, axis) for axis in ("leak", *AXES))) for one in outcomes()]
    assert len(settings) == len(set(settings))
    assert {one.leak for one in outcomes()} == set(KINDS)
    for one in outcomes():
        assert min(one.count, one.batch) >= 1
        assert one.attack
        assert one.network
        assert one.training in ("trained", "untrained")
        assert family(one.defense)
        assert not one.low > one.value
        assert not one.high < one.value
        assert one.unit == "dB" or (0 <= one.value <= 100 and one.low <= one.high)


def test_what_stops_an_attack_is_named_with_what_still_leaks() -> None:
    said = {name: stopped(row(name), name, outcomes()) for name in WITH_LEAKS}
    assert "noise of standard deviation 1e-06 (n = 1" in said["peeling"]
    assert "computing in float16 (n = 10" in said["batches"]
    assert "which leaves 100 % (classes right)" in said["label-accuracy"]
    assert said["cnn-reconstruction"] == "none of those measured"
    assert "small recogniser" in said["transcripts"], "the network, if it is not the row's"
    clipped = [one for one in outcomes() if one.leak == "images" and one.family == RESCALING]
    assert any(one.page == "fcn-inversion" and one.severity == 0 for one in clipped)
    assert any(one.page == "audit" and one.severity == 3 for one in clipped), "an audit refutes the stop"
