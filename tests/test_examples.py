"""The examples in docstrings run, and give what they say."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "gradleak").rglob("*.py")
    if "    >>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_give_what_they_say(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.fixture(scope="module")
def extension() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain_docstrings", ROOT / "book/_ext/plain_docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        pytest.param(["a_b of `c_d`, 2*3"], [r"a\_b of ``c_d``, 2\*3"], id="text"),
        pytest.param(["So:", "", "    x * y"], ["So:", "", "::", "", "        x * y"], id="formula"),
        pytest.param(
            ["Args:", "    name: A number n_i * 2,", "        and more_so.", "    other: `x`."],
            ["Args:", r"    name: A number n\_i \* 2,", r"        and more\_so.", "    other: ``x``."],
            id="arguments",
        ),
        pytest.param(["Returns:", "    Either: a_b."], ["Returns:", r"    Either: a\_b."], id="returns"),
        pytest.param([">>> 2 * _x", "4"], [">>> 2 * _x", "4"], id="example"),
        pytest.param(["Examples:", "    >>> 2 * 2", "    4"], ["Examples:", "    >>> 2 * 2", "    4"], id="examples"),
    ],
)
def test_docstrings_become_restructured_text(extension: ModuleType, docstring: list[str], expected: list[str]) -> None:
    assert extension.read(docstring) == expected
