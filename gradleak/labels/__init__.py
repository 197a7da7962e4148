"""Recover labels from gradients."""

from gradleak.answers import Expected
from gradleak.cases import Standins
from gradleak.labels.hard.attacks import METHODS, count_heads, count_labels, reveal_labels
from gradleak.labels.hard.expected import expected_share, standins_of
from gradleak.labels.hard.idlg import idlg
from gradleak.labels.hard.knowledge import Knowledge
from gradleak.labels.priors import PRIORS, Score
from gradleak.labels.priors import LabelPrior as Prior
from gradleak.labels.soft.batch.jointly import recover_jointly
from gradleak.labels.soft.batch.recover import BatchLabels, recover_batch
from gradleak.labels.soft.path import LabelPath, Minima, find_minima, label_loss, label_path, nonnegative_intervals
from gradleak.labels.soft.single import SOLVERS, SoftLabels, recover_soft_labels

__all__ = [
    "METHODS",
    "PRIORS",
    "SOLVERS",
    "BatchLabels",
    "Expected",
    "Knowledge",
    "LabelPath",
    "Minima",
    "Prior",
    "Score",
    "SoftLabels",
    "Standins",
    "count_heads",
    "count_labels",
    "expected_share",
    "find_minima",
    "idlg",
    "label_loss",
    "label_path",
    "nonnegative_intervals",
    "recover_batch",
    "recover_jointly",
    "recover_soft_labels",
    "reveal_labels",
    "standins_of",
]
