"""Compute log-mel bands of real speech: synthesised by espeak-ng if installed, or recorded digits from a file."""

from __future__ import annotations

import io
import shutil
import subprocess
import wave

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak import paths
from gradleak.data.speech import BANDS
from gradleak.errors import InputError, MissingData

SPEAKER = "espeak-ng"
DIGITS = "spoken_digits.npz"
# The length of a window and the step between windows, in seconds, and the size of the Fourier transform. A smaller
# transform would leave the lowest bands empty.
WINDOW, STEP, POINTS = 0.025, 0.01, 2048
LOWEST, HIGHEST = 20.0, 8000.0
# The amplitude below which sound counts as silence, for waves between −1 and 1.
FLOOR = 1e-6


def can_speak() -> bool:
    """Return whether the speech synthesiser espeak-ng is installed."""
    return shutil.which(SPEAKER) is not None


def synthesised(text: str, *, voice: str = "en-us", rate: int = 175, pitch: int = 50) -> Tensor:
    """Return the log-mel bands (F, 80) of a text spoken by espeak-ng, at a `rate` in words per minute."""
    if not text:
        raise InputError("an empty text makes no sound")
    if not can_speak():
        raise MissingData(f"speech is synthesised by {SPEAKER}, which is not installed: install it with your packages")
    command = [SPEAKER, "-v", voice, "-s", str(rate), "-p", str(pitch), "--stdout", "--", text]
    completed = subprocess.run(command, capture_output=True, check=False)
    if completed.returncode or not completed.stdout:
        reason = completed.stderr.decode(errors="replace").strip() or f"it ended with {completed.returncode}"
        raise InputError(f"{SPEAKER} does not speak with voice '{voice}': {reason}")
    with wave.open(io.BytesIO(completed.stdout)) as stream:
        sound = np.frombuffer(stream.readframes(stream.getnframes()), dtype="<i2")
        return log_mel(torch.from_numpy(sound / 32768.0), stream.getframerate())


def spoken_digits(text: str, take: int) -> Tensor:
    """Return the log-mel bands (F, 80) of recorded digits that one person spoke separately.

    Args:
        text: The names of the digits, separated by spaces.
        take: A number that selects the person and the recordings.
    """
    folder = paths.data_folder()
    if folder is None or not (folder / DIGITS).is_file():
        raise MissingData(f"{DIGITS} is not at hand: put it into a folder and set $GRADLEAK_DATA to it")
    with np.load(folder / DIGITS) as stored:
        names, people = stored["transcripts"].tolist(), sorted(set(stored["speakers"].tolist()))
        if unknown := [word for word in text.split() if word not in names]:
            raise InputError(f"'{unknown[0]}' is no digit; there are {', '.join(names)}")
        audio, offsets, rate = stored["audio"], stored["offsets"], int(stored["sample_rate"])
        by_speaker = stored["speakers"] == people[take % len(people)]
        sounds = []
        for position, word in enumerate(text.split()):
            clips = np.flatnonzero(by_speaker & (stored["labels"] == names.index(word)))
            clip = clips[(take // len(people) + position) % len(clips)]
            sounds.append(audio[offsets[clip] : offsets[clip + 1]])
    if not sounds:
        raise InputError("an empty text makes no sound")
    return log_mel(torch.from_numpy(np.concatenate(sounds) / 32768.0), rate)


def log_mel(sound: Tensor, rate: int) -> Tensor:
    """Return the log-mel bands (F, 80) of a wave (N,) between −1 and 1, with mean 0 and standard deviation 1."""
    window = round(WINDOW * rate)
    if sound.ndim != 1 or len(sound) < window or window > POINTS:
        raise InputError(f"a wave must be (N,) with at least {window} points at {rate} Hz; got {tuple(sound.shape)}")
    padded = F.pad(sound.double(), (0, max(0, POINTS - len(sound))))
    taper = torch.hann_window(window, dtype=torch.float64)
    spectrum = torch.stft(padded, POINTS, round(STEP * rate), window, taper, center=False, return_complex=True)
    bands = (mel_filters(rate) @ spectrum.abs().square() + FLOOR**2).log().T
    return ((bands - bands.mean()) / bands.std().clamp(min=1e-6)).float()


def mel_filters(rate: int) -> Tensor:
    """Return 80 triangular filters (80, P) over the spectrum, equally wide on the mel scale 2595 log₁₀(1 + f/700)."""
    ends = 2595 * torch.tensor([LOWEST, min(HIGHEST, rate / 2)], dtype=torch.float64).div(700).log1p() / np.log(10)
    corners = 700 * (10 ** (torch.linspace(float(ends[0]), float(ends[1]), BANDS + 2, dtype=torch.float64) / 2595) - 1)
    points = torch.linspace(0, rate / 2, POINTS // 2 + 1, dtype=torch.float64)
    rising = (points - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    falling = (corners[2:, None] - points) / (corners[2:] - corners[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)
