"""Studies are found by their files, and each is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradleak import studies
from gradleak.errors import InputError, MissingData
from gradleak.runs.experiments import inputs_of
from gradleak.studies import Study


@pytest.mark.parametrize("name", studies.names())
def test_every_study_is_whole(name: str) -> None:
    study = studies.load(name)
    assert study.trials(studies.parameters(study, "paper"))
    studies.parameters(study, "quick", study.Parameters.at("smallest"))
    module = name.replace("-", "_")
    assert (Path(__file__).parent / study.paper / f"test_{module}.py").is_file()
    for field, value in studies.parameters(study).model_dump().items():
        assert study.Parameters.model_fields[field].description
        if type(value) is int:  # a seed or a count of −1 never reaches a trial
            with pytest.raises(InputError, match=f"{field}.*greater than or equal to"):
                studies.parameters(study, "quick", {field: -1})
    text = study.notebook.read_text()
    assert all(not cell.get("outputs") for cell in json.loads(text)["cells"]), "committed without outputs"
    assert study.Parameters().about()
    for trial in study.trials(study.Parameters()):
        read = json.loads(json.dumps(trial))
        assert {"seed", "device"} <= set(trial)
        assert inputs_of(study.experiment(read)) == read, "a record states all that an experiment is made of"


def test_a_study_without_its_notebook_and_a_cell_without_its_tag(toy: Study) -> None:
    page = json.loads(toy.notebook.read_text())
    page["cells"][0]["metadata"] = {}
    toy.notebook.write_text(json.dumps(page))
    with pytest.raises(InputError, match="one cell tagged 'parameters'; it has 0"):
        studies.parameters(toy)
    toy.notebook.unlink()
    with pytest.raises(MissingData, match=r"expected notebooks/toy2020/toy.ipynb"):
        studies.load("toy")
