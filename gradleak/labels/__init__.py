"""From gradients to labels."""

from gradleak.labels.batch_soft import BatchLabels, recover_batch
from gradleak.labels.counting import METHODS, Knowledge, count_heads, count_labels, reveal_labels
from gradleak.labels.dlg import dlg
from gradleak.labels.idlg import idlg
from gradleak.labels.priors import PRIORS, Prior, Score
from gradleak.labels.scalar import (
    LabelPath,
    Minima,
    find_minima,
    label_loss,
    label_path,
    nonnegative_intervals,
)
from gradleak.labels.soft import SOLVERS, SoftLabels, recover_soft_labels

__all__ = [
    "METHODS",
    "PRIORS",
    "SOLVERS",
    "BatchLabels",
    "Knowledge",
    "LabelPath",
    "Minima",
    "Prior",
    "Score",
    "SoftLabels",
    "count_heads",
    "count_labels",
    "dlg",
    "find_minima",
    "idlg",
    "label_loss",
    "label_path",
    "nonnegative_intervals",
    "recover_batch",
    "recover_soft_labels",
    "reveal_labels",
]
