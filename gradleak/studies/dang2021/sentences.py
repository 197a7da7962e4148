"""Whole sentences from one gradient of a language model, in order

Beyond dang2021, which recovers the set of an utterance's words: here the words are recovered in order, in closed form.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import claims, data, defenses, studies
from gradleak.data.text import TITLES
from gradleak.leak import Leak, observe
from gradleak.models.language import batch_of
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.sequences import read_sentences
from gradleak.sequences.recurrent import layers_of
from gradleak.sequences.span import span_of
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import among, cells, count, joined, mean, median, summary, total
from gradleak.show.touch import InteractiveFigure, ReadingReplay, WordStep
from gradleak.studies import Experiment, setting
from gradleak.studies.dang2021.columns import COLUMNS
from gradleak.studies.shared.outcomes import Outcome, collected, share_of, written
from gradleak.studies.shared.read import private_of, reading_of
from gradleak.studies.shared.sentence_clients import (
    SHOWN,
    Cell,
    ClientDefense,
    OnLanguageModel,
    client_defense,
)

PLACE = "Beyond section 2.5"
STAGES = ("untrained", "trained")
RECURRENT = ("lstm/256/1", "gru/256/1", "lstm/256/2")
SIZES = (1, 8, 32)
# The number of batches in an experiment: the most that an interrupted run loses.
CHUNK = 25
# The number of words outside the span, the nearest ones, that the figure shows.
NEAREST = 60
# A word lies in the span if its relative distance is below this: the limit in the page's reading by hand.
FITS = 0.01


class Parameters(studies.Parameters):
    """Parameters of the page: texts, language models, batches and defences."""

    text: str = setting(paper="librispeech")
    cells: list[Cell] = setting(
        paper=[
            *(f"{model}/{stage}/{size}/100" for size in SIZES for model in RECURRENT for stage in STAGES),
            *(f"gru/256/2/{stage}/{size}/25" for size in SIZES for stage in STAGES),
            *(f"{kind}/512/1/untrained/{size}/10" for size in SIZES for kind in ("lstm", "gru")),
            "lstm/512/1/untrained/64/10",
            "lstm/1024/1/untrained/64/4",
            "lstm/512/1/trained/64/10",
            "lstm/1024/1/trained/64/4",
            "gru/512/1/untrained/64/10",
            "gru/1024/1/untrained/64/4",
            *(f"transformer/256/2/untrained/{size}/10" for size in (1, 4, 16)),
            "transformer/256/2/trained/16/5",
            *(f"transformer/768/2/untrained/{size}/4" for size in (32, 64)),
            "transformer/768/2/untrained/128/2",
        ],
        smallest=["lstm/64/1/untrained/2/2"],
        validate_default=True,
    )
    free: int = setting(paper=3, smallest=1, ge=0, le=10_000)
    epochs: int = setting(ge=1, le=1000)
    defended: Cell = setting(
        paper="lstm/256/1/untrained/8/3", smallest="lstm/64/1/untrained/2/2", validate_default=True
    )
    defenses: list[ClientDefense] = setting(
        paper=[
            "none/0",
            "noise/0.001",
            "noise/0.01",
            "noise/0.1",
            "noise/0.3",
            "noise/1",
            "noise/3",
            "half/0",
            "bfloat16/0",
            "quantize/8",
            "grad-drop/0.5",
            "grad-drop/0.9",
            "sign/0",
        ],
        validate_default=True,
    )

    def experiments(self) -> Iterator[Experiment]:
        """Yield the first batches of every kind first, so that an interrupted run has some of each."""
        yield from sorted(self._experiments(), key=lambda one: getattr(one, "first", 0))

    def _experiments(self) -> Iterator[Experiment]:
        for cell in self.cells:
            for first in range(0, cell.batches, CHUNK):
                left = {"batches": min(CHUNK, cell.batches - first), "free": max(0, min(CHUNK, self.free - first))}
                yield ReadBatches.of(self, **dict(cell) | left, first=first)
        for defense in self.defenses:
            yield ReadBehindDefense.of(self, **dict(self.defended), **dict(defense))
        yield OneSentence.of(self, **{name: value for name, value in dict(self.defended).items() if name != "batches"})

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        batches = sum(cell.batches for cell in self.cells)
        return f"{batches:,} batches in {len(self.cells)} settings, {TITLES[self.text]}"


class ReadBatches(OnLanguageModel):
    """Batches numbered from `first`; the first `free` of them are also read with the embedding's nonzero rows."""

    part: ClassVar[str] = "read"
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
                read = _read(leak, self.words() if words == "all" else None, private)
                yield {**learned, **read, "batch": self.first + number, "words": words}


class ReadBehindDefense(OnLanguageModel):
    """Batches behind a defence."""

    part: ClassVar[str] = "defense"
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
            read = _read(Leak(model, sent, clean.head, clean.batch_size), self.words(), private)
            yield {**read, "batch": number, "utility": defenses.utility(clean.gradients, sent)}


class OneSentence(OnLanguageModel):
    """One sentence of a batch for the figure: the distance of every word from the span at every step."""

    part: ClassVar[str] = "figure"

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


def _read(leak: Leak, words: range | None, private: list[list[int]]) -> Columns:
    """Read a batch, and compare it with the private sentences."""
    started = time.process_time()
    reading = reading_of(read_sentences(leak, words=words), private)
    return reading | {"seconds": time.process_time() - started}


def misses(model: nn.Module, leak: Leak, sentence: list[int], start: int) -> list[Tensor]:
    """Return the relative distance of each word (C,) from the span, for every step of a sentence and the one behind.

    The distance of a random vector is near 1.
    """
    recurrent = next(module for module in model.modules() if isinstance(module, nn.LSTM | nn.GRU))
    layer = layers_of("recurrent", recurrent)[0]
    span = span_of(layer.gradient(leak.gradients))
    embedding = next(module for module in model.modules() if isinstance(module, nn.Embedding)).weight.detach().double()
    state, found = layer.start(), []
    for word in [start, *sentence]:
        state = layer.step(embedding[[word]], state)
        tried = layer.inputs(embedding, state[0].expand(len(embedding), -1)) / span.units
        tried = tried / tried.norm(dim=1, keepdim=True)
        found.append((tried - tried @ span.basis @ span.basis.T).norm(dim=1))
    return found


# Whether batches were read, in both tables.
BATCHES = {
    "batches": count(),
    "read exactly": total("exact"),
    **cells(COLUMNS, "unique", "wrongly_sure", by=total),
}


def headline(record: Record) -> Headline:
    """Return the finding: one gradient gives every sentence of a batch, and the certificate is never wrong."""
    known = claims.judgements(record)
    read, wrong = known["sentences-lstm"], known["sentences-promise"]
    return Headline(
        "From one gradient of an LSTM language model the server reads every sentence of a batch of "
        f"{read.claim.measure.where['size']}, word by word and in order, in {read.text} of batches; no "
        "result that the attack certified as unique was wrong.",
        true=bool(read.agrees and wrong.agrees),
        claim="sentences-lstm",
        what="batches of 32 sentences read exactly (untrained LSTM of width 256, LibriSpeech texts)",
        figure=figure_reading,
        of="batches",
    )


def table(record: Record) -> pd.DataFrame:
    """Return how many batches were read exactly, a line for each model, width, stage of training and batch size.

    Columns: the median number of tokens, the number of batches, of exact results, of certified results and of wrong
    ones among these, and the CPU time (s) if all words of the vocabulary are tried. The last two columns are for the
    batches that were also read with the words of the embedding's nonzero rows: exact results, and the CPU time (s).
    """
    rows = record.rows(ReadBatches)
    models = [
        f"{layers} × {SHOWN[kind]}" if layers > 1 else SHOWN[kind]
        for kind, layers in zip(rows["kind"], rows["layers"], strict=True)
    ]
    tried = {**cells(COLUMNS, "tokens", by=median), **BATCHES, **cells(COLUMNS, "seconds", by=median)}
    given = {
        "exact with the words known": joined(" of ", total("exact"), count()),
        **cells(COLUMNS, "seconds", by=median, head="{} with the words known"),
    }
    return summary(
        rows.assign(model=models),
        {"model": "model", "width": "width", "stage": "stage", "sentences": "size"},
        {head: among(measure, words="all") for head, measure in tried.items()}
        | {head: among(measure, words="free") for head, measure in given.items()},
    )


def _defense_name(defense: str, level: float) -> str:
    shown = {
        "none": "none",
        "noise": f"noise, {level:g} × root mean square",
        "half": "float16 numbers",
        "bfloat16": "bfloat16 numbers",
        "quantize": f"{level:.0f} bits",
        "grad-drop": f"smallest {level:.0%} dropped",
        "sign": "sign",
    }
    return shown[defense]


def defense_table(record: Record) -> pd.DataFrame:
    """Return the sentences that are read behind defences, and the cosine with the clean gradient, a line a defence."""
    rows = record.rows(ReadBehindDefense)
    names = [_defense_name(*one) for one in zip(rows["defense"], rows["level"], strict=True)]
    measures = {"cosine": mean("utility", ".4f"), **BATCHES, **cells(COLUMNS, "right", by=mean)}
    return summary(rows.assign(named=names), {"defence": "named"}, measures)


def _steps(record: Record) -> pd.DataFrame:
    """Return the steps of the one sentence, none if no sentence was read."""
    frame = record.rows(OneSentence)
    return frame[frame["nearest"].notna()] if "nearest" in frame else frame[:0]


def figure_reading(record: Record) -> Figure:
    """Draw the relative distance of words from the span at each step of a sentence; that of the right word is tiny."""
    frame = _steps(record)
    if frame.empty:
        return figures.nothing("no sentence was read, or the model is no recurrent one")
    figure, axes = figures.panels(1, 1, height=3.6)
    axis = axes[0][0]
    for step, word, miss, nearest in zip(frame["step"], frame["word"], frame["miss"], frame["nearest"], strict=True):
        others = [one for one in nearest if one != miss]
        axis.scatter([step] * len(others), others, s=9, color="0.6", linewidths=0, zorder=2)
        if word:
            axis.scatter([step], [miss], s=42, color=figures.COLOURS[1], zorder=3)
            # A piece that does not begin a word gets a hyphen. Every second label is lower, so that long words fit.
            shown, lower = word.removeprefix("▁") if word.startswith("▁") else f"-{word}", -17 - 14 * (step % 2)
            style = {"ha": "center", "fontsize": 10, "fontweight": "bold"}
            axis.annotate(shown, (step, miss), (0, lower), textcoords="offset points", **style)
    low = float(frame["miss"].min())
    axis.set(yscale="log", ylim=(low / 80, 3), xlim=(-0.6, len(frame) - 0.4))
    axis.set(xlabel="step", ylabel="share of the vector outside the span")
    axis.set_xticks(range(len(frame)), [str(step + 1) for step in range(len(frame))])
    return figure


def replay(record: Record) -> InteractiveFigure | None:
    """Return the reading of `figure_reading` as a replay, or None if no sentence was read."""
    frame = _steps(record)
    if frame.empty:
        return None
    columns = (frame[name] for name in ("word", "miss", "nearest", "nearest_words"))
    steps = [_word_step(*values) for values in zip(*columns, strict=True)]
    return InteractiveFigure(
        ReadingReplay(steps, fits=FITS, sentence="".join(step.piece for step in steps).replace("▁", " ").strip()),
        title="A sentence is read from a gradient, word by word",
        says="At each step every word of the vocabulary is tried after the words already read. A dot is a word; its "
        "height is its distance from the span of the gradient, relative to its size. Grey words do not fit. The red "
        "word lies in the span, and is read. Blue words lie in the span as well: another sentence of the batch "
        "continues with them, or they are removed later by counting.",
    )


def _word_step(word: str, miss: float, nearest: list[float], names: list[str]) -> WordStep:
    """Return one step, with distances rounded to three digits, which is more than a reader can see."""
    distances = [float(f"{distance:.3g}") for distance in nearest]
    return WordStep(
        piece=word,
        miss=float(f"{miss:.3g}") if word else None,
        others=[shown for shown, distance in zip(distances, nearest, strict=True) if distance != miss],
        names=list(zip(names, distances, strict=False)),
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    read = line(table(record), "LSTM", "256", "untrained", "32")
    return Leaks(
        "sentences of a batch",
        f"batches of {read['sentences']} sentences; untrained {read['model']} of width {read['width']}",
        f"{read['read exactly']} of {read['batches']} batches read exactly",
        f"{read['CPU time (s)']} s",
        kind="text",
        attack="words in the span",
        network=read["model"],
        batch=int(read["sentences"]),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.rows(ReadBatches)
    rows = rows[rows["words"] == "all"]
    whole = share_of("exact", "batches read completely", "batches")
    found = collected(
        record, rows, "text", whole, attack="words in the span", network=rows["kind"], training=rows["stage"],
        data=rows["text"], batch=rows["size"],
        detail=[f"width {row['width']}, layers: {row['layers']}" for _, row in rows.iterrows()],
    )  # fmt: skip
    rows = record.rows(ReadBehindDefense)
    right = share_of("right", "sentences read exactly", "batches")
    return found + collected(
        record, rows, "text", right, cosine=rows["utility"], attack="words in the span", network=rows["kind"],
        training=rows["stage"], data=rows["text"], batch=rows["size"],
        defense=written(rows["defense"], rows["level"], {"noise": "noise-share"}),
    )  # fmt: skip
