"""What a certificate is worth

Beyond wang2024, section 4: search for wrong answers among those that the attacks call unique or exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
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
from gradleak.runs.records import Record
from gradleak.sequences import read_sentences
from gradleak.show.drawn import drawn, stacked
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, only, percent, select, summary, total
from gradleak.studies import Experiment, Row, setting

PLACE = "Beyond section 4"
DATASET = "photos"
# The parameter that gives the number of seeds for each family of attacks.
SEEDS = {
    "labels": "labels",
    "batches": "batches",
    "joint": "joint",
    "counts": "counts",
    "features": "features",
    "connected": "inversions",
    "convolutional": "inversions",
    "peeling": "peelings",
    "updates": "updates",
    "sentences": "sequences",
    "transcripts": "sequences",
}
# Seeds per trial: few, so that an interrupted trial loses little work.
AT_ONCE = 25
# The distance between the first seeds of two runs whose page seeds differ by 1.
APART = 1_000_000
# The column that counts each outcome.
COUNTS: dict[str, str] = dict(
    zip(OUTCOMES, ("right", "wrong", "with_truth", "without_truth", "failed", "refused"), strict=True)
)
# What attacks recover, in words.
WORDS = {name: family.words for name, family in FAMILIES.items()}
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

    broken: list[Assumption] = setting(
        ["none", "clipped", "signs of lower layers"],
        paper=list(BROKEN),
        smallest=["none", "signs of lower layers"],
        min_length=1,
        about="assumptions of the attacks that clients violate, one at a time",
    )
    kept: int = setting(1, paper=10, ge=1, le=1000, about="how many times as many seeds where every assumption holds")
    labels: int = setting(
        2,
        paper=80,
        smallest=1,
        ge=1,
        le=100_000,
        about="seeds per assumption for labels of single samples, 20 samples each",
    )
    batches: int = setting(1, paper=200, ge=1, le=100_000, about="seeds per assumption for labels of batches")
    joint: int = setting(
        1,
        paper=40,
        ge=1,
        le=100_000,
        about="seeds per assumption for batches whose samples are all searched for at once",
    )
    counts: int = setting(
        1, paper=200, ge=1, le=100_000, about="seeds per assumption for classes and label counts of batches"
    )
    features: int = setting(1, paper=200, ge=1, le=100_000, about="seeds per assumption for unmixed features")
    inversions: int = setting(
        2,
        paper=160,
        smallest=1,
        ge=1,
        le=100_000,
        about="seeds per assumption for each of the two inversions (fully connected, convolutional)",
    )
    peelings: int = setting(1, paper=60, ge=1, le=100_000, about="seeds per assumption for peeling")
    updates: int = setting(
        1, paper=200, ge=1, le=100_000, about="seeds per assumption for single samples whose clients send weights"
    )
    sequences: int = setting(
        1, paper=100, ge=1, le=100_000, about="seeds per assumption for sentences, and as many for transcripts"
    )
    repeats: int = setting(1, paper=20, ge=1, le=1000, about="repetitions of each time measurement")

    def experiments(self) -> Iterator[Experiment]:
        """Yield every attack with all assumptions kept, then under every broken one, then the time measurements."""
        for family, broken in sorted(pairs(), key=lambda pair: pair[1] != "none"):
            wanted = getattr(self, SEEDS[family]) if broken in self.broken else 0
            wanted *= self.kept if broken == "none" else 1
            for first in range(0, wanted, AT_ONCE):
                seeds = min(AT_ONCE, wanted - first)
                yield Hunt.of(self, family=family, broken=broken, first=first, seeds=seeds)
        for attack in TIMED:
            yield CheckCost.of(self, attack=attack)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        seeds = {name: getattr(self, name) for name in dict.fromkeys(SEEDS.values())}
        return "seeds for each assumption: " + ", ".join(f"{name} {number}" for name, number in seeds.items())


class Outcomes(Row):
    """How often each outcome occurred, in `cases` attacks.

    Attributes:
        right: Certified answers that are right.
        wrong: Certified answers that are wrong.
        with_truth: Answers without a certificate, with the truth within the attack's bound on the error.
        without_truth: Answers without a certificate, with the truth outside this bound.
        failed: Attacks that found no answer.
        refused: Attacks that raised an error of gradleak.
        right_share: The percentage of `right`.
        examples: The seed and the setting of the first three wrong answers.
    """

    cases: int
    right: int
    wrong: int
    with_truth: int
    without_truth: int
    failed: int
    refused: int
    right_share: float
    examples: str


class Cost(Row):
    """The median time (s) of an attack and of its last check, and the check's share in percent."""

    seconds: float
    check_seconds: float
    share_seconds: float


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

    def run(self) -> list[Outcomes]:
        """Count the outcomes, and keep the seeds of wrong answers, which reproduce them."""
        tally = block(self.family, self.broken, APART * self.seed + self.first, self.seeds)
        cases, counts = tally.outcomes.total(), {column: tally.outcomes[name] for name, column in COUNTS.items()}
        return [
            Outcomes.of(
                cases=cases,
                **counts,
                right_share=100 * counts["right"] / max(1, cases),
                examples="; ".join(f"{seed} ({setting})" for seed, _, setting in tally.wrong[:3]),
            )
        ]


class CheckCost(OnCPU):
    """Measure the time of an attack and of the last check of its answer."""

    part: ClassVar[str] = "cost"
    attack: str
    repeats: int

    def run(self) -> list[Cost]:
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
        return [Cost(seconds=whole, check_seconds=last, share_seconds=100 * last / whole)]


def _attack(attack: str, seed: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return a function that runs an attack, and a function that checks its answer."""
    if attack.startswith("sentences"):
        model = build_language_model("lstm", pieces=2000, width=128, seed=seed)
        said = torch.randint(3, 2000, (4, 8), generator=torch.Generator().manual_seed(seed)).tolist()
        leak = observe(model, *batch_of(said))
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


def headline(record: Record) -> Headline:
    """Return the finding: no certificate is wrong where every assumption holds, and few are where one is broken."""
    rows = record.rows(Hunt)
    holds = rows["broken"] == "none"
    certified = rows["right"] + rows["wrong"]
    kept, others = int(certified[holds].sum()), int(certified[~holds].sum())
    broken = int(rows["wrong"][~holds].sum())
    return Headline(
        f"In attacks on random clients that keep every assumption, none of {kept:,} certified answers is wrong; if a "
        f"client breaks one assumption, {broken} of {others:,} certified answers are wrong.",
        true=bool(rows["wrong"][holds].sum() == 0) and broken > 0,
        claim="certificates-wrong",
        what="wrong certificates in attacks on clients that keep every assumption (all attacks)",
        of=f"groups of up to {AT_ONCE} seeds",
        figure=figure_outcomes,
    )


def promises_table() -> pd.DataFrame:
    """Return what each attack certifies.

    Rows: attacks. Columns: what the attack recovers, what its certificate promises, and the assumptions that do not
    matter to the attack and are not broken for it.
    """
    return pd.DataFrame(
        {
            "attack": name,
            "recovers": WORDS[name],
            "its certificate promises": one.promise,
            "broken assumptions without effect on it": ", ".join(one.idle) or "–",
        }
        for name, one in FAMILIES.items()
    )


def broken_table() -> pd.DataFrame:
    """Return what a client does to break each assumption, one row for each assumption."""
    return pd.DataFrame({"broken assumption": name, "what the client does": one.words} for name, one in BROKEN.items())


def kept_table(record: Record) -> pd.DataFrame:
    """Return the outcomes if every assumption holds.

    Rows: kinds of attack. Columns: the number of attacks (n) and of each outcome; the share of certified answers within
    the error that is promised and claimed, with the lower end of its interval.
    """
    rows = select(record.rows(Hunt), broken="none")
    rows = _ordered(rows, "family", FAMILIES)
    counts = {outcome: total(column) for outcome, column in COUNTS.items()}
    return summary(
        rows.assign(attack=rows["family"].map(WORDS)),
        {"attack": "attack"},
        {"attacks": total("cases"), **counts, "certified answers within the claimed error": _covered},
    )


def _covered(rows: pd.DataFrame) -> str:
    """Return the share of certified answers that are right, and the share that it exceeds with 95 % confidence."""
    right, certified = int(rows["right"].sum()), int((rows["right"] + rows["wrong"]).sum())
    if not certified:
        return "–"
    least = binomtest(right, certified, alternative="greater").proportion_ci().low
    return f"{100 * right / certified:.4g} % (above {100 * least:.4g} %)"


def noticed_table(record: Record) -> pd.DataFrame:
    """Return the effect of each broken assumption.

    Rows: assumptions. Columns: attacks that give certificates. A cell holds the number of wrong certificates and of all
    certificates if there are any, else the most frequent other outcome.
    """
    rows = _ordered(record.rows(Hunt), "broken", BROKEN)
    certify = [name for name, family in FAMILIES.items() if not family.promise.startswith("none")]
    return summary(rows, {"broken assumption": "broken"}, {name: among(_said, family=name) for name in certify})


def _ordered(rows: pd.DataFrame, column: str, words: Iterable[str]) -> pd.DataFrame:
    """Return rows sorted by the position of a column's values in `words`."""
    places = {word: place for place, word in enumerate(words)}
    return rows.sort_values(column, key=lambda values: values.map(places), kind="stable")


def _said(own: pd.DataFrame) -> str:
    """Return how many of all certificates are wrong or, without a certificate, the most frequent outcome."""
    wrong = int(own["wrong"].sum())
    if certified := wrong + int(own["right"].sum()):
        return f"{wrong:,} of {certified:,} wrong"
    counts = {
        "open": own["with_truth"].sum() + own["without_truth"].sum(),
        "failed": own["failed"].sum(),
        "refused": own["refused"].sum(),
    }
    return max(counts, key=counts.__getitem__)


def unnoticed_table(record: Record) -> pd.DataFrame:
    """Return the number of wrong certificates.

    Rows: attacks and assumptions with at least one wrong certificate. Columns: attacks run (n), answers certified,
    wrong certificates, and the seed and setting of the first of these.
    """
    rows = record.rows(Hunt)
    rows = rows[rows.groupby(["family", "broken"])["wrong"].transform("sum") > 0]
    return summary(
        rows.assign(attack=rows["family"].map(WORDS), certified=rows["wrong"] + rows["right"]),
        {"attack": "attack", "broken assumption": "broken"},
        {
            "attacks": total("cases", ".0f"),
            "certified": total("certified", ".0f"),
            "certified and wrong": total("wrong", ".0f"),
            "example: seed (setting)": _first_example,
        },
    )


def _first_example(rows: pd.DataFrame) -> str:
    return str(next(text for text in rows["examples"] if text)).partition(";")[0]


def cost_table(record: Record) -> pd.DataFrame:
    """Return the time (ms) of each attack and of its last check, and the check's share. Rows: attacks."""
    return summary(
        record.rows(CheckCost),
        {"attack": "attack"},
        {
            "whole attack (ms)": only("seconds", _milliseconds),
            "final check (ms)": only("check_seconds", _milliseconds),
            "share of the check": only("share_seconds", percent()),
        },
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def figure_outcomes(record: Record) -> Figure:
    """Plot the share of each outcome (%) as stacked bars.

    Left: one bar for each attack if every assumption holds. Right: one bar for each broken assumption, all attacks
    together.
    """
    rows = record.rows(Hunt)
    kept = _ordered(select(rows, broken="none"), "family", FAMILIES)
    rest = _ordered(rows[rows["broken"] != "none"], "broken", BROKEN)
    kept = kept.assign(bar=kept["family"], holds="every assumption holds")
    rest = rest.assign(bar=rest["broken"], holds="one is broken (all attacks)")
    return drawn(
        pd.concat([kept, rest]),
        stacked("bar", COUNTS, COLOURS),
        lambda axis, _: axis.tick_params(axis="y", labelsize=8),
        panels="holds",
        height=5.2,
        legend=6,
        sharey=False,
        xlabel="share of attacks (%)",
    )
