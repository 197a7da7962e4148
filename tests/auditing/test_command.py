"""`gradleak audit`: models, batches and updates by name; every mistake one clear line, and no file unpickled."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

from gradleak import data
from gradleak.auditing import Report, loading
from gradleak.auditing.measuring import pixels_of
from gradleak.errors import GradleakError
from tests.test_cli import call

MODULE = """
import torch
from torch import nn
def make():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8)).double()
def batches():
    return torch.randn(12, 20, generator=torch.Generator().manual_seed(0)).double(), torch.arange(12) % 8
def one(): return 1
def failing(): raise OSError("first\\nsecond")
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brought.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "brought", raising=False)


def test_a_model_of_one_s_own_is_audited(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [
        "audit",
        "brought:make",
        "--data",
        "brought:batches",
        "--batch-size",
        "1,2",
        "--out",
        "here/report",
        "--steps",
        "3",
    ]
    code, out, err = call(capsys, *words, "--defense", "none,clip/1", "--fail-above", "labels=0.5")
    assert code == 1
    assert "labels = 1 is above 0.5" in err
    assert "B = 2 of C = 8" in out
    assert "index.html" in out
    found = Report.from_json((tmp_path / "here/report/report.json").read_text())
    assert found.worst("inputs", defense="clip/1") == 1
    assert call(capsys, *words, "--fail-above", "labels=1")[0] == 0
    again = Report.from_json((tmp_path / "here/report/report.json").read_text())
    whole = [one for one in found.findings if one.defense == "none"]
    assert again.findings == [one.model_copy(update={"stops": again.findings[n].stops}) for n, one in enumerate(whole)]


def test_two_safetensors_files_are_a_client_s_update(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model, (inputs, targets) = (
        loading.model_of("brought:make"),
        loading._called("", loading._named("brought:batches")),
    )
    save_file(model.state_dict(), "a.safetensors")
    F.cross_entropy(model(inputs[:2]), targets[:2]).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.05 * parameter.grad
    save_file(model.state_dict(), "b.safetensors")
    words = ["audit", "brought:make", "--before", "a.safetensors", "--after", "b.safetensors", "--rate", "0.05"]
    words += ["--batch-size", "2", "--out", "report", "--steps", "3"]
    assert call(capsys, *words, "--shape", "20")[0] == 0
    blind = Report.from_json(Path("report/report.json").read_text())
    assert not blind.measured
    assert any("of classes 0, 1" in one.sentence for one in blind.findings)
    assert call(capsys, *words, "--data", "brought:batches")[0] == 0
    assert Report.from_json(Path("report/report.json").read_text()).worst("inputs") == 1
    torch.save(model.state_dict(), "b.pt")
    words[words.index("b.safetensors")] = "b.pt"
    assert call(capsys, *words, "--shape", "20")[0] == 0


def test_a_folder_of_images_and_an_archive_are_samples(tmp_path: Path) -> None:
    for label, name in enumerate(("cats", "dogs")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for n in range(2):
            pixels = np.full((20, 30, 3), 40 * label + n, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{n}.png")
    found = loading.samples_of("pets", size=16)
    assert tuple(found.inputs.shape) == (4, 3, 16, 16)
    assert found.targets.tolist() == [0, 0, 1, 1]
    shown = pixels_of(found.inputs, found.pixels)(found.inputs)
    assert float(shown[3, 0, 0, 0]) == pytest.approx(41 / 255, abs=1e-6)
    np.savez("own.npz", inputs=np.ones((3, 20)), targets=np.arange(3))
    assert loading.samples_of("own.npz").targets.tolist() == [0, 1, 2]


@pytest.mark.parametrize("levels", [[0, 257, 32896, 65535], [1, 2, 3, 4]])
def test_sixteen_bits_of_grey_are_scaled(tmp_path: Path, levels: list[int]) -> None:
    (tmp_path / "scans").mkdir()
    for place, level in enumerate(levels):
        Image.fromarray(np.full((8, 8), level, dtype=np.uint16)).save(tmp_path / "scans" / f"{place}.png")
    found = loading.samples_of("scans", size=8)
    shown = pixels_of(found.inputs, found.pixels)(found.inputs)
    expected = torch.tensor(levels).double().div(257).round().div(255)
    torch.testing.assert_close(shown[:, :, 3, 3], expected[:, None].expand(-1, 3), atol=1e-6, rtol=0)


def test_a_palette_with_transparent_colours_is_an_image(tmp_path: Path) -> None:
    (tmp_path / "icons").mkdir()
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 255, 0, 51])
    image.save(tmp_path / "icons" / "one.png", transparency=bytes([128, 255]))
    found = loading.samples_of("icons", size=8)
    shown = pixels_of(found.inputs, found.pixels)(found.inputs)
    torch.testing.assert_close(shown[0, :, 3, 3], torch.tensor([1.0, 0.0, 0.2]).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["photos", "digits"])
def test_images_are_shown_and_measured_as_they_were_before_they_were_normalised(name: str) -> None:
    found = loading.samples_of(name)
    shown = pixels_of(found.inputs, found.pixels)(found.inputs)
    torch.testing.assert_close(shown.float(), data.load(name, "test").images)


WORDS = ["audit", "brought:make", "--data", "brought:batches"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["audit", "lenett", "--data", "photos"], "did you mean 'lenet'"),
        (["audit", "nowhere:make", "--data", "photos"], "ModuleNotFoundError"),
        (["audit", "brought:gone", "--data", "photos"], "AttributeError"),
        (["audit", "brought:one", "--data", "photos"], "gives int, not an nn.Module"),
        (["audit", "brought:NUMBER", "--data", "photos"], "neither a model nor a function"),
        (["audit", "brought:failing", "--data", "photos"], "OSError: first"),
        (["audit", "a b:c", "--data", "photos"], "must be written module:name"),
        (["audit", "brought:make"], "needs private samples"),
        (["audit", "brought:make", "--data", "photos"], "does not take inputs of shape (3, 32, 32)"),
        (["audit", "brought:make", "--data", "nothing"], "unknown dataset 'nothing'"),
        (["audit", "brought:make", "--data", "brought:one"], "must return two tensors"),
        (["audit", "brought:make", "--data", "empty"], "no image in the folder"),
        (["audit", "brought:make", "--data", "brought.py"], "neither a folder of images nor an .npz"),
        (["audit", "brought:make", "--data", "gone.npz"], "there is no file 'gone.npz'"),
        ([*WORDS, "--batch-size", "one"], "--batch-size takes whole numbers"),
        ([*WORDS, "--labels", "soft"], "labels are onehot"),
        ([*WORDS, "--labels", "smoothing/x"], "with a number, such as smoothing/0.1"),
        ([*WORDS, "--loss", "mse"], "a loss is cross-entropy"),
        ([*WORDS, "--fail-above", "labels"], "--fail-above takes MEASURE=LIMIT"),
        ([*WORDS, "--fail-above", "lables=1"], "did you mean 'labels'"),
        (["audit", "brought:make", "--before", "a.pt"], "--before and --after go together"),
        (["audit", "brought:make", "--before", "a.pt", "--after", "b.pt"], "has one batch size, which is public"),
        (["audit", "brought:make", "--before", "a.pt", "--after", "b.pt", "--batch-size", "1"], "no file 'a.pt'"),
    ],
)
def test_a_mistake_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], told: str
) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = call(capsys, *words)
    assert code == 2
    assert err.startswith("gradleak: ")
    assert told in err
    assert err.count("\n") == 1


def test_a_search_ends_with_the_minutes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # All steps would take hours.
    words = ["audit", "resnet20", "--data", "photos", "--batch-size", "2", "--steps", "100000", "--minutes", "0.1"]
    assert call(capsys, *words)[0] == 0
    found = Report.from_json((tmp_path / "report/report.json").read_text())
    told = [one.attack for one in found.findings if one.cut] + [
        one.attack for one in found.not_tried if "time" in one.why
    ]
    assert "gradient matching" in told


class Bomb:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Path("ran").write_text, ("it ran",))


def test_no_file_is_unpickled(tmp_path: Path) -> None:
    Path("a.pt").write_bytes(pickle.dumps({"w": Bomb()}))
    torch.save({"w": Bomb()}, "b.pt")
    np.savez("c.npz", inputs=np.array([Bomb()], dtype=object), targets=np.arange(1))
    for name in ("a.pt", "b.pt"):
        with pytest.raises(GradleakError, match="cannot be read as weights"):
            loading.state_of(Path(name))
    with pytest.raises(GradleakError, match="cannot be read"):
        loading.samples_of("c.npz")
    assert not Path("ran").exists()
