"""Render an executed page to one HTML file that needs no network: figures are embedded, formulas are MathML.

Browsers draw MathML themselves; MathJax with its fonts would add megabytes. The book's own styles and scripts, which
are small, are embedded, so that its interactive figures work here as well.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gradleak import paths
from gradleak.auditing.html import templates
from gradleak.book import beside
from gradleak.book.rerun import Rerun
from gradleak.runs import records
from gradleak.show.tables import duration
from gradleak.storage import write_whole

# The package that holds the template and the style sheet of the file.
PACKAGE = "gradleak.book"
# docutils knows no sizes of brackets, no styles of formulas and not all short forms.
REPLACED = (
    (r"\\(big|Big|bigg|Bigg)[lrm]?(?![A-Za-z])", ""),
    (r"\\dots(?![A-Za-z])", r"\\ldots "),
    (r"\\(text|display)style(?![A-Za-z])", ""),
    # Without braces an index of an accented letter would stand below the accent.
    (r"\\(hat|bar|tilde|vec|dot)\s*([A-Za-z]|\\[A-Za-z]+|\{[^{}]*\})", r"{\\\1{\2}{}}"),
    (r"\\([td]?frac)\s*(\d)\s*(\d|[A-Za-z])", r"\\\1{\2}{\3}"),
    (r"\\([td]?frac)\s*(\d)(?=\{)", r"\\\1{\2}"),
)


def write(rerun: Rerun, notebook: Path) -> Path:
    """Write the HTML file of an executed page beside its notebook, and return the file."""
    import nbformat

    page = nbformat.read(notebook, 4)
    recorded = records.recorded(rerun.study.name) is not None
    record = rerun.record
    text = templates(PACKAGE).get_template("rerun.html").render(
        title=rerun.study.title,
        styles=_styles(),
        scripts=_of_book("html_js_files"),
        date=record.days[-1],
        trials=len(record.trials),
        seconds=duration(record.seconds),
        changed=rerun.changed,
        recorded=recorded,
        sentences=[*rerun.counts, *rerun.reasons],
        rows=rerun.rows(),
        # With the page's own parameters the page shows the recorded run, and else this run.
        parts=list(parts(page.cells, shows_record=recorded and record.profile == "quick")),
    )  # fmt: skip
    file = notebook.with_suffix(".html")
    write_whole(file, lambda stream: stream.write(text.encode()))
    return file


def parts(cells: Sequence[Any], *, shows_record: bool) -> Iterator[str]:
    """Yield the HTML of each cell of an executed page.

    Args:
        cells: The cells of the notebook.
        shows_record: Whether the page's figures and tables show the recorded run rather than this run.
    """
    text = _markdown(_numbers(cells))
    names = ("Recorded run", "This run") if shows_record else ("This run", "Recorded run")
    for cell in cells:
        if cell.cell_type == "markdown":
            yield text.render(cell.source)
        elif cell.cell_type == "code":
            yield _folded("Code", f"<pre><code>{html.escape(cell.source)}</code></pre>")
            yield from _outputs(cell.outputs, beside.of_other_run(cell), names, text)


def _outputs(outputs: Sequence[Any], others: Sequence[Any], names: tuple[str, str], text: Any) -> Iterator[str]:
    """Yield the HTML of a cell's outputs, each figure beside the same figure of the other run."""
    yield from (_output(output, text) for output in outputs if not _image(output))
    figures, counterparts = ([one for one in group if _image(one)] for group in (outputs, others))
    for number, output in enumerate(figures):
        pair = [output, *counterparts[number : number + 1]]
        captions = [f"<figcaption>{name}</figcaption>" for name in names] if len(pair) > 1 else [""]
        drawn = [f"<figure>{caption}{_image(one)}</figure>" for caption, one in zip(captions, pair, strict=True)]
        yield f'<div class="beside">{"".join(drawn)}</div>'
    if rest := "\n".join(_output(one, text) for one in others if not _image(one)):
        yield _folded(names[1], rest)


def _image(output: Any) -> str:
    """Return the HTML of an output that is an image, or ""."""
    data = output.get("data", {})
    if "image/png" not in data:
        return ""
    source = "".join(data["image/png"].split())
    return f'<img alt="figure" src="data:image/png;base64,{source}">'


def _output(output: Any, text: Any) -> str:
    """Return the HTML of an output: its own HTML, its Markdown or its plain text."""
    if output.output_type == "stream":
        return f"<pre>{html.escape(output.text)}</pre>"
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="wide">{data["text/html"]}</div>'
    if "text/markdown" in data:
        return str(text.render(data["text/markdown"]))
    plain = data.get("text/plain", "")
    return f"<pre>{html.escape(plain)}</pre>" if plain else ""


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def _numbers(cells: Sequence[Any]) -> dict[str, int]:
    """Return the numbers of the labelled equations of a page, by label."""
    sources = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return {label: number for number, label in enumerate(re.findall(r"\$\$\s*\(([\w-]+)\)", sources), 1)}


def _markdown(numbers: dict[str, int]) -> Any:
    """Return a renderer of MyST Markdown with tables, formulas, roles and directives."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.attrs import attrs_block_plugin, attrs_plugin
    from mdit_py_plugins.colon_fence import colon_fence_plugin
    from mdit_py_plugins.deflist import deflist_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.myst_blocks import myst_block_plugin
    from mdit_py_plugins.myst_role import myst_role_plugin

    text = MarkdownIt("commonmark").enable("table")
    text.use(dollarmath_plugin, renderer=lambda content, options: formula(content, block=options["display_mode"]))
    for plugin in (
        attrs_plugin, attrs_block_plugin, colon_fence_plugin, deflist_plugin, myst_block_plugin, myst_role_plugin,
    ):  # fmt: skip
        text.use(plugin)

    def labelled(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        label = tokens[index].info
        number = f"<span>({numbers.get(label, label)})</span>"
        body = formula(tokens[index].content, block=True)
        return f'<div class="equation" id="{html.escape(label)}"><div class="wide">{body}</div>{number}</div>'

    def role(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        name, content = tokens[index].meta["name"], tokens[index].content
        if name == "eq":
            return f'<a href="#{html.escape(content)}">({numbers.get(content, html.escape(content))})</a>'
        return html.escape(re.sub(r"\s*<[^<>]*>$", "", content))

    def directive(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        token = tokens[index]
        named = re.match(r"\{([\w-]+)\}\s*(.*)", token.info)
        if named is None:
            return f"<pre><code>{html.escape(token.content)}</code></pre>"
        body = re.sub(r"\A(:[\w-]+:.*\n)+", "", token.content)
        title = f"<p><strong>{html.escape(named[2])}</strong></p>" if named[2] else ""
        return f'<div class="{named[1]}">{title}{text.render(body)}</div>'

    for kind, rule in {
        "math_block_label": labelled, "myst_role": role, "fence": directive, "colon_fence": directive,
    }.items():  # fmt: skip
        text.add_render_rule(kind, rule)
    return text


def formula(tex: str, *, block: bool) -> str:
    """Return a formula as MathML, or its TeX source as code if it cannot be converted.

    Args:
        tex: The formula in TeX, without dollars.
        block: Whether the formula stands in a line of its own.
    """
    from docutils.utils.math import MathError
    from docutils.utils.math.latex2mathml import tex2mathml

    readable = functools.reduce(lambda text, pair: re.sub(pair[0], pair[1], text), REPLACED, tex.strip())
    try:
        return str(tex2mathml(readable, as_block=block))
    except (MathError, SyntaxError, IndexError, KeyError, AttributeError):
        return f'<code class="tex">{html.escape(tex)}</code>'


def _of_book(setting: str) -> str:
    """Return the text of the files in the book's static folder that a setting of `_config.yml` lists."""
    file = paths.root() / "_config.yml"
    config = yaml.safe_load(file.read_text("utf-8"))["sphinx"]["config"] if file.is_file() else {}
    return "\n".join((paths.book() / "_static" / name).read_text("utf-8") for name in config.get(setting, ()))


def _styles() -> str:
    """Return the style sheet of the file: its own rules after those of the book."""
    found = templates(PACKAGE)
    own, _, _ = found.loader.get_source(found, "rerun.css")  # type: ignore[union-attr]
    return _of_book("html_css_files") + own
