"""Make artificial spectra that stand in for speech, letter by letter and deterministically."""

from __future__ import annotations

import functools
import hashlib

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.errors import InputError

BANDS = 80
LETTER = 7  # average number of frames of 10 ms for each letter


def pseudo_speech(text: str) -> Tensor:
    """Return artificial log-spectra (F, 80) of a text, for use where no speech is available.

    Each letter has a fixed random pattern, repeated for a random number of frames, with random noise on every frame.
    The spectra are not audible speech but are about as long. Equal texts have equal spectra, and equal letters similar
    spectra.
    """
    if not text:
        raise InputError("an empty text makes no sound")
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.stack([_pattern(letter) for letter in text])
    lasting = torch.randint(LETTER - 2, LETTER + 3, (len(text),), generator=generator)
    frames = patterns.repeat_interleave(lasting, dim=0)
    frames = F.avg_pool1d(frames.T.unsqueeze(0), 3, stride=1, padding=1, count_include_pad=False)[0].T
    return frames + 0.3 * torch.randn(frames.shape, generator=generator)


@functools.cache
def _pattern(letter: str) -> Tensor:
    return torch.randn(BANDS, generator=torch.Generator().manual_seed(ord(letter)))
