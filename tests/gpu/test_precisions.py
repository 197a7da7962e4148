"""A client of any precision sends from a GPU what it sends from a CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradleak import data, models
from gradleak.leak import observe
from gradleak.models.language import batch_of, build_language_model
from gradleak.precision import PRECISIONS
from tests.pretended import NAME, pretended_gpu


def _photos(device: str) -> tuple[Tensor, Tensor]:
    photos = data.load("photos", "test")
    return data.normalise(photos.images[:2]).to(device), photos.labels[:2].to(device)


def _words(device: str) -> tuple[Tensor, Tensor]:
    return batch_of([[5, 7, 9], [11, 4]], device=device)


CLIENTS: dict[str, tuple[Callable[[], nn.Module], Callable[[str], tuple[Tensor, Tensor]]]] = {
    "LeNet": (lambda: models.build("lenet", seed=1), _photos),
    "ResNet20": (lambda: models.build("resnet20", seed=1), _photos),
    "LSTM": (lambda: build_language_model("lstm", pieces=50, width=24), _words),
    "transformer": (lambda: build_language_model("transformer", pieces=50, width=24), _words),
}


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "float64"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client(client: str, precision: str) -> None:
    build, batch = CLIENTS[client]
    expected = observe(build(), *batch("cpu"), precision=precision).gradients
    with pretended_gpu():
        model = build().to(NAME)
        found = {name: one.cpu() for name, one in observe(model, *batch(NAME), precision=precision).gradients.items()}
    if client in ("LeNet", "ResNet20"):
        assert all(torch.equal(found[name], one) for name, one in expected.items())
        return
    # The CPU's recurrent layers and its attention add up in another order than single steps do.
    whole = torch.cat([one.flatten() for one in expected.values()])
    missed = torch.cat([(found[name] - one).flatten() for name, one in expected.items()])
    unit = max(PRECISIONS[precision].products, PRECISIONS[precision].convolutions)
    assert float(missed.norm() / whole.norm()) < 8 * unit
