"""Speech that is none: spectra made up letter by letter, the same for the same text."""

from __future__ import annotations

import functools
import hashlib

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.errors import InputError

BANDS = 80
LETTER = 7  # frames of 10 ms that a letter lasts, about


def pseudo_speech(text: str) -> Tensor:
    """Return made-up log-spectra (F, 80) of a text: a fixed pattern a letter, its length and loudness drawn.

    They mean nothing, and stand in where no speech is at hand: deterministic, of a length like that of speech, unlike
    for unlike texts, alike for letters that are.
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
