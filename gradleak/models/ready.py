"""Load pretrained networks by name from files in $GRADLEAK_WEIGHTS."""

from __future__ import annotations

import re

import numpy as np
import torch
from torch import Tensor, nn

from gradleak import paths
from gradleak.data.base import KNOWN, NORMALISATION
from gradleak.errors import InputError, MissingData, unknown
from gradleak.models.registry import build
from gradleak.models.resnet import CifarResNet
from gradleak.models.transformer import VisionTransformer

# ImageNet's channel means and standard deviations, with which these networks were trained.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The file of each network for CIFAR-10 and the number of blocks in each stage.
READY = {"cifar10-resnet20": ("cifar10_resnet20.pt", 3), "cifar10-resnet56": ("cifar10_resnet56.pt", 9)}
# Each network for ImageNet and the name of torchvision's function that builds it. Its file is that network's state,
# as `torch.save(model.state_dict(), file)` writes it.
IMAGENET = {
    "resnet18-imagenet": "resnet18",
    "resnet50-imagenet": "resnet50",
    "resnet50-moco": "resnet50",
    "efficientnet-b0-imagenet": "efficientnet_b0",
}
# The file of each vision transformer for CIFAR-10, the side of its patches and its number of blocks, and the channel
# means and standard deviations with which these were trained.
TRANSFORMERS = {
    "cifar10-vit-8": ("cifar10_vit_ibp_3_3_8.npz", 8, 3),
    "cifar10-vit-16": ("cifar10_vit_pgd_2_3_16.npz", 16, 2),
}
TRANSFORMER_SCALE = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
# Parts of the names of these transformers' parameters in their files, and in our network.
RENAMED = (
    (r"^0\.", ""), ("^projection", "embedding"), ("cls_token", "class_token"), (r"^2\.1", "norm"), (r"^2\.2", "head"),
    (r"^1\.(\d)\.0\.fn", r"blocks.\1.attention"), (r"^1\.(\d)\.1\.fn", r"blocks.\1.mlp"), (r"\.0\.norm", "_norm"),
    (r"attention\.1", "attention"), (r"mlp\.1\.0", "mlp.0"), (r"mlp\.1\.3", "mlp.2"),
)  # fmt: skip
# The networks that wang2024 trained, behind the link in its code, by the private images and the network: the file for
# each kind of label with which one was trained. Parts of their parameters' names, and ours.
SMOOTHED, MIXED = "label_smooth_checkpoint", "mixup_checkpoint"
WANG2024 = {
    "cifar10/lenet": {"smoothing": f"{SMOOTHED}/lenet.pth", "mixup": f"{MIXED}/lenet.pth"},
    "cifar10/resnet18-cifar": {"smoothing": f"{SMOOTHED}/resnet18.pth", "mixup": f"{MIXED}/resnet18.pth"},
    "flowers17/alexnet": {"smoothing": f"{SMOOTHED}/flower_alexnet.pth", "mixup": f"{MIXED}/flower_alexnet.pth"},
    "flowers17/resnet18-cifar": {
        "smoothing": f"{SMOOTHED}/flower_resnet_18.pth",
        "mixup": f"{MIXED}/resnet_flowers.pth",
    },
}
RENAMED_WANG2024 = (("^fc", "head"), ("shortcut", "downsample"), ("^(?!head|body)", "body."))


class Rescaled(nn.Module):
    """A network that first converts the normalisation of its inputs to that of its training."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, own: tuple[tuple[float, ...], tuple[float, ...]] = (MEAN, STD)) -> None:
        super().__init__()
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in NORMALISATION)
        own_mean, own_std = (torch.tensor(values).reshape(3, 1, 1) for values in own)
        self.register_buffer("scale", std / own_std)
        self.register_buffer("shift", (mean - own_mean) / own_std)
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C) of images after `gradleak.data.normalise`."""
        logits: Tensor = self.network(x * self.scale + self.shift)
        return logits


def pretrained(name: str) -> nn.Module:
    """Return a trained network in eval mode, whose inputs are images after `gradleak.data.normalise`."""
    if name not in (*READY, *IMAGENET, *TRANSFORMERS):
        raise unknown("pretrained network", name, [*READY, *IMAGENET, *TRANSFORMERS])
    network = _loaded(untrained(name), stored(file_of(name)), file_of(name), name)
    return (Rescaled(network, TRANSFORMER_SCALE) if name in TRANSFORMERS else Rescaled(network)).eval()


def published(name: str, labels: str) -> nn.Module:
    """Return a network that wang2024's authors trained, in eval mode.

    Args:
        name: The private images and the network, as `WANG2024` names them.
        labels: The kind of label with which it was trained, "smoothing" or "mixup".
    """
    file = WANG2024[name][labels]
    state = {_renamed(key, RENAMED_WANG2024): value for key, value in stored(file).items()}
    dataset, network = name.split("/")
    classes, side = len(state.get("head.weight", "??")), KNOWN[dataset].size
    return _loaded(build(network, classes=classes, bias=False, image_size=side), state, file, name)


def _loaded(network: nn.Module, state: dict[str, Tensor], file: str, name: str) -> nn.Module:
    """Return a network in eval mode with the parameters of a file."""
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"{file} in $GRADLEAK_WEIGHTS is not the state of '{name}': {error}") from error
    return network.eval()


def untrained(name: str) -> nn.Module:
    """Return a network that `pretrained` knows, without its weights."""
    if name in READY:
        return CifarResNet(READY[name][1], 10, 3, bias=True)
    if name in TRANSFORMERS:
        _, patch, depth = TRANSFORMERS[name]
        return VisionTransformer(32, patch, 48, 3, depth, 10, trained_form=True)
    from torchvision import models

    network: nn.Module = getattr(models, IMAGENET[name])(weights=None)
    return network


def file_of(name: str) -> str:
    """Return the name of a pretrained network's file in $GRADLEAK_WEIGHTS."""
    if name in TRANSFORMERS:
        return TRANSFORMERS[name][0]
    return READY[name][0] if name in READY else f"{name.replace('-', '_')}.pt"


def stored(file: str) -> dict[str, Tensor]:
    """Return the parameters in a file in $GRADLEAK_WEIGHTS, with a layer named `linear` renamed to `head`.

    The file holds a network's state, or a dictionary with the state as its entry `net`.
    """
    folder = paths.weights_folder()
    path = folder / file if folder else None
    if path is None or not path.is_file():
        raise MissingData(
            f"pretrained network {file} is not at hand: put it into a folder and set $GRADLEAK_WEIGHTS to it"
        )
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return {_renamed(name, RENAMED): torch.from_numpy(archive[name]) for name in archive.files}
    content = torch.load(path, map_location="cpu", weights_only=True)
    state: dict[str, Tensor] = content.get("net", content)
    return {key.replace("linear.", "head."): value for key, value in state.items()}


def _renamed(name: str, names: tuple[tuple[str, str], ...]) -> str:
    """Return our name of a parameter, given parts of names and what replaces them."""
    for pattern, ours in names:
        name = re.sub(pattern, ours, name)
    return name
