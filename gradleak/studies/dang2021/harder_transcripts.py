"""Harder transcripts: one layer alone, equal beginnings, several steps, defences

Beyond dang2021, section 4: cases that the closed form of a single utterance does not cover.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field

from gradleak import claims, defenses, studies
from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.defenses import utility
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.leak import Gradients, Leak
from gradleak.models.recogniser import END, SIZES, START
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences import Transcripts, observe_speech, read_defended, read_output, read_sharing, read_transcripts
from gradleak.sequences.observed import FIRST
from gradleak.show.drawn import drawn, proportions
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, greatest, least, mean, median, only, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.outcomes import RECOGNISERS, Outcome, collected, share_of, stages
from gradleak.studies.shared.private_noise import draw_noise, private_level
from gradleak.studies.shared.proportions import successes, successes_with_interval, wilson_interval
from gradleak.studies.shared.recognisers import (
    RATE,
    OnUtterances,
    Source,
    attacked_texts,
    stage_of,
    tokens_of,
    with_stage,
)
from gradleak.studies.shared.sentence_clients import ClientDefense, client_defense
from gradleak.wording import counted

PLACE = "Beyond section 4"
# The parameter that takes the states of the decoder's only layer. Words that fit by chance lead to states outside the
# span of its inputs.
NEXT = "head.weight"
SHOWN = {
    "none": "none",
    "noise": "noise, {:g} × root mean square",
    "half": "float16 numbers",
    "bfloat16": "bfloat16 numbers",
    "quantize": "{:.0f} bits",
    "grad-drop": "smallest {:.0%} dropped",
    "sign": "sign",
}
# The only gradients that the attack on the last layer uses.
LAST = ("head.weight", "head.bias")
# Prefixes of the parameter names of layers whose gradient may be withheld, and the names of these cases in tables.
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
    "decoder": "all but the decoder's recurrent layers",
    "decoder and head": "all but the decoder's recurrent layers and the last layer",
}


class Alone(Form):
    """A recogniser and its utterances, written "size/training steps/tokens/utterances"."""

    size: str
    trained: Whole
    tokens: Whole
    utterances: Whole

    def check(self) -> None:
        """Raise an error if there is no such recogniser or no utterance."""
        if self.size not in SIZES or self.tokens < 2 or self.utterances < 1:
            raise InputError(
                f"a recogniser is one of {', '.join(SIZES)}, and there must be at least 2 tokens and 1 utterance"
            )


class Alike(Form):
    """The number of utterances per batch, of which exactly two begin with the same word, and the number of batches."""

    size: Whole
    batches: Whole

    def check(self) -> None:
        """Raise an error if a batch has fewer than two utterances."""
        if self.size < 2 or self.batches < 1:
            raise InputError("a batch needs at least 2 utterances, and there must be at least 1 batch")


class Local(Form):
    """The number of local steps on one utterance, and the number of utterances."""

    steps: Whole
    utterances: Whole

    def check(self) -> None:
        """Raise an error if there is no step or no utterance."""
        if min(self.steps, self.utterances) < 1:
            raise InputError("there must be at least 1 local step and at least 1 utterance")


class Release(Form):
    """The clipping norm of an utterance's gradient, and the noise's standard deviation as a multiple of this norm."""

    clip: float = Field(gt=0)
    noise: float = Field(ge=0)


class Parameters(studies.Parameters):
    """Parameters of the page: utterances read from the last layer, in batches, after steps, and behind defences."""

    source: Source = setting(paper="librispeech")
    alone: list[Alone] = setting(
        paper=[f"{size}/{tokens}/8" for size in ("small/0", "small/400", "small-2/0") for tokens in (8, 20, 28, 40)],
        smallest=["small/0/4/1"],
        validate_default=True,
    )
    alike: list[Alike] = setting(paper=["2/12", "4/6"], validate_default=True)
    local: list[Local] = setting(paper=["4/16", "8/16"], smallest=["2/1"], validate_default=True)
    stages: list[int] = setting(paper=[0, 400], min_length=1)
    defended: int = setting(paper=16, ge=1)
    defenses: list[ClientDefense] = setting(
        paper=[
            *("noise/0.1", "half/16", "bfloat16/0", "quantize/8", "grad-drop/0.5", "grad-drop/0.9", "sign/0"),
            "noise/1",
        ],
        smallest=["noise/0.1"],
        validate_default=True,
    )
    releases: list[Release] = setting(
        paper=[f"0.5/{noise}" for noise in ("1e-5", "1e-4", "1e-3", "3e-3", "1e-2", "3e-2", "1e-1", "1")],
        smallest=["0.5/0.001"],
        validate_default=True,
    )
    withheld: list[Literal["none", "embedding", "head", "decoder", "decoder and head"]] = setting(
        paper=list(WITHHELD), smallest=["head"]
    )

    def experiments(self) -> Iterator[Experiment]:
        """Yield utterances read from the last layer, batches and local steps, then defences and missing layers."""
        for alone in self.alone:
            yield ReadLastLayer.of(self, form=alone, utterances=alone.utterances, trained=alone.trained)
        for alike in self.alike:
            yield ReadAlike.of(self, form=alike, utterances=alike.batches, trained=0)
        for local in self.local:
            yield ReadLocalSteps.of(self, form=local, utterances=local.utterances, trained=0)
        for trained, defense in itertools.product(self.stages, self.defenses):
            yield ReadBehindDefense.of(self, form=defense, utterances=self.defended, trained=trained)
        for trained, release in itertools.product(self.stages, self.releases):
            yield ReadRelease.of(self, form=release, utterances=self.defended, trained=trained)
        for trained, layers in itertools.product(self.stages, self.withheld):
            yield ReadWithoutLayers.of(self, form=layers, utterances=self.defended, trained=trained)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return f"{counted(self.defended, 'utterance')} per defence, {text.TITLES[self.source]}, made-up speech"


class Reading(Row):
    """The result of reading an utterance or a batch.

    Attributes:
        reader: The method.
        exact: Whether all transcripts are right.
        unique: Whether the method certified its result as unique.
        wrongly_sure: Whether it did so although the result is wrong.
        failed: Whether the method reported failure.
        length: The true number of tokens.
        seconds: The CPU time (s).
    """

    reader: str
    exact: bool
    unique: bool
    wrongly_sure: bool
    failed: bool
    length: int
    seconds: float


class LastLayerReading(Reading):
    """The result of reading the last layer.

    Attributes:
        distinct: The number of distinct tokens.
        steps_found: The number of steps found.
        worst: The relative distance from the span of the worst word of the transcript.
        other: The same of the nearest other word.
    """

    distinct: int
    steps_found: int
    worst: float
    other: float


class DefendedReading(Reading):
    """The result behind a defence; `utility` is the cosine of the sent gradient with the clean one."""

    utility: float


class ReleaseReading(DefendedReading):
    """The result for a release of DP-SGD; `norm` is the norm of the whole gradient before clipping."""

    norm: float


class PartReading(Reading):
    """The result if layers are missing; `bag` is whether the set of words is right."""

    bag: bool


class ReadLastLayer(OnUtterances):
    """Utterances that are read from the gradient of the last layer only."""

    part: ClassVar[str] = "last layer"
    form: Alone

    def run(self) -> Iterator[LastLayerReading]:
        """Read each utterance."""
        words = text.vocabulary(self.source)
        for tokens in running(self.source, self.form.tokens, self.utterances):
            sound = pseudo_speech(words.decode(tokens))
            leak = observe_speech(self.recogniser(self.form.size), [sound], [tokens], only=LAST)
            started = time.process_time()
            found = read_output(leak)
            seconds = time.process_time() - started
            yield LastLayerReading.of(
                compared("last layer", [found.tokens], [found.status], [tokens], seconds),
                distinct=len(set(tokens)),
                steps_found=found.steps,
                worst=found.misses[0],
                other=min(found.misses[1], 1.0),
            )


class ReadAlike(OnUtterances):
    """Batches in which two utterances begin with the same word, read in closed form and by root finding."""

    part: ClassVar[str] = "alike"
    form: Alike

    def run(self) -> Iterator[Reading]:
        """Read each batch."""
        for said in beginning_alike(self.source, self.form.size, self.utterances):
            tokens = tokens_of(self.source, said)
            sounds = [pseudo_speech(one) for one in said]
            leak = observe_speech(self.recogniser(), sounds, tokens, only=[*FIRST, NEXT])
            yield from read_by({"closed form": read_transcripts, "root": read_sharing}, leak, tokens)


class ReadLocalSteps(OnUtterances):
    """Utterances that are read from the sum of the gradients of several steps, each with updated weights."""

    part: ClassVar[str] = "local"
    form: Local

    def run(self) -> Iterator[Reading]:
        """Read each utterance."""
        steps = self.form.steps
        for said in attacked_texts(self.source, self.utterances):
            (tokens,) = tokens_of(self.source, [said])
            leak = observe_speech(
                self.recogniser(),
                [pseudo_speech(said)] * steps,
                [tokens] * steps,
                only=[*FIRST, NEXT],
                local_steps=steps,
                rate=RATE,
            )
            yield from read_by({"closed form": read_transcripts, "nearest words": read_defended}, leak, [tokens])


class ReadBehindDefense(OnUtterances):
    """Single utterances behind a defence."""

    part: ClassVar[str] = "defended"
    form: ClientDefense

    def run(self) -> Iterator[DefendedReading]:
        """Defend and read each utterance."""
        defense = client_defense(self.form.defense, self.form.level, torch.Generator().manual_seed(self.seed))
        for said in attacked_texts(self.source, self.utterances):
            (tokens,) = tokens_of(self.source, [said])
            clean = observe_speech(self.recogniser(), [pseudo_speech(said)], [tokens], only=FIRST)
            yield from read_behind(clean, defense(clean.gradients), tokens)


class ReadRelease(OnUtterances):
    """Single utterances, read from DP-SGD's release of their whole gradient."""

    part: ClassVar[str] = "released"
    form: Release

    def run(self) -> Iterator[ReleaseReading]:
        """Release and read each utterance."""
        generator = torch.Generator().manual_seed(self.seed)
        for said in attacked_texts(self.source, self.utterances):
            (tokens,) = tokens_of(self.source, [said])
            whole = observe_speech(self.recogniser(), [pseudo_speech(said)], [tokens])
            clean = replace(whole, gradients={name: whole.gradients[name] for name in FIRST})
            norm = math.sqrt(sum(float(value.double().square().sum()) for value in whole.gradients.values()))
            for reading in read_behind(clean, released(whole.gradients, self.form, generator), tokens):
                yield ReleaseReading.of(reading, norm=norm)


class ReadWithoutLayers(OnUtterances):
    """Single utterances whose update lacks some layers (`form`): their transcripts and their bags of words."""

    part: ClassVar[str] = "withheld"
    form: str

    def run(self) -> Iterator[PartReading]:
        """Read each utterance from the layers that are sent."""
        for said in attacked_texts(self.source, self.utterances):
            (tokens,) = tokens_of(self.source, [said])
            whole = observe_speech(self.recogniser(), [pseudo_speech(said)], [tokens])
            # `startswith` takes a tuple of prefixes, and is false for an empty tuple.
            kept = {name: value for name, value in whole.gradients.items() if not name.startswith(LAYERS[self.form])}
            leak = replace(whole, gradients=kept)
            started = time.process_time()
            read, status = read_in_order(leak)
            seconds = time.process_time() - started
            yield PartReading.of(
                compared(reader_of_order(leak), [read], [status], [tokens[:-1]], seconds),
                bag=bag_of_words(leak) == set(tokens[:-1]),
            )


def running(source: str, length: int, count: int) -> list[list[int]]:
    """Return utterances of `length` tokens, including the end mark, taken from consecutive texts.

    They start at places far apart. The border between two texts is not marked.
    """
    every = tokens_of(source, text.texts(source))
    if count > len(every):
        raise InputError(f"there are only {len(every)} texts; {count} were asked for")
    end = text.vocabulary(source).end
    found = []
    for number in range(count):
        first = number * len(every) // count
        words = itertools.chain.from_iterable(one[:-1] for one in itertools.islice(itertools.cycle(every), first, None))
        found.append([*itertools.islice(words, length - 1), end])
    return found


def beginning_alike(source: str, size: int, count: int) -> list[list[str]]:
    """Return batches of texts: two begin with the same word, and all others with different words."""
    every = text.texts(source, "test")
    by_word: dict[int, list[str]] = {}
    for said, tokens in zip(every, tokens_of(source, every), strict=True):
        by_word.setdefault(tokens[0], []).append(said)
    pairs = [texts[:2] for texts in by_word.values() if len(texts) > 1]
    if count > len(pairs):
        raise InputError(f"only {len(pairs)} pairs of texts begin alike; {count} were asked for")
    chosen = [pairs[number * len(pairs) // count] for number in range(count)]
    firsts = [texts[0] for texts in by_word.values()]
    batches = []
    for number, pair in enumerate(chosen):
        others = [said for said in firsts[number:] + firsts[:number] if said != pair[0]]
        batches.append([*pair, *others[: size - 2]])
    return batches


def released(gradients: Gradients, release: Release, generator: torch.Generator) -> Gradients:
    """Return the part that the attacks use of DP-SGD's release (abadi2016) of one utterance's gradients."""
    clipped = defenses.clip(release.clip)(gradients)
    noisy = defenses.gaussian(release.noise * release.clip, generator)
    return noisy({name: clipped[name] for name in FIRST})


def reader_of_order(leak: Leak) -> str:
    """Return the layer whose gradient gives the order of words: the decoder's first, else the last, else none."""
    if set(FIRST) <= set(leak.gradients):
        return "the decoder's first layer"
    return "the last layer" if set(LAST) <= set(leak.gradients) else "–"


def read_in_order(leak: Leak) -> tuple[list[int], str]:
    """Return the transcript that is read from the sent layers, and its status; empty if no layer gives the order."""
    reader = reader_of_order(leak)
    if reader == "the decoder's first layer":
        found = read_transcripts(leak)
        return found.tokens[0], found.status[0]
    if reader == "the last layer":
        alone = read_output(leak)
        return alone.tokens[:-1], alone.status
    return [], "failed"


def bag_of_words(leak: Leak) -> set[int]:
    """Return the set of words of an utterance, from the embedding's nonzero rows, else from the last layer.

    Start and end marks are left out.
    """
    if "embedding.weight" in leak.gradients:
        rows = leak.gradients["embedding.weight"].any(dim=1).nonzero()
        return {int(row) for row in rows} - {START}
    return rlg(leak.weight_gradient) - {END}


Reader = Callable[[Leak], Transcripts]


def read_behind(clean: Leak, sent: Gradients, tokens: Sequence[int]) -> list[DefendedReading]:
    """Read a sent gradient in closed form, and by the nearest words with and without knowledge of the length."""
    leak = Leak(clean.model, sent, clean.head, clean.batch_size)
    readers: dict[str, Reader] = {
        "closed form": read_transcripts,
        "nearest words": read_defended,
        "length told": lambda leak: read_defended(leak, steps=len(tokens)),
    }
    left = utility(clean.gradients, sent)
    return [DefendedReading.of(reading, utility=left) for reading in read_by(readers, leak, [tokens])]


def read_by(readers: Mapping[str, Reader], leak: Leak, tokens: Sequence[Sequence[int]]) -> Iterator[Reading]:
    """Read a leak by each method, and compare the result with the true tokens without end marks."""
    for name, reader in readers.items():
        started = time.process_time()
        found = reader(leak)
        seconds = time.process_time() - started
        yield compared(name, found.tokens, found.status, [one[:-1] for one in tokens], seconds)


def compared(
    reader: str, read: Sequence[list[int]], said: Sequence[str], truth: Sequence[Sequence[int]], seconds: float
) -> Reading:
    """Compare transcripts with the truth.

    Args:
        reader: The method.
        read: The transcripts.
        said: The status of each transcript.
        truth: The true transcripts.
        seconds: The CPU time (s).
    """
    exact = sorted(read) == sorted(list(one) for one in truth)
    unique = bool(said) and all(status == "unique" for status in said)
    return Reading(
        reader=reader,
        exact=exact,
        unique=unique,
        wrongly_sure=unique and not exact,
        failed="failed" in said or not said,
        length=sum(map(len, truth)),
        seconds=seconds,
    )


def _seconds(value: float) -> str:
    return f"{value:.2g}" if value >= 0.001 else "0"


MEASURES = {
    "transcripts exact": successes_with_interval("exact"),
    "called unique": total("unique", ".0f"),
    "of these wrong": total("wrongly_sure", ".0f"),
    "CPU time (s)": median("seconds", _seconds),
}
# The columns for defences: the cosine of the sent gradient with the clean one, and each method's exact transcripts.
BEHIND = {
    "cosine": mean("utility", ".4f"),
    "closed form": among(successes("exact"), reader="closed form"),
    "nearest words": among(successes("exact"), reader="nearest words"),
    "reported as failed": among(total("failed", ".0f"), reader="nearest words"),
    "length given": among(successes("exact"), reader="length told"),
}


def headline(record: Record) -> Headline:
    """Return the finding: one layer is enough, and only signs and large noise keep transcripts from being read."""
    known = claims.judgements(record)
    last, noisy, private = known["harder-last"], known["harder-noise"], known["harder-released-private"]
    signs = known["harder-sign"]
    read = ("noise", "half", "bfloat", "bits", "dropped", "dropped-most")
    return Headline(
        f"Transcripts are read exactly from the last layer alone ({last.cases}), behind dropped, rounded or slightly "
        f"noisy entries ({noisy.cases}) and sometimes signs ({signs.cases}; untrained recogniser), but not behind "
        f"DP-SGD whose noise equals the clipping norm ({private.cases}).",
        true=bool(last.agrees and private.agrees)
        and all(known[f"harder-{name}"].agrees for name in read)
        and (signs.value or 0) < 50,
        claim="harder-last",
        what="transcripts exact from the last layer alone, 8 to 40 tokens (untrained small recogniser)",
        figure=figure_defenses,
        of="utterances",
    )


def alone_table(record: Record) -> pd.DataFrame:
    """Return the results of reading the last layer; one row for each recogniser, stage and number of tokens.

    The last two columns are relative distances from the span: of the worst word of a transcript, and of the nearest
    other.
    """
    rows = with_stage(record.rows(ReadLastLayer))
    forms = [Alone.of(form) for form in rows["form"]]
    return summary(
        rows.assign(size=[form.size for form in forms], tokens=[form.tokens for form in forms]),
        {"recogniser": "size", "stage": "stage", "tokens": "tokens"},
        MEASURES
        | {
            "largest distance, words read": greatest("worst", ".0e"),
            "smallest distance, other words": least("other", ".0e"),
        },
    )


def alike_table(record: Record) -> pd.DataFrame:
    """Return the results for batches in which two utterances begin alike; one row for each batch size and method."""
    lines = summary(record.rows(ReadAlike), {"utterances": "form", "attack": "reader"}, MEASURES)
    return lines.assign(utterances=[str(Alike.of(form).size) for form in lines["utterances"]])


def local_table(record: Record) -> pd.DataFrame:
    """Return the results for single utterances after local steps; one row for each number of steps and method."""
    lines = summary(record.rows(ReadLocalSteps), {"local steps": "form", "attack": "reader"}, MEASURES)
    return lines.assign(**{"local steps": [str(Local.of(form).steps) for form in lines["local steps"]]})


def defense_table(record: Record) -> pd.DataFrame:
    """Return the number of exact transcripts behind defences; one row for each stage of training and defence.

    Columns: the cosine of the sent gradient with the clean one, then each method. "reported as failed" counts the
    transcripts that the method of nearest words reports as failed; "length given" is this method with the true length.
    """
    rows = with_stage(record.rows(ReadBehindDefense))
    lines = summary(rows, {"stage": "stage", "defence": "form"}, BEHIND)
    return lines.assign(defence=lines["defence"].map(_named))


def _named(form: str) -> str:
    one = ClientDefense.of(form)
    return SHOWN[one.defense].format(one.level)


def release_table(record: Record) -> pd.DataFrame:
    """Return the number of exact transcripts from DP-SGD's releases; one row for each stage and level of noise."""
    rows = with_stage(record.rows(ReadRelease))
    epsilon = only("form", lambda form: private_level(Release.of(form).noise))
    lines = summary(rows, {"stage": "stage", "noise": "form"}, {"ε": epsilon} | BEHIND)
    return lines.assign(noise=[f"{Release.of(form).noise:g}" for form in lines["noise"]])


def withheld_table(record: Record) -> pd.DataFrame:
    """Return the results if layers are not sent; one row for each stage of training and set of sent layers."""
    lines = summary(
        with_stage(record.rows(ReadWithoutLayers)),
        {"stage": "stage", "sent": "form"},
        {"read from": only("reader"), **MEASURES, "bag exact": successes_with_interval("bag")},
    )
    return lines.assign(sent=lines["sent"].map(WITHHELD))


def figure_defenses(record: Record) -> Figure:
    """Draw the share of exact transcripts behind each defence, with its 95 % interval, a panel per stage."""
    frame = record.rows(ReadBehindDefense)
    readers = {
        "nearest words": "nearest words, length unknown",
        "length told": "nearest words, length given",
        "closed form": "closed form",
    }
    named = frame.assign(defence=frame["form"].map(_named), attack=frame["reader"].map(readers))
    shown = list(readers.values())
    return drawn(
        named,
        proportions("exact", "defence", by="attack", interval=wilson_interval, aside=0.2, order=shown),
        panels="trained",
        title=stage_of,
        height=1.0 + 0.4 * frame["form"].nunique(),
        legend=3,
        xlabel="share of transcripts exact",
        xlim=(-0.04, 1.04),
    )


def figure_frontier(record: Record) -> Figure:
    """Draw the share of exact transcripts against the noise of a release and its ε, a line per stage and method."""
    readers = {"nearest words": "length unknown", "length told": "length given"}
    frame = record.rows(ReadRelease)
    frame = frame[frame["reader"].isin(list(readers))]
    return draw_noise(
        frame.assign(
            noise=[Release.of(form).noise for form in frame["form"]],
            line=frame["trained"].map(stage_of) + ", " + frame["reader"].map(readers),
        ),
        "exact",
        legend=2,
        ylabel="share of transcripts exact",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    exact = share_of("exact", "transcripts read exactly", "utterances")
    settings = [_setting(part, form) for part, form in zip(rows["part"], rows["form"], strict=True)]
    networks, sizes, behind, clients = zip(*settings, strict=True)
    return collected(
        record, rows, "text", exact, cosine=rows["utility"],
        attack="transcript, " + rows["reader"].replace("–", "no layer to read"), network=networks,
        training=stages(rows["trained"]), data=rows["source"], batch=sizes, defense=behind, client=clients,
    )  # fmt: skip


def _setting(part: str, form: str) -> tuple[str, int, str, str]:
    """Return the network, batch size, defence and client of a row."""
    network = RECOGNISERS["small"]
    if part == "last layer":
        return RECOGNISERS[Alone.of(form).size], 1, "withheld/all but the last layer", "float32"
    if part == "alike":
        return network, Alike.of(form).size, "none", "float32"
    if part == "local":
        return network, 1, "none", f"{Local.of(form).steps} local steps"
    if part == "defended":
        return network, 1, form.replace("noise/", "noise-share/"), "float32"
    if part == "released":
        return network, 1, f"release/{form}", "float32"
    return network, 1, "none" if form == "none" else f"withheld/{form}", "float32"
