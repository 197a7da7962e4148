"""Load the models, samples and updates that the command line names, without unpickling code from files."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from gradleak import augment, data, early, models
from gradleak.auditing.measuring import Columns, columns_of
from gradleak.errors import GradleakError, InputError, first_line, foreign, printable
from gradleak.leak import pair_of
from gradleak.losses import BinaryCrossEntropy, CrossEntropy, Focal, Loss

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
MOST_IMAGES = 256
# Functions of pandas that read a table, by the ending of its file.
TABLES: dict[str, Callable[[Any], Callable[[Path], Any]]] = {
    ".csv": lambda pandas: pandas.read_csv,
    ".parquet": lambda pandas: pandas.read_parquet,
}
MOST_CLASSES = 1000
LOSSES: dict[str, Callable[[], Loss]] = {"cross-entropy": CrossEntropy, "focal": Focal, "binary": BinaryCrossEntropy}


@dataclass(frozen=True)
class Samples:
    """Private samples and targets; for images, `pixels` is (low, span) of every channel; `columns` are a table's."""

    inputs: Tensor
    targets: Tensor
    pixels: tuple[Tensor, Tensor] | None = None
    columns: Columns | None = None


def model_of(text: str, *, seed: int = 0) -> nn.Module:
    """Return the model that "module:function" returns, or a network of this package by its name."""
    if ":" not in text:
        return models.build(printable(text), seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = _named(text)
        made = _called(text, made) if not isinstance(made, nn.Module) else made
    if not isinstance(made, nn.Module):
        raise InputError(f"'{text}' gives {type(made).__name__}, not an nn.Module")
    return made


def _named(text: str) -> Any:
    """Return the object that "module:name" names; modules in the working directory come first."""
    early.check_named(text)
    module, _, name = text.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        with foreign(f"'{text}' cannot be had"):
            target: Any = importlib.import_module(module)
            for part in name.split("."):
                target = getattr(target, part)
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
    return target


def _called(text: str, made: Any) -> Any:
    if not callable(made):
        raise InputError(f"'{text}' is {type(made).__name__}, neither a model nor a function that makes one")
    with foreign(f"'{text}()' failed"):
        return made()


def samples_of(
    text: str, *, size: int | None = None, target: str | None = None, model: nn.Module | None = None
) -> Samples:
    """Return private samples with their targets.

    Images of datasets and folders are normalised as in the book.

    Args:
        text: The name of a dataset, a folder with one folder of images per class, an .npz file with `inputs` and
            `targets`, a table (.csv or .parquet), or "module:function" for a function that returns the two, or a batch
            of `transformers`.
        size: The side of the images (pixels), for datasets and folders.
        target: The column of a table that holds the class.
        model: The network, which tells how a batch of `transformers` is trained on.
    """
    place = Path(os.path.expanduser(text))
    made = ":" in text and not Path(text).exists()
    if size is not None and (made or place.is_file()):
        raise InputError(
            f"'{printable(text)}' has a fixed size: --size is for datasets, and folders (4 … 2,048 pixels)"
        )
    if made:
        result = _called(text, _named(text))
        if model is not None and isinstance(result, Mapping) and all(map(torch.is_tensor, result.values())):
            return Samples(*pair_of(model, result, None))
        if not (isinstance(result, tuple | list) and len(result) == 2 and all(map(torch.is_tensor, result))):
            raise InputError(f"'{text}()' must return two tensors, inputs and targets")
        return Samples(*result)
    if place.is_dir():
        return _folder(place, 32 if size is None else size)
    if place.suffix == ".npz":
        return _archive(place)
    if place.suffix in TABLES:
        return _table(place, target)
    if place.is_file():
        raise InputError(f"'{place.name}' is neither a folder of images nor an .npz, .csv or .parquet file")
    dataset = data.load(printable(text), "test", size=size)
    return _shown(dataset.images, dataset.labels)


def _shown(images: Tensor, labels: Tensor) -> Samples:
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64).reshape(2, 1, 1, 1).expand(-1, images.shape[1], 1, 1)
    black, white = data.normalise(ends).flatten(1)
    return Samples(data.normalise(images), labels, (black, white - black))


def _folder(place: Path, size: int) -> Samples:
    """Return the images of a folder as squares of side `size`; the class of an image is its parent folder."""
    if not 4 <= size <= 2048:
        raise InputError(f"images are cut to 4 … 2,048 pixels; got {size}")
    files = sorted(file for file in place.rglob("*") if file.suffix.lower() in IMAGES and file.is_file())
    if not files:
        raise InputError(f"there is no image in the folder '{place.name}' ({', '.join(IMAGES)})")
    step = max(1, -(-len(files) // MOST_IMAGES))
    chosen = files[::step]
    names = sorted({file.parent for file in files})
    rows = []
    for file in chosen:
        try:
            with Image.open(file) as image:
                rows.append(_square(_coloured(image), size))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(f"'{file.name}' cannot be read as an image: {first_line(error)}") from error
    images = torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2).float() / 255
    return _shown(images, torch.tensor([names.index(file.parent) for file in chosen]))


def _coloured(image: Image.Image) -> Image.Image:
    """Return an image with three channels of 8 bits."""
    if image.mode.startswith("I"):
        # 16 bits of grey: a conversion by Pillow would make everything above 255 white.
        image = Image.fromarray((np.asarray(image) / 257).round().clip(0, 255).astype(np.uint8))
    # A palette may have transparent colours, and a direct conversion to RGB would warn about them.
    return image.convert("RGBA" if image.mode == "P" else "RGB").convert("RGB")


def _square(image: Image.Image, size: int) -> np.ndarray[Any, Any]:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side)).resize((size, size)))


def _table(place: Path, target: str | None) -> Samples:
    """Return the rows of a table: numbers with mean 0 and standard deviation 1, and a column of 0 or 1 per category."""
    import pandas as pd

    with _reading(place, " as a table"):
        frame = TABLES[place.suffix](pd)(place)
    names = ", ".join(map(str, frame.columns[:12]))
    if target not in frame.columns:
        wanted = "--target names the column with the class" if target is None else f"there is no column {target!r}"
        raise InputError(f"{wanted}; '{place.name}' has {names}")
    if missing := [str(name) for name in frame.columns if frame[name].isna().any()]:
        raise InputError(f"'{place.name}' has missing values in {', '.join(missing[:5])}: fill them, or drop the rows")
    labels = frame.pop(target)
    if pd.api.types.is_float_dtype(labels) and bool((labels % 1 != 0).any()):
        raise InputError(f"'{target}' holds numbers, not classes: networks that predict a number are not audited")
    classes, targets = np.unique(labels.astype(str), return_inverse=True)
    if len(frame.columns) == 0 or len(classes) > MOST_CLASSES:
        raise InputError(f"'{target}' has {len(classes)} values and {len(frame.columns)} other columns: it is no class")
    numbers = frame.select_dtypes(["number", "bool"]).astype(float)
    deviations = numbers.std(ddof=0).replace(0, 1)
    # Categories are 0 or 1, so their unit is 1.
    texts = frame.drop(columns=numbers.columns).astype(str)
    categories = [pd.get_dummies(texts, prefix_sep="=").astype(float)] if len(texts.columns) else []
    rows = pd.concat([(numbers - numbers.mean()) / deviations, *categories], axis=1)
    inputs, units = torch.tensor(rows.to_numpy()).float(), deviations.reindex(rows.columns).fillna(1).to_numpy()
    columns = columns_of(inputs, tuple(map(str, rows.columns)), torch.tensor(units))
    return Samples(inputs, torch.tensor(targets), columns=columns)


def _archive(place: Path) -> Samples:
    """Return the `inputs` and `targets` of an .npz file."""
    with _reading(place, ""), place.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        if not {"inputs", "targets"} <= set(arrays.files):
            held = ", ".join(map(ascii, arrays.files[:5])) or "nothing"
            raise InputError(f"'{place.name}' must hold 'inputs' and 'targets'; it holds {held}")
        inputs, targets = (torch.from_numpy(np.array(arrays[name])) for name in ("inputs", "targets"))
    if inputs.is_floating_point() and inputs.dtype != torch.float64:
        inputs = inputs.float()
    return Samples(inputs, targets)


@contextlib.contextmanager
def _reading(place: Path, kind: str) -> Iterator[None]:
    """Turn errors while a file is read into one-line errors."""
    if not place.is_file():
        raise InputError(f"there is no file '{place.name}'")
    try:
        yield
    except GradleakError:
        raise
    except Exception as error:
        raise InputError(f"'{place.name}' cannot be read{kind}: {first_line(error)}") from error


def with_labels(samples: Samples, text: str | None, classes: int) -> tuple[Samples, str | None]:
    """Return the samples with labels of a given shape, and the prior that the attacker knows.

    Args:
        samples: The samples, with classes or soft labels.
        text: "onehot", "smoothing/0.1" or "mixup"; None to leave the labels as they are. Soft labels are never changed.
        classes: The number of classes C.
    """
    if text is None:
        return samples, None
    kind, _, level = text.partition("/")
    if kind not in ("onehot", "smoothing", "mixup") or (level and kind != "smoothing"):
        raise InputError(f"labels are onehot, smoothing/0.1 or mixup; got {text!r}")
    inputs, targets = samples.inputs, samples.targets
    if targets.ndim == 1 and not targets.is_floating_point():
        if kind == "smoothing":
            try:
                amount = float(level or 0.1)
            except ValueError as error:
                raise InputError(f"labels '{text}' must be written with a number, such as smoothing/0.1") from error
            targets = augment.smooth(targets, classes, amount)
        elif kind == "mixup":
            inputs, targets = augment.mixup(inputs, augment.one_hot(targets, classes), generator=0)
    return replace(samples, inputs=inputs, targets=targets), kind


def loss_of(text: str) -> Loss:
    """Return a loss by its name."""
    if text not in LOSSES:
        raise InputError(f"a loss is {', '.join(LOSSES)}; got {text!r}")
    return LOSSES[text]()


def state_of(place: Path) -> dict[str, Tensor]:
    """Return the state dict in a .safetensors file, or in a file that torch wrote (loaded with weights_only)."""
    with _reading(place, " as weights"):
        if place.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(place)
        state = torch.load(place, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not all(map(torch.is_tensor, state.values())):
        raise InputError(f"'{place.name}' holds no state dict, which maps names to tensors")
    return dict(state)
