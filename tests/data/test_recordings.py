"""Recorded utterances: found by their transcripts, heard as lingvo hears them, and refused with a reason."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from gradleak.data import recordings, text
from gradleak.errors import InputError, MissingData, StorageError

TIME = np.arange(8000) / recordings.RATE


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of data and texts with three recordings: two of the test sets, and one for training."""
    said, subsets = ["TONE", "HIGHER", "TRAINED"], ["test-clean", "test-other", "train-clean-100"]
    files = []
    for number in range(len(said)):
        stream = io.BytesIO()
        sound = (9000 * np.sin(2 * np.pi * 500 * (1 + number) * TIME)).astype(np.int16)
        soundfile.write(stream, sound, recordings.RATE, format="FLAC")
        files.append(np.frombuffer(stream.getvalue(), dtype=np.uint8))
    np.savez(
        tmp_path / recordings.FILE,
        flac=np.concatenate(files),
        offsets=np.cumsum([0, *map(len, files)]),
        transcripts=np.array(said),
        subset=np.array(subsets),
    )
    (tmp_path / text.TRANSCRIPTS).write_text("1-1 HIGHER\n1-2 OTHER\n")
    (tmp_path / text.PIECES).write_text("<unk>\n<s>\n</s>\n▁\n")
    monkeypatch.setenv("GRADLEAK_DATA", str(tmp_path))
    monkeypatch.setenv("GRADLEAK_TEXT", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_recording_of_a_text_is_loudest_in_the_band_of_its_tone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text.texts(text.RECORDED, "test") == ("tone", "higher")
    bands = {said: recordings.recorded(said) for said in text.texts(text.RECORDED, "test")}
    # Windows that fit, and the end.
    assert {len(one) for one in bands.values()} == {1 + (len(TIME) - 1 - recordings.WINDOW) // recordings.STEP + 1}
    assert not any(one[-1].any() for one in bands.values())
    loudest = [int(one[:-1].mean(dim=0).argmax()) for one in bands.values()]
    mels = [np.log1p(hertz / 700) for hertz in (125, 500, 1000, 7600)]
    wanted = [round(81 * (one - mels[0]) / (mels[3] - mels[0])) - 1 for one in mels[1:3]]
    assert loudest == pytest.approx(wanted, abs=1)
    with pytest.raises(InputError, match="no recording of 'trained'"):
        recordings.recorded("trained")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingData, match=r"pip install 'gradleak\[speech\]'"):
        recordings.recorded("tone")


def test_silence_is_zero_and_too_short_a_wave_is_refused() -> None:
    assert not recordings.lingvo_frames(torch.zeros(1000, dtype=torch.int16)).any()
    with pytest.raises(InputError, match="more than 400 samples"):
        recordings.lingvo_frames(torch.zeros(400))


def test_a_missing_and_a_damaged_file_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {state.name: state for state in text.states()}
    assert (states[text.RECORDED].state, states[text.RECORDED].images) == ("file", 2)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("GRADLEAK_DATA", str(elsewhere))
    assert {state.name: state.state for state in text.states()}[text.RECORDED] == "missing"
    with pytest.raises(MissingData, match=r"librispeech_short\.npz in \$GRADLEAK_DATA, made from openslr"):
        text.texts(text.RECORDED)
    (elsewhere / recordings.FILE).write_bytes(b"PK")
    assert {state.name: state.state for state in text.states()}[text.RECORDED] == "damaged"
    with pytest.raises(StorageError, match="cannot be read"):
        recordings.recorded("tone")
