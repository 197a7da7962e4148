"""A CNN in closed form, and what matching costs

Beyond wang2024, section 4.3: invert LeNet layer by layer, then refine the image until only rounding errors remain. The
published attacks by gradient matching are timed beside this: alone, many together, and on batches.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import claims, data, metrics, studies
from gradleak.images import LBFGS, Adam, LevenbergMarquardt, match, polished, trace_convolutional
from gradleak.images.presets import MATCHING, preset
from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.show.drawn import Mark, drawn, level, lines, scattered
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import STAGES, Stage
from gradleak.studies.shared.attempts import clock, timed
from gradleak.studies.shared.defended import BehindDefence, Defence, outcomes_behind
from gradleak.studies.shared.matched_runs import POINTS, TOP, Draw, OnLeNet, Private, lenets, prior
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import PSNR, Outcome, collected
from gradleak.studies.shared.samples import DTYPES, inputs_of, pooled_samples
from gradleak.wording import counted

PLACE = "Beyond section 4.3"
# Further columns that depend on time measurements.
TIMES = ("rate", "gain")
# The paper's best PSNR (dB) for smoothed labels: Table 4 (untrained) and Table 3 (trained).
PUBLISHED = {"untrained": 25.9, "trained": 20.4}
# The attacks against the clock. No paper has L-BFGS with a line search, second order and the closed form. From a random
# start, second order does not find images of a trained network, as the page on Table 3 shows.
SAFE, SECOND, CLOSED, POLISHED = "L-BFGS, searched", "Levenberg-Marquardt", "closed form", "closed form, polished"
ATTACKS = (*MATCHING, SAFE, SECOND, CLOSED, POLISHED)
LEVELS = (20, 25, 30, 40, 60, 100)
# The published attack on each image of the closed form.
MATCHED = "L2 matching"
# The title of a panel, by the state of LeNet.
LENET = "{} LeNet".format
# Steps of attacks that run together: timed steps, and steps before the measurement.
TIMED, UNTIMED = 10, 2
DEFENSES = [*(f"gaussian/1e-{power}" for power in range(8, 2, -1)), "clip/0.5", "quantize/16", "half/16"]


class Parameters(studies.Parameters):
    """Parameters of the page: numbers of images for each attack, networks, defences, and steps of searches."""

    samples: int = setting(paper=30, ge=1, le=10_000)
    polishings: int = setting(paper=30, ge=0, le=10_000)
    compared: int = setting(paper=5, ge=0, le=1000)
    matching_steps: int = setting(paper=300, ge=1, le=100_000)
    defended: int = setting(paper=10, ge=1, le=1000)
    defenses: list[Defence] = setting(paper=DEFENSES, min_length=1)
    raced: int = setting(paper=5, ge=1, le=1000)
    effort: float = setting(paper=1.0, gt=0, le=1)
    second_order: int = setting(paper=2, ge=0, le=1000)
    together: list[int] = setting(paper=[1, 4, 16, 64, 256])
    batches: list[int] = setting(paper=[1, 2, 4, 8])
    batch_leaks: int = setting(paper=2, ge=1, le=1000)
    stages: list[Stage] = setting(paper=list(STAGES))
    dataset: str = setting(paper="cifar10")

    def sees(self) -> list[Sees]:
        """Return LeNet in each state, and the images that it sees."""
        return lenets(self.dataset, ["untrained", *self.stages])

    def experiments(self) -> Iterator[Experiment]:
        """Yield the closed form, the defences, and the attacks against the clock (second order image by image)."""
        for stage, dtype in product(self.stages, DTYPES):
            yield ClosedForm.of(self, stage=stage, dtype=dtype)
        for stage, image in product(self.stages, range(min(self.polishings, self.samples))):
            matching = self.matching_steps if image < self.compared else 0
            yield Polish.of(self, stage=stage, image=image, matching=matching)
        for defense in self.defenses:
            yield DefendedImages.of(self, samples=self.defended, **dict(defense))
        for stage, attack in product(self.stages, ATTACKS):
            if attack not in (SECOND, POLISHED):
                yield Race.of(self, attack=attack, stage=stage, samples=self.raced)
            elif (stage, attack) != ("trained", SECOND):
                for place in range(min(self.second_order, self.raced)):
                    yield Race.of(self, attack=attack, stage=stage, samples=1, skip=place, effort=1.0)
        for size in self.batches:
            yield Batches.of(self, size=size, leaks=self.batch_leaks, steps=self.matching_steps)
        yield Together.of(self, numbers=self.together)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{counted(self.samples, 'smoothed image')} per network, {data.title(self.dataset)}"


class Smoothed(OnLeNet):
    """Images with smoothed labels on LeNet, which is untrained unless a stage is stated."""

    stage: Stage = "untrained"

    def smoothed(self, last: int, first: int = 0, draw: Draw | None = None) -> Private:
        """Return LeNet, and the private images from number `first` to number `last` with their labels."""
        return self.private("smoothing", last, draw).part(first, last)


class ClosedForm(Smoothed, part="closed"):
    """Invert LeNet for single images, with gradients in one precision."""

    dtype: str
    samples: int

    def run(self) -> Iterator[Columns]:
        """Invert every image; yield a row for the image and for each layer."""
        shown, dtype = self.smoothed(self.samples, draw=pooled_samples), DTYPES[self.dtype]
        shown = shown._replace(model=shown.model.to(dtype), inputs=shown.inputs.to(dtype))
        double = copy.deepcopy(shown.model).double()
        for n, (image, leak) in enumerate(zip(shown.inputs.split(1), shown.leaks(), strict=True)):
            found, seconds = timed(trace_convolutional, leak, clock=time.perf_counter)
            yield _judged(found.inputs, image, image=n, seconds=seconds, status=found.status, layer="image")
            truths = inputs_of(nn.Conv2d, double, image.double()).values()
            for report, own in zip(reversed(found.layers), truths, strict=True):
                actual = math.nan
                if report.found is not None:
                    actual = float((report.found.cpu() - own[0].cpu()).norm() / own.cpu().norm())
                counts = {name: getattr(report, name) for name in ("equations", "unknowns", "rank", "claimed")}
                yield {"image": n, "layer": report.name, "actual": actual, **counts}


class Polish(Smoothed, part="polish"):
    """Restore one image by the closed form and refine the result, with float32 gradients.

    Gradient matching is run as well if `matching`, its number of steps, is not 0.
    """

    image: int
    matching: int

    def run(self) -> Iterator[Columns]:
        """Restore the image by these attacks; yield a picture if gradient matching was run."""
        shown = self.smoothed(self.image + 1, self.image, pooled_samples)
        sent, (leak,) = shown.inputs, shown.leaks()
        closed, first = timed(trace_convolutional, leak, clock=time.perf_counter)
        better, then = timed(polished, leak, closed.inputs, closed.labels, clock=time.perf_counter)
        yield _judged(closed.inputs, sent, attack=CLOSED, seconds=first)
        yield _judged(better.inputs, sent, attack=POLISHED, seconds=first + then, steps=len(better.misfits) - 1)
        if self.matching:
            options = {"optimizer": LBFGS(steps=self.matching), "seed": self.seed + self.image}
            found, seconds = timed(match, leak, shown.targets.to(sent), clock=time.perf_counter, **options)
            yield _judged(found.images, sent, attack=MATCHED, seconds=seconds, steps=self.matching)
            strip = torch.cat([sent.double(), found.images.double(), closed.inputs, better.inputs])
            yield {"attack": "picture", "picture": packed(data.denormalise(strip), len(strip))}


class DefendedImages(BehindDefence, Smoothed):
    """Invert single images behind a defence.

    One attacker expects no noise ("unaware"), the other knows its standard deviation ("aware").
    """

    samples: int

    def run(self) -> Iterator[Columns]:
        """Defend every gradient, and invert it as both attackers."""
        shown = self.smoothed(self.samples, draw=pooled_samples)
        for n, (image, leak) in enumerate(zip(shown.inputs.split(1), shown.leaks(), strict=True)):
            largest = max(float(value.abs().max()) for value in leak.gradients.values())
            step = largest / (2**15 - 1) if self.defense == "quantize" else 0.0
            noise = self.level if self.defense == "gaussian" else step / math.sqrt(12)
            for about, found in self.inversions(leak, self.seed + n, trace_convolutional, noise):
                yield _judged(found.inputs, image, image=n, **about)


class Race(Smoothed, part="race"):
    """Measure the PSNR over time of one attack on one network.

    Attributes:
        effort: The share of the published number of steps.
        skip: The number of images that are left out at the beginning.
    """

    attack: str
    samples: int
    effort: float
    skip: int = 0

    def run(self) -> list[Columns]:
        """Attack all images together."""
        shown = self.smoothed(self.skip + self.samples, self.skip)
        leaks, timer = shown.leaks(), Timer(shown.inputs, self.device)
        if self.attack in (CLOSED, POLISHED):
            closed = [trace_convolutional(leak) for leak in leaks]
            images = [own.inputs for own in closed]
            if self.attack == POLISHED:
                pairs = zip(leaks, closed, strict=True)
                images = [polished(leak, own.inputs, own.labels).inputs for leak, own in pairs]
            return timer.rows(torch.cat(images), [False] * len(leaks))
        options: dict[str, Any] = {"label_prior": "smoothing"}
        options |= options_of(self.attack, self.stage, self.effort, channels=shown.inputs.shape[1])
        found = match(leaks, seed=self.seed + self.skip, watch=timer.watch, **options)
        return timer.rows(found.images, [status[0] == "diverged" for status in found.status])


class Batches(Smoothed, part="batch"):
    """Match averaged gradients of an untrained LeNet by L2, with known labels."""

    size: int
    leaks: int
    steps: int

    def run(self) -> list[Columns]:
        """Match all gradients together."""
        shown = self.smoothed(self.size * self.leaks)
        leaks, timer = shown.leaks(self.size), Timer(shown.inputs, self.device)
        optimizer, labels = LBFGS(steps=self.steps), shown.targets.to(shown.inputs)
        return timer.rows(match(leaks, labels, optimizer=optimizer, seed=self.seed, watch=timer.watch).images)


class Together(Smoothed, part="together"):
    """Time the same steps for increasing numbers of attacks at once on an untrained LeNet."""

    numbers: list[int]

    def run(self) -> list[Columns]:
        """Time a step of each of two optimisers, and a training step with as many samples."""
        shown = self.smoothed(max(self.numbers))
        seconds = {
            (number, name): self._timed(step) / number
            for number in self.numbers
            for name, step in _steps(shown.part(0, number)).items()
        }
        return [
            {
                "what": "together",
                "at_once": number,
                "run": name,
                "seconds": each,
                "rate": 1 / each,
                "gain": seconds[min(self.numbers), name] / each,
            }
            for (number, name), each in seconds.items()
        ]

    def _timed(self, run: Callable[[int], Any]) -> float:
        """Return the time of one step (s): the difference between many steps and few, which excludes the setup."""
        run(UNTIMED)
        many, few = (
            min(timed(run, steps, clock=clock(self.device))[1] for _ in range(2))
            for steps in (UNTIMED + TIMED, UNTIMED)
        )
        return max((many - few) / TIMED, 1e-9)


def _steps(shown: Private) -> dict[str, Callable[[int], Any]]:
    """Return, by name, functions that take a number of steps on all samples at once: two attacks, and training."""
    leaks, labels = shown.leaks(), shown.targets.to(shown.inputs)

    def train(steps: int) -> None:
        for _ in range(steps):
            loss = -(labels * shown.model(shown.inputs).log_softmax(dim=1)).sum(dim=1).mean()
            torch.autograd.grad(loss, list(shown.model.parameters()))

    return {
        "Adam": lambda steps: match(leaks, labels, optimizer=Adam(steps=steps)),
        "L-BFGS": lambda steps: match(leaks, labels, optimizer=LBFGS(steps=steps, inner=1)),
        "one training step": train,
    }


class Timer:
    """Record the PSNR over an attack's time, which excludes the time of the PSNR computation itself.

    On a CPU this is the CPU time of the process, which other processes do not affect.

    Args:
        inputs: The private inputs (N, …), normalised.
        device: The device of the attack.
    """

    def __init__(self, inputs: Tensor, device: str) -> None:
        self.truth, self.looked = data.denormalise(inputs.double()).clamp(0, 1), 0.0
        self.now = clock(device)
        self.started = self.now()
        # The time (s) and the PSNR of every image after each step.
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

    def rows(self, images: Tensor, lost: list[bool] | None = None) -> list[Columns]:
        """Return rows on the time per image (s): each image's final PSNR and each level's time, and the mean curve.

        Args:
            images: The final images (N, …).
            lost: Whether the attack on each image diverged, if that is recorded.
        """
        values = metrics.psnr(data.denormalise(images.double()), self.truth).cpu()
        self.seen[max(self.seen, default=-1) + 1] = (self.now() - self.started - self.looked, values)
        points = sorted(self.seen.values(), key=lambda point: point[0])
        seconds = [second / len(values) for second, _ in points]
        best = torch.stack([own for _, own in points]).nan_to_num(nan=0.0).clamp(0, TOP).cummax(dim=0)[0]
        rows: list[Columns] = []
        for n, psnr in enumerate(best[-1].tolist()):
            row: Columns = {"what": "image", "image": n, "psnr": psnr, "seconds": seconds[-1]}
            rows.append(row | ({"lost": lost[n]} if lost else {}))
        for least in LEVELS:
            for n, place in enumerate((best < least).sum(dim=0).tolist()):
                row = {"what": "level", "image": n, "psnr_to_reach": least, "reached": place < len(seconds)}
                rows.append(row | {"seconds": seconds[place]} if row["reached"] else row)
        shown = sorted({*range(0, len(points), max(1, len(points) // POINTS)), len(points) - 1})
        means = [{"what": "curve", "seconds": seconds[place], "psnr": float(best[place].mean())} for place in shown]
        return rows + means


def options_of(attack: str, stage: str, effort: float, channels: int) -> dict[str, Any]:
    """Return the options of `match` for an attack, with the share `effort` of its steps."""
    if attack == SECOND:
        return {"optimizer": LevenbergMarquardt(steps=40)}
    options: dict[str, Any] = {"optimizer": LBFGS()} if attack == SAFE else dict(preset(attack, channels=channels))
    if attack.startswith("wang2024"):
        options["prior"] = prior(stage)
    chosen = options["optimizer"]
    return options | {"optimizer": replace(chosen, steps=max(1, round(effort * chosen.steps)))}


def _judged(inputs: Tensor, truth: Tensor, **about: Any) -> Columns:
    """Return a row: the similarity of restored inputs (1, C, H, W) to the true ones, both normalised, and `about`."""
    image, true = (data.denormalise(one.double()).cpu() for one in (inputs, truth))
    true = true.clamp(0, 1)
    return {"psnr": float(metrics.psnr(image, true)), "ssim": float(metrics.ssim(image, true))} | about


def _restored(record: Record) -> pd.DataFrame:
    """Return a row for each image that an attack restored, by state of LeNet, precision and attack."""
    closed, others = select(record.rows(ClosedForm), layer="image"), record.rows(Polish)
    if len(others):  # an image of the closed form is in both parts
        others = others[others["attack"].isin((POLISHED, MATCHED))].assign(dtype="float32")
    rows = pd.concat([closed.assign(attack=CLOSED), others])
    return rows.sort_values(["stage", "dtype", "attack"], ascending=[False, True, True])


def summary(record: Record) -> Summary:
    """Return the finding: a closed form restores images in seconds, and no published search gets as far."""
    known = claims.judgements(record)
    untrained, trained, seconds = (known[f"cnn-{name}"] for name in ("untrained-closed", "trained-closed", "seconds"))
    level = known["cost-closed-60"].claim.measure.where["psnr_to_reach"]
    searches = select(record.rows(Race), what="level", psnr_to_reach=level)
    searches = searches[searches["attack"].isin(MATCHING)]
    better = all((known[f"cnn-{stage}-closed"].value or 0) > 2 * best for stage, best in PUBLISHED.items())
    return Summary(
        f"A closed form restores single images from the gradient of an untrained LeNet at {untrained.text} on average, "
        f"and of a trained LeNet at {trained.text}, in {seconds.text} per image. In {len(searches)} searches, no "
        f"published first-order attack reaches {level} dB.",
        true=better and known["cost-closed-60"].value == 100 and len(searches) > 0 and not searches["reached"].any(),
        claim="cnn-untrained-closed",
        what="mean PSNR of single images by the closed form (untrained LeNet, CIFAR-10, float32, smoothed labels)",
        of="images",
        figure=figure_psnr,
        leaks=leaks(record),
        outcomes=outcomes(record),
    )


def figure_images(record: Record) -> Figure:
    """Show the compared images, one panel for each network: private, matched, closed form, polished."""

    def strips(axis: Axes, rows: pd.DataFrame) -> None:
        show(axis, rows["picture"].tolist())
        columns = ["private", MATCHED, CLOSED, "polished"]
        side = axis.get_xlim()[1] / len(columns)
        axis.set_xticks([(index + 0.5) * side for index in range(len(columns))], columns)

    rows = record.rows(Polish)
    rows = rows[rows["picture"].notna()] if "picture" in rows else rows[:0]
    height = 1.06 * rows["image"].nunique() + 0.5
    empty = "No image was matched in this run: compared = 0"
    return drawn(rows, strips, panels="stage", title=LENET, height=height, sharey=False, empty=empty)


def figure_psnr(record: Record) -> Figure:
    """Plot the PSNR (dB) of every image by attack, one panel for each network; a line marks the paper's best PSNR."""
    rows = _restored(record)
    rows = rows.assign(
        name=rows["attack"].str.replace(", ", ",\n") + ",\n" + rows["dtype"],
        psnr=rows["psnr"].astype(float).clip(lower=0),
        best=rows["stage"].map(PUBLISHED),
    )
    best = level("best", "the paper's best, by matching")
    return drawn(rows, _swarms("name"), best, panels="stage", title=LENET, height=3.2, legend=1, ylabel="PSNR (dB)")


def _swarms(by: str) -> Mark:
    """Draw the PSNR of every image, one swarm for each value of a column."""
    return lambda axis, rows: figures.swarms(
        axis, {str(name): own["psnr"] for name, own in rows.groupby(by, sort=False)}
    )


def figure_race(record: Record) -> Figure:
    """Plot the mean PSNR (dB) of the best iterates against the time per image (s).

    One panel for each state of LeNet, one line for each search, and a point for an attack without steps. Second order
    and polishing attack one image at a time, of which the first is drawn.
    """
    rows = select(record.rows(Race), what="curve")
    return drawn(
        rows[rows.assign(skip=rows.get("skip"))["skip"].astype(float).fillna(0) == 0],
        lines("seconds", "psnr", by="attack", order=ATTACKS[:-2], looks={SECOND: {"linestyle": ":"}}, marker=""),
        scattered("seconds", "psnr", "attack", order=ATTACKS[-2:], color=figures.TRUTH, markersize=7),
        panels="stage",
        title=LENET,
        height=4.2,
        legend=3,
        xscale="log",
        xlabel="CPU time per image (s)",
        ylabel="mean PSNR of the best image so far (dB)",
    )


def figure_batches(record: Record) -> Figure:
    """Plot the PSNR (dB) of every image that matching restores against the number of samples in the gradient."""
    rows = select(record.rows(Batches), what="image").astype({"size": int})
    return drawn(rows, _swarms("size"), xlabel="samples in one averaged gradient", ylabel="PSNR (dB)")


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    rows = select(record.rows(ClosedForm), layer="image", dtype="float32").astype({"psnr": float})
    own = rows.groupby("stage", sort=False).agg({"psnr": ["mean", "std", "size"], "seconds": "median"})
    psnr = [f"{mean:.1f} ± {std:.1f} dB {stage}" for stage, mean, std in own["psnr"][["mean", "std"]].itertuples()]
    return Leaks(
        "the image, layer by layer",
        "one image; LeNet, CIFAR-10",
        f"{', '.join(psnr)} ({own['psnr', 'size'].iloc[0]} images each)",
        f"{own['seconds', 'median'].iloc[0]:.2g} s elapsed",
        kind="images",
        attack=CLOSED,
        network="LeNet",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached: each attack on single images once, and matching on batches."""
    restored = _restored(record)
    races, batches = (select(record.rows(kind), what="image") for kind in (Race, Batches))
    searches, matched = races[~races["attack"].str.startswith(CLOSED)], "gradient matching, l2"
    rows = pd.concat(
        [
            restored.assign(attack=restored["attack"].replace(MATCHED, matched)),
            searches.assign(attack="gradient matching, " + searches["attack"]),
            batches[batches["size"] > 1].assign(attack=matched),
        ],
        ignore_index=True,
    ).fillna({"stage": "untrained", "dtype": "float32", "size": 1})
    found = collected(
        record, rows, "images", PSNR, attack=rows["attack"], network="lenet", training=rows["stage"],
        data=rows["dataset"], client=rows["dtype"], batch=rows["size"].astype(int),
    )  # fmt: skip
    return found + outcomes_behind(record, record.rows(DefendedImages), "lenet")
