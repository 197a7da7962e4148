"""Recover images from gradients."""

from gradleak.images.cocktail import certify_features, unmix_features
from gradleak.images.gradinversion.attack import restore_batches
from gradleak.images.gradinversion.learned import project_batches, restore_denoised
from gradleak.images.gradinversion.settings import GradInversion
from gradleak.images.gradinversion.statistics import observe_statistics
from gradleak.images.inversion.convolutional import invert_convolutional, trace_convolutional
from gradleak.images.inversion.fully_connected import (
    Inversion,
    LayerReport,
    invert_fully_connected,
    trace_fully_connected,
)
from gradleak.images.inversion.spear import Spear, spear
from gradleak.images.inversion.transformer import invert_transformer, trace_transformer
from gradleak.images.inversion.units import Units, bias_attack, invert_units
from gradleak.images.matching.engine import Reconstruction, match
from gradleak.images.matching.levenberg import LevenbergMarquardt, Polished, polished
from gradleak.images.matching.objective import Distance, total_variation
from gradleak.images.matching.objective import ImagePrior as Prior
from gradleak.images.matching.optimizers import LBFGS, Adam
from gradleak.images.matching.span import Spanned, match_span
from gradleak.images.peeling.attack import Count, Peeled, peel
from gradleak.images.peeling.attack import counts as peeling_counts

__all__ = [
    "LBFGS",
    "Adam",
    "Count",
    "Distance",
    "GradInversion",
    "Inversion",
    "LayerReport",
    "LevenbergMarquardt",
    "Peeled",
    "Polished",
    "Prior",
    "Reconstruction",
    "Spanned",
    "Spear",
    "Units",
    "bias_attack",
    "certify_features",
    "invert_convolutional",
    "invert_fully_connected",
    "invert_transformer",
    "invert_units",
    "match",
    "match_span",
    "observe_statistics",
    "peel",
    "peeling_counts",
    "polished",
    "project_batches",
    "restore_batches",
    "restore_denoised",
    "spear",
    "total_variation",
    "trace_convolutional",
    "trace_fully_connected",
    "trace_transformer",
    "unmix_features",
]
