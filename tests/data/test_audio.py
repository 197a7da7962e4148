"""Waves as log-mel bands, synthesised sentences, and recorded digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.data import audio
from gradleak.errors import InputError, MissingData

speaking = pytest.mark.skipif(not audio.can_speak(), reason="espeak-ng is not installed")


def test_a_tone_is_loudest_in_its_own_band() -> None:
    rate = 16_000
    time = torch.arange(rate) / rate
    for tone in (200, 1000, 4000):
        bands = audio.log_mel(torch.sin(2 * torch.pi * tone * time), rate)
        place = round(tone / (rate / audio.POINTS))
        assert int(bands.mean(dim=0).argmax()) == int(audio.mel_filters(rate)[:, place].argmax())
        assert bands.mean().abs() < 1e-5
        torch.testing.assert_close(bands.std(), torch.tensor(1.0))


@speaking
def test_a_voice_says_the_same_again_and_another_says_it_otherwise() -> None:
    one = audio.synthesised("good night")
    assert torch.equal(one, audio.synthesised("good night"))
    assert len(audio.synthesised("good night", rate=90)) > len(one)
    other = audio.synthesised("good night", pitch=90)
    assert not torch.equal(one, other)
    with pytest.raises(InputError, match="does not speak with voice 'nobody'"):
        audio.synthesised("good night", voice="nobody")


def test_digits_are_those_of_one_speaker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRADLEAK_DATA", raising=False)
    with pytest.raises(MissingData, match=r"spoken_digits\.npz is not at hand"):
        audio.spoken_digits("one", 0)
    rate, length = 8000, 800
    time = np.arange(length) / rate
    # Speaker b is an octave above a; "two" is higher than "one"; each says each twice.
    clips = [(person, digit, take) for person in "ab" for digit in (0, 1) for take in (0, 1)]
    tones = [300.0 * (1 + (person == "b")) * (1 + digit / 2) for person, digit, _ in clips]
    np.savez(
        tmp_path / audio.DIGITS,
        audio=np.concatenate([(9000 * np.sin(2 * np.pi * tone * time)).astype(np.int16) for tone in tones]),
        offsets=np.arange(len(clips) + 1) * length,
        labels=np.array([digit for _, digit, _ in clips]),
        speakers=np.array([person for person, _, _ in clips]),
        transcripts=np.array(["one", "two"]),
        sample_rate=np.array(rate),
    )
    monkeypatch.setenv("GRADLEAK_DATA", str(tmp_path))
    both = audio.spoken_digits("one two one", 1)
    assert len(both) == 1 + (3 * length - audio.POINTS) // 80
    wave = np.concatenate([np.sin(2 * np.pi * tone * time) for tone in (600.0, 900.0, 600.0)])
    wanted = audio.log_mel(torch.from_numpy((9000 * wave).astype(np.int16) / 32768.0), rate)
    torch.testing.assert_close(both, wanted)
    with pytest.raises(InputError, match="'three' is no digit"):
        audio.spoken_digits("three", 0)
