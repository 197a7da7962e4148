"""Images from a fully connected network

wang2024, section 4.2, Figures 3 to 5, Table 6: one image at a time, in closed form, and what the last digits depend on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import data, defenses, metrics, models, studies
from gradleak.errors import InputError
from gradleak.images import LBFGS, Adam, Distance, Inversion, Prior, trace_fully_connected
from gradleak.images.matching.factored import FactoredObjective, factored, match_factored
from gradleak.images.matching.objective import Objective
from gradleak.images.matching.optimizers import DECAY
from gradleak.labels import recover_soft_labels
from gradleak.leak import Leak, observe
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.defended import Defence, defended_trials, defense_cells, sent_behind
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.restored import clock, quality
from gradleak.studies.shared.samples import DTYPES, pooled_samples

PLACE = "Figures 3–5, Table 6"
# A ratio of times is no more repeated than times are.
TIMES = ("times_faster",)
SMALLEST: dict[str, Any] = {}
SIZE = 64
LABELS = ("smoothing", "mixup")
VARIANTS = {"ours": "least-squares", "mean over rows": "mean", "as published": "published"}
# How matching comes by the label: with the image, as the demo in the paper's code has it, or as the closed form does.
SOURCES = ("searched", "recovered")
# That demo's settings, but for the number of steps; both rates decay.
RATES = {"l2": 0.3, "cosine": 0.02}
VARIATION = {"l2": 0.0, "cosine": 1e-6}
TIMED = 3
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    "clip": (0.5,),
    "quantize": (16, 8),
    "half": (16,),
}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    samples: int = Field(1, ge=1, le=100_000, description="single images a kind of label, float32 gradients")
    doubles: int = Field(1, ge=1, le=100_000, description="of these, how many are observed in float64 as well")
    compared: int = Field(0, ge=0, le=1000, description="of these, how many gradient matching is run on")
    l2_steps: int = Field(1, ge=1, le=100_000, description="L-BFGS steps of L2 matching, 20 gradients each")
    cosine_steps: int = Field(1, ge=1, le=100_000, description="Adam steps of cosine matching")
    defended: int = Field(1, ge=1, le=1000, description="images a defence is tried on")
    defenses: list[Defence] = Field(["clip"], min_length=1, description="defences that are tried on them")
    dataset: str = Field("photos", description="private images, test split, at 64 pixels")

    paper: ClassVar[dict[str, Any]] = {
        "samples": 100,
        "doubles": 20,
        "compared": 5,
        "l2_steps": 300,
        "cosine_steps": 7000,
        "defended": 10,
        "defenses": list(DEFENSES),
        "dataset": "flowers17",
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees("fcn4", self.dataset, size=SIZE, channels=3)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.samples} images a kind of label, {data.title(parameters.dataset)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial."""
    device = studies.resolve_device(parameters.device)
    common = {"dataset": parameters.dataset, "seed": parameters.seed, "device": device}
    closed = [
        {"part": "closed", "labels": labels, "dtype": dtype, "samples": count} | common
        for labels in LABELS
        for dtype, count in (("float32", parameters.samples), ("float64", min(parameters.doubles, parameters.samples)))
    ]
    steps = {"l2": parameters.l2_steps, "cosine": parameters.cosine_steps}
    compared = [
        {"part": "matching", "distance": distance, "steps": count, "samples": parameters.compared} | common
        for distance, count in steps.items()
        if parameters.compared
    ]
    compared += [{"part": "cost", "attacks": len(SOURCES) * parameters.compared} | common] if compared else []
    defended = defended_trials(
        {name: DEFENSES[name] for name in parameters.defenses}, samples=parameters.defended, **common
    )
    return closed + compared + defended


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Invert images in closed form, match their gradients, time that, or defend them; a row an image and variant."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]]
    parts = {"closed": _closed, "matching": _matching, "cost": _cost, "defense": _defended}
    return parts[part](**inputs)


def _private(dataset: str, labels: str, samples: int, seed: int) -> tuple[Tensor, Tensor, int]:
    private = data.load(dataset, "test", size=SIZE)
    return *pooled_samples(private, labels, samples, seed), private.classes


def _closed(labels: str, dtype: str, samples: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    inputs, targets, classes = _private(dataset, labels, samples, seed)
    model = models.build("fcn4", classes=classes, image_size=SIZE, seed=seed).to(device, DTYPES[dtype])
    variants = VARIANTS if dtype == "float32" else {"ours": "least-squares"}
    rows, restored, now = [], [], clock(device)
    for n in range(samples):
        sent = inputs[n : n + 1].to(device, DTYPES[dtype])
        leak = observe(model, sent, targets[n : n + 1].to(device, DTYPES[dtype]))
        truth = data.denormalise(sent.double()).cpu()
        for name, rule in variants.items():
            started = now()
            found = trace_fully_connected(leak, prior=labels, rule=rule)  # type: ignore[arg-type]
            seconds = now() - started
            image = _image(found)
            rows.append({"image": n, "variant": name, "seconds": seconds, "status": found.status} | judge(image, truth))
            if name == "ours":
                restored.append(image)
    if dtype == "float32":
        rows.append({"variant": "picture", "picture": packed(torch.cat(restored), min(20, samples))})
    return rows


def _image(found: Inversion) -> Tensor:
    return data.denormalise(found.inputs.cpu().reshape(1, 3, SIZE, SIZE))


def judge(image: Tensor, truth: Tensor) -> dict[str, Any]:
    """Return how near an image (1, C, H, W) is to the truth, by all measures; NaN counts as lost."""
    return quality(image, truth.clamp(0, 1))[0]


def _matching(distance: str, steps: int, samples: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    """Match the gradients of single images, each with its label searched and recovered, from one start for both."""
    inputs, targets, classes = _private(dataset, "smoothing", samples, seed)
    model = models.build("fcn4", classes=classes, image_size=SIZE, seed=seed).to(device)
    truth = data.denormalise(inputs.double())
    leaks, labels, closed = [], [], []
    for n in range(samples):
        leak = observe(model, inputs[n : n + 1].to(device), targets[n : n + 1].to(device, torch.float32))
        leaks.append(factored(leak))
        labels.append(_recovered(leak))
        closed.append(_image(trace_fully_connected(leak, prior="smoothing", rule="published")))
    start = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(seed)).repeat(len(SOURCES), 1, 1, 1)
    curves: list[tuple[int, Tensor]] = []

    def watch(step: int, best: Tensor) -> None:
        shown = data.denormalise(best.double()).cpu()
        curves.append((step, metrics.psnr(shown, truth.clamp(0, 1).repeat(len(SOURCES), 1, 1, 1))))

    now = clock(device)
    started = now()
    found = match_factored(
        leaks * len(SOURCES),
        torch.stack([torch.full_like(label, torch.nan) for label in labels] + labels),
        distance=Distance(distance),  # type: ignore[arg-type]
        optimizer=_optimizer(distance, steps),
        prior=Prior(variation=VARIATION[distance]),
        seed=seed,
        start=start,
        watch=watch,
    )
    seconds = (now() - started) / len(start)
    rows: list[dict[str, Any]] = [
        {"picture": packed(images, samples), "shows": name}
        for name, images in (("private", truth), ("closed form", torch.cat(closed)))
    ]
    for k, (source, images) in enumerate(zip(SOURCES, found.images.cpu().split(samples), strict=True)):
        pictures = data.denormalise(images.double())
        rows.append({"picture": packed(pictures, samples), "shows": f"{distance}, label {source}"})
        for n in range(samples):
            which = k * samples + n
            row = judge(pictures[n : n + 1], truth[n : n + 1])
            row |= {"image": n, "label": source, "seconds": seconds, "status": found.status[which][0]}
            row |= {"loss": float(found.losses[which, 0]), "scaled": _scaled(images[n], inputs[n])}
            row["label_error"] = float((found.labels[which].cpu() - targets[n]).abs().sum())
            row["ahead"] = judge(closed[n], truth[n : n + 1])["eight_bit"] - row["eight_bit"]
            row |= {"at": [step for step, _ in curves], "curve": [round(float(psnr[which]), 2) for _, psnr in curves]}
            rows.append(row)
    return rows


def _recovered(leak: Leak) -> Tensor:
    """Return the label (C,) that a server reads off the last layer, as matching takes it."""
    found = recover_soft_labels(leak.weight_gradient, leak.weight, prior="smoothing")
    if found.status[0] != "unique":
        raise InputError(f"no label to match with, but one that is {found.status[0]}: {found.reasons[0]}")
    return found.labels[0].to(leak.weight_gradient)


def _optimizer(distance: str, steps: int) -> LBFGS | Adam:
    if distance == "l2":
        return LBFGS(steps=steps, rate=RATES["l2"], search=False, decay=DECAY)
    return Adam(steps=steps, rate=RATES["cosine"], decay=DECAY)


def _scaled(image: Tensor, truth: Tensor) -> float:
    """Return the PSNR of an image with the length that brings it nearest to the truth, a number it may not know."""
    image, truth = image.double().flatten(), truth.double().flatten()
    nearest = (image * ((image @ truth) / (image @ image))).reshape(1, 3, SIZE, SIZE)
    shown, wanted = (data.denormalise(part) for part in (nearest, truth.reshape(1, 3, SIZE, SIZE)))
    return float(metrics.psnr(shown, wanted.clamp(0, 1)))


def _cost(attacks: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    """Time a loss and its slope, L2, with all gradients written out and by their factors, which must be the same."""
    inputs, targets, classes = _private(dataset, "smoothing", 1, seed)
    model = models.build("fcn4", classes=classes, image_size=SIZE, seed=seed).to(device)
    leak = observe(model, inputs.to(device), targets.to(device, torch.float32))
    label, sent = _recovered(leak)[None, None], factored(leak)
    places = torch.randn(attacks, inputs[0].numel(), generator=torch.Generator().manual_seed(seed)).to(device)
    rows: list[dict[str, Any]] = []
    seen, now = [], clock(device)
    for engine, count in (("all gradients", 1), ("factors", 1), ("factors", attacks)):
        labels, plain = label.repeat(count, 1, 1), (Distance("l2"), Prior())
        objective: Objective = (
            FactoredObjective([sent] * count, labels, *plain)
            if engine == "factors"
            else Objective([leak], labels, None, *plain)
        )
        owners, seconds = torch.arange(count, device=places.device), []
        for _ in range(TIMED):
            started = now()
            loss, slope = objective.evaluate(places[:count], owners)
            seconds.append((now() - started) / count)
        seen.append((float(loss[0]), slope[0].double()))
        rows.append({"engine": engine, "at_once": count, "seconds_each": min(seconds)})
    slowest, (plain_loss, plain_slope) = rows[0]["seconds_each"], seen[0]
    for row, (value, line) in zip(rows, seen, strict=True):
        row["times_faster"] = slowest / row["seconds_each"]
        row["loss_differs"] = abs(value / plain_loss - 1)
        row["slope_differs"] = float((line - plain_slope).norm() / plain_slope.norm())
    return rows


def _defended(defense: str, level: float, samples: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    inputs, targets, classes = _private(dataset, "smoothing", samples, seed)
    model = models.build("fcn4", classes=classes, image_size=SIZE, seed=seed).to(device)
    rows = []
    for n in range(samples):
        sent, target = inputs[n : n + 1].to(device), targets[n : n + 1].to(device)
        clean = observe(model, sent, target)
        leak = replace(clean, gradients=sent_behind(defense, level, clean.gradients, seed + n))
        utility = defenses.utility(clean.gradients, leak.gradients)
        truth = data.denormalise(sent.double()).cpu()
        for attacker, noise in (("unaware", 0.0), ("aware", None)):
            found = trace_fully_connected(leak, noise=noise)
            image = _image(found)
            row = {"image": n, "attacker": attacker, "status": found.status, "utility": utility}
            rows.append(row | {"psnr": float(metrics.psnr(image, truth.clamp(0, 1)))})
    return rows


def table(record: Record) -> pd.DataFrame:
    """Return Table 6, a line a kind of label, precision and variant of the recursion."""
    frame = record.frame()
    frame = frame[(frame["part"] == "closed") & (frame["variant"] != "picture")]
    lines = []
    for (labels, dtype, variant), group in frame.groupby(["labels", "dtype", "variant"], sort=False):
        lpips = group["lpips"].astype(float)
        lines.append(
            {
                "labels": labels,
                "gradients": dtype,
                "recursion": variant,
                "n": len(group),
                "PSNR": f"{group['psnr'].mean():.1f}" + (f" ± {group['psnr'].std():.1f}" if len(group) > 1 else ""),
                "least": f"{group['psnr'].min():.1f}",
                "8-bit PSNR": _short(group["eight_bit"].replace(float("inf"), float("nan"))),
                "SSIM": f"{group['ssim'].mean():.4f}",
                "LPIPS": "n/a" if lpips.isna().all() else f"{lpips.mean():.1e}",
                "ms": f"{1e3 * group['seconds'].median():.0f}",
            }
        )
    return pd.DataFrame(lines)


def _short(values: pd.Series[float]) -> str:
    return "–" if values.isna().all() else f"{values.mean():.1f}"


def comparison_table(record: Record) -> pd.DataFrame:
    """Return Figure 3's numbers: matching and the closed form on the same images."""
    frame = _matched(record)
    lines = []
    for (distance, label, steps), group in frame.groupby(["distance", "label", "steps"], sort=False):
        lines.append(_line(f"matching, {distance}, {steps:.0f} steps", f"{label}", group))
    every = record.frame()
    closed = every[(every["part"] == "closed") & (every["dtype"] == "float32") & (every["labels"] == "smoothing")]
    if len(frame):
        closed = closed[closed["image"].isin(frame["image"])]
    named = {variant: closed[closed["variant"] == variant] for variant in ("as published", "ours")}
    lines += [_line(f"closed form, {variant}", "recovered", group) for variant, group in named.items()]
    return pd.DataFrame(lines)


def _matched(record: Record) -> pd.DataFrame:
    frame = record.frame()
    columns = ["distance", "steps", "label", "scaled", "loss", "at", "curve"]
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, *columns])))
    return frame[(frame["part"] == "matching") & frame["image"].notna()]


def _line(name: str, label: str, group: pd.DataFrame) -> dict[str, Any]:
    scaled = group["scaled"] if "scaled" in group else pd.Series([math.nan])
    return {
        "attack": name,
        "label": label,
        "n": len(group),
        "8-bit PSNR": _short(group["eight_bit"].replace(float("inf"), float("nan"))),
        "PSNR": f"{group['psnr'].mean():.1f} ({group['psnr'].min():.1f} … {group['psnr'].max():.1f})",
        "at the best length": _short(scaled),
        "SSIM": f"{group['ssim'].mean():.3f}",
        "seconds an image": f"{group['seconds'].mean():.3g}",
    }


def cost_table(record: Record) -> pd.DataFrame:
    """Return what a loss and its slope cost, with all gradients and by factors."""
    frame = record.frame()
    frame = frame[frame["part"] == "cost"]
    return pd.DataFrame(
        {
            "engine": row["engine"],
            "attacks at once": f"{row['at_once']:.0f}",
            "ms a loss and slope": f"{1e3 * row['seconds_each']:.0f}",
            "times faster": f"{row['times_faster']:.0f}",
            "loss differs by": f"{row['loss_differs']:.0e}",
            "slope differs by": f"{row['slope_differs']:.0e}",
        }
        for _, row in frame.iterrows()
    )


def defense_table(record: Record) -> pd.DataFrame:
    """Return what defences leave of the image, and of the gradient."""
    frame = record.frame()
    frame = frame[frame["part"] == "defense"]
    lines = []
    for (defense, level), group in frame.groupby(["defense", "level"], sort=False):
        own = {name: part["psnr"] for name, part in group.groupby("attacker")}
        lines.append(
            {
                **defense_cells(defense, level),
                "cosine": f"{group['utility'].mean():.4f}",
                "unaware: refused": f"{100 * own['unaware'].eq(-float('inf')).mean():.0f} %",
                "aware: median PSNR": "lost"
                if own["aware"].median() == -float("inf")
                else f"{own['aware'].median():.1f}",
            }
        )
    return pd.DataFrame(lines)


def figure_mosaic(record: Record, labels: str) -> Figure:
    """Redraw Figure 4 (smoothing) or 5 (mixup): every restored image."""
    frame = record.frame()
    picture = frame[(frame["variant"] == "picture") & (frame["labels"] == labels)]["picture"].iloc[0]
    count = int(frame[(frame["variant"] == "picture") & (frame["labels"] == labels)]["samples"].iloc[0])
    rows = -(-count // 20)
    figure, axes = figures.panels(1, 1, height=max(1.0, 8.4 * rows / min(20, count)))
    show(axes[0][0], picture)
    return figure


def figure_matching(record: Record) -> Figure:
    """Redraw Figure 3: the private images above what each attack makes of them."""
    frame = record.frame()
    if "shows" not in frame:
        return figures.nothing("Not run with these parameters")
    pictures = frame[frame["shows"].notna()].drop_duplicates("shows").set_index("shows")["picture"]
    order = ["private", "closed form", *(name for name in pictures.index if name not in ("private", "closed form"))]
    figure, axes = figures.panels(1, 1, height=1.2 * len(order))
    show(axes[0][0], [pictures[name] for name in order], order)
    return figure


def figure_curves(record: Record) -> Figure:
    """Draw the PSNR of the best iterate so far over the steps, a line an image."""
    frame = _matched(record)
    if frame.empty:
        return figures.nothing("Not run with these parameters")
    figure, axes = figures.panels(1, 2, height=3.0, sharey=True)
    looks = dict(zip(SOURCES, ((figures.COLOURS[1], figures.DASHES[1]), (figures.COLOURS[0], "-")), strict=True))
    for axis, (distance, group) in zip(axes[0], frame.groupby("distance", sort=False), strict=True):
        for _, row in group.iterrows():
            colour, dashes = looks[row["label"]]
            label = f"label {row['label']}"
            axis.plot(row["at"], row["curve"], color=colour, linestyle=dashes, linewidth=1.2, label=label)
        axis.set(title=str(distance), xlabel="steps")
    axes[0][0].set_ylabel("PSNR, dB")
    figures.legend_below(figure, 2)
    return figure


def figure_digits(record: Record) -> Figure:
    """Draw the PSNR of every image, by what it is measured on: numbers, or 8-bit pixels as the paper's code does."""
    frame = record.frame()
    frame = frame[(frame["part"] == "closed") & frame["image"].notna() & (frame["dtype"] == "float32")]
    own = {"psnr": "as numbers", "eight_bit": "as truncated 8-bit pixels"}
    long = frame.melt(["labels", "variant"], list(own), "column", "PSNR, dB").replace({"column": own})
    # Where truncation finds every pixel equal there is no finite figure.
    long["PSNR, dB"] = long["PSNR, dB"].astype(float).replace([math.inf, -math.inf], math.nan)
    figure, axes = figures.panels(1, 2, height=3.3, sharey=True)
    palette = [figures.COLOURS[2], figures.COLOURS[1]]
    for axis, labels in zip(axes[0], LABELS, strict=True):
        sns.boxenplot(
            long[long["labels"] == labels].dropna(), x="variant", y="PSNR, dB", hue="column", ax=axis,
            order=list(VARIANTS), hue_order=list(own.values()), palette=palette, width=0.7, gap=0.15, showfliers=False,
        )  # fmt: skip
        axis.set(title=labels, xlabel="")
        axis.get_legend().remove()
    figures.legend_below(figure, 2)
    return figure
