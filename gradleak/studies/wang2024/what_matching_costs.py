"""What matching costs: the published attacks against the clock

Beyond wang2024, section 4.3: how long each attack takes to a given quality, alone, many together, and on batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from pydantic import Field
from torch import Tensor, nn

from gradleak import data, devices, metrics, studies
from gradleak.images import LBFGS, Adam, LevenbergMarquardt, match, polished, trace_convolutional
from gradleak.images.presets import PRESETS, preset
from gradleak.leak import Leak, observe
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import STAGES, Stage
from gradleak.studies.shared.matched_runs import POINTS, lenets, prior, private, read_by

PLACE = "Beyond section 4.3"
# Columns that hold times beside those that say so.
TIMES = ("rate", "gain")
SMALLEST: dict[str, Any] = {}
# What no paper has: the search that cannot diverge, second order, and no search at all.
# From a random start, second order does not find a trained network's image: Table 3's page shows that.
SAFE, SECOND, CLOSED, POLISHED = "L-BFGS, searched", "Levenberg-Marquardt", "closed form", "closed form, polished"
ATTACKS = (*PRESETS, SAFE, SECOND, CLOSED, POLISHED)
LEVELS = (20, 25, 30, 40, 60, 100)
# Steps that are timed when attacks run together, after two that are not.
TIMED, UNTIMED = 10, 2
TOP = 200.0  # dB: what equal images count as


class Parameters(studies.Parameters):
    """What a rerun may change."""

    images: int = Field(1, ge=1, le=1000, description="images with smoothed labels")
    effort: float = Field(0.001, gt=0, le=1, description="part of the steps that each attack is published with")
    second_order: int = Field(0, ge=0, le=1000, description="of the images, how many get second order")
    stages: list[Stage] = Field(["untrained"], description="networks: untrained, trained")
    together: list[int] = Field([1, 2], description="attacks run at once, timed")
    batches: list[int] = Field([1, 2], description="samples in one gradient")
    batch_leaks: int = Field(1, ge=1, le=1000, description="gradients a batch size")
    batch_steps: int = Field(1, ge=1, le=100_000, description="L-BFGS steps on batches, 20 gradients each")
    dataset: str = Field("photos", description="private images, test split")

    paper: ClassVar[dict[str, Any]] = {
        "images": 5,
        "effort": 1.0,
        "second_order": 2,
        "stages": list(STAGES),
        "together": [1, 4, 16, 64, 256],
        "batches": [1, 2, 4, 8],
        "batch_leaks": 2,
        "batch_steps": 300,
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return LeNet in its states, and the images that it is shown."""
        return lenets(self.dataset, ["untrained", *self.stages])


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.images} smoothed images a network, {data.title(parameters.dataset)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return read_by(parameters.dataset, parameters.stages)


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one an attack and network, one a size of batch, one of all numbers together."""
    device = studies.resolve_device(parameters.device)
    common = {"dataset": parameters.dataset, "seed": parameters.seed, "device": device}
    races = [
        {"part": "race", "attack": attack, "stage": stage, "samples": parameters.images, "effort": parameters.effort}
        | common
        for stage in parameters.stages
        for attack in ATTACKS
        if attack not in (SECOND, POLISHED)
    ]
    second = [
        {"part": "race", "attack": attack, "stage": stage, "samples": 1, "skip": place, "effort": 1.0} | common
        for stage in parameters.stages
        for attack in (SECOND, POLISHED)
        if (stage, attack) != ("trained", SECOND)
        for place in range(min(parameters.second_order, parameters.images))
    ]
    batches = [
        {"part": "batch", "size": size, "leaks": parameters.batch_leaks, "steps": parameters.batch_steps} | common
        for size in parameters.batches
    ]
    return [*races, *second, *batches, {"part": "together", "numbers": parameters.together} | common]


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Run one attack against the clock, matching on batches, or the same steps for more and more attacks at once."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]] = {"race": _race, "batch": _batch, "together": _together}
    return parts[part](**inputs)


class _Clock:
    """PSNR against the time that an attack took; what the looking takes is not its time.

    On a CPU the time is that of the process, which others at work on the machine do not stretch.
    """

    def __init__(self, truth: Tensor) -> None:
        self.truth, self.looked = truth, 0.0
        self.now = time.perf_counter if devices.accelerated(truth.device) else time.process_time
        self.started = self.now()
        self.seen: dict[int, tuple[float, Tensor]] = {}

    def watch(self, who: Tensor, step: int, best: Tensor) -> None:
        """Look at the best inputs (a, B, …) so far."""
        now = self.now()
        # Whoever waits for the last attack of several parts has waited for all before.
        values = self.seen[step][1] if step in self.seen else torch.full((len(self.truth),), math.nan).double()
        found = metrics.psnr(data.denormalise(best.flatten(0, 1).double()), self.truth[_samples(who, best)])
        values[_samples(who, best).cpu()] = found.cpu()
        self.seen[step] = (now - self.started - self.looked, values)
        self.looked += self.now() - now

    def done(self, images: Tensor) -> None:
        """Look at the result (N, …)."""
        values = metrics.psnr(data.denormalise(images.double()), self.truth).cpu()
        self.seen[max(self.seen, default=-1) + 1] = (self.now() - self.started - self.looked, values)

    def rows(self) -> list[dict[str, Any]]:
        """Return what was reached and when, an image and level, and the curve of the mean; seconds an image."""
        count = len(self.truth)
        points = sorted(self.seen.values(), key=lambda point: point[0])
        seconds = np.array([second for second, _ in points]) / count
        quality = torch.stack([values for _, values in points]).nan_to_num(nan=0.0).clamp(0, TOP).cummax(dim=0)[0]
        rows: list[dict[str, Any]] = [
            {"what": "image", "image": n, "psnr": float(quality[-1, n]), "seconds": float(seconds[-1])}
            for n in range(count)
        ]
        for level in LEVELS:
            first = (quality < level).sum(dim=0)
            for n, place in enumerate(first.tolist()):
                reached = place < len(seconds)
                rows.append(
                    {"what": "level", "image": n, "level": level, "reached": reached}
                    | ({"seconds": float(seconds[place])} if reached else {})
                )
        drawn = sorted({*range(0, len(points), max(1, len(points) // POINTS)), len(points) - 1})
        rows += [
            {"what": "curve", "seconds": float(seconds[place]), "psnr": float(quality[place].mean())} for place in drawn
        ]
        return rows


def _samples(who: Tensor, best: Tensor) -> Tensor:
    """Return the places of the samples of these leaks."""
    size = best.shape[1]
    return (who[:, None] * size + torch.arange(size, device=who.device)).flatten()


def _race(
    attack: str, stage: str, samples: int, effort: float, dataset: str, seed: int, device: str, skip: int = 0
) -> list[dict[str, Any]]:
    model, _, inputs, targets = private("smoothing", stage, skip + samples, dataset, seed, device)
    inputs, targets = inputs[skip:], targets[skip:]
    leaks = [observe(model, inputs[n : n + 1], targets[n : n + 1].to(inputs)) for n in range(samples)]
    clock = _Clock(data.denormalise(inputs.double()).clamp(0, 1))
    lost = [False] * samples
    if attack in (CLOSED, POLISHED):
        clock.done(torch.cat([_inverted(leak, attack == POLISHED) for leak in leaks]))
    else:
        options = {"label_prior": "smoothing"} | _options(attack, stage, effort, inputs.shape[1])
        found = match(leaks, seed=seed + skip, watch=clock.watch, **options)
        lost = [status[0] == "diverged" for status in found.status]
        clock.done(found.images)
    rows = clock.rows()
    return [row | ({"lost": lost[row["image"]]} if row["what"] == "image" else {}) for row in rows]


def _inverted(leak: Leak, polish: bool) -> Tensor:
    closed = trace_convolutional(leak)
    return polished(leak, closed.inputs, closed.labels).inputs if polish else closed.inputs


def _options(attack: str, stage: str, effort: float, channels: int) -> dict[str, Any]:
    """Return how `match` is called for an attack, with a part of its steps, on images of so many channels."""
    if attack == SECOND:
        return {"optimizer": LevenbergMarquardt(steps=40)}
    options: dict[str, Any] = {"optimizer": LBFGS()} if attack == SAFE else preset(attack, channels=channels)
    if attack.startswith("wang2024"):
        options["prior"] = prior(stage)
    chosen = options["optimizer"]
    return options | {"optimizer": replace(chosen, steps=max(1, round(effort * chosen.steps)))}


def _batch(size: int, leaks: int, steps: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    model, _, inputs, targets = private("smoothing", "untrained", size * leaks, dataset, seed, device)
    targets = targets.to(inputs)
    own = [observe(model, *pair) for pair in zip(inputs.split(size), targets.split(size), strict=True)]
    clock = _Clock(data.denormalise(inputs.double()).clamp(0, 1))
    found = match(own, targets, optimizer=LBFGS(steps=steps), seed=seed, watch=clock.watch)
    clock.done(found.images)
    return clock.rows()


def _together(numbers: list[int], dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    model, _, inputs, targets = private("smoothing", "untrained", max(numbers), dataset, seed, device)
    targets = targets.to(inputs)
    leaks = [observe(model, inputs[n : n + 1], targets[n : n + 1]) for n in range(len(inputs))]
    rows: list[dict[str, Any]] = []
    now = time.perf_counter if devices.accelerated(inputs.device) else time.process_time
    for number in numbers:
        own, known = leaks[:number], targets[:number]
        seconds = {
            "Adam": _timed(partial(_matched, own, known, Adam()), now),
            "L-BFGS": _timed(partial(_matched, own, known, LBFGS(inner=1)), now),
            "one training step": _timed(partial(_trained, model, inputs[:number], known), now),
        }
        rows += [
            {"what": "together", "number": number, "run": run, "seconds": value / number, "rate": number / value}
            for run, value in seconds.items()
        ]
    alone = {row["run"]: row["rate"] for row in rows if row["number"] == min(numbers)}
    return [row | {"gain": row["rate"] / alone[row["run"]]} for row in rows]


def _matched(leaks: list[Leak], targets: Tensor, optimizer: Adam | LBFGS, steps: int) -> None:
    match(leaks, targets, optimizer=replace(optimizer, steps=steps))


def _trained(model: nn.Module, inputs: Tensor, targets: Tensor, steps: int) -> None:
    for _ in range(steps):
        loss = -(targets * model(inputs).log_softmax(dim=1)).sum(dim=1).mean()
        torch.autograd.grad(loss, list(model.parameters()))


def _timed(run: Callable[[int], Any], now: Callable[[], float]) -> float:
    """Return the seconds of one step: of many less of few, so that what comes before the first does not count."""
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
    frame = record.frame()
    return frame[(frame["part"] == "race") & (frame["what"] == what)]


def table(record: Record) -> pd.DataFrame:
    """Return the seconds an image takes to each level, a line an attack: the median, and how many got there."""
    levels, images = _races(record, "level"), _races(record, "image")
    lines = []
    for (stage, attack), group in images.groupby(["stage", "attack"], sort=False):
        own = levels[(levels["stage"] == stage) & (levels["attack"] == attack)]
        line: dict[str, Any] = {"LeNet": stage, "attack": attack, "n": len(group)}
        for level, part in own.groupby("level"):
            there = part[part["reached"].astype(bool)]
            share = "" if len(there) == len(part) else f" ({len(there)} of {len(part)})"
            line[f"{level:.0f} dB"] = f"{there['seconds'].median():.2g}{share}" if len(there) else "–"
        psnr = group["psnr"].astype(float)
        spread = f" ± {psnr.std():.1f}" if len(group) > 1 else ""
        line["ends at, dB"] = f"{psnr.mean():.1f}{spread}"
        line["after, s"] = f"{group['seconds'].mean():.2g}"
        line["diverged"] = f"{group['lost'].astype(bool).sum()}"
        lines.append(line)
    return pd.DataFrame(lines)


def together_table(record: Record) -> pd.DataFrame:
    """Return the milliseconds of a step and attack, a line a number of attacks that run together."""
    frame = record.frame()
    frame = frame[frame["part"] == "together"]
    lines = []
    for number, group in frame.groupby("number"):
        seconds = group.set_index("run")["seconds"].astype(float)
        line = {"attacks at once": f"{number:.0f}"}
        line |= {f"{run}, ms an attack": f"{1000 * seconds[run]:.2f}" for run in seconds.index}
        line["Adam over a training step"] = f"{seconds['Adam'] / seconds['one training step']:.1f}"
        lines.append(line)
    return pd.DataFrame(lines)


def batch_table(record: Record) -> pd.DataFrame:
    """Return what matching makes of averaged gradients, a line a batch size."""
    frame = record.frame()
    frame = frame[(frame["part"] == "batch") & (frame["what"] == "image")]
    lines = []
    for (size, leaks), group in frame.groupby(["size", "leaks"]):
        psnr = group["psnr"].astype(float)
        spread = f" ± {psnr.std():.1f}" if len(group) > 1 else ""
        lines.append(
            {
                "B": f"{size:.0f}",
                "gradients": f"{leaks:.0f}",
                "PSNR": f"{psnr.mean():.1f}{spread}",
                "least": f"{psnr.min():.1f}",
                "seconds an image": f"{group['seconds'].mean():.2g}",
            }
        )
    return pd.DataFrame(lines)


def figure_race(record: Record) -> Figure:
    """Draw the mean PSNR against the seconds an image has taken, a line an attack."""
    curves = _races(record, "curve")
    # Second order is run image by image: its curves are drawn one by one.
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
        axis.set_xlabel("seconds an image")
        axis.set_title(f"LeNet, {stage}")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[0][0].set_ylabel("PSNR of the best so far, dB")
    figures.legend_below(figure, 3)
    return figure


def figure_together(record: Record) -> Figure:
    """Draw attacks a second against how many run at once, and PSNR against the batch size."""
    frame = record.frame()
    figure, axes = figures.panels(1, 2, height=3.0)
    together = frame[frame["part"] == "together"]
    for index, (run, group) in enumerate(together.groupby("run", sort=False)):
        style = {"color": figures.COLOURS[index], "linestyle": figures.DASHES[index], "marker": "o", "markersize": 4}
        axes[0][0].plot(group["number"], group["rate"].astype(float), label=run, **style)
    axes[0][0].set(xscale="log", yscale="log", xlabel="attacks at once", ylabel="attacks' steps a second")
    axes[0][0].set_title("Together")
    numbers = sorted(set(together["number"]))
    axes[0][0].set_xticks(numbers, [f"{number:.0f}" for number in numbers])
    axes[0][0].set_xticks([], minor=True)
    figures.legend_below(figure, 3)
    batches = frame[(frame["part"] == "batch") & (frame["what"] == "image")]
    figures.swarms(axes[0][1], {f"{size:.0f}": group["psnr"].astype(float) for size, group in batches.groupby("size")})
    axes[0][1].set(xlabel="samples in one gradient", ylabel="PSNR, dB")
    axes[0][1].set_title("Averaged")
    return figure
