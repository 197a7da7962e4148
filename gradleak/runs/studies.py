"""Find and load studies, and read and check their parameters."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, ValidationError
from pydantic.fields import FieldInfo

from gradleak import paths
from gradleak.errors import InputError, MissingData, unknown
from gradleak.runs import cells
from gradleak.runs.columns import Columns as DeclaredColumns
from gradleak.runs.experiments import PAPER, SMALLEST, Experiment, Parameters, inputs_of
from gradleak.runs.experiments import Parameters as BaseParameters
from gradleak.runs.forms import reason, written_types
from gradleak.runs.outline import outline_of
from gradleak.runs.plain import Columns

if TYPE_CHECKING:
    from gradleak.runs.records import Record
    from gradleak.show.summary import Summary

# The package of the studies, with one folder for each paper. It imports this module, so it is only named here.
PACKAGE = "gradleak.studies"
SHARED = "shared"
# Modules that the pages of a paper share.
OF_PAPER = ("columns", "experiments")
PROFILES = ("quick", PAPER, SMALLEST)


@dataclass(frozen=True)
class Study:
    """A study, which is one page of the book.

    Attributes:
        name: The name of the page, such as "label-accuracy".
        paper: The citation key of its paper, which is also the name of its folder.
    """

    name: str
    paper: str

    @cached_property
    def title(self) -> str:
        """The page's title: the first line of its module's docstring."""
        return self._read(r'\A"""(.*?)\.?(?:""")?$')

    @cached_property
    def place(self) -> str:
        """The part of the paper that the page reproduces, such as a figure or a table."""
        return self._read(r'^PLACE = "(.*)"$')

    def _read(self, pattern: str) -> str:
        """Return a text from the module's file, without importing the module, which would take seconds."""
        found = re.search(pattern, self.module_file.read_text("utf-8"), re.MULTILINE)
        return found[1] if found else ""

    @property
    def module_file(self) -> Path:
        """The file of the module with the page's code."""
        return module_files()[self.name]

    @cached_property
    def module(self) -> ModuleType:
        """The module with the page's code, imported at its first use."""
        return importlib.import_module(f"{PACKAGE}.{self.paper}.{self.name.replace('-', '_')}")

    @property
    def Parameters(self) -> type[Parameters]:
        """The class of the study's parameters."""
        parameters_class: type[Parameters] = self.module.Parameters
        return parameters_class

    def summary(self, record: Record) -> Summary | None:
        """Return the summary of the page's findings, read from a record; None if the page has no summary."""
        state = getattr(self.module, "summary", None)
        return state(record) if state else None

    @cached_property
    def columns(self) -> DeclaredColumns:
        """The columns that the study's rows may have: those that its module declares, or else those of the paper."""
        own = getattr(self.module, "COLUMNS", None)
        columns: DeclaredColumns = own or importlib.import_module(f"{PACKAGE}.{self.paper}.columns").COLUMNS
        return columns

    @property
    def notebook(self) -> Path:
        """The file of the page's notebook, which has no outputs."""
        return paths.notebooks() / self.paper / f"{self.name}.ipynb"

    @cached_property
    def experiments(self) -> dict[str, type[Experiment]]:
        """The classes of experiments that the study's module defines, by their `part`; base classes are left out."""
        classes = [
            kind
            for kind in vars(self.module).values()
            if isinstance(kind, type) and issubclass(kind, Experiment) and kind.__module__ == self.module.__name__
        ]
        bases = {base for kind in classes for base in kind.__mro__[1:]}
        return {kind.part: kind for kind in classes if kind not in bases}

    def trials(self, parameters: BaseParameters) -> list[Columns]:
        """Return the inputs of every trial of a run, as a record holds them; a run without trials is an error."""
        if not (inputs := [inputs_of(experiment) for experiment in parameters.experiments()]):
            raise InputError(f"study '{self.name}' has no trials with these parameters")
        return inputs

    def experiment(self, inputs: Columns) -> Experiment:
        """Return the experiment that a trial with these inputs runs."""
        kind = self.experiments[str(inputs.get("part", ""))]
        return kind(**{name: value for name, value in inputs.items() if name != "part"})

    def on_device(self, inputs: Columns, device: str) -> Columns:
        """Return a trial's inputs with another device, unless its kind of experiment stays on the CPU."""
        stays = self.experiments[str(inputs.get("part", ""))].stays_on_cpu
        return inputs if stays or "device" not in inputs else inputs | {"device": device}

    def run(self, inputs: Columns) -> list[Columns]:
        """Run the trial with these inputs, and return its rows."""
        rows = list(self.experiment(inputs).run())
        for row in rows:
            self.columns.check(row)
        return rows

    def datasets(self, parameters: BaseParameters) -> list[str]:
        """Return the names of the datasets that a run reads."""
        return list(dict.fromkeys(name for experiment in parameters.experiments() for name in experiment.reads()))


def module_files() -> dict[str, Path]:
    """Return the file of every page's module, by the page's name."""
    files = (file for folder in importlib.import_module(PACKAGE).__path__ for file in Path(folder).glob("*/*.py"))
    shared = (*OF_PAPER, "__init__")
    pages = (file for file in files if file.parent.name != SHARED and file.stem not in shared)
    return {file.stem.replace("_", "-"): file for file in sorted(pages, key=lambda file: file.stem)}


def names() -> tuple[str, ...]:
    """Return the names of all studies."""
    return tuple(module_files())


def paper_of(name: str) -> str:
    """Return the citation key of a study's paper; an unknown name is an error."""
    files = module_files()
    if name not in files:
        raise unknown("study", name, files)
    return files[name].parent.name


def load(name: str) -> Study:
    """Return a study by name; its module is not imported yet."""
    study = Study(name, paper_of(name))
    if not study.notebook.is_file():
        raise MissingData(f"study '{name}' has no notebook: expected notebooks/{study.paper}/{name}.ipynb")
    return study


def parameters(
    study: Study | str, profile: str = "quick", overrides: Mapping[str, JsonValue] | None = None
) -> Parameters:
    """Return a study's parameters for a profile, with some of them overridden.

    Args:
        study: The study or its name.
        profile: "quick", "paper" or "smallest".
        overrides: Values by parameter name. Texts from the command line are converted to the parameter's type.

    Raises:
        InputError: The profile or a parameter is unknown, or a value is invalid.
    """
    study = load(study) if isinstance(study, str) else study
    if profile not in PROFILES:
        raise unknown("profile", profile, ["quick", PAPER])
    stated_names = cells.stated(study.notebook)
    for name in overrides or {}:
        if name not in stated_names:
            raise unknown(f"parameter of '{study.name}'", name, stated_names)
    if overrides:  # most mistakes are found before the study's module is imported, which takes seconds
        _checked(study, outline_of(study.module_file, stated_names), {}, overrides)
    return _checked(study, study.Parameters, study.Parameters.at(profile), overrides or {})


def _checked(
    study: Study, kind: type[Parameters], values: Mapping[str, Any], given: Mapping[str, JsonValue]
) -> Parameters:
    """Return parameters with some values given; an error names what is invalid and describes valid values."""
    fields = kind.model_fields
    try:
        return kind(**{**values, **{name: _parsed(value, fields[name].annotation) for name, value in given.items()}})
    except ValidationError as error:
        raise InputError(_refused(study, fields, error, given)) from error


def _refused(
    study: Study, fields: Mapping[str, FieldInfo], error: ValidationError, given: Mapping[str, JsonValue]
) -> str:
    problem = error.errors()[0]
    if not problem["loc"]:
        # The error has no location if a validator of several parameters raised it.
        return f"parameters of '{study.name}': {reason(error)}"
    name, *within = problem["loc"]
    field = fields[str(name)]
    # In a group of named values, say which one is wrong.
    part = next((f"its '{one}', " for one in within if isinstance(one, str)), "")
    # Show a text from the command line as the user typed it, and only the invalid element of a list.
    value = problem["input"] if within else given.get(str(name), problem["input"])
    return (
        f"parameter '{name}' of '{study.name}': {value!r} is not right, {part}{reason(error)} "
        f"({written_types(field.annotation)[-1]}: {field.description}; default {field.default!r})"
    )


def stated(study: Study | str, page: Mapping[str, object]) -> Parameters:
    """Return the parameters that a page sets in its `parameters` cell.

    Args:
        study: The study or its name.
        page: The notebook's variables by name, as in `studies.stated("noise", globals())`.
    """
    study = load(study) if isinstance(study, str) else study
    return _checked(study, study.Parameters, {name: page[name] for name in study.Parameters.model_fields}, {})


def _parsed(value: JsonValue, annotation: Any) -> JsonValue:
    """Return a value of the command line, which is a text, as JSON or as a list of texts."""
    if not isinstance(value, str) or annotation is str:
        return value
    text = value.strip()
    if str(annotation).startswith("list") and not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        parsed: JsonValue = json.loads(text)
        return parsed
    except ValueError:
        return text
