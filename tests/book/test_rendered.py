"""A page as one HTML file: its formulas as MathML, its roles and directives as text, its outputs as they are."""

from __future__ import annotations

import json
import re

import nbformat
import pytest

from gradleak import paths, studies
from gradleak.book import rendered


def cell(source: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_markdown_cell(source)


@pytest.mark.parametrize("name", studies.names())
def test_every_formula_of_the_book_is_mathml(name: str) -> None:
    cells = json.loads(studies.load(name).notebook.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    page = "".join(rendered.parts([cell(text) for text in texts], shows_record=True))
    formulas = sum(len(re.findall(r"\$\$.+?\$\$|\$[^$]+?\$", text, re.DOTALL)) for text in texts)
    assert page.count("<math") == formulas
    assert 'class="tex"' not in page
    assert "{cite" not in page


@pytest.mark.parametrize(
    ("tex", "expected"),
    [
        (r"\hat y_i", "<msub>"),
        (r"\big(x\big)", "<mi>x</mi>"),
        (r"\tfrac12", "<mfrac"),
        (r"1, \dots, n", "…"),
    ],
)
def test_forms_that_docutils_lacks(tex: str, expected: str) -> None:
    assert expected in rendered.formula(tex, block=False)


def test_what_is_no_formula_is_shown_as_it_is() -> None:
    assert rendered.formula(r"\nonsense{<}", block=False) == r'<code class="tex">\nonsense{&lt;}</code>'


def test_roles_directives_and_numbered_equations() -> None:
    page = "".join(
        rendered.parts(
            [
                cell("See {eq}`eq-two`, {cite:t}`wang2024` and {doc}`the next page <noise>`."),
                cell("$$ a $$ (eq-one)\n\n$$ b $$ (eq-two)"),
                cell(":::{note} Mind\n:class: x\nthe *gap*\n:::\n\n```python\nx < 1\n```"),
                cell("| a | b |\n|---|---|\n| 1 | 2 |"),
            ],
            shows_record=True,
        )
    )
    assert 'See <a href="#eq-two">(2)</a>, wang2024 and the next page.' in page
    assert 'id="eq-one"' in page
    assert "<span>(1)</span>" in page
    assert '<div class="note"><p><strong>Mind</strong></p><p>the <em>gap</em></p>' in page
    assert "<pre><code>x &lt; 1\n</code></pre>" in page
    assert "<td>1</td>" in page


def test_outputs_of_every_kind() -> None:
    output = nbformat.v4.new_output
    code = nbformat.v4.new_code_cell(
        "print('<')",
        outputs=[
            output("stream", text="a < b"),
            output("display_data", {"text/html": "<b>bold</b>", "text/markdown": "no"}),
            output("display_data", {"text/markdown": "*yes*"}),
            output("execute_result", {"text/plain": "1 < 2"}),
            output("display_data", {"image/png": "QUJD\n", "text/plain": "<Figure>"}),
        ],
    )
    page = "".join(rendered.parts([code], shows_record=False))
    for part in (
        "print(&#x27;&lt;&#x27;)", "<pre>a &lt; b</pre>", "<b>bold</b>", "<em>yes</em>", "<pre>1 &lt; 2</pre>",
        'src="data:image/png;base64,QUJD"',
    ):  # fmt: skip
        assert part in page
    assert "<Figure>" not in page


def test_the_styles_and_scripts_of_the_book_are_embedded() -> None:
    assert (paths.book() / "_static" / "gradleak.css").read_text() in rendered._styles()
    assert (paths.book() / "_static" / "gradleak.js").read_text() in rendered._of_book("html_js_files")
    assert "</script" not in rendered._of_book("html_js_files")
