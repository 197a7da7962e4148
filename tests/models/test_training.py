"""Training is repeatable, cached by its whole recipe, and says when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradleak import paths
from gradleak.errors import GradleakError, GradleakWarning, InputError
from gradleak.models import build
from gradleak.models.training import Recipe, train

TINY = Recipe(network="small-cnn", dataset="digits", epochs=2, batch_size=256, learning_rate=1e-2)


@pytest.mark.parametrize(("labels", "optimizer"), [("smoothing", "sgd"), ("mixup", "adam")])
def test_two_trainings_are_bit_identical_and_the_second_may_come_from_the_cache(
    labels: str, optimizer: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = TINY.model_copy(update={"labels": labels, "optimizer": optimizer})
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = train(recipe)
    assert torch.equal(before, torch.get_rng_state())
    assert not first.cached
    assert first.losses[-1] < first.losses[0]
    second = train(recipe)
    assert second.cached
    monkeypatch.setenv("GRADLEAK_CACHE", str(empty_cache / "other"))
    third = train(recipe)
    for other in (second, third):
        assert other.accuracy == first.accuracy
        assert other.losses == first.losses
        for name, value in first.model.state_dict().items():
            assert torch.equal(value, other.model.state_dict()[name])
    assert not first.model.training


def test_a_damaged_network_is_trained_again_with_a_warning(empty_cache: Path) -> None:
    first = train(TINY)
    (file,) = (paths.cache() / "networks").glob("*.pt")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.warns(GradleakWarning, match="is damaged .* and is trained again") as said:
        again = train(TINY)
    assert len(said) == 1
    assert again.losses == first.losses
    assert (again.cached, train(TINY).cached) == (False, True)


def test_divergence_is_said(empty_cache: Path) -> None:
    recipe = TINY.model_copy(update={"learning_rate": 1e30, "optimizer": "sgd", "epochs": 4})
    with pytest.raises(GradleakError, match=r"diverged in epoch \d: lower the learning rate of 1e\+30"):
        train(recipe)


def test_pretrained_networks(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(network="small-cnn", dataset="digits", epochs=1, batch_size=512, pretrained="net.pt")
    monkeypatch.setenv("GRADLEAK_WEIGHTS", str(empty_cache))
    own = build("small-cnn", in_channels=1, image_size=8, seed=9)
    state = {key.replace("head.", "linear."): value for key, value in own.state_dict().items()}
    torch.save(state, empty_cache / "net.pt")
    # A step too small to move anything: what comes out is what was loaded.
    still = recipe.model_copy(update={"learning_rate": 1e-12, "weight_decay": 0.0})
    torch.testing.assert_close(train(still).model.head.weight, own.head.weight)
    torch.save({"conv": torch.zeros(1)}, empty_cache / "net.pt")
    with pytest.raises(InputError, match=r"net.pt does not fit this network: it lacks body"):
        train(recipe.model_copy(update={"seed": 1}))
