"""The picture of the imports names every part, and no arrow goes up."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import gradleak
from gradleak.book import architecture
from gradleak.show import figures


def test_imports_are_read_from_the_sources_and_none_goes_up() -> None:
    found = architecture.imports()
    assert {("cli", "book"), ("book", "studies"), ("labels", "leak"), ("leak", "losses")} <= found
    level = {part: number for number, (_, row) in enumerate(architecture.LAYERS) for part in row}
    assert {(a, b) for a, b in found if level[b] < level[a]} == set()
    tree = ast.parse("if TYPE_CHECKING:\n    from gradleak.book import records\nfrom gradleak import leak")
    assert list(architecture._imported(tree)) == ["leak"], "what is imported for types alone is no import"


def test_the_picture_shows_every_part() -> None:
    files = Path(gradleak.__file__).parent.iterdir()
    parts = {file.stem for file in files if file.suffix == ".py" or (file / "__init__.py").is_file()}
    figure = architecture.draw()
    assert np.std(plt.imread(io.BytesIO(figures.png(figure)))) > 0.05
    assert {part for part in parts if part[0] != "_"} <= {text.get_text() for text in figure.axes[0].texts}
    plt.close(figure)
