"""Peeled batches: the errors of images and of the inputs of each layer, and whether the attack estimates them right."""

from __future__ import annotations

import copy

import pandas as pd
from torch import Tensor, nn

from gradleak import data, metrics
from gradleak.images import Peeled
from gradleak.show.aggregate import select
from gradleak.studies import Columns
from gradleak.studies.shared.samples import inputs_of

# An attack's estimate of its error may be wrong by this factor.
FACTOR = 10.0


def in_order(inputs: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return restored images (B, C, H, W) in [0, 1] in the order of the private images, and this order (B,).

    Args:
        inputs: The restored images, normalised as the network's inputs.
        images: The private images.
    """
    restored = data.denormalise(inputs.cpu().double())
    order = metrics.match_batch(restored, images)
    return restored[order], order


def image_psnr(restored: Tensor, images: Tensor) -> Tensor:
    """Return the PSNR (dB) of each image (B,); an image that was not found has the lowest finite number."""
    return metrics.psnr(restored, images).nan_to_num(-float("inf"))


def similarity(restored: Tensor, images: Tensor) -> Columns:
    """Return the mean and the lowest PSNR (dB) of a batch."""
    psnr = image_psnr(restored, images)
    return {"psnr": float(psnr.mean()), "lowest_psnr": float(psnr.min())}


def batch_row(found: Peeled, images: Tensor) -> Columns:
    """Return the row of a peeled batch: its errors, and whether the attack's status and claimed errors are correct."""
    inputs = data.normalise(images).to(found.images.device)
    restored, order = in_order(found.images, images)
    error = (found.images[order.to(inputs.device)] - inputs).flatten(1).square().mean(dim=1).sqrt()
    ratio = (found.errors[order.to(inputs.device)] / error)[error.isfinite()]
    # The image whose claimed error is furthest from its true error decides.
    worst = float(ratio[ratio.log().abs().argmax()]) if len(ratio) else float("nan")
    back = bool((image_psnr(restored, images) > metrics.EXACT).all())
    return {
        "what": "batch",
        "status": found.status,
        "reason": found.reason,
        "matched": found.matched,
        "residual": found.residual,
        **similarity(restored, images),
        "back": back,
        "silently": found.status == "unique" and not back,
        "images_ratio": worst,
        "images_honest": 1 / FACTOR <= worst <= FACTOR,
        "layers": sum(not layer.reason for layer in found.layers),
    }


def layer_rows(model: nn.Module, found: Peeled, images: Tensor) -> list[Columns]:
    """Return a row for each layer, from the last: its equations, and the claimed and the true error of its inputs."""
    exact = copy.deepcopy(model).double()
    truth = inputs_of(nn.Conv2d, exact, data.normalise(images).to(found.images.device))
    order, rows = None, []
    for number, layer in enumerate(found.layers):
        row: Columns = {
            "what": "layer",
            "number": number,
            "layer": layer.name,
            "reason": layer.reason,
            "equations": layer.equations,
            "unknowns": layer.unknowns,
        }
        if layer.found is not None and not layer.reason:
            true = truth[layer.name.partition("+")[0]]
            own = layer.found.reshape(true.shape)
            order = metrics.match_batch(own.flatten(1), true.flatten(1)) if order is None else order
            off = float((own[order] - true).norm() / true.norm())
            claimed = float(layer.claimed or 0)
            row |= {"claimed": claimed, "off": off, "honest": off / FACTOR <= claimed <= off * FACTOR}
        rows.append(row)
    return rows


def batches(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of batches, with a column `certified`: whether the attack's status is "unique"."""
    own = select(rows, what="batch")
    return own.assign(certified=own["status"].eq("unique"))
