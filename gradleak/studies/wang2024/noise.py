"""Noise and other defences against label recovery

wang2024, section 5.2, Table 5 and Figure 6: what is left of a soft label in a disturbed gradient.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import data, defenses, metrics, studies
from gradleak.labels import PRIORS, SoftLabels, recover_soft_labels
from gradleak.labels.soft import search
from gradleak.labels.soft.path import LabelPath, label_path
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import defended
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.samples import observe_private, private_samples

PLACE = "Table 5, Figure 6"
SMALLEST: dict[str, Any] = {"samples": 4, "levels": [1e-3], "network": "lenet"}
# The authors' swarm for this table: its windows of |s|, its size, and how near a scalar must come to count.
WINDOWS, POPULATION, ITERATIONS, NEAR = ((1.0, 5.0), (5.0, 10.0)), 200, 30, 1.0
# Not stated for this table. Its errors L_s are those of the plain scalar: with the coefficient of 4 that the other
# experiments have, they would be four times as large.
COEFFICIENT = 1.0
NOISES = ("gaussian", "laplace")
STRENGTHS: dict[str, tuple[float, ...]] = {
    "clip": (0.9, 0.5, 0.1),
    "prune": (0.2, 0.5, 0.8, 0.95),
    "quantize": (16, 8, 4, 2),
    "sign": (1,),
}
WORDS = {name: name for name in (*NOISES, *STRENGTHS)}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    samples: int = Field(8, ge=2, le=10_000, description="smoothed images a disturbance")
    swarms: int = Field(1, ge=1, le=10_000, description="of these, how many the paper's particle swarm is run on")
    levels: list[float] = Field([1e-2], description="noise levels, as deviation and as variance")
    dataset: str = Field("photos", description="private images, test split")
    network: str = Field("lenet", description="the network, untrained")

    paper: ClassVar[dict[str, Any]] = {
        "samples": 100,
        "swarms": 100,
        "levels": [1e-4, 1e-3, 1e-2, 1e-1],
        "network": "resnet18",
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees(self.network, self.dataset)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.samples} smoothed images a disturbance, {data.title(parameters.dataset)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a disturbance each, at one strength."""
    names = ("samples", "swarms", "dataset", "network", "seed")
    common = {name: getattr(parameters, name) for name in names}
    common["device"] = studies.resolve_device(parameters.device)
    noises = [
        {"defense": noise, "level": level, "reading": reading, "place": place}
        for noise in NOISES
        for reading in ("deviation", "variance")
        for place in ("row", "layer")
        for level in parameters.levels
    ]
    others = [
        {"defense": name, "level": float(level), "reading": "strength", "place": "layer"}
        for name, levels in STRENGTHS.items()
        for level in levels
    ]
    return [inputs | common for inputs in noises + others]


def trial(
    *,
    defense: str,
    level: float,
    reading: str,
    place: str,
    samples: int,
    swarms: int,
    dataset: str,
    network: str,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Disturb the gradients of all samples in one way and attack them in every way; one row an attack."""
    private = data.load(dataset, "test")
    inputs, targets = private_samples(private, "smoothing", samples, seed)
    model = built(network, private, seed, device, bias=False)
    leaks, errors = observe_private(model, inputs, targets, "float32", device)
    clean, weight = leaks.weight_gradients.cpu(), leaks.weight.cpu()
    std = math.sqrt(level) if reading == "variance" else level
    generator = torch.Generator().manual_seed(seed)
    # Clipping's strength is a share of the median norm of the gradients.
    strength = std * float(clean.flatten(1).norm(dim=1).median()) if defense == "clip" else std
    disturb = defended.named(WORDS, defense, strength, generator)
    sent = torch.stack([disturb({"head": gradient})["head"] for gradient in clean])
    if place == "row":
        row = clean.sum(dim=2).abs().argmax(dim=1)
        every = torch.arange(len(clean))
        only = clean.clone()
        only[every, row] = sent[every, row]
        sent = only
    utility = [defenses.utility({"head": one}, {"head": two}) for one, two in zip(clean, sent, strict=True)]
    row = clean.sum(dim=2).abs().argmax(dim=1, keepdim=True)
    scalars = COEFFICIENT / errors.cpu().gather(1, row)[:, 0]
    found = {
        "exact": recover_soft_labels(sent, weight),
        "exact, noise estimated": recover_soft_labels(sent, weight, noise=None),
    }
    if defense in NOISES:
        found["exact, noise known"] = recover_soft_labels(sent, weight, noise=std)
    elif defense == "clip":
        found["exact, scale unknown"] = recover_soft_labels(sent, weight, scale=None)
    rows = []
    for name, own in found.items():
        # The scalar of the row that the truth is measured in; the attack may have taken another for the largest.
        residual = (own.features @ weight.double().T).softmax(dim=1) - own.labels
        recovered = COEFFICIENT / residual.gather(1, row)[:, 0]
        rows.append({"attack": name} | judge(recovered, scalars, own.labels, targets) | statuses(own))
    if defense in NOISES:
        few = slice(0, swarms)
        best, labels = swarm(clean[few], sent[few], weight, place, seed)
        rows.append({"attack": "swarm"} | judge(best, scalars[few], labels, targets[few]))
    return [{"std": std, "utility": sum(utility) / len(utility)} | line for line in rows]


def judge(scalars: Tensor, truth: Tensor, labels: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return the paper's accuracy and errors, and what they leave out: the label's own accuracy, and the class."""
    gap, error = (scalars - truth).abs(), metrics.label_error(labels, targets.to(labels))
    near = gap < NEAR
    right = labels.nan_to_num(-1).argmax(dim=1) == targets.argmax(dim=1)
    return {
        "count": len(truth),
        "accuracy": 100 * float(near.double().mean()),
        "scalar_error": float(gap.nanmedian()),
        "mean_scalar_error": float(gap[near].mean()) if near.any() else None,
        "label_error": float(error.nanmedian()),
        "mean_label_error": float(error.nanmean()),
        "within_tenth": 100 * float((error < 0.1).double().mean()),
        "class_right": 100 * float((right & ~error.isnan()).double().mean()),
    }


def statuses(found: SoftLabels) -> dict[str, float]:
    """Return the share of each status in percent."""
    return {name: 100 * found.status.count(name) / len(found) for name in ("unique", "ambiguous", "failed")}


def swarm(clean: Tensor, sent: Tensor, weight: Tensor, place: str, seed: int) -> tuple[Tensor, Tensor]:
    """Run the authors' search for this table: the least loss in two windows on either side wins, whatever it is.

    On one row, as in their code: the row is noisy, and the ratios are still those of the clean gradient.
    """
    path = label_path(sent, weight, columns="one", dtype=None)
    if place == "row":
        kept = label_path(clean, weight, columns="one", dtype=None)
        noisy = sent[torch.arange(len(sent)), kept.row]
        path = LabelPath(noisy, noisy @ weight.T, kept.ratios, None, kept.row)
    best = []
    for n in range(len(sent)):
        objective = search.ScalarLoss(path[n : n + 1], PRIORS["smoothing"], COEFFICIENT)
        edges = [side for low, high in WINDOWS for side in ((low, high), (-high, -low))]
        best.append(min(search.swarm_window(objective, edge, POPULATION, ITERATIONS, seed) for edge in edges)[1])
    scalars = torch.tensor(best, dtype=path.ratios.dtype)
    return scalars.double(), path.labels(scalars[:, None] / COEFFICIENT)[:, 0].double()


def table(record: Record) -> pd.DataFrame:
    """Return Table 5 as the paper has it: the swarm on one noisy row, and the exact solver beside it."""
    frame = record.frame()
    frame = frame[frame["defense"].isin(NOISES) & (frame["place"] == "row") & (frame["reading"] == "deviation")]
    lines = []
    for (defense, level), group in frame.groupby(["defense", "level"], sort=False):
        own = group.set_index("attack")
        lines.append(
            {
                "noise": defense,
                "std": _short(level),
                "swarm, accuracy": _percent(own.loc["swarm", "accuracy"]),
                "mean L_s": _number(own.loc["swarm", "mean_scalar_error"]),
                "mean L_r": _number(own.loc["swarm", "mean_label_error"]),
                "exact, accuracy": _percent(own.loc["exact, noise known", "accuracy"]),
                "L_s": _number(own.loc["exact, noise known", "mean_scalar_error"]),
                "L_r": _number(own.loc["exact, noise known", "mean_label_error"]),
            }
        )
    return pd.DataFrame(lines)


def layer_table(record: Record) -> pd.DataFrame:
    """Return what a client's noise on the whole layer leaves, by both readings of the paper's levels."""
    frame = record.frame()
    frame = frame[frame["defense"].isin(NOISES) & (frame["place"] == "layer")]
    lines = []
    for (defense, std), group in frame.sort_values("std").groupby(["defense", "std"], sort=True):
        own = group.drop_duplicates("attack").set_index("attack")
        lines.append(
            {
                "noise": defense,
                "std": _short(std),
                "cosine": _short(group["utility"].iloc[0]),
                "swarm": _percent(own.loc["swarm", "accuracy"]),
                "noise unknown": _percent(own.loc["exact, noise estimated", "accuracy"]),
                "noise known": _percent(own.loc["exact, noise known", "accuracy"]),
                "class right": _percent(own.loc["exact, noise known", "class_right"]),
                "median L_r": _number(own.loc["exact, noise known", "label_error"]),
            }
        )
    return pd.DataFrame(lines)


def defense_table(record: Record) -> pd.DataFrame:
    """Return what the other defences leave, and what they cost."""
    frame = record.frame()
    frame = frame[~frame["defense"].isin(NOISES)]
    lines = []
    for (defense, level), group in frame.groupby(["defense", "level"], sort=False):
        own = group.set_index("attack")
        # Of a clipped gradient it is the factor that an attacker who expects one looks for.
        best = own.loc["exact, scale unknown" if defense == "clip" else "exact, noise estimated"]
        lines.append(
            {
                "defence": defense,
                "strength": "–" if defense == "sign" else _short(level),
                "cosine": _short(best["utility"]),
                "unaware: failed": _percent(own.loc["exact", "failed"]),
                "aware: within 0.1": _percent(best["within_tenth"]),
                "class right": _percent(best["class_right"]),
                "median L_r": _number(best["label_error"]),
            }
        )
    return pd.DataFrame(lines)


def _percent(value: Any) -> str:
    return f"{value:.0f} %"


def _short(value: Any) -> str:
    return f"{value:.3g}"


def _number(value: Any) -> str:
    return "–" if value is None or pd.isna(value) else f"{value:.1e}"


def figure_errors(record: Record) -> Figure:
    """Redraw Figure 6: label error against noise, on one row and on the whole layer."""
    frame = record.frame()
    frame = frame[frame["defense"].isin(NOISES)].astype({"label_error": float})
    frame = frame.rename(columns={"defense": "noise"})
    attacks = ["swarm", "exact, noise known", "exact, noise estimated"]
    figure, axes = figures.panels(1, 2, height=3.6, sharey=True)
    for axis, place in zip(axes[0], ("row", "layer"), strict=True):
        sns.lineplot(
            frame[frame["place"] == place], x="std", y="label_error", errorbar=None, ax=axis,
            hue="attack", hue_order=attacks, palette=list(figures.COLOURS[:3]), style="noise", markers=True,
        )  # fmt: skip
        title = "on one row, as in the paper's code" if place == "row" else "on the whole layer"
        axis.set(xscale="log", yscale="log", title=title, xlabel="standard deviation of the noise", ylabel="")
        axis.get_legend().remove()
    axes[0][0].set_ylabel("median label error (L1)")
    handles, names = axes[0][0].get_legend_handles_labels()
    drawn = {name: handle for handle, name in zip(handles, names, strict=True) if name not in ("attack", "noise")}
    figure.legend(drawn.values(), drawn, loc="outside lower center", ncols=5)
    return figure


def figure_utility(record: Record) -> Figure:
    """Draw what each defence leaves of the label against what it leaves of the gradient, to whoever expects it."""
    frame = record.frame()
    expects = frame["defense"].eq("clip").map({True: "exact, scale unknown", False: "exact, noise estimated"})
    frame = frame[(frame["place"] == "layer") & (frame["attack"] == expects)]
    figure, axes = figures.panels(1, 1, height=3.6)
    axis = axes[0][0]
    for index, (defense, own) in enumerate(frame.groupby("defense", sort=False)):
        own = own.sort_values("utility")
        axis.plot(
            1 - own["utility"].clip(upper=1 - 1e-8),
            own["within_tenth"],
            color=figures.COLOURS[index % len(figures.COLOURS)],
            marker="osD^vP"[index],
            label=defense,
        )
    axis.set(xscale="log", xlabel="1 − cosine to the clean gradient", ylabel="labels within 0.1 (L1), %")
    figures.legend_below(figure, 6)
    return figure
