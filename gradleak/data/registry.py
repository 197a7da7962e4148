"""Where a dataset's name leads: embedded, then $GRADLEAK_DATA, then torchvision, else a clear error."""

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
    """Return a dataset's name as its makers write it; an embedded one's is its own."""
    return TITLES.get(name, name)


def load(name: str, split: Split = "train", *, size: int | None = None) -> Dataset:
    """Return a dataset's split; `size` asks for square images of that many pixels."""
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
        "(torchvision does not offer this one)"
    )


def sizes(name: str) -> str:
    """Return in a few words what sizes a dataset's images can be asked for."""
    if name in EMBEDDED:
        sides = embedded.SIZES if name == "photos" else (8,)
        return f"'{name}' come at {' or '.join(map(str, sides))} pixels"
    side = shape(name)[1]
    return f"'{name}' come at {side} pixels" + (", and at others resized" if files.location(name) is not None else "")


def shape(name: str, *, size: int | None = None) -> tuple[int, int]:
    """Return the channels and the side of the images that `load` would give, without loading them."""
    if name not in names():
        raise unknown("dataset", name, names())
    if name in EMBEDDED:
        sides = embedded.SIZES if name == "photos" else (8,)
        if size not in (None, *sides):
            raise InputError(f"'{name}' come at {' or '.join(map(str, sides))} pixels; got size={size}")
        return 3 if name == "photos" else 1, size or sides[0]
    # What torchvision alone has are colour images of 32 pixels.
    return 1 if name == "mnist" else 3, size or (files.FILES[name].size if name in files.FILES else 32)


def classes(name: str) -> int:
    """Return the number of a dataset's classes as far as it is known without loading its images, else 0."""
    if name not in names():
        raise unknown("dataset", name, names())
    known = {"cifar10": 10, "cifar10-jpeg": 10, "cifar100": 100, "mnist": 10, "svhn": 10}
    return known.get(name) or next(state.classes or 0 for state in states() if state.name == name)


def source(name: str) -> str:
    """Return one line that says where `load` would take a dataset from, without loading it."""
    if name not in names():
        raise unknown("dataset", name, names())
    return next(f"{state.name}: {state.source}" for state in states() if state.name == name)


def states() -> list[DatasetState]:
    """Return the state of every dataset, reading headers only."""
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
