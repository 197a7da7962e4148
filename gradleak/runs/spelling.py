"""Read a module's definitions, and write their syntax trees as texts in which every name is resolved."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
DROPPED = {"ctx", "kind", "type_comment", "type_ignores", "returns", "annotation"}


class Import(NamedTuple):
    """The object that an import binds: a module, or a name in a module."""

    module: str
    name: str | None = None

    def text(self) -> str:
        return self.module if self.name is None else f"{self.module}.{self.name}"


# A function that resolves a name and the attributes behind it. It returns a text for the meaning, and the number of
# attributes that the meaning includes.
Read = Callable[[Import | str, tuple[str, ...]], tuple[str, int]]


@dataclass
class Module:
    """The parsed text of a module.

    Attributes:
        name: The full name of the module.
        package: The package from which its relative imports start.
        bindings: For each name, the imports and statements that bind it, in their order.
        effects: The other statements, which run when the module is imported.
        types: The imports under `if TYPE_CHECKING`, by name.
    """

    name: str
    package: str
    bindings: dict[str, list[Import | ast.stmt]] = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)
    types: dict[str, Import] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, text: str, is_package: bool) -> Module:
        module = cls(name, name if is_package else name.rpartition(".")[0])
        for node in ast.parse(text).body:
            module._take(node)
        return module

    def _take(self, node: ast.stmt) -> None:
        if _is_docstring(node):
            return
        if isinstance(node, ast.If) and _says(node.test, "TYPE_CHECKING"):
            for inner in node.body:
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    self.types |= dict(imports(inner, self.package))
            for inner in node.orelse:
                self._take(inner)
            return
        for name, imported in bound([node], self.package):
            self.bindings.setdefault(name, []).append(imported or node)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        plain = isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and all(map(_binds_names, targets))
        if not plain and not isinstance(node, Function | ast.ClassDef | ast.Import | ast.ImportFrom):
            self.effects.append(node)

    def definitions(self, name: str) -> list[ast.stmt]:
        """Return the statements that define a name, in their order; an empty list if the name is imported."""
        return [binding for binding in self.bindings[name] if isinstance(binding, ast.stmt)]

    def imported(self, name: str) -> Import:
        """Return the last import that binds a name."""
        return [binding for binding in self.bindings[name] if isinstance(binding, Import)][-1]


def imports(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Import]]:
    """Yield the names that an import statement binds, each with its object; relative imports start at `package`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.partition(".")[0]
            yield (alias.asname, Import(alias.name)) if alias.asname else (first, Import(first))
        return
    above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
    module = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        yield alias.asname or alias.name, Import(module, alias.name)


def bound(nodes: Iterable[ast.AST], package: str) -> Iterator[tuple[str, Import | None]]:
    """Yield the names that statements bind in their scope, each with the imported object, or None for others."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, None
            case ast.Lambda():
                pass
            case ast.Import() | ast.ImportFrom():
                yield from imports(node, package)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                inner = (expression.target for expression in ast.walk(node) if isinstance(expression, ast.NamedExpr))
                yield from ((target.id, None) for target in inner)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name, None
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, None
                yield from bound(ast.iter_child_nodes(node), package)
            case ast.MatchMapping(rest=str(name)):
                yield name, None
                yield from bound(ast.iter_child_nodes(node), package)
            case _:
                yield from bound(ast.iter_child_nodes(node), package)


class _Scope(NamedTuple):
    """The names of a function, a comprehension or a class, with the imported object, or None for others.

    Attributes:
        names: The names in the order in which they appear.
        places: The places of the names that may be renamed: neither arguments, which calls may state, nor attributes.
        is_class: Whether the names are those of a class, which are attributes.
    """

    names: dict[str, Import | None]
    places: dict[str, int]
    is_class: bool = False

    @classmethod
    def of(cls, names: dict[str, Import | None], arguments: Collection[str] = ()) -> _Scope:
        """Return the scope of a function or a comprehension."""
        renamed = (name for name, imported in names.items() if imported is None and name not in arguments)
        return cls(names, {name: place for place, name in enumerate(renamed)})

    def spelled(self, name: str, level: int) -> str:
        """Return the text of a name that is bound here, at this level of nesting."""
        return f"${level}.{self.places[name]}" if name in self.places else name


Scopes = tuple[_Scope, ...]


def spelled(node: ast.stmt, module: Module, own: str, read: Read, without: Collection[str] = ()) -> str:
    """Return the syntax tree of a top-level statement as a text.

    Args:
        node: The statement.
        module: The module of the statement.
        own: The name that the statement defines, which the text leaves out.
        read: Resolves the names of the module's top level.
        without: Alternative constructors of a class, which the text leaves out as well.
    """
    return _Speller(module, own, read, without).spell(node, ())


def constructors(node: ast.stmt) -> set[str]:
    """Return the names of a class's alternative constructors: its class methods `from_…`."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    return {member.name for member in body if _constructs(member)}  # type: ignore[attr-defined]


def _constructs(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef) or not node.name.startswith("from_"):
        return False
    return [getattr(decorator, "id", None) for decorator in node.decorator_list] == ["classmethod"]


class _Speller:
    def __init__(self, module: Module, own: str, read: Read, without: Collection[str]) -> None:
        self.module, self.own, self.read, self.without = module, own, read, without

    def spell(self, node: object, scopes: Scopes) -> str:
        match node:
            case ast.Import() | ast.ImportFrom():
                return ""
            case ast.Name() | ast.Attribute():
                return self._named(node, scopes)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return self._function(node, scopes)
            case ast.ClassDef():
                return self._class(node, scopes)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return self._comprehension(node, scopes)
            case ast.AnnAssign() if scopes and scopes[-1].is_class:
                # In a model or a dataclass, the type of a field affects its values.
                return f"{self._parts(node, scopes)}:{self.spell(node.annotation, scopes)}"
            case ast.Expr() if _is_docstring(node):
                return ""
            case ast.AST():
                return self._parts(node, scopes)
            case list():
                return f"[{' '.join(self.spell(item, scopes) for item in node)}]"
            case _:
                return repr(node)

    def _parts(self, node: ast.AST, scopes: Scopes) -> str:
        fields = [self.spell(value, scopes) for name, value in ast.iter_fields(node) if name not in DROPPED]
        return f"{type(node).__name__}({' '.join(fields)})"

    def _named(self, node: ast.Name | ast.Attribute, scopes: Scopes) -> str:
        attributes: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            attributes.insert(0, root.attr)
            root = root.value
        if not isinstance(root, ast.Name):
            return f"{self.spell(root, scopes)}{''.join(f'.{attribute}' for attribute in attributes)}"
        meaning, used = self._meaning(root, tuple(attributes), scopes)
        return f"{meaning}{''.join(f'.{attribute}' for attribute in attributes[used:])}"

    def _meaning(self, node: ast.Name, attributes: tuple[str, ...], scopes: Scopes) -> tuple[str, int]:
        for depth, scope in enumerate(reversed(scopes)):
            # The names of a class are visible in its body, but not in its methods.
            if node.id in scope.names and not (scope.is_class and depth):
                imported = scope.names[node.id]
                if imported is not None:
                    return self.read(imported, attributes)
                return scope.spelled(node.id, len(scopes) - depth), 0
        if not scopes and not isinstance(node.ctx, ast.Load):
            return "(itself)" if node.id == self.own else "(another)", 0
        return self.read(node.id, attributes)

    def _function(self, node: Function | ast.Lambda, scopes: Scopes) -> str:
        arguments = node.args
        named_arguments = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        stars = [child for child in (arguments.vararg, arguments.kwarg) if child]
        outside = [self.spell(arguments.defaults, scopes), self.spell(arguments.kw_defaults, scopes)]
        shape = [len(arguments.posonlyargs), len(arguments.kwonlyargs), bool(arguments.vararg), bool(arguments.kwarg)]
        body: list[ast.AST]
        if isinstance(node, ast.Lambda):
            body, name = [node.body], "lambda"
        else:
            body = list(node.body)
            outside.append(self.spell(node.decorator_list, scopes))
            # The name of a top-level definition is left out. The name of an inner one is a local name.
            name = (
                scopes[-1].spelled(node.name, len(scopes))
                if scopes
                else ("(itself)" if node.name == self.own else "(another)")
            )
        names = {child.arg: None for child in (*named_arguments, *stars)} | dict(bound(body, self.module.package))
        names |= {child.name: None for child in getattr(node, "type_params", ())}
        for declared in _declared(body):
            names.pop(declared, None)
        inner = (*scopes, _Scope.of(names, {child.arg for child in (*named_arguments, *stars)}))
        argument_names = " ".join(child.arg for child in (*named_arguments, *stars))
        return (
            f"{type(node).__name__}({name} {shape} {argument_names} {' '.join(outside)} "
            f"{' '.join(self.spell(child, inner) for child in body)})"
        )

    def _class(self, node: ast.ClassDef, scopes: Scopes) -> str:
        name = (
            scopes[-1].spelled(node.name, len(scopes))
            if scopes
            else ("(itself)" if node.name == self.own else "(another)")
        )
        type_parameters: dict[str, Import | None] = {child.name: None for child in getattr(node, "type_params", ())}
        outer = (*scopes, _Scope.of(type_parameters)) if type_parameters else scopes
        outside = [self.spell(part, outer) for part in (node.bases, node.keywords, node.decorator_list)]
        inner = (*outer, _Scope(dict(bound(node.body, self.module.package)), {}, is_class=True))
        body = [child for child in node.body if not (_constructs(child) and getattr(child, "name", "") in self.without)]
        return f"class({name} {' '.join(outside)} {' '.join(self.spell(child, inner) for child in body)})"

    def _comprehension(self, node: Comprehension, scopes: Scopes) -> str:
        targets = [target for child in node.generators for target in bound([child.target], self.module.package)]
        inner = (*scopes, _Scope.of(dict(targets)))
        first, *rest = node.generators
        parts = [self.spell(first.iter, scopes), self.spell(first.target, inner), self.spell(first.ifs, inner)]
        parts += [self.spell(child, inner) for child in rest]
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return f"{type(node).__name__}({' '.join(parts)} {' '.join(self.spell(child, inner) for child in values)})"


def _declared(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that a function declares as global or nonlocal."""
    return {
        name
        for node in nodes
        for child in ast.walk(node)
        if isinstance(child, ast.Global | ast.Nonlocal)
        for name in child.names
    }


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _says(node: ast.expr, word: str) -> bool:
    return word in (getattr(node, "id", None), getattr(node, "attr", None))


def _binds_names(target: ast.expr | None) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_binds_names, target.elts))
    return isinstance(target, ast.Name | ast.Starred)
