"""Every public attack, every defence, the measures, training and the audit give on a GPU what they give on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak import data
from gradleak.models.language_training import LanguageRecipe, train_language_model
from gradleak.models.picture_training import PictureRecipe, learned
from gradleak.models.recogniser_training import trained_recogniser
from gradleak.models.training import train
from tests.gpu.attacks import RECIPE, TRIES, plain, whole
from tests.gpu.rows import different
from tests.pretended import pretended_gpu


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, members in TRIES.items() for name in members])
def test_results_are_the_cpus(group: str, name: str) -> None:
    run = TRIES[group][name]
    expected, places = plain(run("cpu")), set[str]()
    with pretended_gpu() as gpu:
        found = run(gpu.device)
        whole(found, lambda tensor: places.add(tensor.device.type))
        assert different(plain(found), expected) == []
    if group in ("attacks", "defences"):
        assert places <= {gpu.device}, "a result lies where its gradient does"


def test_networks_are_cached_by_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real GPU a trained network differs by rounding, so it has its own key; the CPU's key is the recipe's."""
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    with pretended_gpu() as gpu:
        for device in ("cpu", gpu.device):
            cached = [train(RECIPE, device=device).cached for _ in range(2)]
            assert cached == [False, True]
    learning = data.load("digits", "train")
    files = {file.stem for file in (tmp_path / "networks").glob("*.pt")}
    assert len(files) == 2
    assert RECIPE.key(f"{learning.source} {len(learning)}") in files


def test_other_networks_are_trained_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    with pretended_gpu() as gpu:
        learned(PictureRecipe(kind="denoiser", dataset="photos", depth=4, epochs=1, batch_size=64))
        trained_recogniser("small", "sentences", 1)
        train_language_model(LanguageRecipe(text="sentences", kind="gru", width=4, epochs=1, batch_size=64))
        assert gpu.operations == 0
