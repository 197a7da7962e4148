"""One module a page, in its paper's folder: its parameters, its trials, its table, its figures.

A module `<paper>/loss_landscape.py` here, a notebook `notebooks/<paper>/loss-landscape.ipynb`, a claims file
`claims/<paper>/loss-landscape.yaml` and a test `tests/studies/<paper>/test_loss_landscape.py` make a page; nothing else
names it. What several pages share lies in `shared`.

A module has: a docstring whose first line is the page's title; `PLACE`, the place in the paper; `Parameters`, with the
quick profile as its defaults, the `paper` profile beside, and `sees()`, the networks and what they are shown;
`SMALLEST`, parameters at which the whole page runs in seconds; `datasets(parameters)`, the datasets that are read;
`trials(parameters)`, the inputs of every trial, plain enough for JSON; `trial(**inputs)`, the rows of one;
`scale(parameters)`, in a few words what was run; and the tables and figures, each made from a record.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gradleak import paths
from gradleak.errors import GradleakError, InputError, MissingData, unknown
from gradleak.studies.fitting import Sees, check
from gradleak.studies.forms import Form, reason

Profile = Literal["quick", "paper"]
SHARED = "shared"


class Parameters(BaseModel):
    """The parameters every page has; a study's own are added by a subclass, with its quick profile as the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda")
    seed: int = Field(2023, ge=0, lt=2**32, description="every random choice on this page follows from it")

    paper: ClassVar[dict[str, Any]] = {}

    def sees(self) -> Iterable[Sees]:
        """Return the study's networks and the images that they are shown."""
        return ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            for one in dict.fromkeys(self.sees()):
                check(one)
        except GradleakError as error:
            raise ValueError(str(error)) from error
        return self


@dataclass(frozen=True)
class Study:
    """A page: its name, its paper, its title and the place in the paper that it regenerates."""

    name: str
    paper: str
    title: str
    place: str

    @cached_property
    def module(self) -> ModuleType:
        """The page's code, imported when it is first needed."""
        return importlib.import_module(f"{__name__}.{self.paper}.{self.name.replace('-', '_')}")

    @property
    def Parameters(self) -> type[Parameters]:
        """The study's own parameters."""
        own: type[Parameters] = self.module.Parameters
        return own

    @property
    def notebook(self) -> Path:
        """The page, without outputs."""
        return paths.notebooks() / self.paper / f"{self.name}.ipynb"


def _files() -> dict[str, Path]:
    """Return the module of every page by the page's name."""
    files = (file for folder in __path__ for file in Path(folder).glob("*/*.py"))
    pages = (file for file in files if file.parent.name != SHARED and not file.name.startswith("_"))
    return {file.stem.replace("_", "-"): file for file in sorted(pages, key=lambda file: file.stem)}


def names() -> tuple[str, ...]:
    """Return the names of all studies."""
    return tuple(_files())


def paper_of(name: str) -> str:
    """Return the paper whose folder a study lies in."""
    files = _files()
    if name not in files:
        raise unknown("study", name, files)
    return files[name].parent.name


def load(name: str) -> Study:
    """Return a study by name; its module is read for that, not run."""
    paper = paper_of(name)
    tree = ast.parse(_files()[name].read_text("utf-8"))
    title = (ast.get_docstring(tree) or name).splitlines()[0].rstrip(".")
    study = Study(name, paper, title, _place(tree))
    if not study.notebook.is_file():
        raise MissingData(f"study '{name}' has no notebook: expected notebooks/{paper}/{name}.ipynb")
    return study


def _place(tree: ast.Module) -> str:
    """Return the text that a study's module states as PLACE."""
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and line.targets[0].id == "PLACE":
            return str(ast.literal_eval(line.value))
    return ""


def parameters(study: Study | str, profile: str = "quick", overrides: Mapping[str, Any] | None = None) -> Parameters:
    """Return a profile's parameters with some of them changed; texts, as the command line gives them, are parsed."""
    study = load(study) if isinstance(study, str) else study
    if profile not in ("quick", "paper"):
        raise unknown("profile", profile, ["quick", "paper"])
    known = study.Parameters.model_fields
    values: dict[str, Any] = dict(study.Parameters.paper) if profile == "paper" else {}
    for name, value in (overrides or {}).items():
        if name not in known:
            raise unknown(f"parameter of '{study.name}'", name, known)
        values[name] = _parsed(value, known[name].annotation)
    try:
        return study.Parameters(**values)
    except ValidationError as error:
        raise _refused(study, error, overrides or {}) from error


def _refused(study: Study, error: ValidationError, given: Mapping[str, Any]) -> InputError:
    """Return one line that says which parameter is wrong, and what would be right."""
    first = error.errors()[0]
    if not first["loc"]:
        # A rule of the study's own over several parameters.
        return InputError(f"parameters of '{study.name}': {reason(error)}")
    name = str(first["loc"][0])
    field = study.Parameters.model_fields[name]
    told = f"parameter '{name}' of '{study.name}': "
    form = next((one for one in get_args(field.annotation) if _is_form(one)), None)
    if form is not None and first["type"] == "value_error":
        example = (field.default or study.Parameters.paper[name])[0]
        return InputError(f"{told}{reason(error)} ({field.description}; such as '{example}')")
    # A text from the command line as it was given; of a list, the one that is wrong.
    value = first["input"] if len(first["loc"]) > 1 else given.get(name, first["input"])
    return InputError(
        f"{told}{value!r} is not right, {reason(error)} "
        f"({_written(field.annotation)[-1]}: {field.description}; default {field.default!r})"
    )


def stated(study: Study | str, page: Mapping[str, Any]) -> Parameters:
    """Return the parameters that a page states, from its variables: `studies.stated("noise", globals())`."""
    study = load(study) if isinstance(study, str) else study
    try:
        return study.Parameters(**{name: page[name] for name in study.Parameters.model_fields})
    except ValidationError as error:
        raise _refused(study, error, {}) from error


def resolve_device(device: str) -> str:
    """Return "cpu" or "cuda"; "auto" takes a GPU when there is one."""
    import torch

    present = torch.cuda.is_available()
    if device == "cuda" and not present:
        raise InputError("device 'cuda' was asked for, but no GPU is at hand: use 'auto' or 'cpu'")
    if not present or device == "cpu":
        return "cpu"
    # cuBLAS reads this once, when it is first used: without it products are not the same from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return "cuda"


def check_notebook(study: Study) -> None:
    """Assert that the page's `parameters` cell states the study's parameters as `quick` has them."""
    cells = json.loads(study.notebook.read_text())["cells"]
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    place = f"notebooks/{study.paper}/{study.name}.ipynb"
    if len(tagged) != 1:
        raise InputError(f"{place} must have one cell tagged 'parameters'; it has {len(tagged)}")
    source = "".join(tagged[0]["source"])
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [t for t in tokens if t.type == tokenize.COMMENT and t.string.strip("# ")]
    commented = {comment.start[0] for comment in comments}
    # papermill takes every "=" for an assignment, and prints what it cannot parse.
    if odd := next((comment.string for comment in comments if "=" in comment.string), None):
        raise InputError(f"{place}: a comment among the parameters has no '='; got `{odd}`: write it in words")
    stated: dict[str, Any] = {}
    for line in ast.parse(source).body:
        text = source.splitlines()[line.lineno - 1]
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name) or line.value is None:
            raise InputError(f"{place}: parameters are stated as `name: type = value  # comment`; got `{text}`")
        if line.end_lineno not in commented:
            raise InputError(f"{place}: parameter '{line.target.id}' has no comment")
        field, written = study.Parameters.model_fields.get(line.target.id), ast.unparse(line.annotation)
        if field is not None and written not in (wanted := _written(field.annotation)):
            raise InputError(f"{place}: parameter '{line.target.id}' is of type {wanted[0]}; the page says {written}")
        stated[line.target.id] = ast.literal_eval(line.value)
    expected = study.Parameters().model_dump()
    for name in [*expected, *stated]:
        if name not in stated or name not in expected or stated[name] != expected[name]:
            raise InputError(
                f"{place} states '{name}' as {stated.get(name, 'nothing')!r}, "
                f"the study's quick profile as {expected.get(name, 'nothing')!r}"
            )


def _parsed(value: Any, annotation: Any) -> Any:
    if not isinstance(value, str) or annotation is str:
        return value
    text = value.strip()
    if str(annotation).startswith("list") and not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text.lower(), text)


def _written(annotation: Any) -> list[str]:
    """Return the ways a page may write a type; a choice of words and a form may be called a str."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return ["str", f"Literal[{', '.join(map(repr, inner))}]"]
    if get_origin(annotation) is list:
        return [f"list[{text}]" for text in _written(inner[0])]
    if _is_form(annotation):
        return ["str"]
    if get_origin(annotation) is Annotated:
        return _written(inner[0])
    return [str(annotation) if inner else annotation.__name__]


def _is_form(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Form)
