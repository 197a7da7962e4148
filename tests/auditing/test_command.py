"""`gradleak audit`: models, batches and updates by name; every mistake one clear line, and no file unpickled."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from gradleak import data
from gradleak.auditing import Report, loading
from gradleak.auditing.measuring import pixels_of
from gradleak.errors import GradleakError
from tests.auditing.made_up import brought
from tests.test_cli import call

WORDS = ["audit", "brought:make", "--data", "brought:batches", "--steps", "3"]


def reported() -> Report:
    return Report.from_json(Path("report/report.json").read_text())


def test_a_model_of_one_s_own_is_audited(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--batch-size", "1,2"]
    code, out, err = call(capsys, *words, "--defense", "none,clip/1", "--fail-above", "labels=0.5")
    assert code == 1
    assert "labels = 1 is above 0.5" in err
    assert "B = 2 of C = 8" in out
    assert "index.html" in out
    found = reported()
    assert found.worst("inputs", defense="clip/1") == 1
    assert call(capsys, *words, "--fail-above", "labels=1")[0] == 0
    again = reported()
    whole = [one for one in found.findings if one.defense == "none"]
    assert again.findings == [one.model_copy(update={"stops": again.findings[n].stops}) for n, one in enumerate(whole)]


def test_two_files_of_weights_are_a_client_s_update(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (inputs, targets) = loading.model_of("brought:make"), brought.batches()
    monkeypatch.setattr(brought, "own", lambda: (inputs[:2], targets[:2]), raising=False)
    save_file(model.state_dict(), "a.safetensors")
    F.cross_entropy(model(inputs[:2]), targets[:2]).backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    save_file(model.state_dict(), "b.safetensors")
    torch.save(model.state_dict(), "b.pt")
    words = ["audit", "brought:make", "--before", "a.safetensors", "--rate", "0.05", "--batch-size", "2"]
    for after in ("b.safetensors", "b.pt"):
        assert call(capsys, *words, "--after", after, "--shape", "20", "--steps", "3")[0] == 0
        assert not reported().measured
        assert any("of classes 0, 1" in one.sentence for one in reported().findings)
    known = ["--data", "brought:own", "--steps", "3"]
    assert call(capsys, *words, "--after", "b.pt", *known)[0] == 0
    assert reported().worst("inputs") == reported().worst("labels") == 1
    assert call(capsys, *words, "--after", "b.pt", *known, "--epochs", "2")[0] == 0
    assert reported().settings["local steps"] == "2"
    for given, message in {
        ("--after", "b.pt", "--data", "brought:batches"): "it has 12, and --batch-size is 2",
        ("--after", "b.pt", *known, "--epochs", "2", "--local-steps", "3"): "are 2 local steps",
        ("--after", "b.pt", "--data", "brought:batches", "--local-steps", "2"): "there are 12, and the client took",
        ("--after", "b.pt", "--epochs", "2", "--shape", "20"): "--epochs needs the client's samples",
        ("--after", "b.pt"): "--shape 3,32,32",
        ("--after", "a.safetensors", *known): "the update is zero",
    }.items():
        code, _, err = call(capsys, *words, *given)
        assert (code, message in err) == (2, True), err


def test_a_single_output_without_a_dimension_is_audited(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = brought.batches()[0]
    binary = nn.Sequential(nn.Linear(20, 1), nn.Sigmoid(), nn.Flatten(0)).double()
    monkeypatch.setattr(brought, "binary", lambda: binary, raising=False)
    monkeypatch.setattr(brought, "both", lambda: (inputs, torch.arange(12) % 2), raising=False)
    for labels in ("onehot", "smoothing/0.1", "mixup"):
        words = ["audit", "brought:binary", "--data", "brought:both", "--steps", "3", "--labels", labels]
        assert call(capsys, *words, "--batch-size", "1")[0] == 0
        assert reported().worst("inputs") == 1


def test_a_table_is_audited_column_by_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ["age,job,member,income"] + [
        f"{30 + 3 * n},{'ab'[n % 2]},{n % 3 == 0},{['low', 'high'][n // 4]}" for n in range(8)
    ]
    Path("people.csv").write_text("\n".join(rows))
    monkeypatch.setattr(
        brought, "tabular", lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), raising=False
    )
    words = [
        "audit",
        "brought:tabular",
        "--data",
        "people.csv",
        "--target",
        "income",
        "--batch-size",
        "1",
        "--steps",
        "3",
    ]
    assert call(capsys, *words)[0] == 0
    (best,) = [one for one in reported().findings if one.measures.get("inputs") == 1 and one.certificate == "exact"][:1]
    assert list(best.columns) == ["age", "member", "job=a", "job=b"]
    assert max(best.columns.values()) < 1e-3
    assert best.columns["age"] > 0, "an error in years"
    assert "job=b" in Path("report/index.html").read_text("utf-8")
    samples = loading.samples_of("people.csv", target="income")
    assert samples.targets.tolist() == [1] * 4 + [0] * 4
    torch.testing.assert_close(samples.inputs.mean(dim=0)[:2], torch.zeros(2), atol=1e-6, rtol=0)
    assert samples.columns is not None
    assert samples.columns.unit.tolist() == pytest.approx([6.87386, 0.484123, 1, 1], rel=1e-4)
    Path("numbers.csv").write_text("a,b\n1,x\n2,y\n")
    assert loading.samples_of("numbers.csv", target="b").inputs.tolist() == [[-1], [1]]
    Path("gaps.csv").write_text("a,b\n1,x\n,y\n")
    Path("prices.csv").write_text("a,b\n1,2.5\n2,3.0\n")
    Path("people.parquet").write_bytes(b"nothing")
    for given, message in {
        ("people.csv",): "--target names the column with the class; 'people.csv' has age, job, member, income",
        ("people.csv", "--target", "incme"): "there is no column 'incme'",
        ("gaps.csv", "--target", "b"): "has missing values in a",
        ("prices.csv", "--target", "b"): "'b' holds numbers, not classes",
        ("people.parquet", "--target", "b"): "cannot be read as a table",
    }.items():
        code, _, err = call(capsys, "audit", "brought:tabular", "--data", *given)
        assert (code, message in err, err.count("\n")) == (2, True, 1), err


def test_a_folder_of_images_and_an_archive_are_samples() -> None:
    for label, name in enumerate(("cats", "dogs")):
        Path("pets", name).mkdir(parents=True)
        for n in range(2):
            Image.fromarray(np.full((20, 30, 3), 40 * label + n, dtype=np.uint8)).save(f"pets/{name}/{n}.png")
    Path("pets/again").symlink_to(".")
    found = loading.samples_of("pets", size=16)
    assert tuple(found.inputs.shape) == (4, 3, 16, 16)
    assert found.targets.tolist() == [0, 0, 1, 1]
    assert float(pixels_of(found.inputs, found.pixels)(found.inputs)[3, 0, 0, 0]) == pytest.approx(41 / 255, abs=1e-6)
    np.savez("own.npz", inputs=np.ones((3, 20)), targets=np.arange(3))
    assert loading.samples_of("own.npz").targets.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["photos", "digits"])
def test_images_are_shown_and_measured_as_they_were_before_they_were_normalised(name: str) -> None:
    found = loading.samples_of(name)
    shown = pixels_of(found.inputs, found.pixels)(found.inputs)
    torch.testing.assert_close(shown.float(), data.load(name, "test").images)


def failing() -> None:
    raise OSError("first\nsecond")


def untrained() -> nn.Module:
    model = brought.make()
    nn.init.constant_(model[0].weight, float("nan"))
    return model


MODELS: dict[str, object] = {
    "one": lambda: 1,
    "failing": failing,
    "ends": lambda: sys.exit(0),
    "untrained": untrained,
}
UPDATE = ["audit", "brought:make", "--before", "a.pt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit", "lenett", "--data", "photos"], "did you mean 'lenet'"),
        (["audit", "nowhere:make", "--data", "photos"], "there is no module 'nowhere'"),
        (["audit", "own:maek", "--data", "photos"], "unknown name in own.py 'maek': did you mean 'make'?"),
        (["audit", "own:make", "--data", "gone.csv"], "there is no file 'gone.csv'"),
        (["audit", "a:b:c", "--data", "photos"], "must be written module:name"),
        (["audit", "brought:one", "--data", "photos"], "gives int, not an nn.Module"),
        (["audit", "brought:failing", "--data", "photos"], "OSError: first"),
        (["audit", "brought:ends", *WORDS[2:]], "'brought:ends()' failed: SystemExit: 0"),
        (["audit", "brought:untrained", *WORDS[2:]], "'0.weight' holds NaN or infinite values"),
        (["audit", "brought:make"], "needs private samples"),
        (["audit", "brought:make", "--data", "photos"], "does not take inputs of shape (3, 32, 32)"),
        (["audit", "brought:make", "--data", "no\nthing"], "unknown dataset 'no thing'"),
        (["audit", "brought:make", "--data", "gone.npz"], "there is no file 'gone.npz'"),
        ([*WORDS, "--batch-size", "one"], "--batch-size takes whole numbers"),
        ([*WORDS, "--labels", "smoothing/x"], "with a number, such as smoothing/0.1"),
        ([*WORDS, "--loss", "mse"], "a loss is cross-entropy"),
        ([*WORDS, "--fail-above", "lables=1"], "did you mean 'labels'"),
        (UPDATE, "--before and --after go together"),
        ([*UPDATE, "--after", "b.pt", "--batch-size", "1"], "no file 'a.pt'"),
    ],
)
def test_a_mistake_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    for name, made in MODELS.items():
        monkeypatch.setattr(brought, name, made, raising=False)
    Path("own.py").write_text("import sys\n\n\ndef make():\n    sys.exit('a mistake is found before this runs')\n")
    code, _, err = call(capsys, *words)
    assert code == 2
    assert err.startswith("gradleak: ")
    assert message in err
    assert err.count("\n") == 1
    assert not Path("report/report.json").exists()


class Bomb:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Path("ran").write_text, ("it ran",))


@pytest.mark.parametrize(
    "read", [lambda: loading.state_of(Path("a.pt")), lambda: loading.state_of(Path("b.pt")),
             lambda: loading.samples_of("c.npz")],
)  # fmt: skip
def test_no_file_is_unpickled(read: Callable[[], object]) -> None:
    Path("a.pt").write_bytes(pickle.dumps({"w": Bomb()}))
    torch.save({"w": Bomb()}, "b.pt")
    np.savez("c.npz", inputs=np.array([Bomb()], dtype=object), targets=np.arange(1))
    with pytest.raises(GradleakError, match="cannot be read"):
        read()
    assert not Path("ran").exists()
