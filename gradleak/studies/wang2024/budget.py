"""What matching gets for its budget

Beyond wang2024, section 4.3: gradient matching with one schedule for all networks and budgets, beside breaching.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from scipy.stats import t
from torch import Tensor

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.images import Prior, Reconstruction, match
from gradleak.images.presets import preset
from gradleak.leak import observe
from gradleak.models.ready import READY, TRANSFORMERS
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn, grouped, scattered
from gradleak.show.summary import NAMES, Summary
from gradleak.show.tables import MISSING
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.outcomes import PSNR, collected

PLACE = "Beyond section 4.3"
# The runs of a cell. breaching's rows are read from a file, the others are computed here.
OURS, HALF, PUBLISHED, BREACHING = "budget", "half the budget", "published preset", "breaching"
# The flat image in the mean colour of all images.
GREY = "grey"
RUNS = (GREY, PUBLISHED, BREACHING, HALF, OURS)
PAIRS = ((OURS, BREACHING), (HALF, BREACHING), (OURS, PUBLISHED))
DEFENSES = ("gaussian/0.01", "clip/1", "prune/0.9", "quantize/8")
# The networks' seed. breaching attacked the same weights.
NETWORK_SEED = 0


class Cell(Group):
    """One setting: `batches` of `size` images through a network, behind a defence, matched with `steps` steps."""

    network: str = "lenet"
    size: int = Field(1, ge=1)
    steps: int = Field(200, ge=2)
    defense: str = "none"


class Parameters(studies.Parameters):
    """Parameters of the page: the settings, and the number of batches."""

    data: str = setting(paper="cifar10")
    cells: list[Cell] = setting(
        paper=[
            {"steps": 50},
            *({"size": size} for size in (1, 2, 4, 8)),
            *({"network": "cifar10-resnet20", "size": size, "steps": 60} for size in (1, 4)),
            {"network": "small-cnn"},
            {"network": "cifar10-vit-8", "steps": 60},
            *({"defense": name} for name in DEFENSES),
            {"network": "small-cnn", "size": 4},
            {"steps": 1000},
            *({"network": "cifar10-resnet20", "steps": 60, "defense": name} for name in DEFENSES),
            *({"size": 4, "defense": name} for name in DEFENSES),
            *({"network": "cifar10-resnet20", "size": 4, "steps": 60, "defense": name} for name in DEFENSES),
        ],
        smallest=[{"steps": 4}, {"size": 2, "steps": 4, "defense": "prune/0.9"}],
        min_length=1,
    )
    batches: int = setting(paper=8, smallest=1, ge=1, le=100)

    def sees(self) -> list[Sees]:
        """Return the networks with their images, which are in colour and have 32 pixels a side."""
        return [Sees(cell.network, self.data, channels=3, side=32) for cell in self.cells]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each setting."""
        for cell in self.cells:
            yield Matched.of(self, **dict(cell))

    def about(self) -> str:
        """Return the size of a run in a few words."""
        return f"{len(self.cells)} settings, {self.batches} batches each; {data.title(self.data)}"


class Matched(Experiment):
    """Match batches of one network with a budget, with half of it, and by the published preset.

    Batch k of B images has the images k·B to k·B + B − 1 of the test set; its labels are known.
    """

    data: str
    network: str
    size: int
    steps: int
    defense: str
    batches: int

    def reads(self) -> list[str]:
        """Return the dataset."""
        return [self.data]

    def run(self) -> Iterator[Columns]:
        """Yield a row for each batch and run, and the mean difference between runs."""
        test = data.load(self.data, "test")
        trained = self.network in (*READY, *TRANSFORMERS)
        model = models.pretrained(self.network) if trained else self._built(test.classes)
        model = model.to(self.device)
        generator = torch.Generator().manual_seed(self.seed)
        box = tuple(data.normalise(torch.full((1, 3, 1, 1), edge))[0].to(self.device) for edge in (0.0, 1.0))
        short = preset("inverting-gradients")
        settings = type(short["optimizer"])(steps=self.steps, signed=True)
        values: dict[str, list[float]] = {}
        for number in range(self.batches):
            own = slice(number * self.size, (number + 1) * self.size)
            images, labels = test.images[own].to(self.device), test.labels[own].to(self.device)
            defense = defenses.named(self.defense, generator=generator)
            leak = observe(model, data.normalise(images), labels, defense=defense)
            within = partial(match, leak, labels, prior=Prior(box=(box[0], box[1])), seed=number)
            runs = {
                HALF: partial(within, budget=self.steps // 2),
                OURS: partial(within, budget=self.steps),
            }
            if self.defense == "none":
                runs[PUBLISHED] = partial(short.run, leak, labels, optimizer=settings, seed=number)
            grey = data.denormalise(torch.zeros_like(images))
            yield {"run": GREY, "batch": number, "psnr": float(metrics.psnr(grey, images).mean())}
            flat = metrics.psnr(images.mean(dim=(2, 3), keepdim=True) + 0 * images, images)
            before: Tensor | None = None
            for name, attack in runs.items():
                found, seconds = timed(attack)
                shown = _shown(found, images)
                psnr = metrics.psnr(shown, images)
                values.setdefault(name, []).append(float(psnr.mean()))
                row: Columns = {"run": name, "batch": number, "psnr": values[name][-1], "seconds": seconds}
                row |= {"loss": float(found.losses[0, 0]), "over_flat": 100 * float((psnr > flat).double().mean())}
                if name == OURS and before is not None:
                    row["agreement"] = float(metrics.psnr(before, shown).mean())
                before = shown
                yield row
        for one in _recorded(self)[: self.batches]:
            values.setdefault(BREACHING, []).append(one["psnr"])
            yield {"run": BREACHING, "batch": one["batch"], "psnr": one["psnr"], "seconds": one["seconds"]}
        for first, second in PAIRS:
            if {first, second} <= values.keys():
                about: Columns = {"run": f"{first} against {second}"}
                yield about | _difference(values[first], values[second])

    def _built(self, classes: int) -> torch.nn.Module:
        return models.build(self.network, classes=classes, seed=NETWORK_SEED)


def _difference(ours: list[float], theirs: list[float]) -> Columns:
    """Return the mean difference (dB) of two runs on the same batches, with Student's 95 % interval."""
    values = np.array(ours) - np.array(theirs)
    error = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else math.nan
    half = float(t.ppf(0.975, max(1, len(values) - 1))) * error
    mean = float(values.mean())
    return {"difference": mean, "lower": mean - half, "upper": mean + half, "count": len(values)}


def _shown(found: Reconstruction, truth: Tensor) -> Tensor:
    """Return restored images in [0, 1], in the best order."""
    images = data.denormalise(found.images.double()).clamp(0, 1)
    return images[metrics.match_batch(images, truth.double())]


def _recorded(cell: Matched) -> list[dict[str, Any]]:
    """Return breaching's rows for a setting, none if it was not run there."""
    if cell.data != "cifar10" or cell.defense != "none":
        return []
    rows = breaching()["rows"]
    return [row for row in rows if all(row[name] == getattr(cell, name) for name in ("network", "size", "steps"))]


def breaching() -> dict[str, Any]:
    """Return what breaching's default reached on the clients of this page, its version and the command."""
    text = (resources.files("gradleak.studies.wang2024") / "breaching.json").read_text()
    recorded: dict[str, Any] = json.loads(text)
    return recorded


def table(record: Record) -> pd.DataFrame:
    """Return the mean PSNR of each run in each setting, and how much better it is than breaching's."""
    rows = record.rows(Matched)
    keys = ["network", "size", "steps", "defense"]
    lines = []
    for values, group in grouped(rows, keys):
        network, size, steps, defense = map(str, values)
        line = {"network": NAMES.get(network, network), "batch size": size, "steps": steps}
        line["defence"] = defenses.shown(defense)
        for run in RUNS:
            psnr = select(group, run=run)["psnr"]
            spread = f" ± {psnr.std():.1f}" if len(psnr) > 1 else ""
            line[f"{run} (dB)"] = f"{psnr.mean():.1f}{spread}" if len(psnr) else MISSING
        gain = select(group, run=f"{OURS} against {BREACHING}")
        ends = [f"{one['lower']:+.1f} … {one['upper']:+.1f}" for _, one in gain.iterrows()]
        line["budget − breaching (dB, 95 %)"] = ends[0] if ends else MISSING
        for run in (OURS, BREACHING):
            seconds = select(group, run=run)["seconds"]
            line[f"{run}, CPU time (s)"] = f"{seconds.mean():.2g}" if len(seconds) else MISSING
        lines.append(line)
    return pd.DataFrame(lines)


def figure_runs(record: Record) -> Figure:
    """Plot the mean PSNR of every run against its CPU-time, one panel for each network; undefended clients."""
    rows = select(record.rows(Matched), defense="none")
    rows = rows[rows["run"].isin([OURS, HALF, PUBLISHED, BREACHING])]
    means = rows.groupby(["network", "size", "steps", "run"], sort=False)[["psnr", "seconds"]].mean().reset_index()
    return drawn(
        means.assign(title=means["network"].map(lambda name: NAMES.get(name, name))),
        scattered("seconds", "psnr", "run"),
        panels="title",
        legend=4,
        xlabel="CPU time of one attack (s)",
        ylabel="mean PSNR (dB)",
        xscale="log",
    )


def figure_estimate(record: Record) -> Figure:
    """Plot each batch's PSNR against the loss, which the attacker knows; all settings."""
    rows = select(record.rows(Matched), run=OURS)
    return drawn(
        rows.assign(name=rows["network"].map(lambda name: NAMES.get(name, name))),
        scattered("loss", "psnr", "name"),
        legend=4,
        xlabel="loss at the end of the search",
        ylabel="mean PSNR (dB)",
    )


def correlations(record: Record) -> pd.DataFrame:
    """Return the rank correlation with the PSNR, over the batches of all settings, of what the attacker knows."""
    rows = select(record.rows(Matched), run=OURS)
    known = {"loss": -rows["loss"], "agreement of the images at half and at the whole budget": rows["agreement"]}
    return pd.DataFrame(
        [
            {"known": name, "batches": len(rows), "rank correlation": f"{values.corr(rows['psnr'], 'spearman'):.2f}"}
            for name, values in known.items()
        ]
    )


def calibration(record: Record) -> pd.DataFrame:
    """Return how far the PSNR of each network's batches lies from the line over the loss that the others give."""
    rows = select(record.rows(Matched), run=OURS)
    lines = []
    for network in rows["network"].unique():
        own, others = rows[rows["network"] == network], rows[rows["network"] != network]
        line = {"network left out": NAMES.get(network, network), "batches": str(len(own))}
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
            attack="matching, coarse to fine", network=rows["network"], data=str(record.parameters["data"]),
            training=rows["network"].isin([*READY, *TRANSFORMERS]).map({True: "trained", False: "untrained"}),
            batch=rows["size"], defense=rows["defense"], detail=rows["steps"].map("{} steps".format),
        ),
    )  # fmt: skip
