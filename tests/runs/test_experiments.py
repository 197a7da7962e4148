"""Parameters are stated once, experiments follow from them, and rows have the declared columns only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from pydantic import Field, ValidationError

from gradleak import studies
from gradleak.errors import InputError
from gradleak.runs import experiments
from gradleak.runs.experiments import Experiment, Parameters, inputs_of, setting
from tests.checkout import NEXT, PARTS, Toy


class Sums(Parameters):
    size: int = setting(paper=400, smallest=1, ge=1, default=4)
    names: list[str] = setting(smallest=[], default=["a", "b"])
    shift: float = setting(paper=0.0, default=0.5)
    rounded: bool = setting(paper=False, default=True)
    word: str = "sum"

    def experiments(self) -> Iterator[Experiment]:
        for name in self.names:
            yield Sum.of(self, name=name)
            yield Read.of(self, size=7)


class Sum(Experiment):
    name: str
    size: int
    shift: float
    again: int = 1
    run_: int = Field(0, alias="run")


class Read(Experiment):
    part: ClassVar[str] = "read"
    stays_on_cpu: ClassVar[str] = "it is small"

    dataset: str = "digits"
    size: int


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this be a machine with a GPU."""
    monkeypatch.setattr(experiments, "resolve_device", lambda device: "cpu" if device == "cpu" else "cuda")


# ---------------------------------------------------------------------------------------------------------- parameters
def test_a_setting_states_its_values_at_every_scale() -> None:
    quick = {"size": 4, "names": ["a", "b"], "shift": 0.5, "rounded": True, "word": "sum"}
    assert Sums().model_dump() == quick | {"device": "auto", "seed": 2023}
    assert Sums.at("paper") == {"size": 400, "shift": 0.0, "rounded": False}
    assert Sums.at("smallest") == {"size": 1, "names": []}
    assert Parameters.at("paper") == Parameters.at("smallest") == {}
    assert Sums().names is not Sums().names, "no run changes the list of another"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"size": 0}, "greater than or equal to 1"),
        ({"size": 1.5}, "valid integer"),
        ({"sizes": 4}, "Extra inputs are not permitted"),
        ({"shift": math.inf}, "finite number"),
        ({"device": "tpu"}, "'auto', 'cpu' or 'cuda'"),
        ({"seed": 2**32}, "less than 4294967296"),
    ],
)
def test_parameters_keep_to_their_limits(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Sums(**changes)


def test_parameters_do_not_change() -> None:
    parameters = Sums()
    with pytest.raises(ValidationError, match="frozen"):
        parameters.size = 5  # type: ignore[misc]
    assert parameters.size == 4


def test_a_profile_is_checked_as_a_choice_is(checkout: Toy) -> None:
    assert studies.parameters("toy", "paper").model_dump()["samples"] == 8
    assert studies.parameters("toy", "smallest").model_dump()["samples"] == 1
    assert studies.parameters("toy", "paper", {"samples": 3}).model_dump()["samples"] == 3
    checkout.edit("paper=8", "paper=1001")
    with pytest.raises(InputError, match="'samples' of 'toy': 1001 is not right, input should be less than or equal"):
        studies.parameters("toy", "paper")


def test_what_a_study_does_not_say_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="does not say which experiments its parameters make"):
        Parameters().experiments()
    with pytest.raises(NotImplementedError, match="does not say how large a run is"):
        Sums().about()
    with pytest.raises(NotImplementedError, match="Sum does not say how it runs"):
        Sum.of(Sums(), name="a").run()


# --------------------------------------------------------------------------------------------------------- experiments
@pytest.mark.usefixtures("card")
def test_an_experiment_takes_its_inputs_from_the_parameters() -> None:
    made = Sum.of(Sums(size=9, seed=5), name="a")
    assert (made.name, made.size, made.shift, made.again, made.seed, made.device) == ("a", 9, 0.5, 1, 5, "cuda")
    own = Sum.of(Sums(size=9), name="a", size=3, seed=6, again=2, device="cpu")
    assert (own.size, own.seed, own.again, own.device) == (3, 6, 2, "cpu"), "what is given counts"
    with pytest.raises(ValidationError, match="name\n  Field required"):
        Sum.of(Sums())


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(("asked", "found"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_an_experiment_that_stays_uses_the_cpu_and_others_what_is_there(asked: str, found: str) -> None:
    parameters = Sums.model_validate({"device": asked})
    assert Sum.of(parameters, name="a").device == found
    assert Read.of(parameters).device == "cpu"


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert Sum.of(Sums(), name="a").device == "cpu"
    with pytest.raises(InputError, match="device 'cuda' was asked for, but no GPU is at hand"):
        Sum.of(Sums(device="cuda"), name="a")


def test_inputs_are_what_records_state() -> None:
    plain = inputs_of(Sum.of(Sums(device="cpu"), name="a"))
    assert list(plain.items()) == [("name", "a"), ("size", 4), ("shift", 0.5), ("seed", 2023), ("device", "cpu")], (
        "no part where a study has none, and a default that nobody states is no input"
    )
    read = inputs_of(Read.of(Sums()))
    assert list(read.items()) == [("part", "read"), ("size", 4), ("seed", 2023), ("device", "cpu")]
    more = inputs_of(Sum.of(Sums(device="cpu"), name="a", again=1, run_=3))
    assert {"again": 1, "run": 3}.items() <= more.items(), "a default that is stated is one, by the name that it has"
    assert inputs_of(Sum(**more)) == more


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sise": 3}, "sise\n  Extra inputs are not permitted"),
        ({"part": "read"}, "part\n  Extra inputs are not permitted"),
        ({"size": "many"}, "valid integer"),
        ({"shift": math.nan}, "finite number"),
    ],
)
def test_an_experiment_refuses_what_is_none_of_its_inputs(changes: dict[str, Any], told: str) -> None:
    inputs = {"name": "a", "size": 3, "shift": 0.0, "seed": 1, "device": "cpu"}
    assert Sum(**inputs).size == 3
    with pytest.raises(ValidationError, match=told):
        Sum(**inputs | changes)


def test_an_experiment_does_not_change() -> None:
    made = Sum.of(Sums(), name="a")
    with pytest.raises(ValidationError, match="frozen"):
        made.size = 5  # type: ignore[misc]
    assert made.size == 4


def test_an_experiment_reads_its_dataset_if_it_has_one() -> None:
    assert list(Read.of(Sums()).reads()) == ["digits"]
    assert list(Sum.of(Sums(), name="a").reads()) == []


# ------------------------------------------------------------------------------------------------------------- studies
def test_a_study_finds_the_experiment_by_its_part(checkout: Toy) -> None:
    checkout.rewrite(*PARTS)
    study = checkout.load()
    assert {part: kind.__name__ for part, kind in study.experiments.items()} == {"a": "A", "b": "B", "c": "C"}, (
        "not the class from which they are derived"
    )
    trials = study.trials(checkout.parameters())
    assert [(one["part"], one["number"]) for one in trials] == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    found = [study.experiment(one) for one in trials]
    assert [type(one).__name__ for one in found] == ["A", "B", "A", "B"]
    assert [inputs_of(one) for one in found] == trials
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        study.experiment(trials[0] | {"sise": 3})


OTHER = """
from typing import ClassVar

from gradleak.studies import Experiment


class Other(Experiment):
    part: ClassVar[str] = "other"

    def run(self):
        return []
"""


def test_what_a_study_imports_is_none_of_its_experiments_and_a_run_may_be_inherited(checkout: Toy) -> None:
    (checkout.module.parent / "_other.py").write_text(OTHER)
    imports = "from gradleak.studies import Experiment, setting\n"
    kinds, drawn = PARTS
    same = f'\n\nclass Same(Draws):\n    part: ClassVar[str] = "same"\n{NEXT}'
    checkout.rewrite(
        (imports, f"{imports}from gradleak.studies.toy2020._other import Other\n"), kinds, drawn, (NEXT, same)
    )
    study = checkout.load()
    assert study.module.Other.part == "other"
    assert set(study.experiments) == {"a", "b", "c", "same"}


def test_a_study_runs_the_experiment_that_has_the_part(checkout: Toy) -> None:
    kinds, drawn = PARTS
    start = '"b"\n\n    def run(self) -> Iterator[dict[str, Any]]:\n        return '
    other = (f"{start}super().run()", f"{start}list(super().run())[:1]")
    checkout.rewrite(kinds, drawn, other)
    study = checkout.load()
    first, second = (study.run(one) for one in study.trials(checkout.parameters(samples=2)))
    assert [row["word"] for row in first] == ["a", "b"]
    assert [row["word"] for row in second] == ["a"]
    assert list(first[0]) == ["word", "value", "sum", "product", "careless", "positive", "nothing"]
    assert checkout.traced == [0, 1]
    checkout.edit("word=word,", "word=word, more=1,")
    study = checkout.load()
    with pytest.raises(InputError, match="a row has the columns more, which are not declared"):
        study.run(study.trials(checkout.parameters())[0])


def test_a_study_reads_each_dataset_once_and_takes_the_threads_that_one_needs(checkout: Toy) -> None:
    study = checkout.load()
    assert study.datasets(checkout.parameters()) == ["digits"]
    assert (study.threads, checkout.parameters().about()) == (1, "4 draws")
    checkout.rewrite(*PARTS, ('part: ClassVar[str] = "b"', 'part: ClassVar[str] = "b"\n    threads: ClassVar[int] = 2'))
    assert checkout.load().threads == 2
    checkout.edit('return ["digits"]', 'return ["digits", "photos"][self.number % 2 :]')
    assert checkout.load().datasets(checkout.parameters()) == ["digits", "photos"]
