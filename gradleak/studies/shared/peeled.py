"""Batches that were peeled: how near they are to the truth, layer by layer, and whether they say so themselves."""

from __future__ import annotations

import copy
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from gradleak import data, metrics
from gradleak.images import Peeled

# An image that came back, in decibels, and how far an attack's own estimate of its errors may be off.
BACK, FACTOR = 60.0, 10.0
LOST = 1000.0


def judged(found: Peeled, images: Tensor, inputs: Tensor) -> dict[str, Any]:
    """Return how near a batch is to the truth in its best order, and whether it says so."""
    restored = data.denormalise(found.images.cpu())
    order = metrics.match_batch(restored, images)
    psnr = metrics.psnr(restored[order], images).nan_to_num(-float("inf"))
    error = (found.images[order.to(inputs.device)] - inputs).flatten(1).square().mean(dim=1).sqrt()
    ratio = (found.errors[order.to(inputs.device)] / error)[error.isfinite()]
    worst = float(ratio[ratio.log().abs().argmax()]) if len(ratio) else float("nan")
    back = bool((psnr > BACK).all())
    return {
        "what": "batch",
        "status": found.status,
        "reason": found.reason,
        "matched": found.matched,
        "residual": found.residual,
        "psnr": float(psnr.mean()),
        "least": float(psnr.min()),
        "back": back,
        "silently": found.status == "unique" and not back,
        "images_ratio": worst,
        "images_honest": 1 / FACTOR <= worst <= FACTOR,
        "layers": sum(not layer.reason for layer in found.layers),
    }


def layers_of(model: nn.Module, found: Peeled, inputs: Tensor) -> list[dict[str, Any]]:
    """Return a row a layer: what it claims for its inputs, and what they are off."""
    truth = _inputs_of(model, inputs)
    order, rows = None, []
    for number, layer in enumerate(found.layers):
        row = {"what": "layer", "number": number, "layer": layer.name, "reason": layer.reason}
        row |= {"equations": layer.equations, "unknowns": layer.unknowns}
        if layer.found is not None and not layer.reason:
            true = truth[layer.name.partition("+")[0]]
            own = layer.found.reshape(true.shape)
            order = metrics.match_batch(own.flatten(1), true.flatten(1)) if order is None else order
            off = float((own[order] - true).norm() / true.norm())
            claimed = float(layer.claimed or 0)
            row |= {"claimed": claimed, "off": off, "honest": off / FACTOR <= claimed <= off * FACTOR}
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


def decibels(value: Any) -> str:
    """Return a PSNR as a table shows it."""
    # No finite image.
    return "lost" if value < -LOST else f"{value:.1f}"


def short(layer: str) -> str:
    """Return a layer's name as a table shows it."""
    first, _, joined = layer.removeprefix("network.").replace("body.", "").partition("+")
    return f"{first}, shortcut" if joined else first


def layer_line(layer: str, group: pd.DataFrame) -> dict[str, str]:
    """Return a table's line of one layer: how often its inputs were had, the largest claimed and true errors."""
    own = group[group["reason"] == ""]
    return {
        "layer": short(layer),
        "equations": f"{group['equations'].iloc[0]:.0f}",
        "unknowns": f"{group['unknowns'].iloc[0]:.0f}",
        "reached": f"{len(own)} of {len(group)}",
        "claimed": f"{own['claimed'].max():.0e}" if len(own) else "–",
        "true": f"{own['off'].max():.0e}" if len(own) else "–",
    }
