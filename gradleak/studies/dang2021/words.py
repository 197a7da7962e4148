"""The bag of words of an utterance, from the gradient of a recogniser

dang2021, sections 2.5.2 and 3: Tables 2 and 3, and the speech half of Table 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import claims, studies
from gradleak.data.speech import pseudo_speech
from gradleak.defenses import named
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.labels.hard.rlg_as_coded import rlg_as_coded
from gradleak.leak import Leak
from gradleak.models.recogniser import Recogniser
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.sequences.observed import observe_speech
from gradleak.sequences.words import outlying_words, rounded_rank
from gradleak.show.drawn import bars, drawn
from gradleak.show.headline import Headline
from gradleak.show.summaries import Measure, cells, count, mean, median, summary
from gradleak.spans import classes_span
from gradleak.studies import Experiment, setting
from gradleak.studies.dang2021.columns import COLUMNS
from gradleak.studies.dang2021.experiments import UNDEFENDED, PaperDefense, set_scores
from gradleak.studies.shared.outcomes import RECOGNISERS, Outcome, collected, share_of, stages
from gradleak.studies.shared.recognisers import (
    RATE,
    AttackedRecogniser,
    OnRecogniser,
    Source,
    about_utterances,
    attacked_texts,
    stage_of,
    texts_far_apart,
    tokens_of,
    with_stage,
)

PLACE = "Sections 2.5.2 and 3, Tables 2, 3 and 4"
CHUNK = 25  # utterances per experiment
MARKS = 2  # tokens up to this number are marks, not words


class Compared(AttackedRecogniser):
    """A recogniser whose utterances are attacked; RLG as coded is run on every `coded`-th utterance."""

    coded: Whole = Field(1, ge=1)


class Batch(Form):
    """Batches of utterances, written "utterances per step/local steps/batches"."""

    utterances: Whole
    local_steps: Whole
    count: Whole

    def check(self) -> None:
        """Raise an error if there is no utterance, step or batch."""
        if min(self.utterances, self.local_steps, self.count) < 1:
            raise InputError("utterances per step, local steps and batches must be at least 1")


class Parameters(studies.Parameters):
    """Parameters of the page: recognisers with their utterances, batches and defences."""

    source: Source = setting(paper="librispeech")
    rows: list[Compared] = setting(
        paper=["paper/0/402", "small/0/402/4", "small/100/402/4", "small/400/402/4"],
        smallest=["small/0/2/2"],
        validate_default=True,
    )
    batches: list[Batch] = setting(
        paper=["4/1/8", "8/1/4", "1/4/8", "1/8/4", "2/2/8"], smallest=["2/1/1"], validate_default=True
    )
    defenses: list[PaperDefense] = setting(
        paper=["none/0", "sign/0", "grad-drop/0.5", "grad-drop/0.9"], smallest=["none/0"], validate_default=True
    )
    defended: int = setting(paper=21, smallest=1, ge=1)

    def experiments(self) -> Iterator[Experiment]:
        """Yield single utterances, batches of each form, and each defence before and after training."""
        for row in self.rows:
            for first in range(0, row.utterances, CHUNK):
                yield SingleUtterances.of(self, **dict(row), first=first)
        small = next((row for row in self.rows if row.size != "paper"), self.rows[0])
        for form in self.batches:
            yield Batches.of(self, size=small.size, trained=0, form=str(form))
        for defense in self.defenses:
            for trained in (0, small.trained or self.rows[-1].trained):
                own = {"size": small.size, "trained": trained, "utterances": self.defended}
                yield BehindDefense.of(self, **own, defense=str(defense))

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return about_utterances(self.rows, self.source)


class RevealWords(OnRecogniser):
    """The words of utterances, recovered from the gradient of the last layer of a recogniser of one `size`."""

    size: str

    def observed(self, said: Iterable[str], defense: str = UNDEFENDED) -> Iterator[tuple[Leak, list[int]]]:
        """Yield the leak and the tokens of each utterance, behind a defence."""
        model = self.recogniser(self.size)
        for one in said:
            (tokens,) = tokens_of(self.source, [one])
            protection = named(defense, generator=None)
            leak = observe_speech(model, [pseudo_speech(one)], [tokens], only=["head.weight"], defense=protection)
            yield leak, tokens


class SingleUtterances(RevealWords):
    """Table 2: single utterances, numbered from `first`; RLG as coded is run on every `coded`-th utterance."""

    part: ClassVar[str] = "table 2"
    utterances: int
    first: int
    coded: int

    def run(self) -> Iterator[Columns]:
        """Find the words of each utterance."""
        said = attacked_texts(self.source, self.utterances)[self.first : self.first + CHUNK]
        for number, (leak, tokens) in enumerate(self.observed(said), start=self.first):
            gradient = leak.weight_gradient
            attacks = {"ours": _ours(gradient)}
            if number % self.coded == 0:
                attacks["as coded"] = partial(rlg_as_coded, gradient, len(tokens))
            yield from _revealed(number, attacks, [tokens])


class Batches(RevealWords):
    """Table 3: several utterances and local steps, from the sum of gradients and from the difference of weights."""

    part: ClassVar[str] = "table 3"
    form: str

    def run(self) -> Iterator[Columns]:
        """Find the words of each batch."""
        model, batch = self.recogniser(self.size), Batch.of(self.form)
        for number in range(batch.count):
            said = texts_far_apart(self.source, number, batch.utterances * batch.local_steps, self.seed)
            tokens = tokens_of(self.source, said)
            total, difference = (
                observe_speech(
                    model,
                    [pseudo_speech(one) for one in said],
                    tokens,
                    only=["head.weight"],
                    local_steps=batch.local_steps,
                    rate=RATE,
                    difference=weights,
                ).weight_gradient
                for weights in (False, True)
            )
            attacks: dict[str, Attack] = {
                "ours, sum": _ours(total),
                "ours, difference": _of_difference(difference, model, batch.local_steps),
                "as coded": partial(rlg_as_coded, difference, sum(map(len, tokens))),
            }
            yield from _revealed(number, attacks, tokens)


class BehindDefense(RevealWords):
    """The speech half of Table 4: single utterances behind a defence."""

    part: ClassVar[str] = "table 4"
    utterances: int
    defense: str

    def run(self) -> Iterator[Columns]:
        """Find the words of each utterance, also by an attack that allows for defences, which RLG does not."""
        said = attacked_texts(self.source, self.utterances)
        for number, (leak, tokens) in enumerate(self.observed(said, self.defense)):
            gradient = leak.weight_gradient
            attacks = {"ours": _ours(gradient)} if self.defense == UNDEFENDED else {}
            attacks |= {"as coded": partial(rlg_as_coded, gradient, len(tokens)), "outlying rows": _outlying(gradient)}
            yield from _revealed(number, attacks, [tokens])


# An attack that is run by a call; it returns a bag of tokens and the number of tokens.
Attack = Callable[[], tuple[set[int], int]]


def _ours(gradient: Tensor) -> Attack:
    return lambda: (rlg(gradient), classes_span(gradient).rank)


def _outlying(gradient: Tensor) -> Attack:
    def attack() -> tuple[set[int], int]:
        found = outlying_words(gradient)
        return found, len(found)

    return attack


def _of_difference(gradient: Tensor, model: Recogniser, steps: int) -> Attack:
    def attack() -> tuple[set[int], int]:
        rank = rounded_rank(gradient, model.head.weight, RATE, steps)
        return (rlg(gradient, rank=rank) if rank else set()), rank

    return attack


def _revealed(number: int, attacks: Mapping[str, Attack], tokens: Sequence[Sequence[int]]) -> Iterator[Columns]:
    """Run attacks and compare their results with the truth."""
    length = sum(map(len, tokens))
    truth = {token for one in tokens for token in one if token > MARKS}
    for name, attack in attacks.items():
        started = time.process_time()
        try:
            found, counted = attack()
        except InputError:
            # A gradient of full rank has no solution, and the attack makes no guess.
            found, counted = set(), 0
        seconds = time.process_time() - started
        scores = set_scores({token for token in found if token > MARKS}, truth)
        lengths = {"length": length, "length_error": abs(counted - length)}
        yield {"number": number, "attack": name, **lengths, **scores, "seconds": seconds}


def headline(record: Record) -> Headline:
    """Return the finding: the last layer's gradient gives all words, and signs do not hide them."""
    known = claims.judgements(record)
    paper, ours = known["words-rlg-untrained-exact-matches"], known["words-ours-paper"]
    signs, directions = known["words-defense-sign-exact-matches"], known["words-ours-sign"]
    return Headline(
        f"For {paper.cases} utterances, RLG recovers exactly which words were said, from one gradient of an untrained "
        f"speech recogniser; if only signs are sent (small recogniser), RLG recovers {signs.cases} bags of words, but "
        f"comparing the directions of rows recovers {directions.cases}.",
        true=bool(paper.agrees and ours.agrees and directions.agrees) and (signs.value or 0) <= 20,
        claim="words-rlg-untrained-exact-matches",
        what="utterances whose bag of words is exactly right (untrained recogniser of the paper's size, RLG as coded)",
        figure=figure_defenses,
        of="utterances",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 2: the bags of words of single utterances, a line for each recogniser, stage of training and attack.

    Columns: the mean error of the number of tokens, precision, recall, F1, the share of exact bags, the number of
    utterances, and the median CPU time (s).
    """
    rows = with_stage(record.rows(SingleUtterances))
    return summary(rows, {"recogniser": "size", "stage": "stage", "attack": "attack"}, _measures("utterances"))


def batch_table(record: Record) -> pd.DataFrame:
    """Return Table 3: the same for N utterances per step and K local steps, a line for each N, K and attack."""
    rows = record.rows(Batches)
    batches = [Batch.of(form) for form in rows["form"]]
    rows = rows.assign(N=[batch.utterances for batch in batches], K=[batch.local_steps for batch in batches])
    keys = {"utterances per step": "N", "local steps": "K", "attack": "attack"}
    return summary(rows, keys, _measures("batches"))


def _measures(counted: str) -> dict[str, Measure]:
    means = cells(COLUMNS, "length_error", "precision", "recall", "f1", "exact", by=mean)
    return means | {counted: count()} | cells(COLUMNS, "seconds", by=median)


def figure_defenses(record: Record) -> Figure:
    """Draw the share of exact bags behind each defence, a bar for each attack and a panel for each stage."""
    frame = record.rows(BehindDefense)
    names = frame["defense"].map(lambda defense: PaperDefense.of(defense).title.replace("grad-drop ", "dropped\n"))
    return drawn(
        frame.assign(defence=names),
        bars("defence", "exact", by="attack"),
        panels="trained",
        title=lambda trained: f"small recogniser, {stage_of(trained)}",
        legend=3,
        ylim=(0, 1.03),
        xlabel="defence",
        ylabel="share of bags exactly right",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, "form", "defense"]))).astype({"form": object})
    rows = rows.fillna({"form": "", "defense": UNDEFENDED})
    found = share_of("f1", "F1 of the bag of words", "utterances")
    forms = [Batch.of(form) if form else None for form in rows["form"]]
    return collected(
        record, rows, "text", found, attack="bag of words, " + rows["attack"], network=rows["size"].map(RECOGNISERS),
        training=stages(rows["trained"]), data=rows["source"], batch=[form.utterances if form else 1 for form in forms],
        defense=rows["defense"],
        client=[f"{form.local_steps} local steps" if form and form.local_steps > 1 else "float32" for form in forms],
    )  # fmt: skip
