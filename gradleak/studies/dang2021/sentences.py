"""Sentences from one gradient of a language model, and what hides them

Beyond dang2021, which recovers the set of an utterance's words: here the words are recovered in order, in closed form,
also behind clipping and noise with a stated privacy loss, from larger batches, and without the gradient of some layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import claims, data, defenses, studies
from gradleak.data.text import TITLES
from gradleak.errors import InputError
from gradleak.leak import Gradients, Leak, observe
from gradleak.models.language import batch_of
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.sequences import read_prefixes, read_sentences
from gradleak.sequences.recurrent import layers_of
from gradleak.sequences.span import span_of
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import among, cells, count, joined, mean, median, select, summary, total
from gradleak.show.touch import InteractiveFigure, ReadingReplay, WordStep
from gradleak.studies import Experiment, setting
from gradleak.studies.dang2021.columns import COLUMNS
from gradleak.studies.shared.outcomes import Outcome, collected, share_of
from gradleak.studies.shared.private_noise import draw_noise, private_level
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
# Layers whose gradient may be withheld: parameter names begin with them.
WITHHELD = {
    "none": "all layers are sent",
    "embedding": "all but the embedding",
    "head": "all but the last layer",
    "recurrent": "all but the recurrent layers",
}
PREFIXES, COUNTS = "prefixes", "counts"
# Defences, with their level, as the table shows them.
DEFENSES = {
    "none": "no defence",
    "noise": "noise, {:g} × root mean square",
    "half": "float16 numbers",
    "bfloat16": "bfloat16 numbers",
    "quantize": "{:.0f} bits",
    "grad-drop": "smallest {:.0%} dropped",
    "sign": "sign",
}
NonNegative = Annotated[float, Field(ge=0)]


class Parameters(studies.Parameters):
    """Parameters of the page: texts, language models, batches, defences, noise, and layers that are not sent."""

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
    dp_cells: list[Cell] = setting(
        paper=[f"{model}/1/{stage}/8/10" for model in ("lstm/256", "gru/256") for stage in STAGES],
        smallest=["lstm/64/1/untrained/2/1"],
        validate_default=True,
    )
    clip: float = setting(gt=0)
    noise: list[NonNegative] = setting(paper=[0, 1e-7, 1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 0.01, 1], smallest=[0, 1])
    sizes: list[Cell] = setting(
        paper=[f"lstm/256/1/untrained/{size}/10" for size in (16, 32, 40, 48, 64)], smallest=[], validate_default=True
    )
    withheld: list[Literal["none", "embedding", "head", "recurrent"]] = setting(paper=list(WITHHELD), smallest=["head"])

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
        for cell in self.dp_cells:
            yield BehindDpSgd.of(self, **dict(cell), withheld="none")
        for cell in self.sizes:
            yield OfSizes.of(self, **dict(cell), clip=0.0, noise=[0.0], withheld="none")
        for name in self.withheld:
            yield WithoutLayer.of(self, **dict(self.dp_cells[0]), clip=0.0, noise=[0.0], withheld=name)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        cells = (*self.cells, *self.dp_cells, *self.sizes)
        batches = sum(cell.batches for cell in cells)
        return f"{batches:,} batches in {len(cells)} settings, {len(self.noise)} levels of noise, {TITLES[self.text]}"


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
                    about: Columns = {"batch": number, "multiplier": level, "utility": utility, "reader": reader}
                    yield found | about | {"seconds": seconds}


class BehindDpSgd(DefendedBatches):
    """Batches with DP-SGD as a defence."""

    part: ClassVar[str] = "dp"


class OfSizes(DefendedBatches):
    """Batches of one size, without a defence."""

    part: ClassVar[str] = "size"


class WithoutLayer(DefendedBatches):
    """Batches whose update lacks the gradient of one layer."""

    part: ClassVar[str] = "layers"


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


def headline(record: Record) -> Headline:
    """Return the finding: one gradient gives every sentence, and noise hides them at an ε that is no guarantee."""
    known = claims.judgements(record)
    read, noisy = known["sentences-lstm"], known["defended-noise-stops"]
    multiplier = noisy.claim.measure.where["multiplier"]
    epsilon = float(f"{defenses.release_epsilon(multiplier):.1g}")
    return Headline(
        f"From one gradient of an LSTM a server reads every sentence of a batch of {read.claim.measure.where['size']} "
        f"in {read.text} of batches; clipping and noise of {multiplier:g} times the clipping norm leave "
        f"{100 * (noisy.value or 0):.0f} % of sentences readable, at an ε of {epsilon:,.0f}, which guarantees no "
        "privacy.",
        true=bool(read.agrees and noisy.agrees) and epsilon > 1000,
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
    tried = {
        **cells(COLUMNS, "tokens", by=median),
        "batches": count(),
        "read exactly": total("exact"),
        **cells(COLUMNS, "unique", "wrongly_sure", by=total),
        **cells(COLUMNS, "seconds", by=median),
    }
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


def _protections(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the name of each row's protection."""
    names: dict[str, Callable[[Any], str]] = {
        "dp": lambda row: f"clipped, noise {row.multiplier:g} (ε {private_level(row.multiplier)})",
        "size": lambda row: f"batches of {row.size}",
        "layers": lambda row: WITHHELD[row.withheld],
        "defense": lambda row: DEFENSES[row.defense].format(row.level),
    }
    return pd.Series([names[str(row.part)](row) for row in rows.itertuples()], index=rows.index)


def defended(record: Record) -> pd.DataFrame:
    """Return the rows of batches behind a protection; where no attack is stated, it is that with counts."""
    rows = record.frame()
    rows = rows[rows["part"].isin(["dp", "size", "layers", "defense"])]
    return rows.assign(reader=rows["reader"].fillna(COUNTS))


def protections_table(record: Record) -> pd.DataFrame:
    """Return the sentences that are read behind every protection, over all models and stages of training.

    One line for each protection. Columns: the cosine of the sent gradient with the clean one and the number of batches;
    of the attack by prefixes, the share of sentences found and the mean number of false sentences per batch; of the
    attack with counts, the share of sentences found, and the numbers of batches read exactly and certified.
    """
    rows = defended(record)
    by_prefixes, with_counts = cells(COLUMNS, "right", "false", by=mean), cells(COLUMNS, "right", by=mean)
    with_counts |= {"batches exact": total("exact"), **cells(COLUMNS, "unique", by=total)}
    return summary(
        rows.assign(protection=_protections(rows), unique=rows["status"] == "unique"),
        {"protection": "protection"},
        {
            **cells(COLUMNS, "utility", by=mean),
            "batches": lambda group: f"{len(group) // group['reader'].nunique()}",
            **{f"by prefixes: {head}": among(measure, reader=PREFIXES) for head, measure in by_prefixes.items()},
            **{f"with counts: {head}": among(measure, reader=COUNTS) for head, measure in with_counts.items()},
        },
    )


def figure_frontier(record: Record) -> Figure:
    """Draw the share of sentences found against the noise and its ε, a line for each model and stage of training."""
    frame = select(record.rows(BehindDpSgd), reader=PREFIXES)
    frame = frame.assign(noise=frame["multiplier"], line=frame["kind"].map(SHOWN) + ", " + frame["stage"])
    return draw_noise(frame, "right", legend=4, ylabel="share of sentences correct")


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
    # Batches of which no layer is withheld are the control, and the same setting as batches of that size.
    rows = defended(record)
    rows = rows[(rows["part"] != WithoutLayer.part) | (rows["withheld"] != "none")]
    right = share_of("right", "sentences read exactly", "batches")
    behind: dict[str, Callable[[Any], str]] = {
        "dp": lambda row: f"release/{row.clip:g}/{row.multiplier:g}",
        "size": lambda row: "none",
        "layers": lambda row: f"withheld/{row.withheld}",
        "defense": lambda row: f"{'noise-share' if row.defense == 'noise' else row.defense}/{row.level:g}",
    }
    return found + collected(
        record, rows, "text", right, cosine=rows["utility"], attack="words in the span, " + rows["reader"],
        network=rows["kind"], training=rows["stage"], data=rows["text"], batch=rows["size"],
        defense=[behind[str(row.part)](row) for row in rows.itertuples()],
    )  # fmt: skip
