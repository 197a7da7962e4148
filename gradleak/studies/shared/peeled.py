"""Batches that were peeled: how near they are to the truth, layer by layer, and whether they say so themselves."""

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

# An image that came back, in decibels, and how far an attack's own estimate of its errors may be off.
BACK, FACTOR = 60.0, 10.0
LOST = 1000.0


class PeeledBatch(Row):
    """A batch that was peeled; `what` is "batch".

    `status`, `reason`, `matched` and `residual` are the attack's own. `back`: whether all images came back; `silently`:
    whether it is called unique though not all did. `images_ratio`: of the images' claimed errors by their true ones,
    the one that is furthest from 1; `images_honest`: whether that is near enough. `layers`: how many gave their inputs.
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
    """A layer, the `number`th from the last, whose inputs were asked for; `what` is "layer".

    Where its inputs were had there is no `reason`, and the row tells the errors that are `claimed` for them, by how
    much they are `off`, relatively, and whether the claim is `honest`.
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
    """Return how near a batch is to the truth in its best order, and whether it says so."""
    restored = data.denormalise(found.images.cpu())
    order = metrics.match_batch(restored, images)
    psnr = psnr_or_lost(restored[order], images)
    error = (found.images[order.to(inputs.device)] - inputs).flatten(1).square().mean(dim=1).sqrt()
    ratio = (found.errors[order.to(inputs.device)] / error)[error.isfinite()]
    worst = float(ratio[ratio.log().abs().argmax()]) if len(ratio) else float("nan")
    back = bool((psnr > BACK).all())
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
    """Return the PSNR of each image (B,), in decibels; where an image was not found it is below all others."""
    return metrics.psnr(restored, images).nan_to_num(-float("inf"))


def layers_of(model: nn.Module, found: Peeled, inputs: Tensor) -> list[PeeledLayer]:
    """Return a row a layer: what it claims for its inputs, and what they are off."""
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
    """Return what every layer takes in, in float64."""
    own, seen = copy.deepcopy(model).double(), dict[str, Tensor]()
    for name, module in own.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _m, args, _o, name=name: seen.__setitem__(name, args[0]))
    with torch.no_grad():
        own(inputs)
    return seen


def decibels(value: float) -> str:
    """Return a PSNR as a table shows it; it is hugely negative where an image was not found."""
    return "lost" if value < -LOST else f"{value:.1f}"


def short(layer: str) -> str:
    """Return a layer's name as a table shows it."""
    first, _, joined = layer.removeprefix("network.").replace("body.", "").partition("+")
    return f"{first}, shortcut" if joined else first


# What tables tell of batches.
OUTCOMES: dict[str, Measure] = {
    "unique": total("unique", ".0f"),
    "above 60 dB": total("back", ".0f"),
    "wrong": total("silently", ".0f"),
    "least dB": least("least", decibels),
}


def batches(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of batches, with whether each is called `unique`."""
    own = select(rows, what="batch")
    return own.assign(unique=own["status"].eq("unique"))


def reached(measure: Measure) -> Measure:
    """Measure the layers alone whose inputs were had."""
    return among(measure, what="layer", reason="")


def reached_count(rows: pd.DataFrame) -> str:
    """Measure how many layers' inputs were had."""
    return f"{len(select(rows, what='layer', reason=''))}"


# What tables tell of a layer: how often its inputs were had, the largest claimed and true errors.
LAYERS: dict[str, Measure] = {
    "equations": only("equations", ".0f"),
    "unknowns": only("unknowns", ".0f"),
    "reached": lambda rows: f"{reached_count(rows)} of {len(rows)}",
    "claimed": reached(greatest("claimed", ".0e")),
    "true": reached(greatest("off", ".0e")),
}


def layer_table(rows: pd.DataFrame, **keys: str) -> pd.DataFrame:
    """Return a line a layer, from the last; `keys`: the heads of columns by which lines are grouped as well."""
    own = select(rows, what="layer").sort_values([*keys.values(), "number", "layer"], kind="stable")
    own = own.assign(layer=own["layer"].map(short))
    return summary(own, {**keys, "number": "number", "layer": "layer"}, LAYERS).drop(columns="number")


def layer_line(layer: str, group: pd.DataFrame) -> dict[str, str]:
    """Return a table's line of one layer, from its rows."""
    return {"layer": short(layer)} | {head: measure(group) for head, measure in LAYERS.items()}
