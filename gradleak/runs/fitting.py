"""Check before any work starts that a study's networks accept the images of its datasets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from gradleak.errors import GradleakError, InputError, UnknownName

# The side in pixels of the smallest image that the AlexNet of LPIPS accepts. Below, the input of its second pooling
# layer is too small.
LPIPS_SIZE = 31


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
    """

    network: str
    dataset: str
    size: int | None = None
    activation: str = ""
    learns: str = ""
    channels: int = 0


@dataclass(frozen=True)
class Fixed(Sees):
    """A network and a dataset with further requirements of a page.

    Attributes:
        side: The required side of the images in pixels; 0 for any.
        classes: The largest number of classes; 0 for any.
        lpips: The factor by which images are enlarged before LPIPS measures them; 0 if the page does not use LPIPS.
    """

    side: int = 0
    classes: int = 0
    lpips: int = 0


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
    except UnknownName:
        raise
    except GradleakError as error:
        return f"{network} cannot be shown '{name}': {error}"
    # A network outside the registry cannot be built here, and is only checked for the channels that it states.
    buildable = sees.network in models.names() or not sees.channels
    if buildable and (reason := _refused(sees.network, channels, side, sees.activation)):
        return f"{network} cannot be shown '{name}': {reason}"
    if sees.channels not in (0, channels):
        return f"{network} on this page takes {sees.channels} channels; '{name}' has {channels}"
    if isinstance(sees, Fixed):
        if sees.side not in (0, side):
            return f"{network} on this page takes {sees.side} pixels a side; '{name}' has {side}"
        if sees.classes and (classes := data.classes(name)) > sees.classes:
            return f"{network} on this page knows {sees.classes} classes; '{name}' has {classes}"
        if sees.lpips and sees.lpips * side < LPIPS_SIZE and _measured():
            return (
                f"this page measures LPIPS, which needs images of at least {-(-LPIPS_SIZE // sees.lpips)} pixels a "
                f"side; '{name}' has {side} (without $GRADLEAK_WEIGHTS it is not measured)"
            )
    if sees.learns and (learned := data.shape(sees.learns)) != (channels, side):
        there, here = _text(*learned), _text(channels, side)
        return (
            f"{network} is trained on '{sees.learns}' and cannot be shown '{name}': {there} pixels there, {here} here"
        )
    return ""


@cache
def _refused(network: str, channels: int, side: int, activation: str) -> str:
    """Return why a network cannot be built for images of a shape, or "". Building large networks takes a while."""
    import torch

    from gradleak import models

    try:
        with torch.device("meta"):
            models.build(network, in_channels=channels, image_size=side, activation=activation or None)
    except UnknownName:
        raise
    except GradleakError as error:
        return str(error)
    return ""


def _measured() -> bool:
    """Return whether the weights of the network that LPIPS uses are available."""
    from gradleak import metrics, paths

    folder = paths.weights_folder()
    return folder is not None and (folder / metrics.TRUNKS["alex"]).is_file()


def _text(channels: int, side: int) -> str:
    return f"{side}×{side}" + (f"×{channels}" if channels > 1 else "")
