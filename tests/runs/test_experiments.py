"""Parameters are stated once, and experiments follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import pytest
from pydantic import Field, ValidationError

from gradleak.errors import InputError
from gradleak.runs import experiments
from gradleak.runs.experiments import Experiment, Parameters, inputs_of, setting
from tests.checkout import PARTS, Toy


class Sums(Parameters):
    size: int = setting(paper=400, smallest=1, ge=1, default=4)
    names: list[str] = setting(smallest=[], default=["a", "b"])
    shift: float = setting(paper=0.0, default=0.5)

    def experiments(self) -> Iterator[Experiment]:
        for name in self.names:
            yield Sum.of(self, name=name)


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


def test_a_setting_states_its_values_at_every_scale() -> None:
    assert Sums().model_dump() == {"size": 4, "names": ["a", "b"], "shift": 0.5, "device": "auto", "seed": 2023}
    assert Sums.at("paper") == {"size": 400, "shift": 0.0}
    assert Sums.at("smallest") == {"size": 1, "names": []}


def test_an_experiment_takes_its_inputs_from_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "resolve_device", lambda device: "cpu" if device == "cpu" else "cuda")
    made = Sum.of(Sums(size=9, seed=5), name="a")
    assert (made.name, made.size, made.shift, made.again, made.seed, made.device) == ("a", 9, 0.5, 1, 5, "cuda")
    own = Sum.of(Sums(size=9), name="a", size=3, seed=6, again=2, device="cpu")
    assert (own.size, own.seed, own.again, own.device) == (3, 6, 2, "cpu"), "a given value counts"
    assert Read.of(Sums()).device == "cpu"
    assert list(Read.of(Sums()).reads()) == ["digits"]
    for wrong in ({"sise": 3}, {"part": "read"}, {"size": "many"}, {"shift": math.nan}):
        with pytest.raises(ValidationError, match=r"Extra inputs|valid integer|finite number"):
            Sum.of(Sums(), name="a", **wrong)


def test_inputs_are_what_records_state() -> None:
    plain = inputs_of(Sum.of(Sums(device="cpu"), name="a"))
    assert list(plain.items()) == [("name", "a"), ("size", 4), ("shift", 0.5), ("seed", 2023), ("device", "cpu")]
    read = inputs_of(Read.of(Sums()))
    assert list(read.items()) == [("part", "read"), ("size", 4), ("seed", 2023), ("device", "cpu")]
    more = inputs_of(Sum.of(Sums(device="cpu"), name="a", again=1, run_=3))
    assert {"again": 1, "run": 3}.items() <= more.items(), "a default value is an input if it is stated"
    assert inputs_of(Sum(**more)) == more


def test_a_gpu_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="device 'cuda' was asked for, but no GPU is at hand"):
        Sum.of(Sums(device="cuda"), name="a")


def test_a_study_runs_the_experiment_that_has_the_part(checkout: Toy) -> None:
    kinds, drawn = PARTS
    start = '"b"\n\n    def run(self) -> Iterator[dict[str, Any]]:\n        return '
    fewer = (f"{start}super().run()", f"{start}list(super().run())[:1]")
    threads = ('part: ClassVar[str] = "b"', 'part: ClassVar[str] = "b"\n    threads: ClassVar[int] = 2')
    checkout.rewrite(kinds, drawn, fewer, threads)
    study = checkout.load()
    assert {part: kind.__name__ for part, kind in study.experiments.items()} == {"a": "A", "b": "B", "c": "C"}
    assert (study.threads, study.datasets(checkout.parameters())) == (2, ["digits"])
    trials = study.trials(checkout.parameters(samples=2))
    assert [inputs_of(study.experiment(one)) for one in trials] == trials
    first, second = (study.run(one) for one in trials)
    assert ([row["word"] for row in first], [row["word"] for row in second]) == (["a", "b"], ["a"])
    assert checkout.traced == [0, 1]
