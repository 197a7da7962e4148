"""Every public attack, every defence, training, LPIPS and the audit give on a GPU what they give on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak import data, defenses
from gradleak.models.language_training import LanguageRecipe, train_language_model
from gradleak.models.picture_training import PictureRecipe, learned
from gradleak.models.recogniser_training import trained_recogniser
from gradleak.models.training import train
from tests.gpu.attacks import ATTACKS, MEASURES, RECIPE, audited, defended, devices_of, measured, plain
from tests.gpu.rows import different
from tests.pretended import pretended_gpu


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack(attack: str) -> None:
    expected = plain(ATTACKS[attack]("cpu"))
    with pretended_gpu() as gpu:
        found = ATTACKS[attack](gpu.device)
        where, said = devices_of(found), plain(found)
    assert where <= {gpu.device}, "a result lies where its gradient does"
    assert different(said, expected, rounded=True) == []


@pytest.mark.parametrize("kind", defenses.KINDS)
def test_a_defence(kind: str) -> None:
    expected = plain(defended(kind)("cpu"))
    with pretended_gpu() as gpu:
        found = defended(kind)(gpu.device)
        assert devices_of(found) == {gpu.device}
        assert different(plain(found), expected, rounded=True) == []


def test_a_network_trained_there_is_the_one_trained_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training draws on the CPU, and its sums are the CPU's here: on a real GPU they differ by rounding.

    So each is cached under a key of its own, and the CPU's key is the recipe's.
    """
    found = {}
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    for device in ("cpu", "pretended"):
        with pretended_gpu():
            trained = train(RECIPE, device=device, show_progress=False)
            again = train(RECIPE, device=device, show_progress=False)
        assert (trained.cached, again.cached) == (False, True), device
        found[device] = [plain(one) for one in trained.model.state_dict().values()]
    assert found["cpu"] == found["pretended"]
    learning = data.load("digits", "train")
    files = {file.stem for file in (tmp_path / "networks").glob("*.pt")}
    assert len(files) == 2
    assert RECIPE.key(f"{learning.source} {len(learning)}") in files


def test_what_the_other_trainers_train_is_the_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no device: a network that they trained is the CPU's wherever the page runs."""
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    with pretended_gpu() as gpu:
        learned(PictureRecipe(kind="denoiser", dataset="photos", depth=4, epochs=1, batch_size=64))
        trained_recogniser("small", "sentences", 1)
        train_language_model(LanguageRecipe(text="sentences", kind="gru", width=4, epochs=1, batch_size=64))
        assert gpu.operations == 0
    assert len(list((tmp_path / "networks").glob("*.pt"))) == 3


def test_measures() -> None:
    for measure in MEASURES:
        expected = plain(measured(measure)("cpu"))
        with pretended_gpu() as gpu:
            found = plain(measured(measure)(gpu.device))
        assert different(found, expected, rounded=True) == [], measure.__name__


def test_an_audit() -> None:
    expected = audited("cpu")
    with pretended_gpu() as gpu:
        assert audited(gpu.device) == expected
