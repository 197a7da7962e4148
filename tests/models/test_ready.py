"""Networks that others trained: what they take in, and what is said where they are not at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradleak import data, models
from gradleak.errors import MissingData, UnknownName
from gradleak.models import ready
from gradleak.models.resnet import CifarResNet


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CifarResNet:
    torch.manual_seed(0)
    network = CifarResNet(3, 10, 3, bias=True).eval()
    state = {key.replace("head.", "linear."): value for key, value in network.state_dict().items()}
    torch.save(state, tmp_path / "cifar10_resnet20.pt")
    monkeypatch.setenv("GRADLEAK_WEIGHTS", str(tmp_path))
    return network


def test_a_network_sees_the_statistics_that_it_was_trained_with(weights: CifarResNet) -> None:
    images = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (ready.MEAN, ready.STD))
    model = models.pretrained("cifar10-resnet20")
    assert not model.training
    torch.testing.assert_close(model(data.normalise(images)), weights((images - mean) / std), rtol=1e-4, atol=1e-4)


def test_what_is_not_at_hand_is_said(weights: CifarResNet) -> None:
    with pytest.raises(MissingData, match=r"cifar10_resnet56\.pt is not at hand: put it into a folder"):
        models.pretrained("cifar10-resnet56")
    with pytest.raises(UnknownName, match="did you mean 'cifar10-resnet20'"):
        models.pretrained("cifar10-resnet2")
