"""Check parameters by what a page and its study's source state, without importing the study, which takes seconds.

The page states types and quick values, the source states limits. A parameter whose name ends in "dataset" or "datasets"
has names of datasets. An outline knows neither the groups of a study nor its networks. So it accepts some values that
the study refuses, and refuses none that the study accepts.
"""

from __future__ import annotations

import ast
import contextlib
import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, create_model

from gradleak import early
from gradleak.runs.experiments import Parameters

# The arguments of `setting` that are limits.
LIMITS = ("gt", "ge", "lt", "le", "min_length")


def _known(dataset: str) -> str:
    early.check_known("dataset", dataset)
    return dataset


Dataset = Annotated[str, AfterValidator(_known)]
# The types that are checked, as a page writes them, and those of parameters that name datasets.
TYPES: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}
TYPES |= {"list[int]": list[int], "list[float]": list[float], "list[str]": list[str]}
DATASETS: dict[str, Any] = TYPES | {"str": Dataset, "list[str]": list[Dataset]}


def outline_of(source: Path, stated: Mapping[str, tuple[str, Any, str]]) -> type[Parameters]:
    """Return a class that checks parameters' types, limits and names of datasets.

    Args:
        source: The file of the study's module.
        stated: Each parameter's type, quick value and description, as its page states them.
    """
    limits, fields = _limits(source), dict[str, Any]()
    for name, (kind, quick, about) in stated.items():
        if (common := copy.copy(Parameters.model_fields.get(name))) is not None:
            common.default, common.description = quick, about
            fields[name] = (common.annotation, common)
        else:
            types = DATASETS if name.rpartition("_")[2] in ("dataset", "datasets") else TYPES
            fields[name] = (types.get(kind, Any), Field(quick, description=about, **limits.get(name, {})))
    made: type[Parameters] = create_model("Parameters", __base__=Parameters, **fields)
    return made


def _limits(source: Path) -> dict[str, dict[str, Any]]:
    """Return the limits of each field of the class `Parameters` in a source, of those that are plain numbers."""
    limits: dict[str, dict[str, Any]] = {}
    for node in ast.parse(source.read_text("utf-8")).body:
        for line in node.body if isinstance(node, ast.ClassDef) and node.name == "Parameters" else ():
            if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Call):
                own = limits.setdefault(ast.unparse(line.target), {})
                for argument in line.value.keywords:
                    if argument.arg in LIMITS:
                        with contextlib.suppress(ValueError):
                            own[argument.arg] = ast.literal_eval(argument.value)
    return limits
