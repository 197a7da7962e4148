"""A Flower federation's clients are audited round by round, in Flower's own simulation."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gradleak.book import PATIENCE
from gradleak.leak import Leak, observe

# Two clients, three rounds, digits: run apart, for the simulation has workers and warnings of its own.
FEDERATION = """
import json, sys, warnings
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional as F
from gradleak import data
from gradleak.auditing.flower import AuditedStrategy

RATE, SIZE = 0.1, 3
digits = data.load("digits", "train")

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()

def private(partition, rounds):
    start = 100 * partition + SIZE * rounds
    return digits.images[start : start + SIZE].double(), digits.labels[start : start + SIZE]

class Client(NumPyClient):
    def __init__(self, partition):
        self.partition = partition
    def fit(self, parameters, config):
        model = network()
        model.load_state_dict({n: torch.as_tensor(a) for n, a in zip(model.state_dict(), parameters)})
        inputs, targets = private(self.partition, config["round"])
        F.cross_entropy(model(inputs), targets).backward()
        torch.optim.SGD(model.parameters(), lr=RATE).step()
        return [v.numpy() for v in model.state_dict().values()], SIZE, {"partition": self.partition}

def client(context):
    return Client(int(context.node_config["partition-id"])).to_client()

found = []
class Told(AuditedStrategy):
    def aggregate_fit(self, server_round, results, failures):
        partitions = {one.cid: int(answer.metrics["partition"]) for one, answer in results}
        self.truth = lambda cid, number: dict(zip(("inputs", "targets"), private(partitions[cid], number)))
        out = super().aggregate_fit(server_round, results, failures)
        for report in self.reports[server_round].values():
            found.append([server_round, report.worst("labels"), report.worst("inputs")])
        return out

def server(context):
    start = ndarrays_to_parameters([v.numpy() for v in network().state_dict().values()])
    inside = FedAvg(
        initial_parameters=start, fraction_evaluate=0.0, min_fit_clients=2, min_available_clients=2,
        on_fit_config_fn=lambda number: {"round": number},
    )
    strategy = Told(inside, network(), rate=RATE, batch_size=SIZE, input_shape=(1, 8, 8), steps=2, minutes=60)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=3))

run_simulation(ServerApp(server_fn=server), ClientApp(client_fn=client), num_supernodes=2,
               backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
open(sys.argv[1], "w").write(json.dumps(found))
"""


@pytest.mark.slow
# Ray starts its workers through a shell with the interpreter's path as it is; the simulation then waits for ever.
@pytest.mark.skipif(" " in sys.executable, reason="Ray cannot start an interpreter whose path holds a space")
def test_two_clients_give_their_batches_away_in_every_round(tmp_path: Path) -> None:
    (tmp_path / "federation.py").write_text(FEDERATION)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "federation.py"), str(tmp_path / "found.json")]
    # A worker that starts slowly on a busy machine is not given up.
    environment = os.environ | {"RAY_worker_niceness": "0", "RAY_worker_register_timeout_seconds": str(PATIENCE)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert [one[0] for one in found] == [1, 1, 2, 2, 3, 3]
    assert all(labels == 1 and inputs == 1 for _, labels, inputs in found)


def test_what_reaches_an_audit_is_the_gradient_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    flower = pytest.importorskip("gradleak.auditing.flower", reason="flwr is not installed: gradleak[flower]")
    from flwr.common import ndarrays_to_parameters

    torch.manual_seed(0)
    # The state of batch norm holds a whole number.
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)).double().eval()
    inputs, targets = torch.rand(3, 6).double(), torch.tensor([0, 3, 1])
    clean = observe(model, inputs, targets)
    client = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in client.named_parameters():
            parameter.sub_(0.1 * clean.gradients[name])
    before, after = (
        ndarrays_to_parameters([value.numpy() for value in own.state_dict().values()]) for own in (model, client)
    )
    audited: list[Leak] = []
    monkeypatch.setattr(flower, "audit_update", lambda leak, **_: audited.append(leak))
    inside = SimpleNamespace(configure_fit=lambda *_: [], aggregate_fit=lambda *_: (None, {}))
    strategy = flower.AuditedStrategy(inside, model, rate=0.1, batch_size=3, input_shape=(6,))
    strategy.configure_fit(1, before, None)
    strategy.aggregate_fit(1, [(SimpleNamespace(cid="a"), SimpleNamespace(parameters=after))], [])
    (leak,) = audited
    assert (leak.batch_size, leak.head) == (3, "3")
    torch.testing.assert_close(leak.gradients, clean.gradients, rtol=1e-9, atol=1e-13)
