"""Count how large the project is: lines of code, and the pages, words, tables and figures of the built book.

`make size`, or `python -m tests.acceptance.size [checkout]`. A line of code is one with code on it: docstrings,
comments and blank lines do not count.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRAMEWORK = ("book", "runs", "claims", "show")
NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
# What a reader of a page does not see, or sees on every page.
HIDDEN = re.compile(r"<(script|style|nav|header|footer)\b.*?</\1>", re.DOTALL)


def code_lines(source: str) -> int:
    """Return the number of lines with code.

    Examples:
        >>> code_lines('def f():\\n    "A docstring."\\n\\n    return 1  # a comment\\n')
        2
    """
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = [range(one.start[0], one.end[0] + 1) for one in tokens if one.type not in NOT_CODE]
    return len({line for span in spans for line in span} - docstrings)


def python(folder: Path) -> int:
    """Return the lines of code of all modules in a folder."""
    return sum(code_lines(file.read_text()) for file in folder.rglob("*.py"))


def in_notebooks(root: Path) -> int:
    """Return the lines of code in the cells of all result pages."""
    cells = (
        "".join(cell["source"])
        for file in root.glob("notebooks/*/*.ipynb")
        for cell in json.loads(file.read_text())["cells"]
        if cell["cell_type"] == "code"
    )
    return sum(map(code_lines, cells))


def filled(root: Path, *patterns: str) -> int:
    """Return the lines that are not empty in the files of these patterns."""
    files = [file for pattern in patterns for file in root.glob(pattern)]
    return sum(bool(line.strip()) for file in files for line in file.read_text().splitlines())


def articles(built: Path) -> Iterator[str]:
    """Yield the HTML of every page's own part."""
    for file in sorted(built.rglob("*.html")):
        _, found, rest = file.read_text().partition("<article")
        if found:
            yield HIDDEN.sub(" ", rest.partition("</article>")[0])


def counts(root: Path) -> dict[str, int]:
    """Return all counts, by what is counted; those of the book are missing where it has not been built."""
    package = root / "gradleak"
    found = {
        "code of package and pages": python(package),
        "  the framework: " + ", ".join(FRAMEWORK): sum(python(package / part) for part in FRAMEWORK),
        "  the pages' code": python(package / "studies"),
        "code of tests": python(root / "tests"),
        "code in notebooks": in_notebooks(root),
        "claims (YAML)": filled(root, "gradleak/claims/*/*.yaml"),
        "JavaScript and CSS": filled(root, "book/_static/*.js", "book/_static/*.css"),
        "result pages": len(list(root.glob("notebooks/*/*.ipynb"))),
    }
    pages = list(articles(root / "_build" / "html"))
    if pages:
        text = [re.sub(r"<[^>]+>", " ", page) for page in pages]
        found |= {
            "pages": len(pages),
            "words, with folds": sum(len(page.split()) for page in text),
            "tables": sum(page.count("<table") for page in pages),
            "figures": sum(page.count("<img") for page in pages),
        }
    return found


if __name__ == "__main__":
    for what, number in counts(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT).items():
        print(f"{number:8,}  {what}")
