"""Draw the package's structure: its parts as boxes in layers, with arrows for the imports found in the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

import gradleak
from gradleak.show import figures

# The layers, from the most dependent to the most basic; no arrows are drawn to the last one.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("the command line", ("cli", "watched")),
    ("the book", ("book",)),
    ("the pages, and the papers' claims", ("studies", "claims")),
    ("tables and figures", ("show",)),
    ("experiments, trials and records", ("runs",)),
    ("audits, and the search for wrong certificates", ("auditing", "hunting")),
    ("the list of all attacks", ("catalogue",)),
    ("attacks", ("labels", "images", "sequences")),
    ("what attacks run on, and their answers", ("cases", "answers")),
    ("what the server sees, defences, networks, data and metrics", ("leak", "defenses", "models", "data", "metrics")),
    ("labels and losses", ("augment", "losses")),
    (
        "used by all parts",
        ("precision", "calling", "devices", "spans", "reporting", "interrupts",
         "paths", "storage", "wording", "arguments", "early", "tracing", "errors"),
    ),
)  # fmt: skip
COLOURS = ("#e8eef3", "#f6e3de", "#dbe7ef", "#f5ecd9", "#e3ede4", "#ece6f0", "#eef0f2", "#f3ece2")


def imports() -> set[tuple[str, str]]:
    """Return the pairs (importing part, imported part), without imports that serve only for type checking."""
    folder, known = Path(gradleak.__file__).parent, {part for _, row in LAYERS for part in row}
    pairs = set()
    for file in folder.rglob("*.py"):
        part = file.relative_to(folder).with_suffix("").parts[0]
        pairs |= {(part, other) for other in _imported(ast.parse(file.read_text("utf-8"))) if other != part}
    return {pair for pair in pairs if known.issuperset(pair)}


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the parts of gradleak that a tree imports, all of them by `from … import …` with absolute names."""
    conditions = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    for_types = [node for node in conditions if ast.unparse(node.test) == "TYPE_CHECKING"]
    hidden = {inner for node in for_types for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in hidden:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name.split(".")[1] for name in names if name.startswith("gradleak."))


def draw() -> Figure:
    """Draw the layers from the command line down to the basic parts, with one arrow for each import between parts.

    An arrow down to a lower layer is blue, an arrow within a layer is green, and an arrow upwards is red.
    """
    figure, axes = figures.panels(1, 1, height=0.95 * len(LAYERS), width=8.4)
    axis, places = axes[0][0], {}
    for number, (title, row) in enumerate(LAYERS):
        height = len(LAYERS) - number
        axis.text(0, height + 0.25, title, fontsize=9, color="#5a6570", zorder=5, backgroundcolor="white")
        for column, part in enumerate(row):
            places[part] = (column + 0.5) / len(row), height
            box = {"boxstyle": "round,pad=0.4", "facecolor": COLOURS[number % len(COLOURS)], "edgecolor": "#14405c"}
            axis.text(*places[part], part, ha="center", va="center", fontsize=9, bbox=box, zorder=4)
    for source, target in sorted(imports()):
        if target not in LAYERS[-1][1]:
            (x, y), (u, v) = places[source], places[target]
            colour = "#4f9dc9" if v < y else "#7a9e7e" if v == y else "#c8553d"
            bow = 0.0 if v != y else -0.25 if u > x else 0.25
            style = {"arrowstyle": "-|>", "color": colour, "alpha": 0.75, "shrinkA": 12, "shrinkB": 12}
            axis.annotate("", (u, v), (x, y), arrowprops=style | {"connectionstyle": f"arc3,rad={bow}"}, zorder=2)
    axis.set(xlim=(-0.02, 1.02), ylim=(0.5, len(LAYERS) + 0.7))
    axis.axis("off")
    return figure
