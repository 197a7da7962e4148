"""A small book, built by plain Sphinx from the settings of `_config.yml`: our extensions, and its search in a browser.

This is also the way out of jupyter-book 1.x.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import yaml
from docutils import nodes
from docutils.utils import new_document
from sphinx import addnodes

from gradleak import paths
from gradleak.book import gallery

ROOT = Path(__file__).parents[2]
# The extensions that jupyter-book loads, by their own names.
EXTENSIONS = ("myst_nb", "sphinx_external_toc", "sphinx_book_theme", "sphinxcontrib.bibtex", "sphinx_design")
BUILD = (
    "import sys; from sphinx.cmd.build import main; code = main(sys.argv[1:]); "
    "assert 'jupyter_book' not in sys.modules; sys.exit(code)"
)
TABLE = ":::{{table}} {}\n:name: tab-noise-{}\n\n| a | b |\n| --- | --- |\n| {} | 1 |\n:::\n"
LINK = r"[{claim}`2 (3) \| x <t5-α+β>`]{.badge .badge-holds}"
TABLES = (
    TABLE.format("Sums of labels.", "sums", f"{LINK} and {{bookfile}}`noise.json <records/noise.json>`")
    + TABLE.format("Table 5: noise on one row: 16 claims.", "verdicts-1", "{bookfile}`gone <records/gone.json>`")
    + TABLE.format("Section 5.2: dB that noise costs: 2 claims.", "verdicts-2", "b")
    + TABLE.format("Section 5.2: noise elsewhere: 1 claim.", "verdicts-3", "b")
)
PAGE = (
    "# A page\n\nThe first sentence. {numref}`tab-noise-verdicts-1`, {eq}`eq-one`, {cite:t}`wang2024`.\n\n"
    "$$ a = b $$ (eq-one)\n"
)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
PLACES = {
    "book/executed/wang2024/noise": ["wang2024", "Section 5.2, Table 5, Figure 6"],
    "book/executed/wang2024/deep": ["wang2024", "Beyond section 4.2"],
}
NOISE: Any = SimpleNamespace(name="noise", paper="wang2024", title="Noise", place="Table 5")
TEXTS = {
    "index": "# Index\n\nSee {page}`noise` and {numref}`tab-noise-sums`.\n\n```{bibliography}\n```\n",
    "executed/wang2024/deep": "# Another page\n\nText.\n",
    "cards": "# Cards\n\n" + gallery.text([NOISE], {"noise": []}, {}, ()),
    "scoreboard": "# Scoreboard\n\n{bookfile}`the page <book/executed/wang2024/noise.html#a-page>`\n",
    "british": "# Noise\n\nThis defence changes **what**\nleaks: $\\gamma = 1$. See [the other](american.md).\n\n"
    "## How much\n\nMuch.\n",
    "american": "# Pruning\n\nAnother defense. An average, not federated.\n",
}


def conf() -> str:
    """Return a conf.py with the settings of our `_config.yml`."""
    ours = yaml.safe_load((ROOT / "_config.yml").read_text())
    settings: dict[str, Any] = ours["sphinx"]["config"] | {
        "project": ours["title"],
        "extensions": [*EXTENSIONS, *ours["sphinx"]["local_extensions"]],
        "exclude_patterns": ["out", "jupyter_execute", "book/generated"],
        "external_toc_path": "book/_toc.yml",
        "nb_execution_mode": ours["execute"]["execute_notebooks"],
        "myst_enable_extensions": ours["parse"]["myst_enable_extensions"],
        "bibtex_bibfiles": [str(ROOT / file) for file in ours["bibtex_bibfiles"]],
        "html_theme": "sphinx_book_theme",
        "html_theme_options": {"repository_url": "https://github.com/a/gradleak", "repository_branch": "main"},
        "html_static_path": [str(ROOT / "book" / "_static")],
        "html_extra_path": ["book/generated/beside"],
    }
    lines = [f"{name} = {value!r}" for name, value in settings.items()]
    return "\n".join(["import sys", f"sys.path.insert(0, {str(ROOT / 'book' / '_ext')!r})", *lines])


def executed() -> str:
    """Return an executed page with what ours have: a formula, a citation, tables and a figure."""
    output, code = nbformat.v4.new_output, nbformat.v4.new_code_cell
    cells = [
        nbformat.v4.new_markdown_cell(PAGE),
        code("table", outputs=[output("execute_result", {"text/markdown": TABLES})]),
        code("figure", outputs=[output("display_data", {"image/png": PIXEL})]),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=kernel)))


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the book, warnings being errors, change a page and build it again; return the folder of its pages."""
    root = tmp_path_factory.mktemp("a book")
    chapters = [{"file": f"book/{name}"} for name in list(TEXTS)[2:]]
    toc = {"format": "jb-book", "root": "book/index", "chapters": [{"glob": "book/executed/wang2024/*"}, *chapters]}
    files = {f"book/{name}.md": text for name, text in TEXTS.items()} | {
        "conf.py": conf(),
        "book/_toc.yml": json.dumps(toc),
        "book/executed/wang2024/noise.ipynb": executed(),
        "book/generated/places.json": json.dumps(PLACES),
        "book/generated/beside/records/noise.json": "{}",
        "book/generated/beside/claims/t5-α+β.html": "<p>A claim</p>",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for much, index in (("Much.", "first.js"), ("Very much.", "second.js")):
        (root / "book" / "british.md").write_text(TEXTS["british"].replace("Much.", much))
        command = [sys.executable, "-c", BUILD, "-q", "-W", "--keep-going", "-b", "html", str(root), str(root / "out")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[-3000:]
        shutil.copy(root / "out" / "searchindex.js", root / "out" / index)
    return root / "out"


def extension(name: str) -> Any:
    sys.path.insert(0, str(paths.book() / "_ext"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def test_every_place_that_a_page_regenerates_is_found() -> None:
    places = extension("paper_places").places
    assert list(places("Sections 2.5.2 and 3, Figures 3–5, Tables 6 to 8, and beyond, Appendices B and C")) == [
        "Section 2.5.2", "Section 3", "Figure 3", "Figure 4", "Figure 5", "Table 6", "Table 7", "Table 8",
        "Appendix B", "Appendix C",
    ]  # fmt: skip


def test_names_places_and_links_of_a_built_book(html: Path) -> None:
    """Names stand in captions and references, links lead to what is there, and a page is found by what it shows."""
    expected = {
        "book/executed/wang2024/noise": [
            *(
                f'<span class="caption-number">{name} </span><span class="caption-text">{caption}'
                for name, caption in (
                    ("Table noise-sums", "Sums"),
                    ("wang2024, Table 5, claims", "Noise on one row"),
                    ("wang2024, Section 5.2, claims 1", "dB that noise costs"),
                    ("wang2024, Section 5.2, claims 2", "Noise elsewhere"),
                )
            ),
            'href="#tab-noise-verdicts-1"><span class="std std-numref">wang2024, Table 5, claims<',
            'href="../../../claims/t5-α+β.html"', "2 (3) | x", 'href="../../../records/noise.json"', "Wang", "<img",
            '<p class="regenerates">Regenerates wang2024: Section 5.2, Table 5, Figure 6.</p>',
            "https://mybinder.org/v2/gh/a/gradleak/main?urlpath=lab/tree/notebooks/wang2024/noise.ipynb",
            "https://colab.research.google.com/github/a/gradleak/blob/main/notebooks/wang2024/noise.ipynb",
        ],
        "book/executed/wang2024/deep": [">Goes beyond wang2024, section 4.2.</p>"],
        "book/scoreboard": ['href="executed/wang2024/noise.html#a-page"'],
        "book/cards": ['href="executed/wang2024/noise.html"'],
        "book/index": ['href="executed/wang2024/noise.html#tab-noise-sums"'],
    }  # fmt: skip
    for page, parts in expected.items():
        text = (html / f"{page}.html").read_text()
        assert [part for part in parts if part not in text] == []
        assert "gone.json" not in text
        assert ("regenerates" in text) == ("executed/" in page)
    assert (html / "records/noise.json").is_file()
    # Sphinx loses the entries of pages that it does not read again.
    index = json.loads((html / "first.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    ((document, anchor, main),) = index["indexentries"]["wang2024 table 5"]
    assert (index["docnames"][document], anchor, main) == ("book/executed/wang2024/noise", "", True)


def test_what_follows_the_first_sentence_of_a_function_is_folded() -> None:
    method = addnodes.desc("", addnodes.desc_content("", nodes.paragraph(text="A method.")))
    first, more, fields = nodes.paragraph(text="What it does."), nodes.paragraph(text="More."), nodes.field_list()
    content = addnodes.desc_content("", first, more, fields, method)
    tree = new_document("")
    tree += addnodes.desc("", content)
    extension("plain_docstrings").fold(None, tree, "")
    assert [type(child).__name__ for child in content] == ["paragraph", "raw", "paragraph", "field_list", "raw", "desc"]
    assert len(method.children[0].children) == 1, "nothing follows its only sentence"


@pytest.mark.browser
def test_a_search_of_a_book_that_was_opened_from_a_file(browser: Any, html: Path) -> None:
    complaints: list[str] = []
    view = browser.new_page()
    view.on("pageerror", lambda error: complaints.append(str(error)))
    for asked, pages, excerpt, says in (
        ("leaks", ["british"], "Noise This defence changes what leaks: . See the other.", "found 1 page"),
        ("how much", ["british.html#how-much", "british"], "How much Very much.", "found 2 page"),
        ("Defences", ["british", "american"], "This defence", "Searched for as well: “defenses”"),
        ("ViT", [], "", "Your search did not match any documents."),
    ):
        view.goto(f"{(html / 'search.html').as_uri()}?q={asked}")
        view.locator(".search-summary:not(:empty)").wait_for()
        links = view.eval_on_selector_all("#search-results li a", "all => all.map(one => one.getAttribute('href'))")
        found = [link.removeprefix("book/").removesuffix(".html") for link in links]
        assert found[: len(pages)] == pages
        assert len(found) == len(pages) or "found" not in says
        assert excerpt in "".join(view.locator("#search-results li p.context").all_inner_texts()[:1])
        assert says in view.inner_text(".search-summary")
    view.close()
    assert complaints == []
