"""The three attacks in a file each find what the package finds, and nothing where nothing leaks."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from gradleak import observe
from gradleak.images import LBFGS, match
from gradleak.labels import recover_soft_labels

FILES = sorted((Path(__file__).parents[2] / "book" / "attacks").glob("*.py"))
LONGEST = 150


def loaded(name: str) -> Any:
    """Return a file's names."""
    return SimpleNamespace(**runpy.run_path(str(FILES[0].with_stem(name))))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_short_and_needs_torch_alone(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert len(lines) < LONGEST
    assert {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))} == {"torch"}


def test_soft_labels_are_those_of_the_package_and_noise_has_none() -> None:
    attack = loaded("soft_label")
    for seed in range(20):
        weight, gradient, features, label = attack.client(seed=seed)
        found, found_features = attack.server(weight, gradient)
        assert torch.allclose(found.float(), label, atol=1e-5)
        assert torch.allclose(found_features.float(), features, rtol=1e-3, atol=1e-4)
        ours = recover_soft_labels(gradient[None], weight, prior="smoothing")
        assert ours.status == ("unique",)
        assert torch.allclose(found.float(), ours.labels[0].float(), atol=1e-5)
    noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0)) * gradient.std()
    found, _ = attack.server(weight, noise)
    assert (found.float() - label).abs().sum() > 0.1


def test_images_are_as_good_as_those_of_the_package() -> None:
    attack = loaded("images")
    torch.manual_seed(0)
    model = attack.network(width=12, blocks=1)
    images = F.interpolate(torch.rand(2, 3, 6, 6, dtype=torch.float64), size=16, mode="bicubic").clamp(0, 1)
    labels = torch.tensor([7, 2])
    found, classes = attack.server(model, attack.gradient_of(model, images, labels), size=2, steps=80)
    assert classes.sort().values.tolist() == [2, 7]
    start = torch.full_like(images, 0.5) + 0.1 * torch.randn_like(images)
    ours = match(observe(model, images, labels), classes, optimizer=LBFGS(steps=6), start=start).images
    for recovered in (found, ours):
        assert attack.decibels(recovered, images).min() > 30
    assert attack.decibels(torch.full_like(images, 0.5), images).max() < 20, "grey pictures are no success"


def test_a_sentence_is_read_to_its_last_word_but_one_and_none_from_noise() -> None:
    attack = loaded("sentence")
    for seed in range(10):
        torch.manual_seed(seed)
        model = attack.Model()
        words = [attack.WORDS[place] for place in torch.randint(len(attack.WORDS), (3 + seed,))]
        gradient = attack.client(model, " ".join(words))
        found, distances = attack.server(model, gradient)
        assert found == words[:-1]
        assert distances.sort(dim=1).values[:, 1].min() > 0.05, "no other word is near"
    low = torch.randn(len(gradient), 5) @ torch.randn(5, gradient.shape[1])
    assert attack.server(model, low)[0] == []
