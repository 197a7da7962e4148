"""Noise and other defences against label recovery

wang2024, section 5.2, Table 5 and Figure 6: what is left of a soft label in a disturbed gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from torch import Tensor

from gradleak import data, defenses, metrics, studies
from gradleak.labels import PRIORS, SoftLabels, recover_soft_labels
from gradleak.labels.soft import search
from gradleak.labels.soft.path import LabelPath, label_path
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import NOTHING, among, only, percent, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import defended
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.samples import observe_private, private_samples
from gradleak.studies.shared.searched import percentage, statuses

PLACE = "Table 5, Figure 6"
# The authors' swarm for this table: its windows of |s|, its size, and how near a scalar must come to count.
WINDOWS, POPULATION, ITERATIONS, NEAR = ((1.0, 5.0), (5.0, 10.0)), 200, 30, 1.0
# Not stated for this table. Its errors L_s are those of the plain scalar: with the coefficient of 4 that the other
# experiments have, they would be four times as large.
COEFFICIENT = 1.0
# The attacks: the exact solver, by what it knows of the disturbance, and the authors' swarm.
EXACT, SWARM = "exact", "swarm"
KNOWN, ESTIMATED, UNSCALED = "exact, noise known", "exact, noise estimated", "exact, scale unknown"
NOISES = ("gaussian", "laplace")
STRENGTHS: dict[str, tuple[float, ...]] = {
    "clip": (0.9, 0.5, 0.1),
    "prune": (0.2, 0.5, 0.8, 0.95),
    "quantize": (16, 8, 4, 2),
    "sign": (1,),
}
WORDS = {name: name for name in (*NOISES, *STRENGTHS)}


class Parameters(studies.Parameters):
    """How strong the noise is, and how many images on which network are disturbed."""

    samples: int = setting(8, paper=100, smallest=4, ge=2, le=10_000, about="smoothed images a disturbance")
    swarms: int = setting(
        1, paper=100, ge=1, le=10_000, about="of these, how many the paper's particle swarm is run on"
    )
    levels: list[float] = setting(
        [1e-2], paper=[1e-4, 1e-3, 1e-2, 1e-1], smallest=[1e-3], about="noise levels, as deviation and as variance"
    )
    dataset: str = setting("photos", paper="cifar10", about="private images, test split")
    network: str = setting("lenet", paper="resnet18", about="the network, untrained")

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees(self.network, self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Give the noises by how the level is read and where they lie, then the other defences at every strength."""
        for noise, reading, place, level in product(NOISES, ("deviation", "variance"), ("row", "layer"), self.levels):
            yield Disturbed.of(self, defense=noise, level=level, reading=reading, place=place)
        for defense, levels in STRENGTHS.items():
            for level in levels:
                yield Disturbed.of(self, defense=defense, level=level, reading="strength", place="layer")

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        return f"{self.samples} smoothed images a disturbance, {data.title(self.dataset)}"


class Found(Row):
    """What an attack found, by the paper's measures of the scalar and by those of the label; shares in percent.

    `accuracy`: scalars near the truth; `scalar_error`, `label_error`: medians; `mean_scalar_error`: of the scalars that
    are near; `within_tenth`: labels within 0.1 of the truth (L1).
    """

    count: int
    accuracy: float
    scalar_error: float
    mean_scalar_error: float | None
    label_error: float
    mean_label_error: float
    within_tenth: float
    class_right: float


class Attacked(Found):
    """The same with the attack, the disturbance's strength, and the mean cosine with the clean gradients, `utility`.

    `unique`, `ambiguous`, `failed`: how often the exact solver says so, in percent.
    """

    std: float
    utility: float
    attack: str
    unique: float = math.nan
    ambiguous: float = math.nan
    failed: float = math.nan


class Disturbed(Experiment):
    """The gradients of single images, disturbed in one way, on one `row` or on the whole `layer`.

    `reading`: whether the level is the noise's standard deviation, its variance, or another defence's strength.
    """

    defense: str
    level: float
    reading: str
    place: str
    samples: int
    swarms: int
    dataset: str
    network: str

    def run(self) -> Iterator[Attacked]:
        """Disturb the gradients, and attack them in every way."""
        private = data.load(self.dataset, "test")
        inputs, targets = private_samples(private, "smoothing", self.samples, self.seed)
        model = built(self.network, private, self.seed, self.device, bias=False)
        leaks, errors = observe_private(model, inputs, targets, "float32", self.device)
        clean, weight = leaks.weight_gradients.cpu(), leaks.weight.cpu()
        std = math.sqrt(self.level) if self.reading == "variance" else self.level
        sent = self._sent(clean, std)
        cosines = [defenses.utility({"head": one}, {"head": two}) for one, two in zip(clean, sent, strict=True)]
        utility = sum(cosines) / len(cosines)
        row = clean.sum(dim=2).abs().argmax(dim=1, keepdim=True)
        scalars = COEFFICIENT / errors.cpu().gather(1, row)[:, 0]
        for name, own in self._solved(sent, weight, std).items():
            # The scalar of the row that the truth is measured in; the attack may have taken another for the largest.
            residual = (own.features @ weight.double().T).softmax(dim=1) - own.labels
            found = compare(COEFFICIENT / residual.gather(1, row)[:, 0], scalars, own.labels, targets)
            yield Attacked.of(found, attack=name, std=std, utility=utility, **statuses(own.status))
        if self.defense in NOISES:
            few = slice(0, self.swarms)
            best, labels = swarm(clean[few], sent[few], weight, self.place, self.seed)
            found = compare(best, scalars[few], labels, targets[few])
            yield Attacked.of(found, attack=SWARM, std=std, utility=utility)

    def _sent(self, clean: Tensor, std: float) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        # Clipping's strength is a share of the median norm of the gradients.
        strength = std * float(clean.flatten(1).norm(dim=1).median()) if self.defense == "clip" else std
        disturb = defended.named(WORDS, self.defense, strength, generator)
        sent = torch.stack([disturb({"head": gradient})["head"] for gradient in clean])
        if self.place == "layer":
            return sent
        row, every = clean.sum(dim=2).abs().argmax(dim=1), torch.arange(len(clean))
        only_row = clean.clone()
        only_row[every, row] = sent[every, row]
        return only_row

    def _solved(self, sent: Tensor, weight: Tensor, std: float) -> dict[str, SoftLabels]:
        """Return what the exact solver finds by what it knows: nothing of noise, that there is some, and more."""
        found = {EXACT: recover_soft_labels(sent, weight), ESTIMATED: recover_soft_labels(sent, weight, noise=None)}
        if self.defense in NOISES:
            found[KNOWN] = recover_soft_labels(sent, weight, noise=std)
        elif self.defense == "clip":
            found[UNSCALED] = recover_soft_labels(sent, weight, scale=None)
        return found


def compare(scalars: Tensor, truth: Tensor, labels: Tensor, targets: Tensor) -> Found:
    """Compare scalars and labels that an attack found with the true ones."""
    gap, error = (scalars - truth).abs(), metrics.label_error(labels, targets.to(labels))
    near = gap < NEAR
    right = labels.nan_to_num(-1).argmax(dim=1) == targets.argmax(dim=1)
    return Found(
        count=len(truth),
        accuracy=percentage(near),
        scalar_error=float(gap.nanmedian()),
        mean_scalar_error=float(gap[near].mean()) if near.any() else None,
        label_error=float(error.nanmedian()),
        mean_label_error=float(error.nanmean()),
        within_tenth=percentage(error < 0.1),
        class_right=percentage(right & ~error.isnan()),
    )


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
    rows = _noisy(record, "row")
    rows = rows[rows["reading"] == "deviation"]
    return summary(
        rows.assign(std=rows["level"].map(_short)),
        {"noise": "defense", "std": "std"},
        {
            "swarm, accuracy": among(only("accuracy", percent()), attack=SWARM),
            "mean L_s": among(only("mean_scalar_error", _number), attack=SWARM),
            "mean L_r": among(only("mean_label_error", _number), attack=SWARM),
            "exact, accuracy": among(only("accuracy", percent()), attack=KNOWN),
            "L_s": among(only("mean_scalar_error", _number), attack=KNOWN),
            "L_r": among(only("mean_label_error", _number), attack=KNOWN),
        },
    )


def layer_table(record: Record) -> pd.DataFrame:
    """Return what a client's noise on the whole layer leaves, by both readings of the paper's levels."""
    # One reading's deviation may be the other's too: it is shown once.
    rows = _noisy(record, "layer").sort_values("std").drop_duplicates(["defense", "std", "attack"])
    rows = rows.sort_values(["defense", "std"])
    return summary(
        rows.assign(std=rows["std"].map(_short)),
        {"noise": "defense", "std": "std"},
        {
            "cosine": only("utility", _short),
            "swarm": among(only("accuracy", percent()), attack=SWARM),
            "noise unknown": among(only("accuracy", percent()), attack=ESTIMATED),
            "noise known": among(only("accuracy", percent()), attack=KNOWN),
            "class right": among(only("class_right", percent()), attack=KNOWN),
            "median L_r": among(only("label_error", _number), attack=KNOWN),
        },
    )


def defense_table(record: Record) -> pd.DataFrame:
    """Return what the other defences leave, and what they cost."""
    rows = _with_aware(record.rows(Disturbed))
    rows = rows[~rows["defense"].isin(NOISES)]
    return summary(
        rows.assign(strength=rows["level"].map(_short).mask(rows["defense"] == "sign", NOTHING)),
        {"defence": "defense", "strength": "strength"},
        {
            "cosine": among(only("utility", _short), aware=True),
            "unaware: failed": among(only("failed", percent()), attack=EXACT),
            "aware: within 0.1": among(only("within_tenth", percent()), aware=True),
            "class right": among(only("class_right", percent()), aware=True),
            "median L_r": among(only("label_error", _number), aware=True),
        },
    )


def _noisy(record: Record, place: str) -> pd.DataFrame:
    rows = record.rows(Disturbed)
    return rows[rows["defense"].isin(NOISES) & (rows["place"] == place)]


def _with_aware(rows: pd.DataFrame) -> pd.DataFrame:
    """Mark the attack that expects each defence: of a clipped gradient, the one that looks for the factor."""
    expects = rows["defense"].eq("clip").map({True: UNSCALED, False: ESTIMATED})
    return rows.assign(aware=rows["attack"] == expects)


def _short(value: Any) -> str:
    return f"{value:.3g}"


def _number(value: Any) -> str:
    return NOTHING if value is None or pd.isna(value) else f"{value:.1e}"


def figure_errors(record: Record) -> Figure:
    """Redraw Figure 6: label error against noise, on one row and on the whole layer."""
    frame = record.rows(Disturbed)
    frame = frame[frame["defense"].isin(NOISES)].astype({"label_error": float})
    frame = frame.rename(columns={"defense": "noise"})
    attacks = [SWARM, KNOWN, ESTIMATED]
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
    frame = _with_aware(record.rows(Disturbed))
    frame = frame[frame["aware"] & (frame["place"] == "layer")]
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
