"""What a certificate is worth

Beyond wang2024, section 4: search for wrong answers among those that the attacks call unique or exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Annotated, Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import AfterValidator
from scipy.stats import binomtest
from torch import nn

from gradleak import augment, data, models, studies
from gradleak.hunting import BROKEN, FAMILIES, OUTCOMES
from gradleak.hunting.running import block, pairs
from gradleak.images import Inversion, trace_convolutional, trace_fully_connected
from gradleak.images.inversion.again import observed_again
from gradleak.leak import Leak, observe
from gradleak.models.language import batch_of, build_language_model
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.sequences import read_sentences
from gradleak.show.drawn import drawn, stacked
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, cells, select, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.wang2024.columns import COLUMNS

PLACE = "Beyond section 4"
DATASET = "photos"
# The parameter that gives the number of seeds for a family of attacks, if it does not have the family's name.
SEEDS = {
    "connected": "inversions",
    "convolutional": "inversions",
    "peeling": "peelings",
    "sentences": "sequences",
    "transcripts": "sequences",
}
# Seeds per trial: few, so that an interrupted trial loses little work.
AT_ONCE = 25
# The distance between the first seeds of two runs whose page seeds differ by 1.
APART = 1_000_000
# The column that counts each outcome.
COUNTS: dict[str, str] = dict(
    zip(OUTCOMES, ("right_count", "wrong", "with_truth", "without_truth", "failed_count", "refused"), strict=True)
)
COLOURS = ("#3b7a57", "#b3261e", "#8fb8de", "#f0c05a", "#c9cdd2", "#e6e8ea")
# The attacks whose last check is timed.
TIMED = ("fully connected, one image", "fully connected, 8 images", "convolutions, one image", "sentences, 4 of them")


def _known(name: str) -> str:
    if name not in BROKEN:
        raise ValueError(f"must be one of {', '.join(BROKEN)}")
    return name


Assumption = Annotated[str, AfterValidator(_known)]


class Parameters(studies.Parameters):
    """Parameters of the page: the broken assumptions, and the number of seeds for each kind of attack."""

    broken: list[Assumption] = setting(paper=list(BROKEN), smallest=["none", "signs of lower layers"], min_length=1)
    kept: int = setting(paper=10, ge=1, le=1000)
    labels: int = setting(paper=80, smallest=1, ge=1, le=100_000)
    batches: int = setting(paper=200, ge=1, le=100_000)
    joint: int = setting(paper=40, ge=1, le=100_000)
    counts: int = setting(paper=200, ge=1, le=100_000)
    features: int = setting(paper=200, ge=1, le=100_000)
    inversions: int = setting(paper=160, smallest=1, ge=1, le=100_000)
    peelings: int = setting(paper=60, ge=1, le=100_000)
    updates: int = setting(paper=200, ge=1, le=100_000)
    sequences: int = setting(paper=100, ge=1, le=100_000)
    repeats: int = setting(paper=20, ge=1, le=1000)

    def experiments(self) -> Iterator[Experiment]:
        """Yield every attack with all assumptions kept, then under every broken one, then the time measurements."""
        for family, broken in sorted(pairs(), key=lambda pair: pair[1] != "none"):
            wanted = getattr(self, SEEDS.get(family, family)) if broken in self.broken else 0
            wanted *= self.kept if broken == "none" else 1
            for first in range(0, wanted, AT_ONCE):
                seeds = min(AT_ONCE, wanted - first)
                yield Hunt.of(self, family=family, broken=broken, first=first, seeds=seeds)
        for attack in TIMED:
            yield CheckCost.of(self, attack=attack)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        names = dict.fromkeys(SEEDS.get(family, family) for family in FAMILIES)
        return "seeds for each assumption: " + ", ".join(f"{name} {getattr(self, name)}" for name in names)


class OnCPU(Experiment):
    """An experiment of this page, all of which run on the CPU."""

    stays_on_cpu: ClassVar[str] = (
        "they attack thousands of tiny networks one after another, which is too little work at a time for a GPU"
    )

    def reads(self) -> list[str]:
        """Return the name of the clients' dataset."""
        return [DATASET]


class Hunt(OnCPU):
    """Search for wrong certificates of one attack under one broken assumption, for `seeds` seeds from `first` on."""

    part: ClassVar[str] = "hunt"
    family: str
    broken: str
    first: int
    seeds: int

    def run(self) -> list[Columns]:
        """Count the outcomes, and keep the seeds and settings of the first three wrong answers."""
        tally = block(self.family, self.broken, APART * self.seed + self.first, self.seeds)
        cases, counts = tally.outcomes.total(), {column: tally.outcomes[name] for name, column in COUNTS.items()}
        examples = "; ".join(f"{seed} ({setting})" for seed, _, setting in tally.wrong[:3])
        right_share = 100 * counts["right_count"] / max(1, cases)
        return [{"cases": cases, **counts, "right_share": right_share, "examples": examples}]


class CheckCost(OnCPU):
    """Measure the time of an attack and of the last check of its answer."""

    part: ClassVar[str] = "cost"
    attack: str
    repeats: int

    def run(self) -> list[Columns]:
        """Run the attack and its check once to warm up, then measure both."""
        attack, check = _attack(self.attack, self.seed)
        check(attack())
        both = []
        for _ in range(self.repeats):
            started = time.perf_counter()
            found = attack()
            whole = time.perf_counter() - started
            check(found)
            both.append((whole, time.perf_counter() - started - whole))
        whole, last = (median(own) for own in zip(*both, strict=True))
        return [{"seconds": whole, "check_seconds": last, "share_seconds": 100 * last / whole}]


def _attack(attack: str, seed: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return a function that runs an attack, and a function that checks its answer."""
    if attack.startswith("sentences"):
        model = build_language_model("lstm", pieces=2000, width=128, seed=seed)
        sentences = torch.randint(3, 2000, (4, 8), generator=torch.Generator().manual_seed(seed)).tolist()
        leak = observe(model, *batch_of(sentences))
        return lambda: read_sentences(leak), lambda found: observe(model, *batch_of(found.all()))
    size, name = (8 if "8" in attack else 1), "lenet" if "convolutions" in attack else "fcn4"
    images = data.normalise(data.load(DATASET, "test").images[:size])
    model = models.build(name, classes=40, image_size=images.shape[-1], seed=seed)
    labels = augment.smooth(torch.arange(size), 40, torch.full((size,), 0.2))
    leak = observe(model, images, labels)

    def again(found: Inversion) -> None:
        with torch.no_grad():
            observed_again(leak, found.inputs, found.labels)

    invert = trace_convolutional if name == "lenet" else trace_fully_connected
    return lambda: invert(leak), again


def signs_of(model: nn.Module, leak: Leak) -> Leak:
    """Return a leak in which each tensor holds only signs, times one magnitude."""
    return BROKEN["signs"].sent(lambda _: leak, model, torch.Generator())


def _hunted(record: Record) -> pd.DataFrame:
    """Return the rows of the hunt in the order of the broken assumptions and of the attacks."""
    places = {"broken": list(BROKEN), "family": list(FAMILIES)}
    rows = record.rows(Hunt).sort_values(list(places), key=lambda names: names.map(places[str(names.name)].index))
    return rows.assign(certified=rows["right_count"] + rows["wrong"])


def headline(record: Record) -> Headline:
    """Return the finding: no certificate is wrong where every assumption holds, and few are where one is broken."""
    rows = _hunted(record)
    kept, others = rows[rows["broken"] == "none"], rows[rows["broken"] != "none"]
    broken = int(others["wrong"].sum())
    return Headline(
        f"In attacks on random clients that keep every assumption, none of {kept['certified'].sum():,.0f} certified "
        f"answers is wrong; if a client breaks one assumption, {broken} of {others['certified'].sum():,.0f} certified "
        "answers are wrong.",
        true=bool(kept["wrong"].sum() == 0) and broken > 0,
        claim="certificates-wrong",
        what="wrong certificates in attacks on clients that keep every assumption (all attacks)",
        of=f"groups of up to {AT_ONCE} seeds",
        figure=figure_outcomes,
    )


def attacks_table(record: Record) -> pd.DataFrame:
    """Return what each attack's certificate promises, and how often it is kept if every assumption holds."""
    rows = select(_hunted(record), broken="none")
    return summary(
        rows.assign(
            recovers=[FAMILIES[name].words for name in rows["family"]],
            promise=[FAMILIES[name].promise for name in rows["family"]],
        ),
        {"attack": "family", "recovers": "recovers", "its certificate promises": "promise"},
        {
            **cells(COLUMNS, "cases", "right_count", "wrong", by=total),
            "certified answers within the claimed error": _covered,
        },
    )


def _covered(rows: pd.DataFrame) -> str:
    """Return the share of certified answers that are right, and the share that it exceeds with 95 % confidence."""
    right, certified = int(rows["right_count"].sum()), int(rows["certified"].sum())
    if not certified:
        return NOTHING
    least = binomtest(right, certified, alternative="greater").proportion_ci().low
    return f"{100 * right / certified:.4g} % (above {100 * least:.4g} %)"


def broken_table(record: Record) -> pd.DataFrame:
    """Return how a client breaks each assumption, and how many certificates of which attacks are then wrong."""
    rows = _hunted(record)
    rows = rows[rows["broken"] != "none"]
    return summary(
        rows.assign(words=[BROKEN[name].words for name in rows["broken"]]),
        {"broken assumption": "broken", "what the client does": "words"},
        {
            **cells(COLUMNS, "cases", by=total),
            "certified": total("certified", ",.0f"),
            **cells(COLUMNS, "wrong", by=total),
            "attacks with wrong certificates": _wrong_attacks,
        },
    )


def _wrong_attacks(rows: pd.DataFrame) -> str:
    wrong = rows.groupby("family", sort=False)["wrong"].sum()
    return ", ".join(f"{name} {count:.0f}" for name, count in wrong.items() if count) or NOTHING


def cost_table(record: Record) -> pd.DataFrame:
    """Return the time of each attack and of its last check."""
    return summary(
        record.rows(CheckCost),
        {"attack": "attack"},
        cells(COLUMNS, "seconds", "check_seconds", "share_seconds"),
    )


def figure_outcomes(record: Record) -> Figure:
    """Plot the share of each outcome (%) as stacked bars.

    Left: one bar for each attack if every assumption holds. Right: one bar for each broken assumption, all attacks
    together.
    """
    rows = _hunted(record)
    holds = rows["broken"] == "none"
    return drawn(
        rows.assign(
            bar=rows["family"].where(holds, rows["broken"]),
            holds=holds.map({True: "every assumption holds", False: "one is broken (all attacks)"}),
        ),
        stacked("bar", COUNTS, COLOURS),
        lambda axis, _: axis.tick_params(axis="y", labelsize=8),
        panels="holds",
        height=5.2,
        legend=6,
        sharey=False,
        xlabel="share of attacks (%)",
    )
