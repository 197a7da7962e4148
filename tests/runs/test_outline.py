"""Outlines of parameters: they refuse nothing that a study accepts, with the limits of the study's source."""

from __future__ import annotations

from typing import Any

import pytest

from gradleak import studies
from gradleak.runs import cells, records
from gradleak.runs.outline import outline_of
from gradleak.studies import Study


def outlined(study: Study) -> type[studies.Parameters]:
    return outline_of(study.module_file, cells.stated(study.notebook))


@pytest.mark.parametrize("name", studies.names())
def test_the_parameters_of_a_record_and_of_a_page_are_accepted(name: str) -> None:
    study = studies.load(name)
    outline, record = outlined(study), records.recorded(name)
    stated: dict[str, Any] = outline().model_dump()
    assert stated == {name: quick for name, (_, quick, _) in cells.stated(study.notebook).items()}
    values = {} if record is None else {key: value for key, value in record.parameters.items() if key in stated}
    assert outline(**values).model_dump() == stated | values


def test_types_and_limits_are_those_of_the_study() -> None:
    study = studies.load("theorem1")
    for name, field in outlined(study).model_fields.items():
        own = study.Parameters.model_fields[name]
        assert (field.annotation, field.metadata, field.default, field.description) == (
            own.annotation, own.metadata, own.default, own.description,
        ) or name in ("dataset", "training_dataset")  # fmt: skip
