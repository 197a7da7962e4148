"""Matched transcripts: by matching gradients, and from the last layer alone

dang2021, section 4: Table 5 and Figure 2; Table 2's baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gradleak import claims, studies
from gradleak.data import text
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.sequences.matching import OURS, PRINTED, match_transcript
from gradleak.sequences.observed import FIRST
from gradleak.sequences.recovered import read_recovered
from gradleak.sequences.transcripts import read_transcripts
from gradleak.show import figures
from gradleak.show.drawn import drawn, lines, places, proportions
from gradleak.show.headline import Headline
from gradleak.show.summaries import cells, mean, median, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.dang2021.columns import COLUMNS
from gradleak.studies.dang2021.experiments import set_scores
from gradleak.studies.shared.outcomes import RECOGNISERS, Outcome, collected, share_of, stages
from gradleak.studies.shared.proportions import successes_with_interval, wilson_interval
from gradleak.studies.shared.recognisers import (
    LAST,
    OnRecogniser,
    Positive,
    Source,
    attacked_texts,
    stage_of,
    tokens_of,
)
from gradleak.studies.shared.transcript_errors import certified, timed, word_error_rate

PLACE = "Section 4, Table 5, Figure 2; Table 2"
SEARCHES = {"printed": PRINTED, "softmax": OURS}
TITLES = {"printed": "as printed", "softmax": "labels by softmax"}


class SearchedTexts(Form):
    """Texts and how they are searched for, written "source/search/training steps/starts with the bag/utterances"."""

    source: Source
    search: Literal["printed", "softmax"]
    trained: Whole
    starts: Positive
    utterances: Positive


class Stage(Form):
    """A recogniser of our own sentences, written "training steps/utterances"."""

    trained: Whole
    utterances: Positive


class Length(Form):
    """Utterances of a fixed length, written "tokens/utterances"."""

    tokens: Positive
    utterances: Positive


class Parameters(studies.Parameters):
    """Parameters of the page: texts that are matched, read at stages of training, or read from the last layer."""

    rows: list[SearchedTexts] = setting(
        paper=[
            "sentences/printed/0/5/24",
            "sentences/softmax/0/1/24",
            "sentences/softmax/100/1/12",
            "sentences/softmax/400/1/12",
            "librispeech/softmax/0/1/24",
            "librispeech/printed/0/1/6",
        ],
        smallest=["sentences/softmax/0/1/1"],
        validate_default=True,
    )
    steps: int = setting(paper=1200, ge=1)
    stages: list[Stage] = setting(paper=["0/80", "25/80", "100/80", "400/80"], smallest=["0/2"], validate_default=True)
    source: Source = setting(paper="librispeech")
    lengths: list[Length] = setting(
        paper=["4/2", "8/2", "12/2", "16/2", "20/2", "24/2", "28/2"], smallest=["4/1"], validate_default=True
    )

    def experiments(self) -> Iterator[Experiment]:
        """Yield the search for each utterance, the closed form at each stage, and utterances of each length."""
        for row in self.rows:
            steps = self.steps if row.search == "printed" else OURS.steps
            for number in range(row.utterances):
                yield MatchOneUtterance.of(self, **dict(row), steps=steps, number=number)
        for stage in self.stages:
            yield ReadInClosedForm.of(self, **dict(stage), source="sentences")
        for one in self.lengths:
            for number in range(one.utterances):
                yield ReadLastLayer.of(self, trained=0, number=number, length=one.tokens)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        most = max(row.utterances for row in self.rows)
        sources = " and ".join(dict.fromkeys(text.TITLES[row.source] for row in self.rows))
        return f"up to {most} utterances per search, {sources}, made-up speech"


class ReadOrMatch(OnRecogniser):
    """Utterances whose transcripts are read or searched for."""

    def compared(self, read: Sequence[int], tokens: Sequence[int], seconds: float) -> Columns:
        """Compare a transcript with the truth, in order and as a bag of words."""
        words = text.vocabulary(self.source)
        return {
            "length": len(tokens),
            "exact": list(read) == list(tokens),
            "word_errors": word_error_rate(words.decode(read), words.decode(tokens)),
            "seconds": seconds,
            **compared_bags(set(read), set(tokens)),
        }


class MatchOneUtterance(ReadOrMatch):
    """One utterance, matched without its bag of words from one start, and with the bag from several starts.

    Attributes:
        search: The search.
        starts: The number of starts with the bag of words.
        steps: The number of steps of the search.
        utterances: The number of utterances among which the utterance is chosen.
        number: The number of the utterance.
    """

    part: ClassVar[str] = "matching"
    search: str
    starts: int
    steps: int
    utterances: int
    number: int

    def run(self) -> Iterator[Columns]:
        """Search, and compare the results; the last row holds the gains by the bag and by further starts."""
        (tokens,) = tokens_of(self.source, [short(self.source, self.utterances)[self.number]])
        leak = self.leak_of([tokens], only=[*FIRST, *LAST])
        search = replace(SEARCHES[self.search], steps=self.steps)
        exact = {}
        for bag, starts in (("without", 1), ("with", self.starts)):
            words: Literal["revealed"] | None = "revealed" if bag == "with" else None
            found, seconds = timed(match_transcript, leak, search, bag=words, starts=starts, seed=self.seed)
            # The first start is the result of a single run, and takes this share of the time.
            tries = {1: found.attempts[0], starts: found.tokens}
            for best_of, read in tries.items():
                row = self.compared(read, tokens, seconds * best_of / starts)
                exact[bag, best_of] = float(read == tokens)
                distance = float(found.distances[:best_of].min())
                yield row | {"bag": bag, "best_of": best_of, "variables": found.variables, "distance": distance}
        yield {
            "bag": "",
            "best_of": 0,
            "bag_gains": exact["with", 1] - exact["without", 1],
            "starts_gain": exact["with", self.starts] - exact["with", 1],
        }


class ReadInClosedForm(ReadOrMatch):
    """The bag and the transcript of some utterances, read in closed form at a stage of training."""

    part: ClassVar[str] = "stages"
    utterances: int

    def run(self) -> Iterator[Columns]:
        """Read each utterance."""
        end = text.vocabulary(self.source).end
        for tokens in tokens_of(self.source, text.texts(self.source, "test")[: self.utterances]):
            leak = self.leak_of([tokens], only=[*FIRST, LAST[0]])
            found, seconds = timed(read_transcripts, leak)
            # The closed form omits the end mark.
            read = [*found.tokens[0], end] if len(found.tokens) == 1 else []
            yield self.compared(read, tokens, seconds) | compared_bags(rlg(leak.weight_gradient), set(tokens))


class ReadLastLayer(ReadOrMatch):
    """One utterance of `length` tokens, read from the last layer's gradient only."""

    part: ClassVar[str] = "last layer"
    number: int
    length: int

    def run(self) -> list[Columns]:
        """Read the utterance."""
        tokens = tokens_long(self.source, self.length, self.number)
        found, seconds = timed(read_recovered, self.leak_of([tokens], only=LAST))
        judged = certified([found.tokens], [tokens], [found.status])
        return [self.compared(found.tokens, tokens, seconds) | judged | {"steps_found": found.steps}]


def short(source: str, count: int) -> list[str]:
    """Return `count` of the attacked texts: evenly spaced ones of LibriSpeech, the shortest of our own sentences."""
    evenly = attacked_texts(source, count)
    if source != "sentences":
        return evenly
    every = text.texts(source, "test")
    lengths = [len(tokens) for tokens in tokens_of(source, every)]
    return [every[place] for place in np.argsort(lengths, kind="stable")[:count]]


def tokens_long(source: str, length: int, number: int) -> list[int]:
    """Return `length` tokens: the first ones of a long enough text, and the end mark."""
    every = tokens_of(source, text.texts(source))
    longer = [one for one in every if len(one) >= length]
    if not longer:
        raise InputError(f"no text of '{source}' has {length} tokens")
    chosen = longer[number * 7 % len(longer)]
    return [*chosen[: length - 1], text.vocabulary(source).end]


def compared_bags(found: set[int], truth: set[int]) -> Columns:
    """Compare a bag of words with the true one."""
    scores = set_scores(found, truth)
    return {"bag_exact" if name == "exact" else name: score for name, score in scores.items()}


def _searches(record: Record) -> pd.DataFrame:
    """Return the rows of searches, without those of gains, with the titles of their texts and searches."""
    frame = record.rows(MatchOneUtterance)
    frame = frame[frame["best_of"] > 0].astype({"best_of": int, "exact": bool, "bag_exact": bool})
    return frame.assign(texts=frame["source"].map(text.TITLES), way=frame["search"].map(TITLES))


def headline(record: Record) -> Headline:
    """Return the finding: the way in which labels are searched limits the paper's matching."""
    known = claims.judgements(record)
    one, best = (known[f"matched-matching-with-the-bag-{runs}-exact-matches"] for runs in ("one-run", "best-of-five"))
    softmax = known["matched-softmax-with"]
    return Headline(
        f"Given the bag of words, the paper's gradient matching recovers {one.cases} short transcripts in one run and "
        f"{best.cases} in the best of five; with labels as a softmax, a change of one line, one run recovers "
        f"{softmax.cases}.",
        true=(one.value or 0) < (best.value or 0) < (softmax.value or 0) and bool(softmax.agrees),
        claim="matched-matching-with-the-bag-one-run-exact-matches",
        what="transcripts exact in one run as printed, with the bag of words (small recogniser, our own sentences)",
        figure=figure_ways,
        of="utterances",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 5: the results of matching on an untrained recogniser.

    One row for each text, search, use of the bag and number of starts.
    """
    return summary(
        select(_searches(record), trained=0),
        {"texts": "texts", "search": "way", "bag": "bag", "runs": "best_of"},
        cells(COLUMNS, "variables", by=mean)
        | {"transcripts exact": successes_with_interval("exact")}
        | cells(COLUMNS, "word_errors", by=mean)
        | cells(COLUMNS, "distance", "seconds", by=median),
    )


def bag_table(record: Record) -> pd.DataFrame:
    """Return Table 2's baseline: the bag of words from matching without the bag, a row for each search and text."""
    return summary(
        select(_searches(record), bag="without", trained=0),
        {"search": "way", "texts": "texts"},
        cells(COLUMNS, "precision", "recall", "f1", by=mean) | {"bags exact": successes_with_interval("bag_exact")},
    )


def figure_ways(record: Record) -> Figure:
    """Draw the share of exact transcripts of each kind of matching, untrained, with its 95 % confidence interval."""
    frame = select(_searches(record), trained=0)
    runs = frame["best_of"].map(lambda best: "" if best == 1 else f", best of {best}")
    names = frame["way"] + ", " + frame["bag"] + " the bag" + runs + "\n" + frame["texts"]
    looks = {
        f"{search}, {bag}": {"color": colour, "marker": marker, "markersize": 8}
        for search, colour in zip(SEARCHES, figures.COLOURS, strict=False)
        for bag, marker in (("with", "o"), ("without", "s"))
    }
    return drawn(
        frame.assign(name=names),
        proportions("exact", "name", by=["search", "bag"], interval=wilson_interval, looks=looks),
        height=0.8 + 0.4 * names.nunique(),
        xlabel="share of transcripts exact",
        xlim=(-0.03, 1.03),
    )


def figure_stages(record: Record) -> Figure:
    """Draw Figure 2: the quality of bags and transcripts against the steps of training."""
    stages = record.rows(ReadInClosedForm).astype({"exact": float, "bag_exact": float}).groupby("trained")
    matched = select(_searches(record), source="sentences", search="softmax", bag="with", best_of=1)
    alone = matched.astype({"exact": float}).groupby("trained")
    curves = {
        "bag, F1": stages["f1"].mean(),
        "bag, exact": stages["bag_exact"].mean(),
        "transcript, exact, closed form": stages["exact"].mean(),
        "transcript, exact, matching": alone["exact"].mean(),
        "transcript, word errors, matching": alone["word_errors"].mean(),
    }
    return drawn(
        pd.concat(curves, names=["curve", "trained"]).rename("share").reset_index(),
        lines("trained", "share", by="curve", aside=0.04),
        places("trained", stage_of),
        height=3.2,
        legend=2,
        ylabel="share",
        ylim=(-0.05, 1.05),
        xmargin=0.1,
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["exact"].notna()]
    exact = share_of("exact", "transcripts read exactly", "utterances")
    matching = "transcript by matching, " + rows["search"] + " search, " + rows["bag"] + " the bag of words"
    others = rows["part"].map({"stages": "transcript, closed form", "last layer": "transcript, last layer"})
    return collected(
        record, rows, "text", exact, attack=others.fillna(matching), network=RECOGNISERS["small"],
        training=stages(rows["trained"]), data=rows["source"],
    )  # fmt: skip
