"""What trials are computed with: the definitions that `trial` reaches, and a digest of them.

A definition is a function, a class or an assignment at the top of a module of this package. Those that `trial` names,
those that they name, and so on, make the closure. In the digest they stand in the order in which they are first named,
as syntax trees in which a number takes the place of a name that means another of them. So comments, docstrings,
annotations of functions, formatting, import lines, the names of modules and of definitions, and who lives in which
module do not count; what is computed does. What a module does when it is imported counts with each of its definitions.
A further constructor of a class, a class method such as `Leak.from_update`, counts where something names it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import gradleak
from gradleak.errors import InputError
from gradleak.runs import studies
from gradleak.runs.spelling import Import, Module, constructors, spelled
from gradleak.runs.studies import Study

# What passes through these comes out as it went in, or is a way to show what was found.
SHOWING = frozenset(f"gradleak.auditing.{name}" for name in ("drawing", "report", "sentences"))
SILENT = frozenset({"gradleak.reporting", *SHOWING})
# In place of a definition's name: what its module does when it is imported, or all that it holds.
EFFECTS, WHOLE = "(import)", "(whole)"
ATTRIBUTE = re.compile(r"\.(\w+)")


class Definition(NamedTuple):
    """A name at the top of a module."""

    module: str
    name: str


@dataclass(frozen=True)
class Sources:
    """What something is computed with, and the digest by which it is known."""

    digest: str
    definitions: frozenset[Definition]


def of_trials(study: Study) -> Sources:
    """Return what a study's trials are computed with."""
    return _package().trials(study.module_name)


def of_page(study: Study, modules: Iterable[str]) -> Sources:
    """Return what a page is made with: the code in its notebook, all of its study, and all of some modules."""
    cells = json.loads(study.notebook.read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    package = _package()
    page = f"page {hashlib.sha256(code.encode()).hexdigest()}"
    package.modules[page] = Module.read(page, code, is_package=False)
    return package.closure([Definition(name, WHOLE) for name in (page, study.module_name, *modules)])


def of_modules(*modules: str) -> Sources:
    """Return all of some modules, and what that leads to."""
    return _package().closure([Definition(name, WHOLE) for name in modules])


def package_folder() -> Path:
    """Return the folder of the package whose code runs here."""
    return Path(gradleak.__file__).resolve().parent


def file_of(module: str) -> Path | None:
    """Return the file of a module of this package, if it is one."""
    return _file_of(module, package_folder(), tuple(studies.package_path()))


def _file_of(module: str, package: Path, pages: tuple[str, ...]) -> Path | None:
    parts = module.split(".")
    if parts[0] != "gradleak":
        return None
    bases = [package.joinpath(*parts[1:])]
    if parts[1:2] == ["studies"]:
        bases += [Path(folder).joinpath(*parts[2:]) for folder in pages]
    files = [file for base in bases for file in (base.with_name(f"{base.name}.py"), base / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def _package() -> Package:
    """Return the package as its files are now; it is read again when one of them was written since."""
    folder, pages = package_folder(), tuple(studies.package_path())
    stats = [(file, file.stat()) for place in {str(folder), *pages} for file in Path(place).rglob("*.py")]
    return _read(folder, pages, tuple(sorted((str(file), stat.st_mtime_ns, stat.st_size) for file, stat in stats)))


@lru_cache(maxsize=2)
def _read(folder: Path, pages: tuple[str, ...], state: tuple[tuple[str, int, int], ...]) -> Package:
    return Package(folder, pages)


class Package:
    """The modules of a package, read when they are first asked for."""

    def __init__(self, folder: Path, pages: tuple[str, ...] = (), silent: frozenset[str] = SILENT) -> None:
        self.folder, self.pages, self.silent = folder, pages, silent
        self.modules: dict[str, Module | None] = {}
        self.texts: dict[tuple[Definition, frozenset[str]], tuple[str, list[Definition]]] = {}

    def module(self, name: str) -> Module | None:
        """Return a module, or None if it is none of this package."""
        if name not in self.modules:
            file = _file_of(name, self.folder, self.pages)
            read = Module.read(name, file.read_text("utf-8"), file.stem == "__init__") if file else None
            self.modules[name] = read
        return self.modules[name]

    def trials(self, module: str) -> Sources:
        """Return what the trials of a study's module are computed with."""
        found = self.module(module)
        if found is None:
            raise InputError(f"there is no module {module}")
        kinds = sorted(name for name in found.bindings if any(map(_runs, found.definitions(name))))
        if not kinds:
            raise InputError(f"{module} has no experiment: a class with a method `run`")
        return self.closure([Definition(module, name) for name in kinds])

    def closure(self, roots: Iterable[Definition]) -> Sources:
        """Return the definitions that some lead to, themselves included, and their digest.

        A constructor of a class counts where one of them names it.
        """
        roots, spare = list(roots), frozenset[str]()
        while True:
            found, named, constructors = self._closed(roots, spare)
            if constructors - named <= spare:
                return found
            spare |= constructors - named

    def _closed(self, roots: list[Definition], spare: frozenset[str]) -> tuple[Sources, set[str], set[str]]:
        """Return a closure without the constructors that are spared; the attributes it names; its constructors."""
        numbers: dict[Definition, int] = {}
        waiting: list[Definition] = []

        def number(definition: Definition) -> int:
            if definition not in numbers:
                numbers[definition] = len(numbers)
                waiting.append(definition)
                effects = Definition(definition.module, EFFECTS)
                if effects not in numbers and self._text(effects, spare)[0]:
                    number(effects)
            return numbers[definition]

        for root in roots:
            number(root)
        digest = hashlib.sha256()
        attributes: set[str] = set()
        for definition in waiting:  # grows as it is read
            text, named = self._text(definition, spare)
            attributes |= set(ATTRIBUTE.findall(text))
            first, *others = text.split("\0")
            numbered = [f"#{number(one)} {part}" for one, part in zip(named, others, strict=True)]
            digest.update("".join([first, *numbered, "\n"]).encode())
        constructors = set().union(*map(self._constructors, numbers))
        return Sources(digest.hexdigest()[:16], frozenset(numbers)), attributes, constructors

    def _constructors(self, definition: Definition) -> set[str]:
        """Return the names of the constructors of a definition that is a class."""
        found = self.module(definition.module)
        assert found is not None
        nodes = found.definitions(definition.name) if definition.name in found.bindings else []
        return set().union(*map(constructors, nodes))

    def _text(self, definition: Definition, spare: frozenset[str]) -> tuple[str, list[Definition]]:
        """Return a definition's text, in which \\0 stands for each definition that it names, and those."""
        without = spare & self._constructors(definition)
        if (definition, without) not in self.texts:
            self.texts[definition, without] = self._spelled(*definition, without)
        return self.texts[definition, without]

    def _spelled(self, module: str, name: str, without: frozenset[str]) -> tuple[str, list[Definition]]:
        found = self.module(module)
        assert found is not None
        named: list[Definition] = []

        def named_by(meaning: Definition | str) -> str:
            if isinstance(meaning, str):
                return meaning
            if meaning.module in self.silent:
                return "(silent)"
            named.append(meaning)
            return "\0"

        def read(root: Import | str, attributes: tuple[str, ...]) -> tuple[str, int]:
            meaning, used = self._meaning(module, root, attributes)
            return named_by(meaning), used

        if name == WHOLE:
            names = sorted(found.bindings)
            parts = [f"{one}={read(one, ())[0]}" for one in names]
            return f"module({' '.join(parts)})", named
        nodes: list[ast.stmt] = found.effects if name == EFFECTS else found.definitions(name)
        return " ".join(spelled(node, found, name, read, without) for node in nodes), named

    def _meaning(self, module: str, root: Import | str, attributes: tuple[str, ...]) -> tuple[Definition | str, int]:
        """Return what a name and the attributes behind it mean, and how many of these that takes up.

        The meaning is a definition of this package, or a text for what lies outside.
        """
        place = self._bound(module, root) if isinstance(root, str) else self._imported(root)
        used = 0
        while isinstance(place, _Place):
            if used == len(attributes) or attributes[used].startswith("__"):
                return Definition(place.module, WHOLE), used
            inner = self._bound(place.module, attributes[used])
            if inner is None:
                return Definition(place.module, WHOLE), used
            place, used = inner, used + 1
        return (root if isinstance(root, str) else root.text()) if place is None else place, used

    def _bound(self, module: str, name: str) -> Definition | _Place | str | None:
        """Return what a module's name means; None for one that it lacks."""
        found = self.module(module)
        assert found is not None
        if name in found.bindings:
            if found.definitions(name):
                return Definition(module, name)
            what = found.imported(name)
            # A package that imports a module of its own gives it that very name.
            if (what.module, what.name) != (module, name):
                return self._imported(what)
        inner = f"{module}.{name}"
        if self.module(inner) is not None:
            return _Place(inner)
        # A module's own __getattr__ gives what it tells the type checker.
        if "__getattr__" in found.bindings and name in found.types:
            return self._imported(found.types[name])
        return None

    def _imported(self, what: Import) -> Definition | _Place | str:
        if self.module(what.module) is None:
            return what.text()
        if what.name is None:
            return _Place(what.module)
        bound = self._bound(what.module, what.name)
        if bound is None:
            raise InputError(f"there is no '{what.name}' in {what.module}, which something imports from there")
        return bound


def _runs(node: ast.stmt) -> bool:
    """Whether a definition is an experiment: a class with a method `run`."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(one, ast.FunctionDef) and one.name == "run" for one in node.body
    )


class _Place(NamedTuple):
    """A module of this package, meant as such."""

    module: str
