"""The study of audits: what it finds on its smallest networks, that no certificate lies, and what it refuses."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from gradleak.defenses import average
from gradleak.errors import MissingData
from gradleak.leak import observe
from gradleak.runs.records import Record
from gradleak.studies.shared.federation import RATE, Federation, digit_network
from gradleak.studies.wang2024 import audit

STUDY = "audit"
CHOSEN = {"model": ["lenet"], "defenses": ["none", "prune/0.9"], "batch_sizes": [1, 3], "steps": 2, "rounds": [3]}
# Golden rows hold these as well.
MORE = {"noises": [1.0]}


def test_the_worst_is_what_an_audit_reports(record: Record) -> None:
    assert not record.frame()["deceived"].fillna(False).astype(bool).any()
    worst = audit.worst(record).set_index(["batch_size", "defense"])
    assert worst.loc[(1, "none"), "image-psnr"] > 60
    assert worst.loc[(1, "prune/0.9"), "image-psnr"] < 20
    assert worst.loc[(3, "none"), "features_found"] == 1
    assert worst.loc[(3, "prune/0.9"), "cosine"] < 0.99


def test_a_federation_is_gradient_descent_on_the_mean_of_its_clients() -> None:
    federation = Federation(3, torch.float64, 0, "cpu")
    before = {name: value.clone() for name, value in federation.model.state_dict().items()}
    sent = federation.round()
    mean = average([update.leak.gradients for update in sent])
    for name, value in federation.model.state_dict().items():
        torch.testing.assert_close(value, before[name] - RATE * mean[name])
    clean = observe(digit_network(0).double(), sent[0].inputs, sent[0].targets).gradients
    torch.testing.assert_close(sent[0].leak.gradients, clean, rtol=1e-9, atol=1e-12)


def test_dp_sgd_s_rows_are_those_of_opacus() -> None:
    if find_spec("opacus") is None:
        with pytest.raises(MissingData, match=r"pip install gradleak\[opacus\]"):
            next(audit.AuditedPrivateClients(noise=0.0, batch_size=2, draws=1, seed=0, device="cpu").run())
        return
    (row,) = audit.AuditedPrivateClients(noise=1.0, batch_size=2, draws=1, seed=0, device="cpu").run()
    assert 0 < row["epsilon"] < 1
    assert row["features_found"] == 0
