"""Sentences from one gradient of a language model, and what hides them

Beyond dang2021, which recovers the set of an utterance's words: here the words are recovered in order, in closed form,
also behind clipping and noise with a stated privacy loss, from larger batches, and without the gradient of some layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import claims, data, defenses, studies
from gradleak.data.text import TITLES
from gradleak.leak import Leak, observe
from gradleak.models.language import batch_of
from gradleak.sequences import read_prefixes, read_sentences
from gradleak.sequences.recurrent import layers_of
from gradleak.sequences.span import span_of
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn, lines, places
from gradleak.show.summary import Leaks, Summary
from gradleak.show.touch import InteractiveFigure
from gradleak.studies import Columns, Experiment, Record, setting
from gradleak.studies.dang2021.experiments import two_digits
from gradleak.studies.shared.attempts import timed, unless_refused
from gradleak.studies.shared.outcomes import Outcome, collected, share_of
from gradleak.studies.shared.read import private_of, reading_of
from gradleak.studies.shared.sentence_clients import SHOWN, Cell, ClientDefense, OnLanguageModel, client_defense
from gradleak.studies.shared.steps_read import draw_steps

PLACE = "Beyond section 2.5"
STAGES = ("untrained", "trained")
RECURRENT = (("lstm", 256, 1), ("gru", 256, 1), ("lstm", 256, 2))
SIZES = (1, 8, 32)
# The number of batches in an experiment: the most that an interrupted run loses.
CHUNK = 25
# The number of words outside the span, the nearest ones, that the figure shows.
NEAREST = 60
# A word lies in the span if its relative distance is below this: the limit in the page's reading by hand.
FITS = 0.01
PREFIXES, COUNTS = "prefixes", "counts"
# What a row states if an attack needs a gradient that is not sent.
NOTHING: Columns = {"right": 0.0, "false": 0, "exact": False, "wrongly_sure": False}
NonNegative = Annotated[float, Field(ge=0)]


class Parameters(studies.Parameters):
    """Parameters of the page: texts, language models, batches, defences, noise, and layers that are not sent."""

    text: str = setting(paper="librispeech")
    cells: list[Cell] = setting(
        paper=Cell.listed(
            *((*model, stage, size, 100) for size in SIZES for model in RECURRENT for stage in STAGES),
            *(("gru", 256, 2, stage, size, 25) for size in SIZES for stage in STAGES),
            *((kind, 512, 1, "untrained", size, 10) for size in SIZES for kind in ("lstm", "gru")),
            ("lstm", 512, 1, "untrained", 64, 10),
            ("lstm", 1024, 1, "untrained", 64, 4),
            ("lstm", 512, 1, "trained", 64, 10),
            ("lstm", 1024, 1, "trained", 64, 4),
            ("gru", 512, 1, "untrained", 64, 10),
            ("gru", 1024, 1, "untrained", 64, 4),
            *(("transformer", 256, 2, "untrained", size, 10) for size in (1, 4, 16)),
            ("transformer", 256, 2, "trained", 16, 5),
            *(("transformer", 768, 2, "untrained", size, 4) for size in (32, 64)),
            ("transformer", 768, 2, "untrained", 128, 2),
        ),
        smallest=Cell.listed(("lstm", 64, 1, "untrained", 2, 2)),
    )
    free: int = setting(paper=3, smallest=1, ge=0, le=10_000)
    epochs: int = setting(ge=1, le=1000)
    defended: Cell = setting(
        paper=Cell.listed(("lstm", 256, 1, "untrained", 8, 3))[0],
        smallest=Cell.listed(("lstm", 64, 1, "untrained", 2, 2))[0],
    )
    defenses: list[ClientDefense] = setting(
        paper=[
            "none/0",
            *(f"noise/{level}" for level in ("0.001", "0.01", "0.1", "0.3", "1", "3")),
            *("half/0", "bfloat16/0", "quantize/8", "grad-drop/0.5", "grad-drop/0.9", "sign/0"),
        ]
    )
    dp_cells: list[Cell] = setting(
        paper=Cell.listed(*((*model, stage, 8, 10) for model in RECURRENT[:2] for stage in STAGES)),
        smallest=Cell.listed(("lstm", 64, 1, "untrained", 2, 1)),
    )
    clip: float = setting(gt=0)
    noise: list[NonNegative] = setting(paper=[0, 1e-7, 1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 0.01, 1], smallest=[0, 1])
    sizes: list[Cell] = setting(
        paper=Cell.listed(*(("lstm", 256, 1, "untrained", size, 10) for size in (16, 32, 40, 48, 64))), smallest=[]
    )
    withheld: list[Literal["none", "embedding", "head", "recurrent"]] = setting(
        paper=["none", "embedding", "head", "recurrent"], smallest=["head"]
    )

    def experiments(self) -> Iterator[Experiment]:
        """Yield the batches of each model, those behind defences, the figure's sentence, and those with noise, of other
        sizes, and without a layer.
        """
        for cell in self.cells:
            for first in range(0, cell.batches, CHUNK):
                left = {"batches": min(CHUNK, cell.batches - first), "free": max(0, min(CHUNK, self.free - first))}
                yield ReadBatches.of(self, **dict(cell) | left, first=first)
        for defense in self.defenses:
            yield ReadBehindDefense.of(self, **dict(self.defended), **dict(defense))
        yield OneSentence.of(self, **{name: value for name, value in dict(self.defended).items() if name != "batches"})
        for cell in self.dp_cells:
            yield BehindDpSgd.of(self, **dict(cell), withheld="none")
        for cell in self.sizes:
            yield OfSizes.of(self, **dict(cell), clip=0.0, noise=[0.0], withheld="none")
        for name in self.withheld:
            yield WithoutLayer.of(self, **dict(self.dp_cells[0]), clip=0.0, noise=[0.0], withheld=name)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        batches = sum(cell.batches for cell in self.cells)
        return (
            f"{batches:,} batches in {len(self.cells)} settings, {len(self.noise)} levels of noise, {TITLES[self.text]}"
        )


class ReadBatches(OnLanguageModel, part="read"):
    """Batches numbered from `first`; the first `free` of them are also read with the embedding's nonzero rows."""

    first: int
    batches: int
    free: int

    def run(self) -> Iterator[Columns]:
        """Read every batch."""
        model, learned = self.model()
        model.to(self.device)
        for number in range(self.batches):
            private = private_of(self.text, self.size, self.first + number, self.seed)
            leak = observe(model, *batch_of(private, device=self.device))
            for words in ("all", "free") if number < self.free else ("all",):
                found, seconds = timed(read_sentences, leak, words=self.words() if words == "all" else None)
                row = {"batch": self.first + number, "words": words, "seconds": seconds}
                yield learned | reading_of(found, private) | row


class ReadBehindDefense(OnLanguageModel, part="defense"):
    """Batches behind a defence."""

    batches: int
    defense: str
    level: float

    def run(self) -> Iterator[Columns]:
        """Defend and read every batch."""
        model, _ = self.model()
        generator = torch.Generator().manual_seed(self.seed)
        for number in range(self.batches):
            private = private_of(self.text, self.size, number, self.seed)
            clean = observe(model, *batch_of(private))
            sent = client_defense(self.defense, self.level, generator)(clean.gradients)
            leak = Leak(model, sent, clean.head, clean.batch_size)
            found, seconds = timed(read_sentences, leak, words=self.words())
            row = {"batch": number, "utility": defenses.utility(clean.gradients, sent), "seconds": seconds}
            yield reading_of(found, private) | row


class DefendedBatches(OnLanguageModel):
    """Batches with one layer withheld, or with clipped sentences and added noise."""

    batches: int
    clip: float
    noise: list[float]
    withheld: str
    stays_on_cpu: ClassVar[str] = "sentences are read one at a time, in steps that are too small for a GPU"

    def run(self) -> Iterator[Columns]:
        """Read every batch at every level of noise; with a clipping norm, each sentence's gradient is clipped first."""
        model, _ = self.model()
        for number in range(self.batches):
            private = private_of(self.text, self.size, number, self.seed)
            clean = observe(model, *batch_of(private))
            summed = clean.gradients
            if self.clip:  # as DP-SGD does (abadi2016)
                alone = [observe(model, *batch_of([one])).gradients for one in private]
                summed = defenses.average([defenses.clip(self.clip)(one) for one in alone])
            for level in self.noise:
                generator = torch.Generator().manual_seed(1_000_003 * self.seed + number)
                noisy = defenses.gaussian(level * self.clip / self.size, generator)(summed) if level else summed
                sent = {name: value for name, value in noisy.items() if not name.startswith(f"{self.withheld}.")}
                leak = Leak(model, sent, clean.head, self.size)
                utility = defenses.utility(clean.gradients, noisy)
                # With clipped sentences the counts are no integers, so counting is tried only without noise.
                for reader in (PREFIXES,) if level else (PREFIXES, COUNTS):
                    found, seconds = timed(unless_refused, partial(self.read, reader, leak, private), NOTHING)
                    about: Columns = {"batch": number, "multiplier": level, "utility": utility, "reader": reader}
                    yield found | about | {"seconds": seconds}

    def read(self, reader: str, leak: Leak, private: list[list[int]]) -> Columns:
        """Read the longest prefixes, or sentences with their counts, and compare them with the sentences of a batch."""
        if reader == PREFIXES:
            found = read_prefixes(leak, words=self.words())
            right = sum(sentence in found for sentence in private) / len(private)
            row: Columns = {"right": right, "exact": right == 1 and all(one in private for one in found)}
            row["wrongly_sure"] = False
        else:
            counted = read_sentences(leak, words=self.words())
            found, reading = counted.all(), reading_of(counted, private)
            row = {name: reading[name] for name in ("right", "exact", "wrongly_sure", "status", "tokens", "rank")}
        return row | {"false": sum(sentence not in private for sentence in found)}


class BehindDpSgd(DefendedBatches, part="dp"):
    """Batches with DP-SGD as a defence."""


class OfSizes(DefendedBatches, part="size"):
    """Batches of one size, without a defence."""


class WithoutLayer(DefendedBatches, part="layers"):
    """Batches whose update lacks the gradient of one layer."""


class OneSentence(OnLanguageModel, part="figure"):
    """One sentence of a batch for the figure: the distance of every word from the span at every step."""

    def run(self) -> Iterator[Columns]:
        """Read the batch, and choose the sentence whose length is nearest to eight words, which fits a figure."""
        model, _ = self.model()
        leak = observe(model, *batch_of(private_of(self.text, self.size, 0, self.seed)))
        read = read_sentences(leak)
        if not read.tokens or self.kind == "transformer":
            yield {"step": 0}
            return
        pieces = data.vocabulary(self.text)
        sentence = min(read.tokens, key=lambda own: (abs(len(own) - 8), own))
        for step, missed in enumerate(misses(model, leak, sentence, pieces.start)):
            nearest = missed.argsort()[:NEAREST].tolist()
            word = sentence[step] if step < len(sentence) else None
            yield {
                "step": step,
                "word": "" if word is None else pieces.pieces[word],
                "miss": None if word is None else float(missed[word]),
                "nearest": [float(missed[one]) for one in nearest],
                "nearest_words": [pieces.pieces[one] for one in nearest[:4]],
                "middle": float(missed.median()),
            }


def misses(model: nn.Module, leak: Leak, sentence: list[int], start: int) -> list[Tensor]:
    """Return the relative distance of each word (C,) from the span, for every step of a sentence and the one behind.

    The distance of a random vector is near 1.
    """
    recurrent = next(module for module in model.modules() if isinstance(module, nn.LSTM | nn.GRU))
    layer = layers_of("recurrent", recurrent)[0]
    span = span_of(layer.gradient(leak))
    embedding = next(module for module in model.modules() if isinstance(module, nn.Embedding)).weight.detach().double()
    state, found = layer.start(), []
    for word in [start, *sentence]:
        state = layer.step(embedding[[word]], state)
        tried = layer.inputs(embedding, state[0].expand(len(embedding), -1)) / span.units
        tried = tried / tried.norm(dim=1, keepdim=True)
        found.append((tried - tried @ span.basis @ span.basis.T).norm(dim=1))
    return found


def summary(record: Record) -> Summary:
    """Return the finding: one gradient gives every sentence, and noise hides them at an ε that is no guarantee."""
    known = claims.judgements(record)
    read, noisy = known["sentences-lstm"], known["defended-noise-stops"]
    size: int = read.claim.measure.where["size"]
    multiplier = noisy.claim.measure.where["multiplier"]
    epsilon = float(f"{defenses.release_epsilon(multiplier):.1g}")
    return Summary(
        f"From one gradient of an LSTM a server reads every sentence in {read.text} of batches of {size}; "
        f"clipping and noise of {multiplier:g} times the clipping norm leave "
        f"{100 * (noisy.value or 0):.0f} % readable (mean of LSTMs, GRUs), at a privacy loss ε of {epsilon:,.0f}, "
        "which guarantees nothing.",
        true=bool(read.agrees and noisy.agrees) and epsilon > 1000,
        claim="sentences-lstm",
        what="batches of 32 sentences read exactly (untrained LSTM of width 256, LibriSpeech texts)",
        figure=figure_reading,
        of="batches",
        leaks=Leaks(
            "sentences of a batch",
            f"batches of {size} sentences; untrained LSTM of width 256",
            f"{read.cases} batches read exactly",
            f"{two_digits(_largest(record)['seconds'].median())} s",
            kind="text",
            attack="words in the span",
            network="LSTM",
            batch=size,
        ),
        outcomes=_outcomes(record),
    )


def _outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = select(record.rows(ReadBatches), words="all")
    found = collected(
        record, rows, "text", share_of("exact", "batches read completely", "batches"), attack="words in the span",
        network=rows["kind"], training=rows["stage"], data=rows["text"], batch=rows["size"],
        detail="width " + rows["width"].astype(str) + ", layers: " + rows["layers"].astype(str),
    )  # fmt: skip
    names: dict[type[OnLanguageModel], Callable[[Any], str]] = {
        BehindDpSgd: lambda row: f"release/{row.clip:g}/{row.multiplier:g}",
        OfSizes: lambda row: "none",
        WithoutLayer: lambda row: f"withheld/{row.withheld}",
        ReadBehindDefense: lambda row: f"{row.defense}/{row.level:g}".replace("noise/", "noise-share/"),
    }
    parts = [(record.rows(kind), name) for kind, name in names.items()]
    rows = pd.concat(own.assign(behind=[name(row) for row in own.itertuples()]) for own, name in parts)
    # Batches of which no layer is withheld are the control, and the same setting as batches of that size.
    rows = rows[rows["behind"] != "withheld/none"]
    return found + collected(
        record, rows, "text", share_of("right", "sentences read exactly", "batches"), cosine=rows["utility"],
        attack="words in the span, " + rows["reader"].fillna(COUNTS), network=rows["kind"], training=rows["stage"],
        data=rows["text"], batch=rows["size"], defense=rows["behind"],
    )  # fmt: skip


def _largest(record: Record) -> pd.DataFrame:
    """Return the rows of the largest batches that were read from the first model of a run."""
    rows = select(record.rows(ReadBatches), words="all")
    first = rows.iloc[0]
    rows = select(rows, **{name: first[name] for name in ("kind", "width", "layers", "stage")})
    return select(rows, size=rows["size"].max())


def readings(record: Record) -> str:
    """Return in a sentence how many batches were read exactly, how many certified, and the CPU time of a batch."""
    rows, own = select(record.rows(ReadBatches), words="all"), _largest(record)
    return (
        f"{rows['exact'].sum():,} of {len(rows):,} batches are read exactly, and {rows['unique'].sum():,} are "
        f"certified, {rows['wrongly_sure'].sum()} of them wrongly. A batch of {own['size'].iloc[0]} sentences takes "
        f"{two_digits(own['seconds'].median())} s of CPU time (median)."
    )


def figure_frontier(record: Record) -> Figure:
    """Draw the share of sentences found against the noise and its ε, a line for each model and stage of training."""
    frame = select(record.rows(BehindDpSgd), reader=PREFIXES)
    return drawn(
        frame.assign(line=frame["kind"].map(SHOWN) + ", " + frame["stage"]),
        lines("multiplier", "right", by="line", aside=0.05),
        places("multiplier", lambda level: f"{level:g}\nε {defenses.release_epsilon(level):.2g}".replace("e+", "e")),
        height=3.4,
        legend=4,
        xlabel="noise, as a multiple of the clipping norm; below it the ε of one release",
        ylabel="share of sentences correct",
        ylim=(-0.03, 1.05),
    )


def _steps(record: Record) -> pd.DataFrame:
    """Return the steps of the one sentence with the distances of other words; no rows if no sentence was read."""
    frame = record.rows(OneSentence)
    frame = frame[frame["nearest"].notna()] if "nearest" in frame else frame[:0]
    others = [[one for one in row["nearest"] if one != row["miss"]] for row in frame.to_dict("records")]
    return frame.assign(others=pd.Series(others, index=frame.index, dtype=object))


def figure_reading(record: Record) -> Figure:
    """Draw the relative distance of words from the span at each step of a sentence; that of the right word is tiny."""
    frame = _steps(record)
    # A piece that does not begin a word gets a hyphen.
    pieces = [word.removeprefix("▁") if word[:1] in ("", "▁") else f"-{word}" for word in frame["word"]]
    return draw_steps(frame, "others", [piece or "end" for piece in pieces])


def replay(record: Record) -> InteractiveFigure | None:
    """Return the reading of `figure_reading` as a replay, or None if no sentence was read."""
    frame = _steps(record)
    if frame.empty:
        return None
    steps = [
        {
            "piece": row["word"],
            "miss": row["miss"] if row["word"] else None,
            "others": row["others"],
            "names": list(zip(row["nearest_words"], row["nearest"], strict=False)),
        }
        for row in frame.to_dict("records")
    ]
    return InteractiveFigure(
        "reading-replay",
        {"steps": steps, "fits": FITS, "sentence": "".join(frame["word"]).replace("▁", " ").strip()},
        title="A sentence is read from a gradient, word by word",
        says="At each step every word of the vocabulary is tried after the words already read. A dot is a word; its "
        "height is its distance from the span of the gradient, relative to its size. Grey words do not fit. The red "
        "word lies in the span, and is read. Blue words lie in the span as well: another sentence of the batch "
        "continues with them, or they are removed later by counting.",
    )
