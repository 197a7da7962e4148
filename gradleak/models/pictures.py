"""Define networks that are trained on images without labels: a small generator and a small denoiser."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.data import normalise
from gradleak.errors import InputError

# The ratio of the side of a generator's images to the side of its first maps.
REDUCED = 8
# The variance of the generator's error model, and the largest standard deviation of the noise on which the denoiser is
# trained, both for images after `gradleak.data.normalise`.
VARIANCE, STRONGEST = 0.1, 1.0
SLOPE = 0.1


class Generator(nn.Module):
    """The decoder of a variational autoencoder: maps latents (N, width) from N(0, I) to images (N, C, S, S).

    The images are normalised as by `gradleak.data.normalise`.
    """

    def __init__(self, width: int, channels: int, image_size: int, depth: int) -> None:
        super().__init__()
        if image_size % REDUCED:
            raise InputError(f"the side of a generator's images must be a multiple of 8; got {image_size}")
        side = image_size // REDUCED
        self.width, self.shape = width, (2 * depth, side, side)
        self.first = nn.Linear(width, 2 * depth * side**2)
        sizes = (2 * depth, 2 * depth, depth)
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(sizes))
        self.last = nn.Conv2d(depth, 4 * channels, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        """Return normalised images whose pixels lie between black and white."""
        maps = F.leaky_relu(self.first(latents), SLOPE).reshape(-1, *self.shape)
        for layer in self.layers:
            maps = F.leaky_relu(layer(F.interpolate(maps, scale_factor=2.0)), SLOPE)
        return normalise(torch.sigmoid(F.pixel_shuffle(self.last(maps), 2)))


class Autoencoder(nn.Module):
    """A variational autoencoder: a generator and the encoder that is needed to train it."""

    def __init__(self, width: int, channels: int, image_size: int, depth: int) -> None:
        super().__init__()
        self.generator = Generator(width, channels, image_size, depth)
        sizes = (channels, depth // 2, depth, 2 * depth)
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 4, stride=2, padding=1) for pair in itertools.pairwise(sizes))
        self.last = nn.Linear(2 * depth * (image_size // REDUCED) ** 2, 2 * width)

    def latents(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and the logarithms of the variances (N, width) of the images' latents."""
        maps = images
        for layer in self.layers:
            maps = F.leaky_relu(layer(maps), SLOPE)
        mean, logarithm = self.last(maps.flatten(1)).chunk(2, dim=1)
        return mean, logarithm.clamp(-10, 10)

    def loss(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the negative evidence lower bound of the images, divided by the number of pixel values."""
        mean, logarithm = self.latents(images)
        noise = torch.randn(mean.shape, generator=generator).to(mean)
        reconstruction: Tensor = self.generator(mean + (logarithm / 2).exp() * noise)
        misfit = (reconstruction - images).square().mean() / (2 * VARIANCE)
        divergence = (mean.square() + logarithm.exp() - logarithm - 1).sum() / 2
        return misfit + divergence / images.numel()

    def forward(self, images: Tensor) -> Tensor:
        """Return the reconstructions of images from their mean latents."""
        out: Tensor = self.generator(self.latents(images)[0])
        return out


class Denoiser(nn.Module):
    """A network that removes noise of any strength from images (N, C, S, S); its maps have half the images' side."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        sizes = (4 * channels, depth, depth, depth, 4 * channels)
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(sizes))

    def forward(self, images: Tensor) -> Tensor:
        """Return the denoised images."""
        maps = F.pixel_unshuffle(images, 2)
        for number, layer in enumerate(self.layers):
            maps = layer(maps if number == 0 else F.relu(maps))
        return images - F.pixel_shuffle(maps, 2)

    def loss(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean squared error of the pixels under noise of random strength."""
        strength = STRONGEST * torch.rand(len(images), 1, 1, 1, generator=generator).to(images)
        noise = torch.randn(images.shape, generator=generator).to(images)
        return F.mse_loss(self(images + strength * noise), images)
