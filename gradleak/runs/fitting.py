"""Whether a study's networks can take the images that they are shown: asked before any work starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradleak.errors import GradleakError, InputError, UnknownName

# The smallest image that LPIPS's AlexNet takes, in pixels a side: below, its second pooling has nothing to pool.
LPIPS_SIZE = 31


@dataclass(frozen=True)
class Sees:
    """A network and the dataset that it is shown, at `size` pixels where a study asks for that.

    `learns`: the dataset that it is trained on, if it is; `channels`: how many the page needs, where its network or its
    attack fixes them.
    """

    network: str
    dataset: str
    size: int | None = None
    activation: str = ""
    learns: str = ""
    channels: int = 0


@dataclass(frozen=True)
class Fixed(Sees):
    """What else a page fixes: the pixels a `side` and the most `classes`, 0 for any.

    `lpips`: how many times images are enlarged before LPIPS measures them, 0 where it does not.
    """

    side: int = 0
    classes: int = 0
    lpips: int = 0


def check(sees: Sees) -> None:
    """Raise a clear error if a network cannot take its images; it names the datasets that would do."""
    from gradleak import data

    try:
        _check(sees)
    except UnknownName:
        raise
    except GradleakError as error:
        others = [replace(sees, dataset=name, learns=_learned(sees, name)) for name in data.names()]
        fitting = ", ".join(one.dataset for one in others if _fits(one))
        raise InputError(f"{error}; datasets that fit: {fitting or 'none'}") from error


def _learned(sees: Sees, name: str) -> str:
    return name if sees.learns == sees.dataset else sees.learns


def _fits(sees: Sees) -> bool:
    try:
        _check(sees)
    except GradleakError:
        return False
    return True


def _check(sees: Sees) -> None:
    import torch

    from gradleak import data, models

    name = sees.dataset
    try:
        channels, side = data.shape(name, size=sees.size)
        # A network that is not in the registry states its channels.
        if sees.network in models.names() or not sees.channels:
            with torch.device("meta"):
                activation = sees.activation or None
                models.build(sees.network, in_channels=channels, image_size=side, activation=activation)
    except UnknownName:
        raise
    except GradleakError as error:
        raise InputError(f"network '{sees.network}' cannot be shown '{name}': {error}") from error
    if sees.channels not in (0, channels):
        raise InputError(
            f"network '{sees.network}' on this page takes {sees.channels} channels; '{name}' has {channels}"
        )
    if isinstance(sees, Fixed):
        _check_fixed(sees, side)
    if sees.learns and data.shape(sees.learns) != (channels, side):
        raise InputError(
            f"network '{sees.network}' is trained on '{sees.learns}' and cannot be shown '{name}': "
            f"{_text(*data.shape(sees.learns))} pixels there, {_text(channels, side)} here"
        )


def _check_fixed(sees: Fixed, side: int) -> None:
    from gradleak import data

    name = sees.dataset
    if sees.side not in (0, side):
        raise InputError(f"network '{sees.network}' on this page takes {sees.side} pixels a side; '{name}' has {side}")
    if sees.classes and (found := data.classes(name)) > sees.classes:
        raise InputError(f"network '{sees.network}' on this page knows {sees.classes} classes; '{name}' has {found}")
    if sees.lpips and sees.lpips * side < LPIPS_SIZE and _measured():
        raise InputError(
            f"this page measures LPIPS, which needs images of at least {-(-LPIPS_SIZE // sees.lpips)} pixels a side; "
            f"'{name}' has {side} (without $GRADLEAK_WEIGHTS it is not measured)"
        )


def _measured() -> bool:
    """Return whether the trunk that LPIPS is measured with is at hand."""
    from gradleak import metrics, paths

    folder = paths.weights_folder()
    return folder is not None and (folder / metrics.TRUNKS["alex"]).is_file()


def _text(channels: int, side: int) -> str:
    return f"{side}×{side}" + (f"×{channels}" if channels > 1 else "")
