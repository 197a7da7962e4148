"""The picture of the imports, and that none goes against the flow."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import gradleak
from gradleak.book import architecture
from gradleak.show import figures


def parts() -> set[str]:
    """Return the package's subpackages and modules whose names do not start with an underscore."""
    files = Path(gradleak.__file__).parent.iterdir()
    names = {file.stem for file in files if file.suffix == ".py" or (file / "__init__.py").is_file()}
    return {name for name in names if not name.startswith("_")}


def test_imports_are_read_from_the_sources() -> None:
    found = architecture.imports()
    assert {("cli", "book"), ("book", "studies"), ("labels", "leak"), ("leak", "losses")} <= found
    assert {part for pair in found for part in pair} <= parts()


def test_what_is_imported_for_types_alone_is_no_import() -> None:
    tree = ast.parse("if TYPE_CHECKING:\n    from gradleak.book import records\nfrom gradleak import leak")
    assert list(architecture._imported(tree)) == ["leak"]
    tree = ast.parse("def f():\n    from gradleak.book import records\n    from gradleak import leak")
    assert list(architecture._imported(tree)) == ["book", "leak"]


def test_every_part_has_its_layer_and_no_import_goes_up() -> None:
    level = {part: number for number, (_, row) in enumerate(architecture.LAYERS) for part in row}
    assert parts() <= set(level), "name a new part's layer"
    upwards = {(a, b) for a, b in architecture.imports() if level[b] < level[a]}
    assert upwards == set()


def test_the_picture_is_drawn() -> None:
    figure = architecture.draw()
    assert np.std(figures.gray_table(figure)) > 0.05
    texts = {text.get_text() for axis in figure.axes for text in axis.texts}
    assert parts() <= texts
    plt.close(figure)
