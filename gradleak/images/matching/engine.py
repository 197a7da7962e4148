"""Recover inputs by gradient matching: run hundreds of attacks at once, and keep the best iterate of each."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradleak import reporting
from gradleak.answers import Answer, SearchStatus
from gradleak.answers import LabelStatus as Status
from gradleak.arguments import checked_arguments
from gradleak.augment import as_probabilities, one_hot
from gradleak.cases import Attack, Case
from gradleak.devices import Replayed, accelerated, differentiable, entries_at_once, in_chunks
from gradleak.errors import ForeignError, InputError, unknown
from gradleak.images.matching.budget import (
    DISTANCE,
    VARIATION,
    CoarseToFine,
    descend,
    ending_of,
    expected,
    finish,
    spent,
)
from gradleak.images.matching.levenberg import LevenbergMarquardt, Misfit, levenberg
from gradleak.images.matching.objective import Distance, ImagePrior, Kind, Objective
from gradleak.images.matching.optimizers import LBFGS, Adam, Track, adam, lbfgs
from gradleak.labels import idlg, recover_batch, recover_soft_labels
from gradleak.leak import Leak, check_repeatable, hooked, naming

Optimizer = Adam | LBFGS | LevenbergMarquardt | CoarseToFine
OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "adam": Adam,
    "lbfgs": LBFGS,
    "levenberg-marquardt": LevenbergMarquardt,
}
# Called with the numbers of attacks, the step and the attacks' best inputs.
Watch = Callable[[Tensor, int, Tensor], None]
# How labels are obtained if none are given.
MODES = ("recovered", "idlg", "dlg", "recovered-start")
# Memory (bytes) for one chunk of attacks on a CPU.
CPU_MEMORY = 600 * 2**20
# The number of copies of a gradient and of all activations that one step keeps, measured.
GRADIENT_COPIES, ACTIVATION_COPIES = 8, 40
# On a CPU, where convolutions keep no patches and freed memory is used again, it keeps this share of them.
CPU_COPIES = 1 / 3
LEAST_LABEL = 1e-8


@dataclass(frozen=True)
class Reconstruction:
    """The best images of N leaks of B samples each from R restarts, and the course of the search.

    Attributes:
        images: The images (N·B, …) in the space of the model's inputs, leak after leak.
        labels: The labels (N·B, C), leak after leak.
        losses: The least loss of every restart (N, R), inf if no loss was finite.
        chosen: The restart with the least loss (N,).
        history: The steps (T,) of the curves.
        curves: The least loss so far at these steps (N, R, T).
        attempts: The images of all restarts (N, R, B, …).
        attempt_labels: The labels of all restarts (N, R, B, C).
        bad: The number of losses that were not finite (N, R), including those of rejected steps.
        status: How the search of each restart ended, N × R.
    """

    images: Tensor
    labels: Tensor
    losses: Tensor
    chosen: Tensor
    history: Tensor
    curves: Tensor = field(repr=False)
    attempts: Tensor = field(repr=False)
    attempt_labels: Tensor = field(repr=False)
    bad: Tensor
    status: tuple[tuple[SearchStatus, ...], ...]

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for each leak; its reason says how the searches ended."""
        batch_size = len(self.images) // len(self.status)
        return tuple(
            Answer(
                "searched",
                f"the search {', '.join(sorted(set(words)))}: nothing certifies it",
                labels=self.labels[n * batch_size : (n + 1) * batch_size],
                inputs=self.images[n * batch_size : (n + 1) * batch_size],
                interrupted="interrupted" in words,
            )
            for n, words in enumerate(self.status)
        )


@checked_arguments()
def match(
    leaks: Leak | Sequence[Leak],
    labels: Tensor | str = "recovered",
    *,
    budget: int | str | None = None,
    distance: Distance | Kind = "l2",
    prior: ImagePrior | None = None,
    optimizer: Optimizer | str = "lbfgs",
    restarts: int = 1,
    seed: int = 0,
    label_prior: str = "smoothing",
    start: Tensor | None = None,
    enough: float = 0.0,
    chunk: int | None = None,
    watch: Watch | None = None,
) -> Reconstruction:
    """Search for inputs whose gradients match the observed ones, for N leaks of one model at once.

    Ctrl-C ends the search; the best inputs so far are returned with the status "interrupted".

    Args:
        leaks: One leak or N leaks of the same model and batch size B.
        labels: Known class indices (N·B,) or soft labels (N·B, C). Or how to obtain labels: "recovered", by this
            package's solvers; "idlg", by iDLG; "dlg", by a search together with the inputs, from a random start; or
            "recovered-start", by the same search from the recovered label. A leak whose recovered labels are not
            unique gets no image (NaN).
        budget: What each leak's search may cost, in place of a distance, an optimizer and restarts: a number of steps,
            which are evaluations of the gradient; CPU-time for all leaks, such as "30s"; or "settled", until twice as
            many steps lower the loss by less than 5 %. Of the prior only the box counts then. Small batches end with
            steps of second order, for fixed labels; "settled" are those whose gradient is then the observed one.
        distance: The distance between gradients.
        prior: The prior of the images, by default none.
        optimizer: "adam", "lbfgs", "levenberg-marquardt" or its settings.
        restarts: The number R of starts for each leak.
        seed: The seed of the random starts.
        label_prior: The shape of labels that are recovered.
        start: Inputs (N·B, …) to start from instead of random ones.
        enough: An attack ends when its loss falls to this value.
        chunk: The number of attacks to run at a time; by default as many as fit into memory.
        watch: Called about a hundred times for each chunk, with the numbers (a,) of its attacks, the step, and their
            best inputs (a, B, …). Attack n·R + r is restart r of leak n.

    Returns:
        The inputs with the least loss among each leak's restarts.

    Examples:
        >>> from gradleak import observe
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 3))
        >>> leak = observe(model, torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([1]))
        >>> match(leak, torch.tensor([1])).images
        tensor([[0.1000, 0.2000, 0.3000, 0.4000]])
    """
    all_leaks = [leaks] if isinstance(leaks, Leak) else list(leaks)
    if budget is None:
        distance = Distance(distance) if isinstance(distance, str) else distance
        settings = _optimizer(optimizer)
    else:
        if (distance, optimizer, restarts) != ("l2", "lbfgs", 1) or (prior is not None and prior.variation):
            raise InputError("a budget takes the place of a distance, an optimizer, restarts and total variation")
        distance, settings = DISTANCE, CoarseToFine(1)
    check_leaks(all_leaks, restarts, chunk)
    prior = prior or ImagePrior()
    if budget is not None:
        prior = replace(prior, variation=VARIATION if len(all_leaks[0].input_shape or ()) == 3 else 0.0)
    known = _labels(all_leaks, labels, label_prior)
    target = None if known.searched else known.labels
    features = known.features(all_leaks, label_prior) if distance.feature else None
    objective = Objective(all_leaks, target, features, distance, prior, attacks=len(all_leaks) * restarts)
    places = _starts(objective, known, len(all_leaks), restarts, seed, start, settings.spread)
    misfit = None
    if isinstance(settings, LevenbergMarquardt):
        if known.labels is None or known.searched or distance != Distance("l2") or prior != ImagePrior():
            raise InputError("Levenberg-Marquardt needs fixed labels and the plain L2 distance without a prior")
        places, misfit = places.double(), Misfit(all_leaks, known.labels, objective.shape)
    runnable = known.there.repeat_interleave(restarts).nonzero()[:, 0]

    def fitting(settings: Optimizer) -> int:
        # Without attacks to run the memory need not be estimated.
        return _chunk(objective, settings) if len(runnable) else 0

    def run(settings: Optimizer, misfit: Misfit | None, at_once: int) -> Reconstruction:
        def walk(starts: Tensor, whose: Tensor, track: Track) -> None:
            search(settings, objective, misfit, starts, whose, track, enough)

        return searched(objective, walk, places, restarts, settings.steps, watch, runnable, at_once)

    def within(steps: int) -> Reconstruction:
        settings = CoarseToFine(steps)
        if target is not None and (ending := ending_of(steps, objective.size)):
            ended = CoarseToFine(steps - ending, ending)
            if fit := fitting(ended):
                return run(ended, Misfit(all_leaks, target, objective.shape), chunk or fit)
        return run(settings, None, chunk or max(1, fitting(settings)))

    if budget is None:
        return run(settings, misfit, chunk or max(1, fitting(settings)))
    found, settled = spent(budget, within)
    if not settled:
        return found
    status = ["settled" if word == "stopped" else word for (word,) in found.status]
    return replace(found, status=tuple((word,) for word in status))


def _optimizer(optimizer: Optimizer | str) -> Optimizer:
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise unknown("optimizer", optimizer, OPTIMIZERS)
        return OPTIMIZERS[optimizer]()
    if optimizer.steps < 1:
        raise InputError(f"an optimizer takes at least 1 step; got {optimizer.steps}")
    return optimizer


def searched(
    objective: Objective,
    walk: Callable[[Tensor, Tensor, Track], None],
    places: Tensor,
    restarts: int,
    steps: int,
    watch: Watch | None = None,
    runnable: Tensor | None = None,
    chunk: int | None = None,
) -> Reconstruction:
    """Search for the inputs of all leaks from places (N·R, P), and gather the results.

    Args:
        objective: The loss.
        walk: Runs the optimizer for some attacks, given their places and leaks and their track.
        places: The starts.
        restarts: The number R of starts for each leak.
        steps: The number of steps.
        watch: As in `match`.
        runnable: The numbers of the attacks to run, by default all.
        chunk: The number of attacks to run at a time, by default all.
    """
    owners = torch.arange(len(places) // restarts, device=places.device).repeat_interleave(restarts)
    runnable = torch.arange(len(places), device=places.device) if runnable is None else runnable
    chunk, interrupted = chunk or len(runnable), False

    def run(chosen: slice) -> tuple[Tensor, Track]:
        nonlocal interrupted
        attacks = runnable[chosen]
        watcher = None if watch is None else lambda step, best: watch(attacks, step, objective.inputs(best).clone())
        track = Track.start(places[attacks], steps, watcher)
        if not interrupted:
            try:
                with (
                    naming(f"the search cannot run and differentiate {type(objective.model).__name__}"),
                    differentiable(objective.model, twice=True),
                ):
                    walk(places[attacks], owners[attacks], track)
            except KeyboardInterrupt:
                interrupted = True
        return attacks, track

    parts, count = in_chunks(len(runnable), chunk, run), math.ceil(len(runnable) / chunk)
    tracks = list(reporting.steps(parts, count, "matching, part by part") if count > 1 else parts)
    return _gathered(objective, places, owners, tracks, interrupted, restarts)


def search(
    settings: Optimizer,
    objective: Objective,
    misfit: Misfit | None,
    places: Tensor,
    owners: Tensor,
    track: Track,
    enough: float = 0.0,
) -> None:
    """Run the optimizer from places (A, P) for attacks on the leaks `owners` (A,)."""

    def compute(at: Tensor, which: Tensor) -> tuple[Tensor, ...]:
        return objective.evaluate(at, owners if len(which) == len(owners) else owners[which])

    replayed = Replayed(compute, traced=True)

    def evaluate(at: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        losses, slopes = replayed(at, which)
        return losses, slopes

    if isinstance(settings, Adam):
        adam(settings, evaluate, objective.boxed(places), track, objective.boxed, enough)
    elif isinstance(settings, LBFGS):
        lbfgs(settings, evaluate, places, track, enough)
    elif isinstance(settings, CoarseToFine):
        descend(settings, evaluate, objective, places, track, math.log(enough) if enough else -math.inf)
        if misfit is not None:
            # Some modules, such as LSTM, take no second order. What the first order has found is kept.
            with contextlib.suppress(ForeignError), naming(f"second order of {type(objective.model).__name__}"):
                finish(settings, misfit, objective, owners, track)
    else:
        assert misfit is not None
        levenberg(settings, misfit, places, owners, track)


def check_leaks(leaks: list[Leak], restarts: int, chunk: int | None) -> None:
    if not leaks:
        raise InputError("matching needs at least one leak")
    if restarts < 1 or (chunk is not None and chunk < 1):
        raise InputError(f"restarts and chunk must be at least 1; got {restarts} and {chunk}")
    first = leaks[0]
    if first.input_shape is not None:
        shape = (first.batch_size, *first.input_shape)
        example = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(first.weight)
        check_repeatable(first.model, example, len(first.weight))
    for number, leak in enumerate(leaks):
        leak.check_one_step("matching")
        if leak.model is not first.model or leak.batch_size != first.batch_size:
            raise InputError(
                f"leak {number} is of another model or batch size than the first: match such leaks separately"
            )
        if leak.input_shape is None or leak.input_shape != first.input_shape:
            raise InputError(
                f"leak {number} must have the input shape of the first, {first.input_shape}; got {leak.input_shape}"
            )
        parameters = dict(first.model.named_parameters(remove_duplicate=False))
        for name, value in leak.gradients.items():
            if value.dtype != (own := parameters[name].dtype):
                raise InputError(f"leak {number}: the gradient of '{name}' must be of {own}; got {value.dtype}")
        if differing := sorted(set(leak.gradients) ^ set(first.gradients)):
            raise InputError(f"leak {number} must have gradients of the same parameters as the first: {differing[0]}")


@dataclass(frozen=True)
class _Known:
    """The labels (N, B, C), fixed or the start of a search; `there` (N,): whether each leak has labels."""

    labels: Tensor | None
    searched: bool
    there: Tensor
    recovered: Tensor | None = None

    def features(self, leaks: list[Leak], label_prior: str) -> Tensor:
        """Return the last layer's inputs (N, B, I), which are recovered together with the labels."""
        return self.recovered if self.recovered is not None else _recovered(leaks, label_prior)[1]


def _labels(leaks: list[Leak], labels: Tensor | str, label_prior: str) -> _Known:
    first = leaks[0]
    count, size, classes = len(leaks), first.batch_size, len(first.weight)
    like = first.weight_gradient
    everywhere = torch.ones(count, dtype=torch.bool, device=like.device)
    if isinstance(labels, Tensor):
        return _Known(labels_given(leaks, labels), False, everywhere)
    if labels not in MODES:
        raise unknown("kind of label", labels, MODES)
    if labels == "dlg":
        return _Known(None, True, everywhere)
    if labels == "idlg":
        if size != 1:
            raise InputError(f"iDLG finds the label of a single sample; these leaks have {size}")
        one_hot_labels = one_hot(idlg(torch.stack([leak.weight_gradient for leak in leaks])), classes)
        return _Known(one_hot_labels.to(like).unsqueeze(1), False, everywhere)
    recovered, features, status = _recovered(leaks, label_prior)
    labelled = torch.isfinite(recovered).flatten(1).all(dim=1)
    labelled &= torch.tensor([label_status == "unique" for label_status in status], device=labelled.device)
    return _Known(recovered, labels == "recovered-start", labelled, features)


def labels_given(leaks: list[Leak], labels: Tensor) -> Tensor:
    """Return known class indices (N·B,) or soft labels (N·B, C) as probabilities (N, B, C)."""
    like, size, classes = leaks[0].weight_gradient, leaks[0].batch_size, len(leaks[0].weight)
    if labels.shape[:1] != (len(leaks) * size,):
        raise InputError(
            f"labels must have one entry per private sample, {len(leaks) * size}; got {tuple(labels.shape)}"
        )
    return as_probabilities(labels, classes, dtype=like.dtype, device=like.device).reshape(-1, size, classes)


def _recovered(leaks: list[Leak], label_prior: str) -> tuple[Tensor, Tensor, list[Status]]:
    """Return labels (N, B, C) and features (N, B, I), NaN where none were found, and the status of each leak."""
    first = leaks[0]
    like = first.weight_gradient
    if first.batch_size == 1:
        biases = [leak.bias_gradient for leak in leaks]
        single = recover_soft_labels(
            torch.stack([leak.weight_gradient for leak in leaks]),
            first.weight,
            bias=first.bias,
            bias_gradient=None if biases[0] is None else torch.stack([bias for bias in biases if bias is not None]),
            prior=label_prior,
        )
        return single.labels.to(like).unsqueeze(1), single.features.to(like).unsqueeze(1), list(single.status)
    batches = [recover_batch(leak, prior=label_prior) for leak in leaks]
    labels, features = (torch.stack([getattr(batch, name) for batch in batches]) for name in ("labels", "features"))
    return labels.to(like), features.to(like), [batch.status for batch in batches]


def _starts(
    objective: Objective,
    known: _Known,
    count: int,
    restarts: int,
    seed: int,
    start: Tensor | None,
    spread: float,
) -> Tensor:
    """Return the attacks' starts (N·R, P); images are drawn first, so they do not depend on the kind of labels."""
    generator = torch.Generator().manual_seed(seed)
    like = next(iter(objective.observed.values()))
    shape = (count * restarts, objective.size)
    if start is None:
        inputs = spread * torch.randn(shape, generator=generator).to(like)
    else:
        start_shape = (count * objective.shape[0], *objective.shape[1:])
        if start.shape != start_shape:
            raise InputError(f"start must be inputs of shape {start_shape}; got {tuple(start.shape)}")
        inputs = start.to(like).reshape(count, -1).repeat_interleave(restarts, dim=0)
    if not known.searched:
        return inputs
    width = objective.shape[0] * objective.classes
    if known.labels is None:
        scores = torch.randn(count * restarts, width, generator=generator).to(like)
    else:
        scores = known.labels.clamp(min=LEAST_LABEL).log().reshape(count, width).repeat_interleave(restarts, dim=0)
    return torch.cat([inputs, scores], dim=1)


def _chunk(objective: Objective, settings: Optimizer) -> int:
    """Return the number of attacks that fit into memory, 0 if none does."""
    activations = 0

    def count(_module: Any, _inputs: Any, output: Any) -> None:
        nonlocal activations
        activations += output.numel() if isinstance(output, Tensor) else 0

    like = next(iter(objective.observed.values()))
    with hooked(module.register_forward_hook(count) for module in objective.model.modules()), torch.no_grad():
        objective.model(torch.zeros(objective.shape).to(like))
    parameters = sum(value[0].numel() for value in objective.observed.values())
    numbers: float = GRADIENT_COPIES * parameters + ACTIVATION_COPIES * (activations + objective.size)
    if not accelerated(like.device):
        numbers *= CPU_COPIES
    if isinstance(settings, LBFGS):
        numbers += 2 * settings.history * objective.size
    if isinstance(settings, LevenbergMarquardt) or (isinstance(settings, CoarseToFine) and settings.ending):
        # The Jacobian and some square matrices, in float64.
        numbers += 2 * objective.size * (parameters + 3 * objective.size)
    memory = entries_at_once(like.device, CPU_MEMORY, bytes_each=1)
    return int(memory / (numbers * like.element_size()))


def _gathered(
    objective: Objective,
    places: Tensor,
    owners: Tensor,
    tracks: Iterable[tuple[Tensor, Track]],
    interrupted: bool,
    restarts: int,
) -> Reconstruction:
    attacks = len(places)
    best = torch.full_like(places, torch.nan)
    losses = places.new_full((attacks,), torch.inf)
    bad = torch.zeros(attacks, dtype=torch.long, device=places.device)
    status = np.full(attacks, "no label", dtype=object)
    curves: dict[int, Tensor] = {}
    for part, track in tracks:
        best[part], losses[part], bad[part] = track.best, track.losses, track.bad
        ended = "interrupted" if interrupted and track.taken < track.steps else "stopped"
        lost, settled = (flags.cpu().numpy() for flags in (track.lost, track.settled))
        status[part.cpu().numpy()] = np.select([lost, settled], ["diverged", "settled"], ended)
        for step, values in track.history:
            curve = curves.setdefault(step, torch.full_like(losses, torch.nan))
            curve[part] = values
    steps = sorted(curves)
    # A chunk that ended early keeps its last losses.
    table = torch.stack([curves[step] for step in steps], dim=1) if steps else losses.new_empty(attacks, 0)
    for column in range(1, len(steps)):
        table[:, column] = torch.where(table[:, column].isnan(), table[:, column - 1], table[:, column])
    leak_count = attacks // restarts
    grid = losses.reshape(leak_count, restarts)
    chosen = grid.argmin(dim=1)
    winners = torch.arange(leak_count, device=places.device) * restarts + chosen
    labels = objective.labels_at(best, owners)
    return Reconstruction(
        images=objective.inputs(best[winners]).flatten(0, 1),
        labels=labels[winners].flatten(0, 1),
        losses=grid,
        chosen=chosen,
        history=torch.tensor(steps),
        curves=table.reshape(leak_count, restarts, -1),
        attempts=objective.inputs(best).reshape(leak_count, restarts, *objective.shape),
        attempt_labels=labels.reshape(leak_count, restarts, *labels.shape[1:]),
        bad=bad.reshape(leak_count, restarts),
        status=tuple(map(tuple, status.reshape(leak_count, restarts).tolist())),
    )


def _why_not(case: Case) -> str:
    if case.subject.kind == "tokens":
        return "tokens cannot be moved by small steps"
    return case.no_label


def _attack(case: Case) -> Answer:
    """Match with a quarter of the budget, then with the rest: whether the loss still falls shows from both."""
    labels, prior = case.labels(), ImagePrior(box=_box(case))

    def run(steps: int) -> Reconstruction:
        return match(case.leak, labels, budget=steps, prior=prior, seed=case.seed)

    # Another attack has recovered the labels, so do not report them here.
    if not (short := case.steps // 4) or (first := run(short)).answers[0].interrupted:
        return replace(first.answers[0] if short else run(case.steps).answers[0], labels=None)
    found = run(case.steps - short)
    if found.answers[0].interrupted and found.losses.amin() > first.losses.amin():
        found = replace(found, images=first.images)
    if found.status == (("settled",),):
        reason = f"{case.steps - short} steps, the last ones of second order, to the observed gradient, up to rounding"
        return replace(found.answers[0], labels=None, reason=f"{reason}: nothing certifies it")
    # The losses are logarithms; of an unrelated gradient the loss is about 1.
    loss, before = (float(one.losses.amin().exp()) for one in (found, first))
    reason = (
        f"{case.steps - short} steps to a loss of {loss:.2g} (unrelated gradients: 1); with {short} it was {before:.2g}"
    )
    if case.subject.kind == "images":
        low, high = expected(float(found.losses.amin()))
        reason += f", and images with such a loss had {low:.0f} to {high:.0f} dB in nine of ten of our batches"
    return replace(found.answers[0], labels=None, reason=f"{reason}: nothing certifies it")


def _box(case: Case) -> tuple[Tensor, Tensor] | None:
    if case.box is None:
        return None
    channels = case.subject.input_shape[0]
    low, high = (case.leak.weight.new_full((channels, 1, 1), edge) for edge in case.box)
    return low, high


def memory_of(case: Case) -> int:
    """Return the memory (bytes) that a search needs for one batch."""
    activations = 4 * case.subject.activations * case.size
    return GRADIENT_COPIES * case.subject.bytes + ACTIVATION_COPIES * activations


ATTACK = Attack(
    "gradient matching",
    page="cnn-reconstruction",
    finds=("inputs",),
    needs="all gradients, a model with second derivatives, and labels from another attack",
    refused=_why_not,
    run=_attack,
    remedy="larger batches and deeper networks; noise",
    memory=memory_of,
    searches=True,
)
