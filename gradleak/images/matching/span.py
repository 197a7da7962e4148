"""Search for a batch among the inputs that the first layer's gradient spans.

The gradient of a first Linear layer, with that of its bias as a last column, is R = Σ_b δ_b (x_b, 1)ᵀ / B. So every
sample, with a 1 behind it, is a combination of the rows of R (dimitrov2024, kariyappa2023): B samples of D numbers have
only B (B − 1) unknowns. Second order finds these from random starts.

The span survives noise: the B largest singular values of R stand out, their right singular vectors average over all
units, and the rest of R shows how large the noise is. So the error of each sample is known, and images are smoothed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad
from torch.nn import functional as F

from gradleak.answers import Answer
from gradleak.arguments import checked_arguments
from gradleak.augment import as_probabilities
from gradleak.calling import called, watched
from gradleak.cases import DOUBLE, Attack, Case
from gradleak.devices import entries_at_once, in_chunks
from gradleak.errors import InputError, check_count
from gradleak.images.inversion import chain
from gradleak.images.inversion.again import TINY
from gradleak.images.inversion.fully_connected import FINEST
from gradleak.images.inversion.one_sample import smoothed
from gradleak.images.inversion.units import FirstLayer, first_layer
from gradleak.images.matching.levenberg import LevenbergMarquardt, Residuals, levenberg
from gradleak.images.matching.optimizers import Track
from gradleak.leak import Gradients, Leak, naming, only_logits, running

# Larger batches have too many unknowns.
MOST = 8
RESTARTS, STEPS = 16, 100
# The weights of the first layer's gradient of weights, one after the other: with a small one fewer searches get stuck.
SHARES = (0.1, 1.0)
# Starts whose misfits differ by at most this share end at the same gradient.
SAME = 1e-3
# Memory (bytes) of the Jacobians on a CPU.
CPU_MEMORY = 600 * 2**20


@dataclass(frozen=True)
class Spanned:
    """The samples in the span of a first layer's gradient whose own gradient comes closest.

    Attributes:
        inputs: The samples (B, …) in float64.
        deviations: The standard deviation that the noise alone gives each sample's values (B,), before smoothing.
        noise: The estimated standard deviation of the gradient's entries.
        misfits: The distance from the gradient at which each start ended (R,).
        in_front: What changes the network's inputs before the first layer, "" if nothing is known to do so.
    """

    inputs: Tensor
    deviations: Tensor
    noise: float
    misfits: Tensor
    in_front: str

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch."""
        same = int((self.misfits <= (1 + SAME) * self.misfits.min()).sum())
        reason = f"{same} of {len(self.misfits)} random starts end at the closest gradient: nothing certifies it"
        return (Answer("searched", reason, inputs=self.inputs, in_front=self.in_front),)


@checked_arguments()
def match_span(
    leak: Leak,
    labels: Tensor,
    *,
    restarts: int = RESTARTS,
    steps: int = STEPS,
    seed: int = 0,
    box: tuple[float, float] | None = None,
) -> Spanned:
    """Search for a batch of a few samples within the span of the first layer's gradient.

    Args:
        leak: The gradient of a network whose first layer is Linear, or a convolution with one position, with a bias.
        labels: The classes (B,) or soft labels (B, C) of the samples.
        restarts: The number R of random starts.
        steps: The largest number of Jacobians for each start.
        seed: The seed of the starts.
        box: The range of pixels, if the inputs are images. Images behind noise are then smoothed.

    Examples:
        >>> from gradleak import observe
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.Sigmoid(), torch.nn.Linear(16, 5)).double()
        >>> inputs, labels = torch.randn(2, 9, dtype=torch.float64), torch.tensor([0, 3])
        >>> found = match_span(observe(model, inputs, labels), labels)
        >>> torch.cdist(inputs, found.inputs).amin(dim=1) < 1e-6
        tensor([True, True])
    """
    check_count("restarts", restarts)
    check_count("steps", steps)
    if reason := _unfit(leak):
        raise InputError(f"a batch is looked for in the span of a first layer's gradient: {reason}")
    if len(labels) != leak.batch_size:
        raise InputError(f"labels must have one entry per sample, {leak.batch_size}; got {len(labels)}")
    weight = leak.weight
    probabilities = as_probabilities(labels, len(weight), dtype=torch.float64, device=weight.device)
    span = _Span(leak, probabilities, box)
    unknown = leak.batch_size * (leak.batch_size - 1)
    starts = torch.randn(restarts, unknown, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    starts = starts.to(weight.device)
    bytes_each = 2 * DOUBLE * unknown * (span.first.numel() + len(span.others) + 3 * unknown)
    at_once = max(1, entries_at_once(weight.device, CPU_MEMORY, bytes_each=1) // bytes_each)

    def run(chosen: slice) -> Track:
        places = starts[chosen]
        owners = torch.zeros(len(places), dtype=torch.long, device=weight.device)
        for share in SHARES:
            span.weights[:-1] = share
            track = Track.start(places, steps)
            with naming(f"the search cannot run and differentiate {type(leak.model).__name__}"):
                levenberg(LevenbergMarquardt(steps), span, places, owners, track)
            places = track.best
        return track

    tracks = list(in_chunks(restarts, at_once, run))
    misfits = torch.cat([track.losses for track in tracks])
    best = torch.cat([track.best for track in tracks])[misfits.argmin()]
    inputs, deviations = span.read(best)
    if box is not None and inputs.ndim == 4:
        pairs = zip(inputs.split(1), deviations.tolist(), strict=True)
        inputs = torch.cat([smoothed(image, deviation, *box) for image, deviation in pairs])
    return Spanned(inputs, deviations, span.noise, misfits, span.layer.unlike or chain.in_front(leak))


class _Span(Residuals):
    """The residuals of a batch's gradient as a function of the samples' places t (B, B − 1) within the span.

    The network runs from the first layer's outputs on, which are linear in t. Gradients of other Linear layers have
    rank B as well, and only their products with the B largest singular vectors of what was sent are compared.

    Attributes:
        layer: The first layer.
        noise: The estimated standard deviation of the gradient's entries.
        first: The gradient of the first layer, as products with the singular vectors.
        others: The gradients of all other parameters, as the residuals compare them.
        weights: The weight of each product; that of the last one, which holds the bias, is 1.
    """

    def __init__(self, leak: Leak, labels: Tensor, box: tuple[float, float] | None) -> None:
        super().__init__(leak)
        name, _ = first_layer(leak)
        self.layer, self.labels, size = FirstLayer(leak, name, FINEST), labels, leak.batch_size
        rows = torch.cat([self.layer.weight, self.layer.bias[:, None]], dim=1)
        _, values, right = torch.linalg.svd(rows, full_matrices=False)
        self.values, vectors = values[:size].clamp(min=TINY), right[:size]
        free = max(1, math.prod(side - size for side in rows.shape))
        self.noise = math.sqrt(float(values[size:].square().sum()) / free)
        # Turn the vectors so that only the last one has an entry for the bias. A sample is then (t, 1) times `scales`
        # times the vectors, and its own entry for the bias is 1 for all t.
        ones = vectors[:, -1]
        turn = torch.linalg.svd(ones[:, None])[0].T
        self.turned = turn.roll(-1, dims=0)
        self.turned[-1] *= (self.turned[-1] @ ones).sign()
        length = 1 / float(ones.norm().clamp(min=TINY))
        self.scales = ones.new_full((size,), self._spread(length, box))
        self.scales[-1] = length
        self.spanned = (self.scales[:, None] * (self.turned @ vectors))[:, :-1]
        weight, bias = (f"{name}.{kind}".lstrip(".") for kind in ("weight", "bias"))
        self.outputs = self.spanned @ self.parameters.pop(weight).flatten(1).T
        self.outputs[-1] += self.parameters.pop(bias)
        observed = {own: leak.gradients[own].double() for own in self.parameters}
        self.sides = {own: _sides(value, size) for own, value in observed.items()}
        self.weights = torch.ones_like(self.scales)
        self.first, self.others = rows @ (self.turned @ vectors).T, self._read(observed)
        self.rounding = torch.finfo(leak.weight.dtype).eps * float(self.first.norm())
        self.blank = leak.weight.new_zeros(size, *(leak.input_shape or self.layer.factor.shape)).double()
        with watched(leak.model) as odd, running(leak.model, self.blank.shape):
            leak.model(self.blank.to(leak.weight, copy=True))
        if odd:
            raise InputError(f"the gradient is not matched: {odd[0]}")
        self._given: list[Tensor] = []
        self.model.get_submodule(name).register_forward_hook(lambda *seen: self._given[-1].reshape(seen[-1].shape))

    def _spread(self, origin: float, box: tuple[float, float] | None) -> float:
        """Return the standard deviation of t for inputs that are uniform in the box, or have a variance of 1."""
        center, variance = (0.0, 1.0) if box is None else (sum(box) / 2, (box[1] - box[0]) ** 2 / 12)
        factor, shift = self.layer.factor, self.layer.shift
        length = 1 + ((factor * center + shift).square() + variance * factor.square()).sum()
        return math.sqrt(max(1.0, float(length) - origin**2) / (len(self.values) - 1))

    def _read(self, gradients: Gradients) -> Tensor:
        """Return the entries of gradients that are compared."""
        parts = []
        for name, value in gradients.items():
            sides = self.sides[name]
            compared = [value] if sides is None else [sides[0] @ value, value @ sides[1]]
            parts += [one.flatten() for one in compared]
        return torch.cat(parts) if parts else self.values.new_zeros(0)

    def _placed(self, place: Tensor) -> Tensor:
        """Return (t, 1) of every sample (B, B)."""
        size = len(self.values)
        return F.pad(place.reshape(size, size - 1), (0, 1), value=1.0)

    def one(self, place: Tensor, *_: Any) -> Tensor:
        """Return the residual (R,) of one attack at its place (B (B − 1),)."""
        placed = self._placed(place)

        def loss(outputs: Tensor, parameters: Gradients) -> Tensor:
            self._given.append(outputs)
            logits: Tensor = only_logits(called(self.model, parameters, (self.blank.clone(),)))
            self._given.clear()
            return -(self.labels * logits.log_softmax(dim=1)).sum(dim=1).mean()

        errors, others = grad(loss, argnums=(0, 1))(placed @ self.outputs, self.parameters)
        first = (errors.T @ placed * self.scales - self.first) * self.weights
        return torch.cat([first.flatten(), self._read(others) - self.others])

    def read(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples (B, …) of a place as the network's inputs, and their standard deviations (B,)."""
        placed = self._placed(place)
        shares = (placed * self.scales @ self.turned / self.values).norm(dim=1)
        return self.layer.network_inputs(placed @ self.spanned), self.noise * shares / self.layer.factor.abs().mean()


def _sides(gradient: Tensor, size: int) -> tuple[Tensor, Tensor] | None:
    """Return the first singular vectors (size, O) and (I, size) of a matrix (O, I), None if it has not more than these.

    The gradient of a Linear layer for so many samples is determined by its products with them.
    """
    if gradient.ndim != 2 or min(gradient.shape) <= size:
        return None
    left, _, right = torch.linalg.svd(gradient, full_matrices=False)
    return left[:, :size].T, right[:size].T


def _unfit(leak: Leak) -> str:
    """Return why a batch is not looked for in the span, "" if it is."""
    name, reason = first_layer(leak)
    if reason:
        return reason
    if leak.local_steps > 1:
        return f"the update is the sum of {leak.local_steps} gradients"
    if not 2 <= leak.batch_size <= MOST:
        return f"it is tried for 2 to {MOST} samples, and a batch has {leak.batch_size}"
    weight = leak.model.get_submodule(name).get_parameter("weight")
    if leak.batch_size > min(len(weight), weight[0].numel()):
        return f"the gradient of '{name}' has no more than {min(len(weight), weight[0].numel())} singular values"
    return ""


def _why_not(case: Case) -> str:
    if case.subject.kind == "tokens":
        return "tokens cannot be moved by small steps"
    return case.no_label or _unfit(case.leak)


def _attack(case: Case) -> Answer:
    return match_span(case.rescaled(), case.labels(), seed=case.seed, box=case.box).answers[0]


ATTACK = Attack(
    "matching in the first layer's span",
    page="units",
    finds=("inputs",),
    needs=f"all gradients, labels from another attack, 2 to {MOST} samples, and a first Linear layer with a bias",
    refused=_why_not,
    run=_attack,
    remedy="a first layer without a bias; larger batches; noise",
    memory=lambda case: CPU_MEMORY + 6 * DOUBLE * case.subject.parameters,
    searches=True,
)
