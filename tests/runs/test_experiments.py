"""Parameters are stated once, and experiments follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import pytest
from pydantic import ValidationError

from gradleak.errors import InputError
from gradleak.runs import experiments
from gradleak.runs.experiments import Experiment, Parameters, setting
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


class Read(Experiment):
    part: ClassVar[str] = "read"
    stays_on_cpu: ClassVar[str] = "it is small"

    dataset: str = "digits"
    size: int


def test_an_experiment_takes_its_inputs_from_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "resolve_device", lambda device: "cpu" if device == "cpu" else "cuda")
    made = Sum.of(Sums(size=9, seed=5), name="a")
    assert (made.name, made.size, made.shift, made.seed, made.device) == ("a", 9, 0.5, 5, "cuda")
    own = Sum.of(Sums(size=9), name="a", size=3, seed=6, device="cpu")
    assert (own.size, own.seed, own.device) == (3, 6, "cpu"), "a given value counts"
    assert Read.of(Sums()).device == "cpu"
    assert list(Read.of(Sums()).reads()) == ["digits"]
    for wrong in ({"sise": 3}, {"part": "read"}, {"size": "many"}, {"shift": math.nan}):
        with pytest.raises(ValidationError, match=r"Extra inputs|valid integer|finite number"):
            Sum.of(Sums(), name="a", **wrong)


def test_a_gpu_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="device 'cuda' was asked for, but no GPU is at hand"):
        Sum.of(Sums(device="cuda"), name="a")


def test_a_row_has_declared_columns(checkout: Toy) -> None:
    checkout.rewrite(*PARTS, ("word=word,", "word=word, more=1,"))
    study = checkout.load()
    assert study.datasets(checkout.parameters()) == ["digits"]
    with pytest.raises(InputError, match="a row has the columns more, which are not declared"):
        study.run(study.trials(checkout.parameters())[0])
