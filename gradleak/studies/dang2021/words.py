"""The bag of words of an utterance, from the gradient of a recogniser

dang2021, sections 2.5.2 and 3: Tables 2 and 3, and the speech half of Table 4.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import studies
from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.defenses import named
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.labels.hard.rlg_as_coded import rlg_as_coded
from gradleak.leak import Leak
from gradleak.models.recogniser import SIZES, Recogniser
from gradleak.models.recogniser_training import trained_recogniser
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences.observed import observe_speech
from gradleak.sequences.words import outlying_words, rounded_rank
from gradleak.show import figures
from gradleak.spans import classes_span
from gradleak.studies.shared.defended import Defended

PLACE = "Sections 2.5.2 and 3, Tables 2, 3 and 4"
SMALLEST: dict[str, Any] = {"rows": ["small/0/2/2"], "batches": ["2/1/1"], "defended": 1, "defenses": ["none/0"]}
CHUNK = 25  # utterances a trial
MARKS = 2  # tokens up to this are no words
RATE = 0.1
BEHIND = {name: name for name in ("none", "sign", "grad-drop")}


class Behind(Defended):
    """A defence of the paper."""

    words: ClassVar = BEHIND


class Row(Form):
    """A recogniser, how long it has learned, and how many utterances are attacked."""

    size: str
    trained: Whole
    utterances: Whole

    def check(self) -> None:
        """Say so where there is no such recogniser."""
        if self.size not in SIZES or self.utterances < 1:
            raise InputError(f"a recogniser is one of {', '.join(SIZES)}, and utterances are 1 at least")


class Compared(Row):
    """The same, and RLG as coded beside on every so manieth utterance."""

    coded: Whole = Field(1, ge=1)


class Batch(Form):
    """Several utterances, shared out to local steps, and how many such batches."""

    utterances: Whole
    local_steps: Whole
    count: Whole

    def check(self) -> None:
        """Say so where nothing is left."""
        if min(self.utterances, self.local_steps, self.count) < 1:
            raise InputError("utterances a step, local steps and batches are 1 at least")


class Parameters(studies.Parameters):
    """What a rerun may change."""

    source: Literal["sentences", "librispeech"] = Field("sentences", description="texts that are said")
    rows: list[Compared] = Field(
        ["small/0/4/2", "small/4/2/2"],
        validate_default=True,
        description="recogniser/steps of training/utterances/RLG as coded on every so manieth",
    )
    batches: list[Batch] = Field(["1/2/1"], validate_default=True, description="utterances a step/local steps/batches")
    defenses: list[Behind] = Field(
        ["none/0", "sign/0", "grad-drop/0.9"], validate_default=True, description="defence/level"
    )
    defended: int = Field(2, ge=1, description="utterances a defence, of the first small recogniser")

    paper: ClassVar[dict[str, Any]] = {
        "source": "librispeech",
        "rows": ["paper/0/402", "small/0/402/4", "small/100/402/4", "small/400/402/4"],
        "batches": ["4/1/8", "8/1/4", "1/4/8", "1/8/4", "2/2/8"],
        "defenses": ["none/0", "sign/0", "grad-drop/0.5", "grad-drop/0.9"],
        "defended": 21,
    }


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads: texts are none."""
    del parameters
    return []


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return utterances_of(parameters.rows, parameters.source)


def utterances_of(rows: Sequence[Row], source: str) -> str:
    """Return how many utterances of a text a recogniser is given, at least and at most."""
    counts = sorted(row.utterances for row in rows)
    many = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    return f"{many} utterances a recogniser, {text.TITLES[source]}, made-up speech"


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: some utterances, the batches of one form, or one defence."""
    common = {"source": parameters.source, "seed": parameters.seed, "device": "cpu"}
    alone = [
        {"part": "table 2", "size": row.size, "trained": row.trained, "utterances": row.utterances}
        | {"first": first, "coded": row.coded, "form": "", "defense": "none/0"}
        for row in parameters.rows
        for first in range(0, row.utterances, CHUNK)
    ]
    small = next((row for row in parameters.rows if row.size != "paper"), parameters.rows[0])
    one = {"size": small.size, "trained": 0, "first": 0, "coded": 1}
    together = [
        {"part": "table 3", "form": str(form), "utterances": form.count, "defense": "none/0"} | one
        for form in parameters.batches
    ]
    behind = [
        {"part": "table 4", "form": "", "utterances": parameters.defended, "defense": str(defense)} | one | stage
        for defense in parameters.defenses
        for stage in ({"trained": 0}, {"trained": small.trained or parameters.rows[-1].trained})
    ]
    return [inputs | common for inputs in alone + together + behind]


def trial(
    part: str,
    source: str,
    size: str,
    trained: int,
    utterances: int,
    first: int,
    coded: int,
    form: str,
    defense: str,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Reveal the words of some utterances; a row an utterance, or batch of them, and attack."""
    del device
    model = recogniser_of(size, source, trained, seed)
    if part == "table 3":
        return _together(model, source, Batch.of(form), seed)
    chosen = spoken(source, utterances)
    last = first + CHUNK if part == "table 2" else len(chosen)
    rows = []
    for number, said in list(enumerate(chosen))[first:last]:
        tokens = tokens_of(source, [said])
        leak = observe_speech(
            model, [pseudo_speech(said)], tokens, only=["head.weight"], defense=named(defense, generator=None)
        )
        attacks = _alone(leak, len(tokens[0]), with_coded=number % coded == 0, adaptive=part == "table 4")
        if part == "table 4":
            attacks = {name: attack for name, attack in attacks.items() if name != "ours" or defense == "none/0"}
        rows += [{"number": number} | row for row in _measured(attacks, tokens)]
    return rows


@functools.lru_cache(maxsize=2)
def recogniser_of(size: str, source: str, trained: int, seed: int) -> Recogniser:
    """Return the recogniser of a row."""
    return trained_recogniser(size, source, trained, seed=seed)[0]


def spoken(source: str, count: int) -> list[str]:
    """Return so many of the texts that are attacked, evenly over all."""
    every = text.texts(source, "test")
    if count > len(every):
        raise InputError(f"there are {len(every)} utterances to attack; {count} were asked for")
    return [every[number * len(every) // count] for number in range(count)]


def tokens_of(source: str, said: Sequence[str]) -> list[list[int]]:
    """Return the tokens of texts, each with its end mark."""
    words = text.vocabulary(source)
    return [[*words.encode(one), words.end] for one in said]


Attack = Callable[[], tuple[set[int], int]]


def _alone(leak: Leak, told: int, *, with_coded: bool, adaptive: bool) -> dict[str, Attack]:
    """Return the attacks on one utterance: each gives a bag and a number of tokens."""
    gradient = leak.weight_gradient
    attacks: dict[str, Attack] = {"ours": lambda: (rlg(gradient), classes_span(gradient).rank)}
    if with_coded:
        attacks["as coded"] = lambda: rlg_as_coded(gradient, told)
    if adaptive:
        attacks["outlying rows"] = lambda: _counted(outlying_words(gradient))
    return attacks


def _counted(found: set[int]) -> tuple[set[int], int]:
    return found, len(found)


def _together(model: Recogniser, source: str, form: Batch, seed: int) -> list[dict[str, Any]]:
    """Reveal the words of several utterances and steps, from the sum of gradients and from a difference of weights."""
    every = text.texts(source, "test")
    size = form.utterances * form.local_steps
    rows = []
    for number in range(form.count):
        # Far apart in a list that is sorted by length; no batch shares one with another.
        said = [every[(number + k * (len(every) // size) + seed) % len(every)] for k in range(size)]
        tokens = tokens_of(source, said)
        told = sum(map(len, tokens))
        sounds = [pseudo_speech(one) for one in said]
        sent = {
            name: observe_speech(
                model,
                sounds,
                tokens,
                only=["head.weight"],
                local_steps=form.local_steps,
                rate=RATE,
                difference=named_so,
            ).weight_gradient
            for name, named_so in (("sum", False), ("difference", True))
        }
        attacks: dict[str, Attack] = {
            "ours, sum": lambda sent=sent: (rlg(sent["sum"]), classes_span(sent["sum"]).rank),  # type: ignore[misc]
            "ours, difference": lambda sent=sent: _of_difference(sent["difference"], model, form.local_steps),  # type: ignore[misc]
            "as coded": lambda sent=sent, told=told: rlg_as_coded(sent["difference"], told),  # type: ignore[misc]
        }
        rows += [{"number": number} | row for row in _measured(attacks, tokens)]
    return rows


def _of_difference(gradient: Tensor, model: Recogniser, steps: int) -> tuple[set[int], int]:
    rank = rounded_rank(gradient, model.head.weight, RATE, steps)
    return (rlg(gradient, rank=rank) if rank else set()), rank


def _measured(attacks: dict[str, Attack], tokens: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Run attacks and compare what they give with what was said."""
    length = sum(map(len, tokens))
    truth = {token for one in tokens for token in one if token > MARKS}
    rows = []
    for name, attack in attacks.items():
        started = time.process_time()
        try:
            found, counted = attack()
        except InputError:
            # Of full rank: there is no telling, and a guess is not made.
            found, counted = set(), 0
        seconds = time.process_time() - started
        found = {token for token in found if token > MARKS}
        both = len(found & truth)
        precision, recall = both / len(found) if found else 0.0, both / len(truth) if truth else 1.0
        rows.append(
            {
                "attack": name,
                "length": length,
                "length_error": abs(counted - length),
                "precision": precision,
                "recall": recall,
                "f1": 2 * precision * recall / (precision + recall) if both else 0.0,
                "exact": found == truth,
                "seconds": seconds,
            }
        )
    return rows


def stage_of(trained: Any) -> str:
    return f"after {trained:.0f} steps" if trained else "untrained"


def _line(group: pd.DataFrame) -> dict[str, Any]:
    return {
        "length error": f"{group['length_error'].mean():.3g}",
        "precision": f"{group['precision'].mean():.3f}",
        "recall": f"{group['recall'].mean():.3f}",
        "F1": f"{group['f1'].mean():.3f}",
        "exact": f"{100 * group['exact'].mean():.1f} %",
        "n": f"{len(group)}",
        "CPU-s": f"{group['seconds'].median():.2g}",
    }


def table(record: Record) -> pd.DataFrame:
    """Return Table 2: single utterances, a line a recogniser, its stage and attack."""
    keys = ["size", "trained", "attack"]
    return pd.DataFrame(
        [
            {"recogniser": size, "stage": stage_of(trained), "attack": attack} | _line(group)
            for (size, trained, attack), group in record.part("table 2").groupby(keys, sort=False)
        ]
    )


def batch_table(record: Record) -> pd.DataFrame:
    """Return Table 3: several utterances and local steps."""
    lines = []
    for (form, attack), group in record.part("table 3").groupby(["form", "attack"], sort=False):
        batch = Batch.of(str(form))
        lines.append({"N": str(batch.utterances), "K": str(batch.local_steps), "attack": attack} | _line(group))
    return pd.DataFrame(lines)


def defense_table(record: Record) -> pd.DataFrame:
    """Return the speech half of Table 4: what is left behind defences, and who allows for them."""
    keys = ["trained", "defense", "attack"]
    lines = []
    for (trained, defense, attack), group in record.part("table 4").groupby(keys, sort=False):
        one = Behind.of(str(defense))
        shown = f"{one.defense} {one.level:.0%}" if one.level else one.defense
        line = {name: value for name, value in _line(group).items() if name != "length error"}
        lines.append({"defence": shown, "stage": stage_of(trained), "attack": attack} | line)
    return pd.DataFrame(lines)


def figure_lengths(record: Record) -> Figure:
    """Draw the share of exact bags against the number of tokens, a panel a recogniser and stage."""
    frame = record.part("table 2").astype({"exact": float})
    frame = frame.assign(tokens=pd.cut(frame["length"], [0, 5, 9, 13, 99], labels=["to 5", "to 9", "to 13", "more"]))
    groups = list(frame.groupby(["size", "trained"], sort=False))
    figure, axes = figures.panels(1, len(groups), height=2.6, sharey=True)
    for axis, ((size, trained), group) in zip(axes[0], groups, strict=True):
        sns.barplot(group, x="tokens", y="exact", hue="attack", errorbar=None, width=0.7, ax=axis)
        axis.get_legend().remove()
        axis.set(title=f"{size}\n{stage_of(trained)}", xlabel="tokens", ylabel="", ylim=(0, 1.03))
        axis.grid(visible=False, axis="x")
    axes[0][0].set_ylabel("exact bags")
    figures.legend_below(figure, 2)
    return figure
