"""What can be learned of pictures without any label: a small generator, and a small denoiser."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.data import normalise
from gradleak.errors import InputError

# A generator begins with maps this many times smaller than its images.
REDUCED = 8
# A generator's squared error has this variance, and a denoiser learns of noise up to this deviation; in the units of
# `gradleak.data.normalise`.
VARIANCE, STRONGEST = 0.1, 1.0
SLOPE = 0.1


class Generator(nn.Module):
    """Images (N, C, S, S), as `gradleak.data.normalise` gives them, of latents (N, width) from N(0, I).

    It is the decoder of a variational autoencoder, whose other half is dropped once it is trained.
    """

    def __init__(self, width: int, channels: int, image_size: int, depth: int) -> None:
        super().__init__()
        if image_size % REDUCED:
            raise InputError(f"a generator's images are halved three times, and {image_size} pixels cannot be")
        side = image_size // REDUCED
        self.width, self.shape = width, (2 * depth, side, side)
        self.first = nn.Linear(width, 2 * depth * side**2)
        sizes = (2 * depth, 2 * depth, depth)
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(sizes))
        self.last = nn.Conv2d(depth, 4 * channels, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        """Return images, every pixel between black and white."""
        maps = F.leaky_relu(self.first(latents), SLOPE).reshape(-1, *self.shape)
        for layer in self.layers:
            maps = F.leaky_relu(layer(F.interpolate(maps, scale_factor=2.0)), SLOPE)
        return normalise(torch.sigmoid(F.pixel_shuffle(self.last(maps), 2)))


class Autoencoder(nn.Module):
    """A generator, and what tells the latents of an image while it is trained."""

    def __init__(self, width: int, channels: int, image_size: int, depth: int) -> None:
        super().__init__()
        self.generator = Generator(width, channels, image_size, depth)
        sizes = (channels, depth // 2, depth, 2 * depth)
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 4, stride=2, padding=1) for pair in itertools.pairwise(sizes))
        self.last = nn.Linear(2 * depth * (image_size // REDUCED) ** 2, 2 * width)

    def latents(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and logarithms of variances (N, width) of images' latents."""
        maps = images
        for layer in self.layers:
            maps = F.leaky_relu(layer(maps), SLOPE)
        mean, logarithm = self.last(maps.flatten(1)).chunk(2, dim=1)
        return mean, logarithm.clamp(-10, 10)

    def loss(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the negative lower bound on the images' likelihood, a pixel."""
        mean, logarithm = self.latents(images)
        drawn = torch.randn(mean.shape, generator=generator).to(mean)
        again: Tensor = self.generator(mean + (logarithm / 2).exp() * drawn)
        misfit = (again - images).square().mean() / (2 * VARIANCE)
        divergence = (mean.square() + logarithm.exp() - logarithm - 1).sum() / 2
        return misfit + divergence / images.numel()

    def forward(self, images: Tensor) -> Tensor:
        """Return images as they come out again."""
        out: Tensor = self.generator(self.latents(images)[0])
        return out


class Denoiser(nn.Module):
    """Images (N, C, S, S) without the noise that lies on them, whatever its strength; it works at half the side."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        sizes = (4 * channels, depth, depth, depth, 4 * channels)
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(sizes))

    def forward(self, images: Tensor) -> Tensor:
        """Return the images that are left."""
        maps = F.pixel_unshuffle(images, 2)
        for number, layer in enumerate(self.layers):
            maps = layer(maps if number == 0 else F.relu(maps))
        return images - F.pixel_shuffle(maps, 2)

    def loss(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the squared error of a pixel under noise of random strength."""
        strength = STRONGEST * torch.rand(len(images), 1, 1, 1, generator=generator).to(images)
        noise = torch.randn(images.shape, generator=generator).to(images)
        return F.mse_loss(self(images + strength * noise), images)
