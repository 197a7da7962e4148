"""Define residual networks: torchvision's, a variant for small images, and the 6n + 2 form of the original paper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.models.parts import Headed, Options


def torchvision_resnet(o: Options, depth: int, *, small_images: bool = False) -> nn.Module:
    """Return torchvision's ResNet of 18 or 50 layers with its last layer named `head`.

    With `small_images` the first convolution is 3×3 and there is no max-pool. The options' activation replaces ReLU.
    """
    from torchvision import models  # which loads torch's compiler, for about as long as torch itself takes

    body: Any = {18: models.resnet18, 50: models.resnet50}[depth]()
    width = body.fc.in_features
    body.fc = nn.Identity()
    if small_images:
        body.conv1 = nn.Conv2d(o.in_channels, 64, 3, padding=1, bias=False)
        body.maxpool = nn.Identity()
    elif o.in_channels != 3:
        body.conv1 = nn.Conv2d(o.in_channels, 64, 7, stride=2, padding=3, bias=False)
    if o.activation not in ("", "relu"):
        for module in [*body.modules()]:
            if hasattr(module, "relu"):
                module.relu = o.active()
    return Headed(body, o.head(width))


def by_batch(model: nn.Module) -> nn.Module:
    """Change a network so that its batch norms always use the statistics of the current batch, and return it."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = None
    return model


class PaddedBlock(nn.Module):
    """Two 3×3 convolutions; if the shape changes, the shortcut subsamples the pixels and pads the channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output (B, outputs, H / stride, W / stride)."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.padding:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(out + x)


class CifarResNet(nn.Module):
    """The 6n + 2 ResNet of widths 16, 32 and 64 with shortcuts without parameters.

    `extra` adds wainakh2021's Linear layer 64 → 512 before the last layer.
    """

    def __init__(self, blocks: int, classes: int, in_channels: int, bias: bool, *, extra: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, blocks, 1)
        self.layer2 = self._stage(16, 32, blocks, 2)
        self.layer3 = self._stage(32, 64, blocks, 2)
        self.hidden = nn.Linear(64, 512) if extra else nn.Identity()
        self.head = nn.Linear(512 if extra else 64, classes, bias=bias)

    @staticmethod
    def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
        first = PaddedBlock(inputs, outputs, stride)
        return nn.Sequential(first, *[PaddedBlock(outputs, outputs, 1) for _ in range(blocks - 1)])

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        logits: Tensor = self.head(self.hidden(torch.flatten(F.adaptive_avg_pool2d(out, 1), 1)))
        return logits
