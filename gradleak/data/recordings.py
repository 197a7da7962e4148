"""Read recorded utterances of LibriSpeech from a file, as the frames that dang2021's recogniser hears."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak import paths
from gradleak.data.speech import BANDS
from gradleak.errors import InputError, MissingData, StorageError

# `flac`: the FLAC files of utterances (16 kHz, one channel), one after another; `offsets`: where each begins, and the
# end of the last; `transcripts`; `subset`: the part of LibriSpeech, such as "test-clean".
FILE = "librispeech_short.npz"
WANTED = f"wants {FILE} in $GRADLEAK_DATA, made from openslr.org/12"
# lingvo's features of LibriSpeech: samples per second, samples of a window and of the step to the next, points of the
# Fourier transform, lowest and highest frequency (Hz), pre-emphasis, and the least amplitude of a band.
RATE, WINDOW, STEP, POINTS, LOWEST, HIGHEST = 16_000, 400, 160, 1024, 125.0, 7600.0
EMPHASIS, LEAST = 0.97, 1.0


def transcripts() -> tuple[str, ...]:
    """Return the transcripts of the recordings from LibriSpeech's two test sets, in lower case."""
    return tuple(_places(_file()))


def recorded(text: str) -> Tensor:
    """Return the log-mel bands (F, 80) of the recording with this transcript."""
    file = _file()
    if text not in (places := _places(file)):
        raise InputError(f"there is no recording of '{text}'")
    try:
        import soundfile
    except ImportError as error:
        raise MissingData("recordings are decoded by soundfile: pip install 'gradleak[speech]'") from error
    flac, offsets = _flac(file)
    first, last = offsets[places[text] :][:2]
    sound, rate = soundfile.read(io.BytesIO(flac[first:last].tobytes()), dtype="int16")
    if rate != RATE:
        raise InputError(f"{FILE} must have {RATE} samples a second; got {rate}")
    return lingvo_frames(torch.from_numpy(sound))


def lingvo_frames(sound: Tensor) -> Tensor:
    """Return the log-mel bands (F, 80) of a wave (N,) of 16-bit samples as lingvo computes them for LibriSpeech.

    A frame of zeros marks the end. Unlike in `audio.log_mel`, bands sum amplitudes and are not normalised.
    """
    if sound.ndim != 1 or len(sound) <= WINDOW:
        raise InputError(f"a wave must be (N,) with more than {WINDOW} samples; got {tuple(sound.shape)}")
    windows = sound.double().unfold(0, WINDOW + 1, STEP)
    sharpened = windows[:, 1:] - EMPHASIS * windows[:, :-1]
    amplitudes = torch.fft.rfft(sharpened * torch.hann_window(WINDOW, dtype=torch.float64), POINTS).abs()
    bands = (amplitudes @ _filters().T).clamp(min=LEAST).log()
    return torch.cat([bands, bands.new_zeros(1, BANDS)]).float()


@functools.cache
def _filters() -> Tensor:
    """Return the filters (80, P) over the spectrum: triangles on the mel scale, without the constant."""
    frequencies = torch.linspace(0, RATE / 2, POINTS // 2 + 1, dtype=torch.float64)
    mels = (frequencies / 700).log1p()
    lowest, highest = torch.tensor([LOWEST, HIGHEST], dtype=torch.float64).div(700).log1p().tolist()
    corners = torch.linspace(lowest, highest, BANDS + 2, dtype=torch.float64)
    width = corners[1] - corners[0]
    filters = (1 - (mels - corners[1:-1, None]).abs() / width).clamp(min=0)
    filters[:, 0] = 0
    return filters


def _file() -> Path:
    folder = paths.data_folder()
    if folder is None or not (folder / FILE).is_file():
        raise MissingData(f"recordings of LibriSpeech are not at hand: this {WANTED}, as README.md says")
    return folder / FILE


@functools.cache
def _places(file: Path) -> dict[str, int]:
    """Return the place of every transcript's first recording in the test sets."""
    said, subsets = _stored(file, "transcripts", "subset")
    places: dict[str, int] = {}
    for place, (text, subset) in enumerate(zip(said, subsets, strict=True)):
        if str(subset).startswith("test"):
            places.setdefault(str(text).lower(), place)
    return places


@functools.cache
def _flac(file: Path) -> tuple[NDArray[Any], ...]:
    return _stored(file, "flac", "offsets")


def _stored(file: Path, *names: str) -> tuple[NDArray[Any], ...]:
    try:
        with np.load(file) as stored:
            return tuple(stored[name] for name in names)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise StorageError(f"{FILE} cannot be read: make it again, as README.md says") from error
