"""The papers' networks, number for number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gradleak import data, models
from gradleak.data.speech import pseudo_speech
from gradleak.errors import MissingData
from gradleak.models import ready
from gradleak.models.recogniser import SIZES, Recogniser, heard, recogniser
from gradleak.models.resnet import CifarResNet

LEAST = {"alexnet": 64, "fcn4": 4, "vgg16": 32, "vgg16-plain": 32, "efficientnet-b0": 32}


@pytest.mark.parametrize("name", models.names())
def test_every_network_ends_in_a_linear_head_and_learns(name: str) -> None:
    side = LEAST.get(name, 16)
    model = models.build(name, classes=7, bias=True, image_size=side, seed=1)
    assert not model.training
    assert isinstance(model.head, nn.Linear)
    assert model.head.bias is not None
    inputs = torch.rand(2, 3, side, side).to(memory_format=torch.channels_last)
    logits = model(inputs)
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "features", "parameters", "bias"),
    [
        ("lenet", 768, 15_816, False),
        ("llg-cnn", 768, 15_826, True),
        ("fcn4", 256, 12288 * 4096 + 4096 * 1024 + 1024 * 256 + 2560, False),
        ("resnet18", 512, 11_176_512 + 5_120, False),
        ("resnet18-cifar", 512, 11_168_832 + 5_120, False),
        ("resnet20", 64, 269_722, True),
        ("resnet50", 2048, 23_508_032 + 20_480, False),
        ("alexnet", 4096, 57_003_840 + 40_960, False),
        ("llg-lenet", 84, 81_302, True),
        ("llg-lenet-3x3", 84, 81_302, True),
        ("llg-resnet20", 512, 269_072 + 64 * 512 + 512 + 5_130, True),
        ("llg-resnet20-batch", 512, 269_072 + 64 * 512 + 512 + 5_130, True),
        ("vgg16", 512, 14_728_266, True),
        ("efficientnet-b0", 1280, 4_007_548 + 12_810, True),
        ("resnet50-cifar", 2048, 23_500_352 + 20_490, True),
    ],
)
def test_sizes_are_the_papers(name: str, features: int, parameters: int, bias: bool) -> None:
    with torch.device("meta"):
        model = models.build(name, image_size=64 if name in ("fcn4", "alexnet") else 32)
    assert model.head.in_features == features
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert (model.head.bias is not None) == bias


def test_grey_images_of_28_pixels() -> None:
    assert models.build("llg-cnn", in_channels=1, image_size=28).head.in_features == 588
    classic = models.build("lenet5", in_channels=1, image_size=28)
    assert sum(p.numel() for p in classic.parameters()) == 61_706
    grey = models.build("llg-lenet", in_channels=1, image_size=28)
    assert grey.body[0].kernel_size == (1, 1)
    assert grey.hidden[0].in_features == 576


@pytest.mark.parametrize("name", ["lenet", "llg-cnn"])
def test_uniform_initialisation_reaches_every_parameter(name: str) -> None:
    for parameter in models.build(name, image_size=64).parameters():
        assert parameter.min() >= -0.5
        assert parameter.max() <= 0.5
        if parameter.numel() > 200:
            assert float(parameter.detach().std()) == pytest.approx(1 / 12**0.5, rel=0.15)


def test_a_seed_decides_and_leaves_the_worlds_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = (models.build("lenet", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_batch_norm_may_take_the_statistics_of_the_batch_it_is_shown() -> None:
    images = torch.rand(6, 3, 16, 16)
    for name, alone in (("llg-resnet20", True), ("llg-resnet20-batch", False)):
        model = models.build(name, image_size=16)
        same = torch.allclose(model(images)[:2], model(images[:2]), rtol=1e-3, atol=1e-3)
        assert same == alone, f"{name}: a sample knows of the others"


# --------------------------------------------------------------------------------------- networks that others trained
@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CifarResNet:
    torch.manual_seed(0)
    network = CifarResNet(3, 10, 3, bias=True).eval()
    state = {key.replace("head.", "linear."): value for key, value in network.state_dict().items()}
    torch.save(state, tmp_path / "cifar10_resnet20.pt")
    monkeypatch.setenv("GRADLEAK_WEIGHTS", str(tmp_path))
    return network


def test_a_network_sees_the_statistics_that_it_was_trained_with(weights: CifarResNet) -> None:
    images = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (ready.MEAN, ready.STD))
    model = models.pretrained("cifar10-resnet20")
    assert not model.training
    torch.testing.assert_close(model(data.normalise(images)), weights((images - mean) / std), rtol=1e-4, atol=1e-4)


def test_what_is_not_at_hand_is_said(weights: CifarResNet) -> None:
    with pytest.raises(MissingData, match=r"cifar10_resnet56\.pt is not at hand: put it into a folder"):
        models.pretrained("cifar10-resnet56")


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def named_by_wang2024(network: str) -> list[str]:
    """Return the names of a network's parameters in the code of wang2024, in the order of ours."""
    if network == "lenet":
        return [*(f"body.{place}.{part}" for place in (0, 2, 4) for part in ("weight", "bias")), "fc.weight"]
    if network == "alexnet":
        layers = [*(f"features.{place}" for place in (0, 3, 6, 8, 10)), "classifier.1", "classifier.4"]
        return [*(f"{layer}.{part}" for layer in layers for part in ("weight", "bias")), "fc.weight"]
    pairs = [("conv1", "bn1")]
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            inner = [("conv1", "bn1"), ("conv2", "bn2"), *([("shortcut.0", "shortcut.1")] if block < 1 < stage else [])]
            pairs += [(f"layer{stage}.{block}.{conv}", f"layer{stage}.{block}.{norm}") for conv, norm in inner]
    names = [name for conv, norm in pairs for name in (f"{conv}.weight", *(f"{norm}.{part}" for part in NORM))]
    return [*names, "linear.weight"]


@pytest.mark.parametrize("name", ready.WANG2024)
def test_the_networks_that_wang2024_published_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADLEAK_WEIGHTS", str(tmp_path))
    dataset, network = name.split("/")
    classes = 10 if dataset == "cifar10" else 17
    side = LEAST.get(network, 32)
    smoothed, mixed = (
        models.build(network, classes=classes, bias=False, image_size=side, seed=seed) for seed in (1, 2)
    )
    for model, file, wrapped in zip((smoothed, mixed), ready.WANG2024[name].values(), (True, False), strict=True):
        state = dict(zip(named_by_wang2024(network), model.state_dict().values(), strict=True))
        (tmp_path / file).parent.mkdir(exist_ok=True)
        torch.save({"net": state, "acc": 93.0, "epoch": 5} if wrapped else state, tmp_path / file)
    images = torch.rand(2, 3, side, side)
    for labels, model in (("smoothing", smoothed), ("mixup", mixed)):
        found = ready.published(name, labels)
        assert not found.training
        torch.testing.assert_close(found(images), model(images), rtol=0, atol=0)


# ----------------------------------------------------------------------------------------------------- the recogniser
def test_the_papers_size() -> None:
    with torch.device("meta"):
        model = Recogniser(SIZES["paper"], 16_328)
    assert model.head.weight.shape == (16_328, 3_072)
    assert [cell.input_size for cell in model.cells] == [96 + 2048, 1024 + 2048]
    assert model.encoder.num_layers == 4
    assert model.encoder.bidirectional
    assert (model.encoder.input_size, model.encoder.hidden_size) == (640, 1024)


def test_every_utterance_of_a_padded_batch_is_spelled_as_if_alone() -> None:
    model = recogniser("small", 30)
    sounds = [pseudo_speech("yes"), pseudo_speech("a longer one")]
    lengths = torch.tensor([len(one) for one in sounds])
    padded = torch.nn.utils.rnn.pad_sequence(sounds, batch_first=True)
    tokens = torch.tensor([[1, 5, 6], [1, 7, 8]])
    with torch.no_grad():
        together = model(padded, tokens, lengths)
        memory = [model.listen(one.unsqueeze(0)) for one in sounds]
        assert [one.shape[1] for one in memory] == heard(lengths).tolist()
        for number, one in enumerate(memory):
            alone = model.spell(one, tokens[number : number + 1])[0]
            # The frame behind the end is heard with another edge.
            torch.testing.assert_close(together[number], alone, atol=2e-2, rtol=0)
