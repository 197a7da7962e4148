"""What a certificate is worth

Beyond wang2024, section 4: every attack that calls an answer unique or exact, hunted for answers that are wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import AfterValidator, Field
from torch import nn

from gradleak import augment, data, models, studies
from gradleak.hunting import BROKEN, FAMILIES, OUTCOMES
from gradleak.hunting.running import block, pairs
from gradleak.images import Inversion, trace_convolutional, trace_fully_connected
from gradleak.images.inversion.again import observed_again
from gradleak.leak import Leak, observe
from gradleak.models.language import batch_of, build_language_model
from gradleak.runs.records import Record
from gradleak.sequences import read_sentences
from gradleak.show import figures

PLACE = "Beyond section 4"
SMALLEST: dict[str, Any] = {
    **dict.fromkeys(("labels", "batches", "joint", "counts", "features", "inversions", "peelings", "sequences"), 1),
    "broken": ["none", "signs of lower layers"],
    "repeats": 1,
}
# Which parameter says how many seeds a family is hunted with.
SEEDS = {
    "labels": "labels",
    "batches": "batches",
    "joint": "joint",
    "counts": "counts",
    "features": "features",
    "connected": "inversions",
    "convolutional": "inversions",
    "peeling": "peelings",
    "sentences": "sequences",
    "transcripts": "sequences",
}
# A trial hunts so many seeds, so that one that is cut off loses little.
AT_ONCE = 25
# Seeds of the page's own are told apart from those of another by so many.
APART = 1_000_000
# Columns of the counts, in the order of the outcomes.
COUNTS = dict(zip(OUTCOMES, ("right", "wrong", "with_truth", "without_truth", "failed", "refused"), strict=True))
COLOURS = ("#3b7a57", "#b3261e", "#8fb8de", "#f0c05a", "#c9cdd2", "#e6e8ea")
# Whose last check is timed.
TIMED = ("fully connected, one image", "fully connected, 8 images", "convolutions, one image", "sentences, 4 of them")


def _known(name: str) -> str:
    if name not in BROKEN:
        raise ValueError(f"must be one of {', '.join(BROKEN)}")
    return name


Assumption = Annotated[str, AfterValidator(_known)]


class Parameters(studies.Parameters):
    """What a rerun may change."""

    broken: list[Assumption] = Field(
        ["none", "clipped", "signs of lower layers"],
        min_length=1,
        description="assumptions to break, one at a time",
    )
    labels: int = Field(2, ge=1, le=100_000, description="seeds an assumption, single labels: 20 samples each")
    batches: int = Field(1, ge=1, le=100_000, description="seeds an assumption, labels of batches")
    joint: int = Field(1, ge=1, le=100_000, description="seeds an assumption, whole batches together")
    counts: int = Field(1, ge=1, le=100_000, description="seeds an assumption, classes and counts of batches")
    features: int = Field(1, ge=1, le=100_000, description="seeds an assumption, unmixed features")
    inversions: int = Field(2, ge=1, le=100_000, description="seeds an assumption, either kind of inversion")
    peelings: int = Field(1, ge=1, le=100_000, description="seeds an assumption, peeled networks")
    sequences: int = Field(1, ge=1, le=100_000, description="seeds an assumption, sentences and transcripts")
    repeats: int = Field(1, ge=1, le=1000, description="times that the cost of a check is measured")

    paper: ClassVar[dict[str, Any]] = {
        "broken": list(BROKEN),
        "labels": 80,
        "batches": 300,
        "joint": 40,
        "counts": 200,
        "features": 200,
        "inversions": 160,
        "peelings": 60,
        "sequences": 40,
        "repeats": 20,
    }


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    seeds = {name: getattr(parameters, name) for name in dict.fromkeys(SEEDS.values())}
    return ", ".join(f"{name} {number}" for name, number in seeds.items()) + " seeds an assumption"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets that this study reads."""
    return ["photos"]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: an attack with one assumption broken, some seeds each; and what checks cost."""
    common = {"seed": parameters.seed, "device": "cpu"}
    hunts = []
    for family, broken in pairs():
        wanted = getattr(parameters, SEEDS[family]) if broken in parameters.broken else 0
        for first in range(0, wanted, AT_ONCE):
            own = {"part": "hunt", "family": family, "broken": broken}
            hunts.append(own | {"first": first, "seeds": min(AT_ONCE, wanted - first)} | common)
    return hunts + [{"part": "cost", "attack": attack, "repeats": parameters.repeats} | common for attack in TIMED]


def trial(part: str, device: str, **inputs: Any) -> list[dict[str, Any]]:
    """Hunt, a row an attack, assumption and outcome; or time a check."""
    return _hunted(**inputs) if part == "hunt" else _timed(**inputs)


def _hunted(family: str, broken: str, first: int, seeds: int, seed: int) -> list[dict[str, Any]]:
    tally = block(family, broken, APART * seed + first, seeds)
    row: dict[str, Any] = {"cases": tally.outcomes.total()}
    row |= {column: tally.outcomes[name] for name, column in COUNTS.items()}
    row["right_share"] = 100 * row["right"] / max(1, row["cases"])
    # The seeds of wrong answers, so that each can be looked at again.
    return [row | {"examples": "; ".join(f"{seed} ({setting})" for seed, _, setting in tally.wrong[:3])}]


def _timed(attack: str, repeats: int, seed: int) -> list[dict[str, Any]]:
    run, check = _attack(attack, seed)
    check(run())
    both = []
    for _ in range(repeats):
        started = time.perf_counter()
        found = run()
        whole = time.perf_counter() - started
        check(found)
        both.append((whole, time.perf_counter() - started - whole))
    whole, last = (median(own) for own in zip(*both, strict=True))
    return [{"seconds": whole, "check_seconds": last, "share_seconds": 100 * last / whole}]


def _attack(attack: str, seed: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return an attack and the last check of what it finds."""
    if attack.startswith("sentences"):
        model = build_language_model("lstm", pieces=2000, width=128, seed=seed)
        said = torch.randint(3, 2000, (4, 8), generator=torch.Generator().manual_seed(seed)).tolist()
        leak = observe(model, *batch_of(said))
        return lambda: read_sentences(leak), lambda found: observe(model, *batch_of(found.all()))
    size, name = (8 if "8" in attack else 1), "lenet" if "convolutions" in attack else "fcn4"
    images = data.normalise(data.load("photos", "test").images[:size])
    model = models.build(name, classes=40, image_size=images.shape[-1], seed=seed)
    labels = augment.smooth(torch.arange(size), 40, torch.full((size,), 0.2))
    leak = observe(model, images, labels)

    def again(found: Inversion) -> None:
        with torch.no_grad():
            observed_again(leak, found.inputs, found.labels)

    invert = trace_convolutional if name == "lenet" else trace_fully_connected
    return lambda: invert(leak), again


def signs_of(model: nn.Module, leak: Leak) -> Leak:
    """Return what a client sends that sends signs, with one size a tensor."""
    return BROKEN["signs"].sent(lambda _: leak, model, torch.Generator())


def promises_table() -> pd.DataFrame:
    """Return what each attack promises, and which broken assumptions it is hunted with."""
    return pd.DataFrame(
        {
            "attack": name,
            "what it looks for": one.words,
            "its certificate promises": one.promise,
            "does not matter to it": ", ".join(one.idle) or "–",
        }
        for name, one in FAMILIES.items()
    )


def broken_table() -> pd.DataFrame:
    """Return what each broken assumption is."""
    return pd.DataFrame({"assumption": name, "what the client does": one.words} for name, one in BROKEN.items())


def kept_table(record: Record) -> pd.DataFrame:
    """Return the outcomes where every assumption holds, a line an attack."""
    frame = record.part("hunt")
    lines = []
    for name, family in FAMILIES.items():
        own = frame[(frame["broken"] == "none") & (frame["family"] == name)]
        if len(own):
            counts = {outcome: f"{own[column].sum():,.0f}" for outcome, column in COUNTS.items()}
            lines.append({"attack": family.words, "n": f"{own['cases'].sum():,.0f}"} | counts)
    return pd.DataFrame(lines)


def noticed_table(record: Record) -> pd.DataFrame:
    """Return what comes of each broken assumption, a line an assumption, a column an attack that gives certificates."""
    frame = record.part("hunt")
    certify = [name for name, family in FAMILIES.items() if not family.promise.startswith("none")]
    lines = []
    for broken in (name for name in BROKEN if name in set(frame["broken"])):
        line = {"assumption": broken}
        for family in certify:
            line[family] = _said(frame[(frame["broken"] == broken) & (frame["family"] == family)])
        lines.append(line)
    return pd.DataFrame(lines)


def _said(own: pd.DataFrame) -> str:
    """Return in a word or two what an attack said: certified and wrong or right, in percent, else the most frequent."""
    if not len(own):
        return "–"
    cases = own["cases"].sum()
    for column in ("wrong", "right"):
        if count := own[column].sum():
            share = 100 * count / cases
            return f"{column} {share:.0f}" if share >= 10 else f"{column} {share:.1f}"
    counts = {
        "open": own["with_truth"].sum() + own["without_truth"].sum(),
        "failed": own["failed"].sum(),
        "refused": own["refused"].sum(),
    }
    return max(counts, key=counts.__getitem__)


def unnoticed_table(record: Record) -> pd.DataFrame:
    """Return how many certificates are wrong, a line an attack and assumption of which any is."""
    frame = record.part("hunt")
    lines = []
    for (family, broken), own in frame.groupby(["family", "broken"], sort=False):
        if wrong := own["wrong"].sum():
            lines.append(
                {
                    "attack": FAMILIES[str(family)].words,
                    "assumption": str(broken),
                    "n": f"{own['cases'].sum():.0f}",
                    "certified": f"{wrong + own['right'].sum():.0f}",
                    "wrong": f"{wrong:.0f}",
                    "one of them, by its seed": next(text for text in own["examples"] if text).partition(";")[0],
                }
            )
    return pd.DataFrame(lines, columns=["attack", "assumption", "n", "certified", "wrong", "one of them, by its seed"])


def cost_table(record: Record) -> pd.DataFrame:
    """Return what the last check costs, a line an attack."""
    frame = record.part("cost")
    return pd.DataFrame(
        {
            "attack": str(row["attack"]),
            "whole attack (ms)": f"{1000 * row['seconds']:.1f}",
            "its last check (ms)": f"{1000 * row['check_seconds']:.1f}",
            "share": f"{row['share_seconds']:.0f} %",
        }
        for row in frame.to_dict(orient="records")
    )


def figure_outcomes(record: Record) -> Figure:
    """Draw the share of each outcome, a bar an attack and assumption, the kept ones on the left."""
    frame = record.part("hunt")
    figure, axes = figures.panels(1, 2, height=5.2)
    kept, rest = frame[frame["broken"] == "none"], frame[frame["broken"] != "none"]
    for axis, own, key, words, title in (
        (axes[0][0], kept, "family", list(FAMILIES), "every assumption holds"),
        (axes[0][1], rest, "broken", [name for name in BROKEN if name != "none"], "one is broken, all attacks"),
    ):
        totals = own.groupby(key)[list(COUNTS.values())].sum().reindex(words).fillna(0)
        shares = 100 * totals.div(totals.sum(axis=1).clip(lower=1), axis=0)
        left, places = np.zeros(len(words)), np.arange(len(words))
        for (outcome, column), colour in zip(COUNTS.items(), COLOURS, strict=True):
            axis.barh(places, shares[column], left=left, color=colour, label=outcome, height=0.7)
            left += shares[column].to_numpy()
        axis.set_yticks(places, words, fontsize=8)
        axis.invert_yaxis()
        axis.set(xlabel="share of cases (%)", title=title, xlim=(0, 100))
    figures.legend_below(figure, 6)
    return figure
