"""What trials are computed with: all of it, and nothing that is only shown."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gradleak import studies
from gradleak.errors import InputError
from gradleak.runs import runner, sources
from gradleak.runs.sources import EFFECTS, WHOLE, Package
from gradleak.runs.spelling import Module
from tests.checkout import Toy
from tests.reached import missed, smallest

HELP = '''
"""What the study takes from elsewhere"""
from typing import TYPE_CHECKING
import torch.nn.functional as F
from gradleak.deep import far
from gradleak.deep import again as renamed
from . import deep
if TYPE_CHECKING:
    from gradleak.shown import Picture
SIZE = 3  # a number
TABLE = {"near": far, "twice": renamed}
def used(value: int) -> "Picture":
    """Work"""
    from gradleak.deep.inner import hidden as found
    picture = 1
    return TABLE[found(F.relu(SIZE))](picture, [drawn for drawn in deep.inner.Kind.values])
def drawn(record):
    return renamed(record)
'''
DEEP = """
from gradleak.deep import inner
from gradleak.deep.inner import again
def far(x): return -far(x - 1) if x else again
"""
INNER = """
from gradleak import help
def hidden(x, y=1): return x + y
def again(x): return help.used(x)
class Kind:
    values = [1]
    def method(self): return other()
def other(): return 1
def never(): return 2
"""
FILES = {"__init__": "", "help": HELP, "deep/__init__": DEEP, "deep/inner": INNER, "shown": "class Picture: pass\n"}
USED = ("help", "used")


def package(tmp_path: Path, files: dict[str, str]) -> Package:
    for name, text in files.items():
        file = tmp_path / "gradleak" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Package(tmp_path / "gradleak")


def found(tmp_path: Path, old: str = "", new: str = "") -> sources.Sources:
    """Return the sources of `used`, with one text changed in the files."""
    assert any(old in text for text in FILES.values())
    files = {name: text.replace(old, new) if old else text for name, text in FILES.items()}
    return package(tmp_path, files).closure([sources.Definition("gradleak.help", "used")])


def test_names_are_followed_wherever_they_come_from(tmp_path: Path) -> None:
    names = {(one.module.removeprefix("gradleak."), one.name) for one in found(tmp_path).definitions}
    assert names == {
        ("help", "used"), ("help", "SIZE"), ("help", "TABLE"), ("deep", "far"), ("deep.inner", "again"),
        ("deep.inner", "hidden"), ("deep.inner", "Kind"), ("deep.inner", "other"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 3  # a number", "SIZE = (\n    3\n)"),
        ('    """Work"""\n', '    """Works"""\n    # hard\n'),
        ("value: int", "value: float"),
        ("    return renamed(record)", "    return record"),
        ("def never(): return 2", "def never(): return 3"),
        ("import again as renamed", "import again as other_name"),
        ("renamed", "more"),
        ("class Picture: pass", "class Picture: x = 1"),
        ("import torch.nn.functional as F", "from torch.nn import functional as F"),
        ("hidden as found\n", "hidden as found, never\n"),
        ("def other(): return 1\ndef never(): return 2", "def never(): return 2\ndef other(): return 1"),
        ("picture", "image"),
        ("drawn for drawn in", "kind for kind in"),
    ],
)
def test_what_changes_no_result_changes_no_digest(tmp_path: Path, old: str, new: str) -> None:
    if old == "import again as renamed":
        old, new = HELP, HELP.replace("renamed", "other_name")
    assert found(tmp_path / "b", old, new).digest == found(tmp_path / "a").digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 3", "SIZE = 3.0"),
        ("SIZE = 3", "SIZE: int = 4"),
        ("picture = 1", "picture = 2"),
        ("y=1", "y=2"),
        ("x + y", "y + x"),
        ("values = [1]", "values = [2]"),
        ("def other(): return 1", "def other(): return 2"),
        ('"near": far, "twice": renamed', '"near": renamed, "twice": far'),
        ("F.relu", "F.gelu"),
        ("import torch.nn.functional as F", "import torch.special as F"),
        ("import hidden as found", "import never as found"),
        ("SIZE = 3", "SIZE = 3\nprint(SIZE)"),
        ("SIZE = 3", "SIZE = 3\nSIZE += 1"),
        ("def far", "@staticmethod\ndef far"),
        ("x - 1", "x - True"),
        ("def hidden(x, y=1): return x + y", "def hidden(z, y=1): return z + y"),
        ("[drawn for drawn in", "[picture for drawn in"),
        ("(picture, [drawn", "(value, [drawn"),
    ],
)
def test_what_may_change_a_result_changes_the_digest(tmp_path: Path, old: str, new: str) -> None:
    assert found(tmp_path / "b", old, new).digest != found(tmp_path / "a").digest


def test_a_definition_may_move_and_take_another_name(tmp_path: Path) -> None:
    moved = INNER.replace("def hidden(x, y=1): return x + y\n", "")
    elsewhere = {"deep/inner": moved, "moved": "def shifted(x, y=1): return x + y\n"}
    files = {**FILES, **elsewhere}
    files["help"] = HELP.replace("from gradleak.deep.inner import hidden", "from gradleak.moved import shifted")
    again = package(tmp_path / "c", files).closure([sources.Definition("gradleak.help", "used")])
    assert ("gradleak.moved", "shifted") in again.definitions
    assert again.digest == found(tmp_path / "a").digest


def test_a_module_that_is_passed_around_counts_whole(tmp_path: Path) -> None:
    whole = found(tmp_path, "deep.inner.Kind.values", "vars(deep.inner)")
    assert ("gradleak.deep.inner", WHOLE) in whole.definitions
    assert ("gradleak.deep.inner", "never") in whole.definitions


def test_what_an_import_does_counts_with_what_it_brings(tmp_path: Path) -> None:
    text = "def other(): return 1\nif other():\n    LATE = never()\n"
    effects = found(tmp_path, "def other(): return 1\n", text)
    assert {("gradleak.deep.inner", EFFECTS), ("gradleak.deep.inner", "never")} <= effects.definitions


def test_names_mean_what_their_scope_says() -> None:
    text = """
from gradleak.help import table, names
def trial(names):
    global table
    def inner(): return [table for table in table()], names
    class Own:
        names = names
        def method(self): return names
    return lambda x, *names, table=names: table
def other():
    try: pass
    except ValueError as table: table()
    match names:
        case [table, *_] | {"a": table, **names}: table(names)
    with open(names) as names: pass
    if (table := 1): import names.more
"""
    module = Module.read("gradleak.x", text, is_package=False)
    asked: list[str] = []

    def read(root: object, attributes: object) -> tuple[str, int]:
        asked.append(str(root))
        return "?", 0

    from gradleak.runs.spelling import spelled

    spelled(module.definitions("trial")[0], module, "trial", read)
    assert asked == ["table"], "the first of the comprehension; all else is bound nearer"
    asked.clear()
    spelled(module.definitions("other")[0], module, "other", read)
    assert set(asked) == {"ValueError", "open", "Import(module='names', name=None)"}


def test_a_further_constructor_counts_where_it_is_named(tmp_path: Path) -> None:
    text = """
class Kind:
    def plain(self): return 1
    @classmethod
    def from_text(cls, text): return other(text)
def other(text): return 1
def unnamed(): return Kind().plain()
def naming(): return Kind.from_text("a")
"""
    old, new = (package(tmp_path / str(n), {"__init__": "", "x": one}) for n, one in enumerate([
        text, text.replace("other(text): return 1", "other(text): return 2"),
    ]))  # fmt: skip
    for name, same in (("unnamed", True), ("naming", False)):
        first, second = (one.closure([sources.Definition("gradleak.x", name)]) for one in (old, new))
        assert (first.digest == second.digest) is same
        assert (("gradleak.x", "other") in first.definitions) is not same
    without = package(
        tmp_path / "3", {"__init__": "", "x": text.replace(text[text.index("    @") : text.index("def o")], "")}
    )
    assert (
        without.closure([sources.Definition("gradleak.x", "unnamed")]).digest
        == old.closure([sources.Definition("gradleak.x", "unnamed")]).digest
    )


def test_an_import_of_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"an import needs 'gone' in gradleak.deep.inner"):
        found(tmp_path, "import hidden as found", "import gone as found")
    with pytest.raises(InputError, match=r"gradleak.deep has no experiment: a class with a method `run`"):
        package(tmp_path, FILES).trials("gradleak.deep")
    with pytest.raises(InputError, match=r"there is no module gradleak.gone"):
        package(tmp_path, FILES).trials("gradleak.gone")


# --------------------------------------------------------------------------------------------------------- experiments
BASE = """
class Row: pass
class Experiment:
    threads = 1
    def run(self): raise NotImplementedError
"""
STUDY = """
from gradleak.base import Experiment, Row
from gradleak.base import Parameters as Base
class Sum(Row):
    sum: int
class First(Experiment):
    part = "first"
    size: int
    def steps(self): return 5
    def run(self): return [Sum(helper(self.size) + self.steps())]
class Second(Experiment):
    part = "second"
    def run(self): return [Sum(2)]
class Parameters(Base):
    size: int = 3
    def experiments(self): yield First(self.size)
    def about(self): return f"{self.size} sums"
def helper(size): return 4 * size
def table(record): return record.rows(First)[["sum"]]
"""


def trials(folder: Path, old: str = "", new: str = "") -> sources.Sources:
    """Return what the experiments of a small study are computed with, with one text changed in its files."""
    assert old in STUDY or old in BASE
    files = {"base": BASE + "class Parameters: pass\n", "study": STUDY}
    changed = {name: text.replace(old, new) if old else text for name, text in files.items()}
    return package(folder, {"__init__": "", **changed}).trials("gradleak.study")


def test_an_experiment_is_what_its_class_reaches(tmp_path: Path) -> None:
    names = {(one.module.removeprefix("gradleak."), one.name) for one in trials(tmp_path).definitions}
    assert names == {
        ("study", "First"), ("study", "Second"), ("study", "Sum"), ("study", "helper"),
        ("base", "Experiment"), ("base", "Row"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 4 * size", "return 5 * size"),
        ("def steps(self): return 5", "def steps(self): return 6"),
        ("helper(self.size) +", "helper(self.size) -"),
        ("    size: int\n", "    size: float\n"),
        ("    sum: int\n", "    sum: float\n"),
        ('    part = "second"\n', '    part = "other"\n'),
        ('    part = "second"\n', '    part = "second"\n    threads = 2\n'),
        ("[Sum(2)]", "[Sum(3)]"),
        ("    threads = 1\n", "    threads = 2\n"),
        ("class Parameters(Base)", "class Third(Second):\n    def run(self): return []\nclass Parameters(Base)"),
    ],
)
def test_what_an_experiment_computes_with_changes_the_digest(tmp_path: Path, old: str, new: str) -> None:
    assert trials(tmp_path / "b", old, new).digest != trials(tmp_path / "a").digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('[["sum"]]', '[["sum", "size"]]'),
        ("def table(", "def figure(record): return helper(2)\ndef table("),
        ("size: int = 3", "size: int = 4"),
        ("yield First(self.size)", "yield First(self.size + 1)"),
        ('f"{self.size} sums"', '"some sums"'),
        ("def helper(size): return 4 * size", "def helper(size: int) -> int:\n    # hard\n    return 4 * size"),
        ("helper", "renamed"),
    ],
)
def test_what_shows_or_chooses_experiments_changes_no_digest(tmp_path: Path, old: str, new: str) -> None:
    assert trials(tmp_path / "b", old, new).digest == trials(tmp_path / "a").digest


# ------------------------------------------------------------------------------------------------------------- studies
HELPER = ("\n\nclass Draw(", "\n\ndef drawn(scale, values):\n    return scale * values\n\n\nclass Draw(")
CALLED = ("values = self.scale * torch.rand(100_003, generator=generator)",
          "values = drawn(self.scale, torch.rand(100_003, generator=generator))")  # fmt: skip


def test_a_figure_keeps_all_trials_and_an_experiments_helper_drops_them(checkout: Toy) -> None:
    small = checkout.parameters(samples=1)
    checkout.rewrite(HELPER, CALLED)
    runner.run_study("toy", small)
    checkout.rewrite(HELPER, CALLED, ('record.frame()[["number", "word", "sum"]]', "record.frame()"))
    tables = checkout.root / "gradleak" / "show" / "tables.py"
    assert "<table>" in tables.read_text()
    tables.write_text(tables.read_text().replace("<table>", "<table class='red'>"))
    runner.run_study("toy", small)
    assert checkout.traced == [0]
    checkout.rewrite(HELPER, CALLED, ("return scale * values", "return values * scale"))
    runner.run_study("toy", small)
    assert checkout.traced == [0, 0]


def module_of(name: str) -> str:
    return f"gradleak.studies.{studies.paper_of(name)}.{name.replace('-', '_')}"


def closures(changed: dict[str, str] | None = None) -> dict[str, sources.Sources]:
    """Return the sources of every study, with other texts in place of some modules'."""
    read = Package(sources.package_folder())
    for module, text in (changed or {}).items():
        read.modules[module] = Module.read(module, text, is_package=False)
    return {name: read.trials(module_of(name)) for name in studies.names()}


def text_of(module: str) -> str:
    file = sources.file_of(module)
    assert file is not None
    return file.read_text("utf-8")


def test_no_trial_depends_on_what_is_shown_or_on_the_book() -> None:
    """Every function and method of a study that no trial reaches does something else; and its comments are gone."""
    before, changed = closures(), {}
    for name in studies.names():
        module = module_of(name)
        tree, hit = ast.parse(text_of(module)), 0
        for node in tree.body:
            if (module, getattr(node, "name", "")) in before[name].definitions:
                continue
            for own in [node, *(node.body if isinstance(node, ast.ClassDef) else ())]:
                if isinstance(own, ast.FunctionDef):
                    own.body.append(ast.parse("print('changed')").body[0])
                    hit += 1
        assert hit, "there are tables at least, which no trial calls"
        changed[module] = ast.unparse(tree)
    after = closures(changed)
    for name, found in before.items():
        assert found.digest == after[name].digest, name
        shown = [one for one in found.definitions if one.module.split(".")[1] in ("book", "claims", "cli", "show")]
        assert shown == [], name
        kinds = {one.__name__ for one in studies.load(name).experiments.values()}
        assert {(module_of(name), kind) for kind in kinds} <= found.definitions, name


def test_a_change_to_a_solver_drops_the_studies_that_use_it_and_no_others() -> None:
    before, module = closures(), "gradleak.labels.soft.exact"
    tree = ast.parse(text_of(module))
    (solver,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "solve"]
    solver.body.insert(1, ast.parse("print('changed')").body[0])
    after = closures({module: ast.unparse(tree)})
    dropped = {name for name, found in before.items() if found.digest != after[name].digest}
    assert dropped == {name for name, found in before.items() if (module, "solve") in found.definitions}
    assert {"noise", "label-accuracy", "cnn-reconstruction"} <= dropped
    kept = {"llg-training", "llg-defenses", "gradient-properties", "batch-restoration", "posterior-distributions"}
    assert not kept & dropped


@pytest.mark.parametrize(
    ("name", "by", "without"),
    [
        ("theorem1", ("part",), ""),
        ("noise", ("part", "attack", "noise", "defense", "prior"), ""),
        ("llg-attack", ("part",), ""),
        ("posterior-attack", ("part", "network"), ""),
        ("fcn-inversion", ("part",), "matching"),
        ("gradinversion", ("part",), ""),
        ("gradinversion-baselines", (), ""),
    ],
)
def test_all_that_runs_is_known(name: str, by: tuple[str, ...], without: str) -> None:
    study, parameters = smallest(name)
    assert missed(study, parameters, *by, without=without) == set()


def test_what_is_not_known_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    study, parameters = smallest("llg-attack")
    found = sources.of_trials(study)
    lost = sources.Definition("gradleak.losses", "CrossEntropy")
    assert lost in found.definitions
    fewer = sources.Sources(found.digest, found.definitions - {lost})
    monkeypatch.setattr(sources, "of_trials", lambda study: fewer)
    assert missed(study, parameters, "part") == {lost}
