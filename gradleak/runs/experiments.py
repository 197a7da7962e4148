"""Base classes of a study: its parameters, and its experiments."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from gradleak.errors import InputError
from gradleak.runs import cells
from gradleak.runs.fitting import Sees, check
from gradleak.runs.forms import written_types
from gradleak.runs.plain import Columns

# The keys under which a parameter keeps its values for a run at the paper's scale and for the smallest run.
PAPER, SMALLEST = "paper", "smallest"


class Experiment(BaseModel):
    """A small, independent piece of a study: its fields are its inputs, and `run` returns its rows.

    Attributes:
        part: The name of this kind of experiment, which records state; "" if the study has only one kind. A class
            states it as in `class Trained(Attacked, part="trained")`.
        stays_on_cpu: The reason why this kind of experiment does not use a GPU; "" if it does.
        effort_fields: The fields that state how much is spent on a result, such as random starts. Of two trials that
            differ in nothing else, a record keeps the later.
        seed: The seed of the trial's random numbers.
        device: "cpu" or "cuda".
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), populate_by_name=True
    )

    part: ClassVar[str] = ""
    stays_on_cpu: ClassVar[str] = ""
    effort_fields: ClassVar[frozenset[str]] = frozenset()

    seed: int
    device: str

    def __init_subclass__(cls, part: str = "", **settings: Any) -> None:
        """Name the kind of experiment; a class without a name has that of a base class."""
        super().__init_subclass__(**settings)
        if part:  # else a base class states it
            cls.part = part

    @classmethod
    def of(cls, parameters: Parameters, **inputs: Any) -> Self:
        """Return an experiment with these inputs; every other field takes the value of the parameter of that name."""
        given = {name: getattr(parameters, name) for name in cls.model_fields if name in type(parameters).model_fields}
        device = "cpu" if cls.stays_on_cpu else resolve_device(parameters.device)
        return cls(**given | {"device": device} | inputs)

    def reads(self) -> Iterable[str]:
        """Return the datasets that the experiment reads: those of its fields `dataset`, `learns`, `source`, `text`."""
        return [name for field in ("dataset", "learns", "source", "text") if (name := getattr(self, field, ""))]

    def splits(self, dataset: str) -> Iterable[str]:
        """Return the splits of a dataset that the experiment reads: "train", "test" or both."""
        return ("train", "test")

    def run(self) -> Iterable[Columns]:
        """Run the experiment and return its rows."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")


def inputs_of(experiment: Experiment) -> Columns:
    """Return an experiment's inputs as records state them: its part, its own fields, and the fields of all experiments.

    A field that was not set is left out. An input named like a method, such as `run`, is the alias of a field.
    """
    inputs = experiment.model_dump(mode="json", by_alias=True, exclude_unset=True)
    # The fields that all experiments share come last, since messages show only the first few inputs.
    common = {name: inputs.pop(name) for name in Experiment.model_fields if name in inputs}
    return ({"part": experiment.part} if experiment.part else {}) | inputs | common


def setting(*, paper: Any = None, smallest: Any = None, **limits: Any) -> Any:
    """Declare a parameter's values in a run at the paper's scale and in the smallest run, and its limits.

    Its value in a quick run, which is also the default of the two others, and its description stand in the page.

    Args:
        paper: The value at the paper's scale.
        smallest: The value in the smallest run, with which the whole page runs in seconds.
        limits: Arguments of pydantic's `Field` that limit the value, such as ge=1.
    """
    scales = {name: value for name, value in ((PAPER, paper), (SMALLEST, smallest)) if value is not None}
    return Field(json_schema_extra=scales, **limits)


class Parameters(BaseModel):
    """Base class of a page's parameters; a study adds its own parameters and returns the experiments for them.

    The quick values and the descriptions stand in the page's notebook, in the cell tagged `parameters`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(2023, ge=0, lt=2**32)

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        """Take quick values and descriptions from the page; a page that states other parameters is an error."""
        *folders, paper, page = Path(getattr(sys.modules[cls.__module__], "__file__", None) or "/").parts
        notebook = Path(*folders[:-2], "notebooks", paper, page.replace("_", "-")).with_suffix(".ipynb")
        if not notebook.is_file():
            return
        stated = cells.stated(notebook)
        kinds = {name: written_types(field.annotation) for name, field in cls.model_fields.items()}
        given = {name: kind for name, (kind, _, _) in stated.items()}
        for name in kinds | given:
            if given.get(name) not in kinds.get(name, ()):
                raise InputError(
                    f"notebooks/{paper}/{notebook.name} does not state the parameters that its study declares: `{name}`"
                    f" is {given.get(name, 'missing')} there, declared {' or '.join(kinds.get(name, ['nowhere']))}"
                )
        for name, (_, quick, about) in stated.items():
            cls.model_fields[name].default, cls.model_fields[name].description = quick, about
        cls.model_rebuild(force=True)

    @classmethod
    def at(cls, scale: str) -> Columns:
        """Return the values that parameters declare for a scale, "paper" or "smallest", beside their quick values."""
        extras = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        return {name: extra[scale] for name, extra in extras.items() if isinstance(extra, dict) and scale in extra}

    def sees(self) -> Iterable[Sees]:
        """Return the study's networks and their datasets, so that they can be checked before any work starts."""
        return ()

    def experiments(self) -> Iterable[Experiment]:
        """Return the experiments of a run with these parameters."""
        raise NotImplementedError(f"{type(self).__module__} does not say which experiments its parameters make")

    def about(self) -> str:
        """Return the size of a run in a few words, such as "45 images, CIFAR-10"."""
        raise NotImplementedError(f"{type(self).__module__} does not say how large a run is")

    @classmethod
    def fitting(cls, values: Columns, known: Parameters | None = None) -> Self:
        """Return parameters with these values, whose networks take their images if those of `known` do.

        Building large networks for the check takes seconds. By default the values are those of a record, which fit.
        """
        return cls.model_validate(values, context={"known": set(known.sees()) if known else None})

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> Self:
        known = (info.context or {"known": ()})["known"]
        for sees in dict.fromkeys(self.sees()) if known is not None else ():
            if sees not in known:
                check(sees)
        return self


def resolve_device(device: str) -> str:
    """Return "cpu" or "cuda"; "auto" selects the GPU if there is one."""
    import torch

    present = torch.cuda.is_available()
    if device == "cuda" and not present:
        raise InputError("device 'cuda' was asked for, but no GPU is at hand: use 'auto' or 'cpu'")
    if not present or device == "cpu":
        return "cpu"
    # cuBLAS reads this variable at its first use. Without it, matrix products may differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return "cuda"
