"""The book's Sphinx extensions: stable names of tables and figures, what a page regenerates, links to claims."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docutils import nodes
from docutils.utils import new_document
from sphinx import addnodes

from gradleak import studies

EXTENSIONS = Path(__file__).parents[2] / "book" / "_ext"
CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_parser", "claim_role", "stable_names", "paper_places"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
exclude_patterns = ["book/generated"]
numfig = True
numfig_format = {{"figure": "%s", "table": "%s"}}
html_extra_path = ["book/generated/beside"]
"""
PAGE = """# A page

The first sentence, about $\\alpha$. {numref}`tab-noise-sums`, {numref}`tab-noise-verdicts-1`, and {eq}`eq-one`.

:::{table} Sums of labels.
:name: tab-noise-sums

| a |
| --- |
| [{claim}`2 (3) \\| x <t5-α+β>`]{.badge .badge-holds} and {bookfile}`noise.json <records/noise.json>` |
:::

:::{table} Table 5: noise on one row: 16 claims.
:name: tab-noise-verdicts-1

| a |
| --- |
| {bookfile}`gone <records/gone.json>` |
:::

:::{table} Section 5.2: dB that noise costs: 2 claims.
:name: tab-noise-verdicts-2

| a |
| --- |
| b |
:::

:::{table} Section 5.2: noise elsewhere: 1 claim.
:name: tab-noise-verdicts-3

| a |
| --- |
| b |
:::

$$ a = b $$ (eq-one)
"""


def extension(name: str) -> Any:
    sys.path.insert(0, str(EXTENSIONS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXTENSIONS))


@pytest.mark.parametrize(
    ("label", "caption", "page", "name"),
    [
        ("tab-theorem1-sums", "How far labels sum from one.", "book/executed/wang2024/x", "Table theorem1-sums"),
        ("fig-cover", "A picture", "book/index", "Figure cover"),
        ("tab-x-1", "Table 3: images, with labels: 12 claims", "book/executed/wang2024/x", "wang2024, Table 3"),
        ("tab-x-verdicts-2", "Table 3: images: 12 claims", "book/executed/wang2024/x", "wang2024, Table 3, claims"),
        ("tab-x-verdicts", "Our own claims: 12 claims", "book/executed/wang2024/x", "Table x-verdicts"),
        ("tab-x-1", "Section 4.3, full steps: dB", "book/executed/wang2024/x", "wang2024, Section 4.3"),
        ("tab-x-1", "Tables 1 and 4: as coded", "book/executed/dang2021/x", "dang2021, Tables 1 and 4"),
        ("tab-x-2", "Table 5 with noise on the layer: 16", "book/executed/wang2024/x", "Table x-2"),
        ("tab-x-1", "Table 3: images", "book/scoreboard", "Table x-1"),
        ("fig-x", "Labels (Figure 2 of wang2024). Top left: …", "book/executed/wang2024/x", "wang2024, Figure 2"),
        ("id3", "A table without a label", "book/index", ""),
    ],
)
def test_a_table_has_the_papers_number_or_the_name_of_its_label(label: str, caption: str, page: str, name: str) -> None:
    assert extension("stable_names").name_of(label, caption, page) == name


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("Section 4.3, Table 3", ["Section 4.3", "Table 3"]),
        ("Sections 2.5.2 and 3, Tables 2, 3 and 4", [
            "Section 2.5.2", "Section 3", "Table 2", "Table 3", "Table 4",
        ]),
        ("Figures 3–5, Table 6", ["Figure 3", "Figure 4", "Figure 5", "Table 6"]),
        ("Figures 6 to 8, and beyond", ["Figure 6", "Figure 7", "Figure 8"]),
        ("Appendices B and C", ["Appendix B", "Appendix C"]),
        ("Section 3.1, Theorem 1, Table 1", ["Section 3.1", "Theorem 1", "Table 1"]),
        ("Beyond section 4.2", []),
    ],
)  # fmt: skip
def test_every_place_that_a_page_regenerates_is_found(text: str, places: list[str]) -> None:
    assert list(extension("paper_places").places(text)) == places


@pytest.mark.parametrize("name", studies.names())
def test_the_places_of_each_page_are_found(name: str) -> None:
    text = studies.load(name).module.PLACE
    assert bool(list(extension("paper_places").places(text))) != text.startswith("Beyond")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a small book, whose warnings are errors, and return the folder of its pages."""
    root = tmp_path_factory.mktemp("sphinx")
    texts = {
        "conf.py": CONF.format(extensions=str(EXTENSIONS)),
        "index.md": "# Index\n\n```{toctree}\n:glob:\nbook/executed/wang2024/*\nbook/scoreboard\n```\n",
        "book/executed/wang2024/noise.md": PAGE,
        "book/executed/wang2024/deep.md": "# Another page\n\nText.\n",
        "book/scoreboard.md": "# Scoreboard\n\n{bookfile}`the page <book/executed/wang2024/noise.html#a-page>`\n",
        "book/generated/places.json": json.dumps(
            {
                "book/executed/wang2024/noise": ["wang2024", "Section 5.2, Table 5, Figure 6"],
                "book/executed/wang2024/deep": ["wang2024", "Beyond section 4.2"],
            }
        ),
        "book/generated/beside/records/noise.json": "{}",
        "book/generated/beside/claims/t5-α+β.html": "<p>A claim</p>",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-q", "-b", "html", str(root), str(root / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return root / "out"


def test_names_stand_in_captions_and_references(built: Path) -> None:
    text = (built / "book/executed/wang2024/noise.html").read_text()
    assert '<span class="caption-number">Table noise-sums </span><span class="caption-text">Sums' in text
    for name, caption in (
        ("wang2024, Table 5, claims", "Noise on one row"),
        ("wang2024, Section 5.2, claims 1", "dB that noise costs"),
        ("wang2024, Section 5.2, claims 2", "Noise elsewhere"),
    ):
        assert f'<span class="caption-number">{name} </span><span class="caption-text">{caption}' in text
    assert '<a class="reference internal" href="#tab-noise-sums"><span class="std std-numref">Table noise-sums' in text
    assert 'href="#tab-noise-verdicts-1"><span class="std std-numref">wang2024, Table 5, claims<' in text


def test_links_lead_to_claims_and_to_files_that_are_there(built: Path) -> None:
    text = (built / "book/executed/wang2024/noise.html").read_text()
    assert 'href="../../../claims/t5-α+β.html"' in text
    assert "2 (3) | x" in text
    assert 'href="../../../records/noise.json"' in text
    assert (built / "records/noise.json").is_file()
    assert "gone" in text
    assert "gone.json" not in text
    assert 'href="executed/wang2024/noise.html#a-page"' in (built / "book/scoreboard.html").read_text()


def test_a_page_says_what_it_regenerates_and_is_found_by_it(built: Path) -> None:
    assert (
        '<p class="regenerates">Regenerates wang2024: Section 5.2, Table 5, Figure 6.</p>'
        in (built / "book/executed/wang2024/noise.html").read_text()
    )
    assert ">Goes beyond wang2024, section 4.2.</p>" in (built / "book/executed/wang2024/deep.html").read_text()
    assert "regenerates" not in (built / "book/scoreboard.html").read_text()
    index = json.loads((built / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    ((document, anchor, main),) = index["indexentries"]["wang2024 table 5"]
    assert (index["docnames"][document], anchor, main) == ("book/executed/wang2024/noise", "", True)


def test_what_follows_the_first_sentence_of_a_function_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    method = addnodes.desc("", addnodes.desc_content("", nodes.paragraph(text="A method.")))
    first, more, fields = nodes.paragraph(text="What it does."), nodes.paragraph(text="More."), nodes.field_list()
    content = addnodes.desc_content("", first, more, fields, method)
    tree = new_document("")
    tree += addnodes.desc("", content)
    importlib.import_module("plain_docstrings").fold(None, tree, "")
    assert [child.astext() for child in content.children if isinstance(child, nodes.raw)][1] == "</details>"
    assert [type(child).__name__ for child in content] == ["paragraph", "raw", "paragraph", "field_list", "raw", "desc"]
    assert len(method.children[0].children) == 1, "nothing follows its only sentence"
