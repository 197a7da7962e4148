"""Runs of gradient matching side by side on the same images and starts, and how they are told apart."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import augment, claims, data, metrics, studies
from gradleak.images import LBFGS, Adam, Prior, match
from gradleak.images.presets import preset
from gradleak.leak import observe
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import STAGES, Row, Stage
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.restored import quality

KINDS = ("mixup", "smoothing")
DISTANCES = ("l2", "cosine")
# wang2024's weights of total variation.
VARIATION = {"untrained": 1e-2, "trained": 1e-3}
# Points of a curve, images of a strip, draws of a bootstrap.
POINTS, SHOWN, DRAWS = 20, 6, 4000
# dB: what is under this is no image.
LOST = 15


class Parameters(studies.Parameters):
    """What a rerun of either table may change."""

    pairs: int = Field(2, ge=2, le=10_000, description="mixed images, one a pair of classes")
    images: int = Field(2, ge=2, le=10_000, description="images with smoothed labels")
    restarts: int = Field(1, ge=1, le=100, description="random starts an image")
    l2_steps: int = Field(1, ge=1, le=100_000, description="L-BFGS steps of L2 matching, 20 gradients each")
    cosine_steps: int = Field(10, ge=1, le=1_000_000, description="Adam steps of cosine matching")
    whole: int = Field(0, ge=0, le=10_000, description="images of each untrained L2 row that get whole steps")
    whole_starts: int = Field(1, ge=1, le=100, description="random starts of those")
    stages: list[Stage] = Field(["untrained"], description="networks: untrained, trained")
    dataset: str = Field("photos", description="private images, test split")

    paper: ClassVar[dict[str, Any]] = {
        "pairs": 45,
        "images": 30,
        "restarts": 10,
        "l2_steps": 300,
        "cosine_steps": 4800,
        "whole": 45,
        "whole_starts": 10,
        "stages": list(STAGES),
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return LeNet in its states, and the images that it is shown."""
        return [Fixed(**vars(one), lpips=1) for one in lenets(self.dataset, self.stages)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.pairs} mixed and {parameters.images} smoothed images, {data.title(parameters.dataset)}"


def row_trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of the trials that are a table's rows: kind of label, distance and network."""
    counts = {"mixup": parameters.pairs, "smoothing": parameters.images}
    steps = {"l2": parameters.l2_steps, "cosine": parameters.cosine_steps}
    common = {
        "restarts": parameters.restarts,
        "dataset": parameters.dataset,
        "seed": parameters.seed,
        "device": studies.resolve_device(parameters.device),
    }
    return [
        {"labels": labels, "distance": distance, "stage": stage, "samples": counts[labels], "steps": steps[distance]}
        | common
        for labels in KINDS
        for distance in DISTANCES
        for stage in parameters.stages
    ]


def table_samples(dataset: data.Dataset, labels: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return private inputs and labels (float64) as in wang2024, section 4.3.

    Mixup: one image of each class of a pair, the pairs of classes in random order, each once before any comes again.
    Smoothing: classes in turn, no image twice while a class has others.
    """
    generator = torch.Generator().manual_seed(seed)
    classes = dataset.classes
    shares = torch.rand(count, generator=generator, dtype=torch.float64)
    if labels == "smoothing":
        rounds = [torch.randperm(classes, generator=generator) for _ in range(-(-count // classes))]
        own = augment.samples_of(dataset.labels, torch.cat(rounds)[:count], generator)
        return data.normalise(dataset.images[own]), augment.smooth(dataset.labels[own], classes, shares / 2)
    pairs = torch.tensor(list(itertools.combinations(range(classes), 2)))
    rounds = [pairs[torch.randperm(len(pairs), generator=generator)] for _ in range(-(-count // len(pairs)))]
    wanted = torch.cat(rounds)[:count]
    sides = [
        data.normalise(dataset.images[augment.samples_of(dataset.labels, side, generator)])
        for side in wanted.unbind(dim=1)
    ]
    hot = [augment.one_hot(side, classes).double() for side in wanted.unbind(dim=1)]
    part = shares.reshape(-1, 1, 1, 1).to(sides[0])
    return part * sides[0] + (1 - part) * sides[1], shares[:, None] * hot[0] + (1 - shares[:, None]) * hot[1]


def optimizer(distance: str, steps: int, *, whole: bool = False) -> Adam | LBFGS:
    """Return wang2024's optimiser of a distance; L-BFGS with a line search instead, unless its steps are `whole`."""
    own: Adam | LBFGS = replace(preset(f"wang2024-{distance}")["optimizer"], steps=steps)
    return LBFGS(steps=steps) if isinstance(own, LBFGS) and not whole else own


def lenets(dataset: str, stages: Sequence[str]) -> list[Sees]:
    """Return LeNet in its states, and the images that it is shown."""
    return [Row.of(f"{dataset}/lenet/{stage}").sees for stage in stages]


def read_by(dataset: str, stages: Sequence[str]) -> list[str]:
    """Return the datasets that images and networks come from."""
    trained = [Row.of(f"{dataset}/lenet/trained").training] if "trained" in stages else []
    return list(dict.fromkeys([dataset, *trained]))


def private(
    labels: str, stage: str, samples: int, dataset: str, seed: int, device: str
) -> tuple[nn.Module, float | None, Tensor, Tensor]:
    """Return LeNet in its state, its test accuracy, and the private inputs and labels."""
    own = data.load(dataset, "test")
    inputs, targets = table_samples(own, labels, samples, seed)
    model, accuracy = attacked_networks.network(Row.of(f"{dataset}/lenet/{stage}"), labels, own, seed, device)
    return model.to(device), accuracy, inputs.to(device), targets.to(device)


def compared(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    runs: Mapping[str, Mapping[str, Any]],
    *,
    label_prior: str,
    restarts: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Run `match` on every sample's gradient with each run's options, from the same starts; rows of all that came out.

    A run's "labels" are the true ones where it names none. Rows: one an image and restart, points of curves, a strip.
    """
    leaks = [observe(model, inputs[n : n + 1], targets[n : n + 1].to(inputs)) for n in range(len(inputs))]
    truth = data.denormalise(inputs.double()).clamp(0, 1)
    rows: list[dict[str, Any]] = []
    for name, options in runs.items():
        seen: dict[int, list[float]] = {}

        def watch(who: Tensor, step: int, best: Tensor, seen: dict[int, list[float]] = seen) -> None:
            values = metrics.psnr(data.denormalise(best[:, 0].double()), truth[who // restarts])
            seen.setdefault(step, []).extend(values.tolist())

        started = time.perf_counter()
        own: dict[str, Any] = {"labels": targets.to(inputs), "label_prior": label_prior} | dict(options)
        found = match(leaks, restarts=restarts, seed=seed, watch=watch, **own)
        seconds = (time.perf_counter() - started) / (len(inputs) * restarts)
        errors = metrics.label_error(found.labels.double(), targets)
        for restart in range(restarts):
            images = data.denormalise(found.attempts[:, restart, 0].double())
            for n, judged in enumerate(quality(images, truth)):
                rows.append(
                    {"what": "image", "run": name, "image": n, "restart": restart, "seconds": seconds}
                    | {"status": found.status[n][restart], "loss": float(found.losses[n, restart])}
                    | {"lost": int(found.status[n][restart] == "diverged"), "bad": int(found.bad[n, restart])}
                    | judged
                    | ({"label_error": float(errors[n])} if restart == int(found.chosen[n]) else {})
                )
        rows += _curve(name, found.history, found.curves, seen)
        strip = data.denormalise(found.attempts[:SHOWN, 0, 0].double())
        rows.append({"what": "picture", "run": name, "picture": packed(strip, len(strip))})
    strip = truth[:SHOWN]
    return [*rows, {"what": "picture", "run": "private", "picture": packed(strip, len(strip))}]


def _curve(name: str, steps: Tensor, curves: Tensor, seen: Mapping[int, list[float]]) -> list[dict[str, Any]]:
    every = max(1, -(-len(steps) // POINTS))
    return [
        {
            "what": "curve",
            "run": name,
            "step": int(steps[place]),
            "loss": float(curves[..., place].median()),
            "psnr": float(np.mean(seen[int(steps[place])])),
        }
        for place in {*range(0, len(steps), every), len(steps) - 1}
    ]


def paired(rows: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]], seed: int) -> list[dict[str, Any]]:
    """Compare runs image by image: the mean difference in PSNR, and where 95 % of a bootstrap over images put it."""
    means: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row["what"] == "image":
            # A lost image is one of nothing at all, as its PSNR is not finite.
            means.setdefault(row["run"], {}).setdefault(row["image"], []).append(max(0.0, min(row["psnr"], 200.0)))
    generator = np.random.default_rng(seed)
    found = []
    for first, second in pairs:
        values = np.array([np.mean(means[first][n]) - np.mean(means[second][n]) for n in sorted(means[first])])
        draws = values[generator.integers(len(values), size=(DRAWS, len(values)))].mean(axis=1)
        low, high = np.quantile(draws, [0.025, 0.975])
        found.append(
            {
                "what": "paired",
                "run": f"{first} against {second}",
                "images": len(values),
                "difference": float(values.mean()),
                "low": float(low),
                "high": float(high),
                # Within this of no difference, with 95 % confidence.
                "apart": float(max(abs(low), abs(high))),
            }
        )
    return found


def rows_of(record: Record, what: str) -> pd.DataFrame:
    """Return a record's rows of one sort: image, curve, paired, picture."""
    frame = record.frame()
    return frame[frame["what"] == what]


def mean_text(values: pd.Series) -> str:
    """Return a mean PSNR; what is lost counts as nothing, and equal images as 200 dB, so that there is one."""
    return f"{values.astype(float).clip(0, 200).mean():.1f}"


def psnr_table(record: Record, runs: Sequence[str]) -> pd.DataFrame:
    """Return mean PSNR of 8-bit pixels, and the paper's, a line a row of the table and a column a run."""
    cells = claims.published(record.study, "eight_bit", ("labels", "distance", "stage", "run"))
    networks = rows_of(record, "network").to_dict("records")
    trained = {(row["labels"], row["stage"]): row["accuracy"] for row in networks if row["stage"] == "trained"}
    lines = []
    for keys, group in rows_of(record, "image").groupby(["labels", "distance", "stage"], sort=False):
        line: dict[str, Any] = dict(zip(("labels", "distance", "LeNet"), keys, strict=True))
        if (keys[0], keys[2]) in trained:
            line["LeNet"] = f"trained to {100 * trained[keys[0], keys[2]]:.0f} %"
        for name in runs:
            own = group[group["run"] == name]
            stated = cells.get((*keys, name), "–")
            line[name] = f"{mean_text(own['eight_bit'])} / {stated}"
        lines.append(line)
    return pd.DataFrame(lines)


def interval_table(record: Record, runs: Sequence[str], run: str = "label from") -> pd.DataFrame:
    """Return where runs' mean PSNR of 8-bit pixels lies, by a bootstrap over images, beside the paper's."""
    cells = claims.published(record.study, "eight_bit", ("labels", "distance", "stage", "run"))
    lines = []
    for keys, group in rows_of(record, "image").groupby(["labels", "distance", "stage", "run"], sort=False):
        if keys[3] not in runs:
            continue
        psnr = group["eight_bit"].astype(float).clip(0, 200)
        values = psnr.groupby(group["image"]).mean().to_numpy()
        picked = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
        low, high = np.quantile(values[picked].mean(axis=1), [0.025, 0.975])
        stated = cells.get(keys)
        lines.append(
            dict(zip(("labels", "distance", "LeNet", run), keys, strict=True))
            | {
                "n": f"{len(values)} × {group['restart'].nunique()}",
                "mean": f"{values.mean():.1f}",
                "95 %": f"{low:.1f} … {high:.1f}",
                "paper": "–" if stated is None else f"{stated}",
                "paper's lies": "–" if stated is None else _side(stated, low, high),
                f"under {LOST} dB": f"{100 * (psnr < LOST).mean():.0f} %",
            }
        )
    return pd.DataFrame(lines)


def _side(value: float, low: float, high: float) -> str:
    return "below" if value < low else "above" if value > high else "within"


def detail_table(record: Record, run: str = "label from") -> pd.DataFrame:
    """Return what Table 3 says besides PSNR: SSIM, LPIPS, the label's error, runs that diverged, seconds an image."""
    lines = []
    for keys, group in rows_of(record, "image").groupby(["labels", "distance", "stage", "run"], sort=False):
        lpips = group["lpips"].dropna().astype(float)
        lines.append(
            dict(zip(("labels", "distance", "LeNet", run), keys, strict=True))
            | {
                "PSNR": f"{mean_text(group['psnr'])} ± {group['psnr'].astype(float).clip(0, 200).std():.1f}",
                "least": f"{group['psnr'].astype(float).clip(lower=0).min():.1f}",
                "SSIM": f"{group['ssim'].mean():.3f}",
                "LPIPS": f"{lpips.mean():.3f}" if len(lpips) else "n/a",
                "L_r": f"{group['label_error'].astype(float).mean():.1e}",
                "diverged": f"{group['status'].eq('diverged').sum()}",
                "s": f"{group['seconds'].mean():.2g}",
            }
        )
    return pd.DataFrame(lines)


def paired_table(record: Record) -> pd.DataFrame:
    """Return the paper's sentences as differences between runs on the same images and starts."""
    lines = [
        {
            "labels": row["labels"],
            "distance": row["distance"],
            "LeNet": row["stage"],
            "compared": row["run"],
            "difference, dB": f"{row['difference']:+.2f}",
            "95 %": f"{row['low']:+.2f} … {row['high']:+.2f}",
            "n": int(row["images"]),
        }
        for row in rows_of(record, "paired").to_dict("records")
    ]
    return pd.DataFrame(lines)


def draw_strips(record: Record, runs: Sequence[str]) -> Figure:
    """Draw the first images of every row of a table, as each run restored them."""
    groups = list(rows_of(record, "picture").groupby(["labels", "distance", "stage"], sort=False))
    figure, axes = figures.grid(len(groups), 2, height=3.6)
    figure.set_layout_engine("compressed")
    for axis, (keys, group) in zip(axes, groups, strict=True):
        strips = group.set_index("run")["picture"]
        names = ["private", *runs]
        show(axis, [strips[name] for name in names], names)
        axis.set_title(", ".join(map(str, keys)))
    return figure


def draw_curves(record: Record, runs: Sequence[str], column: str = "psnr") -> Figure:
    """Draw the best iterates over the steps for every row of a table, a line a run: their mean PSNR or median loss."""
    groups = list(rows_of(record, "curve").groupby(["labels", "distance", "stage"], sort=False))
    figure, axes = figures.grid(len(groups), 2, height=2.1)
    for axis, (keys, group) in zip(axes, groups, strict=True):
        for index, run in enumerate(runs):
            own = group[group["run"] == run].sort_values("step")
            style = {"color": figures.COLOURS[index], "linestyle": figures.DASHES[index]}
            axis.plot(own["step"], own[column].astype(float), label=run, **style)
        axis.set_title(", ".join(map(str, keys)))
        if column == "loss":
            axis.set_yscale("log")
    for axis in axes[::2]:
        axis.set_ylabel("PSNR, dB" if column == "psnr" else "loss")
    for axis in axes[-2:]:
        axis.set_xlabel("step")
    figures.legend_below(figure, len(runs))
    return figure


def prior(stage: str) -> Prior:
    """Return wang2024's prior for a network's state."""
    return Prior(variation=VARIATION[stage])
