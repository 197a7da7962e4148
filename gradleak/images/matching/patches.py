"""Compute convolutions as matrix products with patches, for the gradients of many attacks at once on a GPU.

The gradient of a convolution's weight, for each of A attacks, is a convolution with A groups. cuDNN launches a kernel
for every group in some of the derivatives that matching needs. As a product of matrices it is one launch. On a CPU the
convolutions are faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Window(NamedTuple):
    """The shape of an input (C, H, W), and the kernel, stride and padding of a convolution, each for H and W."""

    shape: tuple[int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]


class _Linear(torch.autograd.Function):
    """A linear map of the last dimensions of a tensor; its derivative is its transpose."""

    generate_vmap_rule = False

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Window], output: Tensor) -> None:
        ctx.window = inputs[1]


class _Cut(_Linear):
    """Cut inputs (N, C, H, W) into patches (N, C · kernel, places), one for each place of the kernel."""

    @staticmethod
    def forward(images: Tensor, window: Window) -> Tensor:
        (down, across), (rows, columns) = window.padding, window.kernel
        padded = F.pad(images, (across, across, down, down))
        patches = padded.unfold(2, rows, window.stride[0]).unfold(3, columns, window.stride[1])
        places = patches.shape[2] * patches.shape[3]
        return patches.permute(0, 1, 4, 5, 2, 3).reshape(len(images), -1, places)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return _Added.apply(slope, ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], images: Tensor, window: Window) -> tuple[Tensor, int]:
        return _merged(_Cut, images, in_dims[0], window), 0


class _Added(_Linear):
    """Add patches (N, C · kernel, places) up at their places, to inputs (N, C, H, W)."""

    @staticmethod
    def forward(patches: Tensor, window: Window) -> Tensor:
        size, kernel = window.shape[1:], window.kernel
        return F.fold(patches, size, kernel, padding=window.padding, stride=window.stride)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return _Cut.apply(slope, ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], patches: Tensor, window: Window) -> tuple[Tensor, int]:
        return _merged(_Added, patches, in_dims[0], window), 0


def _merged(function: Any, values: Tensor, dimension: int, window: Window) -> Tensor:
    """Apply a function of N values to N values of each of A attacks."""
    values = values.movedim(dimension, 0)
    merged: Tensor = function.apply(values.flatten(0, 1), window)
    return merged.reshape(*values.shape[:2], *merged.shape[1:])


class PatchConv2d(nn.Module):
    """A convolution with the parameters of another one, computed as a product with patches."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.kernel, self.stride, self.padding = ((int(a), int(b)) for a, b in _sizes(layer))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the convolution (N, K, H, W) of inputs (N, C, H, W)."""
        shape = inputs.shape[1:]
        window = Window((shape[0], shape[1], shape[2]), self.kernel, self.stride, self.padding)
        height, width = (
            (size + 2 * padding - kernel) // stride + 1
            for size, padding, kernel, stride in zip(shape[1:], self.padding, self.kernel, self.stride, strict=True)
        )
        product: Tensor = self.weight.flatten(1) @ _Cut.apply(inputs, window)
        if self.bias is not None:
            product = product + self.bias[:, None]
        return product.reshape(len(inputs), -1, height, width)


def _sizes(layer: nn.Conv2d) -> tuple[Any, Any, Any]:
    return layer.kernel_size, layer.stride, layer.padding


def patched(model: nn.Module) -> nn.Module:
    """Return the model with its plain convolutions computed by patches; the names of parameters stay."""
    for name, layer in model.named_children():
        if isinstance(layer, nn.Conv2d) and _plain(layer):
            setattr(model, name, PatchConv2d(layer))
        else:
            patched(layer)
    return model


def _plain(layer: nn.Conv2d) -> bool:
    padded = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Conv2d and layer.groups == 1 and layer.dilation == (1, 1) and padded
