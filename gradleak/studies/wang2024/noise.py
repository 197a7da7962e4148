"""Noise and other defences against label recovery

wang2024, section 5.2, Table 5 and Figure 6: recover soft labels from gradients with noise or behind other defences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from gradleak import claims, data, defenses, metrics, studies
from gradleak.labels import PRIORS, SoftLabels, recover_soft_labels
from gradleak.labels.soft import search
from gradleak.labels.soft.path import LabelPath, label_path
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show.drawn import crossed, drawn, lines
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, among, only, percent, select, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import defended
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.outcomes import Kind, Measure, Outcome, average_of, collected
from gradleak.studies.shared.samples import observe_private, private_samples
from gradleak.studies.shared.searched import percentage, statuses

PLACE = "Table 5, Figure 6"
# The authors' particle swarm for this table: windows of |s|, particles, iterations, and the tolerance for a scalar.
WINDOWS, POPULATION, ITERATIONS, NEAR = ((1.0, 5.0), (5.0, 10.0)), 200, 30, 1.0
# The coefficient is not stated for this table. The table's errors L_s fit the plain scalar: with the coefficient of 4
# of the other experiments they would be four times as large.
COEFFICIENT = 1.0
# The attacks: the exact solver with different knowledge of the disturbance, and the authors' particle swarm.
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
    """Parameters of the page: noise levels, images and the network."""

    samples: int = setting(
        8, paper=100, smallest=4, ge=2, le=10_000, about="images with smoothed labels per disturbance"
    )
    swarms: int = setting(
        1, paper=100, ge=1, le=10_000, about="number of these images on which the paper's particle swarm is run"
    )
    levels: list[float] = setting(
        [1e-2],
        paper=[1e-4, 1e-3, 1e-2, 1e-1],
        smallest=[1e-3],
        about="noise levels, each read as standard deviation and as variance",
    )
    dataset: str = setting("photos", paper="cifar10", about="dataset of the private images, test split")
    network: str = setting("lenet", paper="resnet18", about="the network, untrained")

    def sees(self) -> list[Sees]:
        """Return the network and the images that it sees."""
        return [Sees(self.network, self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield noise by kind, reading of the level, place and level, then the other defences at every strength."""
        for noise, reading, place, level in product(NOISES, ("deviation", "variance"), ("row", "layer"), self.levels):
            yield Disturbed.of(self, defense=noise, level=level, reading=reading, place=place)
        for defense, levels in STRENGTHS.items():
            for level in levels:
                yield Disturbed.of(self, defense=defense, level=level, reading="strength", place="layer")

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{self.samples} images with smoothed labels for each disturbance, {data.title(self.dataset)}"


class Found(Row):
    """The success of an attack, by the paper's measures of the scalar and by measures of the label; shares in percent.

    Attributes:
        accuracy: Scalars that differ from the truth by less than `NEAR`.
        scalar_error: The median error of the scalar.
        mean_scalar_error: The mean error of the scalars that differ by less than `NEAR`.
        label_error: The median L1 error of the label.
        mean_label_error: The mean L1 error of the label.
        within_tenth: Labels with an L1 error below 0.1.
        class_right: Labels whose largest class is right.
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
    """The success of an attack with its disturbance.

    Attributes:
        std: The standard deviation of the noise, or another defence's strength.
        utility: The mean cosine of the sent gradients with the undisturbed gradients.
        unique, ambiguous, failed: The percentage of each status of the exact solver.
    """

    std: float
    utility: float
    attack: str
    unique: float = math.nan
    ambiguous: float = math.nan
    failed: float = math.nan


class Disturbed(Experiment):
    """Attack the gradients of single images after one disturbance.

    Attributes:
        reading: Whether the level is the noise's standard deviation ("deviation"), its "variance", or another defence's
            "strength".
        place: Whether one "row" of the gradient is disturbed or the whole "layer".
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
        """Disturb the gradients, and run every attack on them."""
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
            # Compute the scalar of the true largest row, because the attack may have chosen another row.
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
        """Return the exact solver's labels if it expects no noise, estimates the noise, or knows the defence."""
        found = {EXACT: recover_soft_labels(sent, weight), ESTIMATED: recover_soft_labels(sent, weight, noise=None)}
        if self.defense in NOISES:
            found[KNOWN] = recover_soft_labels(sent, weight, noise=std)
        elif self.defense == "clip":
            found[UNSCALED] = recover_soft_labels(sent, weight, scale=None)
        return found


def compare(scalars: Tensor, truth: Tensor, labels: Tensor, targets: Tensor) -> Found:
    """Compare an attack's scalars (N,) and labels (N, C) with the true scalars and labels.

    Args:
        scalars: The attack's scalars (N,).
        truth: The true scalars (N,).
        labels: The attack's labels (N, C), NaN for failures.
        targets: The true labels (N, C).
    """
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
    """Run the authors' search for this table: take the least loss in two windows of either sign, without a threshold.

    If noise is on one row, the ratios are those of the undisturbed gradient, as in the authors' code.

    Args:
        clean: The undisturbed gradients (N, C, I).
        sent: The disturbed gradients (N, C, I).
        weight: (C, I).
        place: "row" or "layer".
        seed: The seed of the particles.

    Returns:
        The scalars (N,) and the labels (N, C).
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


def headline(record: Record) -> Headline:
    """Return the finding: noise stops the search only on the whole layer, and not a solver that expects noise."""
    known = claims.judgements(record)
    swarm, exact = known["noise-layer-gaussian-0.1-within-1-of-the-truth"], known["noise-layer-exact"]
    row = known["noise-gaussian-0.1-within-1-of-the-truth"]
    return Headline(
        f"The largest Gaussian noise of the paper's code leaves the published search {row.text} of the scalars if "
        f"added to one row, as in that code, and {swarm.text} on the whole layer, where a solver that expects noise "
        f"finds {exact.text}.",
        true=bool(exact.agrees and (row.value or 0) > (exact.value or 0) > (swarm.value or 100) + 30),
        claim="noise-layer-gaussian-0.1-within-1-of-the-truth",
        what="scalars that the paper's search finds, noise on the whole layer, ResNet18, CIFAR-10 images",
        figure=figure_errors,
        of="images",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 5: the particle swarm with noise on one row, and the exact solver that knows the noise level.

    Rows: kinds of noise and standard deviations. Columns, for each attack: the share of scalars within 1 of the truth,
    the mean error L_s of these scalars, and the mean L1 label error L_r.
    """
    rows = _noisy(record, "row")
    rows = rows[rows["reading"] == "deviation"]
    return summary(
        rows.assign(std=rows["level"].map(_short)),
        {"noise": "defense", "standard deviation": "std"},
        {
            "swarm: scalars within 1": among(only("accuracy", percent()), attack=SWARM),
            "swarm: mean L_s": among(only("mean_scalar_error", _number), attack=SWARM),
            "swarm: mean L_r": among(only("mean_label_error", _number), attack=SWARM),
            "exact solver: scalars within 1": among(only("accuracy", percent()), attack=KNOWN),
            "exact solver: mean L_s": among(only("mean_scalar_error", _number), attack=KNOWN),
            "exact solver: mean L_r": among(only("mean_label_error", _number), attack=KNOWN),
        },
    )


def layer_table(record: Record) -> pd.DataFrame:
    """Return the results with noise on the whole layer, for both readings of the paper's levels.

    Rows: kinds of noise and standard deviations. Columns: the cosine of the sent gradient with the undisturbed
    gradient; the share of scalars found by the particle swarm and by the exact solver without and with the noise level;
    and for the last attack the share of right classes and the median label error L_r.
    """
    # Both readings may give the same standard deviation, which is shown once.
    rows = _noisy(record, "layer").sort_values("std").drop_duplicates(["defense", "std", "attack"])
    rows = rows.sort_values(["defense", "std"])
    return summary(
        rows.assign(std=rows["std"].map(_short)),
        {"noise": "defense", "standard deviation": "std"},
        {
            "cosine": only("utility", _short),
            "swarm: scalars within 1": among(only("accuracy", percent()), attack=SWARM),
            "noise estimated: scalars within 1": among(only("accuracy", percent()), attack=ESTIMATED),
            "noise known: scalars within 1": among(only("accuracy", percent()), attack=KNOWN),
            "noise known: class right": among(only("class_right", percent()), attack=KNOWN),
            "noise known: median L_r": among(only("label_error", _number), attack=KNOWN),
        },
    )


def defense_table(record: Record) -> pd.DataFrame:
    """Return the results behind the other defences.

    Rows: defences and strengths. Columns: the cosine of the sent gradient with the undisturbed gradient; the failures
    of an attacker who expects no defence ("unaware"); and for an attacker who expects it ("aware") the shares of labels
    within 0.1 (L1) and of right classes, and the median label error L_r.
    """
    rows = _with_aware(record.rows(Disturbed))
    rows = rows[~rows["defense"].isin(NOISES)]
    return summary(
        rows.assign(strength=rows["level"].map(_short).mask(rows["defense"] == "sign", NOTHING)),
        {"defence": "defense", "strength": "strength"},
        {
            "cosine": among(only("utility", _short), aware=True),
            "unaware attacker: no label": among(only("failed", percent()), attack=EXACT),
            "aware attacker: labels within 0.1": among(only("within_tenth", percent()), aware=True),
            "aware attacker: class right": among(only("class_right", percent()), aware=True),
            "aware attacker: median L_r": among(only("label_error", _number), aware=True),
        },
    )


def _noisy(record: Record, place: str) -> pd.DataFrame:
    rows = record.rows(Disturbed)
    return rows[rows["defense"].isin(NOISES) & (rows["place"] == place)]


def _with_aware(rows: pd.DataFrame) -> pd.DataFrame:
    """Mark the attack that expects each defence: unknown scale for clipping, estimated noise for the others."""
    expects = rows["defense"].eq("clip").map({True: UNSCALED, False: ESTIMATED})
    return rows.assign(aware=rows["attack"] == expects)


def _short(value: Any) -> str:
    return f"{value:.3g}"


def _number(value: Any) -> str:
    return NOTHING if value is None or pd.isna(value) else f"{value:.1e}"


def figure_errors(record: Record) -> Figure:
    """Plot the median L1 label error against the standard deviation of the noise, as Figure 6 does.

    Left: noise on one row. Right: noise on the whole layer. One line for each attack and kind of noise.
    """
    rows = record.rows(Disturbed)
    looks = crossed((SWARM, KNOWN, ESTIMATED), NOISES)
    return drawn(
        rows[rows["defense"].isin(NOISES)].sort_values("place", ascending=False, kind="stable"),
        lines("std", "label_error", by=["attack", "defense"], order=list(looks), looks=looks),
        panels="place",
        title={"row": "on one row, as in the paper's code", "layer": "on the whole layer"}.__getitem__,
        height=3.6,
        legend=3,
        xscale="log",
        yscale="log",
        xlabel="standard deviation of the noise",
        ylabel="median label error (L1)",
    )


def figure_utility(record: Record) -> Figure:
    """Plot the share of labels within 0.1 (L1) against 1 − cosine of the sent gradient with the undisturbed gradient.

    One line for each defence; the attacker expects the defence.
    """
    rows = select(_with_aware(record.rows(Disturbed)), aware=True, place="layer")
    return drawn(
        rows.assign(lost=1 - rows["utility"].clip(upper=1 - 1e-8)),
        lines("lost", "within_tenth", by="defense", markersize=6),
        height=3.6,
        legend=6,
        xscale="log",
        xlabel="1 − cosine of the sent and the clean gradient",
        ylabel="labels within 0.1 (L1), %",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["place"] == "layer"]
    measures: dict[Kind, Measure] = {
        "soft labels": average_of("within_tenth", "labels within an L1 distance of 0.1", "samples"),
        "labels": average_of("class_right", "classes right", "samples"),
    }
    # The level of noise may be its variance; `std` is always its standard deviation.
    defenses_sent = [
        f"{'clip-share' if name == 'clip' else name}/{(std if name in NOISES else level):.4g}"
        for name, std, level in zip(rows["defense"], rows["std"], rows["level"], strict=True)
    ]
    found: list[Outcome] = []
    for leak, measure in measures.items():
        found += collected(
            record, rows, leak, measure, cosine=rows["utility"],
            attack=rows["attack"].str.replace("exact", "exact solver").replace(SWARM, "published search, swarm"),
            network=rows["network"], data=rows["dataset"],
            defense=defenses_sent, detail="smoothing labels",
        )  # fmt: skip
    return found
