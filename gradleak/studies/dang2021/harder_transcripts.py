"""Transcripts where it is harder: from the last layer alone, two that begin alike, several steps, defences

Beyond dang2021, section 4: what the closed form of a single utterance does not ask for.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field

from gradleak import defenses, studies
from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.defenses import utility
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.leak import Defense, Gradients, Leak
from gradleak.models.recogniser import END, SIZES, START, Recogniser
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences import Transcripts, observe_speech, read_defended, read_output, read_sharing, read_transcripts
from gradleak.sequences.observed import FIRST
from gradleak.show import figures
from gradleak.studies.dang2021.defended_sentences import noise_axis, private_level
from gradleak.studies.dang2021.matched_transcripts import interval, share
from gradleak.studies.dang2021.sentences import Behind, made
from gradleak.studies.dang2021.words import RATE, recogniser_of, spoken, stage_of, tokens_of

PLACE = "Beyond section 4"
SMALLEST: dict[str, Any] = {
    "alone": ["small/0/4/1"],
    "alike": ["2/1"],
    "local": ["2/1"],
    "defended": 1,
    "defenses": ["noise/0.1"],
    "releases": ["0.5/0.001"],
    "stages": [0],
    "withheld": ["head"],
}
SIZE = "small"
# What reads the states of the decoder's only layer: steps that are none of its own are told by it.
NEXT = "head.weight"
SHOWN = {
    "none": "none",
    "noise": "noise, {:g} of a tensor's size",
    "half": "float16 numbers",
    "bfloat16": "bfloat16 numbers",
    "quantize": "{:.0f} bits",
    "grad-drop": "smallest {:.0%} dropped",
    "sign": "sign",
}


# All that the last layer's own reader looks at.
LAST = ("head.weight", "head.bias")
# What a client may keep to itself, by what its parameters' names begin with, and how a table says so.
LAYERS = {
    "none": (),
    "embedding": ("embedding.",),
    "head": ("head.",),
    "decoder": ("cells.",),
    "decoder and head": ("cells.", "head."),
}
WITHHELD = {
    "none": "all layers",
    "embedding": "all but the embedding",
    "head": "all but the last layer",
    "decoder": "all but the decoder's own layers",
    "decoder and head": "neither these nor the last layer",
}


class Alone(Form):
    """A recogniser, how long it has learned, how many tokens an utterance has, and how many utterances."""

    size: str
    trained: Whole
    tokens: Whole
    utterances: Whole

    def check(self) -> None:
        """Say so where there is no such recogniser, or nothing is said."""
        if self.size not in SIZES or self.tokens < 2 or self.utterances < 1:
            raise InputError(
                f"a recogniser is one of {', '.join(SIZES)}, and there are 2 tokens and 1 utterance at least"
            )


class Alike(Form):
    """Utterances a batch, of which two and no more begin with one word, and how many batches."""

    size: Whole
    batches: Whole

    def check(self) -> None:
        """Say so where two cannot begin alike."""
        if self.size < 2 or self.batches < 1:
            raise InputError("a batch has 2 utterances at least, and there is 1 batch at least")


class Local(Form):
    """Local steps on one utterance, and how many utterances."""

    steps: Whole
    utterances: Whole

    def check(self) -> None:
        """Say so where nothing is left."""
        if min(self.steps, self.utterances) < 1:
            raise InputError("local steps and utterances are 1 at least")


class Release(Form):
    """The norm that an utterance's gradient is clipped to, and the deviation of its noise in parts of that norm."""

    clip: float = Field(gt=0)
    noise: float = Field(ge=0)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    source: Literal["sentences", "librispeech"] = Field("sentences", description="texts that are said")
    alone: list[Alone] = Field(
        ["small/0/40/1", "small-2/0/12/1"],
        validate_default=True,
        description="recogniser/steps of training/tokens/utterances, read from the last layer alone",
    )
    alike: list[Alike] = Field(
        ["2/1"], validate_default=True, description="utterances a batch/batches, two begin alike"
    )
    local: list[Local] = Field(["2/2"], validate_default=True, description="local steps on one utterance/utterances")
    stages: list[int] = Field([0], min_length=1, description="steps of training, behind defences")
    defended: int = Field(1, ge=1, description="utterances a defence")
    defenses: list[Behind] = Field(["noise/0.1", "sign/0"], validate_default=True, description="defence/level")
    releases: list[Release] = Field(
        ["0.5/1e-5", "0.5/1e-3"],
        validate_default=True,
        description="clipping norm/deviation of noise, in parts of that norm",
    )
    withheld: list[Literal["none", "embedding", "head", "decoder", "decoder and head"]] = Field(
        ["head", "decoder"], description="layers that are not sent"
    )

    paper: ClassVar[dict[str, Any]] = {
        "source": "librispeech",
        "alone": [
            *(f"{size}/{tokens}/8" for size in ("small/0", "small/400", "small-2/0") for tokens in (8, 20, 28, 40)),
        ],
        "alike": ["2/12", "4/6"],
        "local": ["4/16", "8/16"],
        "stages": [0, 400],
        "defended": 16,
        "defenses": [
            *("noise/0.1", "half/16", "bfloat16/0", "quantize/8", "grad-drop/0.5", "grad-drop/0.9", "sign/0"),
            "noise/1",
        ],
        "releases": [f"0.5/{noise}" for noise in ("1e-5", "1e-4", "1e-3", "3e-3", "1e-2", "3e-2", "1e-1", "1")],
        "withheld": list(WITHHELD),
    }


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads: texts are none."""
    del parameters
    return []


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return f"{parameters.defended} utterances a defence, {text.TITLES[parameters.source]}, made-up speech"


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: batches of one form, utterances of several steps, or behind one defence."""
    common = {"source": parameters.source, "seed": parameters.seed, "device": "cpu"}
    alone = [
        {"part": "last layer", "form": str(form), "utterances": form.utterances, "trained": form.trained}
        for form in parameters.alone
    ]
    alike = [
        {"part": "alike", "form": str(form), "utterances": form.batches, "trained": 0} for form in parameters.alike
    ]
    local = [
        {"part": "local", "form": str(form), "utterances": form.utterances, "trained": 0} for form in parameters.local
    ]
    behind = [
        {"part": "defended", "form": str(form), "utterances": parameters.defended, "trained": trained}
        for trained in parameters.stages
        for form in parameters.defenses
    ]
    released = [
        {"part": "released", "form": str(form), "utterances": parameters.defended, "trained": trained}
        for trained in parameters.stages
        for form in parameters.releases
    ]
    shared = [
        {"part": "withheld", "form": layers, "utterances": parameters.defended, "trained": trained}
        for trained in parameters.stages
        for layers in parameters.withheld
    ]
    return [inputs | common for inputs in alone + alike + local + behind + released + shared]


def trial(
    part: str, source: str, form: str, utterances: int, trained: int, seed: int, device: str
) -> list[dict[str, Any]]:
    """Read the transcripts of some batches or utterances; a row a reader and batch."""
    del device
    if part == "last layer":
        one = Alone.of(form)
        model = recogniser_of(one.size, source, trained, seed)
        return [_alone(model, source, said) for said in running(source, one.tokens, utterances)]
    model = recogniser_of(SIZE, source, trained, seed)
    if part == "alike":
        groups = beginning_alike(source, Alike.of(form).size, utterances)
        return [row for said in groups for row in _alike(model, source, said)]
    chosen = spoken(source, utterances)
    if part == "local":
        return [row for said in chosen for row in _local(model, source, said, Local.of(form).steps)]
    if part == "withheld":
        return [_withheld(model, source, said, form) for said in chosen]
    generator = torch.Generator().manual_seed(seed)
    if part == "released":
        release = Release.of(form)
        return [row for said in chosen for row in _released(model, source, said, release, generator)]
    behind = Behind.of(form)
    defense = made(behind.defense, behind.level, generator)
    return [row for said in chosen for row in _defended(model, source, said, defense)]


def running(source: str, length: int, count: int) -> list[list[int]]:
    """Return utterances of so many tokens, the end mark among them: texts one after the other, from places far apart.

    Where one text ends and the next begins nothing is marked.
    """
    every = tokens_of(source, text.texts(source))
    if count > len(every):
        raise InputError(f"there are {len(every)} texts to begin with; {count} were asked for")
    end = text.vocabulary(source).end
    found = []
    for number in range(count):
        first = number * len(every) // count
        words = itertools.chain.from_iterable(one[:-1] for one in itertools.islice(itertools.cycle(every), first, None))
        found.append([*itertools.islice(words, length - 1), end])
    return found


def _alone(model: Recogniser, source: str, tokens: Sequence[int]) -> dict[str, Any]:
    """Read an utterance from the last layer's gradient and nothing else."""
    leak = observe_speech(model, [pseudo_speech(text.vocabulary(source).decode(tokens))], [tokens], only=LAST)
    started = time.process_time()
    found = read_output(leak)
    seconds = time.process_time() - started
    return _row([found.tokens], [found.status], [tokens], seconds) | {
        "reader": "last layer",
        "distinct": len(set(tokens)),
        "steps_found": found.steps,
        "worst": found.misses[0],
        "other": min(found.misses[1], 1.0),
    }


def beginning_alike(source: str, size: int, count: int) -> list[list[str]]:
    """Return batches of texts: two that begin with one word, the others each with a word of their own."""
    every = text.texts(source, "test")
    by_word: dict[int, list[str]] = {}
    for said, tokens in zip(every, tokens_of(source, every), strict=True):
        by_word.setdefault(tokens[0], []).append(said)
    pairs = [texts[:2] for texts in by_word.values() if len(texts) > 1]
    if count > len(pairs):
        raise InputError(f"{len(pairs)} pairs of texts begin alike; {count} were asked for")
    chosen = [pairs[number * len(pairs) // count] for number in range(count)]
    firsts = [texts[0] for texts in by_word.values()]
    batches = []
    for number, pair in enumerate(chosen):
        others = [said for said in firsts[number:] + firsts[:number] if said != pair[0]]
        batches.append([*pair, *others[: size - 2]])
    return batches


def _alike(model: Recogniser, source: str, said: Sequence[str]) -> list[dict[str, Any]]:
    """Read a batch in which two begin alike: in closed form, and by the root."""
    tokens = tokens_of(source, said)
    leak = observe_speech(model, [pseudo_speech(one) for one in said], tokens, only=[*FIRST, NEXT])
    truth = [one[:-1] for one in tokens]
    readers = {"closed form": lambda: read_transcripts(leak), "root": lambda: read_sharing(leak)}
    return [{"reader": name} | _judged(reader, truth) for name, reader in readers.items()]


def _local(model: Recogniser, source: str, said: str, steps: int) -> list[dict[str, Any]]:
    """Read what was said from the sum of gradients of several steps on it, each with the weights of the last."""
    (tokens,) = tokens_of(source, [said])
    sounds = [pseudo_speech(said)] * steps
    leak = observe_speech(model, sounds, [tokens] * steps, only=[*FIRST, NEXT], local_steps=steps, rate=RATE)
    readers = {"closed form": lambda: read_transcripts(leak), "nearest words": lambda: read_defended(leak)}
    return [{"reader": name} | _judged(reader, [tokens[:-1]]) for name, reader in readers.items()]


def _defended(model: Recogniser, source: str, said: str, defense: Defense) -> list[dict[str, Any]]:
    """Read an utterance behind a defence."""
    (tokens,) = tokens_of(source, [said])
    clean = observe_speech(model, [pseudo_speech(said)], [tokens], only=FIRST)
    return _behind(clean, defense(clean.gradients), tokens)


def _released(
    model: Recogniser, source: str, said: str, release: Release, generator: torch.Generator
) -> list[dict[str, Any]]:
    """Read an utterance from DP-SGD's release of its whole gradient."""
    (tokens,) = tokens_of(source, [said])
    whole = observe_speech(model, [pseudo_speech(said)], [tokens])
    clean = replace(whole, gradients={name: whole.gradients[name] for name in FIRST})
    norm = math.sqrt(sum(float(value.double().square().sum()) for value in whole.gradients.values()))
    rows = _behind(clean, released(whole.gradients, release, generator), tokens)
    return [row | {"norm": norm} for row in rows]


def released(gradients: Gradients, release: Release, generator: torch.Generator) -> Gradients:
    """Return what DP-SGD (abadi2016) sends of a single utterance's gradients: all clipped; what the readers look at."""
    clipped = defenses.clip(release.clip)(gradients)
    noisy = defenses.gaussian(release.noise * release.clip, generator)
    return noisy({name: clipped[name] for name in FIRST})


def _withheld(model: Recogniser, source: str, said: str, layers: str) -> dict[str, Any]:
    """Read an utterance from what is sent where some layers are not: in order, and its bag of words."""
    (tokens,) = tokens_of(source, [said])
    whole = observe_speech(model, [pseudo_speech(said)], [tokens])
    # `startswith` takes several beginnings at once, and finds none of no beginnings.
    sent = {name: value for name, value in whole.gradients.items() if not name.startswith(LAYERS[layers])}
    leak = replace(whole, gradients=sent)
    started = time.process_time()
    read, status = _read(leak)
    seconds = time.process_time() - started
    return _row([read], [status], [tokens[:-1]], seconds) | {
        "reader": _reader(leak),
        "bag": _told(leak) == set(tokens[:-1]),
    }


def _reader(leak: Leak) -> str:
    """Return what reads the order from the layers that are sent: the decoder's first, else the last, else nothing."""
    if set(FIRST) <= set(leak.gradients):
        return "the decoder's first layer"
    return "the last layer" if set(LAST) <= set(leak.gradients) else "–"


def _read(leak: Leak) -> tuple[list[int], str]:
    """Return the transcript that is read from what is sent, and its status; nothing where no layer tells the order."""
    reader = _reader(leak)
    if reader == "the decoder's first layer":
        found = read_transcripts(leak)
        return found.tokens[0], found.status[0]
    if reader == "the last layer":
        alone = read_output(leak)
        return alone.tokens[:-1], alone.status
    return [], "failed"


def _told(leak: Leak) -> set[int]:
    """Return the words of an utterance in no order: rows of the embedding that have a gradient, else the last layer's.

    The start and end marks are none.
    """
    if "embedding.weight" in leak.gradients:
        rows = leak.gradients["embedding.weight"].any(dim=1).nonzero()
        return {int(row) for row in rows} - {START}
    return rlg(leak.weight_gradient) - {END}


def _behind(clean: Leak, sent: Gradients, tokens: Sequence[int]) -> list[dict[str, Any]]:
    """Read what was sent: in closed form, and by the nearest words, the length told or not."""
    leak = Leak(clean.model, sent, clean.head, clean.batch_size)
    left = utility(clean.gradients, sent)
    readers = {
        "closed form": lambda: read_transcripts(leak),
        "nearest words": lambda: read_defended(leak),
        "length told": lambda: read_defended(leak, steps=len(tokens)),
    }
    return [{"reader": name, "utility": left} | _judged(reader, [tokens[:-1]]) for name, reader in readers.items()]


def _judged(reader: Callable[[], Transcripts], truth: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Run a reader and compare what it gives with what was said."""
    started = time.process_time()
    found = reader()
    seconds = time.process_time() - started
    return _row(found.tokens, found.status, truth, seconds)


def _row(
    read: Sequence[list[int]], said: Sequence[str], truth: Sequence[Sequence[int]], seconds: float
) -> dict[str, Any]:
    """Return how transcripts, and the statuses that a reader says of them, compare with the truth."""
    exact = sorted(read) == sorted(list(one) for one in truth)
    unique = bool(said) and all(status == "unique" for status in said)
    return {
        "exact": exact,
        "unique": unique,
        "wrongly_sure": unique and not exact,
        "failed": "failed" in said or not said,
        "length": sum(map(len, truth)),
        "seconds": seconds,
    }


def _line(group: pd.DataFrame) -> dict[str, Any]:
    return {
        "exact": share(group["exact"]),
        "called unique": f"{group['unique'].sum():.0f}",
        "of these wrong": f"{group['wrongly_sure'].sum():.0f}",
        "CPU-s": f"{group['seconds'].median():.2g}",
    }


def alone_table(record: Record) -> pd.DataFrame:
    """Return utterances read from the last layer alone, a line a recogniser and number of tokens."""
    lines = []
    for (form, trained), group in record.part("last layer").groupby(["form", "trained"], sort=False):
        one = Alone.of(str(form))
        lines.append(
            {"recogniser": one.size, "stage": stage_of(trained), "tokens": str(one.tokens)}
            | _line(group)
            | {"worst": f"{group['worst'].max():.0e}", "nearest other": f"{group['other'].min():.0e}"}
        )
    return pd.DataFrame(lines)


def alike_table(record: Record) -> pd.DataFrame:
    """Return batches in which two utterances begin with one word, a line a size and reader."""
    return pd.DataFrame(
        [
            {"utterances": str(Alike.of(str(form)).size), "reader": reader} | _line(group)
            for (form, reader), group in record.part("alike").groupby(["form", "reader"], sort=False)
        ]
    )


def local_table(record: Record) -> pd.DataFrame:
    """Return single utterances of several local steps, a line a number of steps and reader."""
    return pd.DataFrame(
        [
            {"local steps": str(Local.of(str(form)).steps), "reader": reader} | _line(group)
            for (form, reader), group in record.part("local").groupby(["form", "reader"], sort=False)
        ]
    )


def _named(form: Any) -> str:
    one = Behind.of(str(form))
    return SHOWN[one.defense].format(one.level)


def defense_table(record: Record) -> pd.DataFrame:
    """Return what defences leave of single transcripts, a line a stage and defence."""
    groups = record.part("defended").groupby(["trained", "form"], sort=False)
    return pd.DataFrame(
        [{"stage": stage_of(trained), "defence": _named(form)} | _readers(group) for (trained, form), group in groups]
    )


def release_table(record: Record) -> pd.DataFrame:
    """Return what DP-SGD's releases leave of single transcripts, a line a stage and level of noise."""
    lines = []
    for (trained, form), group in record.part("released").groupby(["trained", "form"], sort=False):
        noise = Release.of(str(form)).noise
        about = {"stage": stage_of(trained), "noise": f"{noise:g}", "ε": private_level(noise)}
        lines.append(about | _readers(group))
    return pd.DataFrame(lines)


def withheld_table(record: Record) -> pd.DataFrame:
    """Return what is read of single transcripts where layers are not sent, a line a stage and what is sent."""
    return pd.DataFrame(
        [
            {"stage": stage_of(trained), "sent": WITHHELD[str(form)], "read from": group["reader"].iloc[0]}
            | _line(group)
            | {"words, in no order": share(group["bag"])}
            for (trained, form), group in record.part("withheld").groupby(["trained", "form"], sort=False)
        ]
    )


def _readers(group: pd.DataFrame) -> dict[str, str]:
    """Return what is left of a gradient, and how many transcripts each reader has exactly."""
    exact = {str(name): f"{own['exact'].sum():.0f} of {len(own)}" for name, own in group.groupby("reader", sort=False)}
    failed = group.loc[group["reader"] == "nearest words", "failed"].sum()
    told = exact.pop("length told")
    cosine = {"cosine": f"{group['utility'].mean():.4f}"}
    return cosine | exact | {"called failed": f"{failed:.0f}", "length told": told}


def figure_defenses(record: Record) -> Figure:
    """Draw the share of transcripts that are exact behind every defence, with its interval; a panel a stage."""
    frame = record.part("defended")
    stages = list(frame.groupby("trained", sort=False))
    forms = list(dict.fromkeys(frame["form"]))
    figure, axes = figures.panels(1, len(stages), height=1.0 + 0.4 * len(forms), sharey=True)
    for axis, (trained, group) in zip(axes[0], stages, strict=True):
        for number, (reader, mark) in enumerate((("nearest words", "o"), ("length told", "s"), ("closed form", "x"))):
            own = group[group["reader"] == reader].groupby("form")["exact"]
            for place, form in enumerate(forms):
                values = own.get_group(form)
                height = place + 0.2 * (number - 1)
                colour = figures.COLOURS[number]
                axis.plot(interval(values), [height] * 2, color=colour, linewidth=1.5)
                label = reader if place == 0 else None
                axis.plot([values.mean()], [height], marker=mark, color=colour, linestyle="", label=label)
        axis.set(title=stage_of(trained), xlabel="transcripts exact", xlim=(-0.04, 1.04))
        axis.grid(visible=False, axis="y")
    axes[0][0].set_yticks(range(len(forms)), [_named(form) for form in forms])
    axes[0][0].invert_yaxis()
    figures.legend_below(figure, 3)
    return figure


def figure_frontier(record: Record) -> Figure:
    """Draw the share of transcripts exact against the noise of a release, its ε below, a line a stage and reader."""
    frame = record.part("released")
    frame = frame.assign(noise=[Release.of(str(form)).noise for form in frame["form"]])
    levels = sorted(frame["noise"].unique())
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    readers = {"nearest words": "nothing told", "length told": "length told"}
    groups = frame[frame["reader"].isin(list(readers))].groupby(["trained", "reader"], sort=False)
    for number, ((trained, reader), group) in enumerate(groups):
        shares = group.groupby("noise")["exact"].mean()
        # A little aside, for curves that lie on one another.
        axis.plot(
            [levels.index(level) + 0.05 * (number - (len(groups) - 1) / 2) for level in shares.index],
            shares.astype(float),
            marker="osDv^x"[number % 6],
            color=figures.COLOURS[number % 6],
            linestyle=figures.DASHES[number % 6],
            label=f"{stage_of(trained)}, {readers[str(reader)]}",
        )
    noise_axis(axis, levels)
    axis.set(ylim=(-0.03, 1.05), ylabel="transcripts exact")
    figures.legend_below(figure, 2)
    return figure
