"""Define the small networks of DLG and of the papers that followed it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradleak.models.parts import Flattened, Headed, Options


def lenet(o: Options) -> nn.Module:
    """Return DLG's LeNet: three 5×5 convolutions of 12 channels with sigmoids, and a Linear layer (zhu2019, wang2024).

    It has 768 features for 32×32 images and 588 for 28×28. LLG's CNN is the same network with a bias in the last layer
    (wainakh2021).
    """
    body = nn.Sequential(
        nn.Conv2d(o.in_channels, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=1, padding=2),
        nn.Sigmoid(),
    )
    side = math.ceil(math.ceil(o.image_size / 2) / 2)
    return Flattened(body, o.head(12 * side * side))


class LeNet5(nn.Module):
    """LeNet-5 (lecun1998): 6 and 16 channels, and two hidden Linear layers of 120 and 84.

    The first kernel has a side of `kernels[0]` pixels and this `padding`, the second one a side of `kernels[1]`.
    """

    def __init__(self, o: Options, kernels: tuple[int, int] = (5, 5), padding: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(o.in_channels, 6, kernels[0], padding=padding),
            o.active(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernels[1]),
            o.active(),
            nn.MaxPool2d(2),
        )
        side = ((o.image_size + 2 * padding - kernels[0] + 1) // 2 - kernels[1] + 1) // 2
        self.hidden = nn.Sequential(nn.Linear(16 * side * side, 120), o.active(), nn.Linear(120, 84), o.active())
        self.head = o.head(84)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.head(self.hidden(self.body(x).flatten(1)))
        return out


def llg_lenet(o: Options, kernel: int | None = None) -> nn.Module:
    """Return the LeNet of wainakh2021.

    By default the side of the first kernel equals the number of the image's channels, as in that paper's code: 1×1 on
    MNIST.
    """
    return LeNet5(replace(o, activation="relu"), (kernel or o.in_channels, 3), padding=0)


def small_cnn(o: Options) -> nn.Module:
    """Return a network of this project: three convolutions with batch norm and ReLU, fast to train."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    side = min(4, o.image_size // 4)
    body = nn.Sequential(block(o.in_channels, 16, 1), block(16, 32, 2), block(32, 64, 2), nn.AdaptiveAvgPool2d(side))
    return Flattened(body, o.head(64 * side * side))


class FCN4(Headed):
    """wang2024's fully connected network with ReLU: 12288 → 4096 → 1024 → 256 → C for 3×64×64 images."""

    def __init__(self, o: Options) -> None:
        widths = (o.in_channels * o.image_size**2, 4096, 1024, 256)
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs, bias=o.bias), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), o.head(widths[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        return super().forward(torch.flatten(x, 1))
