"""Define the small networks of DLG and of the papers that followed it."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from gradleak.models.activations import activation_of


class LeNet(nn.Module):
    """DLG's LeNet: three 5×5 convolutions of 12 channels with sigmoids, and a Linear layer (zhu2019, wang2024).

    It has 768 features for 32×32 images and 588 for 28×28. LLG's CNN is the same network with a bias in the last layer
    (wainakh2021).
    """

    def __init__(self, classes: int, in_channels: int, image_size: int, bias: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, stride=1, padding=2),
            nn.Sigmoid(),
        )
        side = math.ceil(math.ceil(image_size / 2) / 2)
        self.head = nn.Linear(12 * side * side, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.head(self.body(x).flatten(1))
        return out


class ClassicLeNet(nn.Module):
    """The LeNet of wainakh2021: 6 and 16 channels, and two hidden Linear layers of 120 and 84.

    By default the side of the first kernel equals the number of the image's channels, as in that paper's code: 1×1 on
    MNIST.
    """

    def __init__(
        self, classes: int, in_channels: int, image_size: int, bias: bool, *, kernel: int | None = None
    ) -> None:
        super().__init__()
        kernel = kernel or in_channels
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, 6, kernel),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        side = ((image_size - kernel + 1) // 2 - 2) // 2
        self.hidden = nn.Sequential(nn.Linear(16 * side * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
        self.head = nn.Linear(84, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.head(self.hidden(self.body(x).flatten(1)))
        return out


class LeNet5(nn.Module):
    """LeNet-5 (lecun1998) as in posterior2023: 6 and 16 channels, and two hidden Linear layers of 120 and 84."""

    def __init__(self, classes: int, in_channels: int, image_size: int, bias: bool, activation: str) -> None:
        super().__init__()
        activation_type = activation_of(activation)
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, 6, 5, padding=2),
            activation_type(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            activation_type(),
            nn.MaxPool2d(2),
        )
        side = (image_size // 2 - 4) // 2
        self.hidden = nn.Sequential(
            nn.Linear(16 * side * side, 120), activation_type(), nn.Linear(120, 84), activation_type()
        )
        self.head = nn.Linear(84, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.head(self.hidden(self.body(x).flatten(1)))
        return out


class SmallCNN(nn.Module):
    """A network of this project: three convolutions with batch norm and ReLU, which trains fast on embedded data."""

    def __init__(self, classes: int, in_channels: int, image_size: int, bias: bool) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

        self.body = nn.Sequential(
            block(in_channels, 16, 1), block(16, 32, 2), block(32, 64, 2), nn.AdaptiveAvgPool2d(min(4, image_size // 4))
        )
        side = min(4, image_size // 4)
        self.head = nn.Linear(64 * side * side, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.head(self.body(x).flatten(1))
        return out


class FCN4(nn.Module):
    """wang2024's fully connected network with ReLU: 12288 → 4096 → 1024 → 256 → C for 3×64×64 images."""

    def __init__(self, classes: int, in_channels: int, image_size: int, bias: bool) -> None:
        super().__init__()
        widths = (in_channels * image_size**2, 4096, 1024, 256)
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.head(self.body(torch.flatten(x, 1)))
        return out
