"""Build networks by name, as the papers define them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from gradleak.errors import InputError, unknown
from gradleak.models.large import alexnet, efficientnet, vgg16
from gradleak.models.lenet import FCN4, LeNet5, lenet, llg_lenet, small_cnn
from gradleak.models.parts import Options
from gradleak.models.resnet import CifarResNet, by_batch, torchvision_resnet

INITS = ("paper", "torch", "uniform", "kaiming")


@dataclass(frozen=True)
class Network:
    """A network that can be built by name.

    Attributes:
        make: Makes the network from options.
        bias: Whether the last layer has a bias by default.
        init: The default initialisation, see `build`.
        least_size: The least side of an image in pixels.
        activation: The default activation, None if the activation is fixed.
    """

    make: Callable[[Options], nn.Module]
    bias: bool = False
    init: str = "torch"
    least_size: int = 8
    activation: str | None = None


def _cifar(o: Options, *, extra: bool = False) -> nn.Module:
    return CifarResNet(3, o.classes, o.in_channels, o.bias, extra=extra)


NETWORKS: dict[str, Network] = {
    "lenet": Network(lenet, init="uniform"),
    "fcn4": Network(FCN4, least_size=1),
    "resnet18": Network(lambda o: torchvision_resnet(o, 18)),
    "resnet18-cifar": Network(lambda o: torchvision_resnet(o, 18, small_images=True)),
    "resnet20": Network(_cifar, bias=True, init="kaiming"),
    "resnet50": Network(lambda o: torchvision_resnet(o, 50), init="uniform"),
    "alexnet": Network(alexnet, init="uniform", least_size=63),
    "efficientnet-b0": Network(efficientnet, bias=True, least_size=32),
    "llg-cnn": Network(lenet, bias=True, init="uniform"),
    "llg-lenet": Network(llg_lenet, bias=True, init="uniform", least_size=10),
    "llg-resnet20": Network(lambda o: _cifar(o, extra=True), bias=True, init="uniform"),
    # Variants of the LLG networks: a first kernel of 3×3, and batch norm with the batch's statistics, because
    # wainakh2021's code computes gradients in train mode.
    "llg-lenet-3x3": Network(lambda o: llg_lenet(o, kernel=3), bias=True, init="uniform", least_size=10),
    "llg-resnet20-batch": Network(lambda o: by_batch(_cifar(o, extra=True)), bias=True, init="uniform"),
    "vgg16": Network(vgg16, bias=True, init="kaiming", least_size=32, activation="relu"),
    "vgg16-plain": Network(
        lambda o: vgg16(o, norms=False), bias=True, init="kaiming", least_size=32, activation="relu"
    ),
    "resnet50-cifar": Network(
        lambda o: torchvision_resnet(o, 50, small_images=True), bias=True, init="kaiming", activation="relu"
    ),
    "lenet5": Network(LeNet5, bias=True, init="kaiming", least_size=12, activation="sigmoid"),
    "small-cnn": Network(small_cnn),
}


def names() -> tuple[str, ...]:
    """Return the names of all networks."""
    return tuple(NETWORKS)


def build(
    name: str,
    *,
    classes: int = 10,
    bias: bool | None = None,
    init: str | None = None,
    activation: str | None = None,
    in_channels: int = 3,
    image_size: int = 32,
    seed: int = 0,
) -> nn.Module:
    """Return a network in eval mode whose last layer is an nn.Linear named `head`.

    Args:
        name: A name from `names`.
        classes: The number of classes.
        bias: Whether the last layer has a bias (in "fcn4" every layer); by default as in the paper.
        init: The initialisation; by default as in the paper. "torch" is torch's default, "uniform" draws all
            parameters from U(−0.5, 0.5), and "kaiming" uses fan-out and zero biases.
        activation: The activation, for networks in which it can be chosen.
        in_channels: The number of channels of the images.
        image_size: The side of the images in pixels.
        seed: The seed of the initialisation.

    Examples:
        >>> build("lenet", classes=10).head
        Linear(in_features=768, out_features=10, bias=False)
    """
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    network = NETWORKS[name]
    init = network.init if init in (None, "paper") else init
    if init not in INITS:
        raise unknown("initialisation", init, INITS)
    if classes < 2 or in_channels < 1:
        raise InputError(f"a network needs at least 2 classes and 1 input channel; got {classes} and {in_channels}")
    if image_size < network.least_size:
        raise InputError(f"'{name}' needs images of at least {network.least_size} pixels; got {image_size}")
    if name in ("alexnet", "efficientnet-b0") and in_channels != 3:
        raise InputError(f"'{name}' takes 3 input channels; got {in_channels}")
    if activation is not None and network.activation is None:
        choices = ", ".join(candidate for candidate, network in NETWORKS.items() if network.activation is not None)
        raise InputError(f"the activation of '{name}' is fixed; there is a choice for {choices}")
    options = Options(
        classes,
        network.bias if bias is None else bias,
        in_channels,
        image_size,
        activation or network.activation or "",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network.make(options)
        _initialise(model, init)
    return model.eval()


def _initialise(model: nn.Module, init: str) -> None:
    if init == "uniform":
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    elif init == "kaiming":
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
