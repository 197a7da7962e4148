"""The study of audits: what it finds on its smallest networks, that no certificate lies, and what it refuses."""

from __future__ import annotations

from gradleak.runs.records import Record
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


def test_dp_sgd_s_rows_are_those_of_opacus() -> None:
    (row,) = audit.AuditedPrivateClients(noise=1.0, batch_size=2, draws=1, seed=0, device="cpu").run()
    assert 0 < row["epsilon"] < 1
    assert row["features_found"] == 0
