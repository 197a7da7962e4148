"""What a study's parameters say is checked before any work: forms, defences, and networks that cannot see a dataset."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gradleak import data, models, studies
from gradleak.data.registry import EMBEDDED
from gradleak.errors import InputError
from gradleak.runs.forms import Form

# Study, parameter, text, what the one line says.
WRONG = [
    ("llg-defenses", "defenses", "noise", "it must be written defence/level, one of .* noise/variance"),
    ("llg-defenses", "defenses", "noise/-1", "is not right, variance must be at least 0; got -1"),
    ("llg-defenses", "defenses", "fog/1", "unknown defence 'fog'. Known: dp, dp-coded, grad-drop, noise"),
    ("label-attacks-compared", "networks", '[{"network": "lenet5", "layers": 2}]', "'layers', extra inputs are not"),
    ("label-attacks-compared", "networks", '[{"network": "lenet5", "activation": "a"}]', "unknown activation"),
    (
        "batch-restoration",
        "rows",
        '[{"dataset": "photos", "network": "lenet5", "activation": "relu", "classes": 10}]',
        "96 samples without repeats need as many classes; got 10",
    ),
    (
        "label-accuracy",
        "rows",
        '[{"dataset": "photos", "network": "alexnet", "stage": "trained"}]',
        "no training recipe for 'photos/alexnet'",
    ),
    (
        "cnn-reconstruction",
        "second_order_starts",
        '[{"stage": "trained", "start": "grey", "images": 1}]',
        "'closed form'",
    ),
    ("batches", "cells", '[{"network": "layer", "size": 3}]', "3 samples need as many classes; got 0"),
    ("llg-attack", "datasets", "digts", "unknown dataset 'digts': did you mean 'digits'"),
    ("label-accuracy", "network", "alexnet", "cannot be shown 'photos': 'alexnet' needs images of at least 63 pixels"),
    ("theorem1", "dataset", "digits", "trained on 'photos' and cannot be shown 'digits': 32×32×3 pixels there"),
]


@pytest.mark.parametrize(("study", "name", "text", "message"), WRONG)
def test_a_wrong_text_is_refused_in_one_line(study: str, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        studies.parameters(study, "quick", {name: text})
    assert "\n" not in str(error.value)
    assert f"of '{study}'" in str(error.value)


class Toy(Form):
    name: str
    size: int
    share: float


def test_a_form_is_typed_and_given_back_as_it_was_written() -> None:
    toy = Toy.model_validate("a/2/0.50")
    assert (toy.model_dump(), str(toy)) == ("a/2/0.50", "a/2/0.50")
    assert dict(toy) == {"name": "a", "size": 2, "share": 0.5}
    assert Toy.model_validate(toy) is toy
    for wrong in ("a", "a/2/0.5/", "a/b/1", "a/2/nan"):
        with pytest.raises(ValidationError):
            Toy.model_validate(wrong)


@pytest.mark.parametrize("study", ["words", "transcripts", "harder-transcripts"])
def test_a_page_on_a_recogniser_names_the_texts_that_it_reads(study: str) -> None:
    assert studies.load(study).datasets(studies.parameters(study)) == ["sentences"]
    assert "librispeech" in studies.load(study).datasets(studies.parameters(study, "paper"))


@pytest.mark.parametrize("name", data.names())
def test_a_dataset_is_described_without_being_loaded(name: str) -> None:
    channels, side = data.shape(name)
    assert (channels, side) == {"digits": (1, 8), "photos": (3, 32), "mnist": (1, 28)}.get(name, (3, side))
    if name in EMBEDDED:
        assert data.load(name, "test").images.shape[1:] == (channels, side, side)
    assert models.build("fcn4", in_channels=channels, image_size=32)
