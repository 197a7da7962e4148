"""The papers' networks, number for number."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak import models
from gradleak.errors import InputError, UnknownName

LEAST = {"alexnet": 64, "fcn4": 4, "vgg16": 32, "efficientnet-b0": 32}


def test_bad_requests_are_said_clearly() -> None:
    with pytest.raises(UnknownName, match="unknown network 'lennet': did you mean"):
        models.build("lennet")
    with pytest.raises(InputError, match="at least 63 pixels; got 32"):
        models.build("alexnet", image_size=32)
    with pytest.raises(InputError, match="there is a choice for vgg16, resnet50-cifar, lenet5"):
        models.build("lenet", activation="relu")


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("bias", [False, True])
def test_every_network_ends_in_a_linear_head_and_learns(name: str, bias: bool) -> None:
    side = LEAST.get(name, 16)
    model = models.build(name, classes=7, bias=bias, image_size=side, seed=1)
    assert not model.training
    assert isinstance(model.head, nn.Linear)
    assert (model.head.bias is not None) == bias
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


@pytest.mark.parametrize("name", ["lenet", "resnet50", "alexnet", "llg-cnn"])
def test_uniform_initialisation_reaches_every_parameter(name: str) -> None:
    for parameter in models.build(name, image_size=64).parameters():
        assert parameter.min() >= -0.5
        assert parameter.max() <= 0.5
        if parameter.numel() > 200:
            assert float(parameter.detach().std()) == pytest.approx(1 / 12**0.5, rel=0.15)


def test_other_initialisations() -> None:
    head = models.build("fcn4").head.weight
    assert float(head.detach().abs().max()) <= 1 / 16
    convolution = models.build("resnet18").body.conv1.weight
    assert float(convolution.detach().std()) == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)
    kaiming = models.build("lenet", init="kaiming", bias=True)
    assert float(kaiming.head.bias.detach().abs().max()) == 0
    assert float(models.build("lenet", init="torch").head.weight.detach().abs().max()) <= 1 / 768**0.5


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
