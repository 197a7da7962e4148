"""Posterior distributions: what a model predicts for samples of a class and for others

posterior2023, section 3.2: Figure 2.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, studies
from gradleak.leak import head_inputs
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, greatest, joined, mean, only, select, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import load

PLACE = "Section 3.2, Figure 2"
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
SIDES = ("positive", "negative")
NAMES = ("samples of the class", "all other samples")
BATCH = 64
# The batch size for which errors of counts are computed.
ERRORS_AT = 32


class Trained(Form):
    """A network and its training steps on a dataset, written "dataset/network/activation/steps"."""

    dataset: str
    network: str
    activation: str
    steps: Whole = Field(ge=1)


class Parameters(studies.Parameters):
    """Parameters of the page: networks and their training, stops and test samples."""

    rows: list[Trained] = setting(
        paper=["mnist/lenet5/tanh/100", "cifar10/resnet18-cifar//200"],
        smallest=["digits/small-cnn//20"],
        validate_default=True,
    )
    stops: int = setting(paper=5, smallest=2, ge=2, le=1000)
    samples: int = setting(paper=1000, smallest=100, ge=20, le=100_000)
    rate: float = setting(gt=0)

    def sees(self) -> list[Sees]:
        """Return the networks of all rows with their images."""
        return [Sees(row.network, row.dataset, activation=row.activation) for row in self.rows]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each row."""
        for row in self.rows:
            yield Posteriors.of(self, **dict(row))

    def about(self) -> str:
        """Return the networks of a run and the number of samples in a few words."""
        networks = ", ".join(f"{row.network} on {data.title(row.dataset)}" for row in self.rows)
        return f"{networks}; {self.samples:,} test samples at each stop"


class Posterior(Row):
    """The predicted probability of one class after some training steps.

    Attributes:
        step: The number of training steps.
        label: The class.
        side: "positive" for samples of the class, "negative" for all others.
        count: The number of samples, over which mean, spread and quantiles are taken.
        accuracy: The network's accuracy on all samples, in percent.
        mean: The mean probability.
        spread: The standard deviation.
    """

    step: int
    label: int
    side: str
    count: int
    accuracy: float
    mean: float
    spread: float
    q05: float
    q25: float
    q50: float
    q75: float
    q95: float


class Posteriors(Experiment):
    """A network that is trained for some steps, with its predicted probabilities for each class at several stops."""

    dataset: str
    network: str
    activation: str
    steps: int
    stops: int
    samples: int
    rate: float

    def run(self) -> Iterator[Posterior]:
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


def _described(model: nn.Module, step: int, seen: Tensor, labels: Tensor, classes: int) -> Iterator[Posterior]:
    probabilities = head_inputs(model, seen)[1].softmax(dim=1).double().cpu()
    accuracy = 100 * float((probabilities.argmax(dim=1) == labels).double().mean())
    for label in range(classes):
        for side, of in zip(SIDES, (labels == label, labels != label), strict=True):
            own = probabilities[of, label]
            if not len(own):
                continue
            quantiles = torch.quantile(own, torch.tensor(list(QUANTILES.values()), dtype=own.dtype))
            yield Posterior.of(
                step=step,
                label=label,
                side=side,
                count=len(own),
                accuracy=accuracy,
                mean=float(own.mean()),
                spread=float(own.std()) if len(own) > 1 else 0.0,
                **dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
            )


STOP = {"dataset": "dataset", "network": "network", "training steps": "step"}


def headline(record: Record) -> Headline:
    """Return the finding: counts from means are nearly exact before training, and wrong after a hundred steps."""
    known = claims.judgements(record)
    gathered = known["distributions-mnist-gathered-positive"]
    errors = select(_errors(record), dataset="mnist").groupby("step")["error"].mean()
    first, last = errors.iloc[0], errors.iloc[-1]
    return Headline(
        "Before training, a network predicts nearly the same for all samples, and a label count has an error of "
        f"{first:.2f} samples; after {errors.index[-1]} steps the predictions for one class have a standard deviation "
        f"of {gathered.text}, and the error is {last:.1f} samples (LeNet5, MNIST).",
        true=bool(gathered.agrees is False and first < 0.5 < last),
        claim="distributions-mnist-gathered-positive",
        what="standard deviation of a class’s probability over its own samples after training (LeNet5, MNIST)",
        figure=figure_errors,
    )


def table(record: Record) -> pd.DataFrame:
    """Return the predicted probability of a class for samples of the class and for others, as means over classes.

    One row for each dataset, network and training step. Columns: accuracy, mean ± standard deviation for samples of the
    class ("positive") and for others ("negative"), and the number n of samples.
    """
    spread = joined(" ± ", mean("mean", ".3f"), mean("spread", ".3f"))
    heads = [f"probability on {name}, mean ± SD" for name in NAMES]
    sides = {head: among(spread, side=side) for side, head in zip(SIDES, heads, strict=True)}
    lines = summary(
        record.rows(Posteriors), STOP, {"accuracy (%)": only("accuracy", ".1f"), **sides, "test samples": _samples}
    )
    return lines.assign(dataset=lines["dataset"].map(data.title))


def _samples(rows: pd.DataFrame) -> str:
    """Measure the number of samples; each is positive or negative for any one class."""
    return f"{select(rows, label=rows['label'].min())['count'].sum():.0f}"


def _errors(record: Record) -> pd.DataFrame:
    """Return the standard deviation of every class's count by the page's formula, a row for each class and stop."""
    parts = []
    for (dataset, network, step), group in record.rows(Posteriors).groupby(list(STOP.values()), sort=False):
        sides = {side: own.set_index("label") for side, own in group.groupby("side")}
        positive, negative = sides["positive"], sides["negative"]
        each = ERRORS_AT / len(negative)
        wide = each * positive["spread"] ** 2 + (ERRORS_AT - each) * negative["spread"] ** 2
        errors = wide**0.5 / (1 - positive["mean"] + negative["mean"])
        parts.append(pd.DataFrame({"dataset": dataset, "network": network, "step": step, "error": errors}))
    return pd.concat(parts)


def error_table(record: Record) -> pd.DataFrame:
    """Return the standard deviation of counts that follows from the spread of the posteriors, for batches of 32.

    One row for each dataset, network and training step. Columns: the mean over classes and the largest.
    """
    measures = {
        "mean error of a count (samples)": mean("error", ".3f"),
        "error of the worst class (samples)": greatest("error", ".3f"),
    }
    lines = summary(_errors(record), STOP, measures)
    return lines.assign(dataset=lines["dataset"].map(data.title))


def figure_posteriors(record: Record) -> Figure:
    """Draw the predicted probability of every class at the last stop, for samples of the class and for others.

    Boxes hold 50 % and whiskers 90 % of the samples; there is a panel for each dataset and network.
    """
    rows = record.rows(Posteriors)
    last = rows[rows["step"] == rows["steps"]]
    groups = list(last.groupby(["dataset", "network"], sort=False))
    figure, axes = figures.panels(len(groups), 1, height=2.7)
    for axis, ((dataset, network), group) in zip(axes[:, 0], groups, strict=True):
        for side, name, colour, shift in zip(SIDES, NAMES, figures.COLOURS, (-0.2, 0.2), strict=False):
            own = group[group["side"] == side].sort_values("label")
            stats = {"whislo": "q05", "q1": "q25", "med": "q50", "q3": "q75", "whishi": "q95"}
            boxes = [{stat: line[of] for stat, of in stats.items()} for line in own.to_dict("records")]
            drawn = axis.bxp(
                boxes,
                positions=own["label"] + shift,
                widths=0.32,
                showfliers=False,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": colour, "alpha": 0.75, "linewidth": 0.8},
                medianprops={"color": "white", "linewidth": 1.6},
                whiskerprops={"color": colour},
                capprops={"color": colour},
            )
            drawn["boxes"][0].set_label(name)
        axis.set_title(f"{data.title(str(dataset))}, {network}, after {group['step'].iloc[0]:.0f} steps")
        axis.set(ylabel="probability of the class", ylim=(-0.03, 1.03))
        axis.set_xticks(sorted(group["label"].unique()))
    axes[-1][0].set_xlabel("class")
    figures.legend_below(figure, 2)
    return figure


def figure_errors(record: Record) -> Figure:
    """Draw the standard deviation of counts against the training steps, a point for each class."""
    # Seaborn aligns rows by their index, which repeats between trials.
    frame = _errors(record).reset_index(drop=True)
    groups = list(frame.groupby(["dataset", "network"], sort=False))
    figure, axes = figures.panels(1, len(groups), height=2.7, sharey=True)
    for axis, ((dataset, network), group) in zip(axes[0], groups, strict=True):
        # Points that do not fit side by side may overlap, without a warning.
        sns.swarmplot(group, x="step", y="error", color=figures.COLOURS[2], size=5, warn_thresh=1, ax=axis)
        axis.axhline(0.5, color=figures.COLOURS[1], linestyle=figures.DASHES[1], label="half a sample")
        axis.set(title=f"{data.title(str(dataset))}, {network}", xlabel="steps of training", ylabel="")
    axes[0][0].set_ylabel("SD of a count (samples)")
    figures.legend_below(figure, 1)
    return figure
