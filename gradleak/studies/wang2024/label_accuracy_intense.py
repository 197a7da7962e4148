"""Label accuracy, the intense test: soft labels network by network (Table 2)

wang2024, section 4.1, Table 2: recovered labels of untrained and trained networks, by three solvers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from torch import Tensor

from gradleak import claims, data, metrics, studies
from gradleak.labels import recover_soft_labels
from gradleak.labels.soft import search
from gradleak.leak import HeadLeaks, observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line, listed
from gradleak.show.summaries import NOTHING, Measure, Text, among, cell, median, only, percent, select, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import attacked_networks, searched
from gradleak.studies.shared.outcomes import Outcome, average_of, collected
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples
from gradleak.studies.shared.searched import KNOWN, Judged, Search, judged, percentage, search_both

PLACE = "Table 2"
# The solvers' names in tables and figures.
SOLVERS = {
    "exact": "exact solver",
    "lbfgs": "Algorithm 1 (L-BFGS)",
    "lbfgs, then pso": "Algorithm 1, then 2",
    "pso": "Algorithm 2 (swarm)",
}


class Parameters(studies.Parameters):
    """Parameters of the page: networks, and images for each solver."""

    samples: int = setting(
        50, paper=1000, smallest=20, ge=2, le=100_000, about="single images per network and kind of label"
    )
    doubles: int = setting(
        20, paper=200, ge=2, le=100_000, about="number of these images with float64 gradients as well"
    )
    searches: int = setting(
        4, paper=200, ge=1, le=100_000, about="number of these images on which the published L-BFGS search is run"
    )
    swarms: int = setting(
        1, paper=20, ge=1, le=100_000, about="number of these images on which the particle swarm is run alone"
    )
    rows: list[attacked_networks.AttackedNetwork] = setting(
        ["photos/lenet/untrained", "photos/resnet18/untrained"],
        paper=[
            "cifar10/lenet/untrained",
            "cifar10/lenet/trained",
            "cifar10/resnet18/untrained",
            "cifar10/resnet18/trained",
            "cifar10/resnet20/trained",
            "flowers17/alexnet/untrained",
            "flowers17/alexnet/trained",
            "flowers17/resnet18/untrained",
            "flowers17/resnet18/trained",
        ],
        smallest=["photos/lenet/untrained"],
        validate_default=True,
        about="networks, written dataset/network/stage of training",
    )

    def sees(self) -> list[Sees]:
        """Return the networks of all rows, and the images that they see."""
        return [row.sees for row in self.rows]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each network and kind of label."""
        for row, labels in product(self.rows, LABELS):
            yield NetworkAttacked.of(self, row=str(row), labels=labels)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        names = dict.fromkeys(data.title(row.dataset) for row in self.rows)
        return f"{self.samples} images for each network and kind of label, {', '.join(names)}"


class Network(Row):
    """The network that is attacked; `test_accuracy` is None if the network is untrained."""

    dataset: str
    network: str
    stage: str
    test_accuracy: float | None


class SolvedExactly(Network, Judged):
    """The exact solver's results on a network's samples, with gradients in one precision."""

    solver: str
    dtype: str
    milliseconds: float


class Searched(Network):
    """A published search's results on the first samples; shares in percent.

    Attributes:
        solver: "lbfgs", "pso", or both in turn.
        count: The number of samples.
        accuracy: Labels that are right.
        oracle: Scalars that are right by the paper's measure, which knows the true scalar.
        out_of_reach: Samples whose true scalar is outside the range of the search.
        failed: Samples for which the search returns nothing.
        silent: The number of wrong labels that the search returns.
        mean_error: The mean L1 error of the right labels.
        milliseconds: The time per sample.
    """

    solver: str
    dtype: str
    count: int
    accuracy: float
    oracle: float
    out_of_reach: float
    failed: float
    silent: int
    mean_error: float | None
    milliseconds: float


class NetworkAttacked(Experiment):
    """Attack a network's private samples with every solver, for one kind of label."""

    row: str
    labels: str
    samples: int
    doubles: int
    searches: int
    swarms: int

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        line = attacked_networks.AttackedNetwork.of(self.row)
        return [line.dataset, line.training] if line.stage == "trained" else [line.dataset]

    def run(self) -> Iterator[SolvedExactly | Searched]:
        """Recover the labels by the exact solver, by the searches, and by the exact solver from float64 gradients."""
        line = attacked_networks.AttackedNetwork.of(self.row)
        private = data.load(line.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, self.seed)
        model, accuracy = attacked_networks.network(line, self.labels, private, self.seed, self.device)
        about = Network(dataset=line.dataset, network=line.network, stage=line.stage, test_accuracy=accuracy)
        leaks = observe_heads(model.to(self.device), inputs.to(self.device), targets.to(self.device))
        yield self._solved(about, leaks, targets, "float32")
        few, own = inputs[: self.searches], targets[: self.searches]
        yield from self._searched(about, *observe_private(model, few, own, "float32", self.device), own)
        few, own = inputs[: self.doubles], targets[: self.doubles]
        leaks, _ = observe_private(model, few, own, "float64", self.device)
        yield self._solved(about, leaks, own, "float64")

    def _solved(self, about: Network, leaks: HeadLeaks, targets: Tensor, dtype: str) -> SolvedExactly:
        started = time.perf_counter()
        found = recover_soft_labels(leaks.weight_gradients, leaks.weight, prior=self.labels)
        milliseconds = 1e3 * (time.perf_counter() - started) / len(found)
        right = judged(found.labels, found.status, targets)
        return SolvedExactly.of(about, right, solver="exact", dtype=dtype, milliseconds=milliseconds)

    def _searched(self, about: Network, leaks: HeadLeaks, errors: Tensor, targets: Tensor) -> Iterator[Searched]:
        """Run L-BFGS, L-BFGS followed by a particle swarm for the samples where it fails, and the swarm alone."""
        gradients, weight = leaks.weight_gradients.cpu(), leaks.weight.cpu()
        row = gradients.sum(dim=2).abs().argmax(dim=1, keepdim=True)
        truth = 1 / errors.cpu().gather(1, row)[:, 0]
        first, both = search_both(gradients, weight, self.labels)
        alone = searched.search(gradients[: self.swarms], weight, self.labels, "pso")
        for name, found in (("lbfgs", first), ("lbfgs, then pso", both), ("pso", alone)):
            yield self._compared(about, name, found, truth[: len(found.scalars)], targets)

    def _compared(self, about: Network, name: str, found: Search, truth: Tensor, targets: Tensor) -> Searched:
        misses = metrics.label_error(found.labels, targets[: len(truth)].cpu())
        right = misses < KNOWN
        coefficient = search.COEFFICIENTS["mixup" if self.labels == "mixup" else "smoothing"]
        return Searched.of(
            about,
            solver=name,
            dtype="float32",
            count=len(truth),
            accuracy=percentage(right),
            oracle=percentage(metrics.oracle_success(found.scalars, truth, coefficient)),
            # Algorithm 1 stops before it reaches these scalars; the windows of the particle swarm are narrower still.
            out_of_reach=percentage((coefficient * truth).abs().gt(search.BOUND)),
            failed=percentage(~found.ended),
            silent=int((found.ended & ~right).sum()),
            mean_error=float(misses[right].mean()) if right.any() else None,
            milliseconds=1e3 * found.seconds / len(truth),
        )


def headline(record: Record) -> Headline:
    """Return the finding: the exact solver misses only labels that an untrained network's certainty hides."""
    least = claims.judgements(record)["label-accuracy-intense-above"]
    rows = _solver(record, "exact", "float32")
    rows = rows[rows["labels"] != "onehot"]
    certain = rows["network"].eq("alexnet") & rows["stage"].eq("untrained")
    others = rows[~certain]
    return Headline(
        f"Without ever seeing a true label, the exact solver recovers all {others['count'].sum():,} soft labels on the "
        f"networks other than the untrained AlexNet; on this AlexNet it recovers at least {least.text} and reports the "
        "remaining labels as ambiguous.",
        true=bool(
            (others["accuracy"] == 100).all()
            and least.value == rows.loc[certain, "accuracy"].min()
            and rows["silent"].sum() == 0
            and rows["failed"].max() == 0
        ),
        claim="label-accuracy-intense-above",
        what="least share of soft labels recovered over all networks (the untrained AlexNet, mixup)",
        figure=figure_recovered,
        of="labels",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 2 with the exact solver.

    Rows: datasets, networks and kinds of label. Columns: the share of labels recovered, the number of wrong labels
    called unique, and the label error L_r: mean and largest for float32 gradients, and mean for float64 gradients.
    """
    rows = select(record.rows(NetworkAttacked), solver="exact")
    accuracy = rows["test_accuracy"].map(lambda share: "" if pd.isna(share) else f" ({share:.0%})")
    single = {
        "labels recovered": only("accuracy", percent(1)),
        "wrong but called unique": only("silent", ".0f"),
        "mean L_r": only("mean_error", ".1e"),
        "largest L_r": only("largest_error", ".1e"),
    }
    return summary(
        rows.assign(images=rows["dataset"].map(data.title), name=rows["network"] + ", " + rows["stage"] + accuracy),
        {"images": "images", "network": "name", "labels": "labels"},
        {head: among(measure, dtype="float32") for head, measure in single.items()}
        | {"mean L_r, float64": among(only("mean_error", ".1e"), dtype="float64")},
    )


def solver_table(record: Record) -> pd.DataFrame:
    """Compare the solvers over all networks.

    Rows: kinds of label and solvers. Columns: samples; the share of labels that are right, and of scalars that are
    right as the paper counts; the number of wrong labels returned without notice; mean time per sample (ms), and the
    median ratio of this time to the exact solver's.
    """
    rows = record.rows(NetworkAttacked)
    rows = rows[rows["dtype"] == "float32"]
    exact = rows[rows["solver"] == "exact"].set_index(["row", "labels"])["milliseconds"]
    rows = rows.join(exact.rename("exact_milliseconds"), on=["row", "labels"])
    return summary(
        rows.assign(slower=rows["milliseconds"] / rows["exact_milliseconds"], name=rows["solver"].map(SOLVERS)),
        {"labels": "labels", "solver": "name"},
        {
            "samples": total("count", ".0f"),
            "labels recovered": _over_samples("accuracy", percent(1)),
            "counted as published": _over_samples("oracle", percent(1)),
            "wrong, not noticed": total("silent", ".0f"),
            "time per sample (ms)": _over_samples("milliseconds", ".3g"),
            "time relative to the exact solver, median": median("slower", ",.0f"),
        },
    )


def _over_samples(column: str, text: Text) -> Measure:
    """Return a measure: the mean of a column over all samples of all rows, a dash if the column is missing."""

    def measured(rows: pd.DataFrame) -> str:
        weight = rows["count"] / rows["count"].sum()
        return NOTHING if rows[column].isna().all() else cell((rows[column] * weight).sum(), text)

    return measured


def search_table(record: Record) -> pd.DataFrame:
    """Return the results of the published search (L-BFGS, then particle swarm).

    Rows: datasets, networks and kinds of label. Columns: the share of labels that are right, and of scalars that are
    right as the paper counts; the share of true scalars out of the search's bounds, the number of wrong labels returned
    without notice, and time per sample (ms).
    """
    rows = _solver(record, "lbfgs, then pso", "float32")
    return summary(
        rows.assign(images=rows["dataset"].map(data.title), name=rows["network"] + ", " + rows["stage"]),
        {"images": "images", "network": "name", "labels": "labels"},
        {
            "labels recovered": only("accuracy", percent()),
            "counted as published": only("oracle", percent()),
            "true scalar out of bounds": only("out_of_reach", percent()),
            "wrong, not noticed": only("silent", ".0f"),
            "time per sample (ms)": only("milliseconds", ".3g"),
        },
    )


def _solver(record: Record, solver: str, dtype: str) -> pd.DataFrame:
    return select(record.rows(NetworkAttacked), solver=solver, dtype=dtype)


def figure_recovered(record: Record) -> Figure:
    """Plot the percentage of labels recovered by the exact solver and by the published search, by network.

    One panel for each kind of label. Neither attack sees the truth.
    """
    rows = record.rows(NetworkAttacked)
    rows = rows[rows["dtype"] == "float32"]
    networks = list(dict.fromkeys(rows["row"]))
    looks = {"exact": ("o", figures.COLOURS[0], 7.0), "lbfgs, then pso": ("D", figures.COLOURS[1], 4.5)}
    figure, axes = figures.panels(1, len(LABELS), height=0.36 * len(networks) + 1.3, sharey=True)
    for axis, labels in zip(axes[0], LABELS, strict=True):
        for solver, (marker, colour, size) in looks.items():
            own = select(rows, labels=labels, solver=solver)
            places = [networks.index(name) for name in own["row"]]
            name = f"{'exact solver' if solver == 'exact' else 'published search (Algorithm 1, then 2)'}"
            axis.plot(own["accuracy"], places, marker, color=colour, markersize=size, label=name)
        axis.set(title=labels, xlabel="labels recovered, %", xlim=(rows["accuracy"].min() - 4, 102))
        axis.grid(visible=False, axis="y")
    named = rows.drop_duplicates("row")
    names = named["stage"] + " " + named["network"] + ", " + named["dataset"].map(data.title)
    axes[0][0].set_yticks(range(len(networks)), names.tolist())
    axes[0][0].invert_yaxis()
    figures.legend_below(figure, 2)
    return figure


def figure_errors(record: Record) -> Figure:
    """Plot the L1 label error of every network, mean (points) and largest (ticks), for both precisions.

    One panel for each kind of label. Only labels that the exact solver calls unique count.
    """
    figure, axes = figures.panels(
        1, len(LABELS), height=0.42 * record.rows(NetworkAttacked)["row"].nunique() + 1.2, sharey=True
    )
    for axis, labels in zip(axes[0], LABELS, strict=True):
        for index, dtype in enumerate(("float32", "float64")):
            frame = _solver(record, "exact", dtype)
            frame = frame[frame["labels"] == labels]
            places = range(len(frame))
            # The error of one-hot labels is exactly 0; it is drawn at the end of the logarithmic axis.
            mean = frame["mean_error"].astype(float).clip(lower=1e-17)
            largest = frame["largest_error"].astype(float).clip(lower=1e-17)
            colour = figures.COLOURS[2 * index]
            axis.hlines(places, mean, largest, color=colour, linewidth=1.2)
            axis.plot(mean, places, "o", color=colour, label=f"{dtype}, mean")
            axis.plot(largest, places, "|", color=colour, markersize=9, label=f"{dtype}, largest")
        names = (frame["stage"] + " " + frame["network"] + ", " + frame["dataset"].map(data.title)).tolist()
        axis.set(title=labels, xscale="log", xlim=(3e-18, 3e-2), xlabel="label error L_r (L1)")
        axis.set_yticks(range(len(names)), names)
    axes[0][0].invert_yaxis()
    figures.legend_below(figure, 4)
    return figure


def figure_times(record: Record) -> Figure:
    """Plot the time per sample (ms) of every solver, one point for each network and kind of label."""
    frame = record.rows(NetworkAttacked)
    frame = frame[frame["dtype"] == "float32"].replace({"solver": SOLVERS})
    names = list(SOLVERS.values())
    figure, axes = figures.panels(1, 1, height=2.8)
    axis = axes[0][0]
    sns.swarmplot(
        frame, x="milliseconds", y="solver", hue="solver", order=names, hue_order=names, ax=axis, log_scale=True,
        palette=list(figures.COLOURS[:4]), size=4.5, legend=False, warn_thresh=1,
    )  # fmt: skip
    axis.set(xlabel="time per sample (ms)", ylabel="")
    return figure


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    smoothed, mixed = (line(solver_table(record), labels, "exact solver") for labels in ("smoothing", "mixup"))
    return Leaks(
        "the soft label",
        f"one sample; {listed(record.rows(NetworkAttacked)['network'])}",
        f"{smoothed['labels recovered']} of {smoothed['samples']} smoothed labels, {mixed['labels recovered']} of "
        f"{mixed['samples']} mixed labels",
        f"{smoothed['time per sample (ms)']} ms elapsed",
        kind="soft labels",
        attack="exact solver",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.rows(NetworkAttacked)
    return collected(
        record, rows, "soft labels", average_of("accuracy", "labels recovered", "samples"),
        attack=["exact solver" if name == "exact" else f"published search, {name}" for name in rows["solver"]],
        network=rows["network"], training=rows["stage"],
        data=rows["dataset"], client=rows["dtype"], detail=rows["labels"] + " labels",
    )  # fmt: skip
