"""Run an audit: every applicable attack on every batch, in every precision and with every defence.

Cheap and certain attacks run first.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradleak import defenses, devices, reporting
from gradleak.answers import Answer
from gradleak.arguments import checked_arguments
from gradleak.auditing import drawing, sentences
from gradleak.auditing.costs import costs_of
from gradleak.auditing.findings import Cost, Finding, NotTried, Picture, Place
from gradleak.auditing.measuring import Columns, Scale, Truth
from gradleak.auditing.outcomes import outcome_of, targets_of
from gradleak.auditing.private import Private, kind_of, private
from gradleak.auditing.reach import reach_of
from gradleak.auditing.report import Report
from gradleak.auditing.steady import distance, silent, state_of, unsteady
from gradleak.auditing.subject import NORMS, proofs, subject_of
from gradleak.calling import unwrapped
from gradleak.cases import Attack, Case, Kind, Subject
from gradleak.catalogue import ATTACKS
from gradleak.errors import ForeignError, GradleakError, GradleakWarning, InputError, first_line, foreign
from gradleak.labels import Standins
from gradleak.labels.priors import PRIORS
from gradleak.leak import Leak, Mode, binary, in_train_mode, naming, observe, pair_of, two_classes
from gradleak.losses import BinaryCrossEntropy, CrossEntropy, Loss
from gradleak.precision import PRECISIONS, precision_of
from gradleak.wording import counted, duration

# The least time for an attack (s), if that much time is left.
LEAST_SECONDS = 10.0
# Share of the time that is initially reserved for operations that cannot be interrupted.
MARGIN = 0.02
# Steps of a search for inputs.
STEPS = 400
GIB = 2**30
# The note about a network with one output, whose last layer's gradient is sent once.
SINGLE = (
    "the single output z is audited as two classes with the logits 0 and z: their cross-entropy is the logistic loss, "
    "and the last layer's gradient has two rows with opposite signs, of which the client defends one"
)


class Overtime(KeyboardInterrupt):
    """Raised when an attack's time is over; an interrupted search returns its best result so far."""


@dataclass
class _Job:
    """An attack on a case, and its result."""

    attack: Attack
    case: Case
    truth: Truth | None
    result: Finding | NotTried | None = None
    picture: Picture | None = None

    @property
    def place(self) -> Place:
        return Place(self.case.mode, self.case.precision, self.case.defense, self.case.size)

    @property
    def about(self) -> dict[str, Any]:
        """The fields of a result that say which attack and which case it is about."""
        return {"attack": self.attack.name, **self.place._asdict()}

    def leave(self, why: str, *, applies: bool = True, late: bool = False) -> None:
        """Record why there is no answer."""
        self.result = NotTried(**self.about, why=why, page=self.attack.page, applies=applies, late=late)


@dataclass
class _Audit:
    """The jobs of an audit; `broken` holds the model's errors with the steps that raised them."""

    model: nn.Module
    jobs: list[_Job] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    interrupted: bool = False

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Continue after an error of the model in this block, and record the error with the step that is skipped."""
        try:
            with _running(self.model):
                yield
        except GradleakError as error:
            self.broken.append(f"{what}: {error}")


@devices.ieee()
@checked_arguments()
def audit(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Tensor],
    targets: Tensor | None = None,
    *,
    batch_sizes: Sequence[int] = (1, 4),
    defenses: Sequence[str] = ("none",),
    precisions: Sequence[str] | None = None,
    mode: Mode | None = None,
    labels: str | None = None,
    loss: Loss | None = None,
    head: str | None = None,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    pixels: Scale | None = None,
    columns: Columns | None = None,
    marks: tuple[int, int] | None = None,
    minutes: float = 5.0,
    memory: float | None = None,
    rate: float = 0.1,
    steps: int = STEPS,
    images: bool = True,
    seed: int = 0,
) -> Report:
    """Attack a model's gradients with every applicable attack of the book, and report what they leak.

    Results depend only on `seed`, except those of attacks that were stopped by the time limit, which are marked. Ctrl-C
    ends the audit with the report so far. If the model raises an error after its first batch, only the step that raised
    it is skipped; the report's `broken` names the error and the step.

    Args:
        model: The client's network.
        inputs: Private samples (N, …), from which the batches are drawn, or a batch of `transformers`, as in `observe`.
        targets: Classes (N,), soft labels (N, C), or the next token at every position (N, T). By default the labels of
            the batch, or the next tokens.
        batch_sizes: The batch sizes to audit.
        defenses: The defences to audit, as in `gradleak.defenses.named`.
        precisions: The client's precisions to audit, such as "tf32" or "bfloat16" (`gradleak.precision.PRECISIONS`); by
            default the type of the parameters. Attacks know the precision.
        mode: The mode in which the client runs the model, "eval" or "train"; by default both, if batch norm or dropout
            make them differ.
        labels: The labels' shape that the server knows: "onehot", "smoothing" or "mixup". The default is one-hot for
            classes and smoothing for soft labels.
        loss: The client's loss; cross-entropy by default.
        head: The name of the last Linear layer, if it is not found automatically.
        auxiliary: Samples of the same kind and their classes, if the attacker has some.
        pixels: (low, span), where images in [0, 1] are (inputs − low) / span: numbers, or tensors of each channel's.
        columns: The columns of a table.
        marks: The start and end mark of sentences; found automatically if all sentences have the same.
        minutes: The time limit. Attacks for which time is short are reported as not tried.
        memory: The memory limit (GiB). Attacks that need more are reported as not tried.
        rate: The learning rate of the step by which a defence's cost is measured.
        steps: The number of steps of a search for inputs.
        images: Whether the report keeps images.
        seed: The seed of all random numbers.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> inputs, classes = torch.rand(8, 6), torch.arange(8)
        >>> report = audit(nn.Linear(6, 10), inputs, classes, batch_sizes=[1], steps=10, minutes=1)
        >>> {outcome.outcome for outcome in report.outcomes}
        {'recovered'}
        >>> report.worst("labels")
        1.0
    """
    started, model, loss = time.monotonic(), unwrapped(model), loss or CrossEntropy()
    with _running(model):
        inputs, targets = pair_of(model, inputs, targets)
        _check_batch(inputs, targets)
        model, targets, loss = two_classes(model, inputs, targets, head, loss)
    prior = labels or ("onehot" if not targets.is_floating_point() else "smoothing")
    _check_settings(batch_sizes, defenses, prior, minutes, memory, steps)
    modes: Sequence[Mode] = ("eval", "train") if mode is None else (mode,)
    memory = _memory() if memory is None else memory * GIB
    _check_model(model, memory, len(modes) * len(set(batch_sizes)) * len(set(defenses)) * len(set(precisions or ("",))))
    plain_in, used = _own(model), _precisions(precisions, model)
    if short := [size for size in batch_sizes if size > len(inputs)]:
        raise InputError(f"a batch of {short[0]} cannot be drawn from {len(inputs)} samples")
    samples = private(inputs, targets, pixels, columns)
    run = _Audit(model)
    subject: Subject | None = None
    costs, proved, notes = list[Cost](), list[str](), list[str]()
    simulated: dict[Mode, list[Standins]] = {own: [] for own in modes}
    for size in dict.fromkeys(batch_sizes):
        batch, states = samples.drawn(size, seed), [state_of(model)]
        sent: dict[Mode, dict[str, Leak]] = {}
        failed: dict[str, GradleakError] = {}
        for own in modes:
            try:
                sent[own] = {
                    name: _computed(model, batch, loss, head, name, own, seed)
                    for name in dict.fromkeys((plain_in, *used))
                }
            except GradleakError as error:
                failed[f"batch of {size}, {own} mode, nothing is tried: {error}"] = error
        if not sent and not run.jobs:
            raise next(iter(failed.values()))
        # Batch norm cannot be trained on some batches of one sample.
        (notes if sent else run.broken).extend(failed)
        if len(sent) == 2 and not distance(*(leaks[plain_in].gradients for leaks in sent.values())):
            del sent["train"]  # neither batch norm nor dropout makes the modes differ
        for own, leaks in sent.items():
            clean = leaks[plain_in]
            if subject is None:
                states.append(state_of(model))
                again = None
                with run.noting("two passes are not compared"):
                    # In train mode dropout may draw random numbers, but always from the same seed.
                    again = _computed(model, batch, loss, head, plain_in, own, seed + (own == "eval")).gradients
                notes += [SINGLE] if clean.single else []
                notes += unsteady(model, states, clean.gradients, again)
                subject = subject_of(clean, samples.kind, samples.sequence)
            notes += [line for line in silent(clean) if line not in notes]
            reach = reach_of(clean)
            if plain_in in used and "none" in defenses:
                proved += proofs(clean, subject, reach, prior, loss)
            truth = None
            with run.noting(f"batch of {size}, {own} mode, nothing is measured"), _drawing(seed):
                truth = batch.truth(clean, subject, own)
            cases = [
                Case(
                    _sent(leaks[precision], name, seed), subject, name, prior, loss, seed, steps, reach, precision, own,
                    auxiliary, marks or samples.marks, samples.box, simulated=simulated[own],
                )
                for precision, name in itertools.product(used, dict.fromkeys(defenses))
            ]  # fmt: skip
            with run.noting(f"batch of {size}, {own} mode, no costs are measured"):
                costs += costs_of(clean, plain_in, batch, loss, rate, cases)
            run.jobs += [_Job(attack, case, truth) for case in cases for attack in ATTACKS]
    audited = dict.fromkeys(job.case.mode for job in run.jobs)
    proved += sentences.of_unproved([name for name in used if name != plain_in], defenses)
    settings = {
        "batch sizes": ", ".join(map(str, batch_sizes)),
        "defences": ", ".join(defenses),
        **_setting(precisions, used),
        "mode": " and ".join(audited) if mode or "train" in audited else "eval, as in train",
        "labels": prior,
        "loss": str(loss),
        "seed": str(seed),
    }
    notes += [samples.shown.note] if samples.shown is not None and samples.shown.note else []
    return _report(run, started, 60 * minutes, memory, images, settings, proved, costs, notes)


@devices.ieee()
@checked_arguments()
def audit_update(
    seen: Leak,
    *,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    tokens: bool = False,
    labels: str = "onehot",
    defense: str = "update",
    precision: str | None = None,
    mode: Mode | None = None,
    loss: Loss | None = None,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    pixels: Scale | None = None,
    columns: Columns | None = None,
    marks: tuple[int, int] | None = None,
    minutes: float = 5.0,
    memory: float | None = None,
    steps: int = STEPS,
    images: bool = True,
    seed: int = 0,
) -> Report:
    """Attack a client's update with every applicable attack, and report what it leaks.

    Args:
        seen: The update, from `Leak.from_update` or `observe`.
        inputs: The private samples, if known. Answers are then compared with them.
        targets: Their targets.
        tokens: Whether the inputs are tokens, if `inputs` is not given.
        labels: The labels' shape that the server knows: "onehot", "smoothing" or "mixup".
        defense: The client's known defence: "update" for none, a text as in `gradleak.defenses.named`, or "dp-sgd/0.01"
            for clipped samples and noise of standard deviation 0.01 on every entry of the gradient.
        precision: The client's known precision, such as "bfloat16"; by default the type of the parameters.
        mode: The mode in which the client ran the model, "eval" or "train"; by default attacks assume train mode if
            the model has batch norms, and eval mode otherwise.
        loss: The client's loss; cross-entropy by default.
        auxiliary: Samples of the same kind and their classes, if the attacker has some.
        pixels: (low, span), where images in [0, 1] are (inputs − low) / span: numbers, or tensors of each channel's.
        columns: The columns of a table.
        marks: The start and end mark of sentences.
        minutes: The time limit.
        memory: The memory limit (GiB).
        steps: The number of steps of a search for inputs.
        images: Whether the report keeps images.
        seed: The seed of all random numbers.

    Examples:
        >>> from gradleak import observe
        >>> _ = torch.manual_seed(0)
        >>> leak = observe(nn.Linear(6, 10), torch.rand(1, 6), torch.tensor([3]))
        >>> report = audit_update(leak, steps=10, minutes=1)
        >>> {outcome.target: outcome.outcome for outcome in report.outcomes}
        {'labels': 'recovered', 'classes': 'not compared', 'features': 'recovered', 'inputs': 'recovered'}
    """
    started = time.monotonic()
    if defense != "update" and not re.fullmatch(r"dp-sgd/\d+(\.\d*)?(e[+-]?\d+)?", defense):
        defenses.shown(defense)
    _check_settings((seen.batch_size,), (), labels, minutes, memory, steps)
    used = _precisions(None if precision is None else (precision,), seen.model)
    memory = _memory() if memory is None else memory * GIB
    # The cross-entropy of the logits 0 and z is the binary cross-entropy of z.
    loss = CrossEntropy() if loss is None or (seen.single and isinstance(loss, BinaryCrossEntropy)) else loss
    shape = seen.input_shape if inputs is None else tuple(inputs.shape[1:])
    if shape is None:
        raise InputError("the leak does not say what shape one input has: Leak.from_update(…, input_shape=…)")
    if not any(bool(value.any()) for value in seen.gradients.values()):
        raise InputError(
            "the update is zero: the weights before and after it are the same, and nothing can be attacked"
        )
    mode = mode or ("train" if any(isinstance(module, NORMS) for module in seen.model.modules()) else "eval")
    seen = replace(seen, input_shape=shape, model=in_train_mode(seen.model) if mode == "train" else seen.model)
    samples = None
    if inputs is not None and targets is not None:
        _check_batch(inputs, targets)
        targets = binary(targets) if seen.single else targets
        if not seen.batch_size <= len(inputs) <= seen.batch_size * seen.local_steps:
            took = f"{counted(seen.local_steps, 'step')} on {counted(seen.batch_size, 'sample')} each"
            raise InputError(
                f"the private samples are not those of the update: there are {len(inputs)}, and the client took {took}"
            )
        samples = private(inputs, targets, pixels, columns)
    kind: Kind = "tokens" if tokens else "images" if len(shape) == 3 else "vectors"
    kind = kind if inputs is None else kind_of(inputs)
    run, truth = _Audit(seen.model), None
    subject, reach = subject_of(seen, kind, samples is not None and samples.sequence), reach_of(seen)
    box = None
    if samples is not None:
        box, marks = samples.box, marks or samples.marks
        with run.noting("nothing is measured"):
            truth = samples.truth(seen, subject, "eval")
    case = Case(seen, subject, defense, labels, loss, seed, steps, reach, used[0], mode, auxiliary, marks, box)
    run.jobs = [_Job(attack, case, truth) for attack in ATTACKS]
    settings = {
        "batch size": str(seen.batch_size),
        "local steps": str(seen.local_steps),
        **_setting(precision, used),
        "mode": mode,
        "labels": labels,
        "loss": str(loss),
        "seed": str(seed),
    }
    rounded = [] if used[0] == _own(seen.model) else used
    proved = proofs(seen, subject, reach, labels, loss) if defense in ("none", "update") and not rounded else []
    proved += sentences.of_unproved(rounded, [defense])
    notes = [*([SINGLE] if seen.single else []), *silent(seen)]
    return _report(run, started, 60 * minutes, memory, images, settings, proved, notes=notes)


# ----------------------------------------------------------------------------------------------------------- the jobs
def _report(
    run: _Audit,
    started: float,
    budget: float,
    memory: float,
    images: bool,
    settings: dict[str, str],
    proved: list[str],
    costs: Sequence[Cost] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Run the jobs within the time (s) and the memory (bytes), and return the report."""
    try:
        _attack(run, started, budget, memory, images)
    except KeyboardInterrupt:
        run.interrupted = True
    cases: dict[Place, list[_Job]] = {}
    for job in run.jobs:
        if job.result is None:
            job.leave("the audit was interrupted before")
        cases.setdefault(job.place, []).append(job)
    subject = run.jobs[0].case.subject
    findings = [job.result for job in run.jobs if isinstance(job.result, Finding)]
    outcomes = [
        outcome_of(target, jobs[0].place, [(job.attack, job.result) for job in jobs], _samples(jobs[0].truth))
        for jobs in cases.values()
        for target in targets_of(subject)
    ]
    seconds = time.monotonic() - started
    given = f"{run.jobs[0].case.steps} steps and {duration(budget)}"
    return Report(
        verdict=sentences.of_verdict(outcomes, given),
        facts=dict(subject.facts),
        settings=settings | {"budget": given},
        proofs=list(dict.fromkeys(proved)),
        findings=[one.model_copy(update={"stops": sentences.stopped(one, findings, costs)}) for one in findings],
        not_tried=[job.result for job in run.jobs if isinstance(job.result, NotTried)],
        outcomes=outcomes,
        costs=list(costs),
        notes=[*notes, *(f"Not whole: {entry}" for entry in run.broken)],
        broken=run.broken,
        interrupted=run.interrupted,
        seconds=round(seconds, 1),
        pictures=[job.picture for job in run.jobs if job.picture],
    )


def _attack(run: _Audit, started: float, budget: float, memory: float, images: bool) -> None:
    """Run the jobs, those of cheap attacks first; each may take its share of the seconds that are left.

    An attack may exceed its share, because some operations cannot be interrupted and its answer is measured afterwards.
    So the largest excess so far is reserved.
    """
    reserved = MARGIN * budget
    order = sorted(run.jobs, key=lambda job: ATTACKS.index(job.attack))
    waiting = [job for job in order if not _refused(job, memory, run)]
    for number, job in enumerate(reporting.steps(waiting, len(waiting), "attacks")):
        begun = time.monotonic()
        remaining = started + budget - reserved - begun
        share = remaining / (len(waiting) - number)
        # Searches use all their time. Other attacks end by themselves and may be given more.
        share = share if job.attack.searches else max(share, remaining / 4)
        seconds = max(share, min(LEAST_SECONDS, remaining))
        _one(job, seconds, run, images)
        reserved = max(reserved, time.monotonic() - begun - max(seconds, 0))


def _refused(job: _Job, memory: float, run: _Audit) -> bool:
    """Record why an attack cannot be tried, and return whether there is a reason."""
    try:
        with foreign("it broke down"):
            if why := job.attack.refused(job.case):
                job.leave(why, applies=False)
            elif (needed := job.attack.memory(job.case)) > memory:
                job.leave(f"needs about {needed / GIB:.2g} GB, and {memory / GIB:.2g} GB are to be had")
    except ForeignError as error:
        run.broken.append(f"{job.attack.name}: {error}")
        job.leave(str(error))
    return job.result is not None


def _one(job: _Job, seconds: float, run: _Audit, images: bool) -> None:
    """Run one job and record its result."""
    if seconds <= 0:
        job.leave("the time was up: give more minutes", late=True)
        return
    if job.attack.searches and job.case.known:
        job.leave("not needed: an earlier attack guarantees every input", applies=False)
        return
    if (stretch := job.attack.stretch(job.case)) > seconds:
        why = f"needs about {stretch:.0f} s at a stretch, and {seconds:.0f} s are its share of the time"
        job.leave(why, late=True)
        return
    try:
        with _alarm(seconds) as rang, foreign("it broke down"), warnings.catch_warnings():
            warnings.simplefilter("ignore", GradleakWarning)  # the answer contains what they say
            answer = job.case.as_run(job.attack.run(job.case))
        job.case.found.append(answer)
        with foreign("what it found cannot be measured"):
            job.result = _finding(job, answer, bool(rang))
        if images and job.truth is not None and answer.inputs is not None and job.case.subject.kind == "images":
            with foreign("its images cannot be drawn"):
                job.picture = Picture(**job.about, png=drawing.pair(job.truth, answer.inputs))
    except Overtime:
        job.leave(f"stopped after {seconds:.0f} s, its share of the time", late=True)
    except ForeignError as error:  # an error of the user's network: the other attacks still run
        run.broken.append(f"{job.attack.name}: {error}")
        if job.result is None:
            job.leave(str(error))
    except GradleakError as error:
        job.leave(first_line(error))
    else:
        if answer.interrupted and not rang:
            raise KeyboardInterrupt


def _samples(truth: Truth | None) -> int:
    return 0 if truth is None else len(truth.inputs)


def _finding(job: _Job, found: Answer, cut: bool) -> Finding:
    measures = {} if job.truth is None else job.truth.measured(found)
    chance = {} if job.truth is None or "labels" not in measures else job.truth.chance(job.case)
    return Finding(
        **job.about,
        certificate=found.status,
        measures=measures,
        chance=chance,
        expected={} if found.expected is None else {"labels": found.expected.share, "guess": found.expected.guess},
        certified=found.certified,
        columns={} if job.truth is None else job.truth.by_column(found),
        sentence=sentences.of_finding(found, measures, chance, job.case),
        stops="",
        page=job.attack.page,
        cut=cut,
    )


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[list[int]]:
    """Interrupt the block after some seconds, if the system has alarms and this is the main thread.

    The list that the block is given has an entry if the alarm rang.
    """
    rang: list[int] = []
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield rang
        return

    def ring(number: int, _: object) -> None:
        rang.append(number)
        raise Overtime

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --------------------------------------------------------------------------------------------------- what goes into it
def _check_settings(
    sizes: Sequence[int], names: Sequence[str], prior: str, minutes: float, memory: float | None, steps: int
) -> None:
    if steps < 1:
        raise InputError(f"a search takes at least 1 step; got {steps}")
    if not sizes or any(size < 1 for size in sizes):
        raise InputError(f"batch sizes are at least 1; got {', '.join(map(str, sizes)) or 'none'}")
    if not 0 < minutes < math.inf or (memory is not None and not 0 < memory < math.inf):
        raise InputError(f"minutes and memory are above 0; got {minutes:g} and {memory}")
    for name in names:
        defenses.shown(name)
    if prior not in PRIORS:
        raise InputError(f"labels are {', '.join(PRIORS)}; got '{prior}'")


def _own(model: nn.Module) -> str:
    """Return the precision of a model's parameters."""
    return "float64" if all(p.dtype == torch.float64 for p in model.parameters()) else "float32"


def _precisions(names: Sequence[str] | None, model: nn.Module) -> list[str]:
    """Return the full names of precisions, each once; refuse those in which the model cannot be computed."""
    native = _own(model)
    if names is None:
        return [native]
    if not names:
        raise InputError(f"at least one precision is needed; known: {', '.join(PRECISIONS)}")
    full_names = list(dict.fromkeys(precision_of(name).name for name in names))
    for name in full_names:
        if "float64" in (native, name) and name != native:
            raise InputError(
                f"the model's parameters are {native}: its client cannot compute in {name}"
                + (", which needs float32 parameters" if native == "float64" else "")
            )
    return full_names


def _setting(given: Sequence[str] | None, names: list[str]) -> dict[str, str]:
    """Return the report's setting of precisions, empty if none was given."""
    return {} if given is None else {"precision" if len(names) == 1 else "precisions": ", ".join(names)}


def _check_model(model: nn.Module, memory: float, cases: int) -> None:
    """Refuse a model without a gradient, or whose gradients of all cases exceed the memory, before it is run."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise InputError(f"no parameter of {type(model).__name__} needs a gradient: a client would send nothing")
    for name, parameter in model.named_parameters():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise InputError(f"'{name}' is of {parameter.dtype}: attacks take float32 and float64")
        if not torch.isfinite(parameter).all():
            raise InputError(f"'{name}' holds NaN or infinite values")
    # Memory holds the gradient of every case, the undefended gradient, a step along it, and the weights of before.
    needed = (4 + cases) * sum(p.numel() * p.element_size() for p in trained)
    if needed > memory:
        raise InputError(f"gradients alone need about {needed / GIB:.2g} GB, and {memory / GIB:.2g} GB are to be had")


def _check_batch(inputs: Tensor, targets: Tensor) -> None:
    """Refuse samples without a target each."""
    if inputs.ndim < 2 or targets.ndim < 1:
        raise InputError(
            f"inputs and targets must be of at least one sample, (N, …); got {tuple(inputs.shape)} and "
            f"{tuple(targets.shape)}"
        )
    if len(inputs) != len(targets):
        raise InputError(f"{len(inputs)} inputs but {len(targets)} targets: there must be one target per sample")


def _memory() -> float:
    """Return 80 % of the available memory (bytes), or half of all memory if that is unknown."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as stream:
        for line in stream:
            if line.startswith("MemAvailable"):
                return 0.8 * 1024 * int(line.split()[1])
    return 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextlib.contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Draw torch's random numbers, such as those of dropout, from a seed in this block."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _computed(
    model: nn.Module, batch: Private, loss: Loss, head: str | None, precision: str, mode: Mode, seed: int
) -> Leak:
    """Return the leak of a client that computes in a precision, without a defence."""
    plain = precision in ("float32", "float64")
    try:
        with _running(model), _drawing(seed):
            leak = observe(model, batch.inputs, batch.targets, loss=loss, head=head, precision=precision, mode=mode)
        if not plain and not all(bool(value.isfinite().all()) for value in leak.gradients.values()):
            raise InputError("its gradient holds NaN or infinite values")
    except GradleakError as error:
        if plain:
            raise
        # The model was already run in float32, so the error comes from the precision.
        raise InputError(f"{type(model).__name__} cannot be audited in {precision}: {first_line(error)}") from error
    return leak


@contextlib.contextmanager
def _running(model: nn.Module) -> Iterator[None]:
    """Turn errors of the user's model into one-line errors."""
    with naming(f"{type(model).__name__} cannot be run and differentiated on these samples"):
        yield


def _sent(clean: Leak, name: str, seed: int) -> Leak:
    """Return the leak of a client with a defence, in the type of the parameters."""
    defense = defenses.named(name, generator=torch.Generator().manual_seed(seed))
    gradients = {key: value.to(clean.gradients[key].dtype) for key, value in defense(clean.gradients).items()}
    return replace(clean, gradients=gradients)
