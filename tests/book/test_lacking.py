"""What undecided claims lack is named, and a file that provides it is checked and decides them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

from gradleak import claims, data, models, studies
from gradleak.book import lacking
from gradleak.claims.judging import differences, may_measure
from gradleak.errors import MissingData
from gradleak.models import ready, training
from gradleak.runs import runner
from gradleak.studies.shared.attacked_networks import AttackedNetwork, network
from gradleak.studies.yin2021.gradinversion import FromNetworks
from tests.recorded import lines, record_of


@pytest.mark.parametrize("wanted", lacking.WANTED, ids=lambda wanted: "-".join(map(str, wanted.setting.values())))
def test_a_command_runs_trials_that_measure_the_claims_in_the_papers_setting(wanted: lacking.Wanted) -> None:
    own = [line.claim for line in lines() if wanted.about(line)]
    study, record = studies.load(wanted.study), record_of(wanted.study)
    parameters = study.Parameters(**record.parameters | wanted.given)
    trials = [dict(inputs) for inputs in study.trials(parameters)]
    assert own
    for claim in own:
        assert any(may_measure(claim, one) and not differences(claim, [one], parameters.model_dump()) for one in trials)
    verb = "gradleak record" if wanted.added else "gradleak run --profile paper"
    assert wanted.command.startswith(f"{verb} {wanted.study} -p ")
    assert all(f"-p '{name}=" in wanted.command or f"-p {name}=" in wanted.command for name in wanted.values)


def test_every_undecided_claim_is_in_one_row_of_the_table() -> None:
    text = lacking.text(lines())
    assert f"the papers' {len(lacking.undecided(lines()))} undecided claims" in text
    assert all(wanted.command in text for wanted in lacking.WANTED)
    assert "gradleak record --undecided" in text
    assert "a time that is not known" not in text, "no trial in the queue would decide a claim"


def made_up(folder: Path, name: str, *, side: int, classes: int, count: int = 600) -> None:
    generator = np.random.default_rng(0)
    parts = {
        f"{split}_{what}": values
        for split in ("train", "test")
        for what, values in (
            ("images", generator.integers(256, size=(count, side, side, 3), dtype=np.uint8)),
            ("labels", np.arange(count) % classes),
        )
    }
    np.savez(folder / f"{name}.npz", **parts, class_names=np.array([f"class {n}" for n in range(classes)]))


def published(folder: Path, file: str) -> nn.Module:
    """Write a LeNet as wang2024's code stores one, and return it."""
    network = models.build("lenet", classes=10, bias=False, seed=4)
    (folder / file).parent.mkdir(exist_ok=True)
    state = {key.replace("head", "fc"): value for key, value in network.state_dict().items()}
    torch.save({"net": state}, folder / file)
    return network


def test_files_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_DATA", str(tmp_path))
    monkeypatch.setenv("GRADLEAK_WEIGHTS", str(tmp_path))
    assert lacking.check() == []
    made_up(tmp_path, "svhn", side=32, classes=10)
    (tmp_path / "celeba.npz").write_bytes(b"no archive")
    with torch.device("meta"):
        large = ready.untrained("efficientnet-b0-imagenet")
    state = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in large.state_dict().items()}
    torch.save(state, tmp_path / ready.file_of("efficientnet-b0-imagenet"))
    torch.save({"fc.bias": torch.zeros(3)}, tmp_path / ready.file_of("resnet50-moco"))
    published(tmp_path, "label_smooth_checkpoint/lenet.pth")
    torch.save({}, tmp_path / "label_smooth_checkpoint" / "resnet18.pth")
    states = {row["name"]: row["state"] for row in lacking.check()}
    assert states["cifar10/lenet"] == "good: 15,816 parameters"
    assert "is not the state of 'cifar10/resnet18-cifar'" in states["cifar10/resnet18-cifar"]
    assert states["svhn"] == "good: 600 and 600 images, 3×32×32, 10 classes"
    assert states["efficientnet-b0-imagenet"] == "good: 5,288,548 parameters"
    assert states["celeba"].startswith("cannot be used: celeba.npz in $GRADLEAK_DATA is damaged")
    assert states["resnet50-moco"].startswith(
        "cannot be used: resnet50_moco.pt in $GRADLEAK_WEIGHTS is not the state of"
    )


def test_the_network_of_a_papers_authors_is_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_WEIGHTS", str(tmp_path))
    own = published(tmp_path, "mixup_checkpoint/lenet.pth")
    attacked = AttackedNetwork(dataset="cifar10", network="lenet", stage="published")
    private = data.load("digits", "test")
    private = replace(private, images=functional.interpolate(private.images, 32).expand(-1, 3, -1, -1))
    found, accuracy = network(attacked, "mixup", private, 0, "cpu")
    assert accuracy == training.accuracy(own, private, "cpu")
    assert found.get_parameter("head.weight").equal(own.get_parameter("head.weight"))
    with pytest.raises(MissingData, match=r"label_smooth_checkpoint/lenet\.pth is not at hand"):
        network(attacked, "smoothing", private, 0, "cpu")
    with pytest.raises(ValueError, match="wang2024 published no trained network 'cifar10/vgg16'"):
        AttackedNetwork(dataset="cifar10", network="vgg16", stage="published")


def test_a_file_turns_a_stand_in_into_the_papers_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_DATA", str(tmp_path))
    made_up(tmp_path, "svhn", side=32, classes=10)
    study = studies.load("llg-attack")
    given = {"datasets": ["svhn"], "repeats": 2, "sizes": [8]}
    record = runner.run_study("llg-attack", studies.parameters(study, "smallest", given))
    own = [claim for claim in claims.load("llg-attack") if dict(claim.setting).get("dataset") == "svhn"]
    judged = [claims.judge(claim, record) for claim in own]
    assert [one.differs for one in judged] == [()] * 3
    assert all(one.verdict.startswith("trend") for one in judged)


def test_gradinversion_attacks_a_network_of_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_DATA", str(tmp_path))
    monkeypatch.setenv("GRADLEAK_WEIGHTS", str(tmp_path))
    made_up(tmp_path, "imagenet", side=32, classes=1000, count=1000)
    name = "resnet18-imagenet"
    torch.save(ready.untrained(name).state_dict(), tmp_path / ready.file_of(name))
    run = {"dataset": "imagenet", "size": 2, "batches": 1, "steps": 2, "seed": 0, "device": "cpu"}
    rows = pd.DataFrame(FromNetworks(networks=[name], judge=name, **run).run())
    found = rows[(rows["what"] == "image") & (rows["run"] == name)]
    assert len(found) == 2
    assert found["psnr"].between(0, 20).all()
    with pytest.raises(ValueError, match=f"'{name}' is trained on 'imagenet', but the dataset is 'cifar10'"):
        studies.parameters(studies.load("gradinversion"), "paper", {"networks": [name]})
