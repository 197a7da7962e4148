"""Transcripts: the words of an utterance in order, in closed form and by matching gradients

dang2021, section 4: its Table 5 and Figure 2 by the paper's search and by a closed form; the baseline of Table 2; and
beyond them batches of utterances, speech that is synthesised or recorded, and the last layer alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from gradleak import claims, studies
from gradleak.data import text
from gradleak.data.audio import can_speak, spoken_digits, synthesised
from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.models.recogniser import SIZES
from gradleak.sequences.matching import OURS, PRINTED, match_transcript
from gradleak.sequences.observed import FIRST, observe_speech
from gradleak.sequences.output import read_output
from gradleak.sequences.transcripts import Transcripts, read_transcripts, step_misses
from gradleak.sequences.words import reveal_words
from gradleak.show.aggregate import select
from gradleak.show.drawn import crossed, drawn, lines, places, proportions
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Group, Record, setting
from gradleak.studies.dang2021.experiments import certified, set_scores, two_digits, word_error_rate
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.outcomes import RECOGNISERS, Outcome, collected, share_of, stages, wilson_interval
from gradleak.studies.shared.recognisers import (
    LAST,
    AttackedRecogniser,
    OnRecogniser,
    OnUtterances,
    Source,
    speech_of,
    stage_of,
)
from gradleak.studies.shared.steps_read import draw_steps

PLACE = "Section 4, Table 5, Figure 2; Table 2"
CHUNK, HEARD = 50, 25  # utterances per experiment, in artificial speech and in other speech
# The parameters that take the states of the decoder's first layer, if it has one layer and if it has two.
NEXT = (("head.weight",), ("cells.1.weight_ih", "head.weight"))
SHOWN = 0.7  # the figure's utterance, as a share of a list sorted by length
SAMPLE = 60  # wrong words that the figure shows at each step
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ARTIFICIAL, RECORDED, SYNTHESISED = "artificial", "recorded", "synthesised"  # kinds of speech
SEARCHES = {"printed": PRINTED, "softmax": OURS}
TITLES = {"printed": "as printed", "softmax": "labels by softmax"}


class Counted(Group):
    """A batch size or a length in tokens, and how many batches or utterances have this size."""

    size: PositiveInt
    count: PositiveInt


class SearchedTexts(Group):
    """Texts and how they are searched for: the search, steps of training, starts with the bag of words, utterances."""

    source: Source
    search: Literal["printed", "softmax"]
    trained: NonNegativeInt
    starts: PositiveInt
    utterances: PositiveInt


class Parameters(studies.Parameters):
    """Parameters of the page: utterances, batches, other speech, searches, stages of training, and the last layer."""

    source: Source = setting(paper="librispeech")
    rows: list[AttackedRecogniser] = setting(
        paper=AttackedRecogniser.listed(
            *(("paper", 0, 101), ("small", 0, 402), ("small", 100, 101), ("small", 400, 402), ("small-2", 0, 101)),
        ),
        smallest=AttackedRecogniser.listed(("small", 0, 2)),
    )
    batches: list[Counted] = setting(
        paper=Counted.listed((2, 24), (4, 24), (8, 12), (16, 6), (32, 3)), smallest=Counted.listed((2, 1))
    )
    voices: list[str] = setting(
        paper=[
            *("en-us/175/50", "en-gb/140/35", "en-us+f3/210/65", "en-gb-scotland/160/40", "en-gb-x-rp+f2/190/70"),
            "en-us+m3/120/20",
        ],
        smallest=["en-us/175/50"],
    )
    stand_in: bool = setting(paper=False)
    utterances: int = setting(paper=134, smallest=2, ge=1)
    digits: int = setting(paper=60, ge=0, le=500)
    recordings: int = setting(paper=60, ge=0)
    stages: list[NonNegativeInt] = setting(paper=[0, 100], smallest=[0])
    searches: list[SearchedTexts] = setting(
        paper=SearchedTexts.listed(
            ("sentences", "printed", 0, 5, 24),
            ("sentences", "softmax", 0, 1, 24),
            ("sentences", "softmax", 100, 1, 12),
            ("sentences", "softmax", 400, 1, 12),
            ("librispeech", "softmax", 0, 1, 24),
            ("librispeech", "printed", 0, 1, 6),
        ),
        smallest=SearchedTexts.listed(("sentences", "softmax", 0, 1, 1)),
    )
    steps: int = setting(paper=1200, ge=1)
    training: list[AttackedRecogniser] = setting(
        paper=AttackedRecogniser.listed(*(("small", trained, 80) for trained in (0, 25, 100, 400))),
        smallest=AttackedRecogniser.listed(("small", 0, 2)),
    )
    lengths: list[Counted] = setting(
        paper=Counted.listed(*((length, 2) for length in range(4, 29, 4))), smallest=Counted.listed((4, 1))
    )

    def experiments(self) -> Iterator[Experiment]:
        """Yield utterances and batches, the unknowns of matching, the figure's utterance, other speech, the searches,
        the closed form at each stage of training, and the last layer.
        """
        for row in self.rows:
            for first in range(0, row.utterances, CHUNK):
                yield SingleUtterances.of(self, **dict(row), first=first)
        small = next((row.size for row in self.rows if row.size != "paper"), "paper")
        for form in self.batches:
            yield Batches.of(self, size=small, trained=0, form=str(form))
        yield CountUnknowns.of(self, size=small, trained=0)
        yield StepByStep.of(self, size=small, trained=0)
        voices = self.voices if can_speak() or not self.stand_in else [ARTIFICIAL]
        for trained in self.stages:
            for first in range(0, self.utterances, HEARD):
                yield SynthesisedTexts.of(self, voices=voices, trained=trained, first=first)
            for first in range(0, self.digits, HEARD):
                yield RecordedDigits.of(self, utterances=self.digits, trained=trained, first=first)
            read = {"source": self.source if self.stand_in else text.RECORDED, "utterances": self.recordings}
            for first in range(0, self.recordings, HEARD):
                yield RecordedTexts.of(self, **read, trained=trained, first=first)
        for search in self.searches:
            steps = self.steps if search.search == "printed" else OURS.steps
            for number in range(search.utterances):
                yield MatchOneUtterance.of(self, **dict(search), steps=steps, number=number)
        for stage in self.training:
            yield ReadInClosedForm.of(self, **dict(stage), source="sentences")
        for length in self.lengths:
            for number in range(length.count):
                yield ReadLastLayer.of(self, trained=0, number=number, length=length.size)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        most = max(row.utterances for row in self.rows)
        return f"up to {most} utterances per recogniser, {self.utterances} synthesised, {text.TITLES[self.source]}"


class ReadTranscripts(OnRecogniser):
    """Utterances on a recogniser of one `size`."""

    size: str

    def read(self, number: int, tokens: Sequence[list[int]]) -> Columns:
        """Observe a batch of utterances, read their transcripts, and compare these with the truth."""
        model, words = self.recogniser(self.size), text.vocabulary(self.source)
        leak = self.leak_of(tokens, self.size, only=[*FIRST, *NEXT[len(model.cells) > 1]])
        found, seconds = timed(read_transcripts, leak, vocabulary=words)
        said, texts = words.decode(tokens[0]), found.texts or []
        errors = word_error_rate(texts[0] if len(texts) == 1 else "", said) if len(tokens) == 1 else 0.0
        return compared(number, found, tokens, seconds) | {
            "attack": "closed form",
            "shared": len({one[0] for one in tokens}) < len(tokens),
            "length_error": abs(found.inputs - 1 - sum(len(one) - 1 for one in tokens)),
            "read": sum([*one, words.end] in tokens for one in found.tokens),
            "of": len(tokens),
            "word_errors": errors,
        }


class SingleUtterances(ReadTranscripts, part="alone"):
    """Utterances that are read one by one, numbered from `first`."""

    utterances: int
    first: int

    def run(self) -> Iterator[Columns]:
        """Read each utterance."""
        every = list(enumerate(self.attacked_tokens(self.utterances)))
        for number, tokens in every[self.first : self.first + CHUNK]:
            yield self.read(number, [tokens])


class Batches(ReadTranscripts, part="together"):
    """Batches of several utterances with one common gradient."""

    form: str

    def run(self) -> Iterator[Columns]:
        """Read each batch."""
        size, count = map(int, self.form.split("/"))
        for number in range(count):
            yield self.read(number, self.batch_of(number, size))


class CountUnknowns(ReadTranscripts, part="counted"):
    """The number of variables that matching has for each text: a context and a label for every token."""

    def run(self) -> Iterator[Columns]:
        """Count the variables, with contexts of the paper's size."""
        classes = len(text.vocabulary(self.source))
        context = 2 * SIZES["paper" if self.source == "librispeech" else self.size].heard
        for number, tokens in enumerate(self.tokens_of(text.texts(self.source, "test"))):
            labels = {"matching without the bag": classes, "matching with the bag": len(set(tokens))}
            for attack, width in labels.items():
                yield {"number": number, "attack": attack, "variables": len(tokens) * (context + width)}


class StepByStep(ReadTranscripts, part="figure"):
    """One utterance for the figure: the relative distances of the right word and of others from the span."""

    def run(self) -> Iterator[Columns]:
        """Read the utterance, and measure the distances."""
        words, every = text.vocabulary(self.source), text.texts(self.source, "test")
        leak = self.leak_of(self.tokens_of([every[int(SHOWN * len(every))]]), self.size, only=FIRST)
        (read,) = read_transcripts(leak).tokens
        for step, (token, misses) in enumerate(zip([*read, None], step_misses(leak, read), strict=True)):
            rest = misses if token is None else torch.cat([misses[:token], misses[token + 1 :]])
            near = rest.sort().values
            yield {
                "step": step,
                "piece": words.pieces[token] if token is not None else "",
                "miss": float(misses[token]) if token is not None else None,
                # The nearest and the farthest word of the vocabulary, and some in between.
                "rest": near[torch.linspace(0, len(near) - 1, SAMPLE).long()].tolist(),
            }


class HearSpeech(OnUtterances):
    """Utterances of one kind of speech, numbered from `first`."""

    first: int

    def utterance(self, number: int) -> tuple[str, str, Tensor]:
        """Return the text, the voice and the speech (F, 80) of an utterance."""
        raise NotImplementedError

    def run(self) -> Iterator[Columns]:
        """Observe each utterance, read the bag and the transcript, and compare both with the truth."""
        for number in range(self.utterances)[self.first : self.first + HEARD]:
            said, voice, sound = self.utterance(number)
            (tokens,) = self.tokens_of([said])
            leak = observe_speech(self.recogniser(), [sound], [tokens], only=[*FIRST, "head.weight"])
            (bag, found), seconds = timed(lambda leak: (reveal_words(leak), read_transcripts(leak)), leak)
            yield compared(number, found, [tokens], seconds) | {
                "voice": voice,
                "frames": len(sound),
                "length_error": abs(bag.count - len(tokens)),
                "bag_exact": bag.tokens == [sorted(set(tokens))],
            }


class SynthesisedTexts(HearSpeech, part=SYNTHESISED):
    """Texts spoken by `voices` of espeak-ng in turn, or in artificial speech."""

    voices: list[str]

    def utterance(self, number: int) -> tuple[str, str, Tensor]:
        """Return the text of an utterance, the voice that speaks it and the samples of its sound."""
        said, voice = self.attacked_texts(self.utterances)[number], self.voices[number % len(self.voices)]
        if voice == ARTIFICIAL:
            return said, voice, pseudo_speech(said)
        name, rate, pitch = voice.split("/")
        return said, voice, synthesised(said, voice=name, rate=int(rate), pitch=int(pitch))


class RecordedDigits(HearSpeech, part=RECORDED):
    """Strings of digits that people spoke."""

    def utterance(self, number: int) -> tuple[str, str, Tensor]:
        """Return two to seven random digits, and their recording."""
        generator = torch.Generator().manual_seed(1009 * self.seed + number)
        said = " ".join(DIGITS[one] for one in torch.randint(len(DIGITS), (2 + number % 6,), generator=generator))
        return said, RECORDED, spoken_digits(said, number)


class RecordedTexts(HearSpeech, part="read aloud"):
    """Texts of LibriSpeech that people read aloud, or artificial speech for another `source`."""

    def utterance(self, number: int) -> tuple[str, str, Tensor]:
        """Return a text, its source as the voice, and its speech."""
        said = self.attacked_texts(self.utterances)[number]
        return said, self.source, speech_of(self.source, said)


class ReadOrMatch(OnRecogniser):
    """Utterances whose transcripts are read or searched for."""

    def scored(self, read: Sequence[int], tokens: Sequence[int], seconds: float) -> Columns:
        """Compare a transcript with the truth, in order and as a bag of words."""
        words = text.vocabulary(self.source)
        return {
            "length": len(tokens),
            "exact": list(read) == list(tokens),
            "word_errors": word_error_rate(words.decode(read), words.decode(tokens)),
            "seconds": seconds,
            **set_scores(set(read), set(tokens), exact="bag_exact"),
        }


class MatchOneUtterance(ReadOrMatch, part="matching"):
    """One utterance, matched without its bag of words from one start, and with the bag from several starts.

    Attributes:
        search: The search.
        starts: The number of starts with the bag of words.
        steps: The number of steps of the search.
        utterances: The number of utterances among which the utterance is chosen.
        number: The number of the utterance.
    """

    search: str
    starts: int
    steps: int
    utterances: int
    number: int

    def run(self) -> Iterator[Columns]:
        """Search, and compare the results; the last row holds the gains by the bag and by further starts."""
        chosen = self.attacked_tokens(self.utterances)
        if self.source == "sentences":  # the shortest ones
            chosen = sorted(self.tokens_of(text.texts(self.source, "test")), key=len)
        tokens = chosen[self.number]
        leak = self.leak_of([tokens], only=[*FIRST, *LAST])
        search = replace(SEARCHES[self.search], steps=self.steps)
        exact = {}
        for bag, starts in (("without", 1), ("with", self.starts)):
            words: Literal["revealed"] | None = "revealed" if bag == "with" else None
            found, seconds = timed(match_transcript, leak, search, bag=words, starts=starts, seed=self.seed)
            # The first start is the result of a single run, and takes this share of the time.
            tries = {1: found.attempts[0], starts: found.tokens}
            for best_of, read in tries.items():
                row = self.scored(read, tokens, seconds * best_of / starts)
                exact[bag, best_of] = float(read == tokens)
                distance = float(found.distances[:best_of].min())
                yield row | {"bag": bag, "best_of": best_of, "variables": found.variables, "distance": distance}
        yield {
            "bag": "",
            "best_of": 0,
            "bag_gains": exact["with", 1] - exact["without", 1],
            "starts_gain": exact["with", self.starts] - exact["with", 1],
        }


class ReadInClosedForm(ReadOrMatch, part="stages"):
    """The bag and the transcript of some utterances, read in closed form at a stage of training."""

    size: str
    utterances: int

    def run(self) -> Iterator[Columns]:
        """Read each utterance."""
        end = text.vocabulary(self.source).end
        for tokens in self.tokens_of(text.texts(self.source, "test")[: self.utterances]):
            leak = self.leak_of([tokens], self.size, only=[*FIRST, LAST[0]])
            found, seconds = timed(read_transcripts, leak)
            # The closed form omits the end mark.
            read = [*found.tokens[0], end] if len(found.tokens) == 1 else []
            bag = set_scores(rlg(leak.weight_gradient), set(tokens), exact="bag_exact")
            yield self.scored(read, tokens, seconds) | bag


class ReadLastLayer(ReadOrMatch, part="last layer"):
    """One utterance of `length` tokens, read from the last layer's gradient only."""

    number: int
    length: int

    def run(self) -> list[Columns]:
        """Read the utterance."""
        longer = [one for one in self.tokens_of(text.texts(self.source)) if len(one) >= self.length]
        if not longer:
            raise InputError(f"no text of '{self.source}' has {self.length} tokens")
        # The first tokens of a long enough text, and the end mark.
        tokens = [*longer[self.number * 7 % len(longer)][: self.length - 1], text.vocabulary(self.source).end]
        found, seconds = timed(read_output, self.leak_of([tokens], only=LAST))
        judged = certified(found.tokens, [tokens], found.status)
        return [self.scored(found.tokens[0], tokens, seconds) | judged | {"steps_found": found.inputs}]


def compared(number: int, found: Transcripts, tokens: Sequence[list[int]], seconds: float) -> Columns:
    """Compare the transcripts of a batch, read in closed form, with its true tokens, which contain the end marks."""
    return {
        "number": number,
        "length": sum(map(len, tokens)),
        "seconds": seconds,
        **certified(found.tokens, [one[:-1] for one in tokens], found.status),
        "worst": max((worst for worst, _ in found.misses), default=1.0),
        "other": min((other for _, other in found.misses), default=0.0),
    }


def summary(record: Record) -> Summary:
    """Return the finding: one gradient gives the transcript in order, without a search and without the bag."""
    known = claims.judgements(record)
    exact, bare = known["transcripts-untrained"], known["matched-matching-without-the-bag-exact-matches"]
    searched = known["matched-matching-with-the-bag-one-run-exact-matches"]
    read = ("transcripts-untrained", "transcripts-trained", "transcripts-sure")
    heard = ("spoken-transcripts", "spoken-digits-transcripts", "spoken-sure")
    return Summary(
        f"The decoder's first-layer gradient gives {exact.cases} transcripts exactly, in order, also after training, "
        f"and for synthesised ({known['spoken-transcripts'].cases}) or recorded speech "
        f"({known['spoken-digits-transcripts'].cases}). With the bag of words, the paper's search finds "
        f"{searched.cases} short transcripts in one run.",
        true=all(known[name].agrees for name in (*read, *heard))
        and (bare.value or 0) < (searched.value or 0) < (exact.value or 0),
        claim="transcripts-untrained",
        what="transcripts exact, untrained small recogniser, LibriSpeech texts with artificial speech",
        figure=figure_steps,
        of="utterances",
        leaks=Leaks(
            "the transcript of speech",
            "one utterance; an untrained speech recogniser of the paper's size",
            f"{known['transcripts-paper'].cases} transcripts exact",
            f"{two_digits(known['transcripts-seconds'].value or 0)} s",
            kind="text",
            attack="transcript",
        ),
        outcomes=_outcomes(record),
    )


def _outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["exact"].notna()].fillna({"size": "small", "of": 1})
    matching = "transcript by matching, " + rows["search"] + " search, " + rows["bag"] + " the bag of words"
    last, heard = rows["part"] == ReadLastLayer.part, rows["part"].isin([SYNTHESISED, RECORDED])
    rows = rows.assign(
        attack=matching.fillna("transcript, closed form").mask(last, "transcript, last layer"),
        data=rows["source"].mask(heard, rows["part"] + " speech"),
        right=(rows["read"] / rows["of"]).where(rows["of"] > 1, rows["exact"].astype(float)),
        cases=(rows["of"] > 1).map({True: "batches", False: "utterances"}),
    )
    return [
        outcome
        for cases, own in rows.groupby("cases")
        for outcome in collected(
            record, own, "text", share_of("right", "transcripts read exactly", str(cases)), attack=own["attack"],
            network=own["size"].map(RECOGNISERS), training=stages(own["trained"]), data=own["data"],
            batch=own["of"].astype(int),
        )
    ]  # fmt: skip


def figure_steps(record: Record) -> Figure:
    """Draw the relative distances of the right word and of a sample of others from the span at each step."""
    steps = record.rows(StepByStep)
    return draw_steps(steps, "rest", [piece.replace(text.SPACE, "") or "end" for piece in steps["piece"]])


def figure_ways(record: Record) -> Figure:
    """Draw the share of exact transcripts of each kind of matching, untrained, with its 95 % confidence interval.

    The name of each kind states the median CPU time of its runs together.
    """
    frame = select(record.rows(MatchOneUtterance), trained=0)
    frame = frame[frame["exact"].notna()]
    seconds = frame.groupby(["source", "search", "bag", "best_of"])["seconds"].transform("median")
    runs = frame["best_of"].map(lambda best: "" if best == 1 else f", best of {best:.0f}")
    names = frame["search"].map(TITLES) + ", " + frame["bag"] + " the bag" + runs + "\n"
    names += frame["source"].map(text.TITLES) + seconds.map(lambda time: f", {two_digits(time)} s")
    looks = crossed(SEARCHES, ("with", "without"))
    return drawn(
        frame.assign(name=names),
        proportions("exact", "name", by=["search", "bag"], interval=wilson_interval, looks=looks),
        height=0.8 + 0.4 * names.nunique(),
        xlabel="share of transcripts exact",
        xlim=(-0.03, 1.03),
    )


def figure_stages(record: Record) -> Figure:
    """Draw Figure 2: the quality of bags and transcripts against the steps of training."""
    closed = record.rows(ReadInClosedForm)
    matched = select(record.rows(MatchOneUtterance), source="sentences", search="softmax", bag="with", best_of=1)
    curves = {
        "bag, F1": (closed, "f1"),
        "bag, exact": (closed, "bag_exact"),
        "transcript, exact, closed form": (closed, "exact"),
        "transcript, exact, matching": (matched, "exact"),
        "transcript, word errors, matching": (matched, "word_errors"),
    }
    return drawn(
        pd.concat(
            rows.assign(curve=curve, share=rows[column].astype(float)) for curve, (rows, column) in curves.items()
        ),
        lines("trained", "share", by="curve", aside=0.04),
        places("trained", stage_of),
        height=3.2,
        legend=2,
        ylabel="share",
        ylim=(-0.05, 1.05),
        xmargin=0.1,
    )
