"""Every public attack, every defence, training, LPIPS and the audit give on a GPU what they give on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradleak
from gradleak import augment, data, defenses, images, labels, metrics, models, sequences
from gradleak.images import presets
from gradleak.leak import Leak, observe
from gradleak.models.language import batch_of, build_language_model
from gradleak.models.language_training import LanguageRecipe, train_language_model
from gradleak.models.picture_training import PictureRecipe, learned
from gradleak.models.recogniser_training import trained_recogniser
from gradleak.models.training import Recipe, train
from tests.gpu.rows import different
from tests.pretended import pretended_gpu

CLASSES = 10


def _photos(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    photos = data.load("photos", "test")
    chosen = torch.randperm(len(photos), generator=torch.Generator().manual_seed(seed))[:count]
    return data.normalise(photos.images[chosen]), photos.labels[chosen]


def _leak(device: str, network: str = "lenet", count: int = 1, *, smooth: bool = True, **options: Any) -> Leak:
    """Observe a client's photographs, with smoothed labels or with classes."""
    inputs, classes = _photos(count)
    model = models.build(network, seed=1, **options).to(device)
    width = options.get("classes", CLASSES)
    targets = augment.smooth(classes, width, 0.2) if smooth else classes
    return observe(model, inputs.to(device), targets.to(device))


def _network(*widths: int, activation: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def _chain(device: str, count: int = 3) -> Leak:
    """Observe a client whose network is a chain of Linear layers."""
    inputs = torch.rand(count, 1, 5, 6, generator=torch.Generator().manual_seed(0))
    model = _network(30, 64, 48, 40).to(device)
    return observe(model, inputs.to(device), torch.arange(count, device=device))


def _language(device: str) -> Leak:
    model = build_language_model("lstm", pieces=50, width=24)
    tokens, targets = batch_of([[5, 7, 9], [11, 4]], device=device)
    return observe(model.to(device), tokens, targets)


def _auxiliary(device: str) -> tuple[Tensor, Tensor]:
    inputs, classes = _photos(60, seed=3)
    return inputs.to(device), classes.to(device)


def _soft(device: str, **options: Any) -> Any:
    leak = _leak(device)
    return labels.recover_soft_labels(leak.weight_gradient, leak.weight, **options)


def _counted(method: str) -> Callable[[str], Any]:
    def run(device: str) -> Any:
        count = 1 if method == "idlg" else 6
        leak = _leak(device, "lenet5", count, smooth=False, activation="relu", init="torch")
        knowledge = {"auxiliary": _auxiliary(device)} if method in ("llg+", "posterior", "shadow") else {}
        return labels.count_labels(leak, method, **knowledge)

    return run


def _matched(name: str) -> Callable[[str], Any]:
    def run(device: str) -> Any:
        settings = presets.preset(name)
        settings["optimizer"] = images.Adam(steps=3) if "cosine" in name else images.LBFGS(steps=1, inner=3)
        return images.match(_leak(device), **settings).images

    return run


def _head(device: str, count: int = 3, classes: int = 40) -> tuple[Tensor, Tensor]:
    """Return a last layer's weight gradient and weight, of samples of different classes."""
    generator = torch.Generator().manual_seed(0)
    weight, hidden = torch.randn(classes, 64, generator=generator) / 8, torch.rand(count, 64, generator=generator)
    errors = (hidden @ weight.T).softmax(dim=1) - augment.smooth(torch.arange(count), classes, 0.2)
    return (errors.T @ hidden / count).to(device), weight.to(device)


ATTACKS: dict[str, Callable[[str], Any]] = {
    "one soft label": _soft,
    "one soft label, factor unknown": lambda device: _soft(device, scale=None),
    "one soft label, proved": lambda device: _soft(device, certify="proof"),
    "one soft label, any sign": lambda device: _soft(device, nonnegative=False),
    "one soft label, noise": lambda device: _soft(device, noise=None),
    "one soft label, as published": lambda device: _soft(device, solver="lbfgs"),
    "a batch's soft labels": lambda device: labels.recover_batch(*_head(device)),
    "a batch's soft labels, factor unknown": lambda device: labels.recover_batch(*_head(device), scale=None),
    "a batch's soft labels, jointly": lambda device: labels.recover_jointly(*_head(device, 2, 8), batch_size=2),
    "classes revealed": lambda device: sorted(labels.reveal_labels(_head(device)[0])),
    "iDLG": lambda device: labels.idlg(_leak(device).weight_gradient),
    **{f"counted by {method}": _counted(method) for method in labels.METHODS},
    "fully connected": lambda device: images.invert_fully_connected(_chain(device)),
    "fully connected, traced": lambda device: images.trace_fully_connected(_chain(device)),
    "fully connected, by biases": lambda device: images.bias_attack(_chain(device)),
    "convolutional": lambda device: images.invert_convolutional(_leak(device)),
    "cocktail party": lambda device: images.unmix_features(_head(device)[0], 3),
    **{f"matched as {name}": _matched(name) for name in presets.PRESETS},
    "sentences": lambda device: sequences.read_sentences(_language(device)),
    "prefixes": lambda device: sequences.read_prefixes(_language(device)),
    "words": lambda device: sequences.reveal_words(_language(device)),
}


def plain(found: Any) -> Any:
    """Return a result as numbers, texts, lists and dictionaries."""
    if isinstance(found, Tensor):
        return found.detach().cpu().double().nan_to_num(-1e300).flatten().tolist()
    if isinstance(found, list | tuple):
        return [plain(one) for one in found]
    if hasattr(found, "__dataclass_fields__"):
        return {name: plain(getattr(found, name)) for name in found.__dataclass_fields__}
    return found


def devices_of(found: Any) -> set[str]:
    """Return where a result's tensors are."""
    if isinstance(found, Tensor):
        return {found.device.type}
    if isinstance(found, list | tuple):
        return set().union(*map(devices_of, found))
    if hasattr(found, "__dataclass_fields__"):
        return set().union(*(devices_of(getattr(found, name)) for name in found.__dataclass_fields__))
    return set()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack(attack: str) -> None:
    expected = plain(ATTACKS[attack]("cpu"))
    with pretended_gpu() as gpu:
        found = ATTACKS[attack](gpu.device)
        where, said = devices_of(found), plain(found)
    assert where <= {gpu.device}, "a result lies where its gradient does"
    assert different(said, expected, rounded=True) == []


LEVELS = {"none": "none", "sign": "sign", "half": "half", "quantize": "quantize/4"}


@pytest.mark.parametrize("kind", defenses.KINDS)
def test_a_defence(kind: str) -> None:
    def sent(device: str) -> Any:
        draws = torch.Generator().manual_seed(3)
        defense = defenses.named(LEVELS.get(kind, f"{kind}/0.5"), generator=draws)
        # One of them takes the last layer for a weight and a bias, as the code that it repeats does.
        return list(defense(_leak(device, "lenet5").gradients).values())

    expected = plain(sent("cpu"))
    with pretended_gpu() as gpu:
        found = sent(gpu.device)
        assert devices_of(found) == {gpu.device}
        assert different(plain(found), expected, rounded=True) == []


def test_a_network_trained_there_is_the_one_trained_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training draws on the CPU, and its sums are the CPU's here: on a real GPU they differ by rounding.

    So each is cached under a key of its own, and the CPU's key is the recipe's.
    """
    recipe = Recipe(network="lenet", dataset="digits", epochs=1, labels="mixup", batch_size=256)
    found = {}
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    for device in ("cpu", "pretended"):
        with pretended_gpu():
            trained = train(recipe, device=device, show_progress=False)
            again = train(recipe, device=device, show_progress=False)
        assert (trained.cached, again.cached) == (False, True), device
        found[device] = [plain(one) for one in trained.model.state_dict().values()]
    assert found["cpu"] == found["pretended"]
    learning = data.load("digits", "train")
    files = {file.stem for file in (tmp_path / "networks").glob("*.pt")}
    assert len(files) == 2
    assert recipe.key(f"{learning.source} {len(learning)}") in files


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
    inputs = _photos(4)[0]
    one, other = inputs[:2].clamp(0, 1), inputs[2:].clamp(0, 1)
    for measure in (metrics.psnr, metrics.ssim, metrics.fft2d, metrics.lpips):
        expected = plain(measure(one, other))
        with pretended_gpu() as gpu:
            found = plain(measure(one.to(gpu.device), other.to(gpu.device)))
        assert different(found, expected, rounded=True) == [], measure.__name__


def test_an_audit() -> None:
    inputs, classes = _photos(4)

    def report(device: str) -> Any:
        model = _network(3 * 32 * 32, 32, CLASSES).to(device)
        found = gradleak.audit(model, inputs.to(device), classes.to(device), batch_sizes=(1, 2), steps=2, images=False)
        return [(one.attack, one.certificate, one.batch_size) for one in found.findings]

    expected = report("cpu")
    with pretended_gpu() as gpu:
        assert report(gpu.device) == expected
