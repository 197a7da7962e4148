"""Draw the private and the recovered images of an audit."""

from __future__ import annotations

import base64
import io

import torch
from PIL import Image
from torch import Tensor

from gradleak.auditing.measuring import Truth

MOST = 8
LEAST_SIDE = 64


def pair(truth: Truth, recovered: Tensor) -> str:
    """Return the private images above the recovered images, as a PNG in base64."""
    assert truth.pixels is not None
    batches = (truth.pixels(truth.inputs), truth.pixels(truth.paired(recovered)))
    rows = [torch.cat(list(images[:MOST].nan_to_num(0.5).clamp(0, 1).cpu()), dim=2) for images in batches]
    pixels = (torch.cat(rows, dim=1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    side = truth.inputs.shape[-1]
    image = Image.fromarray(pixels.squeeze())
    factor = max(1, -(-LEAST_SIDE // side))
    stream = io.BytesIO()
    image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()
