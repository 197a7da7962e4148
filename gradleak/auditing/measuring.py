"""Compare the answers of attacks with the private batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak import metrics
from gradleak.answers import Answer
from gradleak.auditing.findings import finite
from gradleak.cases import Case, Kind
from gradleak.errors import InputError
from gradleak.losses import PADDING

# The largest relative error of an exact vector or feature.
EXACT_SHARE = 0.01
# By how much (dB) a recognisable input must be better than a guess.
BETTER = 1.0
# A colour image of at least 32 pixels a side is also recognisable by its SSIM: from the median SSIM of CIFAR-10 images
# with white noise of 20 dB on, if it exceeds that of the flat image by the second value. Of smaller images, and of
# strokes on a black ground, the mean of a dataset or another image of the same class comes as near.
RECOGNISABLE_SSIM, BETTER_SSIM, LEAST_SIDE = 0.7, 0.1, 32
TINY = 1e-300
# The value that replaces an infinite error.
ENDLESS = 1e30
# (low, span) of a network's images.
Scale = tuple[Tensor, Tensor] | tuple[float, float]


@dataclass(frozen=True)
class Pixels:
    """The map from a network's inputs to images in [0, 1]: (inputs − low) / span for every channel."""

    low: Tensor
    span: Tensor
    note: str = ""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return inputs (N, C, H, W) as images."""
        return (inputs.double() - self.low.to(inputs.device)) / self.span.to(inputs.device)


def pixels_of(inputs: Tensor, given: Scale | None) -> Pixels:
    """Return the map to images: `given` (low, span), the identity for inputs in [0, 1], else by the inputs' range."""
    ones = torch.ones(inputs.shape[1], 1, 1, dtype=torch.float64)
    if given is not None:
        low, span = (torch.as_tensor(side).double().reshape(-1, 1, 1) for side in given)
        if not (span > 0).all():
            raise InputError("pixels are given as (low, span), with every span above 0")
        return Pixels(low * ones, span * ones)
    if float(inputs.min()) >= 0 and float(inputs.max()) <= 1:
        return Pixels(0 * ones, ones)
    low = inputs.double().amin(dim=(0, 2, 3)).reshape(-1, 1, 1)
    span = (inputs.double().amax(dim=(0, 2, 3)).reshape(-1, 1, 1) - low).clamp(min=1e-9)
    return Pixels(low, span, "inputs do not lie in [0, 1]: images are shown and measured in the range of all")


@dataclass(frozen=True)
class Columns:
    """The columns of vectors.

    Attributes:
        names: Their names, empty for vectors that are no table.
        mean: The mean of each column over all samples (D,).
        span: The range of each column, 1 where it is constant (D,).
        unit: The size of 1 in the table's own units (D,).
    """

    names: tuple[str, ...]
    mean: Tensor
    span: Tensor
    unit: Tensor


def columns_of(inputs: Tensor, names: tuple[str, ...] = (), unit: Tensor | None = None) -> Columns:
    """Return the columns of samples (N, …)."""
    rows = inputs.flatten(1).double()
    span = rows.amax(dim=0) - rows.amin(dim=0)
    return Columns(
        names, rows.mean(dim=0), span.where(span > 0, 1), torch.ones_like(span) if unit is None else unit.to(span)
    )


@dataclass(frozen=True)
class Truth:
    """The private batch.

    Attributes:
        inputs: (B, …).
        targets: Labels (B, C), or the tokens at every position (B, T).
        features: The last layer's inputs (B, I); None for sequences.
        kind: The kind of the inputs.
        pixels: The map to images.
        columns: The columns of vectors, None for a single private sample, whose columns have no range.
        read: The positions (B, T) of the tokens that the network reads before its last target; None for other inputs.
    """

    inputs: Tensor
    targets: Tensor
    features: Tensor | None
    kind: Kind
    pixels: Pixels | None = None
    columns: Columns | None = None
    read: Tensor | None = None

    def measured(self, found: Answer) -> dict[str, float]:
        """Return the measures of an answer, by their names."""
        measures: dict[str, float] = {}
        if found.labels is not None and found.labels.shape == self.targets.shape:
            measures["labels"] = _labels(found.labels, self.targets)
        if found.counts is not None:
            measures["labels"] = float(torch.minimum(found.counts.cpu(), self.counts()).sum() / len(self.targets))
        if found.classes is not None:
            measures["classes"] = jaccard(found.classes, set(self.counts().nonzero()[:, 0].tolist()))
        if found.features is not None and self.features is not None and found.features.shape == self.features.shape:
            measures["features"] = _near(found.features, self.features)
        if found.inputs is not None:
            measures |= self._inputs(found.inputs)
        if found.words is not None:
            measures["words"] = jaccard(
                found.words, {word for word in self.targets.unique().tolist() if word != PADDING}
            )
        if found.tokens is not None:
            measures["words"] = jaccard(found.tokens, {token for text in self.texts() for token in text})
        if found.sentences is not None:
            measures["sentences"] = max(_sentences(found.sentences, own) for own in self.sentences())
        return {name: finite(value) for name, value in measures.items()}

    def chance(self, case: Case) -> dict[str, float]:
        """Return the share of labels that a guess of counts as even as possible has on average."""
        if case.subject.sequence:
            return {}
        samples, classes = self.targets.shape
        whole, left = divmod(samples, classes)
        few, many = (int(self.counts().clamp(max=most).sum()) for most in (whole, whole + 1))
        return {"labels": (few + (many - few) * left / classes) / samples}

    def counts(self) -> Tensor:
        """Return how often each class occurs (C,)."""
        return torch.bincount(self.targets.argmax(dim=1).cpu(), minlength=self.targets.shape[1])

    def texts(self) -> list[list[int]]:
        """Return the tokens that the network reads of each text."""
        read = self.inputs >= 0 if self.read is None else self.read
        return [row[own].tolist() for row, own in zip(self.inputs, read, strict=True)]

    def sentences(self) -> list[list[list[int]]]:
        """Return the sentences without their marks, and with them; a classifier's are the texts that it reads."""
        if self.targets.is_floating_point():
            return [self.texts()]
        targets = [row[row != PADDING].tolist() for row in self.targets]
        return [
            [row[:-1] for row in targets],
            [[*text, *row[-1:]] for text, row in zip(self.texts(), targets, strict=True)],
        ]

    def by_column(self, found: Answer) -> dict[str, float]:
        """Return the mean error of each column of a table, in the column's own unit; empty without a table."""
        if found.inputs is None or self.columns is None or not self.columns.names:
            return {}
        errors = (self.paired(found.inputs) - self.inputs.double()).abs().nanmean(dim=0) * self.columns.unit
        values = errors.nan_to_num(nan=math.inf).tolist()
        return {name: finite(value, ENDLESS) for name, value in zip(self.columns.names, values, strict=True)}

    def paired(self, recovered: Tensor) -> Tensor:
        """Return for each private input (B, …) the recovered one that matches it best, NaN where none is left."""
        rows = recovered.reshape(-1, *self.inputs.shape[1:]).to(self.inputs.device).double()
        missing = rows.new_full((max(0, len(self.inputs) - len(rows)), *rows.shape[1:]), math.nan)
        rows = torch.cat([rows, missing])
        return rows[metrics.match_batch(_bounded(rows.to(self.inputs)), self.inputs)]

    def _inputs(self, recovered: Tensor) -> dict[str, float]:
        if recovered.numel() % max(1, self.inputs[0].numel()):
            return {}
        inputs = self.paired(recovered)
        if not bool(inputs.isfinite().any()):
            return {"inputs": 0.0, "recognisable": 0.0}
        if self.kind != "images" or self.pixels is None:
            return self._vectors(inputs.flatten(1), self.inputs.flatten(1).double())
        # Pixel ranges are rounded, so private pixels may lie slightly outside [0, 1].
        found, truth = self.pixels(inputs), self.pixels(self.inputs).clamp(0, 1)
        flat = truth.mean(dim=(2, 3), keepdim=True) + 0 * truth
        db, guess = metrics.psnr(found, truth), metrics.psnr(flat, truth)
        measures = {"image-psnr": float(db.max()), "image-gain": float((db - guess).max())}
        similar = torch.zeros_like(db, dtype=torch.bool)
        if min(truth.shape[-2:]) >= metrics.SSIM_WINDOW:
            ssim = metrics.ssim(found, truth)
            measures["image-ssim"] = float(ssim.max())
        if truth.shape[1] == 3 and min(truth.shape[-2:]) >= LEAST_SIDE:
            similar = (ssim >= RECOGNISABLE_SSIM) & (ssim >= metrics.ssim(flat, truth) + BETTER_SSIM)
            distances = metrics.lpips(found, truth).values
            measures |= {} if distances is None else {"lpips": float(distances.min())}
        return _grades(db, db >= metrics.EXACT, guess, similar) | measures

    def _vectors(self, inputs: Tensor, truth: Tensor) -> dict[str, float]:
        """Return the measures of vectors; the ranges of their columns correspond to the range of pixels."""
        missed = (inputs - truth).norm(dim=1) / truth.norm(dim=1).clamp(min=TINY)
        if self.columns is None:
            return _grades(
                -20 * missed.clamp(min=TINY).log10(), missed <= EXACT_SHARE, torch.full_like(missed, -math.inf)
            )
        db, guess = (
            -10 * ((rows - truth) / self.columns.span).square().mean(dim=1).clamp(min=TINY).log10()
            for rows in (inputs, self.columns.mean)
        )
        # Where all samples are nearly the same, a guess is nearly exact.
        return _grades(db, (missed <= EXACT_SHARE) & (db >= guess + BETTER), guess)


def _grades(db: Tensor, exact: Tensor, guess: Tensor, similar: Tensor | bool = False) -> dict[str, float]:
    """Return the share of inputs that are exact, and of those at least recognisable: by their dB, or `similar`."""
    recognisable = similar | (db >= metrics.RECOGNISABLE) & (db >= guess + BETTER)
    return {"inputs": float(exact.double().mean()), "recognisable": float((exact | recognisable).double().mean())}


def _labels(found: Tensor, truth: Tensor) -> float:
    """Return the share of labels found within 0.001 (L1 distance), in the best order."""
    found = found.to(truth.device).double()
    order = metrics.match_batch(_bounded(found), truth.double())
    return metrics.label_accuracy(found[order], truth.double())


def _near(found: Tensor, truth: Tensor) -> float:
    """Return the share of rows found with a relative error of at most 1 %, in the best order."""
    found = found.to(truth.device).double()
    found = found[metrics.match_batch(_bounded(found), truth.double())]
    errors = (found - truth.double()).norm(dim=1) / truth.double().norm(dim=1).clamp(min=TINY)
    return float((errors <= EXACT_SHARE).double().mean())


def _bounded(found: Tensor) -> Tensor:
    """Return values with NaN, which matches nothing, instead of values whose squares overflow."""
    return found.where(found.abs() <= torch.finfo(found.dtype).max ** 0.25, math.nan)


def jaccard(found: set[int], truth: set[int]) -> float:
    """Return the size of the intersection divided by the size of the union; NaN for two empty sets."""
    return len(found & truth) / len(found | truth) if found | truth else math.nan


def _sentences(found: list[list[int]], truth: list[list[int]]) -> float:
    missing = list(truth)
    for sentence in found:
        if sentence in missing:
            missing.remove(sentence)
    return 1 - len(missing) / max(1, len(truth))
