"""Imports go one way: attacks know nothing of studies, studies nothing of what makes the book."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

import gradleak

# From the ground up. A module belongs to the longest name that it starts with, and imports of its own line or of lines
# above it; of two packages on one line neither knows the other.
FLOW = (
    "errors tracing",
    "paths storage interrupts reporting spans devices precision wording arguments early calling",
    "losses augment data",
    "leak metrics models",
    "defenses",
    "answers",  # the words and the shape of all answers
    "cases",  # what attacks are run on, and how they are declared
    "labels",
    "images sequences",
    "catalogue",  # every attack
    "auditing hunting",
    "runs",  # experiments, trials and records, and how they are confirmed
    "show",  # tables and figures
    "claims",
    "studies",
    "studies.shared",
    "studies.*",  # a folder a paper, as wang2024
    "book",
    "cli watched",
    "__main__",
)
LINES = {name: line for line, names in enumerate(FLOW) for name in names.split()}


def sources() -> dict[str, str]:
    """Return the text of every module of the package by its name, without the package's own."""
    root = Path(gradleak.__file__).parent
    texts = {}
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        texts[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file.read_text()
    return texts


def imported(text: str, known: Collection[str]) -> set[str]:
    """Return the modules that a text imports, inside functions too, but for those that only types are taken from."""
    found: set[str] = set()
    tree = ast.parse(text)
    conditions = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    for_types = [node for node in conditions if ast.unparse(node.test).endswith("TYPE_CHECKING")]
    hidden = {inner for node in for_types for inner in ast.walk(node)}
    for node in (node for node in ast.walk(tree) if node not in hidden):
        names = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written out"
            names = [f"{node.module}.{one.name}" for one in node.names]
        for name in (name.removeprefix("gradleak.") for name in names if name.startswith("gradleak.")):
            # What is no module is a name of one.
            found.add(name if name in known else name.rpartition(".")[0])
    return found - {""}


def place(module: str) -> tuple[int, str]:
    """Return a module's line in the flow, and the name there that it belongs to."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in LINES:
            return LINES[name], name
        if re.fullmatch(r"studies\.[a-z]+\d{4}", name):
            return LINES["studies.*"], name
    raise AssertionError(f"{module} has no place in the flow")


def against(texts: Mapping[str, str], known: Collection[str]) -> list[str]:
    """Return every import of these modules that goes against the flow."""
    wrong = []
    for module in sorted(set(texts) - {""}):
        line, own = place(module)
        for other in sorted(imported(texts[module], known)):
            there, name = place(other)
            if name != own and there >= line:
                wrong.append(f"{module} imports {other}")
    return wrong


def test_no_import_goes_against_the_flow() -> None:
    texts = sources()
    assert against(texts, texts) == []


@pytest.mark.parametrize(
    ("module", "text", "wrong"),
    [
        ("labels.soft.new", "def f():\n    from gradleak import images", "images"),
        ("labels.soft.new", "from gradleak.labels.soft import problem\nimport gradleak.leak", ""),
        ("studies.yin2021.new", "from gradleak.studies.wang2024 import noise", "studies.wang2024.noise"),
        ("studies.shared.new", "from gradleak.studies.yin2021 import batch_restoration as b", "studies.yin2021"),
        ("claims.new", "if TYPE_CHECKING:\n    from gradleak import cli", ""),
    ],
)
def test_what_goes_against_the_flow_is_seen(module: str, text: str, wrong: str) -> None:
    found = against({module: text}, [*sources(), module])
    assert len(found) == bool(wrong)
    assert all(line.startswith(f"{module} imports {wrong}") for line in found)
