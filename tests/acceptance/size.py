"""Count how large the project is: lines of code, and the pages, words, tables and figures of the built book.

`make size`, or `python -m tests.acceptance.size [checkout]`. A line of code is one with code on it: docstrings,
comments and blank lines do not count.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[2]
FRAMEWORK = ("book", "runs", "claims", "show")
# What a reader of a page does not see, or sees on every page.
HIDDEN = re.compile(r"<(script|style|nav|header|footer)\b.*?</\1>", re.DOTALL)


def code_lines(source: str) -> int:
    """Return the number of lines with code.

    Examples:
        >>> code_lines('def f():\\n    "A docstring."\\n\\n    return 1  # a comment\\n')
        2
    """
    tree, docstrings = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body and ast.get_docstring(node) is not None else None
            docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1)) if first else set()
    lines = source.splitlines()
    texts = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    code = {number for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    return len((code | texts) - docstrings)


def python(files: Iterable[Path]) -> int:
    """Return the lines of code of modules."""
    return sum(code_lines(file.read_text()) for file in files)


def counts(root: Path) -> dict[str, int]:
    """Return all counts, by what is counted; those of the book are missing where it has not been built."""
    package, notebooks = root / "gradleak", sorted(root.glob("notebooks/*/*.ipynb"))
    cells = [cell for file in notebooks for cell in json.loads(file.read_text())["cells"]]
    styles = [file for kind in ("js", "css") for file in root.glob(f"book/_static/*.{kind}")]
    found = {
        "code of package and pages": python(package.rglob("*.py")),
        "  the framework: " + ", ".join(FRAMEWORK): sum(python((package / part).rglob("*.py")) for part in FRAMEWORK),
        "  the pages' code": python((package / "studies").rglob("*.py")),
        "code of tests": python((root / "tests").rglob("*.py")),
        "code in notebooks": sum(code_lines("".join(one["source"])) for one in cells if one["cell_type"] == "code"),
        "claims (YAML)": filled(package.glob("claims/*/*.yaml")),
        "JavaScript and CSS": filled(styles),
        "result pages": len(notebooks),
    }
    # The HTML of every page's own part.
    pages = [file.read_text().partition("<article")[2] for file in (root / "_build" / "html").rglob("*.html")]
    pages = [HIDDEN.sub(" ", page.partition("</article>")[0]) for page in pages if page]
    if pages:
        found |= {
            "pages": len(pages),
            "words that are seen before anything is opened": sum(map(seen, pages)),
            "words, with folds": sum(len(re.sub(r"<[^>]+>", " ", page).split()) for page in pages),
            # Beside each filtered table there is a hidden one, a placeholder until the rows are loaded.
            "tables": sum(len(re.findall(r"<table(?![^>]* hidden)", page)) for page in pages),
            "figures": sum(page.count("<img") - page.count("-dark.png") for page in pages),
        }
    return found


def seen(page: str) -> int:
    """Return the words of a page outside its folds and its code."""
    soup = BeautifulSoup(page, "html.parser")
    for part in soup.select("details, .highlight, script"):
        part.extract()
    return len(soup.get_text(" ").split())


def filled(files: Iterable[Path]) -> int:
    """Return the lines that are not empty."""
    return sum(bool(line.strip()) for file in files for line in file.read_text().splitlines())


if __name__ == "__main__":
    for what, number in counts(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT).items():
        print(f"{number:8,}  {what}")
