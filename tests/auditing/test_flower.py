"""A Flower federation's clients are audited in every round, before the wrapped strategy averages their weights."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

flower = pytest.importorskip("gradleak.auditing.flower", reason="flwr is not installed: gradleak[flower]")
RATE, SIZE, CLIENTS = 0.1, 3, ("a", "b")


def private(client: str, round_: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * round_ + CLIENTS.index(client))
    return {
        "inputs": torch.rand(SIZE, 20, generator=generator, dtype=torch.float64),
        "targets": torch.randperm(10, generator=generator)[:SIZE],
    }


def message(model: nn.Module) -> Any:
    from flwr.common import ndarrays_to_parameters

    return ndarrays_to_parameters([value.numpy() for value in model.state_dict().values()])


def answered(model: nn.Module, client: str, round_: int) -> Any:
    """Return the message of a client that has taken one step."""
    from flwr.common import Code, FitRes, Status

    own, batch = copy.deepcopy(model), private(client, round_)
    F.cross_entropy(own(batch["inputs"]), batch["targets"]).backward()
    torch.optim.SGD(own.parameters(), lr=RATE).step()
    return SimpleNamespace(cid=client), FitRes(Status(Code.OK, ""), message(own), SIZE, {})


def test_two_clients_give_their_batches_away_in_every_round() -> None:
    from flwr.common import parameters_to_ndarrays
    from flwr.server.strategy import FedAvg

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    # A state may hold whole numbers, as that of a batch norm does.
    model.register_buffer("rounds", torch.tensor(0))
    strategy = flower.AuditedStrategy(
        FedAvg(), model, rate=RATE, batch_size=SIZE, input_shape=(20,), truth=private, steps=2, minutes=60
    )
    manager = SimpleNamespace(num_available=lambda: 2, sample=lambda **_: [])
    for round_ in (1, 2):
        strategy.configure_fit(round_, message(model), manager)
        averaged, _ = strategy.aggregate_fit(round_, [answered(model, client, round_) for client in CLIENTS], [])
        state = zip(model.state_dict(), parameters_to_ndarrays(averaged), strict=True)
        model.load_state_dict({name: torch.as_tensor(array) for name, array in state})
        assert strategy.reports[round_].keys() == set(CLIENTS)
        assert all(
            report.worst("labels") == report.worst("inputs") == 1 for report in strategy.reports[round_].values()
        )
