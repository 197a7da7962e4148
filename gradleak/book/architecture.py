"""Draw the package's structure: its parts as boxes in layers, with arrows for the imports found in the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import gradleak
from gradleak.show import figures

# The layers, from the most dependent to the most basic. A part that no layer lists belongs to the last layer, to which
# no arrows are drawn.
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
    (
        "what the server sees, defences, networks, data and metrics",
        ("leak", "defenses", "models", "data", "metrics"),
    ),
    ("labels and losses", ("augment", "losses")),
    (
        "used by all parts",
        (
            "precision",
            "devices",
            "spans",
            "reporting",
            "interrupts",
            "paths",
            "storage",
            "wording",
            "arguments",
            "errors",
        ),
    ),
)
COLOURS = ("#e8eef3", "#f6e3de", "#dbe7ef", "#f5ecd9", "#e3ede4", "#ece6f0", "#eef0f2", "#f3ece2")


def parts() -> list[str]:
    """Return the package's parts: its subpackages and modules whose names do not start with an underscore."""
    folder = Path(gradleak.__file__).parent
    names = [path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return sorted(name for name in names if not name.startswith("_"))


def imports() -> set[tuple[str, str]]:
    """Return the pairs (importing part, imported part), without imports that serve only for type checking."""
    known, folder = set(parts()), Path(gradleak.__file__).parent
    pairs = set()
    for part in known:
        base = folder / part
        for file in base.rglob("*.py") if base.is_dir() else [base.with_suffix(".py")]:
            for node in _executed(ast.parse(file.read_text("utf-8"))):
                pairs |= {(part, other) for other in _named(node) if other in known and other != part}
    return pairs


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, except those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        typed = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        if isinstance(node, ast.If) and typed:
            yield from (inner for other in node.orelse for inner in (other, *_executed(other)))
        else:
            yield node
            yield from _executed(node)


def _named(node: ast.AST) -> list[str]:
    """Return the parts of gradleak that an import names; the package has no relative imports."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name.split(".")[1] for name in names if name.startswith("gradleak.")]


def layers() -> list[tuple[str, list[str]]]:
    """Return the existing parts, by layer."""
    existing = parts()
    named = {part for _, row in LAYERS for part in row}
    rows = [(title, [part for part in row if part in existing]) for title, row in LAYERS]
    rows[-1][1].extend(part for part in existing if part not in named)
    return [(title, row) for title, row in rows if row]


def draw() -> Figure:
    """Draw the layers from the command line down to the basic parts, with one arrow for each import between parts."""
    rows, arrows = layers(), imports()
    width, height = 100.0, 10.0
    figure, axes = figures.panels(1, 1, height=1.02 * len(rows), width=8.4)
    axis, boxes = axes[0][0], {}
    for number, (title, row) in enumerate(rows):
        low = (len(rows) - 1 - number) * 2 * height
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axis.text(0, low + height + 2, title, fontsize=9, color="#5a6570", va="bottom", zorder=5, bbox=ground)
        size = (width - 2 * (len(row) - 1)) / len(row) if len(row) > 3 else 26.0
        left = (width - size * len(row) - 2 * (len(row) - 1)) / 2
        for column, part in enumerate(row):
            x = left + column * (size + 2)
            boxes[part] = (x + size / 2, low, number)
            axis.add_patch(
                FancyBboxPatch((x, low), size, height, boxstyle="round,pad=0,rounding_size=1.5",
                               facecolor=COLOURS[number % len(COLOURS)], edgecolor="#14405c", linewidth=1, zorder=3)
            )  # fmt: skip
            axis.text(x + size / 2, low + height / 2, part, ha="center", va="center", fontsize=10.5, zorder=4)
    for source, target in sorted(arrows):
        if target not in rows[-1][1]:
            _arrow(axis, boxes[source], boxes[target], height)
    axis.set(xlim=(-1, width + 1), ylim=(-2, 2 * height * len(rows) - height + 6))
    axis.axis("off")
    return figure


def _arrow(axis: Axes, source: tuple[float, float, int], target: tuple[float, float, int], height: float) -> None:
    """Draw the arrow of an import: blue down to another layer, a green bow within a layer, red upwards."""
    (x, y, level), (u, v, below) = source, target
    down = below > level
    start, end = ((x, y), (u, v + height)) if down else ((x, y + height), (u, v if below < level else v + height))
    colour = "#c8553d" if below < level else "#4f9dc9" if down else "#7a9e7e"
    bow = 0.0 if below != level else -0.25 if u > x else 0.25
    axis.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=8, connectionstyle=f"arc3,rad={bow}",
                        color=colour, linewidth=0.8, alpha=0.75, zorder=2, shrinkA=1, shrinkB=1)
    )  # fmt: skip
