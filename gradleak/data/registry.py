"""Find datasets by name: among embedded datasets, then in $GRADLEAK_DATA, then through torchvision."""

from __future__ import annotations

from gradleak import paths
from gradleak.data import download, embedded, files, text
from gradleak.data.base import Dataset, DatasetState, Split
from gradleak.errors import InputError, MissingData, unknown

EMBEDDED = {"digits": embedded.digits, "photos": embedded.photos}
TITLES = {
    "cifar10": "CIFAR-10",
    "cifar10-jpeg": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "flowers17": "Flowers-17",
    "imagenet-sample": "ImageNet",
    "mnist": "MNIST",
    "svhn": "SVHN",
    "tinyimagenet32": "Tiny ImageNet",
}


def names() -> tuple[str, ...]:
    """Return the names of all datasets."""
    return tuple(dict.fromkeys([*EMBEDDED, *files.FILES, *download.TORCHVISION]))


def title(name: str) -> str:
    """Return a dataset's usual name, such as "CIFAR-10"; names of embedded datasets stay as they are."""
    return TITLES.get(name, name)


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
    if name not in names():
        raise unknown("dataset", name, names())
    if split not in ("train", "test"):
        raise InputError(f"split must be 'train' or 'test'; got '{split}'")
    if size is not None and size < 1:
        raise InputError(f"size must be a positive number of pixels; got {size}: {sizes(name)}")
    if name in EMBEDDED:
        return EMBEDDED[name](split, size)
    if files.location(name) is not None:
        return files.load(name, split, size)
    if name in download.TORCHVISION:
        dataset = download.load(name, split)
        if size not in (None, dataset.images.shape[-1]):
            raise InputError(f"'{name}' comes at {dataset.images.shape[-1]} pixels; got size={size}")
        return dataset
    raise MissingData(
        f"dataset '{name}' is not at hand: put {files.FILES[name].file} into a folder and set $GRADLEAK_DATA to it "
        "(torchvision does not offer this dataset)"
    )


def sizes(name: str) -> str:
    """Return a phrase that lists the sizes in which a dataset's images are available."""
    if name in EMBEDDED:
        sides = embedded.SIZES if name == "photos" else (8,)
        return f"'{name}' come at {' or '.join(map(str, sides))} pixels"
    side = shape(name)[1]
    return f"'{name}' come at {side} pixels" + (", and at others resized" if files.location(name) is not None else "")


def shape(name: str, *, size: int | None = None) -> tuple[int, int]:
    """Return the channels and the side (pixels) of the images that `load` would return, without loading them."""
    if name not in names():
        raise unknown("dataset", name, names())
    if name in EMBEDDED:
        sides = embedded.SIZES if name == "photos" else (8,)
        if size not in (None, *sides):
            raise InputError(f"'{name}' come at {' or '.join(map(str, sides))} pixels; got size={size}")
        return 3 if name == "photos" else 1, size or sides[0]
    # Datasets that only torchvision has are colour images of 32 pixels.
    return 1 if name == "mnist" else 3, size or (files.FILES[name].size if name in files.FILES else 32)


def classes(name: str) -> int:
    """Return the number of a dataset's classes, or 0 if it is unknown before the images are loaded."""
    if name not in names():
        raise unknown("dataset", name, names())
    counts = {"cifar10": 10, "cifar10-jpeg": 10, "cifar100": 100, "mnist": 10, "svhn": 10}
    return counts.get(name) or next(state.classes or 0 for state in states() if state.name == name)


def source(name: str) -> str:
    """Return one line that names the source from which `load` would load a dataset, without loading it."""
    if name not in names():
        raise unknown("dataset", name, names())
    return next(f"{state.name}: {state.source}" for state in states() if state.name == name)


def states() -> list[DatasetState]:
    """Return the state of every dataset, from the headers of files only."""
    result = [
        DatasetState("digits", "embedded", "scikit-learn", 1797, 10, "8×8", ""),
        DatasetState(
            "photos",
            "embedded",
            "ten photographs of scikit-image and scikit-learn",
            len(embedded.PHOTOGRAPHS) * (embedded.TRAIN_CROPS + embedded.TEST_CROPS),
            len(embedded.PHOTOGRAPHS),
            "32×32×3 or 64×64×3",
            "",
        ),
    ]
    for name in names():
        if name in EMBEDDED:
            continue
        state = files.state(name)
        cached = (paths.cache() / "torchvision").is_dir() and name in download.TORCHVISION
        if state is None and name in download.TORCHVISION:
            note = "fetched before" if cached else "downloaded when first asked for, with a network"
            state = DatasetState(name, "download", "torchvision", None, None, "", note)
        elif state is None:
            file = files.FILES[name].file
            state = DatasetState(
                name, "missing", f"wants {file} in $GRADLEAK_DATA", None, None, "", files.FILES[name].notes
            )
        result.append(state)
    return result
