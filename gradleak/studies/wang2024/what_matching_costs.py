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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import claims, data, devices, metrics, studies
from gradleak.images import LBFGS, Adam, LevenbergMarquardt, match, polished, trace_convolutional
from gradleak.images.presets import MATCHING, preset
from gradleak.leak import Leak, observe
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import arranged, drawn, lines, look_of, panel, powers_of_two
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, among, cells, count, mean, select, spread_if_many, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.attacked_networks import STAGES, Stage
from gradleak.studies.shared.matched_runs import POINTS, TOP, OnLeNet, Private, lenets, prior, private
from gradleak.studies.shared.outcomes import PSNR, Outcome, collected
from gradleak.studies.wang2024.columns import COLUMNS

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

    def run(self) -> list[Columns]:
        """Attack all images together."""
        count = self.skip + self.samples
        shown = private("smoothing", self.stage, count, self.dataset, self.seed, self.device)
        shown = shown._replace(inputs=shown.inputs[self.skip :], targets=shown.targets[self.skip :])
        leaks, clock = _leaks(shown), Clock(shown.inputs)
        lost = [False] * self.samples
        if self.attack in (CLOSED, POLISHED):
            clock.done(torch.cat([_inverted(leak, self.attack == POLISHED) for leak in leaks]))
        else:
            own = _options(self.attack, self.stage, self.effort, channels=shown.inputs.shape[1])
            options: dict[str, Any] = {"label_prior": "smoothing"} | own
            found = match(leaks, seed=self.seed + self.skip, watch=clock.watch, **options)
            lost = [status[0] == "diverged" for status in found.status]
            clock.done(found.images)
        rows = clock.rows()
        # The first rows are those of the images.
        return [row | {"lost": diverged} for row, diverged in zip(rows, lost, strict=False)] + rows[len(lost) :]


class Batches(Experiment):
    """Match averaged gradients of an untrained LeNet by L2, with known labels."""

    part: ClassVar[str] = "batch"
    size: int
    leaks: int
    steps: int
    dataset: str

    def run(self) -> list[Columns]:
        """Match all gradients together."""
        shown = private("smoothing", "untrained", self.size * self.leaks, self.dataset, self.seed, self.device)
        leaks, clock, targets = _leaks(shown, self.size), Clock(shown.inputs), shown.targets.to(shown.inputs)
        found = match(leaks, targets, optimizer=LBFGS(steps=self.steps), seed=self.seed, watch=clock.watch)
        clock.done(found.images)
        return clock.rows()


class Together(Experiment):
    """Time the same steps for increasing numbers of attacks at once on an untrained LeNet."""

    part: ClassVar[str] = "together"
    numbers: list[int]
    dataset: str

    def run(self) -> list[Columns]:
        """Time a step of each of two optimisers, and a training step with as many samples."""
        shown = private("smoothing", "untrained", max(self.numbers), self.dataset, self.seed, self.device)
        inputs, targets, leaks = shown.inputs, shown.targets.to(shown.inputs), _leaks(shown)
        now = time.perf_counter if devices.accelerated(inputs.device) else time.process_time
        timed: list[tuple[int, str, float]] = []
        for number in self.numbers:
            own, known = leaks[:number], targets[:number]
            steps = {
                "Adam": partial(_matched, own, known, Adam()),
                "L-BFGS": partial(_matched, own, known, LBFGS(inner=1)),
                "one training step": partial(_trained, shown.model, inputs[:number], known),
            }
            timed += [(number, run, number / _timed(step, now)) for run, step in steps.items()]
        alone = {run: rate for number, run, rate in timed if number == min(self.numbers)}
        return [
            {
                "what": "together",
                "at_once": number,
                "run": run,
                "seconds": 1 / rate,
                "rate": rate,
                "gain": rate / alone[run],
            }
            for number, run, rate in timed
        ]


class Clock:
    """Record the PSNR over an attack's time, which excludes the time of the PSNR computation itself.

    On a CPU this is the CPU time of the process, which other processes do not affect.

    Args:
        inputs: The private inputs (N, …), normalised.
    """

    def __init__(self, inputs: Tensor) -> None:
        self.truth, self.looked = data.denormalise(inputs.double()).clamp(0, 1), 0.0
        self.now = time.perf_counter if devices.accelerated(inputs.device) else time.process_time
        self.started = self.now()
        self.seen: dict[int, tuple[float, Tensor]] = {}

    def watch(self, who: Tensor, step: int, best: Tensor) -> None:
        """Record the PSNR of the best inputs (a, B, …) of the leaks `who` (a,) after a step."""
        now = self.now()
        # Parts of the leaks are attacked in turn, so a step's time is that of its last part.
        values = self.seen[step][1] if step in self.seen else torch.full((len(self.truth),), math.nan).double()
        samples = (best.shape[1] * who[:, None] + torch.arange(best.shape[1], device=who.device)).flatten()
        values[samples.cpu()] = metrics.psnr(data.denormalise(best.flatten(0, 1).double()), self.truth[samples]).cpu()
        self.seen[step] = (now - self.started - self.looked, values)
        self.looked += self.now() - now

    def done(self, images: Tensor) -> None:
        """Record the PSNR of the final images (N, …)."""
        values = metrics.psnr(data.denormalise(images.double()), self.truth).cpu()
        self.seen[max(self.seen, default=-1) + 1] = (self.now() - self.started - self.looked, values)

    def rows(self) -> list[Columns]:
        """Return rows on the time per image (s): each image's final PSNR and each level's time, and the mean curve."""
        points = sorted(self.seen.values(), key=lambda point: point[0])
        seconds = [second / len(self.truth) for second, _ in points]
        quality = torch.stack([values for _, values in points]).nan_to_num(nan=0.0).clamp(0, TOP).cummax(dim=0)[0]
        rows: list[Columns] = [
            {"what": "image", "image": n, "psnr": psnr, "seconds": seconds[-1]}
            for n, psnr in enumerate(quality[-1].tolist())
        ]
        for level in LEVELS:
            for n, place in enumerate((quality < level).sum(dim=0).tolist()):
                row: Columns = {"what": "level", "image": n, "level": level, "reached": place < len(seconds)}
                rows.append(row | {"seconds": seconds[place]} if row["reached"] else row)
        points_kept = sorted({*range(0, len(points), max(1, len(points) // POINTS)), len(points) - 1})
        return rows + [
            {"what": "curve", "seconds": seconds[place], "psnr": float(quality[place].mean())} for place in points_kept
        ]


def _leaks(shown: Private, size: int = 1) -> list[Leak]:
    """Return the gradients of the private samples, `size` samples in each."""
    batches = zip(shown.inputs.split(size), shown.targets.to(shown.inputs).split(size), strict=True)
    return [observe(shown.model, *batch) for batch in batches]


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

    def seconds(steps: int) -> float:
        started = now()
        run(steps)
        return now() - started

    seconds(UNTIMED)
    best = min(seconds(UNTIMED + TIMED) - seconds(UNTIMED) for _ in range(2))
    return max(best / TIMED, 1e-9)


def headline(record: Record) -> Headline:
    """Return the finding: the closed form restores every image in seconds, and no published search gets as far."""
    known = claims.judgements(record)
    closed = known["cost-closed-60"]
    level = closed.claim.measure.where["level"]
    images = select(record.rows(Race), what="image", attack=CLOSED)
    levels = select(record.rows(Race), what="level", level=level)
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
    """Return how good the images of each attack are in the end, and when they reach each PSNR level.

    Rows: states of LeNet and attacks. Columns: n images; the mean final PSNR (dB); the mean total time (s); how many
    attacks diverged; for each level the median time (s) of the images that reach it, and their number if not all do.
    """
    images = {
        "images": count(),
        **cells(COLUMNS, "psnr", by=spread_if_many, head="final {}"),
        **cells(COLUMNS, "seconds", by=mean, head="total {}"),
        **cells(COLUMNS, "lost", by=total),
    }
    return summary(
        record.rows(Race),
        {"LeNet": "stage", "attack": "attack"},
        {head: among(measure, what="image") for head, measure in images.items()}
        | {f"time to {level} dB (s)": among(_reached, what="level", level=level) for level in LEVELS},
    )


def _reached(rows: pd.DataFrame) -> str:
    """Return the median time (s) of the images that reached a level, and their number if not all did."""
    there = rows[rows["reached"].astype(bool)]
    share = "" if len(there) == len(rows) else f" ({len(there)} of {len(rows)})"
    return NOTHING if there.empty else f"{there['seconds'].median():.2g}{share}"


def figure_race(record: Record) -> Figure:
    """Plot the mean PSNR (dB) of the best iterates against the time per image (s).

    One panel for each state of LeNet, one line for each attack.
    """
    curves = select(record.rows(Race), what="curve")
    return drawn(
        curves.assign(skip=curves["skip"].fillna(0) if "skip" in curves else 0),
        _draw_attacks,
        panels="stage",
        title="LeNet, {}".format,
        height=4.2,
        legend=3,
        xlabel="CPU time per image (s)",
        ylabel="mean PSNR of the best image so far (dB)",
    )


def _draw_attacks(axis: Axes, rows: pd.DataFrame) -> None:
    """Draw a line for each attack, and a diamond for an attack without steps."""
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    for index, attack in enumerate(ATTACKS):
        # Second order is run image by image, so each image has its own line.
        for place, (_, line) in enumerate(select(rows, attack=attack).sort_values("seconds").groupby("skip")):
            # Attacks of one colour have different dashes.
            dashes = {"marker": "", "linestyle": look_of(index + index // len(figures.COLOURS))["linestyle"]}
            point = {"marker": "D", "linestyle": "none", "markersize": 7}
            look = look_of(index) | (point if len(line) == 1 else dashes)
            axis.plot(line["seconds"], line["psnr"].astype(float), label="_" * place + attack, **look)


def figure_together(record: Record) -> Figure:
    """Plot two panels on attacks together and on batches.

    Left: steps of attacks per second against the number of attacks at once. Right: PSNR (dB) against the batch size.
    """

    def draw_batches(axis: Axes, rows: pd.DataFrame) -> None:
        figures.swarms(axis, {f"{size:.0f}": group["psnr"] for size, group in rows.groupby("size")})

    rate = {"xlabel": "attacks at once", "yscale": "log", "ylabel": "steps of all attacks per second"}
    psnr = {"xlabel": "samples in one averaged gradient", "ylabel": "PSNR (dB)"}
    throughput = lines("at_once", "rate", by="run", marker="o"), powers_of_two("at_once")
    batches = select(record.rows(Batches), what="image")
    return arranged(
        [
            panel(record.rows(Together), *throughput, title="attacks at once", **rate),
            panel(batches, draw_batches, title="averaged gradients", **psnr),
        ],
        across=2,
        legend=3,
        sharey=False,
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    races, batches = (select(record.rows(kind), what="image") for kind in (Race, Batches))
    by_search = ~races["attack"].str.startswith("closed form")
    found = collected(
        record, races, "images", PSNR, attack=races["attack"].mask(by_search, "gradient matching, " + races["attack"]),
        network="lenet", training=races["stage"], data=races["dataset"], detail="as published, " + races["attack"],
    )  # fmt: skip
    return found + collected(
        record, batches, "images", PSNR, attack="gradient matching, l2", network="lenet", data=batches["dataset"],
        batch=batches["size"].astype(int),
    )  # fmt: skip
