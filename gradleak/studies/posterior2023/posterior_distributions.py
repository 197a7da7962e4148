"""Posterior distributions: what a model predicts for samples of a class and for others

posterior2023, section 3.2: Figure 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, studies
from gradleak.leak import head_inputs
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import drawn, level
from gradleak.show.headline import Headline
from gradleak.show.summaries import cells, joined, mean, only, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.posterior2023.columns import COLUMNS
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import load

PLACE = "Section 3.2, Figure 2"
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
# The samples of a class and all others, by their names in tables and figures.
SIDES = {"positive": "samples of the class", "negative": "all other samples"}
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


class Posteriors(Experiment):
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


def headline(record: Record) -> Headline:
    """Return the finding: counts from means are nearly exact before training, and wrong after a hundred steps."""
    known = claims.judgements(record)
    gathered = known["distributions-mnist-gathered-positive"]
    errors = select(_classes(record), dataset="mnist").groupby("step")["error"].mean()
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


def _classes(record: Record) -> pd.DataFrame:
    """Return a row for each class and stop, with the standard deviation of the class's count by the page's formula."""
    rows, keys = record.rows(Posteriors), ["dataset", "network", "step", "label"]
    others = select(rows, side="negative")[[*keys, "mean", "spread", "count"]]
    rows = select(rows, side="positive").merge(others, on=keys, suffixes=("", "_others"))
    each = ERRORS_AT / rows.groupby(keys[:-1])["label"].transform("size")
    variance = each * rows["spread"] ** 2 + (ERRORS_AT - each) * rows["spread_others"] ** 2
    return rows.assign(
        title=rows["dataset"].map(data.title),
        samples=rows["count"] + rows["count_others"],
        error=variance**0.5 / (1 - rows["mean"] + rows["mean_others"]),
    )


def table(record: Record) -> pd.DataFrame:
    """Return the predicted probability of a class for samples of the class and for others, as means over classes.

    One row for each dataset, network and training step. Columns: accuracy, mean ± standard deviation for samples of the
    class and for others, the mean standard deviation of a count in batches of 32, and the number of samples.
    """
    probabilities = {
        f"probability on {name}, mean ± SD": joined(" ± ", mean(f"mean{end}", ".3f"), mean(f"spread{end}", ".3f"))
        for name, end in zip(SIDES.values(), ("", "_others"), strict=True)
    }
    return summary(
        _classes(record),
        {"dataset": "title", "network": "network", COLUMNS["step"].head: "step"},
        {
            **cells(COLUMNS, "accuracy"),
            **probabilities,
            "mean error of a count (samples)": mean("error", ".3f"),
            "test samples": only("samples", "{:.0f}"),
        },
    )


def figure_posteriors(record: Record) -> Figure:
    """Draw the predicted probability of every class at the last stop, for samples of the class and for others.

    Bars hold 50 % and lines 90 % of the samples; there is a panel for each dataset and network.
    """

    def bars(axis: Axes, rows: pd.DataFrame) -> None:
        for (side, name), colour, shift in zip(SIDES.items(), figures.COLOURS, (-0.2, 0.2), strict=False):
            own = select(rows, side=side)
            place = own["label"] + shift
            axis.vlines(place, own["q05"], own["q95"], color=colour, linewidth=1.2)
            axis.vlines(place, own["q25"], own["q75"], color=colour, linewidth=9, label=name)
            axis.plot(place, own["q50"], color="white", linestyle="none", marker="_", markersize=9)

    rows = record.rows(Posteriors)
    return drawn(
        rows[rows["step"] == rows["steps"]].assign(dataset=rows["dataset"].map(data.title)),
        bars,
        panels=["dataset", "network", "steps"],
        title="{}, {}, after {:.0f} steps".format,
        across=1,
        height=2.7,
        legend=2,
        xlabel="class",
        ylabel="probability of the class",
        xticks=sorted(rows["label"].unique()),
    )


def figure_errors(record: Record) -> Figure:
    """Draw the standard deviation of counts against the training steps, a point for each class."""

    def swarm(axis: Axes, rows: pd.DataFrame) -> None:
        # Points that do not fit side by side may overlap, without a warning.
        sns.swarmplot(rows, x="step", y="error", color=figures.COLOURS[2], size=5, warn_thresh=1, ax=axis)

    return drawn(
        _classes(record),
        swarm,
        level(0.5, "half a sample", color=figures.COLOURS[1]),
        panels=["title", "network"],
        height=2.7,
        legend=1,
        xlabel="steps of training",
        ylabel="SD of a count (samples)",
    )
