"""Proof that a study's sources hold all that its trials run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

import pytest

from gradleak import reporting, studies
from gradleak.runs import runner, sources
from gradleak.runs.spelling import Module
from gradleak.studies import Parameters, Study

# Followed and not counted: what passes through comes out as it went in, a name is looked up, an experiment is found.
ASIDE = {(module, name) for module in sources.SILENT for name in ("steps", "warn")}
ASIDE |= {("gradleak", "__getattr__"), ("gradleak.runs.studies", "Study")}


def missed(study: Study, parameters: Parameters, *by: str, without: str = "") -> set[tuple[str, str]]:
    """Run a study's trials and return the definitions that ran though the digest of its sources does not know them.

    `by`: only one trial for each value of these inputs; `without`: the part of the study that takes too long.
    """
    inputs = [one for one in study.trials(parameters) if not without or one["part"] != without]
    if by:
        inputs = list({tuple(str(one.get(name)) for name in by): one for one in reversed(inputs)}.values())
    reached: set[CodeType] = set()
    importing = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal importing
        if frame.f_code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing:
            reached.add(frame.f_code)

    with pytest.MonkeyPatch.context() as patch, runner._settled(1, accelerated=False):
        patch.setattr(reporting, "_steps", None)
        sys.setprofile(note)
        try:
            for one in inputs:
                study.run(one)
        finally:
            sys.setprofile(None)
    folder = sources.package_folder()
    ran = {found for code in reached if folder.as_posix() in code.co_filename for found in [_definitions(code)]}
    assert _kinds(study, inputs) <= frozenset().union(*ran), "not every kind of experiment was seen"
    known = set(sources.of_trials(study).definitions) | ASIDE
    return {min(found) for found in ran if not found & known}


def _kinds(study: Study, inputs: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return the classes of the experiments with these inputs, as definitions of the study's module."""
    return {(study.module_name, type(study.experiment(one)).__name__) for one in inputs}


def _definitions(code: CodeType) -> frozenset[tuple[str, str]]:
    """Return the names at the top of a module whose statement holds some code."""
    path = code.co_filename.removeprefix(f"{sources.package_folder().as_posix()}/").removesuffix(".py")
    module = ".".join(["gradleak", *path.split("/")]).removesuffix(".__init__")
    file = sources.file_of(module)
    assert file is not None, code.co_filename
    found = set()
    for name, nodes in Module.read(module, file.read_text("utf-8"), file.stem == "__init__").bindings.items():
        for node in nodes:
            if isinstance(node, ast.stmt):
                first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
                if first <= code.co_firstlineno <= (node.end_lineno or first):
                    found.add((module, name))
    return frozenset(found or {(module, code.co_name)})


def smallest(name: str) -> tuple[Study, Parameters]:
    """Return a study and its smallest parameters."""
    study = studies.load(name)
    return study, studies.parameters(study, "quick", study.smallest)
