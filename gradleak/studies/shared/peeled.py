"""Batches that were peeled: their errors layer by layer, and whether the attack estimates these errors correctly."""

from __future__ import annotations

import copy
import math

import pandas as pd
import torch
from torch import Tensor, nn

from gradleak import data, metrics
from gradleak.images import Peeled
from gradleak.show.summaries import Measure, among, greatest, least, only, select, summary, total
from gradleak.studies import Row
from gradleak.studies.shared.restored import graded

# An attack's estimate of its error may be wrong by this factor.
FACTOR = 10.0
LOST = 1000.0


class PeeledBatch(Row):
    """A batch that was peeled; `what` is "batch".

    Attributes:
        status: The attack's status, as are `reason`, `matched` and `residual`.
        psnr: The mean PSNR (dB) of the images.
        least: The least PSNR (dB).
        back: Whether all images are recovered.
        silently: Whether the status is "unique" although not all images are recovered.
        images_ratio: The estimated error of an image divided by its true error, for the image whose ratio is furthest
            from 1.
        images_honest: Whether this ratio is within a factor of 10 of 1.
        layers: The number of layers whose inputs were recovered.
    """

    what: str
    status: str
    reason: str
    matched: str
    residual: float
    psnr: float
    least: float
    back: bool
    silently: bool
    images_ratio: float
    images_honest: bool
    layers: int


class PeeledLayer(Row):
    """The inputs of one layer; `what` is "layer".

    Attributes:
        number: The layer's number, counted from the last layer.
        reason: Why its inputs were not recovered, "" if they were.
        claimed: The relative error of the inputs that the attack estimates.
        off: Their true relative error.
        honest: Whether the estimate is within a factor of 10 of the true error.
    """

    what: str
    number: int
    layer: str
    reason: str
    equations: int
    unknowns: int
    claimed: float = math.nan
    off: float = math.nan
    honest: bool = False


def judged(found: Peeled, images: Tensor, inputs: Tensor) -> PeeledBatch:
    """Return the errors of a batch in its best order, and whether the attack's status and estimates are correct."""
    restored = data.denormalise(found.images.cpu())
    order = metrics.match_batch(restored, images)
    psnr = psnr_or_lost(restored[order], images)
    error = (found.images[order.to(inputs.device)] - inputs).flatten(1).square().mean(dim=1).sqrt()
    ratio = (found.errors[order.to(inputs.device)] / error)[error.isfinite()]
    worst = float(ratio[ratio.log().abs().argmax()]) if len(ratio) else float("nan")
    back = bool((psnr > metrics.EXACT).all())
    return PeeledBatch(
        what="batch",
        status=found.status,
        reason=found.reason,
        matched=found.matched,
        residual=found.residual,
        psnr=float(psnr.mean()),
        least=float(psnr.min()),
        back=back,
        silently=found.status == "unique" and not back,
        images_ratio=worst,
        images_honest=1 / FACTOR <= worst <= FACTOR,
        layers=sum(not layer.reason for layer in found.layers),
    )


def psnr_or_lost(restored: Tensor, images: Tensor) -> Tensor:
    """Return the PSNR (dB) of each image (B,); an image that was not found has a huge negative one."""
    return metrics.psnr(restored, images).nan_to_num(-float("inf"))


def layers_of(model: nn.Module, found: Peeled, inputs: Tensor) -> list[PeeledLayer]:
    """Return a row for each layer: the estimated and the true error of its inputs."""
    truth = _inputs_of(model, inputs)
    order, rows = None, []
    for number, layer in enumerate(found.layers):
        row = PeeledLayer(
            what="layer",
            number=number,
            layer=layer.name,
            reason=layer.reason,
            equations=layer.equations,
            unknowns=layer.unknowns,
        )
        if layer.found is not None and not layer.reason:
            true = truth[layer.name.partition("+")[0]]
            own = layer.found.reshape(true.shape)
            order = metrics.match_batch(own.flatten(1), true.flatten(1)) if order is None else order
            off = float((own[order] - true).norm() / true.norm())
            claimed = float(layer.claimed or 0)
            honest = off / FACTOR <= claimed <= off * FACTOR
            row = PeeledLayer.of(row, claimed=claimed, off=off, honest=honest)
        rows.append(row)
    return rows


def _inputs_of(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Return the inputs of every convolution, in float64."""
    own, seen = copy.deepcopy(model).double(), dict[str, Tensor]()
    for name, module in own.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _m, args, _o, name=name: seen.__setitem__(name, args[0]))
    with torch.no_grad():
        own(inputs)
    return seen


def decibels(value: float) -> str:
    """Return a PSNR (dB) as a table cell: "lost" for an image that was not found."""
    return "lost" if value < -LOST else f"{value:.1f}"


def short(layer: str) -> str:
    """Return a layer's name, shortened for a table."""
    first, _, joined = layer.removeprefix("network.").replace("body.", "").partition("+")
    return f"{first}, shortcut" if joined else first


# The columns about batches: how many are called unique, exact, and called unique though wrong; least PSNR (dB).
OUTCOMES: dict[str, Measure] = {
    "certified": total("unique", ".0f"),
    f"every image exact ({metrics.EXACT:.0f} dB)": graded("exact", "least"),
    "wrong certificates": total("silently", ".0f"),
    "lowest PSNR (dB)": least("least", decibels),
}


def batches(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of batches, with a column `unique`: whether the attack's status is "unique"."""
    own = select(rows, what="batch")
    return own.assign(unique=own["status"].eq("unique"))


def reached(measure: Measure) -> Measure:
    """Restrict a measure to the layers whose inputs were recovered."""
    return among(measure, what="layer", reason="")


def reached_count(rows: pd.DataFrame) -> str:
    """Measure the number of layers whose inputs were recovered."""
    return f"{len(select(rows, what='layer', reason=''))}"


# The columns about a layer: how often its inputs were recovered, and the largest estimated and true errors.
LAYERS: dict[str, Measure] = {
    "equations": only("equations", ".0f"),
    "unknowns": only("unknowns", ".0f"),
    "inputs recovered in": lambda rows: f"{reached_count(rows)} of {len(rows)}",
    "largest claimed error": reached(greatest("claimed", ".0e")),
    "largest true error": reached(greatest("off", ".0e")),
}


def layer_table(rows: pd.DataFrame, **keys: str) -> pd.DataFrame:
    """Return a table with one row for each layer, from the last; `keys` are more columns by which rows are grouped."""
    own = select(rows, what="layer").sort_values([*keys.values(), "number", "layer"], kind="stable")
    own = own.assign(layer=own["layer"].map(short))
    return summary(own, {**keys, "number": "number", "layer": "layer"}, LAYERS).drop(columns="number")
