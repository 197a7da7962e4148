"""Find datasets by name: among embedded datasets, then in $GRADLEAK_DATA, then through torchvision."""

from __future__ import annotations

from gradleak import paths
from gradleak.data import download, embedded, files, text
from gradleak.data.base import KNOWN, Dataset, DatasetState, Known, Split
from gradleak.errors import InputError, MissingData, unknown

EMBEDDED = {"digits": embedded.digits, "photos": embedded.photos}


def names() -> tuple[str, ...]:
    """Return the names of all datasets."""
    return tuple(KNOWN)


def title(name: str) -> str:
    """Return a dataset's usual name, such as "CIFAR-10"; names of embedded datasets stay as they are."""
    return KNOWN[name].title if name in KNOWN else name


def _known(name: str) -> Known:
    if name not in KNOWN:
        raise unknown("dataset", name, KNOWN)
    return KNOWN[name]


def load(name: str, split: Split = "train", *, size: int | None = None) -> Dataset:
    """Return one split of a dataset.

    Args:
        name: A name from `names`.
        split: "train" or "test".
        size: The side of the images in pixels; by default the dataset's usual size.

    Raises:
        UnknownName: If there is no such dataset.
        MissingData: If the dataset is not available on this machine.
        InputError: If the split or the size is not available.
    """
    if name in text.NAMES:
        raise InputError(f"'{name}' is a text: call data.texts('{name}'), and data.vocabulary('{name}') for its pieces")
    known = _known(name)
    if split not in ("train", "test"):
        raise InputError(f"split must be 'train' or 'test'; got '{split}'")
    in_file = files.location(name) is not None
    if not (name in EMBEDDED or in_file or known.torchvision):
        raise MissingData(
            f"dataset '{name}' is not at hand: put {known.file} into a folder and set $GRADLEAK_DATA to it "
            "(torchvision does not offer this dataset)"
        )
    if size is not None and (size < 1 if in_file else size not in _sides(name)):
        raise InputError(f"{sizes(name)}; got size={size}")
    if name in EMBEDDED:
        return EMBEDDED[name](split, size or known.size)
    return files.load(name, split, size) if in_file else download.load(name, split)


def _sides(name: str) -> tuple[int, ...]:
    """Return the sides (pixels) in which a dataset's images are available without resizing."""
    return embedded.SIZES if name == "photos" else (KNOWN[name].size,)


def sizes(name: str) -> str:
    """Return a phrase that lists the sizes in which a dataset's images are available."""
    resized = ", and at others resized" if files.location(name) is not None else ""
    return f"'{name}' come at {' or '.join(map(str, _sides(name)))} pixels{resized}"


def shape(name: str, *, size: int | None = None) -> tuple[int, int]:
    """Return the channels and the side (pixels) of the images that `load` would return, without loading them."""
    known = _known(name)
    if name in EMBEDDED and size not in (None, *_sides(name)):
        raise InputError(f"{sizes(name)}; got size={size}")
    return known.channels, size or known.size


def classes(name: str) -> int:
    """Return the number of a dataset's classes, or 0 if it is unknown before the images are loaded."""
    return _known(name).classes or _state(name).classes or 0


def source(name: str) -> str:
    """Return one line that names the source from which `load` would load a dataset, without loading it."""
    _known(name)
    return f"{name}: {_state(name).source}"


def states() -> list[DatasetState]:
    """Return the state of every dataset, from the headers of files only."""
    return [_state(name) for name in KNOWN]


def _state(name: str) -> DatasetState:
    known = KNOWN[name]
    if name == "digits":
        return DatasetState(name, "embedded", "scikit-learn", 1797, known.classes, "8×8", "")
    if name == "photos":
        count = known.classes * (embedded.TRAIN_CROPS + embedded.TEST_CROPS)
        what = "ten photographs of scikit-image and scikit-learn"
        return DatasetState(name, "embedded", what, count, known.classes, "32×32×3 or 64×64×3", "")
    if (state := files.state(name)) is not None:
        return state
    if known.torchvision:
        cached = (paths.cache() / "torchvision").is_dir()
        note = "fetched before" if cached else "downloaded when first asked for, with a network"
        return DatasetState(name, "download", "torchvision", None, None, "", note)
    return DatasetState(name, "missing", f"wants {known.file} in $GRADLEAK_DATA", None, None, "", known.notes)
