"""What a gradient tells, and what it cannot

Beyond wang2024, section 3: where label, feature and factor are determined; a search for wrong answers called right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import data, metrics, studies
from gradleak.errors import InputError
from gradleak.labels import PRIORS, recover_batch, recover_soft_labels
from gradleak.labels.verdict import KNOWN
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import Row
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples, random_layer, soft_labels

PLACE = "Beyond section 3"
# How far a label is open: of a label that only rounding leaves open, this is a rounding error.
COLUMNS = {"open": kinds.rounding()}
SMALLEST: dict[str, Any] = {
    "samples": 10,
    "cases": 40,
    "classes": [3, 10],
    "proved": [3, 10],
    "spreads": [1e-3, 1.0],
    "clipped": ["photos/lenet/untrained"],
}
DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
FEATURES = 64
# How many cases of trouble are one trial.
CHUNK = 250
NORMS = (0.1, 1.0)
# Of so many runs the one with the least of the processor's time counts.
TIMED = 5
# What a client may have done that its gradient's reader does not know of, and the labels that it is about.
BROKEN = {
    "rescaled by 0.9": "smoothing",
    "rescaled by 0.25": "smoothing",
    "mixed labels taken for smoothed": "mixup",
    "two samples taken for one": "smoothing",
}
# What may be said of a case, and one of which nothing was sent.
SAID = ("unique", "ambiguous", "failed", "unusable")
KINDS = ("plain", "own class saturated", "two classes saturated", "repeated", "nearly equal", "zero", "one row each")


class Parameters(studies.Parameters):
    """What a rerun may change."""

    samples: int = Field(10, ge=2, le=100_000, description="random layers a point of the map")
    classes: list[int] = Field([3, 10], description="classes C of the map's layers, 3 or more")
    proved: list[int] = Field([10], description="classes C of the layers whose labels are proved, 3 or more")
    spreads: list[float] = Field([1e-4, 1e-2, 1.0, 100.0], description="standard deviations of the map's logits")
    cases: int = Field(100, ge=2, le=1_000_000, description="random cases in the search for a wrong answer")
    clipped: list[Row] = Field(
        ["photos/lenet/untrained"], validate_default=True, description="networks, as dataset/network/stage"
    )

    paper: ClassVar[dict[str, Any]] = {
        "samples": 100,
        "classes": [3, 4, 5, 10, 30],
        "proved": [3, 4, 10, 30, 100],
        "spreads": [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0],
        "cases": 20_000,
        "clipped": [
            "cifar10/lenet/untrained",
            "cifar10/resnet18/untrained",
            "flowers17/alexnet/untrained",
            "flowers17/resnet18/untrained",
            "cifar10/lenet/trained",
            "cifar10/resnet20/trained",
            "cifar10/resnet18/trained",
        ],
    }

    def sees(self) -> list[Sees]:
        """Return the networks whose gradients are clipped, and the images that they are shown."""
        return [row.sees for row in self.clipped]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.samples} random layers a point, {parameters.cases:,} cases of trouble"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    for classes in (parameters.classes, parameters.proved):
        if min(classes) < 3:
            raise InputError(f"the map is of labels with equations of their own: 3 classes or more; got {classes}")
    trained = [row.training for row in parameters.clipped if row.stage == "trained"]
    return list(dict.fromkeys([*(row.dataset for row in parameters.clipped), *trained]))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: rows of the map, proofs, broken assumptions, trouble, clipped networks."""
    common = {"seed": parameters.seed, "device": studies.resolve_device(parameters.device)}
    many = {"samples": parameters.samples, "spreads": parameters.spreads}
    mapped = [
        {"part": "map", "labels": labels, "dtype": dtype, "classes": classes} | many | common
        for labels in LABELS
        for dtype in DTYPES
        for classes in parameters.classes
        if PRIORS[labels].equations(classes) > 0
    ]
    proved = [
        {"part": "proof", "labels": labels, "dtype": dtype, "classes": classes} | many | common
        for labels in LABELS
        for dtype in DTYPES
        for classes in parameters.proved
        if PRIORS[labels].equations(classes) > 0
    ]
    broken = [
        {"part": "broken", "what": what, "classes": classes} | many | common
        for what in BROKEN
        for classes in parameters.classes
        if what != "mixed labels taken for smoothed" or classes > 3
    ]
    trouble = [
        {"part": "trouble", "first": first, "count": min(CHUNK, parameters.cases - first)} | common
        for first in range(0, parameters.cases, CHUNK)
    ]
    clipped = [
        {"part": "clipped", "row": str(row), "labels": labels, "samples": parameters.samples, "timed": TIMED} | common
        for row in parameters.clipped
        for labels in LABELS
    ]
    return mapped + proved + broken + trouble + clipped


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Run one part: rows of the map, of proofs, of broken assumptions, of trouble or of clipped gradients."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]] = {
        "map": _mapped,
        "proof": _proved,
        "broken": _broken,
        "trouble": _trouble,
        "clipped": _clipped,
    }
    return parts[part](**inputs)


def made(
    labels: str, dtype: str, classes: int, spread: float, samples: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what clients with a sample each send (N, C, I), all their arithmetic in `dtype`; weight, labels, features.

    A random layer behind a ReLU, its logits with this standard deviation.
    """
    generator = torch.Generator().manual_seed(seed)
    weight, hidden = random_layer(classes, FEATURES, samples, spread, generator)
    targets = soft_labels(labels, torch.randint(classes, (samples,), generator=generator), classes, generator)
    kind = DTYPES[dtype]
    weight, hidden, targets = weight.to(kind), hidden.to(kind), targets.to(kind)
    errors = (hidden @ weight.T).softmax(dim=1) - targets
    return errors.unsqueeze(2) * hidden.unsqueeze(1), weight, targets.double(), hidden.double()


def _told(found: Any, targets: Tensor) -> dict[str, Any]:
    """Return the shares of each status in percent, how many unique labels are wrong, and how far labels are open."""
    unique = found.where("unique").cpu()
    wrong = metrics.label_error(found.labels.cpu(), targets).gt(KNOWN) & unique
    answered = ~found.where("failed").cpu()
    return {
        "n": len(targets),
        **{name: 100 * found.status.count(name) / len(targets) for name in ("unique", "ambiguous", "failed")},
        "wrong": int(wrong.sum()),
        "open": float(found.open.cpu()[answered].median()) if answered.any() else None,
        "truth_among": 100 * _among(found.candidates, targets),
    }


def _among(candidates: tuple[Tensor, ...], targets: Tensor) -> float:
    """Return the share of samples whose label is one of those listed, within 0.01."""
    near = [
        bool(len(own)) and bool((metrics.label_error(own.cpu(), true.expand_as(own)) < 0.01).any())
        for own, true in zip(candidates, targets, strict=True)
    ]
    return sum(near) / len(near)


def _mapped(
    labels: str, dtype: str, classes: int, samples: int, spreads: list[float], seed: int, device: str
) -> list[dict[str, Any]]:
    """Ask what gradients of every spread of the logits tell, the factor on them known or not."""
    rows = []
    for spread in spreads:
        gradients, weight, targets, _ = made(labels, dtype, classes, spread, samples, seed)
        for known in (True, False):
            found = recover_soft_labels(
                gradients.to(device), weight.to(device), prior=labels, scale=1.0 if known else None
            )
            rows.append({"spread": spread, "known": known} | _told(found, targets))
    return rows


def _proved(
    labels: str, dtype: str, classes: int, samples: int, spreads: list[float], seed: int, device: str
) -> list[dict[str, Any]]:
    """Ask for a proof that no other label explains the gradient, and what it costs beside the search."""
    rows = []
    for spread in spreads:
        gradients, weight, targets, _ = made(labels, dtype, classes, spread, samples, seed)
        gradients, weight = gradients.to(device), weight.to(device)
        started = time.perf_counter()
        searched = recover_soft_labels(gradients, weight, prior=labels)
        between = time.perf_counter()
        proved = recover_soft_labels(gradients, weight, prior=labels, certify="proof")
        both = (searched.where("unique") & proved.where("unique")).double().mean()
        rows.append(
            {"spread": spread, "searched": 100 * float(searched.where("unique").double().mean())}
            | _told(proved, targets)
            | {"confirmed": 100 * float(both)}
            | {"search_milliseconds": 1e3 * (between - started) / samples}
            | {"milliseconds": 1e3 * (time.perf_counter() - between) / samples}
        )
    return rows


def _broken(
    what: str, classes: int, samples: int, spreads: list[float], seed: int, device: str
) -> list[dict[str, Any]]:
    """Break an assumption that the reader of a float32 gradient makes, and see whether it is told."""
    rows = []
    for spread in spreads:
        gradients, weight, targets, _ = made(BROKEN[what], "float32", classes, spread, samples, seed)
        if what == "two samples taken for one":
            gradients = (gradients + gradients.roll(1, dims=0)) / 2
        elif what.startswith("rescaled"):
            gradients = gradients * float(what.rpartition(" ")[2])
        found = recover_soft_labels(gradients.to(device), weight.to(device), prior="smoothing")
        rows.append({"spread": spread} | _told(found, targets))
    return rows


@dataclass(frozen=True)
class Case:
    """One random case: a layer in its precision, `size` samples of it, what is sent of them, and the truth."""

    weight: Tensor
    bias: Tensor | None
    hidden: Tensor
    targets: Tensor
    labels: str
    factor: float
    kind: str
    bias_sent: bool

    def sent(self, factor: float) -> tuple[Tensor, Tensor | None]:
        """Return the mean's gradients of weight and bias, times a factor, as the client computes them."""
        logits = self.hidden @ self.weight.T + (0 if self.bias is None else self.bias)
        errors = logits.softmax(dim=1) - self.targets
        gradient = errors.T @ self.hidden / len(errors) * factor
        return gradient, errors.mean(dim=0) * factor if self.bias_sent else None


def case(number: int, seed: int) -> Case:
    """Draw a case that looks for trouble: flat and steep logits, few classes, saturation, equal and zero features."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def one_of(values: Any) -> Any:
        return values[int(torch.randint(len(values), (1,), generator=generator))]

    single = one_of((True, True, True, True, False))
    classes = one_of((3, 4, 5, 6, 8, 10, 10, 20, 50) if single else (4, 5, 6, 8, 10, 10, 20, 30))
    features = one_of((2, 4, 16, 64, 200) if single else (16, 64, 200))
    size = 1 if single else int(torch.randint(1, min(classes - 1, features, 12), (1,), generator=generator))
    labels = one_of(LABELS)
    if PRIORS[labels].equations(classes) < 1:
        labels = "onehot"
    dtype = DTYPES[
        one_of(("float16", "float32", "float32", "float64", "float64") if single else ("float32", "float64"))
    ]
    spread = 10 ** (float(9 * uniform(1)) - 6) if one_of((True, False)) else 10 ** (float(2 * uniform(1)) - 1)
    kind = one_of(KINDS)
    weight, hidden = normal(classes, features), normal(size, features)
    hidden = hidden.abs() if one_of((True, False)) else hidden.relu()
    bias = normal(classes) * one_of((0.1, 1.0, 3.0)) if one_of((True, False, False)) else None
    if kind == "zero" and size > 1:
        hidden[0] = 0
    hidden = hidden / (hidden @ weight.T).std().clamp(min=1e-12) * spread
    if kind in ("repeated", "nearly equal") and size > 1:
        apart = 0.0 if kind == "repeated" else 10 ** -float(8 * uniform(1))
        hidden[1] = hidden[0] * (1 + apart * normal(features)).clamp(min=0)
    first = torch.randint(classes, (size,), generator=generator)
    if kind == "one row each" and features >= classes:
        weight = torch.eye(classes, features, dtype=torch.float64)
        hidden = uniform(size, features)
        hidden[torch.arange(size), first] = one_of((10.0, 20.0, 30.0, 40.0, 60.0))
    if kind in ("own class saturated", "two classes saturated"):
        first = (hidden @ weight.T).argmax(dim=1)
    if one_of((True, False)) and size > 1:
        first = first[torch.randint(max(1, size // 2), (size,), generator=generator)]
    targets = soft_labels(labels, first, classes, generator)
    if kind == "two classes saturated" and labels == "mixup":
        share = uniform(size, 1)
        hot = torch.eye(classes, dtype=torch.float64)
        targets = share * hot[first] + (1 - share) * hot[(hidden @ weight.T).topk(2, dim=1).indices[:, 1]]
    return Case(
        weight.to(dtype),
        None if bias is None else bias.to(dtype),
        hidden.to(dtype),
        targets.to(dtype),
        labels,
        10 ** (float(6 * uniform(1)) - 3),
        kind,
        # Of a batch the last layer's bias comes with its gradient; a sample's may be kept back.
        bias is not None and (not single or one_of((True, False))),
    )


def _trouble(first: int, count: int, seed: int, device: str) -> list[dict[str, Any]]:
    """Look for a wrong answer that is called unique; a row for samples and for batches, the factor known or not."""
    tally: dict[tuple[str, bool], dict[str, int]] = {}
    for number in range(first, first + count):
        one = case(number, seed)
        known = number % 2 == 0
        status, wrong = _asked(one, known, device)
        size = "one sample" if len(one.hidden) == 1 else "a batch"
        row = tally.setdefault((size, known), dict.fromkeys((*SAID, "wrong", "proved", "proved_wrong"), 0))
        row[status] += 1
        row["wrong"] += wrong
        if known and len(one.hidden) == 1:
            status, wrong = _asked(one, known, device, certify="proof")
            row["proved"] += status == "unique"
            row["proved_wrong"] += wrong
    return [
        {"first": first, "size": size, "known": known, "n": sum(row[name] for name in SAID)} | row
        for (size, known), row in sorted(tally.items())
    ]


def _asked(one: Case, known: bool, device: str, **options: Any) -> tuple[str, bool]:
    """Return what is said of a case, and whether it is called unique and is not right."""
    gradient, bias_gradient = one.sent(1.0 if known else one.factor)
    if not gradient.isfinite().all() or not gradient.any():
        return "unusable", False
    biases = {"bias": one.bias, "bias_gradient": bias_gradient}
    own: dict[str, Any] = {name: None if value is None else value.to(device) for name, value in biases.items()}
    factor = 1.0 if known else None
    gradient, weight = gradient.to(device), one.weight.to(device)
    if len(one.hidden) == 1:
        found = recover_soft_labels(gradient, weight, prior=one.labels, scale=factor, **own, **options)
        error = float(metrics.label_error(found.labels.cpu(), one.targets.double())[0])
        return found.status[0], found.status[0] == "unique" and not error <= KNOWN
    batch = recover_batch(gradient, weight, batch_size=len(one.hidden), prior=one.labels, scale=factor, rounds=8, **own)
    if batch.status != "unique":
        return batch.status, False
    order = metrics.match_batch(batch.features.cpu(), one.hidden.double())
    error = float(metrics.label_error(batch.labels.cpu()[order], one.targets.double()).max())
    return "unique", not error <= KNOWN


def _clipped(row: str, labels: str, samples: int, seed: int, device: str, timed: int = 1) -> list[dict[str, Any]]:
    """Clip a network's gradients by their norm, and read them with the factor unknown, and as if there were none."""
    line = Row.of(row)
    private = data.load(line.dataset, "test")
    inputs, targets = private_samples(private, labels, samples, seed)
    model, _ = attacked_networks.network(line, labels, private, seed, device)
    rows = []
    for dtype in ("float32", "float64"):
        leaks, _ = observe_private(model, inputs, targets, dtype, device)
        clean, weight = leaks.weight_gradients, leaks.weight
        truth = targets.to(DTYPES[dtype]).double()
        for norm in NORMS:
            sizes = clean.flatten(1).norm(dim=1)[:, None, None]
            sent = clean * (norm / sizes.clamp(min=torch.finfo(clean.dtype).tiny)).clamp(max=1)
            unaware = recover_soft_labels(sent, weight, prior=labels)
            found = recover_soft_labels(sent, weight, prior=labels, scale=None)
            # In turns, so that both have the same of a busy machine.
            turns = [(_seconds(clean, weight, labels, 1.0), _seconds(sent, weight, labels, None)) for _ in range(timed)]
            known, unknown = (min(column) for column in zip(*turns, strict=True))
            zero = 100 * float((sizes == 0).double().mean())
            right = metrics.label_error(found.labels.cpu(), truth).le(KNOWN) & found.where("unique").cpu()
            rows.append(
                {"classes": private.classes, "dtype": dtype, "norm": norm, "zero": zero}
                | {"touched": 100 * float((sizes > norm).double().mean())}
                | _told(found, truth)
                | {"right": 100 * float(right.double().mean()), "unaware": 100 * _right(unaware, truth)}
                | {"unaware_wrong": _told(unaware, truth)["wrong"]}
                | {"milliseconds": 1e3 * unknown / samples}
                | {"times_seconds": unknown / known}
            )
    return rows


def _seconds(gradients: Tensor, weight: Tensor, labels: str, scale: float | None) -> float:
    """Return the processor's time of one recovery: it does not depend on who else is at work."""
    started = time.process_time()
    recover_soft_labels(gradients, weight, prior=labels, scale=scale)
    return time.process_time() - started


def _right(found: Any, targets: Tensor) -> float:
    return float(metrics.label_error(found.labels.cpu(), targets).le(KNOWN).double().mean())


def _part(record: Record, part: str) -> pd.DataFrame:
    return record.part(part).dropna(axis=1, how="all")


def trouble_table(record: Record) -> pd.DataFrame:
    """Return what is said of the cases that look for trouble."""
    frame = _part(record, "trouble")
    names = ["n", *SAID, "wrong", "proved", "proved_wrong"]
    lines = []
    for (size, known), group in frame.groupby(["size", "known"], sort=False):
        total = group[names].sum().astype(int)
        lines.append(
            {"gradient of": size, "factor": "known" if known else "unknown", "cases": total["n"]}
            | {name: f"{100 * total[name] / total['n']:.1f} %" for name in names[1:4]}
            | {"nothing sent": f"{100 * total['unusable'] / total['n']:.1f} %", "unique and wrong": total["wrong"]}
            | {"proved": f"{100 * total['proved'] / total['n']:.1f} %" if total["proved"] else "–"}
        )
    return pd.DataFrame(lines)


def proof_table(record: Record) -> pd.DataFrame:
    """Return of how many labels it is proved that there is no other, and what that costs."""
    frame = _part(record, "proof").astype({"classes": int})
    lines = []
    for (classes, dtype), group in frame.groupby(["classes", "dtype"], sort=True):
        searched = group["searched"].sum()
        lines.append(
            {"C": classes, "precision": dtype, "samples": f"{int(group['n'].sum()):,}"}
            | {"unique by search": f"{group['searched'].mean():.1f} %"}
            | {"of these proved": f"{100 * group['confirmed'].sum() / searched:.1f} %" if searched else "–"}
            | {"proved": f"{group['unique'].mean():.1f} %", "proved and wrong": int(group["wrong"].sum())}
            | {"search, ms": f"{group['search_milliseconds'].median():.2f}"}
            | {"with proof, ms": f"{group['milliseconds'].median():.2f}"}
        )
    return pd.DataFrame(lines)


def clipped_table(record: Record) -> pd.DataFrame:
    """Return what clipping hides of networks' gradients."""
    frame = _part(record, "clipped")
    lines = []
    for (row, norm), group in frame.groupby(["row", "norm"], sort=False):
        own = {dtype: group[group["dtype"] == dtype] for dtype in ("float32", "float64")}
        lines.append(
            {
                "network": str(row).replace("/", ", "),
                "C": int(group["classes"].iloc[0]),
                "norm": f"{float(str(norm)):g}",
            }
            | {"touched": f"{group['touched'].mean():.0f} %", "unaware": f"{group['unaware'].mean():.0f} %"}
            | {f"{dtype}": f"{part['right'].mean():.1f} %" for dtype, part in own.items()}
            | {"wrong": int(group["wrong"].sum()), "listed": f"{group['truth_among'].mean():.1f} %"}
            | {"zero": f"{group['zero'].mean():.1f} %"}
            | {"time": f"{group['times_seconds'].astype(float).median():.1f}×"}
        )
    return pd.DataFrame(lines)


def broken_table(record: Record) -> pd.DataFrame:
    """Return how often a broken assumption goes unnoticed and gives a wrong label, by classes and spread."""
    frame = _part(record, "broken").assign(share=lambda f: 100 * f["wrong"] / f["n"])
    # Every other spread, as many as the page is wide.
    spreads = sorted(set(frame["spread"]))
    few = spreads if len(spreads) < 8 else spreads[::2]
    frame = frame[frame["spread"].isin(few)].astype({"classes": int})
    table = frame.pivot_table(index=["what", "classes"], columns="spread", values="share", sort=False)
    table = table.map("{:.0f} %".format)
    table.columns = [f"{spread:g}" for spread in table.columns]
    return table.reset_index().rename(columns={"what": "what was done", "classes": "C"})


def figure_map(record: Record) -> Figure:
    """Draw the share of unique labels over the spread of the logits: labels by columns, precisions by colour."""
    frame = _part(record, "map")
    classes = 10 if 10 in set(frame["classes"]) else int(frame["classes"].max())
    frame = frame[frame["classes"] == classes]
    figure, axes = figures.panels(1, len(LABELS), height=3.4, sharey=True)
    for axis, labels in zip(axes[0], LABELS, strict=True):
        for index, dtype in enumerate(DTYPES):
            for known in (True, False):
                own = frame[(frame["labels"] == labels) & (frame["dtype"] == dtype) & (frame["known"] == known)]
                own = own.sort_values("spread")
                axis.plot(
                    own["spread"], own["unique"], "o-" if known else "s--", color=figures.COLOURS[index],
                    markersize=3.5, linewidth=1.3, label=f"{dtype}, factor {'known' if known else 'unknown'}",
                )  # fmt: skip
        axis.set(title=f"{labels}, C = {classes}", xscale="log", xlabel="spread of the logits", ylim=(-3, 103))
    axes[0][0].set_ylabel("unique, %")
    figures.legend_below(figure, 3)
    return figure


def figure_classes(record: Record) -> Figure:
    """Draw unique smoothed labels of float32 gradients, spread by classes, the factor known and not."""
    frame = _part(record, "map")
    frame = frame[(frame["labels"] == "smoothing") & (frame["dtype"] == "float32")]
    figure, axes = figures.panels(1, 2, height=3.2, sharey=True)
    for axis, known in zip(axes[0], (True, False), strict=True):
        own = frame[frame["known"] == known]
        grid = own.pivot_table(index="classes", columns="spread", values="unique")
        image = axis.imshow(grid, aspect="auto", origin="lower", cmap="viridis", vmin=0, vmax=100)
        step = max(1, math.ceil(len(grid.columns) / 8))
        axis.set_xticks(range(0, len(grid.columns), step), [f"{v:g}" for v in grid.columns[::step]])
        axis.set_yticks(range(len(grid.index)), [str(int(v)) for v in grid.index])
        axis.grid(visible=False)
        axis.set(title=f"factor {'known' if known else 'unknown'}", xlabel="spread of the logits")
    axes[0][0].set_ylabel("classes C")
    figure.colorbar(image, ax=list(axes[0]), label="unique, %", shrink=0.9)
    return figure
