"""What a study is made of: parameters, which are stated once, and the experiments that follow from them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradleak.errors import GradleakError, InputError
from gradleak.runs.fitting import Sees, check
from gradleak.runs.plain import Columns

# Where a parameter states its values at the paper's scale and at the smallest one.
PAPER, SMALLEST = "paper", "smallest"


class Row(BaseModel):
    """A row that an experiment gives: its columns, typed. A column that is not stated is not part of the row.

    A column whose name is no Python name is a field with that name as its alias.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)

    @classmethod
    def of(cls, *parts: Row, **columns: Any) -> Self:
        """Return the row with the columns of others and with these."""
        joined = {name: value for part in parts for name, value in part.columns.items()}
        return cls(**joined | columns)

    @property
    def columns(self) -> Columns:
        """The columns that are stated, by their names."""
        fields = type(self).model_fields.items()
        stated = {field.alias or name: getattr(self, name) for name, field in fields if name in self.model_fields_set}
        return stated | (self.model_extra or {})


class Experiment(BaseModel):
    """A small piece of a study that runs by itself: its fields are its inputs, and `run` gives its rows.

    A study with several kinds of experiments names each by its `part`, which its records state. `stays_on_cpu` is the
    reason why an experiment does not use a GPU, where it does not.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), populate_by_name=True
    )

    part: ClassVar[str] = ""
    threads: ClassVar[int] = 1
    stays_on_cpu: ClassVar[str] = ""

    seed: int
    device: str

    @classmethod
    def of(cls, parameters: Parameters, **inputs: Any) -> Self:
        """Return the experiment with these inputs; all others are the parameters of the same name."""
        given = {name: getattr(parameters, name) for name in cls.model_fields if name in type(parameters).model_fields}
        device = "cpu" if cls.stays_on_cpu else resolve_device(parameters.device)
        return cls(**given | {"device": device} | inputs)

    def reads(self) -> Iterable[str]:
        """Return the names of the datasets that it reads: its `dataset`, if it has one."""
        dataset = getattr(self, "dataset", None)
        return [dataset] if dataset else []

    def run(self) -> Iterable[Row]:
        """Do the work, and return the rows."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")


def inputs_of(experiment: Experiment) -> Columns:
    """Return an experiment's inputs as records state them: its part, if it has one, and its fields, its own first.

    A field with a default that is not stated is none of them. A field whose name would not do, such as `run`, has that
    name as its alias.
    """
    own = experiment.model_dump(by_alias=True, exclude_unset=True)
    # What every experiment has comes last: messages show the first few inputs.
    common = {name: own.pop(name) for name in Experiment.model_fields if name in own}
    return ({"part": experiment.part} if experiment.part else {}) | own | common


def setting(quick: Any, *, about: str, paper: Any = None, smallest: Any = None, **limits: Any) -> Any:
    """Declare a parameter: its value in a quick run, in one at the paper's scale, and in the smallest that there is.

    `about`: what it is; `limits`: what pydantic's Field takes, such as ge=1. Where `paper` or `smallest` is not given,
    the quick value holds there too.
    """
    scales = {name: value for name, value in ((PAPER, paper), (SMALLEST, smallest)) if value is not None}
    return Field(quick, description=about, json_schema_extra={"scales": scales}, **limits)


class Parameters(BaseModel):
    """The parameters every page has; a study adds its own, and the experiments that follow from them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda")
    seed: int = Field(2023, ge=0, lt=2**32, description="every random choice on this page follows from it")

    @classmethod
    def at(cls, scale: str) -> Columns:
        """Return the values of the parameters that differ from a quick run at this scale: "paper" or "smallest"."""
        scales = {name: _scales(field.json_schema_extra) for name, field in cls.model_fields.items()}
        return {name: own[scale] for name, own in scales.items() if scale in own}

    def sees(self) -> Iterable[Sees]:
        """Return the study's networks and the images that they are shown."""
        return ()

    def experiments(self) -> Iterable[Experiment]:
        """Return the experiments of a run with these parameters."""
        raise NotImplementedError(f"{type(self).__module__} does not say which experiments its parameters make")

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        raise NotImplementedError(f"{type(self).__module__} does not say how large a run is")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            for one in dict.fromkeys(self.sees()):
                check(one)
        except GradleakError as error:
            raise ValueError(str(error)) from error
        return self


def _scales(extra: Any) -> Columns:
    scales: Columns = extra.get("scales", {}) if isinstance(extra, dict) else {}
    return scales


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
