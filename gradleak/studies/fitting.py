"""Whether a study's networks can take the images that they are shown: asked before any work starts."""

from __future__ import annotations

from dataclasses import dataclass

from gradleak.errors import GradleakError, InputError, UnknownName


@dataclass(frozen=True)
class Sees:
    """A network and the dataset that it is shown, at `size` pixels where a study asks for that.

    `learns`: the dataset that it is trained on, if it is; `channels`: what a network not in the registry needs.
    """

    network: str
    dataset: str
    size: int | None = None
    activation: str = ""
    learns: str = ""
    channels: int = 0


def check(sees: Sees) -> None:
    """Raise a clear error if a network cannot take its images."""
    import torch

    from gradleak import data, models

    name = sees.dataset
    try:
        channels, side = data.shape(name, size=sees.size)
        if not sees.channels:
            with torch.device("meta"):
                activation = sees.activation or None
                models.build(sees.network, in_channels=channels, image_size=side, activation=activation)
    except UnknownName:
        raise
    except GradleakError as error:
        raise InputError(f"network '{sees.network}' cannot be shown '{name}': {error}") from error
    if sees.channels not in (0, channels):
        raise InputError(f"network '{sees.network}' takes {sees.channels} channels; '{name}' has {channels}")
    if sees.learns and data.shape(sees.learns) != (channels, side):
        raise InputError(
            f"network '{sees.network}' is trained on '{sees.learns}' and cannot be shown '{name}': "
            f"{_text(*data.shape(sees.learns))} pixels there, {_text(channels, side)} here"
        )


def _text(channels: int, side: int) -> str:
    return f"{side}×{side}" + (f"×{channels}" if channels > 1 else "")
