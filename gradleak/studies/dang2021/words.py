"""The bag of words of an utterance, from the gradient of a recogniser

dang2021, sections 2.5.2 and 3: Tables 2 and 3, and the speech half of Table 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt
from torch import Tensor

from gradleak import claims, defenses, studies
from gradleak.data import text
from gradleak.labels.hard.rlg import rlg
from gradleak.labels.hard.rlg_as_coded import rlg_as_coded, rlg_screened
from gradleak.sequences.observed import last_gradient
from gradleak.sequences.words import outlying_words, rounded_rank
from gradleak.show.drawn import bars, drawn
from gradleak.show.summary import Summary
from gradleak.spans import classes_span
from gradleak.studies import Columns, Experiment, Group, Record, setting
from gradleak.studies.dang2021.experiments import UNDEFENDED, PaperDefense, set_scores
from gradleak.studies.shared.attempts import timed, unless_refused
from gradleak.studies.shared.outcomes import RECOGNISERS, collected, share_of, stages
from gradleak.studies.shared.recognisers import RATE, AttackedRecogniser, OnRecogniser, Source, last_inputs, stage_of

PLACE = "Sections 2.5.2 and 3, Tables 2, 3 and 4"
CHUNK, TOGETHER = 25, 4  # utterances per experiment, and batches
MARKS = 2  # tokens up to this number are marks, not words
POOLED = "as coded, all utterances together"
# A bag of tokens, and the number of tokens.
Bag = tuple[set[int], int]


class Compared(AttackedRecogniser):
    """A recogniser whose utterances are attacked; RLG as coded is run on every `coded`-th utterance."""

    coded: PositiveInt


class Batch(Group):
    """Batches of utterances: the utterances per step, the local steps, and the number of batches."""

    utterances: PositiveInt
    local_steps: PositiveInt
    count: PositiveInt


class Compressed(PaperDefense):
    """A defence, its level, and the number of utterances that are attacked by RLG as coded."""

    utterances: int = Field(ge=1)


class Parameters(studies.Parameters):
    """Parameters of the page: recognisers with their utterances, batches and defences.

    Recorded utterances, and batches and defences for RLG as coded alone, are those of the first recogniser of
    `recorded`, or of `rows` if there is none.
    """

    source: Source = setting(paper="librispeech")
    rows: list[Compared] = setting(
        paper=Compared.listed(("paper", 0, 402, 1), *(("small", trained, 402, 4) for trained in (0, 100, 400))),
        smallest=Compared.listed(("small", 0, 2, 2)),
    )
    recorded: list[Compared] = setting(paper=Compared.listed(("paper", 0, 359, 1)), smallest=[])
    batches: list[Batch] = setting(
        paper=Batch.listed((4, 1, 8), (8, 1, 4), (1, 4, 8), (1, 8, 4), (2, 2, 8)), smallest=Batch.listed((2, 1, 1))
    )
    published: list[Batch] = setting(
        paper=Batch.listed((4, 1, 100), (8, 1, 100), (1, 4, 100), (2, 2, 100), (1, 8, 100)),
        smallest=Batch.listed((2, 1, 1), (1, 2, 1)),
    )
    defenses: list[PaperDefense] = setting(
        paper=["none/0", "sign/0", "grad-drop/0.5", "grad-drop/0.9"], smallest=["none/0"]
    )
    defended: int = setting(paper=21, smallest=1, ge=1)
    compressed: list[Compressed] = setting(
        paper=["sign/0/60", "grad-drop/0.5/60", "grad-drop/0.9/60"], smallest=["sign/0/1"]
    )
    compared: int = setting(paper=40, smallest=1, ge=1)

    def experiments(self) -> Iterator[Experiment]:
        """Yield single utterances, batches of each form, and each defence before and after training.

        Then RLG as coded on batches and behind defences, and on artificial beside recorded speech.
        """
        for source, rows in ((self.source, self.rows), (text.RECORDED, self.recorded)):
            for row in rows:
                for first in range(0, row.utterances, CHUNK):
                    yield SingleUtterances.of(self, **dict(row), source=source, first=first)
        small = next((row for row in self.rows if row.size != "paper"), self.rows[0])
        for form in self.batches:
            yield Batches.of(self, size=small.size, trained=0, form=str(form))
        for defense in self.defenses:
            for trained in (0, small.trained or self.rows[-1].trained):
                own = {"size": small.size, "trained": trained, "utterances": self.defended}
                yield BehindDefense.of(self, **own, defense=str(defense))
        heard = (self.recorded or self.rows)[0]
        on: Columns = {
            "source": text.RECORDED if self.recorded else self.source,
            "size": heard.size,
            "trained": heard.trained,
        }
        yield SpeechCompared.of(self, **on, utterances=self.compared)
        for sent in self.compressed:
            behind = {"defense": f"{sent.defense}/{sent.level:g}", "utterances": sent.utterances}
            yield PublishedBehindDefense.of(self, **on, **behind)
        for batch in self.published:
            shape = f"{batch.utterances}/{batch.local_steps}"
            for first in range(0, batch.count, TOGETHER):
                yield PublishedBatches.of(self, **on, form=shape, first=first, batches=batch.count)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        most = max(row.utterances for row in self.rows)
        return f"up to {most} utterances per recogniser, {text.TITLES[self.source]}"


class RevealWords(OnRecogniser):
    """The words of utterances, recovered from the gradient of the last layer of a recogniser of one `size`."""

    size: str

    def gradient(self, tokens: Sequence[list[int]], **sent: Any) -> Tensor:
        """Return the gradient of the last layer that a client sends."""
        return self.leak_of(tokens, self.size, only=["head.weight"], **sent).weight_gradient

    def at_once(self, tokens: Sequence[list[int]], source: str = "") -> Tensor:
        """Return the gradient of one step, computed from the last layer's inputs, which are kept for further batches.

        Args:
            tokens: The tokens of each utterance, with the end mark.
            source: The text whose speech is heard; by default the experiment's.
        """
        source, words = source or self.source, text.vocabulary(self.source)
        said = [last_inputs(self.size, source, self.trained, self.seed, words.decode(one)) for one in tokens]
        return last_gradient(self.recogniser(self.size), torch.cat(said), [token for one in tokens for token in one])

    def change_at_once(self, tokens: Sequence[list[int]]) -> Tensor:
        """Return the gradient of one step as the difference of float32 weights before and after it."""
        weights = self.recogniser(self.size).head.weight.detach()
        return (weights - (weights - RATE * self.at_once(tokens))) / RATE


class SingleUtterances(RevealWords, part="table 2"):
    """Table 2: single utterances, numbered from `first`; RLG as coded is run on every `coded`-th utterance."""

    utterances: int
    first: int
    coded: int

    def run(self) -> Iterator[Columns]:
        """Find the words of each utterance."""
        every = list(enumerate(self.attacked_tokens(self.utterances)))
        for number, tokens in every[self.first : self.first + CHUNK]:
            gradient = self.at_once([tokens])
            attacks = {"ours": partial(ours, gradient)}
            if number % self.coded == 0:
                attacks["as coded"] = partial(rlg_as_coded, gradient, len(tokens))
            yield from revealed(number, attacks, [tokens])


class Batches(RevealWords, part="table 3"):
    """Table 3: several utterances and local steps, from the sum of gradients and from the difference of weights."""

    form: str

    def run(self) -> Iterator[Columns]:
        """Find the words of each batch."""
        utterances, steps, batches = map(int, self.form.split("/"))
        weights = self.recogniser(self.size).head.weight
        for number in range(batches):
            tokens = self.batch_of(number, utterances * steps)
            sent = {"local_steps": steps, "rate": RATE}
            total, change = (self.gradient(tokens, **sent, difference=difference) for difference in (False, True))
            attacks = {
                "ours, sum": partial(ours, total),
                "ours, difference": partial(of_difference, change, weights, steps),
            }
            yield from revealed(number, attacks, tokens)


class BehindDefense(RevealWords, part="table 4"):
    """The speech half of Table 4: single utterances behind a defence."""

    utterances: int
    defense: str

    def run(self) -> Iterator[Columns]:
        """Find the words of each utterance, also by an attack that allows for defences, which RLG does not."""
        for number, tokens in enumerate(self.attacked_tokens(self.utterances)):
            gradient = self.gradient([tokens], defense=defenses.named(self.defense, generator=None))
            attacks = {"ours": partial(ours, gradient)} if self.defense == UNDEFENDED else {}
            attacks |= {
                "as coded": partial(rlg_as_coded, gradient, len(tokens)),
                "outlying rows": partial(outlying, gradient),
            }
            yield from revealed(number, attacks, [tokens])


class PublishedBehindDefense(RevealWords, part="table 4 as coded"):
    """Single utterances behind a defence of the difference of weights, attacked by RLG as coded."""

    utterances: int
    defense: str

    def run(self) -> Iterator[Columns]:
        """Find the words of each utterance, and measure all of them together as the code does.

        It pools the words of all utterances in which some word was found, and leaves the other utterances out.
        """
        defense = defenses.named(self.defense, generator=None)
        bags = []
        for number, tokens in enumerate(self.attacked_tokens(self.utterances)):
            sent = defense({"head.weight": self.change_at_once([tokens])})["head.weight"]
            bag, seconds = timed(rlg_screened, sent, len(tokens))
            yield compared(number, "as coded", bag, [tokens]) | {"seconds": seconds}
            if words_of(bag[0]):
                bags.append((words_of(bag[0]), words_of(tokens)))
        found, said = ({(place, word) for place, pair in enumerate(bags) for word in pair[which]} for which in (0, 1))
        exact = sum(one == other for one, other in bags) / max(1, len(bags))
        yield {"attack": POOLED, **set_scores(found, said), "exact": exact, "count": len(bags)}


class PublishedBatches(RevealWords, part="table 3 as coded"):
    """Batches and local steps, numbered from `first` and attacked by RLG as coded, from the difference of weights."""

    form: str
    first: int
    batches: int

    def run(self) -> Iterator[Columns]:
        """Find the words of each batch."""
        utterances, steps = map(int, self.form.split("/"))
        for number in range(self.batches)[self.first : self.first + TOGETHER]:
            tokens = self.batch_of(number, utterances * steps)
            if steps > 1:
                change = self.gradient(tokens, local_steps=steps, rate=RATE, difference=True)
            else:
                change = self.change_at_once(tokens)
            yield from revealed(number, {"as coded": partial(rlg_as_coded, change, sum(map(len, tokens)))}, tokens)


class SpeechCompared(RevealWords, part="speech"):
    """Single utterances, heard as the experiment's source has them and in artificial speech."""

    utterances: int

    def run(self) -> Iterator[Columns]:
        """Run RLG as coded on both, and state whether it finds the same words."""
        artificial = "librispeech" if self.source == text.RECORDED else self.source
        for number, tokens in enumerate(self.attacked_tokens(self.utterances)):
            one, other = (
                rlg_as_coded(self.at_once([tokens], source), len(tokens))[0] for source in (self.source, artificial)
            )
            yield {"number": number, "attack": "as coded", "same": one == other}


def ours(gradient: Tensor) -> Bag:
    """Return the bag by RLG, and the rank of the gradient's normalised rows."""
    return rlg(gradient), classes_span(gradient).rank


def outlying(gradient: Tensor) -> Bag:
    """Return the tokens whose rows point in another direction than most."""
    found = outlying_words(gradient)
    return found, len(found)


def of_difference(change: Tensor, weights: Tensor, steps: int) -> Bag:
    """Return the bag from a difference of rounded weights."""
    rank = rounded_rank(change, weights, RATE, steps)
    return (rlg(change, rank=rank) if rank else set()), rank


def revealed(
    number: int, attacks: Mapping[str, Callable[[], Bag]], tokens: Sequence[Sequence[int]]
) -> Iterator[Columns]:
    """Run attacks and compare their results with the truth."""
    nothing: Bag = set(), 0
    for name, attack in attacks.items():
        # A gradient of full rank has no solution, and RLG then refuses.
        bag, seconds = timed(unless_refused, attack, nothing)
        yield compared(number, name, bag, tokens) | {"seconds": seconds}


def compared(number: int, attack: str, bag: Bag, tokens: Sequence[Sequence[int]]) -> Columns:
    """Return the row that compares what an attack found with the truth."""
    length = sum(map(len, tokens))
    return {
        "number": number,
        "attack": attack,
        "length": length,
        "length_error": abs(bag[1] - length),
        **set_scores(words_of(bag[0]), words_of(*tokens)),
    }


def words_of(*tokens: Iterable[int]) -> set[int]:
    """Return the tokens that are words, each once."""
    return {token for one in tokens for token in one if token > MARKS}


def summary(record: Record) -> Summary:
    """Return the finding: the last layer's gradient gives all words, and signs do not hide them."""
    known = claims.judgements(record)
    paper, ours = known["words-rlg-untrained-exact-matches"], known["words-ours-paper"]
    directions = known["words-ours-sign"]
    coded = record.rows(PublishedBehindDefense)
    signs = coded["exact"][(coded["defense"] == "sign/0") & (coded["attack"] == "as coded")]
    rows = record.frame().dropna(subset="length").fillna({"form": "1/1/1", "defense": UNDEFENDED})
    batches = rows["form"].str.split("/", expand=True)[[0, 1]].astype(int)
    outcomes = collected(
        record, rows, "text", share_of("f1", "F1 of the bag of words", "utterances"),
        attack="bag of words, " + rows["attack"], network=rows["size"].map(RECOGNISERS),
        training=stages(rows["trained"]), data=rows["source"], batch=batches[0], defense=rows["defense"],
        client=[f"{steps} local steps" if steps > 1 else "float32" for steps in batches[1]],
    )  # fmt: skip
    return Summary(
        f"For {paper.cases} recorded utterances, RLG recovers exactly which words were said, from one gradient of an "
        f"untrained speech recogniser; if only signs are sent, RLG recovers {signs.sum():.0f} of {len(signs)} bags, "
        f"but comparing the directions of rows recovers {directions.cases} (small recogniser).",
        true=bool(paper.agrees and ours.agrees and directions.agrees and signs.mean() <= 0.2),
        claim="words-rlg-untrained-exact-matches",
        what="utterances whose bag of words is exactly right (untrained recogniser of the paper's size, RLG as coded)",
        figure=figure_defenses,
        of="utterances",
        outcomes=outcomes,
    )


def figure_defenses(record: Record) -> Figure:
    """Draw the share of exact bags behind each defence, a bar for each attack and a panel for each stage."""
    frame = record.rows(BehindDefense)
    names = frame["defense"].map(defenses.shown).str.replace("grad-drop ", "dropped\n").str.replace(" per", "\nper")
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
