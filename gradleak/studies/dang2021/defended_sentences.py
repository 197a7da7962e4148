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
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.sequences import read_prefixes, read_sentences
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, cells, count, mean, median, select, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.dang2021.columns import COLUMNS
from gradleak.studies.shared.outcomes import Outcome, collected, share_of
from gradleak.studies.shared.private_noise import draw_noise, private_level
from gradleak.studies.shared.read import private_of, reading_of
from gradleak.studies.shared.sentence_clients import SHOWN, Cell, OnLanguageModel

PLACE = "Beyond section 2.5"
# Layers whose gradient may be withheld: parameter names begin with them.
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


class DefendedBatches(OnLanguageModel):
    """Batches with one layer withheld, or with clipped sentences and added noise."""

    batches: int
    clip: float
    noise: list[float]
    withheld: str
    stays_on_cpu: ClassVar[str] = "sentences are read one at a time, in steps that are too small for a GPU"

    def read(self) -> Iterator[Columns]:
        """Read every batch at every level of noise; with a clipping norm, each sentence's gradient is clipped first."""
        model, _ = self.model()
        for number in range(self.batches):
            private = private_of(self.text, self.size, number, self.seed)
            clean = observe(model, *batch_of(private))
            summed = clipped_sum(model, private, self.clip) if self.clip else clean.gradients
            for level in self.noise:
                generator = torch.Generator().manual_seed(1_000_003 * self.seed + number)
                noisy = defenses.gaussian(level * self.clip / self.size, generator)(summed) if level else summed
                sent = {name: value for name, value in noisy.items() if not name.startswith(f"{self.withheld}.")}
                leak = Leak(model, sent, clean.head, self.size)
                # With clipped sentences the counts are no integers, so counting is tried only without noise.
                readers = {PREFIXES: _by_prefixes} if level else {PREFIXES: _by_prefixes, COUNTS: _by_counts}
                utility = defenses.utility(clean.gradients, noisy)
                for reader, read in readers.items():
                    started = time.process_time()
                    try:
                        found = read(leak, private, self.words())
                    except InputError:
                        # A gradient that this attack needs is not sent.
                        found = {"right": 0.0, "false": 0, "exact": False, "wrongly_sure": False}
                    seconds = time.process_time() - started
                    about: Columns = {"batch": number, "level": level, "utility": utility, "reader": reader}
                    yield found | about | {"seconds": seconds}


class BehindDpSgd(DefendedBatches):
    """Batches with DP-SGD as a defence."""

    part: ClassVar[str] = "dp"

    def run(self) -> Iterator[Columns]:
        """Read the batches."""
        return self.read()


class OfSizes(DefendedBatches):
    """Batches of one size, without a defence."""

    part: ClassVar[str] = "size"

    def run(self) -> Iterator[Columns]:
        """Read the batches."""
        return self.read()


class WithoutLayer(DefendedBatches):
    """Batches whose update lacks the gradient of one layer."""

    part: ClassVar[str] = "layers"

    def run(self) -> Iterator[Columns]:
        """Read the batches."""
        return self.read()


def clipped_sum(model: nn.Module, private: list[list[int]], clip: float) -> Gradients:
    """Return DP-SGD's sum (abadi2016) of clipped sentence gradients, before its noise, divided by their number."""
    own = [defenses.clip(clip)(observe(model, *batch_of([one])).gradients) for one in private]
    return defenses.average(own)


def _by_prefixes(leak: Leak, private: list[list[int]], words: range) -> Columns:
    """Read the longest prefixes, and compare them with the sentences of the batch."""
    found = read_prefixes(leak, words=words)
    right = sum(sentence in found for sentence in private) / len(private)
    false = _false(found, private)
    return {"right": right, "false": false, "exact": right == 1 and false == 0, "wrongly_sure": False}


def _by_counts(leak: Leak, private: list[list[int]], words: range) -> Columns:
    """Read sentences with their counts, and compare them with the sentences of the batch."""
    read = read_sentences(leak, words=words)
    reading = reading_of(read, private)
    kept = ("right", "exact", "wrongly_sure", "status", "tokens", "rank")
    return {"false": _false(read.all(), private)} | {name: reading[name] for name in kept}


def _false(found: list[list[int]], private: list[list[int]]) -> int:
    return sum(sentence not in private for sentence in found)


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


def table(record: Record) -> pd.DataFrame:
    """Return the sentences that are read behind every protection, over all models and stages of training.

    One line for each protection and attack. Columns: the cosine of the sent gradient with the clean one, the number of
    batches, the share of sentences found, the mean number of false sentences per batch, the number of batches read
    exactly, and the median CPU time (s).
    """
    rows = record.frame()
    protections = {
        "dp": [f"clipped, noise {level:g} (ε {private_level(level)})" for level in rows["level"]],
        "size": [f"batches of {size}" for size in rows["size"]],
        "layers": rows["withheld"].map(WITHHELD).tolist(),
    }
    return summary(
        rows.assign(protection=[protections[part][index] for index, part in enumerate(rows["part"])]),
        {"protection": "protection", "attack": "reader"},
        {
            COLUMNS["utility"].head: among(mean("utility"), part="dp"),
            "batches": count(),
            **cells(COLUMNS, "right", "false", by=mean),
            "batches exact": total("exact"),
            **cells(COLUMNS, "seconds", by=median),
        },
    )


def figure_frontier(record: Record) -> Figure:
    """Draw the share of sentences found against the noise and its ε, a line for each model and stage of training."""
    frame = select(record.rows(BehindDpSgd), reader="prefixes")
    frame = frame.assign(noise=frame["level"], line=frame["kind"].map(SHOWN) + ", " + frame["stage"])
    return draw_noise(frame, "right", legend=4, ylabel="share of sentences correct")


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
