"""What matching gets for its budget

Beyond wang2024, section 4.3: gradient matching with one schedule for all networks and budgets, beside breaching.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from scipy.stats import t
from torch import Tensor
from torch.nn import functional as F

from gradleak import augment, claims, data, defenses, metrics, models, studies
from gradleak.data import Dataset
from gradleak.images import Prior, Reconstruction, match
from gradleak.images.matching.budget import DISTANCE, VARIATION, CoarseToFine, ending_of
from gradleak.images.presets import preset
from gradleak.leak import observe
from gradleak.models.ready import READY, TRANSFORMERS
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn, grouped, scattered
from gradleak.show.summary import NAMES, Summary
from gradleak.show.tables import MISSING
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import AttackedNetwork
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.outcomes import PSNR, collected
from gradleak.studies.shared.restored_batches import ENLARGED
from gradleak.studies.shared.samples import POOL, soft_labels

PLACE = "Beyond section 4.3"
# The runs of a cell. breaching's rows are read from a file, the others are computed here.
OURS, HALF, PUBLISHED, BREACHING = "budget", "half the budget", "published preset", "breaching"
# The search without second order at its end, where the budget has it.
FIRST_ORDER = "first order alone"
# The published preset with the weight of total variation whose images are best in the mean of a setting. The choice
# needs the true images, so no attacker has it. It is made for up to LONGEST steps.
HINDSIGHT, WEIGHTS, LONGEST = "best weight, with hindsight", (1e-4, 0.01, 0.05, 0.2, 1.0), 200
# The flat image in the mean colour of all images.
GREY = "grey"
RUNS = (GREY, PUBLISHED, HINDSIGHT, BREACHING, HALF, FIRST_ORDER, OURS)
PAIRS = ((OURS, BREACHING), (HALF, BREACHING), (OURS, PUBLISHED), (OURS, HINDSIGHT))
DEFENSES = ("gaussian/0.01", "clip/1", "prune/0.9", "quantize/8")
LABELS = {"onehot": "hard", "smoothing": "smoothed", "mixup": "mixed"}
# The first columns of a setting's line in a table, and what stands for no defence there.
LINE, UNDEFENDED = ("network", "batch size", "steps"), defenses.shown("none")
# The images of most settings have SIDE pixels a side.
SIDE = 32
# What a setting without a defence and with hard labels is known by, and what every setting is known by.
PLAIN = ("network", "data", "side", "size", "steps")
SETTING = [*PLAIN, "defense", "labels"]
# ImageNet's photos, made smaller.
SMALL_PHOTOS = {"data": "imagenet-sample", "side": 64}
# The networks' seed. breaching attacked the same weights.
NETWORK_SEED = 0
# A network that is trained on the way, with smoothed labels; the other trained ones are read.
LEARNED = AttackedNetwork(dataset="cifar10", network="lenet", stage="trained")
TRAINED = (*READY, *TRANSFORMERS, str(LEARNED))


class Cell(Group):
    """One setting: `batches` of `size` images with labels of one kind, through a network and behind a defence.

    The images have `side` pixels a side; they are the page's, or those of `data`.
    """

    network: str = "lenet"
    data: str = ""
    side: int = Field(SIDE, ge=8)
    size: int = Field(1, ge=1)
    steps: int = Field(200, ge=2)
    defense: str = "none"
    labels: Literal["onehot", "smoothing", "mixup"] = "onehot"
    batches: int = Field(8, ge=1, le=100)


class Parameters(studies.Parameters):
    """Parameters of the page: the settings."""

    data: str = setting(paper="cifar10")
    cells: list[Cell] = setting(
        paper=[
            {"steps": 50, "batches": 16},
            *({"size": size, "batches": 16} for size in (1, 2, 4, 8)),
            *({"network": "small-cnn", "size": size} for size in (1, 4)),
            *({"labels": kind, "batches": 16} for kind in ("smoothing", "mixup")),
            {"defense": "bfloat16", "batches": 16},
            *({"network": "cifar10-resnet20", "size": size, "steps": 60} for size in (1, 4)),
            *({"network": "cifar10-vit-8", "size": size, "steps": 60} for size in (1, 4)),
            {"network": "llg-lenet", "batches": 16},
            {"network": "resnet20"},
            {"network": "resnet20", "size": 4, "steps": 60},
            *({**SMALL_PHOTOS, "network": "resnet18", "size": size, "steps": 50} for size in (1, 4)),
            *({"network": name, "steps": 50} for name in ("small-cnn", "resnet20")),
            *({"network": name, "steps": 200} for name in ("cifar10-resnet20", "cifar10-vit-8")),
            *({"network": name, "steps": 1000} for name in ("small-cnn", "cifar10-resnet20", "cifar10-vit-8")),
            *({"network": "llg-lenet", "steps": steps, "batches": 16} for steps in (50, 1000)),
            {"steps": 1000},
            {"steps": 5000},
            *({"data": "digits", "side": 8, "size": size, "steps": 1000, "batches": 16} for size in (1, 4)),
            *({"size": size, "defense": name, "batches": 16} for size in (1, 4) for name in DEFENSES),
            *(
                {"network": "cifar10-resnet20", "size": size, "steps": 60, "defense": name}
                for size in (1, 4)
                for name in DEFENSES
            ),
            {"size": 4, "defense": "bfloat16", "batches": 16},
            *({"network": "cifar10-resnet20", "size": n, "steps": 60, "defense": "bfloat16"} for n in (1, 4)),
            *(
                {"network": str(LEARNED), "size": size, "defense": name, "batches": 16}
                for size in (1, 4)
                for name in ("none", *DEFENSES, "bfloat16")
            ),
        ],
        smallest=[
            {"steps": 4, "batches": 2},
            {"size": 2, "steps": 4, "defense": "prune/0.9", "batches": 2},
            {"steps": 4, "labels": "mixup", "batches": 2},
            {"data": "digits", "side": 8, "steps": 150, "batches": 1},
        ],
        min_length=1,
    )

    def sees(self) -> list[Sees]:
        """Return the networks with their images."""
        seen = []
        for cell in self.cells:
            own = cell.data or self.data
            sees = LEARNED.sees if cell.network == str(LEARNED) else Sees(cell.network, own)
            seen.append(replace(sees, size=cell.side, channels=data.shape(own)[0]))
        return seen

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each setting."""
        for cell in self.cells:
            yield Matched.of(self, **dict(cell) | {"data": cell.data or self.data})

    def about(self) -> str:
        """Return the size of a run in a few words."""
        batches = sum(cell.batches for cell in self.cells)
        return f"{len(self.cells)} settings, {batches} batches in all; {data.title(self.data)}"


class Matched(Experiment):
    """Match batches of one network with a budget, with half of it, and by the published preset.

    Batch k of B images has the images k·B to k·B + B − 1 of the test set, mixed with others for mixed labels. Its
    labels are known.
    """

    data: str
    network: str
    side: int
    size: int
    steps: int
    defense: str
    labels: str
    batches: int

    def reads(self) -> list[str]:
        """Return the dataset, and the one that a network is trained on."""
        return [self.data, LEARNED.training] if self.network == str(LEARNED) else [self.data]

    def run(self) -> Iterator[Columns]:
        """Yield a row for each batch and run, and the mean difference between runs."""
        test = data.load(self.data, "test", size=self.side)
        model = network(self.network, test).to(self.device)
        generator = torch.Generator().manual_seed(self.seed)
        short = preset("inverting-gradients", channels=test.images.shape[1])
        low, high = (edge.to(self.device) for edge in short["prior"].box)
        box = Prior(box=(low, high))
        settings = type(short["optimizer"])(steps=self.steps, signed=True)
        every, every_label = self._private(test)
        done: dict[str, list[dict[str, Any]]] = {}
        leaks = []
        for number in range(self.batches):
            own = slice(number * self.size, (number + 1) * self.size)
            images, labels = every[own].to(self.device), every_label[own].to(self.device)
            defense = defenses.named(self.defense, generator=generator)
            leak = observe(model, data.normalise(images), labels, defense=defense)
            leaks.append(leak)
            within = partial(match, leak, labels, prior=box, seed=number)
            runs = {
                HALF: partial(within, budget=self.steps // 2),
                OURS: partial(within, budget=self.steps),
            }
            if ending_of(self.steps, images.numel()):
                smooth = replace(box, variation=VARIATION)
                alone = {"distance": DISTANCE, "prior": smooth, "optimizer": CoarseToFine(self.steps)}
                runs[FIRST_ORDER] = partial(within, **alone)
            if self.defense == "none":
                runs[PUBLISHED] = partial(short.run, leak, labels, optimizer=settings, seed=number)
            grey = data.denormalise(torch.zeros_like(images))
            yield {"run": GREY, "batch": number, **measured(grey, images)}
            flat = metrics.psnr(images.mean(dim=(2, 3), keepdim=True) + 0 * images, images)
            before: Tensor | None = None
            for name, attack in runs.items():
                found, seconds = timed(attack)
                shown = ordered(found.images, images)
                over = metrics.psnr(shown, images) > flat
                row: Columns = {"run": name, "batch": number, **measured(shown, images), "seconds": seconds}
                row |= {"loss": float(found.losses[0, 0]), "over_flat": 100 * float(over.double().mean())}
                row["settled"] = int(found.status == (("settled",),))
                if name == OURS and before is not None:
                    row["agreement"] = float(metrics.psnr(before, shown).mean())
                before = shown
                done.setdefault(name, []).append(row)
                yield row
        if (self.defense, self.labels) == ("none", "onehot") and self.steps <= LONGEST:
            attack = partial(short.run, leaks, every_label.to(self.device), optimizer=settings, seed=self.seed)
            done[HINDSIGHT] = self._with_best_weight(attack, short["prior"], every.to(self.device))
            yield from done[HINDSIGHT]
        if recorded := _recorded(self)[: self.batches]:
            done[BREACHING] = [
                {"run": BREACHING} | {name: one.get(name) for name in ("batch", "psnr", "lpips", "seconds")}
                for one in recorded
            ]
            yield from done[BREACHING]
        for first, second in PAIRS:
            if {first, second} <= done.keys():
                about: Columns = {"run": f"{first} against {second}"}
                yield about | _difference(*([row["psnr"] for row in done[run]] for run in (first, second)))

    def _with_best_weight(
        self, attack: Callable[..., Reconstruction], prior: Prior, images: Tensor
    ) -> list[dict[str, Any]]:
        """Return a row for each batch with the weight of total variation that gives the best mean PSNR."""
        tried = []
        for weight in WEIGHTS:
            found = attack(prior=replace(prior, variation=weight)).images
            pairs = zip(found.split(self.size), images.split(self.size), strict=True)
            shown = [measured(ordered(own, truth), truth) for own, truth in pairs]
            tried.append([{"run": HINDSIGHT, "batch": n, "variation": weight, **row} for n, row in enumerate(shown)])
        return max(tried, key=lambda rows: sum(row["psnr"] for row in rows))

    def _private(self, test: Dataset) -> tuple[Tensor, Tensor]:
        """Return the images of all batches and their labels (N, C)."""
        count = self.batches * self.size
        draws = torch.Generator().manual_seed(self.seed)
        if self.labels != "mixup":
            return test.images[:count], soft_labels(self.labels, test.labels[:count], test.classes, draws)
        # The images may be of one class: also mix them with others.
        pool = torch.cat([torch.arange(count), torch.randint(len(test), (POOL,), generator=draws)])
        hot = augment.one_hot(test.labels[pool], test.classes)
        images, labels = augment.mixup(test.images[pool], hot, generator=draws)
        return images[:count], labels[:count]


def network(name: str, test: Dataset) -> torch.nn.Module:
    """Return a trained network, or one with random weights for a dataset's images."""
    if name == str(LEARNED):
        return attacked_networks.network(LEARNED, "onehot", test, NETWORK_SEED, "cpu")[0]
    if name in (*READY, *TRANSFORMERS):
        return models.pretrained(name)
    channels, side = test.images.shape[1:3]
    return models.build(name, classes=test.classes, in_channels=channels, image_size=side, seed=NETWORK_SEED)


def _difference(ours: list[float], theirs: list[float]) -> Columns:
    """Return the mean difference (dB) of two runs on the same batches, with Student's 95 % interval."""
    values = np.array(ours) - np.array(theirs)
    error = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else math.nan
    half = float(t.ppf(0.975, max(1, len(values) - 1))) * error
    mean = float(values.mean())
    return {"difference": mean, "lower": mean - half, "upper": mean + half, "count": len(values)}


def ordered(found: Tensor, truth: Tensor) -> Tensor:
    """Return restored images in [0, 1], in the best order."""
    images = data.denormalise(found.double()).clamp(0, 1)
    return images[metrics.match_batch(images, truth.double())]


def measured(shown: Tensor, truth: Tensor) -> dict[str, Any]:
    """Return the mean PSNR (dB) of images, and the mean LPIPS of the images enlarged.

    Without its network, and for images that are not in colour, LPIPS is None.
    """
    psnr = float(metrics.psnr(shown, truth).mean())
    if truth.shape[1] != 3:
        return {"psnr": psnr, "lpips": None}
    large, own = (F.interpolate(part.double(), scale_factor=ENLARGED, mode="bilinear") for part in (shown, truth))
    distances = metrics.lpips(large, own).values
    return {"psnr": psnr, "lpips": None if distances is None else float(distances.mean())}


def _recorded(cell: Matched) -> list[dict[str, Any]]:
    """Return breaching's rows for a setting, none if it was not run there."""
    if (cell.defense, cell.labels) != ("none", "onehot"):
        return []
    return [row for row in breaching()["rows"] if all(row[name] == getattr(cell, name) for name in PLAIN)]


def breaching() -> dict[str, Any]:
    """Return what breaching's default reached on the clients of this page, its version and the command."""
    text = (resources.files("gradleak.studies.wang2024") / "breaching.json").read_text()
    recorded: dict[str, Any] = json.loads(text)
    return recorded


def titled(name: str) -> str:
    """Return a network's name in tables and figures, without the size of a transformer's patches."""
    own = LEARNED.network if name == str(LEARNED) else name
    return NAMES.get(own, own).partition(" with ")[0] + (", trained" if name in TRAINED else "")


def _lines(record: Record) -> list[tuple[dict[str, str], pd.DataFrame]]:
    """Return the first columns of a table's line for each setting, network after network, and the setting's rows."""
    lines = []
    for values, group in grouped(record.rows(Matched), SETTING):
        name, _, side, size, steps, defense, labels = map(str, values)
        other = "" if side == str(SIDE) else f", {side} pixels"
        line = dict(zip(LINE, (titled(name) + other, size, steps), strict=True))
        lines.append((line | {"defence": defenses.shown(defense), "labels": LABELS[labels]}, group))
    networks = list(dict.fromkeys(line["network"] for line, _ in lines))
    return sorted(
        lines,
        key=lambda pair: (networks.index(pair[0]["network"]), *(int(pair[0][n]) for n in ("batch size", "steps"))),
    )


def _mean(rows: pd.DataFrame, column: str, run: str, form: str = ".1f") -> str:
    """Return the mean of a run's column over batches, with its standard deviation."""
    values = select(rows, run=run)[column].dropna().astype(float)
    spread = f"\u00a0±\u00a0{values.std():{form}}" if len(values) > 1 else ""
    return f"{values.mean():{form}}{spread}" if len(values) else MISSING


def _gain(rows: pd.DataFrame, over: str) -> str:
    """Return the ends of the interval of the mean difference (dB) between our search and another run."""
    gain = select(rows, run=f"{OURS} against {over}")
    return f"{gain['lower'].item():+.1f} … {gain['upper'].item():+.1f}" if len(gain) else MISSING


def table(record: Record) -> pd.DataFrame:
    """Return the mean PSNR of each run in each undefended setting, and how much better it is than breaching's."""
    lines = []
    for line, group in _lines(record):
        if line.pop("defence") == UNDEFENDED:
            line["batches"] = str(len(select(group, run=OURS)))
            line["grey (dB)"] = f"{select(group, run=GREY)['psnr'].mean():.1f}"
            shown = [run for run in RUNS if run not in (GREY, HINDSIGHT, FIRST_ORDER)]
            line |= {f"{run} (dB)": _mean(group, "psnr", run) for run in shown}
            line["budget − breaching (dB, 95 %)"] = _gain(group, BREACHING)
            lines.append(line)
    return pd.DataFrame(lines)


def defended(record: Record) -> pd.DataFrame:
    """Return the mean PSNR of our search behind each defence, for the networks that were attacked behind one."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for line, group in _lines(record):
        defence, labels = line.pop("defence"), line.pop("labels")
        if labels == LABELS["onehot"]:
            lines.setdefault(tuple(line.values()), line)[defence] = _mean(group, "psnr", OURS)
    rows = [line for line in lines.values() if set(line) - {*LINE, UNDEFENDED}]
    return pd.DataFrame(rows).fillna(MISSING)


def hindsight(record: Record) -> pd.DataFrame:
    """Return the best weight of total variation in each setting, and how much better our search is than with it."""
    return pd.DataFrame(
        [
            line
            | {
                "best weight": f"{best['variation'].iloc[0]:g}",
                f"{HINDSIGHT} (dB)": _mean(group, "psnr", HINDSIGHT),
                "budget (dB)": _mean(group, "psnr", OURS),
                "budget − best weight (dB, 95 %)": _gain(group, HINDSIGHT),
            }
            for line, group in _lines(record)
            if len(best := select(group, run=HINDSIGHT))
        ]
    )


def second_order(record: Record) -> pd.DataFrame:
    """Return the mean PSNR with and without second order at the end, and how many batches it finished."""
    return pd.DataFrame(
        [
            line
            | {
                "batches": str(len(alone)),
                f"{FIRST_ORDER} (dB)": _mean(group, "psnr", FIRST_ORDER),
                "budget (dB)": _mean(group, "psnr", OURS),
                "finished by second order": f"{100 * select(group, run=OURS)['settled'].mean():.0f}\u00a0%",
                f"{FIRST_ORDER} (s)": _mean(group, "seconds", FIRST_ORDER),
                "budget (s)": _mean(group, "seconds", OURS),
            }
            for line, group in _lines(record)
            if len(alone := select(group, run=FIRST_ORDER))
        ]
    )


def perceptual(record: Record) -> pd.DataFrame:
    """Return the mean LPIPS of each run in each setting without a defence."""
    return pd.DataFrame(
        [
            line | {run: _mean(group, "lpips", run, ".2f") for run in RUNS if run != FIRST_ORDER}
            for line, group in _lines(record)
            if line["defence"] == UNDEFENDED and select(group, run=FIRST_ORDER).empty
        ]
    ).drop(columns="defence", errors="ignore")


def figure_runs(record: Record) -> Figure:
    """Plot the mean PSNR of every run against its CPU-time, one panel for each network; undefended clients.

    Smaller images, which second order finishes, are left out beside others.
    """
    rows = select(record.rows(Matched), defense="none", labels="onehot")
    large = rows["side"] >= SIDE
    rows = rows[large] if large.any() else rows
    rows = rows[rows["run"].isin([OURS, HALF, PUBLISHED, BREACHING])]
    means = rows.groupby(["network", "size", "steps", "run"], sort=False)[["psnr", "seconds"]].mean().reset_index()
    return drawn(
        means.assign(title=means["network"].map(titled)),
        scattered("seconds", "psnr", "run"),
        panels="title",
        legend=4,
        xlabel="CPU time (s)",
        ylabel="mean PSNR (dB)",
        xscale="log",
        xlim=(means["seconds"].min() / 2, 2 * means["seconds"].max()),
    )


def estimated(record: Record) -> pd.DataFrame:
    """Return the rows of our searches that second order did not finish: their images follow from the loss alone."""
    rows = select(record.rows(Matched), run=OURS)
    return rows[rows["settled"] != 1]


def figure_estimate(record: Record) -> Figure:
    """Plot each batch's PSNR against the loss, which the attacker knows; all settings."""
    rows = estimated(record)
    return drawn(
        # There are six marks.
        rows.assign(name=rows["network"].replace(["resnet20", "resnet18"], "ResNets, untrained").map(titled)),
        scattered("loss", "psnr", "name"),
        legend=4,
        xlabel="loss at the end of the search",
        ylabel="mean PSNR (dB)",
    )


def correlations(record: Record) -> pd.DataFrame:
    """Return the rank correlation with the PSNR, over the batches of all settings, of what the attacker knows."""
    rows = estimated(record)
    known = {"loss": -rows["loss"], "agreement of the images at half and at the whole budget": rows["agreement"]}
    return pd.DataFrame(
        [
            {"known": name, "batches": len(rows), "rank correlation": f"{values.corr(rows['psnr'], 'spearman'):.2f}"}
            for name, values in known.items()
        ]
    )


def calibration(record: Record) -> pd.DataFrame:
    """Return how far the PSNR of each network's batches lies from the line over the loss that the others give."""
    rows = estimated(record)
    lines = []
    for network in rows["network"].unique():
        own, others = rows[rows["network"] == network], rows[rows["network"] != network]
        line = {"network left out": titled(network), "batches": str(len(own))}
        errors = {"mean error (dB)": MISSING, "largest error (dB)": MISSING}
        if others["loss"].nunique() > 1:
            off = own["psnr"] - np.polyval(np.polyfit(others["loss"], others["psnr"], 1), own["loss"])
            errors = {"mean error (dB)": f"{off.mean():+.1f}", "largest error (dB)": f"{off.abs().max():.1f}"}
        lines.append(line | errors)
    return pd.DataFrame(lines)


def summary(record: Record) -> Summary:
    """Return the finding: the search within a budget restores better images than breaching at equal steps."""
    known = claims.judgements(record)
    rows = select(record.rows(Matched), run=OURS)
    lenet, theirs, trained = (known[name] for name in ("budget-lenet", "budget-breaching", "budget-resnet20"))
    return Summary(
        f"On LeNet {lenet.claim.measure.where['steps']} steps of coarse-to-fine matching restore images at "
        f"{lenet.text}, where breaching's default gives {theirs.text}; of a trained ResNet20 {trained.text} of the "
        "images are better than a flat image in the right mean colour.",
        true=bool(lenet.value is not None and theirs.value is not None and lenet.value > theirs.value),
        claim="budget-lenet",
        what="mean PSNR of single images, untrained LeNet, matching with 200 steps",
        of="images",
        figure=figure_runs,
        outcomes=collected(
            record, rows, "images", PSNR,
            attack="matching, coarse to fine", network=rows["network"].replace(str(LEARNED), LEARNED.network),
            data=rows["data"],
            training=rows["network"].isin(TRAINED).map({True: "trained", False: "untrained"}),
            batch=rows["size"], defense=rows["defense"],
            detail=rows["steps"].map("{} steps, ".format) + rows["labels"].map(LABELS) + " labels",
        ),
    )  # fmt: skip
