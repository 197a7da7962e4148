"""Images in the rows of a record: stored as small JPEG files in text form, and drawn from that."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from PIL import Image
from torch import Tensor

from gradleak.studies import Columns

QUALITY = 85


def mosaic(images: Tensor, columns: int) -> Tensor:
    """Return images (N, C, H, W) side by side in one image (C, H′, W′); pixels that are not finite are grey."""
    images = images.detach().cpu().double().nan_to_num(0.5, 0.5, 0.5).clamp(0, 1)
    rows = -(-len(images) // columns)
    blank = images.new_ones(rows * columns - len(images), *images.shape[1:])
    grid = torch.cat([images, blank]).reshape(rows, columns, *images.shape[1:])
    return grid.permute(2, 0, 3, 1, 4).reshape(images.shape[1], rows * images.shape[2], columns * images.shape[3])


def packed(images: Tensor, columns: int) -> str:
    """Return a mosaic of images (N, C, H, W) as a JPEG in base64, for display only: no number is computed from it."""
    pixels = (mosaic(images, columns) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(stream, "JPEG", quality=QUALITY)
    return base64.b64encode(stream.getvalue()).decode()


def as_jpeg(images: Tensor) -> Tensor:
    """Return images (N, C, H, W) as wang2024's code reads them from JPEG files of their truncated 8-bit pixels."""
    found = []
    for pixels in (images.cpu().double().nan_to_num(0) * 255).trunc().remainder(256).to(torch.uint8):
        stream = io.BytesIO()
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(stream, "JPEG")
        found.append(torch.from_numpy(np.array(Image.open(stream))).permute(2, 0, 1))
    return torch.stack(found).to(images) / 255


def strip(run: str, images: Tensor, count: int) -> Columns:
    """Return a row with the first images of a run side by side."""
    return {"what": "picture", "run": run, "picture": packed(images[:count], min(count, len(images)))}


def unpacked(text: str) -> np.ndarray:
    """Return the pixels (H, W, 3) of a packed mosaic."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"))


def show(axis: Axes, texts: str | Sequence[str], rows: Sequence[str] = ()) -> None:
    """Draw packed mosaics below one another; `rows` are the names beside them."""
    pixels = np.concatenate([unpacked(text) for text in ([texts] if isinstance(texts, str) else texts)])
    axis.imshow(pixels, interpolation="nearest")
    axis.set_xticks([])
    height = pixels.shape[0] / max(1, len(rows))
    axis.set_yticks([(index + 0.5) * height for index in range(len(rows))], list(rows))
    axis.tick_params(length=0)
    axis.grid(visible=False)
    for side in axis.spines.values():
        side.set_visible(False)
