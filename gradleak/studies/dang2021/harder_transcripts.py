"""Harder transcripts: one layer alone, equal beginnings, several steps, defences

Beyond dang2021, section 4: cases that the closed form of a single utterance does not cover.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from matplotlib.figure import Figure
from pydantic import Field, NonNegativeInt, PositiveInt

from gradleak import claims, defenses, studies
from gradleak.data import text
from gradleak.defenses import utility
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.leak import Gradients, Leak
from gradleak.models.recogniser import END, START
from gradleak.runs.forms import Form
from gradleak.sequences import Transcripts, read_defended, read_output, read_sharing, read_transcripts
from gradleak.sequences.observed import FIRST
from gradleak.show.drawn import drawn, proportions
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Group, Record, setting
from gradleak.studies.dang2021.experiments import certified
from gradleak.studies.shared import outcomes
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.recognisers import LAST, RATE, OnUtterances, Size, Source, stage_of, tokens_of
from gradleak.studies.shared.sentence_clients import ClientDefense, client_defense
from gradleak.wording import counted

PLACE = "Beyond section 4"
# The parameter that takes the states of the decoder's only layer. Words that fit by chance lead to states outside the
# span of its inputs.
NEXT = "head.weight"
# Layers that are not sent. The parameters of the decoder's layers are named "cells".
Withheld = Literal["none", "embedding", "head", "decoder", "decoder and head"]


class Alone(Group):
    """A recogniser, its steps of training, and the length and the number of the utterances."""

    size: Size
    trained: NonNegativeInt
    tokens: int = Field(ge=2)
    utterances: PositiveInt


class Alike(Group):
    """The number of utterances per batch, of which exactly two begin with the same word, and the number of batches."""

    size: int = Field(ge=2)
    batches: PositiveInt


class Local(Group):
    """The number of local steps on one utterance, and the number of utterances."""

    steps: PositiveInt
    utterances: PositiveInt


class Release(Form):
    """The clipping norm of an utterance's gradient, and the noise's standard deviation as a multiple of this norm."""

    clip: float = Field(gt=0)
    noise: float = Field(ge=0)


class Parameters(studies.Parameters):
    """Parameters of the page: utterances read from the last layer, in batches, after steps, and behind defences."""

    source: Source = setting(paper="librispeech")
    alone: list[Alone] = setting(
        paper=Alone.listed(
            *(
                (size, trained, tokens, 8)
                for size, trained in (("small", 0), ("small", 400), ("small-2", 0))
                for tokens in (8, 20, 28, 40)
            ),
        ),
        smallest=Alone.listed(("small", 0, 4, 1)),
    )
    alike: list[Alike] = setting(paper=Alike.listed((2, 12), (4, 6)))
    local: list[Local] = setting(paper=Local.listed((4, 16), (8, 16)), smallest=Local.listed((2, 1)))
    stages: list[int] = setting(paper=[0, 400], min_length=1)
    defended: int = setting(paper=16, ge=1)
    defenses: list[ClientDefense] = setting(
        paper=[
            *("noise/0.1", "half/16", "bfloat16/0", "quantize/8", "grad-drop/0.5", "grad-drop/0.9", "sign/0"),
            "noise/1",
        ],
        smallest=["noise/0.1"],
    )
    releases: list[Release] = setting(
        paper=[f"0.5/{noise}" for noise in ("1e-5", "1e-4", "1e-3", "3e-3", "1e-2", "3e-2", "1e-1", "1")],
        smallest=["0.5/0.001"],
    )
    withheld: list[Withheld] = setting(paper=list(get_args(Withheld)), smallest=["head"])

    def experiments(self) -> Iterator[Experiment]:
        """Yield utterances read from the last layer, batches and local steps, then defences and missing layers."""
        for alone in self.alone:
            yield ReadLastLayer.of(self, form=str(alone), utterances=alone.utterances, trained=alone.trained)
        for alike in self.alike:
            yield ReadAlike.of(self, form=str(alike), utterances=alike.batches, trained=0)
        for local in self.local:
            yield ReadLocalSteps.of(self, form=str(local), utterances=local.utterances, trained=0)
        for kind, forms in ((ReadBehindDefense, self.defenses), (ReadRelease, self.releases)):
            for trained, form in itertools.product(self.stages, forms):
                yield kind.of(self, form=str(form), utterances=self.defended, trained=trained)
        for trained, layers in itertools.product(self.stages, self.withheld):
            yield ReadWithoutLayers.of(self, form=layers, utterances=self.defended, trained=trained)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return f"{counted(self.defended, 'utterance')} per defence, {text.TITLES[self.source]}, artificial speech"


class ReadHarder(OnUtterances):
    """Utterances in one of the page's cases; `form` names the case, such as a defence."""

    form: str

    @property
    def number(self) -> int:
        """The first number of the form: the utterances per batch, or the local steps."""
        return int(self.form.partition("/")[0])


class ReadLastLayer(ReadHarder, part="last layer"):
    """Utterances that are read from the gradient of the last layer only."""

    def run(self) -> Iterator[Columns]:
        """Read each utterance."""
        size, _, length, _ = self.form.split("/")
        for tokens in running(self.source, int(length), self.utterances):
            found, seconds = timed(read_output, self.leak_of([tokens], size, only=LAST))
            ((worst, other),) = found.misses
            yield compared("last layer", found.tokens, found.status, [tokens], seconds) | {
                "distinct": len(set(tokens)),
                "steps_found": found.inputs,
                "worst": worst,
                "other": min(other, 1.0),
            }


class ReadAlike(ReadHarder, part="alike"):
    """Batches in which two utterances begin with the same word, read in closed form and by root finding."""

    def run(self) -> Iterator[Columns]:
        """Read each batch."""
        for tokens in beginning_alike(self.source, self.number, self.utterances):
            leak = self.leak_of(tokens, only=[*FIRST, NEXT])
            yield from read_by({"closed form": read_transcripts, "root": read_sharing}, leak, tokens)


class ReadLocalSteps(ReadHarder, part="local"):
    """Utterances that are read from the sum of the gradients of several steps, each with updated weights."""

    def run(self) -> Iterator[Columns]:
        """Read each utterance."""
        for tokens in self.tokens():
            leak = self.leak_of([tokens] * self.number, only=[*FIRST, NEXT], local_steps=self.number, rate=RATE)
            yield from read_by({"closed form": read_transcripts, "nearest words": read_defended}, leak, [tokens])


class ReadBehindDefense(ReadHarder, part="defended"):
    """Single utterances behind a defence."""

    def run(self) -> Iterator[Columns]:
        """Defend and read each utterance."""
        own = ClientDefense.model_validate(self.form)
        defense = client_defense(own.defense, own.level, torch.Generator().manual_seed(self.seed))
        for tokens in self.tokens():
            clean = self.leak_of([tokens], only=FIRST)
            yield from read_behind(clean, defense(clean.gradients), tokens)


class ReadRelease(ReadHarder, part="released"):
    """Single utterances, read from DP-SGD's release of their whole gradient."""

    def run(self) -> Iterator[Columns]:
        """Release and read each utterance."""
        generator, release = torch.Generator().manual_seed(self.seed), Release.model_validate(self.form)
        for tokens in self.tokens():
            whole = self.leak_of([tokens])
            clean = replace(whole, gradients={name: whole.gradients[name] for name in FIRST})
            norm = math.sqrt(sum(float(value.double().square().sum()) for value in whole.gradients.values()))
            for row in read_behind(clean, released(whole.gradients, release, generator), tokens):
                yield row | {"norm": norm}


class ReadWithoutLayers(ReadHarder, part="withheld"):
    """Single utterances whose update lacks some layers (`form`): their transcripts and their bags of words."""

    def run(self) -> Iterator[Columns]:
        """Read each utterance from the layers that are sent."""
        for tokens in self.tokens():
            whole = self.leak_of([tokens])
            withheld = tuple(f"{layer}." for layer in self.form.replace("decoder", "cells").split(" and "))
            kept = {name: value for name, value in whole.gradients.items() if not name.startswith(withheld)}
            leak = replace(whole, gradients=kept)
            (reader, read, status), seconds = timed(read_in_order, leak)
            row = compared(reader, [read], [status], [tokens[:-1]], seconds)
            yield row | {"bag_exact": bag_of_words(leak) == set(tokens[:-1])}


def running(source: str, length: int, count: int) -> Iterator[list[int]]:
    """Yield utterances of `length` tokens, including the end mark, taken from consecutive texts.

    They start at places far apart. The border between two texts is not marked.
    """
    every = tokens_of(source, text.texts(source))
    if count > len(every):
        raise InputError(f"there are only {len(every)} texts; {count} were asked for")
    for number in range(count):
        first = number * len(every) // count
        words = itertools.chain.from_iterable(one[:-1] for one in itertools.islice(itertools.cycle(every), first, None))
        yield [*itertools.islice(words, length - 1), text.vocabulary(source).end]


def beginning_alike(source: str, size: int, count: int) -> Iterator[list[list[int]]]:
    """Yield the tokens of batches of texts: two begin with the same word, and all others with different words."""
    by_word: dict[int, list[list[int]]] = {}
    for tokens in tokens_of(source, text.texts(source, "test")):
        by_word.setdefault(tokens[0], []).append(tokens)
    pairs = [alike[:2] for alike in by_word.values() if len(alike) > 1]
    if count > len(pairs):
        raise InputError(f"only {len(pairs)} pairs of texts begin alike; {count} were asked for")
    firsts = [alike[0] for alike in by_word.values()]
    for number in range(count):
        pair = pairs[number * len(pairs) // count]
        others = [tokens for tokens in firsts[number:] + firsts[:number] if tokens != pair[0]]
        yield [*pair, *others[: size - 2]]


def released(gradients: Gradients, release: Release, generator: torch.Generator) -> Gradients:
    """Return the part that the attacks use of DP-SGD's release (abadi2016) of one utterance's gradients."""
    clipped = defenses.clip(release.clip)(gradients)
    noisy = defenses.gaussian(release.noise * release.clip, generator)
    return noisy({name: clipped[name] for name in FIRST})


def read_in_order(leak: Leak) -> tuple[str, list[int], str]:
    """Return the layer whose gradient gives the order of the words, the transcript read from it, and its status."""
    if set(FIRST) <= set(leak.gradients):
        found = read_transcripts(leak)
        return "the decoder's first layer", found.tokens[0], found.status[0]
    if set(LAST) <= set(leak.gradients):
        alone = read_output(leak)
        return "the last layer", alone.tokens[0][:-1], alone.status[0]
    return "–", [], "failed"


def bag_of_words(leak: Leak) -> set[int]:
    """Return the set of words of an utterance, from the embedding's nonzero rows, else from the last layer.

    Start and end marks are left out.
    """
    if "embedding.weight" in leak.gradients:
        rows = leak.gradients["embedding.weight"].any(dim=1).nonzero()
        return {int(row) for row in rows} - {START}
    return rlg(leak.weight_gradient) - {END}


def read_behind(clean: Leak, sent: Gradients, tokens: list[int]) -> Iterator[Columns]:
    """Read a sent gradient in closed form, and by the nearest words with and without knowledge of the length."""
    leak = Leak(clean.model, sent, clean.head, clean.batch_size)
    readers: dict[str, Callable[[Leak], Transcripts]] = {
        "closed form": read_transcripts,
        "nearest words": read_defended,
        "length told": lambda leak: read_defended(leak, steps=len(tokens)),
    }
    left = utility(clean.gradients, sent)
    return (row | {"utility": left} for row in read_by(readers, leak, [tokens]))


def read_by(
    readers: Mapping[str, Callable[[Leak], Transcripts]], leak: Leak, tokens: Sequence[list[int]]
) -> Iterator[Columns]:
    """Read a leak by each method, and compare the result with the true tokens without end marks."""
    for name, reader in readers.items():
        found, seconds = timed(reader, leak)
        yield compared(name, found.tokens, found.status, [one[:-1] for one in tokens], seconds)


def compared(
    reader: str, read: Sequence[list[int]], status: Sequence[str], truth: Sequence[list[int]], seconds: float
) -> Columns:
    """Compare the transcripts that a method read, each with its status, with the true transcripts."""
    failed = "failed" in status or not status
    length = sum(map(len, truth))
    return {"reader": reader, "failed": failed, "length": length, "seconds": seconds, **certified(read, truth, status)}


def summary(record: Record) -> Summary:
    """Return the finding: one layer is enough, and only signs and large noise keep transcripts from being read."""
    known = claims.judgements(record)
    last, noisy, private = known["harder-last"], known["harder-noise"], known["harder-released-private"]
    signs = known["harder-sign"]
    read = ("noise", "half", "bfloat", "bits", "dropped", "dropped-most")
    return Summary(
        f"Transcripts are read from the last layer alone ({last.cases}), behind dropped, rounded or noisy entries "
        f"(noise a tenth of their size: {noisy.cases}), sometimes signs ({signs.cases}; untrained recogniser), but not "
        f"DP-SGD whose noise equals the clipping norm ({private.cases}).",
        true=bool(last.agrees and private.agrees)
        and all(known[f"harder-{name}"].agrees for name in read)
        and (signs.value or 0) < 50,
        claim="harder-last",
        what="transcripts exact from the last layer alone, 8 to 40 tokens (untrained small recogniser)",
        figure=figure_defenses,
        of="utterances",
        outcomes=_outcomes(record),
    )


def _outcomes(record: Record) -> list[outcomes.Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    part, form = rows["part"], rows["form"]
    first, last = form.str.partition("/")[0], part == "last layer"
    behind = ("withheld/" + form).where(part == "withheld", "none").replace("withheld/none", "none")
    behind = behind.mask(last, "withheld/all but the last layer")
    behind = behind.mask(part == "defended", form.str.replace("noise/", "noise-share/"))
    behind = behind.mask(part == "released", "release/" + form)
    return outcomes.collected(
        record, rows, "text", outcomes.share_of("exact", "transcripts read exactly", "utterances"),
        attack="transcript, " + rows["reader"].replace("–", "no layer to read"), cosine=rows["utility"],
        network=first.where(last, "small").map(outcomes.RECOGNISERS), training=outcomes.stages(rows["trained"]),
        data=rows["source"], batch=first.where(part == "alike", "1").astype(int),
        defense=behind, client=(first + " local steps").where(part == "local", "float32"),
    )  # fmt: skip


def figure_defenses(record: Record) -> Figure:
    """Draw the share of exact transcripts behind each defence, with its 95 % interval, a panel per stage."""
    frame = record.rows(ReadBehindDefense)
    attacks = proportions("exact", "defence", by="attack", interval=outcomes.wilson_interval, aside=0.2)
    titles = frame["form"].str.replace("noise/", "noise-share/").map(outcomes.defense_in_words)
    return drawn(
        frame.assign(defence=titles, attack=frame["reader"].replace("length told", "nearest words, length given")),
        attacks,
        panels="trained",
        title=stage_of,
        height=1.0 + 0.4 * frame["form"].nunique(),
        legend=3,
        xlabel="share of transcripts exact",
        xlim=(-0.04, 1.04),
    )
