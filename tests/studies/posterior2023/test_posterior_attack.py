"""The posterior attack's study: rows, losses, batches, scales and trained models."""

from __future__ import annotations

from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.posterior2023 import posterior_attack

STUDY = "posterior-attack"
CHOSEN = {
    "rows": posterior_attack.Attacked.listed(("photos", "lenet5", "tanh", 16), ("photos", "lenet5", "sigmoid", 16)),
    "networks": 2,
    "batches": 3,
    "auxiliary": 5,
    "told": ["lenet5"],
    "inits": ["kaiming"],
    "variants": posterior_attack.Variant.listed(("ce", 0.8, 0), ("ce", 1, 0.1), ("focal", 1.2, 0)),
    "sizes": [16, 64],
    "shares": [0.5, 0.9],
    "scales": [1, 5],
    "optimizers": ["adam"],
    "rates": [0.1],
    "learning_steps": [3],
    "learners": posterior_attack.Learner.listed(("lenet5", "torch", 0.1, 3)),
}


def test_posteriors_count_whatever_the_sign_of_features(record: Record) -> None:
    own = record.rows(posterior_attack.OfRow).set_index(["activation", "attack"])["instances"]
    assert own["tanh", "posterior"] == 1
    assert own["sigmoid", "posterior"] == 1
    assert own["tanh", "LLG"] < 0.7
    assert own["sigmoid", "LLG"] > 0.9
    assert own["tanh", "guess"] < 0.8


def test_the_attack_beats_the_guess_where_one_class_fills_the_batch(record: Record) -> None:
    frame = select(record.rows(posterior_attack.TrainedModel), series="settings")
    own = frame[(frame["share"] == 0.9)].groupby("attack")["instances"].mean()
    assert own["posterior"] > own["guess"] + 0.3
    assert frame["accuracy"].between(0, 100).all()


def test_a_model_that_learned_little_hides_no_label(record: Record) -> None:
    learned = record.rows(posterior_attack.LearningModel)
    own = learned[learned["attack"] == "posterior"]
    assert own["instances"].min() > 0.9
    assert own.set_index("size")["gain"][16] == 0
