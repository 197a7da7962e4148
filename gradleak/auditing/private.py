"""Describe the private samples of an audit: their kind, their range, their display as images, and their batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak import leak
from gradleak.auditing.measuring import Columns, Pixels, Scale, Truth, columns_of, pixels_of
from gradleak.augment import as_probabilities
from gradleak.cases import Kind, Subject
from gradleak.errors import InputError
from gradleak.leak import Leak, Mode
from gradleak.losses import PADDING, up_to_last


@dataclass(frozen=True)
class Private:
    """Private samples and their targets.

    Attributes:
        inputs: (N, …).
        targets: Classes (N,), soft labels (N, C), or tokens (N, T).
        kind: The kind of the inputs.
        sequence: Whether there is a target at every position of a sequence.
        shown: For images, the map to the range [0, 1].
        box: For images, the range of their values.
        columns: For several vectors, their columns.
    """

    inputs: Tensor
    targets: Tensor
    kind: Kind
    sequence: bool
    shown: Pixels | None
    box: tuple[float, float] | None
    columns: Columns | None = None

    def drawn(self, size: int, seed: int) -> Private:
        """Return a random batch of `size` samples."""
        order = torch.randperm(len(self.inputs), generator=torch.Generator().manual_seed(seed + size))[:size]
        return replace(self, inputs=self.inputs[order], targets=self.targets[order])

    def truth(self, seen: Leak, subject: Subject, mode: Mode) -> Truth:
        """Return the truth with which answers to the leak of these samples, in the client's mode, are compared."""
        if self.sequence:
            return Truth(self.inputs, self.targets, None, self.kind, read=self._read(seen))
        labels = as_probabilities(self.targets, subject.classes, dtype=torch.float64, device=self.inputs.device)
        head, whole, features = seen.head or None, len(self.inputs), None
        if not seen.averaged:
            features, _ = leak.head_inputs(seen.model, self.inputs, head=head, chunk=whole, mode=mode)
        read = self._read(seen) if self.kind == "tokens" else None
        return Truth(self.inputs, labels, features, self.kind, self.shown, self.columns, read)

    def _read(self, seen: Leak) -> Tensor:
        """Return the positions (B, T) of the tokens that the network reads before its last target.

        A causal network reads no token behind its last target, or behind the position of its logits.
        """
        visible = self.inputs >= 0
        if not leak.is_causal(seen.model, self.inputs[:1], seen.head):
            return visible
        if self.sequence:
            return visible & up_to_last(self.targets)
        places = leak.places_of(seen.model, self.inputs, seen.head)
        assert places is not None, "observe has found the logits among the last layer's outputs"
        return visible & (torch.arange(visible.shape[1], device=places.device) <= places[:, None])

    @property
    def marks(self) -> tuple[int, int] | None:
        """The start and end marks, if all of several sentences have the same."""
        if not self.sequence or len(self.inputs) == 1:
            return None
        starts = {int(row[row >= 0][0]) for row in self.inputs if bool((row >= 0).any())}
        ends = {int(row[row != PADDING][-1]) for row in self.targets if bool((row != PADDING).any())}
        return (starts.pop(), ends.pop()) if len(starts) == 1 and len(ends) == 1 else None


def private(inputs: Tensor, targets: Tensor, pixels: Scale | None, columns: Columns | None = None) -> Private:
    """Return samples with their kind; `pixels` is (low, span) of images, if known, and `columns` those of a table."""
    kind = kind_of(inputs)
    sequence = kind == "tokens" and targets.ndim == 2 and not targets.is_floating_point()
    shown, box = (pixels_of(inputs, pixels), _range(inputs)) if kind == "images" else (None, None)
    # The columns of equal samples have no range.
    ranged = kind == "vectors" and bool((inputs != inputs[:1]).any())
    columns = (columns or columns_of(inputs)) if ranged else None
    return Private(inputs, targets, kind, sequence, shown, box, columns)


def kind_of(inputs: Tensor) -> Kind:
    """Return the kind of inputs (N, …)."""
    if not inputs.is_floating_point():
        if inputs.ndim != 2 or inputs.dtype == torch.bool:
            got = f"{tuple(inputs.shape)} of {inputs.dtype}"
            raise InputError(f"whole numbers must be tokens (B, T), and images floating point; got {got}")
        return "tokens"
    return "images" if inputs.ndim == 4 and inputs.shape[1] in (1, 3) else "vectors"


def _range(inputs: Tensor) -> tuple[float, float]:
    """Return the range of inputs, rounded outwards to a tenth of its width, as an attacker may know it."""
    low, high = float(inputs.min()), float(inputs.max())
    step = max(high - low, 1e-9) / 10
    return step * math.floor(low / step), step * math.ceil(high / step)
