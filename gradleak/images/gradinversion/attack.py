"""Restore batches of images from averaged gradients by GradInversion (yin2021), all batches and seeds at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from gradleak.answers import Answer
from gradleak.arguments import checked_arguments
from gradleak.augment import one_hot
from gradleak.calling import called
from gradleak.cases import Attack, Case
from gradleak.devices import Replayed
from gradleak.errors import InputError, unknown
from gradleak.images.gradinversion.consensus import pixel_mean, registered_mean
from gradleak.images.gradinversion.settings import OURS, GradInversion
from gradleak.images.gradinversion.statistics import (
    UNKNOWN,
    Statistics,
    into_norms,
    running_statistics,
    stacked,
    statistics_distance,
    statistics_of,
)
from gradleak.images.head import logits_of
from gradleak.images.matching.engine import Reconstruction, check_leaks, labels_given, memory_of, searched
from gradleak.images.matching.objective import Distance, ImagePrior, Objective, variation
from gradleak.images.matching.optimizers import Moments, Track, all_finite
from gradleak.labels.hard.gradinversion import gradinversion as lowest_rows
from gradleak.labels.soft.batch.recover import recover_batch
from gradleak.leak import Gradients, Leak, only_logits

# How labels are obtained if none are given.
MODES = ("counted", "recovered")


@dataclass(frozen=True)
class Known:
    """What the attacker knows about the samples of N batches.

    Attributes:
        labels: (N, B, C).
        errors: The errors p − y (N, B, C), zero where they were not recovered.
        features: The last layer's inputs (N, B, I), zero where they were not recovered.
        there: Whether errors and features were recovered, (N,).
    """

    labels: Tensor
    errors: Tensor
    features: Tensor
    there: Tensor


@checked_arguments()
def restore_batches(
    leaks: Leak | Sequence[Leak],
    labels: Tensor | str = "counted",
    *,
    settings: GradInversion | None = None,
    statistics: Statistics | Sequence[Statistics] | None = None,
    seeds: int = 1,
    seed: int = 0,
) -> Reconstruction:
    """Restore the batches of N leaks of one model, each from several random seeds, by GradInversion (yin2021).

    Args:
        leaks: One leak or N leaks of the same model.
        labels: Known class indices (N·B,) or soft labels (N·B, C). Or "counted": by the paper's rule. Or "recovered":
            labels, errors and features by `recover_batch`, and the paper's rule where this fails. Labels that are not
            given are sorted by class.
        settings: The objective and the optimizer. A weight of `settings.feature` requires "recovered" labels.
        statistics: The statistics of each batch, if clients send them; by default the model's running statistics.
        seeds: The number of random starts for each leak.
        seed: The seed of the random numbers.

    Returns:
        The images with the least loss among each leak's seeds; `attempts` has the images of all seeds.

    Examples:
        >>> from gradleak import observe
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 4))
        >>> leak = observe(model, torch.rand(2, 1, 4, 4), torch.tensor([0, 2]))
        >>> restored = restore_batches(leak, torch.tensor([0, 2]), settings=GradInversion(steps=2), seeds=3)
        >>> tuple(restored.images.shape), tuple(restored.attempts.shape)
        ((2, 1, 4, 4), (1, 3, 2, 1, 4, 4))
    """
    all_leaks = [leaks] if isinstance(leaks, Leak) else list(leaks)
    settings = settings or GradInversion()
    check_leaks(all_leaks, seeds, None)
    if settings.feature and not (isinstance(labels, str) and labels == "recovered"):
        raise InputError("a weight of features requires recovered features: use labels='recovered'")
    target = Target(
        all_leaks, known_of(all_leaks, labels), settings, expected_statistics(all_leaks, statistics, settings)
    )
    return restored(target, seeds, seed)


def restored(target: Target, seeds: int, seed: int) -> Reconstruction:
    """Search for the images of every batch from `seeds` random starts."""
    like, settings = next(iter(target.observed.values())), target.settings
    generator = torch.Generator().manual_seed(seed)
    places = settings.spread * torch.randn(target.count * seeds, target.size, generator=generator).to(like)

    def walk(starts: Tensor, owners: Tensor, track: Track) -> None:
        descend(settings, target, starts, owners, seeds, track, generator)

    return searched(target, walk, places, seeds, settings.steps)


def known_of(leaks: list[Leak], labels: Tensor | str) -> Known:
    """Return what is known about the samples of N batches; `labels` as in `restore_batches`."""
    first = leaks[0]
    like, size = first.weight_gradient, first.batch_size
    classes, width = first.weight.shape
    recovering = isinstance(labels, str) and labels == "recovered"
    if isinstance(labels, str):
        if labels not in MODES:
            raise unknown("kind of label", labels, MODES)
        counts = lowest_rows(torch.stack([leak.weight_gradient for leak in leaks]), size)
        labels = one_hot(counts.nonzero()[:, 1], classes)
    given_labels = labels_given(leaks, labels).clone()
    errors, features = torch.zeros_like(given_labels), like.new_zeros(len(leaks), size, width)
    recovered = torch.zeros(len(leaks), dtype=torch.bool, device=like.device)
    for n, leak in enumerate(leaks if recovering else []):
        samples = _samples(leak)
        if samples is not None:
            recovered[n] = True
            given_labels[n], errors[n], features[n] = (part.to(like) for part in samples)
    return Known(given_labels, errors, features, recovered)


def _samples(leak: Leak) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return a batch's labels, errors p − y (B, C) and features (B, I), sorted by class; None if any is missing."""
    batch = recover_batch(leak, prior="onehot")
    if batch.status == "failed" or not torch.isfinite(batch.features).all():
        return None
    predicted = logits_of(leak, batch.features).softmax(dim=1)
    order = batch.labels.argmax(dim=1).argsort()
    return batch.labels[order], (predicted - batch.labels)[order], batch.features[order]


def expected_statistics(
    leaks: list[Leak], statistics: Statistics | Sequence[Statistics] | None, settings: GradInversion
) -> Statistics | None:
    """Return the statistics that the images should have, (N, C_l) each; None if they have no weight."""
    if not settings.statistics:
        return None
    if statistics is None:
        shape = leaks[0].input_shape
        assert shape is not None
        running = running_statistics(leaks[0].model, leaks[0].weight.new_zeros(1, *shape))
        return stacked([running] * len(leaks))
    sent = [statistics] if isinstance(statistics, Statistics) else list(statistics)
    if len(sent) != len(leaks):
        raise InputError(f"statistics must have one entry per leak, {len(leaks)}; got {len(sent)}")
    return stacked(sent)


class Target(Objective):
    """GradInversion's loss for A attacks on N batches, as a function of each image's levels of resolution."""

    def __init__(self, leaks: list[Leak], known: Known, settings: GradInversion, statistics: Statistics | None) -> None:
        distance = Distance("cosine" if settings.distance == "cosine" else "l2")
        super().__init__(leaks, known.labels, None, distance, ImagePrior())
        self.watch_features()
        self.known, self.settings, self.statistics = known, settings, statistics
        height, width = self.shape[-2:]
        self.sides = [(-(-height // 2**level), -(-width // 2**level)) for level in range(settings.levels)]
        self.leading = self.shape[:-2]
        channels = torch.Size(self.leading).numel()
        self.sizes = [channels * tall * wide for tall, wide in self.sides]
        self.size = sum(self.sizes)
        self._into, _ = into_norms(self.model)
        # The consensus of the seeds of each leak (A, B, …), None before it is first computed.
        self.agreed: Tensor | None = None

    def inputs(self, places: Tensor) -> Tensor:
        """Return the images (A, B, C, H, W): the sum of all levels, enlarged to the size of the image."""
        total: Tensor | None = None
        for part, side in zip(places.split(self.sizes, dim=1), self.sides, strict=True):
            level = part.reshape(-1, *self.leading[1:], *side)
            if side != self.sides[0]:
                level = F.interpolate(level, size=self.sides[0], mode="bilinear")
            total = level if total is None else total + level
        assert total is not None
        return total.reshape(-1, *self.shape)

    def losses(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the loss (A,) at places."""
        settings, images = self.settings, self.inputs(places)
        known = (self.known.labels, self.known.errors, self.known.there.to(images))
        attack_known = [part[owners] for part in known]
        value = images.new_zeros(len(images))
        sent = grad(self._sent, has_aux=True) if settings.gradient else self._sent
        gradients, (entropy, features, seen) = vmap(sent, (None, 0, 0, 0, 0))(self.parameters, images, *attack_known)
        if settings.gradient:
            value = value + settings.gradient * self._between(gradients, owners)
        if settings.classification:
            value = value + settings.classification * entropy
        if self.statistics is not None:
            known_statistics = Statistics(*(tuple(layer[owners] for layer in part) for part in self.statistics))
            distance = statistics_distance(seen, known_statistics, relative=settings.scale == "mean")
            value = value + settings.statistics * distance
        if settings.feature:
            expected = self.known.features[owners]
            misfit = (features - expected).square().sum(dim=2) / expected.square().sum(dim=2).clamp(min=1e-12)
            value = value + settings.feature * self.known.there[owners] * misfit.mean(dim=1)
        if self.agreed is not None:
            apart = torch.linalg.vector_norm((images - self.agreed).flatten(1), dim=1)
            value = value + settings.consistency * apart
        return value + self._fidelity(images)

    def _fidelity(self, images: Tensor) -> Tensor:
        """Return α_tv R_TV + α_ℓ2 R_ℓ2 (A,)."""
        settings = self.settings
        if settings.scale == "mean":
            square = images.square().flatten(1).mean(dim=1)
            return settings.variation * variation(images) + settings.square * square
        variations = [torch.linalg.vector_norm(images.diff(dim=axis).flatten(1), dim=1) for axis in (-1, -2)]
        square = torch.linalg.vector_norm(images.flatten(1), dim=1)
        value: Tensor = settings.variation * (variations[0] + variations[1]) + settings.square * square
        return value

    def _sent(
        self, parameters: Gradients, inputs: Tensor, labels: Tensor, errors: Tensor, there: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Statistics]]:
        """Return a scalar whose gradient is the client's, and the cross-entropy, features and statistics.

        Known errors p − y replace those of the dummy inputs, which are mere rounding errors where p is almost y.
        """
        self._seen.clear()
        self._into.clear()
        logits = only_logits(called(self.model, parameters, (inputs,)))
        entropy = -(labels * F.log_softmax(logits, dim=1)).sum(dim=1).mean()
        slope = (errors * logits).sum(dim=1).mean() if self.settings.feature else entropy
        mixed = there * slope + (1 - there) * entropy
        return mixed, (entropy, self._seen.pop(), statistics_of([seen for _, seen in self._into]))

    def _between(self, own: Gradients, owners: Tensor) -> Tensor:
        observed = {name: value[owners] for name, value in self.observed.items()}
        if self.settings.distance != "norms":
            return self.distance.between(own, observed, self.head)
        return torch.stack(
            [torch.linalg.vector_norm(own[name].flatten(1) - observed[name], dim=1) for name in own]
        ).sum(dim=0)


def descend(
    settings: GradInversion,
    target: Target,
    places: Tensor,
    owners: Tensor,
    seeds: int,
    track: Track,
    generator: torch.Generator,
) -> None:
    """Run Adam on A attacks, with consensus between a leak's seeds; attacks with a non-finite loss are not updated."""
    moments = Moments(places)
    everyone = torch.arange(len(places), device=places.device)
    pixels = target.sizes[0]
    # A consensus changes from step to step, and a recording would keep its first value.
    evaluate = target.evaluate if _consents(settings, seeds) else Replayed(target.evaluate, traced=True)
    for step in track.rounds():
        target.agreed = agreed(settings, target, places, seeds, step)
        losses, slopes = evaluate(places, owners)
        track.see(everyone, places, losses)
        lost = ~all_finite(losses, slopes)
        track.lost |= lost
        slopes = slopes.masked_fill(lost[:, None], 0)
        slopes = slopes.sign() if settings.signed else slopes
        rate = settings.rate_at(step)
        places = moments.moved(places, slopes, rate)
        if settings.noise:
            shape = (len(places), pixels)
            places[:, :pixels] += rate * settings.noise * torch.randn(shape, generator=generator).to(places)
        track.stepped(step + 1)
    track.see(everyone, places, target.evaluate(places, owners)[0])


def _consents(settings: GradInversion, seeds: int) -> bool:
    """Return whether the seeds of a leak are drawn to their consensus."""
    return settings.group != "none" and settings.consistency != 0 and seeds > 1


def agreed(settings: GradInversion, target: Target, places: Tensor, seeds: int, step: int) -> Tensor | None:
    """Return the consensus of the seeds of each leak at a step (A, B, …), None if the settings use no consensus."""
    if not _consents(settings, seeds):
        return None
    if settings.group == "registered" and step >= settings.steps // 4 and not settings.registers(step):
        return target.agreed
    images = target.inputs(places).unflatten(0, (-1, seeds))
    registered = settings.group == "registered" and settings.registers(step)
    return (registered_mean if registered else pixel_mean)(images).flatten(0, 1)


def _why_not(case: Case) -> str:
    if case.subject.kind != "images":
        return "it restores images"
    if not case.subject.norms:
        return "the network has no batch norm whose statistics would help"
    if case.mode == "train" or case.subject.statistics == "of each batch":
        return UNKNOWN
    if case.subject.statistics == "never trained":
        return "the batch norms were never trained: their statistics say nothing"
    return case.no_label


def _attack(case: Case) -> Answer:
    reconstruction = restore_batches(case.leak, case.labels(), settings=replace(OURS, steps=case.steps))
    # Another attack has recovered the labels, so do not report them here.
    return replace(reconstruction.answers[0], labels=None)


ATTACK = Attack(
    "matching with batch norm's statistics",
    page="gradinversion",
    finds=("inputs",),
    needs="all gradients, labels from another attack, and a trained network with batch norms",
    refused=_why_not,
    run=_attack,
    remedy="statistics that are not shared; larger batches",
    memory=memory_of,
    searches=True,
)
