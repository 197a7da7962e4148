"""What matching costs: the published attacks against the clock

Beyond wang2024, section 4.3: the time of each attack to a given quality, alone, many together, and on batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor, nn

from gradleak import claims, data, devices, metrics, studies
from gradleak.images import LBFGS, Adam, LevenbergMarquardt, match, polished, trace_convolutional
from gradleak.images.presets import MATCHING, preset
from gradleak.leak import Leak, observe
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, among, count, least, mean, select, spread_if_many, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.attacked_networks import STAGES, Stage
from gradleak.studies.shared.matched_runs import POINTS, TOP, OnLeNet, lenets, prior, private
from gradleak.studies.shared.outcomes import PSNR, Outcome, collected

PLACE = "Beyond section 4.3"
# Further columns that depend on time measurements.
TIMES = ("rate", "gain")
# Attacks that no paper has: L-BFGS with a line search, second order, and the closed form. From a random start, second
# order does not find images of a trained network, as the page on Table 3 shows.
SAFE, SECOND, CLOSED, POLISHED = "L-BFGS, searched", "Levenberg-Marquardt", "closed form", "closed form, polished"
ATTACKS = (*MATCHING, SAFE, SECOND, CLOSED, POLISHED)
LEVELS = (20, 25, 30, 40, 60, 100)
# Steps of attacks that run together: timed steps, and steps before the measurement.
TIMED, UNTIMED = 10, 2


class Parameters(studies.Parameters):
    """Parameters of the page: images and steps of each attack, attacks that run at once, and batch sizes."""

    images: int = setting(paper=5, ge=1, le=1000)
    effort: float = setting(paper=1.0, gt=0, le=1)
    second_order: int = setting(paper=2, ge=0, le=1000)
    stages: list[Stage] = setting(paper=list(STAGES))
    together: list[int] = setting(paper=[1, 4, 16, 64, 256])
    batches: list[int] = setting(paper=[1, 2, 4, 8])
    batch_leaks: int = setting(paper=2, ge=1, le=1000)
    batch_steps: int = setting(paper=300, ge=1, le=100_000)
    dataset: str = setting(paper="cifar10")

    def sees(self) -> list[Sees]:
        """Return LeNet in each state, and the images that it sees."""
        return lenets(self.dataset, ["untrained", *self.stages])

    def experiments(self) -> Iterator[Experiment]:
        """Yield every attack on every network (second order image by image), then batches, then attacks at once."""
        for stage, attack in product(self.stages, ATTACKS):
            if attack not in (SECOND, POLISHED):
                yield Race.of(self, attack=attack, stage=stage, samples=self.images)
        places = range(min(self.second_order, self.images))
        for stage, attack, place in product(self.stages, (SECOND, POLISHED), places):
            if (stage, attack) != ("trained", SECOND):
                yield Race.of(self, attack=attack, stage=stage, samples=1, skip=place, effort=1.0)
        for size in self.batches:
            yield Batches.of(self, size=size, leaks=self.batch_leaks, steps=self.batch_steps)
        yield Together.of(self, numbers=self.together)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{self.images} smoothed images per network, {data.title(self.dataset)}"


class Timed(Row):
    """A result after a time per image (s); `what` names the kind of row."""

    what: str
    seconds: float = math.nan


class RacedImage(Timed):
    """The final PSNR (dB) of an image; `lost` tells whether the attack diverged."""

    image: int
    psnr: float
    lost: bool = False


class Level(Timed):
    """Whether an image reached the PSNR `level` (dB); `seconds` is the first time at which it did."""

    image: int
    level: int
    reached: bool


class CurvePoint(Timed):
    """The mean PSNR (dB) of the best iterates after a time."""

    psnr: float


class Pace(Timed):
    """The time per step and attack (s) if several attacks run at once.

    Attributes:
        number: The number of attacks at once.
        run: The optimiser, or "one training step".
        rate: Steps of attacks per second.
        gain: The rate divided by that of the smallest number of attacks.
    """

    number: int
    run: str
    rate: float
    gain: float


class Race(OnLeNet):
    """Measure the PSNR over time of one attack on one network.

    Attributes:
        effort: The share of the published number of steps.
        skip: The number of images that are left out at the beginning.
    """

    part: ClassVar[str] = "race"
    attack: str
    samples: int
    effort: float
    skip: int = 0

    def run(self) -> list[Timed]:
        """Attack all images together."""
        count = self.skip + self.samples
        shown = private("smoothing", self.stage, count, self.dataset, self.seed, self.device)
        inputs, targets = shown.inputs[self.skip :], shown.targets[self.skip :]
        leaks = [observe(shown.model, inputs[n : n + 1], targets[n : n + 1].to(inputs)) for n in range(self.samples)]
        clock = Clock(data.denormalise(inputs.double()).clamp(0, 1))
        lost = [False] * self.samples
        if self.attack in (CLOSED, POLISHED):
            clock.done(torch.cat([_inverted(leak, self.attack == POLISHED) for leak in leaks]))
        else:
            options = {"label_prior": "smoothing"} | _options(self.attack, self.stage, self.effort, inputs.shape[1])
            found = match(leaks, seed=self.seed + self.skip, watch=clock.watch, **options)
            lost = [status[0] == "diverged" for status in found.status]
            clock.done(found.images)
        return [
            RacedImage.of(row, lost=lost[row.image]) if isinstance(row, RacedImage) else row for row in clock.rows()
        ]


class Batches(Experiment):
    """Match averaged gradients of an untrained LeNet by L2, with known labels."""

    part: ClassVar[str] = "batch"
    size: int
    leaks: int
    steps: int
    dataset: str

    def run(self) -> list[Timed]:
        """Match all gradients together."""
        shown = private("smoothing", "untrained", self.size * self.leaks, self.dataset, self.seed, self.device)
        inputs, targets = shown.inputs, shown.targets.to(shown.inputs)
        pairs = zip(inputs.split(self.size), targets.split(self.size), strict=True)
        own = [observe(shown.model, *pair) for pair in pairs]
        clock = Clock(data.denormalise(inputs.double()).clamp(0, 1))
        found = match(own, targets, optimizer=LBFGS(steps=self.steps), seed=self.seed, watch=clock.watch)
        clock.done(found.images)
        return clock.rows()


class Together(Experiment):
    """Time the same steps for increasing numbers of attacks at once on an untrained LeNet."""

    part: ClassVar[str] = "together"
    numbers: list[int]
    dataset: str

    def run(self) -> list[Pace]:
        """Time a step of each of two optimisers, and a training step with as many samples."""
        shown = private("smoothing", "untrained", max(self.numbers), self.dataset, self.seed, self.device)
        inputs, targets = shown.inputs, shown.targets.to(shown.inputs)
        leaks = [observe(shown.model, inputs[n : n + 1], targets[n : n + 1]) for n in range(len(inputs))]
        now = time.perf_counter if devices.accelerated(inputs.device) else time.process_time
        timed: list[tuple[int, str, float]] = []
        for number in self.numbers:
            own, known = leaks[:number], targets[:number]
            steps = {
                "Adam": partial(_matched, own, known, Adam()),
                "L-BFGS": partial(_matched, own, known, LBFGS(inner=1)),
                "one training step": partial(_trained, shown.model, inputs[:number], known),
            }
            timed += [(number, run, _timed(step, now)) for run, step in steps.items()]
        alone = {run: number / seconds for number, run, seconds in timed if number == min(self.numbers)}
        return [
            Pace(
                what="together",
                number=number,
                run=run,
                seconds=seconds / number,
                rate=number / seconds,
                gain=number / seconds / alone[run],
            )
            for number, run, seconds in timed
        ]


class Clock:
    """Record the PSNR over an attack's time, which excludes the time of the PSNR computation itself.

    On a CPU this is the CPU time of the process, which other processes do not affect.
    """

    def __init__(self, truth: Tensor) -> None:
        self.truth, self.looked = truth, 0.0
        self.now = time.perf_counter if devices.accelerated(truth.device) else time.process_time
        self.started = self.now()
        self.seen: dict[int, tuple[float, Tensor]] = {}

    def watch(self, who: Tensor, step: int, best: Tensor) -> None:
        """Record the PSNR of the best inputs (a, B, …) of the leaks `who` (a,) after a step."""
        now = self.now()
        # Parts of the leaks are attacked in turn, so a step's time is that of its last part.
        values = self.seen[step][1] if step in self.seen else torch.full((len(self.truth),), math.nan).double()
        found = metrics.psnr(data.denormalise(best.flatten(0, 1).double()), self.truth[_samples(who, best)])
        values[_samples(who, best).cpu()] = found.cpu()
        self.seen[step] = (now - self.started - self.looked, values)
        self.looked += self.now() - now

    def done(self, images: Tensor) -> None:
        """Record the PSNR of the final images (N, …)."""
        values = metrics.psnr(data.denormalise(images.double()), self.truth).cpu()
        self.seen[max(self.seen, default=-1) + 1] = (self.now() - self.started - self.looked, values)

    def rows(self) -> list[Timed]:
        """Return a row for each image, a row for each image and PSNR level, and the curve of the mean PSNR."""
        count = len(self.truth)
        points = sorted(self.seen.values(), key=lambda point: point[0])
        seconds = [second / count for second, _ in points]
        quality = torch.stack([values for _, values in points]).nan_to_num(nan=0.0).clamp(0, TOP).cummax(dim=0)[0]
        rows: list[Timed] = [
            RacedImage(what="image", image=n, psnr=psnr, seconds=seconds[-1])
            for n, psnr in enumerate(quality[-1].tolist())
        ]
        for level in LEVELS:
            for n, place in enumerate((quality < level).sum(dim=0).tolist()):
                row = Level(what="level", image=n, level=level, reached=place < len(seconds))
                rows.append(Level.of(row, seconds=seconds[place]) if row.reached else row)
        drawn = sorted({*range(0, len(points), max(1, len(points) // POINTS)), len(points) - 1})
        return rows + [
            CurvePoint(what="curve", seconds=seconds[place], psnr=float(quality[place].mean())) for place in drawn
        ]


def _samples(who: Tensor, best: Tensor) -> Tensor:
    """Return the indices of the samples of these leaks."""
    size = best.shape[1]
    return (who[:, None] * size + torch.arange(size, device=who.device)).flatten()


def _inverted(leak: Leak, polish: bool) -> Tensor:
    closed = trace_convolutional(leak)
    return polished(leak, closed.inputs, closed.labels).inputs if polish else closed.inputs


def _options(attack: str, stage: str, effort: float, channels: int) -> dict[str, Any]:
    """Return the options of `match` for an attack, with the share `effort` of its steps."""
    if attack == SECOND:
        return {"optimizer": LevenbergMarquardt(steps=40)}
    options: dict[str, Any] = {"optimizer": LBFGS()} if attack == SAFE else dict(preset(attack, channels=channels))
    if attack.startswith("wang2024"):
        options["prior"] = prior(stage)
    chosen = options["optimizer"]
    return options | {"optimizer": replace(chosen, steps=max(1, round(effort * chosen.steps)))}


def _matched(leaks: list[Leak], targets: Tensor, optimizer: Adam | LBFGS, steps: int) -> None:
    match(leaks, targets, optimizer=replace(optimizer, steps=steps))


def _trained(model: nn.Module, inputs: Tensor, targets: Tensor, steps: int) -> None:
    for _ in range(steps):
        loss = -(targets * model(inputs).log_softmax(dim=1)).sum(dim=1).mean()
        torch.autograd.grad(loss, list(model.parameters()))


def _timed(run: Callable[[int], Any], now: Callable[[], float]) -> float:
    """Return the time of one step (s): the difference between many steps and few, which excludes the setup."""
    run(UNTIMED)
    best = math.inf
    for _ in range(2):
        times = []
        for steps in (UNTIMED, UNTIMED + TIMED):
            started = now()
            run(steps)
            times.append(now() - started)
        best = min(best, (times[1] - times[0]) / TIMED)
    return max(best, 1e-9)


def _races(record: Record, what: str) -> pd.DataFrame:
    return select(record.rows(Race), what=what)


def _batched(record: Record) -> pd.DataFrame:
    rows = select(record.rows(Batches), what="image")
    return rows.astype({"size": int, "leaks": int, "psnr": float})


def headline(record: Record) -> Headline:
    """Return the finding: the closed form restores every image in seconds, and no published search gets as far."""
    known = claims.judgements(record)
    closed = known["cost-closed-60"]
    level = closed.claim.measure.where["level"]
    images = select(_races(record, "image"), attack=CLOSED)
    levels = select(_races(record, "level"), level=level)
    searches = levels[levels["attack"].isin(MATCHING)]
    return Headline(
        f"Within {images['seconds'].max():.1f} s of CPU time per image, the closed form restores {closed.cases} images "
        f"from LeNet exactly (to {level} dB); none of {len(searches)} searches by published first-order attacks, with "
        "all their steps, gets as far.",
        true=closed.value == 100 and len(searches) > 0 and not searches["reached"].any(),
        claim="cost-closed-60",
        what=f"images that the closed form restores exactly, to {level} dB (untrained and trained LeNet, CIFAR-10)",
        of="images",
        figure=figure_race,
    )


def table(record: Record) -> pd.DataFrame:
    """Return the time per image (s) in which each attack reaches each PSNR level.

    Rows: states of LeNet and attacks. Columns: n images; for each level the median time of the images that reach it,
    and their number if not all do; the mean final PSNR (dB); the mean total time (s); and how many attacks diverged.
    """
    return summary(
        record.rows(Race),
        {"LeNet": "stage", "attack": "attack"},
        {
            "images": among(count(), what="image"),
            **{f"time to {_shown(level)} (s)": among(_reached, what="level", level=level) for level in LEVELS},
            "final PSNR (dB)": among(spread_if_many("psnr", ".1f"), what="image"),
            "total time (s)": among(mean("seconds", ".2g"), what="image"),
            "diverged": among(total("lost", ".0f"), what="image"),
        },
    )


def _shown(level: int) -> str:
    """Return a level (dB) with its word on the book's scale, if it has one."""
    return ", ".join([f"{level} dB", *(word for word, least in metrics.SCALE.items() if least == level)])


def _reached(rows: pd.DataFrame) -> str:
    """Return the median time (s) of the images that reached a level, and their number if not all did."""
    there = rows[rows["reached"].astype(bool)]
    if there.empty:
        return NOTHING
    share = "" if len(there) == len(rows) else f" ({len(there)} of {len(rows)})"
    return f"{there['seconds'].median():.2g}{share}"


def together_table(record: Record) -> pd.DataFrame:
    """Return the time per step and attack (ms).

    Rows: numbers of attacks at once. Columns: optimisers, a training step, and the time of Adam divided by the latter.
    """
    lines = []
    for number, group in record.rows(Together).groupby("number"):
        seconds = group.set_index("run")["seconds"].astype(float)
        line = {"attacks at once": f"{number:.0f}"}
        line |= {f"{run} (ms)": f"{1000 * seconds[run]:.2f}" for run in seconds.index}
        line["time of Adam / training step"] = f"{seconds['Adam'] / seconds['one training step']:.1f}"
        lines.append(line)
    return pd.DataFrame(lines)


def batch_table(record: Record) -> pd.DataFrame:
    """Return the results of matching on averaged gradients.

    Rows: batch sizes B, and numbers of gradients. Columns: mean and lowest PSNR (dB), and time per image (s).
    """
    return summary(
        _batched(record).sort_values(["size", "leaks"], kind="stable"),
        {"B": "size", "gradients": "leaks"},
        {
            "PSNR (dB)": spread_if_many("psnr", ".1f"),
            "lowest PSNR (dB)": least("psnr", ".1f"),
            "mean time per image (s)": mean("seconds", ".2g"),
        },
    )


def figure_race(record: Record) -> Figure:
    """Plot the mean PSNR (dB) of the best iterates against the time per image (s).

    One panel for each state of LeNet, one line for each attack.
    """
    curves = _races(record, "curve")
    # Second order is run image by image, so each image has its own curve.
    stages = list(dict.fromkeys(curves["stage"]))
    figure, axes = figures.panels(1, len(stages), height=4.2, sharey=True)
    for axis, stage in zip(axes[0], stages, strict=True):
        for index, attack in enumerate(ATTACKS):
            own = curves[(curves["stage"] == stage) & (curves["attack"] == attack)]
            colour = figures.COLOURS[index % len(figures.COLOURS)]
            named = attack
            alone = own["skip"] if "skip" in own else pd.Series(0, index=own.index)
            for _, line in own.groupby(alone.fillna(-1)):
                line = line.sort_values("seconds")
                heights = line["psnr"].astype(float)
                if len(line) == 1:
                    axis.plot(line["seconds"], heights, "D", color=colour, markersize=7, label=named)
                else:
                    dash = figures.DASHES[(index + index // len(figures.COLOURS)) % len(figures.DASHES)]
                    axis.plot(line["seconds"], heights, color=colour, linestyle=dash, label=named)
                named = "_"
        axis.set_xscale("log")
        axis.set_xlabel("CPU time per image (s)")
        axis.set_title(f"LeNet, {stage}")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[0][0].set_ylabel("mean PSNR of the best image so far (dB)")
    figures.legend_below(figure, 3)
    return figure


def figure_together(record: Record) -> Figure:
    """Plot two panels on attacks together and on batches.

    Left: steps of attacks per second against the number of attacks at once. Right: PSNR (dB) against the batch size.
    """
    figure, axes = figures.panels(1, 2, height=3.0)
    together = record.rows(Together)
    for index, (run, group) in enumerate(together.groupby("run", sort=False)):
        style = {"color": figures.COLOURS[index], "linestyle": figures.DASHES[index], "marker": "o", "markersize": 4}
        axes[0][0].plot(group["number"], group["rate"].astype(float), label=run, **style)
    axes[0][0].set(xscale="log", yscale="log", xlabel="attacks at once", ylabel="steps of all attacks per second")
    axes[0][0].set_title("attacks at once")
    numbers = sorted(set(together["number"]))
    axes[0][0].set_xticks(numbers, [f"{number:.0f}" for number in numbers])
    axes[0][0].set_xticks([], minor=True)
    figures.legend_below(figure, 3)
    figures.swarms(axes[0][1], {f"{size}": group["psnr"] for size, group in _batched(record).groupby("size")})
    axes[0][1].set(xlabel="samples in one averaged gradient", ylabel="PSNR (dB)")
    axes[0][1].set_title("averaged gradients")
    return figure


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.part("race")
    rows = rows[rows["what"] == "image"]
    found = collected(
        record, rows, "images", PSNR, attack=rows["attack"].map(_outcome_attack), network="lenet",
        training=rows["stage"], data=rows["dataset"], detail="as published, " + rows["attack"],
    )  # fmt: skip
    rows = record.part("batch")
    rows = rows[rows["what"] == "image"]
    return found + collected(
        record, rows, "images", PSNR, attack="gradient matching, l2", network="lenet", data=rows["dataset"],
        batch=rows["size"].astype(int),
    )  # fmt: skip


def _outcome_attack(name: str) -> str:
    return name if name.startswith("closed form") else f"gradient matching, {name}"
