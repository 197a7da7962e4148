"""Find mistakes in what a command was given before large packages are imported, so that they cost no time."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from gradleak.errors import InputError, printable, unknown

# The dictionaries, in files of this package, whose keys are the names that commands take.
KNOWN = {
    "network": ("models/registry.py", "NETWORKS"),
    "dataset": ("data/base.py", "KNOWN"),
    "defence": ("defenses.py", "KINDS"),
    "measure": ("auditing/findings.py", "MEASURES"),
    "family of attacks": ("hunting/families.py", "FAMILIES"),
}


def check_named(text: str) -> None:
    """Refuse a "module:function" whose module does not exist, or whose source does not define the function."""
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise InputError(f"'{printable(text)}' must be written module:name, such as torchvision.models:resnet18")
    module, _, name = text.partition(":")
    if module in sys.modules:
        return
    top = module.partition(".")[0]
    spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path]) or importlib.util.find_spec(top)
    if spec is None:
        raise InputError(f"there is no module '{top}', neither in this folder nor among the installed packages")
    if module == top and spec.origin and spec.origin.endswith(".py"):
        defined = _defined(Path(spec.origin))
        if defined and name.partition(".")[0] not in defined:
            raise unknown(f"name in {module}.py", name, sorted(defined))


def check_known(kind: str, name: str) -> None:
    """Refuse a name of a kind in `KNOWN` that this package does not define."""
    known = names(kind)
    if known and name not in known:
        raise unknown(kind, printable(name), known)


def names(kind: str) -> list[str]:
    """Return the names of a kind in `KNOWN`, empty if they are not known without running the code."""
    file, name = KNOWN[kind]
    for node in _body(Path(__file__).parent / file):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                return [str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)]
    return []


def check_file(text: str) -> None:
    """Refuse the name of a file with samples that does not exist."""
    place = Path(os.path.expanduser(text))
    if place.suffix in (".npz", ".csv", ".parquet") and not place.is_file():
        raise InputError(f"there is no file '{printable(place.name)}'")


def _body(source: Path) -> list[ast.stmt]:
    """Return the statements of a module, none if its source cannot be read."""
    try:
        return ast.parse(source.read_text("utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return []


def _defined(source: Path) -> set[str]:
    """Return the names that a module's source defines, empty if they are not known without running it."""
    names: set[str] = set()
    for node in _body(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        elif not isinstance(node, ast.Expr):
            return set()  # it may define names in a branch or a loop
    return set() if names & {"*", "__getattr__"} else names
