"""Studies are found by their files, and their parameters are refused or taken in one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gradleak import paths, studies
from gradleak.errors import InputError, MissingData, UnknownName
from gradleak.studies import Study


@pytest.mark.parametrize("name", studies.names())
def test_every_study_is_whole(name: str) -> None:
    study = studies.load(name)
    assert study.title
    assert study.place
    assert study.notebook.is_file()
    studies.check_notebook(study)
    studies.parameters(study, "paper")
    studies.parameters(study, "quick", study.module.SMALLEST)
    module = name.replace("-", "_")
    assert (Path(__file__).parent / f"test_{module}.py").is_file()
    for field in study.Parameters.model_fields.values():
        assert field.description
    text = study.notebook.read_text()
    assert all(not cell.get("outputs") for cell in json.loads(text)["cells"]), "committed without outputs"
    for trial in study.module.trials(study.Parameters()):
        json.dumps(trial)
        assert {"seed", "device"} <= set(trial)


def test_texts_are_parsed(toy: Study) -> None:
    given = {"count": "7", "factor": "2", "names": "x, y", "device": "cpu", "log": "12"}
    taken = studies.parameters(toy, "quick", given)
    assert taken.model_dump() == {
        "device": "cpu", "seed": 2023, "count": 7, "factor": 2.0, "names": ["x", "y"], "sleep": 0.0, "log": "12",
    }  # fmt: skip
    assert studies.parameters(toy, "quick", {"names": "['p']"}).model_dump()["names"] == ["p"]
    assert studies.parameters(toy, "paper").model_dump()["count"] == 8
    assert studies.parameters(toy, "paper", {"count": 2}).model_dump()["count"] == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cout": "1"}, "unknown parameter of 'toy' 'cout': did you mean 'count'"),
        ({"count": "many"}, "parameter 'count' of 'toy': 'many' is not right, input should be a valid integer"),
        ({"count": "1.5"}, "'1.5' is not right"),
        ({"count": "101"}, "less than or equal to 100"),
        ({"factor": "-1"}, "greater than 0"),
        ({"seed": "-1"}, "greater than or equal to 0"),
        ({"device": "gpu"}, "'auto', 'cpu' or 'cuda'"),
    ],
)
def test_bad_parameters_are_one_line(toy: Study, given: dict[str, str], message: str) -> None:
    with pytest.raises((InputError, UnknownName), match=message) as caught:
        studies.parameters(toy, "quick", given)
    assert "\n" not in str(caught.value)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert studies.resolve_device("auto") == studies.resolve_device("cpu") == "cpu"
    with pytest.raises(InputError, match="no GPU is at hand"):
        studies.resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert studies.resolve_device("auto") == "cuda"
    assert studies.resolve_device("cpu") == "cpu"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("count: int = 5  # trials", "states 'count' as 5, the study's quick profile as 4"),
        ("count: int = 4", "parameter 'count' has no comment"),
        ("count = 4  # trials", "parameters are stated as"),
        ("counts: int = 4  # trials", "'count' as 'nothing'"),
    ],
)
def test_a_notebook_that_disagrees_with_its_study_is_found(toy: Study, line: str, message: str) -> None:
    studies.check_notebook(toy)
    page = json.loads(toy.notebook.read_text())
    source = "".join(page["cells"][0]["source"])
    page["cells"][0]["source"] = source.replace("count: int = 4  # trials", line)
    toy.notebook.write_text(json.dumps(page))
    with pytest.raises(InputError, match=message):
        studies.check_notebook(toy)


def test_a_study_without_its_notebook_and_a_cell_without_its_tag(toy: Study) -> None:
    page = json.loads(toy.notebook.read_text())
    page["cells"][0]["metadata"] = {}
    toy.notebook.write_text(json.dumps(page))
    with pytest.raises(InputError, match="one cell tagged 'parameters'; it has 0"):
        studies.check_notebook(toy)
    toy.notebook.unlink()
    with pytest.raises(MissingData, match=r"expected notebooks/wang2024/toy.ipynb"):
        studies.load("toy")


def test_a_package_without_its_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_ROOT", str(tmp_path))
    with pytest.raises(MissingData, match="runs its pages from a checkout"):
        paths.root()
