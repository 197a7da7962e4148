"""Check before any work starts that a study's networks accept the images of its datasets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from gradleak.errors import GradleakError, InputError, UnknownName


@dataclass(frozen=True)
class Sees:
    """A network and the dataset whose images it is given.

    Attributes:
        network: The name of the network.
        dataset: The name of the dataset.
        size: The side in pixels to which the images are resized; None for the dataset's own size.
        activation: The network's activation function; "" for its default.
        learns: The dataset on which the network is trained; "" if it is not trained.
        channels: The number of channels that the network or the attack on the page requires; 0 for any.
        side: The required side of the images in pixels; 0 for any.
        least: The smallest side of the images in pixels that the page can measure.
        classes: The largest number of classes; 0 for any.
    """

    network: str
    dataset: str
    size: int | None = None
    activation: str = ""
    learns: str = ""
    channels: int = 0
    side: int = 0
    least: int = 0
    classes: int = 0


def check(sees: Sees) -> None:
    """Raise an InputError if a network cannot take its images; the message lists the datasets that fit."""
    from gradleak import data

    if reason := _misfit(sees):
        learns_own = sees.learns == sees.dataset
        others = (replace(sees, dataset=name, learns=name if learns_own else sees.learns) for name in data.names())
        fitting = ", ".join(other.dataset for other in others if not _misfit(other))
        raise InputError(f"{reason}; datasets that fit: {fitting or 'none'}")


def _misfit(sees: Sees) -> str:
    """Return why a network cannot take its images, or ""; an unknown name is an error."""
    from gradleak import data, models

    name, network = sees.dataset, f"network '{sees.network}'"
    try:
        channels, side = data.shape(name, size=sees.size)
        # A network outside the registry cannot be built here, and is only checked for the channels that it states.
        if sees.network in models.names() or not sees.channels:
            _build(sees.network, channels, side, sees.activation)
    except UnknownName:
        raise
    except GradleakError as error:
        return f"{network} cannot be shown '{name}': {error}"
    for required, found, what in ((sees.channels, channels, "channels"), (sees.side, side, "pixels a side")):
        if required not in (0, found):
            return f"{network} on this page takes {required} {what}; '{name}' has {found}"
    if side < sees.least:
        return f"this page measures images of at least {sees.least} pixels a side; '{name}' has {side}"
    if sees.classes and (classes := data.classes(name)) > sees.classes:
        return f"{network} on this page knows {sees.classes} classes; '{name}' has {classes}"
    if sees.learns and (learned := data.shape(sees.learns)) != (channels, side):
        return (
            f"{network} is trained on '{sees.learns}' and cannot be shown '{name}': {learned[1]}×{learned[1]}×"
            f"{learned[0]} pixels there, {side}×{side}×{channels} here"
        )
    return ""


@cache
def _build(network: str, channels: int, side: int, activation: str) -> None:
    """Build a network for images of a shape, without its weights. Building large networks takes a while."""
    import torch

    from gradleak import models

    with torch.device("meta"):
        models.build(network, in_channels=channels, image_size=side, activation=activation or None)
