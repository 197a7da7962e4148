"""The way out of jupyter-book 1.x: plain Sphinx builds the book's pages from the settings of `_config.yml`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from gradleak import paths

# What replaces jupyter-book: the extensions that it loads for us, by their own names.
EXTENSIONS = ("myst_nb", "sphinx_external_toc", "sphinx_book_theme", "sphinxcontrib.bibtex", "sphinx_design")
BUILD = (
    "import sys; from sphinx.cmd.build import main; code = main(sys.argv[1:]); "
    "assert 'jupyter_book' not in sys.modules; sys.exit(code)"
)
TABLE = ":::{table} How many.\n:name: tab-toy\n:class: gradleak-table\n\n| n | sum |\n| ---: | ---: |\n| 1 | 2 |\n:::\n"
INDEX = "# Two pages\n\nSee {page}`page` and {numref}`tab-toy`.\n\n```{bibliography}\n```\n"
OWNER = "https://github.com/somebody/gradleak"


def conf(**theme: str) -> str:
    """Return a conf.py with the settings of our `_config.yml`."""
    ours = yaml.safe_load((paths.root() / "_config.yml").read_text())
    settings: dict[str, Any] = ours["sphinx"]["config"] | {
        "project": ours["title"],
        "author": ours["author"],
        "extensions": [*EXTENSIONS, *ours["sphinx"]["local_extensions"]],
        "exclude_patterns": ["out"],
        "external_toc_path": "book/_toc.yml",
        "nb_execution_mode": ours["execute"]["execute_notebooks"],
        "myst_enable_extensions": ours["parse"]["myst_enable_extensions"],
        "bibtex_bibfiles": ours["bibtex_bibfiles"],
        "html_theme": "sphinx_book_theme",
        "html_theme_options": theme,
        # These folders are filled by `gradleak book`, or lie in the book's checkout.
        "html_static_path": [],
        "html_extra_path": [],
        "html_css_files": [],
        "html_js_files": [],
    }
    lines = [f"{name} = {value!r}" for name, value in settings.items()]
    return "\n".join(["import sys", f"sys.path.insert(0, {str(paths.book() / '_ext')!r})", *lines])


def notebook() -> nbformat.NotebookNode:
    """Return an executed page with what ours have: a formula, a citation, a table and a figure."""
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
    output = nbformat.v4.new_output
    cells = [
        nbformat.v4.new_markdown_cell("# A page\n\n{cite:t}`wang2024` has {eq}`eq-toy`.\n\n$$ x^2 $$ (eq-toy)"),
        nbformat.v4.new_code_cell("print(1)", outputs=[output("stream", text="1\n")]),
        nbformat.v4.new_code_cell("table", outputs=[output("execute_result", {"text/markdown": TABLE})]),
        nbformat.v4.new_code_cell("figure", outputs=[output("display_data", {"image/png": pixel})]),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def build(folder: Path, **theme: str) -> Path:
    """Build a book of two pages with Sphinx, warnings being errors, and return the folder of its HTML."""
    pages = folder / "book" / "executed" / "wang2024"
    pages.mkdir(parents=True)
    (folder / "conf.py").write_text(conf(**theme))
    toc = {"format": "jb-book", "root": "book/index", "chapters": [{"glob": "book/executed/wang2024/*"}]}
    (folder / "book" / "_toc.yml").write_text(json.dumps(toc))
    (folder / "book" / "index.md").write_text(INDEX)
    (folder / "book" / "references.bib").write_text((paths.book() / "references.bib").read_text())
    nbformat.write(notebook(), pages / "page.ipynb")
    command = [sys.executable, "-c", BUILD, "-q", "-W", "--keep-going", "-b", "html", str(folder), str(folder / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder / "out"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("book"), repository_url=OWNER, repository_branch="main")


def test_plain_sphinx_builds_a_page(built: Path) -> None:
    page = (built / "book" / "executed" / "wang2024" / "page.html").read_text()
    assert "How many." in page
    assert "Wang" in page
    assert "<img" in page
    assert 'class="math' in page
    assert 'href="executed/wang2024/page.html#tab-toy"' in (built / "book" / "index.html").read_text()


def test_a_repository_has_launch_buttons_to_the_notebooks(built: Path) -> None:
    page = (built / "book" / "executed" / "wang2024" / "page.html").read_text()
    links = set(re.findall(r'href="(https://(?:mybinder|colab)[^"]+)"', page))
    assert links == {
        "https://mybinder.org/v2/gh/somebody/gradleak/main?urlpath=lab/tree/notebooks/wang2024/page.ipynb",
        "https://colab.research.google.com/github/somebody/gradleak/blob/main/notebooks/wang2024/page.ipynb",
    }
    assert "mybinder" not in (built / "book" / "index.html").read_text(), "only pages are notebooks"


def test_without_an_address_there_is_no_button(tmp_path: Path) -> None:
    page = build(tmp_path, repository_url="https://github.com/executablebooks/jupyter-book")
    text = (page / "book" / "executed" / "wang2024" / "page.html").read_text()
    assert "launch-buttons" not in text
    assert "mybinder" not in text
