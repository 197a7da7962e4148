"""A Sphinx extension that gives tables and figures stable names instead of running numbers.

A table or figure that follows one of the paper's has the paper's number: its caption begins with "Table 3: " or holds
"(Figure 2 of wang2024)", and its name is "wang2024, Table 3". The table with the claims about it is "wang2024, Table 3,
claims"; if a page has several of these, they are counted. Any other is named by its label: the table with the label
`tab-theorem1-sums` is "Table theorem1-sums". The role {numref} shows the same names.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector
from sphinx.transforms import SphinxTransform

Captioned = (nodes.table, nodes.figure)
KIND = r"(?:Table|Figure|Section|Theorem|Equation)s?|Appendix|Appendices"
PLACE = rf"(?:{KIND}) [\w.()]+(?:(?:, | and | to |–)[\d.]+)*"
LEADING = re.compile(rf"^({PLACE})(?:, [^:]*)?: ")
BRACKETED = re.compile(rf"\(({PLACE}) of (\w+\d{{4}})\)")
PAGE = re.compile(r"/executed/(\w+)/")
KINDS = {"tab": "Table", "fig": "Figure"}
CLAIMS = re.compile(r"-verdicts(-\d+)?$")


def name_of(label: str, caption: str, docname: str) -> str:
    """Return the stable name of a table or figure; "" if it has neither a number of the paper's nor a label.

    Args:
        label: The label of the table or figure.
        caption: Its caption.
        docname: The document in which it stands.
    """
    page, leading, bracketed = PAGE.search(docname), LEADING.match(caption), BRACKETED.search(caption)
    if page and leading:
        return f"{page[1]}, {leading[1]}" + ", claims" * bool(CLAIMS.search(label))
    if bracketed:
        return f"{bracketed[2]}, {bracketed[1]}"
    kind, _, rest = label.partition("-")
    return f"{KINDS[kind]} {rest}" if kind in KINDS and rest else ""


class Names(SphinxTransform):
    """Keep each table's and figure's stable name with its node, before labels are collected."""

    default_priority = 700

    def apply(self, **kwargs: Any) -> None:
        """Name all tables and figures of a document."""
        named: list[tuple[nodes.Element, str]] = []
        for node in self.document.findall(lambda one: isinstance(one, Captioned)):
            caption = next(iter(node.findall(lambda one: isinstance(one, nodes.title | nodes.caption))), None)
            if caption is None or not node["ids"]:
                continue
            named.append((node, name_of(node["ids"][0], caption.astext(), self.env.docname)))
            first = next(iter(caption.findall(nodes.Text)), None)
            # The paper's number would stand twice in a row.
            if first is not None and (leading := LEADING.match(first)) and leading[1] in named[-1][1]:
                rest = first[leading.end(1) :].lstrip(":, ")
                first.parent.replace(first, nodes.Text(rest if rest.startswith("dB") else rest[:1].upper() + rest[1:]))
        counts, seen = Counter(name for _, name in named), Counter[str]()
        for node, name in named:
            seen[name] += 1
            if name:
                node["stable_name"] = f"{name} {seen[name]}" if counts[name] > 1 else name


numbered = TocTreeCollector.assign_figure_numbers


def _assign(self: TocTreeCollector, env: BuildEnvironment) -> list[str]:
    """Replace the numbers of tables and figures by their names, and return the documents in which any changed."""
    before = env.toc_fignumbers
    numbered(self, env)
    domain = env.domains["std"]
    for docname, kinds in env.toc_fignumbers.items():
        for node in env.get_doctree(docname).findall(lambda one: isinstance(one, Captioned) and one["ids"]):
            names = kinds.get(domain.get_enumerable_node_type(node), {})
            if node["ids"][0] in names:
                names[node["ids"][0]] = (node.get("stable_name", ""),)
    return [name for name in env.found_docs if env.toc_fignumbers.get(name) != before.get(name)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace the numbers that Sphinx assigns."""
    app.add_transform(Names)
    TocTreeCollector.assign_figure_numbers = _assign
    return {"parallel_read_safe": True}
