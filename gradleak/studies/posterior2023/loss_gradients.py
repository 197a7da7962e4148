"""Losses and distributions: what a count of labels assumes, and how far it holds

posterior2023, Theorem 1, Table 1, Theorem 2 and Figure 2: the weight before p − y for each loss and kind of label, and
what a model predicts for samples of a class and for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, claims, data, metrics, studies
from gradleak.devices import least_squares
from gradleak.labels.hard.posterior import Posteriors, posterior_values
from gradleak.labels.hard.rounding import rounded
from gradleak.leak import head_inputs
from gradleak.losses import BinaryCrossEntropy, CrossEntropy, Focal, Loss
from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.show.drawn import Look, arranged, drawn, grouped, level, lines, only_rows, panel, points
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import load

PLACE = "Sections 3.1 and 3.2, Theorems 1 and 2, Table 1, Figure 2"
# The exponents of the least and the largest scale of logits. Where p rounds to 1, autograd of (1 − p)^γ is not finite
# for γ below 1.
SCALES = (-2.0, 0.3)
# The size of the batches that are counted, and of those on which networks are trained.
BATCH, CLASSES = 64, 10
CONFIDENCES = (0.15, 0.3, 0.5, 0.7, 0.9)
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
# The samples of a class and all others, by their names in tables and figures.
SIDES = {"positive": "samples of the class", "negative": "all other samples"}
# The batch size for which errors of counts are computed.
ERRORS_AT = 32


class Trained(Group):
    """A network and its training steps on a dataset; the activation is empty for the network's default."""

    dataset: str
    network: str
    activation: str
    steps: PositiveInt


class Parameters(studies.Parameters):
    """Parameters of the page: losses and random logits, networks and their training."""

    cases: int = setting(paper=10_000, smallest=20, ge=2, le=1_000_000)
    classes: list[int] = setting(paper=[2, 3, 10, 100, 1000], smallest=[2, 10])
    gammas: list[float] = setting(paper=[0.0, 0.5, 1.0, 2.0, 5.0], smallest=[0.0, 2.0])
    temperatures: list[float] = setting(smallest=[1.0, 2.0])
    rows: list[Trained] = setting(
        paper=Trained.listed(("mnist", "lenet5", "tanh", 100), ("cifar10", "resnet18-cifar", "", 200)),
        smallest=Trained.listed(("digits", "small-cnn", "", 20)),
    )
    stops: int = setting(paper=5, smallest=2, ge=2, le=1000)
    samples: int = setting(paper=1000, smallest=100, ge=20, le=100_000)
    rate: float = setting(gt=0)

    def sees(self) -> list[Sees]:
        """Return the networks of all rows with their images."""
        return [Sees(row.network, row.dataset, activation=row.activation) for row in self.rows]

    def experiments(self) -> Iterator[Experiment]:
        """Yield each loss with each kind of label and number of classes, the counts under each focal loss, and each
        network that is trained.
        """
        kinds = ("one-hot", "soft")
        losses = [
            *product(["focal"], kinds, self.gammas, self.temperatures),
            *product(["cross-entropy"], kinds, [0.0], self.temperatures),
            ("binary", "binary", 0.0, 1.0),
        ]
        for (loss, labels, gamma, temperature), classes in product(losses, self.classes):
            yield Slope.of(self, loss=loss, labels=labels, gamma=gamma, temperature=temperature, classes=classes)
        for gamma in self.gammas:
            yield Counts.of(self, gamma=gamma)
        for row in self.rows:
            yield Distributions.of(self, **dict(row))

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        networks = ", ".join(f"{row.network} on {data.title(row.dataset)}" for row in self.rows)
        return f"{self.cases:,} vectors of random logits for each loss and number of classes; {networks}"


class Slope(Experiment, part="slope"):
    """The gradient of a loss by the logits from autograd, compared with each reading of the theorem."""

    loss: str
    labels: str
    gamma: float
    temperature: float
    classes: int
    cases: int

    def run(self) -> Iterator[Columns]:
        """Draw logits and labels, and compare the gradients."""
        generator = torch.Generator().manual_seed(self.seed)
        draws: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        low, high = SCALES
        spread = 10 ** (low + (high - low) * torch.rand(self.cases, 1, **draws))
        logits = (spread * torch.randn(self.cases, self.classes, **draws)).to(self.device).requires_grad_()
        target = _labels(self.labels, self.cases, self.classes, generator).to(self.device)
        losses: dict[str, Loss] = {
            "focal": Focal(gamma=self.gamma, temperature=self.temperature),
            "cross-entropy": CrossEntropy(self.temperature),
            "binary": BinaryCrossEntropy(),
        }
        own = losses[self.loss]
        # The focal loss allows a different weight α for each sample.
        alpha = 0.25 + torch.rand(self.cases, 1, **draws) if self.loss == "focal" else logits.new_ones(self.cases, 1)
        alpha = alpha.to(self.device)
        (slope,) = torch.autograd.grad((alpha[:, 0] * own(logits, target)).sum(), [logits])
        p = own.probabilities(logits.detach())
        weight = alpha * own.weight(p)
        # The gradient of a saturated sample is mostly rounding error of p, so errors are relative to a larger size.
        size = (slope.norm(dim=1) + 1e-9 * weight.abs().amax(dim=1)).clamp(min=1e-300)
        for form, found in _gradients(weight, p, target, binary=self.loss == "binary").items():
            error = (found - slope).norm(dim=1) / size
            summed: Columns = {"worst": float(error.max()), "median": float(error.median())}
            yield {"form": form, **summed, "count": self.cases, "least_weight": float(weight.min())}


class Counts(Experiment, part="counts"):
    """Counts in batches whose samples all equal the mean of their class, so that only the formula causes errors."""

    gamma: float
    cases: int

    def run(self) -> Iterator[Columns]:
        """Count by Theorem 2 and by a system of equations, for classes of different mean confidence."""
        generator = torch.Generator().manual_seed(self.seed)
        draws: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        batches, loss = min(self.cases, 1000), Focal(gamma=self.gamma)
        for confidence in CONFIDENCES:
            # Classes differ in confidence, and each is confused with some classes more than with others.
            sure = (confidence + 0.4 * (torch.rand(CLASSES, **draws) - 0.5)).clamp(0.02, 0.98)
            others = torch.rand(CLASSES, CLASSES, **draws).fill_diagonal_(0)
            p = others / others.sum(dim=1, keepdim=True) * (1 - sure)[:, None] + torch.diag(sure)
            truth = torch.stack([torch.bincount(row, minlength=CLASSES) for row in _batches(batches, generator)])
            p, sure, truth = p.to(self.device), sure.to(self.device), truth.to(self.device)
            weight = loss.weight(sure)
            # A sample contributes the weight of its class times p − y to all rows of the gradient.
            pushes = weight[:, None] * (p - torch.eye(CLASSES).to(p))
            gradient = truth.double() @ pushes / BATCH
            away = (p.sum(dim=0) - sure) / (CLASSES - 1)
            paper = rounded(posterior_values(gradient, BATCH, Posteriors(sure, away), loss=loss), BATCH)
            system = torch.cat([pushes.T, p.new_ones(1, CLASSES)])
            right = torch.cat([BATCH * gradient, p.new_full((batches, 1), BATCH)], dim=1)
            solved = rounded(least_squares(system, right.T).T, BATCH)
            for form, found in (("Theorem 2", paper), ("as a system", solved)):
                yield {
                    "form": form,
                    "confidence": confidence,
                    "count": batches,
                    "found": 100 * float(metrics.count_overlap(found, truth).mean()),
                    "exact": 100 * float((found == truth).all(dim=1).double().mean()),
                }


def _labels(kind: str, cases: int, classes: int, generator: torch.Generator) -> Tensor:
    if kind == "binary":
        return torch.randint(2, (cases, classes), generator=generator).double()
    if kind == "one-hot":
        return augment.one_hot(torch.randint(classes, (cases,), generator=generator), classes).double()
    drawn = torch.rand(cases, classes, generator=generator, dtype=torch.float64)
    return drawn / drawn.sum(dim=1, keepdim=True)


def _gradients(weight: Tensor, p: Tensor, target: Tensor, *, binary: bool) -> dict[str, Tensor]:
    """Return the gradient (N, K) by each reading of the theorem, from the weights Φ (N, K) of all classes."""
    if binary:
        return {"Table 1": weight * (p - target)}
    likeliest = weight.gather(1, target.argmax(dim=1, keepdim=True))
    shared = target * weight
    # The weight of the sample's class times p − y; the weights of all classes regardless of the label; and each class's
    # weight times its share of the label, which soft labels need.
    return {
        "Table 1": likeliest * (p - target),
        "equation 2 as printed": weight.sum(dim=1, keepdim=True) * p - weight,
        "by the label": shared.sum(dim=1, keepdim=True) * p - shared,
    }


def _batches(count: int, generator: torch.Generator) -> Tensor:
    """Return the classes (N, B) of batches in which half of the samples belong to two classes."""
    drawn = torch.randint(CLASSES, (count, BATCH), generator=generator)
    pair = torch.randint(CLASSES, (count, 2), generator=generator)
    drawn[:, : BATCH // 2] = pair.repeat_interleave(BATCH // 4, dim=1)
    return drawn


class Distributions(Experiment, part="posteriors"):
    """A network that is trained for some steps, with its predicted probabilities for each class at several stops."""

    dataset: str
    network: str
    activation: str
    steps: int
    stops: int
    samples: int
    rate: float

    def run(self) -> Iterator[Columns]:
        """Train, and measure the predicted probabilities at every stop."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed)
        activation = self.activation or None
        model = built(self.network, private, self.seed, self.device, init="torch", activation=activation)
        chosen = torch.randperm(len(public), generator=generator)[: self.samples]
        seen, labels = data.normalise(public.images[chosen]).to(self.device), public.labels[chosen]
        optimizer = torch.optim.Adam(model.parameters(), lr=self.rate)
        looked = {round(self.steps * stop / (self.stops - 1)) for stop in range(self.stops)}
        for step in range(self.steps + 1):
            if step in looked:
                yield from _described(model, step, seen, labels, private.classes)
            own = torch.randint(len(private), (BATCH,), generator=generator)
            images, truth = data.normalise(private.images[own]).to(self.device), private.labels[own].to(self.device)
            optimizer.zero_grad()
            model.train()
            F.cross_entropy(model(images), truth).backward()
            optimizer.step()
            model.eval()


def _described(model: nn.Module, step: int, seen: Tensor, labels: Tensor, classes: int) -> Iterator[Columns]:
    probabilities = head_inputs(model, seen)[1].softmax(dim=1).double().cpu()
    accuracy = 100 * float((probabilities.argmax(dim=1) == labels).double().mean())
    for label, side in product(range(classes), SIDES):
        own = probabilities[(labels == label) == (side == "positive"), label]
        if len(own):
            about: Columns = {"step": step, "label": label, "side": side, "count": len(own), "accuracy": accuracy}
            spread = float(own.std()) if len(own) > 1 else 0.0
            quantiles = torch.quantile(own, torch.tensor(list(QUANTILES.values()), dtype=own.dtype))
            named = dict(zip(QUANTILES, quantiles.tolist(), strict=True))
            yield about | {"mean": float(own.mean()), "spread": spread} | named


def summary(record: Record) -> Summary:
    """Return the finding: Table 1 is right, Theorem 2's counts are not exact, and spread predictions add errors."""
    known = claims.judgements(record)
    gathered = known["distributions-mnist-gathered-positive"]
    errors = select(_errors(record), dataset="mnist").groupby("step")["error"].mean()
    first, last = errors.iloc[0], errors.iloc[-1]
    focal, theorem, system = (known[name] for name in ("losses-focal", "losses-theorem-two", "losses-system"))
    return Summary(
        "The paper’s focal-loss gradient is right for one-hot labels, but its counting finds as few as "
        f"{theorem.text} of samples (γ = {theorem.claim.measure.where['gamma']:g}); in batches of {ERRORS_AT} on a "
        f"LeNet5, spread predictions add errors of {first:.2f} samples (mean SD) before training, {last:.1f} after "
        f"{errors.index[-1]} steps.",
        true=bool(focal.agrees and theorem.agrees and system.agrees and gathered.agrees is False)
        and bool(first < 0.5 < last),
        claim="losses-theorem-two",
        what="fewest samples that Theorem 2 counts under the right class (focal loss, γ = 2, made-up predictions)",
        figure=figure_counts,
        of="batches",
    )


def figure_counts(record: Record) -> Figure:
    """Draw the share of samples counted under the right class (%) against the mean probability of the own class.

    Theorem 2 has a line for each focusing parameter γ; the linear system has one line for all of them.
    """
    theorem = lines("confidence", "found", by="gamma", label="Theorem 2, γ = {:g}".format)
    look: Look = {"color": "0.35", "linestyle": ":", "marker": "*"}
    system = lines("confidence", "found", label=lambda: "linear system, every γ", **look)
    return drawn(
        record.rows(Counts),
        only_rows(theorem, form="Theorem 2"),
        only_rows(system, form="as a system"),
        height=3.4,
        legend=3,
        xlabel="mean probability of a sample’s own class",
        ylabel="samples counted right (%)",
        ylim=(0, 105),
    )


def _posteriors(record: Record) -> pd.DataFrame:
    """Return the rows of the predicted probabilities, with names for figures."""
    rows = record.rows(Distributions).astype({"step": int, "steps": int, "label": int})
    return rows.assign(title=rows["dataset"].map(data.title) + ", " + rows["network"])


def _errors(record: Record) -> pd.DataFrame:
    """Return a row for each class and stop, with the standard deviation of the class's count by the page's formula."""
    rows, keys = _posteriors(record), ["dataset", "network", "step", "label"]
    others = select(rows, side="negative")[[*keys, "mean", "spread"]]
    rows = select(rows, side="positive").merge(others, on=keys, suffixes=("", "_others"))
    each = ERRORS_AT / rows.groupby(keys[:-1])["label"].transform("size")
    variance = each * rows["spread"] ** 2 + (ERRORS_AT - each) * rows["spread_others"] ** 2
    return rows.assign(error=variance**0.5 / (1 - rows["mean"] + rows["mean_others"]))


def figure_posteriors(record: Record) -> Figure:
    """Draw the predicted probability of every class after training, and the errors of counts while a network learns.

    One row for each network. Left: bars hold 50 % and lines 90 % of the samples of the class or of the others. Right:
    the standard deviation of counts against the training steps, a point for each class.
    """

    def bars(axis: Axes, rows: pd.DataFrame) -> None:
        for (side, name), colour, shift in zip(SIDES.items(), figures.COLOURS, (-0.2, 0.2), strict=False):
            own = select(rows, side=side)
            place = own["label"] + shift
            axis.vlines(place, own["q05"], own["q95"], color=colour, linewidth=1.2)
            axis.vlines(place, own["q25"], own["q75"], color=colour, linewidth=5, label=name)
            axis.plot(place, own["q50"], color="white", linestyle="none", marker="_", markersize=5)

    half = level(0.5, "half a sample", color=figures.COLOURS[1])
    each = points("step", "error", colour=figures.COLOURS[2], s=16, alpha=0.6)
    rows, errors, panels = _posteriors(record), _errors(record), []
    for (title, steps, accuracy), group in grouped(rows[rows["step"] == rows["steps"]], ["title", "steps", "accuracy"]):
        shown: dict[str, Any] = {"xlabel": "class", "ylabel": "probability of the class", "ylim": (-0.03, 1.03)}
        name = f"{title}, {steps} steps (accuracy {accuracy:.0f} %)"
        panels.append(panel(group, bars, title=name, xticks=sorted(group["label"].unique()), **shown))
        axes = {"xlabel": "steps of training", "ylabel": "SD of a count (samples)"}
        panels.append(panel(select(errors, title=title), each, half, title="errors of counts", **axes))
    return arranged(panels, 2, height=2.7, legend=3, sharey=False, width_ratios=(3, 2))
