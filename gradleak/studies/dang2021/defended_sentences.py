"""Defended sentences: what keeps them from being read out of a gradient

Beyond dang2021: clipping and noise with a stated privacy, larger batches, and layers whose gradient is not sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import nn

from gradleak import claims, defenses, studies
from gradleak.data.text import TITLES
from gradleak.errors import InputError
from gradleak.leak import Gradients, Leak, observe
from gradleak.models.language import batch_of
from gradleak.runs.records import Record
from gradleak.sequences import read_prefixes, read_sentences
from gradleak.show.drawn import drawn, lines
from gradleak.show.headline import Headline
from gradleak.show.summaries import Measure, count, mean, median, select, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.outcomes import Outcome, collected, share_of
from gradleak.studies.shared.private_noise import draw_noise, private_level
from gradleak.studies.shared.read import private_of, reading_of
from gradleak.studies.shared.sentence_clients import SHOWN, Cell, OnLanguageModel

PLACE = "Beyond section 2.5"
# Prefixes of the parameter names of layers whose gradient may be withheld.
LAYERS = {"none": "", "embedding": "embedding.", "head": "head.", "recurrent": "recurrent."}
WITHHELD = {
    "none": "all layers are sent",
    "embedding": "all but the embedding",
    "head": "all but the last layer",
    "recurrent": "all but the recurrent layers",
}
PREFIXES, COUNTS = "prefixes", "counts"
NonNegative = Annotated[float, Field(ge=0)]


class Parameters(studies.Parameters):
    """Parameters of the page: models and batches, levels of noise, and layers that are not sent."""

    text: str = setting(paper="librispeech")
    cells: list[Cell] = setting(
        paper=[f"{model}/1/{stage}/8/10" for model in ("lstm/256", "gru/256") for stage in ("untrained", "trained")],
        smallest=["lstm/64/1/untrained/2/1"],
        validate_default=True,
    )
    clip: float = setting(gt=0)
    noise: list[NonNegative] = setting(paper=[0, 1e-7, 1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 0.01, 1], smallest=[0, 1])
    sizes: list[Cell] = setting(
        paper=[f"lstm/256/1/untrained/{size}/10" for size in (16, 32, 40, 48, 64)], smallest=[], validate_default=True
    )
    withheld: list[Literal["none", "embedding", "head", "recurrent"]] = setting(
        paper=["none", "embedding", "head", "recurrent"], smallest=["head"]
    )
    epochs: int = setting(ge=1, le=1000)

    def experiments(self) -> Iterator[Experiment]:
        """Yield the batches with DP-SGD, then those of several sizes, then those without a layer."""
        for cell in self.cells:
            yield BehindDpSgd.of(self, **dict(cell), withheld="none")
        for cell in self.sizes:
            yield OfSizes.of(self, **dict(cell), clip=0.0, noise=[0.0], withheld="none")
        for name in self.withheld:
            yield WithoutLayer.of(self, **dict(self.cells[0]), clip=0.0, noise=[0.0], withheld=name)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        batches = sum(cell.batches for cell in (*self.cells, *self.sizes))
        return f"{batches:,} batches, {len(self.noise)} levels of noise, {TITLES[self.text]}"


class Found(Row):
    """The part of a batch that one method found.

    Attributes:
        right: The share of sentences that were found.
        false: The number of found sentences that are not in the batch.
        exact: Whether exactly the batch's sentences were found.
        wrongly_sure: Whether the method certified its result as unique although the result is wrong.
        seconds: The CPU time (s).
        status: The method's status; this and the rest are known only if sentences are counted.
        tokens: The number of tokens of the batch.
        rank: The rank of the gradient that spans the prefixes.
    """

    right: float
    false: int
    exact: bool
    wrongly_sure: bool
    seconds: float
    status: str = ""
    tokens: int = 0
    rank: int = 0


class FoundBehind(Found):
    """The result behind a defence.

    Attributes:
        batch: The number of the batch.
        level: The standard deviation of the noise, as a multiple of the clipping norm.
        utility: The cosine of the gradient with the one that is neither clipped nor noisy.
        reader: The method, by prefixes or by counts.
    """

    batch: int
    level: float
    utility: float
    reader: str


class DefendedBatches(OnLanguageModel):
    """Batches with one layer withheld, or with clipped sentences and added noise."""

    batches: int
    clip: float
    noise: list[float]
    withheld: str
    stays_on_cpu: ClassVar[str] = "sentences are read one at a time, in steps that are too small for a GPU"

    def read(self, clipped: bool) -> Iterator[FoundBehind]:
        """Read every batch at every level of noise; if `clipped`, each sentence's gradient is clipped first."""
        model, _ = self.model()
        for number in range(self.batches):
            private = private_of(self.text, self.size, number, self.seed)
            clean = observe(model, *batch_of(private))
            summed = clipped_sum(model, private, self.clip) if clipped else clean.gradients
            for level in self.noise:
                generator = torch.Generator().manual_seed(1_000_003 * self.seed + number)
                noisy = defenses.gaussian(level * self.clip / self.size, generator)(summed) if level else summed
                sent = {name: value for name, value in noisy.items() if not _withheld(name, self.withheld)}
                leak = Leak(model, sent, clean.head, self.size)
                # With clipped sentences the counts are no integers, so counting is tried only without noise.
                readers = {PREFIXES: _by_prefixes} if level else {PREFIXES: _by_prefixes, COUNTS: _by_counts}
                utility = defenses.utility(clean.gradients, noisy)
                for reader, found in readers.items():
                    yield FoundBehind.of(
                        found(leak, private, self.words()), batch=number, level=level, utility=utility, reader=reader
                    )


class BehindDpSgd(DefendedBatches):
    """Batches with DP-SGD as a defence."""

    part: ClassVar[str] = "dp"

    def run(self) -> Iterator[FoundBehind]:
        """Read the batches."""
        return self.read(clipped=True)


class OfSizes(DefendedBatches):
    """Batches of one size, without a defence."""

    part: ClassVar[str] = "size"

    def run(self) -> Iterator[FoundBehind]:
        """Read the batches."""
        return self.read(clipped=False)


class WithoutLayer(DefendedBatches):
    """Batches whose update lacks the gradient of one layer."""

    part: ClassVar[str] = "layers"

    def run(self) -> Iterator[FoundBehind]:
        """Read the batches."""
        return self.read(clipped=False)


def clipped_sum(model: nn.Module, private: list[list[int]], clip: float) -> Gradients:
    """Return DP-SGD's sum (abadi2016) of clipped sentence gradients, before its noise, divided by their number."""
    own = [defenses.clip(clip)(observe(model, *batch_of([one])).gradients) for one in private]
    return defenses.average(own)


def _withheld(name: str, layer: str) -> bool:
    return layer != "none" and name.startswith(LAYERS[layer])


def _by_prefixes(leak: Leak, private: list[list[int]], words: range) -> Found:
    """Read the longest prefixes, and compare them with the sentences."""
    started = time.process_time()
    try:
        found = read_prefixes(leak, words=words)
    except InputError:
        found = []  # The gradient from which prefixes are read is not sent.
    seconds = time.process_time() - started
    right = sum(sentence in found for sentence in private) / len(private)
    false = sum(sentence not in private for sentence in found)
    return Found(right=right, false=false, exact=right == 1 and false == 0, wrongly_sure=False, seconds=seconds)


def _by_counts(leak: Leak, private: list[list[int]], words: range) -> Found:
    """Read sentences with their counts, and compare them with the sentences of the batch."""
    started = time.process_time()
    try:
        read = read_sentences(leak, words=words)
    except InputError:
        # A gradient that this method needs is not sent.
        return Found(right=0.0, false=0, exact=False, wrongly_sure=False, seconds=time.process_time() - started)
    seconds = time.process_time() - started
    own = reading_of(read, private)
    return Found(
        right=own.right,
        false=sum(sentence not in private for sentence in read.all()),
        exact=own.exact,
        wrongly_sure=own.wrongly_sure,
        seconds=seconds,
        status=own.status,
        tokens=own.tokens,
        rank=own.rank,
    )


# The columns of every table.
READ: dict[str, Measure] = {
    "batches": count(),
    "sentences correct": mean("right", ".0%"),
    "false sentences per batch": mean("false", ".1f"),
    "batches exact": total("exact"),
    "CPU time (s)": median("seconds", ".2g"),
}


def headline(record: Record) -> Headline:
    """Return the finding: small noise stops this attack without giving privacy, and clipping alone does not stop it."""
    known = claims.judgements(record)
    clipped, noisy = known["defended-clipped"], known["defended-noise-stops"]
    level = noisy.claim.measure.where["level"]
    epsilon = float(f"{defenses.release_epsilon(level):.1g}")
    return Headline(
        f"Clipping alone leaves {100 * (clipped.value or 0):.0f} % of the sentences readable, mixed with false ones; "
        f"noise of {level:g} times the clipping norm leaves {100 * (noisy.value or 0):.0f} %, although its privacy "
        f"loss ε of {epsilon:,.0f} is no guarantee of privacy.",
        true=bool(clipped.agrees and noisy.agrees) and epsilon > 1000,
        claim="defended-clipped",
        what="share of sentences read after clipping without noise (LSTM and GRU, batches of 8)",
        figure=figure_frontier,
        of="batches",
    )


def noise_table(record: Record) -> pd.DataFrame:
    """Return the sentences that are read with DP-SGD as a defence, over all models and stages of training.

    One row for each level of noise and method. Columns: the ε of one release, the cosine of the sent gradient with the
    clean one, the number of batches, the share of sentences found, the mean number of false sentences per batch, the
    number of batches read exactly, and the median CPU time (s).
    """
    rows = record.rows(BehindDpSgd)
    rows = rows.assign(noise=rows["level"].map("{:g}".format), epsilon=rows["level"].map(private_level))
    keys = {"noise": "noise", "ε": "epsilon", "attack": "reader"}
    return summary(rows, keys, {"cosine": mean("utility"), **READ})


def size_table(record: Record) -> pd.DataFrame:
    """Return the sentences that are read from batches of several sizes.

    One row for each model, stage of training, batch size and method, with the median number of tokens of a batch.
    """
    rows = record.rows(OfSizes)
    if rows.empty:
        return pd.DataFrame({"sentences": []})
    # Only the method of counts gives the number of tokens, which is the same for the method of prefixes.
    tokens = rows.groupby(["stage", "size"])["tokens"].transform("median")
    models = [f"{SHOWN[kind]} {width}" for kind, width in zip(rows["kind"], rows["width"], strict=True)]
    return summary(
        rows.assign(model=models, tokens=tokens.map("{:.0f}".format)),
        {"model": "model", "stage": "stage", "sentences": "size", "tokens": "tokens", "attack": "reader"},
        READ,
    )


def layers_table(record: Record) -> pd.DataFrame:
    """Return the sentences that are read without a layer's gradient; one row for each missing layer and method."""
    rows = record.rows(WithoutLayer)
    return summary(rows.assign(sent=rows["withheld"].map(WITHHELD)), {"sent": "sent", "attack": "reader"}, READ)


def figure_frontier(record: Record) -> Figure:
    """Draw the share of sentences found against the noise and its ε, a line for each model and stage of training."""
    frame = select(record.rows(BehindDpSgd), reader="prefixes")
    frame = frame.assign(noise=frame["level"], line=frame["kind"].map(SHOWN) + ", " + frame["stage"])
    return draw_noise(frame, "right", legend=4, ylabel="share of sentences correct")


def figure_sizes(record: Record) -> Figure:
    """Draw the share of sentences found against the batch size, a line for each method and stage of training."""
    return drawn(
        record.rows(OfSizes),
        lines("size", "right", by=["reader", "stage"]),
        height=2.8,
        legend=4,
        ylim=(-0.03, 1.05),
        ylabel="share of sentences correct",
        xlabel="sentences in a batch",
        empty="no batches without a defence were read",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    right = share_of("right", "sentences read exactly", "batches")
    behind = {
        "dp": [f"release/{clip:g}/{level:g}" for clip, level in zip(rows["clip"], rows["level"], strict=True)],
        "size": ["none"] * len(rows),
        "layers": ["none" if name == "none" else f"withheld/{name}" for name in rows["withheld"]],
    }
    return collected(
        record, rows, "text", right, cosine=rows["utility"], attack="words in the span, " + rows["reader"],
        network=rows["kind"], training=rows["stage"], data=rows["text"], batch=rows["size"],
        defense=[behind[part][index] for index, part in enumerate(rows["part"])],
    )  # fmt: skip
