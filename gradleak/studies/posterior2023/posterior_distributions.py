"""What a model predicts of a class's samples, and of others

posterior2023, section 3.2: Figure 2.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch.nn import functional as F

from gradleak import data, studies
from gradleak.leak import head_inputs
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import load

PLACE = "Section 3.2, Figure 2"
SMALLEST: dict[str, Any] = {"rows": ["digits/small-cnn//20"], "stops": 2, "samples": 100}
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
SIDES = ("positive", "negative")
BATCH = 64
# The batch size that errors of counts are told for.
ERRORS_AT = 32


class Row(Form):
    """A network that is trained on a dataset for some steps."""

    dataset: str
    network: str
    activation: str
    steps: Whole = Field(ge=1)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    rows: list[Row] = Field(
        ["photos/lenet5/tanh/60", "photos/small-cnn//60"],
        validate_default=True,
        description="dataset/network/activation/steps of training; no activation where the network has its own",
    )
    stops: int = Field(3, ge=2, le=1000, description="how often posteriors are looked at, the start and end included")
    samples: int = Field(200, ge=20, le=100_000, description="test samples that are looked at")
    rate: float = Field(1e-3, gt=0, description="Adam's rate")

    paper: ClassVar[dict[str, Any]] = {
        "rows": ["mnist/lenet5/tanh/100", "cifar10/resnet18-cifar//200"],
        "stops": 5,
        "samples": 1000,
    }

    def sees(self) -> list[Sees]:
        """Return the networks of all rows, and the images that they are shown."""
        return [Sees(row.network, row.dataset, activation=row.activation) for row in self.rows]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys(row.dataset for row in parameters.rows))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a row."""
    common = parameters.model_dump(include={"stops", "samples", "rate", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    return [dict(row) | common for row in parameters.rows]


def trial(
    *,
    dataset: str,
    network: str,
    activation: str,
    steps: int,
    stops: int,
    samples: int,
    rate: float,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Train a network for some steps, and describe its posteriors class by class along the way."""
    private, public = load(dataset, "train"), load(dataset, "test")
    generator = torch.Generator().manual_seed(seed)
    model = built(network, private, seed, device, init="torch", activation=activation or None)
    chosen = torch.randperm(len(public), generator=generator)[:samples]
    seen, labels = data.normalise(public.images[chosen]).to(device), public.labels[chosen]
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    looked = {round(steps * stop / (stops - 1)) for stop in range(stops)}
    rows: list[dict[str, Any]] = []
    for step in range(steps + 1):
        if step in looked:
            rows += [{"step": step} | row for row in _described(model, seen, labels, private.classes)]
        own = torch.randint(len(private), (BATCH,), generator=generator)
        optimizer.zero_grad()
        model.train()
        F.cross_entropy(
            model(data.normalise(private.images[own]).to(device)), private.labels[own].to(device)
        ).backward()
        optimizer.step()
        model.eval()
    return rows


def _described(model: torch.nn.Module, seen: torch.Tensor, labels: torch.Tensor, classes: int) -> list[dict[str, Any]]:
    probabilities = head_inputs(model, seen)[1].softmax(dim=1).double().cpu()
    accuracy = 100 * float((probabilities.argmax(dim=1) == labels).double().mean())
    rows = []
    for label in range(classes):
        for side, of in zip(SIDES, (labels == label, labels != label), strict=True):
            own = probabilities[of, label]
            if not len(own):
                continue
            quantiles = torch.quantile(own, torch.tensor(list(QUANTILES.values()), dtype=own.dtype))
            rows.append(
                {"label": label, "side": side, "count": len(own), "accuracy": accuracy}
                | {"mean": float(own.mean()), "spread": float(own.std()) if len(own) > 1 else 0.0}
                | dict(zip(QUANTILES, quantiles.tolist(), strict=True))
            )
    return rows


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    networks = ", ".join(f"{row.network} on {data.title(row.dataset)}" for row in parameters.rows)
    return f"{networks}; {parameters.samples:,} test samples at each stop"


def _last(record: Record) -> pd.DataFrame:
    frame = record.frame()
    return frame[frame["step"] == frame["steps"]]


def table(record: Record) -> pd.DataFrame:
    """Return, along the way, what is predicted of a class's own samples and of others, means over classes."""
    lines = []
    for (dataset, network, step), group in record.frame().groupby(["dataset", "network", "step"], sort=False):
        means = group.groupby("side")[["mean", "spread"]].mean()
        lines.append(
            {"dataset": data.title(str(dataset)), "network": network, "step": f"{step:.0f}"}
            | {"accuracy, %": f"{group['accuracy'].iloc[0]:.1f}"}
            | {f"{side}": f"{means['mean'][side]:.3f} ± {means['spread'][side]:.3f}" for side in SIDES}
            | {"n": f"{group[group['label'] == group['label'].min()]['count'].sum():.0f}"}
        )
    return pd.DataFrame(lines)


def _errors(record: Record) -> pd.DataFrame:
    """Return the standard deviation of every class's count, by the formula on the page, a line a class and stop."""
    parts = []
    for (dataset, network, step), group in record.frame().groupby(["dataset", "network", "step"], sort=False):
        sides = {side: own.set_index("label") for side, own in group.groupby("side")}
        positive, negative = sides["positive"], sides["negative"]
        each = ERRORS_AT / len(negative)
        wide = each * positive["spread"] ** 2 + (ERRORS_AT - each) * negative["spread"] ** 2
        errors = wide**0.5 / (1 - positive["mean"] + negative["mean"])
        parts.append(pd.DataFrame({"dataset": dataset, "network": network, "step": step, "error": errors}))
    return pd.concat(parts)


def error_table(record: Record) -> pd.DataFrame:
    """Return the standard deviation of counts that the posteriors' spread makes, at a batch of 32."""
    return pd.DataFrame(
        [
            {"dataset": data.title(str(dataset)), "network": network, "step": f"{step:.0f}"}
            | {
                "error, mean of classes": f"{group['error'].mean():.3f}",
                "the worst class": f"{group['error'].max():.3f}",
            }
            for (dataset, network, step), group in _errors(record).groupby(["dataset", "network", "step"], sort=False)
        ]
    )


def figure_posteriors(record: Record) -> Figure:
    """Draw the posteriors of every class at the last stop: its own samples' and the others'."""
    groups = list(_last(record).groupby(["dataset", "network"], sort=False))
    figure, axes = figures.panels(len(groups), 1, height=2.7)
    for axis, ((dataset, network), group) in zip(axes[:, 0], groups, strict=True):
        for side, colour, shift in zip(SIDES, figures.COLOURS, (-0.2, 0.2), strict=False):
            own = group[group["side"] == side].sort_values("label")
            names = {"whislo": "q05", "q1": "q25", "med": "q50", "q3": "q75", "whishi": "q95"}
            boxes = [{name: line[of] for name, of in names.items()} for line in own.to_dict("records")]
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
            drawn["boxes"][0].set_label(f"{'samples of the class' if side == 'positive' else 'all others'}")
        axis.set_title(f"{data.title(str(dataset))}, {network}, after {group['step'].iloc[0]:.0f} steps")
        axis.set(ylabel="probability", ylim=(-0.03, 1.03))
        axis.set_xticks(sorted(group["label"].unique()))
    axes[-1][0].set_xlabel("class")
    figures.legend_below(figure, 2)
    return figure


def figure_errors(record: Record) -> Figure:
    """Draw the standard deviation of counts that the posteriors' spread makes, along the training."""
    # Seaborn aligns by the lines' names, and those of several trials are alike.
    frame = _errors(record).reset_index(drop=True)
    groups = list(frame.groupby(["dataset", "network"], sort=False))
    figure, axes = figures.panels(1, len(groups), height=2.7, sharey=True)
    for axis, ((dataset, network), group) in zip(axes[0], groups, strict=True):
        # What does not fit beside the others is drawn on top of them.
        sns.swarmplot(group, x="step", y="error", color=figures.COLOURS[2], size=5, warn_thresh=1, ax=axis)
        axis.axhline(0.5, color=figures.COLOURS[1], linestyle=figures.DASHES[1], label="half a sample")
        axis.set(title=f"{data.title(str(dataset))}, {network}", xlabel="steps of training", ylabel="")
    axes[0][0].set_ylabel("error of a count")
    figures.legend_below(figure, 1)
    return figure
