"""Compute the digest of the code of a study's trials: all definitions that its experiments use.

A definition is a function, a class or an assignment at the top level of a module of this package. The closure contains
the experiments, the definitions that they name, the definitions that those name, and so on. The digest is a hash of
their syntax trees, in the order in which they are first named; names of other definitions are replaced by numbers.

So the digest does not depend on comments, docstrings, annotations of functions, formatting, import lines, the names of
modules and definitions, or the module of a definition. It does depend on everything that is computed. The statements
that run when a module is imported count with each of its definitions. An alternative constructor of a class, a class
method such as `Leak.from_update`, counts only if something names it.
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

# Modules that do not change results: they pass values on unchanged, or show results. The digest leaves them out.
SHOWING = frozenset(f"gradleak.auditing.{name}" for name in ("drawing", "report", "sentences"))
SILENT = frozenset({"gradleak.reporting", *SHOWING})
# Used in place of a definition's name: the statements that run when its module is imported, or the whole module.
EFFECTS, WHOLE = "(import)", "(whole)"
ATTRIBUTE = re.compile(r"\.(\w+)")


class Definition(NamedTuple):
    """A name at the top level of a module."""

    module: str
    name: str


@dataclass(frozen=True)
class Sources:
    """The definitions with which something is computed, and their digest."""

    digest: str
    definitions: frozenset[Definition]


def of_trials(study: Study) -> Sources:
    """Return the definitions with which a study's trials are computed."""
    return _package().trials(study.module_name)


def of_page(study: Study, modules: Iterable[str]) -> Sources:
    """Return the definitions that a page uses: those of its notebook, of its study's module and of `modules`."""
    cells = json.loads(study.notebook.read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    package = _package()
    page = f"page {hashlib.sha256(code.encode()).hexdigest()}"
    package.modules[page] = Module.read(page, code, is_package=False)
    return package.closure([Definition(name, WHOLE) for name in (page, study.module_name, *modules)])


def of_modules(*modules: str) -> Sources:
    """Return all definitions of some modules, and all definitions that these use."""
    return _package().closure([Definition(name, WHOLE) for name in modules])


def package_folder() -> Path:
    """Return the folder of the package `gradleak` that this process has imported."""
    return Path(gradleak.__file__).resolve().parent


def file_of(module: str) -> Path | None:
    """Return the file of a module of this package, or None for other modules."""
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
    """Return the package in the present state of its files, which are read again only if one has changed."""
    folder, pages = package_folder(), tuple(studies.package_path())
    stats = [(file, file.stat()) for place in {str(folder), *pages} for file in Path(place).rglob("*.py")]
    return _read(folder, pages, tuple(sorted((str(file), stat.st_mtime_ns, stat.st_size) for file, stat in stats)))


@lru_cache(maxsize=2)
def _read(folder: Path, pages: tuple[str, ...], state: tuple[tuple[str, int, int], ...]) -> Package:
    return Package(folder, pages)


class Package:
    """The modules of a package, each read at its first use."""

    def __init__(self, folder: Path, pages: tuple[str, ...] = (), silent: frozenset[str] = SILENT) -> None:
        self.folder, self.pages, self.silent = folder, pages, silent
        self.modules: dict[str, Module | None] = {}
        self.texts: dict[tuple[Definition, frozenset[str]], tuple[str, list[Definition]]] = {}
        self.closures: dict[tuple[Definition, ...], Sources] = {}

    def module(self, name: str) -> Module | None:
        """Return a module, or None if it does not belong to this package."""
        if name not in self.modules:
            file = _file_of(name, self.folder, self.pages)
            read = Module.read(name, file.read_text("utf-8"), file.stem == "__init__") if file else None
            self.modules[name] = read
        return self.modules[name]

    def trials(self, module: str) -> Sources:
        """Return the definitions with which the trials of a study's module are computed."""
        parsed = self.module(module)
        if parsed is None:
            raise InputError(f"there is no module {module}")
        kinds = sorted(name for name in parsed.bindings if any(map(_runs, parsed.definitions(name))))
        if not kinds:
            raise InputError(f"{module} has no experiment: a class with a method `run`")
        return self.closure([Definition(module, name) for name in kinds])

    def closure(self, roots: Iterable[Definition]) -> Sources:
        """Return the definitions that `roots` use, directly or indirectly, the roots included, and their digest.

        An alternative constructor of a class counts only if one of the definitions names it.
        """
        roots, spare = tuple(roots), frozenset[str]()
        while roots not in self.closures:
            result, named, constructor_names = self._closed(roots, spare)
            if constructor_names - named <= spare:
                self.closures[roots] = result
            spare |= constructor_names - named
        return self.closures[roots]

    def _closed(self, roots: tuple[Definition, ...], spare: frozenset[str]) -> tuple[Sources, set[str], set[str]]:
        """Return the closure without the constructors in `spare`, the attributes it names, and its constructors."""
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
        for definition in waiting:  # `number` appends to this list while it is read
            text, named = self._text(definition, spare)
            attributes |= set(ATTRIBUTE.findall(text))
            first, *rest = text.split("\0")
            numbered = [f"#{number(other)} {segment}" for other, segment in zip(named, rest, strict=True)]
            digest.update("".join([first, *numbered, "\n"]).encode())
        constructor_names = set().union(*map(self._constructors, numbers))
        return Sources(digest.hexdigest()[:16], frozenset(numbers)), attributes, constructor_names

    def _constructors(self, definition: Definition) -> set[str]:
        """Return the names of the alternative constructors if a definition is a class."""
        parsed = self.module(definition.module)
        assert parsed is not None
        nodes = parsed.definitions(definition.name) if definition.name in parsed.bindings else []
        return set().union(*map(constructors, nodes))

    def _text(self, definition: Definition, spare: frozenset[str]) -> tuple[str, list[Definition]]:
        """Return a definition's text, in which \\0 stands for each other definition, and these definitions in order."""
        without = spare & self._constructors(definition)
        if (definition, without) not in self.texts:
            self.texts[definition, without] = self._spelled(*definition, without)
        return self.texts[definition, without]

    def _spelled(self, module: str, name: str, without: frozenset[str]) -> tuple[str, list[Definition]]:
        parsed = self.module(module)
        assert parsed is not None
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
            names = sorted(parsed.bindings)
            parts = [f"{binding}={read(binding, ())[0]}" for binding in names]
            return f"module({' '.join(parts)})", named
        nodes: list[ast.stmt] = parsed.effects if name == EFFECTS else parsed.definitions(name)
        return " ".join(spelled(node, parsed, name, read, without) for node in nodes), named

    def _meaning(self, module: str, root: Import | str, attributes: tuple[str, ...]) -> tuple[Definition | str, int]:
        """Resolve a name and the attributes behind it, and return the number of attributes that the result includes.

        The result is a definition of this package, or a text for a name from outside the package.
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
        """Resolve a name in a module; return None if the module does not have the name."""
        parsed = self.module(module)
        assert parsed is not None
        if name in parsed.bindings:
            if parsed.definitions(name):
                return Definition(module, name)
            imported = parsed.imported(name)
            # A package may import one of its own modules by name. Following that import would lead back to this name,
            # so such a module is looked up below.
            if (imported.module, imported.name) != (module, name):
                return self._imported(imported)
        inner = f"{module}.{name}"
        if self.module(inner) is not None:
            return _Place(inner)
        # A module's __getattr__ returns the names that the module imports under `if TYPE_CHECKING`.
        if "__getattr__" in parsed.bindings and name in parsed.types:
            return self._imported(parsed.types[name])
        return None

    def _imported(self, what: Import) -> Definition | _Place | str:
        if self.module(what.module) is None:
            return what.text()
        if what.name is None:
            return _Place(what.module)
        bound = self._bound(what.module, what.name)
        if bound is None:
            raise InputError(f"an import needs '{what.name}' in {what.module}, which has no such name")
        return bound


def _runs(node: ast.stmt) -> bool:
    """Whether a definition is an experiment: a class with a method `run`."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(member, ast.FunctionDef) and member.name == "run" for member in node.body
    )


class _Place(NamedTuple):
    """A module of this package, as the meaning of a name."""

    module: str
