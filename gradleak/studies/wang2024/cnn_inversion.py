"""An image from a convolutional network, in closed form

Beyond wang2024, section 4.3: LeNet run backwards layer by layer, and polished to the last digit.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import data, defenses, metrics, models, studies
from gradleak.images import LBFGS, match, polished, trace_convolutional
from gradleak.leak import observe
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import STAGES, Row, Stage
from gradleak.studies.shared.defended import Defence, defended_trials, defense_cells, sent_behind
from gradleak.studies.shared.matched_runs import lenets, read_by
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.samples import DTYPES, inputs_of, pooled_samples

PLACE = "Beyond section 4.3"
SMALLEST: dict[str, Any] = {}
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3),
    "clip": (0.5,),
    "quantize": (16,),
    "half": (16,),
}
# The paper's best figures for smoothed labels: Table 4 (untrained) and Table 3 (trained).
PUBLISHED = {"untrained": 25.9, "trained": 20.4}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    samples: int = Field(1, ge=1, le=10_000, description="single images a network and precision, smoothed labels")
    polishings: int = Field(0, ge=0, le=10_000, description="of these, how many are polished, float32")
    compared: int = Field(0, ge=0, le=1000, description="of these, how many gradient matching is run on")
    matching_steps: int = Field(1, ge=1, le=100_000, description="L-BFGS steps of L2 matching, 20 gradients each")
    defended: int = Field(1, ge=1, le=1000, description="images a defence is tried on, untrained network")
    defenses: list[Defence] = Field(["clip"], min_length=1, description="defences that are tried on them")
    stages: list[Stage] = Field(["untrained"], description="networks: untrained, trained")
    dataset: str = Field("photos", description="private images, test split")

    paper: ClassVar[dict[str, Any]] = {
        "samples": 30,
        "polishings": 30,
        "compared": 5,
        "matching_steps": 300,
        "defended": 10,
        "defenses": list(DEFENSES),
        "stages": list(STAGES),
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return LeNet in its states, and the images that it is shown."""
        return lenets(self.dataset, ["untrained", *self.stages])


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.samples} smoothed images a network, {data.title(parameters.dataset)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return read_by(parameters.dataset, parameters.stages)


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: closed forms by network and precision, one a polished image, and the rest."""
    device = studies.resolve_device(parameters.device)
    common = {"dataset": parameters.dataset, "seed": parameters.seed, "device": device}
    closed = [
        {"part": "closed", "stage": stage, "dtype": dtype, "samples": parameters.samples} | common
        for stage in parameters.stages
        for dtype in DTYPES
    ]
    shown = [
        {
            "part": "polish",
            "stage": stage,
            "image": n,
            "matching": parameters.matching_steps if n < parameters.compared else 0,
        }
        | common
        for stage in parameters.stages
        for n in range(min(parameters.polishings, parameters.samples))
    ]
    defended = defended_trials(
        {name: DEFENSES[name] for name in parameters.defenses}, samples=parameters.defended, **common
    )
    return closed + shown + defended


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Invert images in closed form, polish one, or defend some; a row an image and layer, or an image."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]]
    parts = {"closed": _closed, "polish": _polish, "defense": _defended}
    return parts[part](**inputs)


def _made(stage: str, dataset: str, count: int, seed: int, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    private = data.load(dataset, "test")
    inputs, targets = pooled_samples(private, "smoothing", count, seed)
    row = Row.of(f"{dataset}/lenet/{stage}")
    model = attacked_networks.network(row, "smoothing", private, seed, device)[0]
    return model.to(device), inputs.to(device), targets.to(device)


def _closed(stage: str, dtype: str, samples: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    model, inputs, targets = _made(stage, dataset, samples, seed, device)
    model = model.to(DTYPES[dtype])
    double = copy.deepcopy(model).double()
    rows = []
    for n in range(samples):
        image = inputs[n : n + 1].to(DTYPES[dtype])
        leak = observe(model, image, targets[n : n + 1].to(DTYPES[dtype]))
        started = time.perf_counter()
        found = trace_convolutional(leak)
        seconds = time.perf_counter() - started
        truth = data.denormalise(image.double())
        row = {"image": n, "seconds": seconds, "status": found.status}
        rows.append(row | {"layer": "image"} | _quality(data.denormalise(found.inputs), truth))
        truths = inputs_of(convolutions(double), double, image.double())
        for report, own in zip(reversed(found.layers), truths, strict=True):
            actual = (
                (report.found.cpu() - own[0].cpu()).norm() / own.cpu().norm() if report.found is not None else math.nan
            )
            rows.append(
                {
                    "image": n,
                    "layer": report.name,
                    "equations": report.equations,
                    "unknowns": report.unknowns,
                    "rank": report.rank,
                    "claimed": report.claimed,
                    "actual": float(actual),
                }
            )
    return rows


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    """Return a model's convolutions."""
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def _quality(image: Tensor, truth: Tensor) -> dict[str, Any]:
    image, truth = image.cpu(), truth.cpu().clamp(0, 1)
    return {"psnr": float(metrics.psnr(image, truth)), "ssim": float(metrics.ssim(image, truth))}


def _polish(stage: str, image: int, matching: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    model, inputs, targets = _made(stage, dataset, image + 1, seed, device)
    sent, target = inputs[image:].float(), targets[image:].float()
    truth = data.denormalise(sent.double())
    leak = observe(model, sent, target)
    started = time.perf_counter()
    closed = trace_convolutional(leak)
    between = time.perf_counter()
    better = polished(leak, closed.inputs, closed.labels)
    rows = [
        {"attack": "closed form", "seconds": between - started} | _quality(data.denormalise(closed.inputs), truth),
        {"attack": "polished", "seconds": time.perf_counter() - started, "steps": len(better.misfits) - 1}
        | _quality(data.denormalise(better.inputs), truth),
    ]
    strip = [truth, data.denormalise(closed.inputs), data.denormalise(better.inputs)]
    if matching:
        started = time.perf_counter()
        found = match(leak, target, optimizer=LBFGS(steps=matching), seed=seed + image)
        seconds = time.perf_counter() - started
        restored = data.denormalise(found.images.double())
        rows.append({"attack": "L2 matching", "seconds": seconds, "steps": matching} | _quality(restored, truth))
        strip.insert(1, restored)
        rows.append({"attack": "picture", "picture": packed(torch.cat(strip), len(strip))})
    return rows


def _defended(defense: str, level: float, samples: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    model, inputs, targets = _made("untrained", dataset, samples, seed, device)
    rows = []
    for n in range(samples):
        image, target = inputs[n : n + 1], targets[n : n + 1].float()
        clean = observe(model, image, target)
        leak = replace(clean, gradients=sent_behind(defense, level, clean.gradients, seed + n))
        utility = defenses.utility(clean.gradients, leak.gradients)
        largest = max(float(value.abs().max()) for value in clean.gradients.values())
        step = largest / (2**15 - 1) if defense == "quantize" else 0.0
        known = level if defense == "gaussian" else step / math.sqrt(12)
        for attacker, noise in (("unaware", 0.0), ("aware", known)):
            found = trace_convolutional(leak, noise=noise)
            row = {"image": n, "attacker": attacker, "status": found.status, "utility": utility}
            rows.append(row | _quality(data.denormalise(found.inputs), data.denormalise(image.double())))
    return rows


def _images(record: Record) -> pd.DataFrame:
    frame = record.frame()
    return frame[(frame["part"] == "closed") & (frame["layer"] == "image")]


def _polished(record: Record) -> pd.DataFrame:
    """Return the rows of polished and matched images; there may be none."""
    frame = record.frame()
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, "attack", "matching"])))
    return frame[(frame["part"] == "polish") & (frame["attack"] != "picture")]


def _named(layer: str) -> str:
    """Return what a layer is called: LeNet's convolutions are every second module of its body."""
    return f"convolution {int(layer.rpartition('.')[2]) // 2 + 1}"


def table(record: Record) -> pd.DataFrame:
    """Return the closed form's results, a line a network and precision, and the polished ones."""
    polish = _polished(record)
    lines = []
    for (stage, dtype), group in _images(record).groupby(["stage", "dtype"], sort=False):
        lines.append(_line(str(stage), str(dtype), "closed form", group))
        better = polish[(polish["attack"] == "polished") & (polish["stage"] == stage)]
        if dtype == "float32" and len(better):
            lines.append(_line(str(stage), str(dtype), "polished", better))
    return pd.DataFrame(lines)


def _line(stage: str, dtype: str, attack: str, group: pd.DataFrame) -> dict[str, Any]:
    spread = f" ± {group['psnr'].std():.1f}" if len(group) > 1 else ""
    return {
        "LeNet": stage,
        "gradients": dtype,
        "attack": attack,
        "n": len(group),
        "PSNR": f"{group['psnr'].mean():.1f}{spread}",
        "least": f"{group['psnr'].min():.1f}",
        "SSIM": f"{group['ssim'].mean():.4f}",
        "the paper's best": f"{PUBLISHED[stage]}",
        "seconds": f"{group['seconds'].median():.2g}",
    }


def layer_table(record: Record) -> pd.DataFrame:
    """Return, layer by layer, equations and unknowns, and the error claimed and actual."""
    frame = record.frame()
    frame = frame[(frame["part"] == "closed") & frame["claimed"].notna()]
    lines = []
    for (stage, dtype, layer), group in frame.groupby(["stage", "dtype", "layer"], sort=False):
        ratio = (group["claimed"] / group["actual"]).astype(float)
        lines.append(
            {
                "LeNet": stage,
                "gradients": dtype,
                "inputs of": _named(str(layer)),
                "equations": f"{group['equations'].iloc[0]:.0f}",
                "unknowns": f"{group['unknowns'].iloc[0]:.0f}",
                "median error": f"{group['actual'].median():.1e}",
                "claimed / actual": f"{ratio.median():.2f} ({ratio.min():.2f} … {ratio.max():.2f})",
            }
        )
    return pd.DataFrame(lines)


def batch_table() -> pd.DataFrame:
    """Return which layer runs out of equations first as the batch grows, by counting alone."""
    sides, lines = [32, 16, 8, 8], []
    for batch in (1, 2, 3, 4):
        line: dict[str, Any] = {"B": batch}
        for index, module in enumerate(convolutions(models.build("lenet"))):
            unknowns = module.in_channels * sides[index] ** 2
            equations = batch * module.out_channels * sides[index + 1] ** 2 + module.weight.numel()
            line[f"convolution {index + 1}"] = f"{equations:,} for {batch * unknowns:,}"
        lines.append(line)
    return pd.DataFrame(lines)


def comparison_table(record: Record) -> pd.DataFrame:
    """Return matching, the closed form and the polished image side by side on the same images."""
    frame = _polished(record)
    frame = frame[frame["matching"] > 0]
    lines = []
    for (stage, attack), group in frame.groupby(["stage", "attack"], sort=False):
        lines.append(
            {
                "LeNet": stage,
                "attack": attack,
                "n": len(group),
                "mean PSNR": f"{group['psnr'].mean():.1f}",
                "least": f"{group['psnr'].min():.1f}",
                "seconds an image": f"{group['seconds'].mean():.2g}",
            }
        )
    return pd.DataFrame(lines)


def defense_table(record: Record) -> pd.DataFrame:
    """Return what defences leave of the image, and of the gradient."""
    frame = record.frame()
    frame = frame[frame["part"] == "defense"]
    lines = []
    for (defense, level), group in frame.groupby(["defense", "level"], sort=False):
        own = {str(name): part for name, part in group.groupby("attacker")}
        median = own["aware"]["psnr"].median()
        lines.append(
            {
                **defense_cells(defense, level),
                "cosine": f"{group['utility'].mean():.5f}",
                "unaware: refused": f"{100 * own['unaware']['psnr'].eq(-math.inf).mean():.0f} %",
                "aware: median PSNR": "lost" if median == -math.inf else f"{median:.1f}",
            }
        )
    return pd.DataFrame(lines)


def figure_images(record: Record) -> Figure:
    """Draw the compared images: private, matched, closed form, polished; a panel a network."""
    frame = record.frame()
    if "picture" not in frame:
        return figures.nothing("No image was matched in this run: compared = 0")
    pictures = frame[frame["picture"].notna()]
    stages = list(dict.fromkeys(pictures["stage"]))
    most = int(pictures.groupby("stage").size().max())
    figure, axes = figures.panels(1, len(stages), height=1.06 * most + 0.5)
    for axis, stage in zip(axes[0], stages, strict=True):
        show(axis, pictures[pictures["stage"] == stage]["picture"].tolist())
        columns = ["private", "matched", "closed form", "polished"]
        side = axis.get_xlim()[1] / len(columns)
        axis.set_xticks([(index + 0.5) * side for index in range(len(columns))], columns)
        axis.set_title(f"{stage} LeNet")
    return figure


def figure_psnr(record: Record) -> Figure:
    """Draw every image's PSNR by attack, against the paper's best."""
    closed, polish = _images(record), _polished(record)
    stages = list(dict.fromkeys(closed["stage"]))
    figure, axes = figures.panels(1, len(stages), height=3.2, sharey=True)
    for axis, stage in zip(axes[0], stages, strict=True):
        own, better = closed[closed["stage"] == stage], polish[polish["stage"] == stage]
        groups = {
            "L2\nmatching": better[better["attack"] == "L2 matching"]["psnr"],
            "closed form,\nfloat32": own[own["dtype"] == "float32"]["psnr"],
            "polished,\nfloat32": better[better["attack"] == "polished"]["psnr"],
            "closed form,\nfloat64": own[own["dtype"] == "float64"]["psnr"],
        }
        figures.swarms(axis, {name: values.astype(float).clip(lower=0) for name, values in groups.items()})
        axis.axhline(PUBLISHED[stage], color=figures.TRUTH, linestyle=(0, (4, 2)), linewidth=1.2)
        axis.text(3.45, PUBLISHED[stage] + 5, "the paper's best", ha="right", fontsize=9, color=figures.TRUTH)
        axis.set_title(f"{stage} LeNet")
    axes[0][0].set_ylabel("PSNR, dB")
    return figure


def figure_layers(record: Record) -> Figure:
    """Draw where digits are lost: the error of every layer's inputs, claimed and actual."""
    frame = record.frame()
    frame = frame[(frame["part"] == "closed") & frame["claimed"].notna()]
    names = list(dict.fromkeys(frame["layer"]))[::-1]
    stages = list(dict.fromkeys(frame["stage"]))
    figure, axes = figures.panels(1, 2, height=3.2, sharey=True)
    for axis, dtype in zip(axes[0], DTYPES, strict=True):
        for index, stage in enumerate(stages):
            own = frame[(frame["dtype"] == dtype) & (frame["stage"] == stage)]
            places = own["layer"].map(names.index) + 0.14 * (2 * index + 1 - len(stages))
            colour = figures.COLOURS[2 * index]
            axis.plot(places, own["actual"].astype(float), "o", color=colour, markersize=3, label=f"{stage}, actual")
            medians = own.groupby("layer")["claimed"].median()[names].astype(float)
            axis.plot(range(len(names)), medians, color=colour, label=f"{stage}, claimed (median)")
        axis.set_xticks(range(len(names)), [f"into\n{_named(name)}" for name in names])
        axis.set(yscale="log", title=f"{dtype} gradients", xlim=(-0.4, len(names) - 0.6))
    axes[0][0].set_ylabel("relative error")
    figures.legend_below(figure, 2 * len(stages))
    return figure
