"""What each attack of a page reached, in one shape for all pages: the rows of the book's explorer.

A study's summary states which rows of its record are outcomes of an attack:

    rows = record.frame()
    collected(record, rows, "images", PSNR, attack="closed form", network="lenet", batch=rows["size"])

`collected` groups the rows by these axes, and summarises each group by a measure with its 95 % interval.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest, quantile_test, t

from gradleak import data, defenses
from gradleak.errors import InputError, unknown
from gradleak.metrics import SCALE
from gradleak.show.summary import NAMES
from gradleak.studies import Record

Kind = Literal["labels", "soft labels", "features", "images", "text"]
Numbers = NDArray[np.float64]
Axis = str | int | pd.Series | Sequence[str | int]
KINDS: tuple[Kind, ...] = get_args(Kind)
# What distinguishes outcomes, and its value where a page does not state it.
AXES: dict[str, str | int] = {
    "attack": "",
    "network": "",
    "training": "untrained",
    "data": "",
    "batch": 1,
    "defense": "none",
    "client": "float32",
    "detail": "",
}
# How records of wainakh2021's pages name defences, and how `gradleak.defenses` does.
WORDS = {
    "noise": "gaussian-variance",
    "noise-coded": "gaussian",
    "dp-coded": "dp-tensors",
    "prune-coded": "prune-tensors",
}
# What attackers know, by their names in the records of wang2024's pages.
KNOWLEDGE = {"aware": "defence known", "unaware": "defence unknown", "as one step": "taken for one step"}
# The recognisers of dang2021's pages.
RECOGNISERS = {"paper": "recogniser of the paper", "small": "small recogniser", "small-2": "small recogniser, 2 layers"}
# The families of defences, by the first part of a defence's name.
FAMILIES = {
    "none": "none", "gaussian": "noise", "gaussian-variance": "noise", "laplace": "noise", "noise-share": "noise",
    "clip": "clipping", "clip-share": "clipping",
    "dp": "clipping and noise", "dp-tensors": "clipping and noise", "release": "clipping and noise",
    "dp-sgd": "clipping and noise",
    "prune": "pruning", "prune-tensors": "pruning", "grad-drop": "pruning",
    "sign": "signs only",
    "quantize": "rounding", "half": "rounding", "bfloat16": "rounding",
    "withheld": "layers not sent",
}  # fmt: skip
# A defence of this family multiplies the gradient by one number, which an attacker can solve for.
RESCALING = "clipping"
# Defences that are not in `gradleak.defenses`, as tables show them.
SHOWN = {
    "noise-share": "noise, {} of a tensor's root mean square",
    "release": "clip {} of the norm, noise {} of that",
    "dp-sgd": "per-sample clipping, noise multiplier {}",
    "withheld": "not sending the gradient of {}",
}
# The layers that a client withholds, as tables show them.
LAYERS = {
    "embedding": "the embedding",
    "head": "the last layer",
    "recurrent": "the recurrent layers",
    "decoder": "the decoder",
    "decoder and head": "the decoder and the last layer",
}
# Significant bits that a rounded gradient keeps; `quantize` states its bits itself.
BITS = {"half": 11.0, "bfloat16": 8.0, "float16": 11.0}
# How much an attack recovers: from this share of what guessing leaves open; of images, from the PSNRs of `SCALE`.
LEVELS = ("little or nothing", "some", "most", "everything")
SHARES = (0.1, 0.5, 0.99)


@dataclass(frozen=True)
class Outcome:
    """What an attack reached in one setting of a page.

    Attributes:
        leak: What leaks.
        attack: The attack.
        network: The client's network.
        training: "untrained" or "trained".
        data: The dataset.
        batch: The number of samples in the batch.
        defense: The client's defence, written name/level.
        client: What else is special about the client: its precision, or local steps.
        detail: Other differences between settings, such as the kind of labels, in words.
        measure: The measure of success.
        unit: "%" or "dB".
        value: The measure's value; −∞ dB for a lost image.
        low: The lower end of its 95 % interval; NaN if there are too few cases for one.
        high: The upper end.
        count: The number of cases.
        cases: What these are, such as "batches".
        chance: The value that guessing reaches (%).
        cosine: The cosine of the gradient that is sent with the true one; NaN if it is not recorded.
        page: The name of the page.
    """

    leak: Kind
    attack: str
    network: str
    training: str
    data: str
    batch: int
    defense: str
    client: str
    detail: str
    measure: str
    unit: str
    value: float
    low: float
    high: float
    count: int
    cases: str
    chance: float
    cosine: float
    page: str

    @property
    def family(self) -> str:
        """The family of the defence."""
        return family(self.defense)

    @property
    def severity(self) -> int:
        """How much leaks, as an index of `LEVELS`."""
        if self.unit == "dB":
            return sum(self.value >= least for least in SCALE.values())
        left = 100.0 - self.chance
        share = (self.value - self.chance) / left if left > 0 else 0.0
        return sum(share >= bound for bound in SHARES)

    @property
    def bits(self) -> float:
        """The significant bits that the gradient keeps; NaN if neither a defence nor the client rounds it."""
        name, _, level = self.defense.partition("/")
        if name == "quantize":
            return float(level)
        return BITS.get(name, BITS.get(self.client, math.nan))


def family(defense: str) -> str:
    """Return the family of a defence that is written name/level."""
    name, *levels = defense.split("/")
    if name not in FAMILIES:
        raise unknown("defence", name, FAMILIES)
    # Without noise only the clipping is left.
    return RESCALING if name in ("release", "dp-sgd") and float(levels[-1]) == 0 else FAMILIES[name]


def defense_in_words(defense: str) -> str:
    """Return the description of a defence for tables.

    Examples:
        >>> defense_in_words("prune/0.2"), defense_in_words("withheld/head")
        ('prune 20% of all', 'not sending the gradient of the last layer')
    """
    name, *levels = defense.split("/")
    if name not in SHOWN:
        return defenses.shown(defense)
    return SHOWN[name].format(*(LAYERS.get(level, level) for level in levels))


@dataclass(frozen=True)
class Value:
    """A summary of rows: its value, the ends of the 95 % interval, and the number of cases."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Measure:
    """A measure of success: how it summarises columns of numbers, one number for each row.

    Attributes:
        name: The measure's name.
        unit: "%" or "dB".
        cases: The unit in which cases are counted, such as "batches".
        columns: The columns that it summarises.
        summarise: Returns the summary of these columns' numbers.
    """

    name: str
    unit: Literal["%", "dB"]
    cases: str
    columns: tuple[str, ...]
    summarise: Callable[..., Value]


def share_of(column: str, name: str, cases: str) -> Measure:
    """Measure the mean of a column of booleans or shares, one for each case.

    Args:
        column: The column. Its values lie between 0 and 1; a missing value is a failure.
        name: The measure's name.
        cases: What the rows are, such as "batches".
    """

    def summarise(values: Numbers) -> Value:
        shares = np.nan_to_num(values)
        return _of_share(float(shares.mean()), float(shares.std(ddof=1)) if len(shares) > 1 else 0.0, len(shares))

    return Measure(name, "%", cases, (column,), summarise)


def average_of(
    column: str, name: str, cases: str, *, of: float = 100.0, spread: str = "", count: str = "count"
) -> Measure:
    """Measure a share that each row states as the mean over several cases.

    Args:
        column: The column of the means, between 0 and `of`.
        name: The measure's name.
        cases: What the cases are.
        of: The value of a complete success.
        spread: The column of the cases' standard deviation; "" if there is none.
        count: The column of the number of cases.
    """

    def summarise(means: Numbers, counts: Numbers, spreads: Numbers | None = None) -> Value:
        mean = float(np.average(means / of, weights=counts))
        if spreads is None:
            return _of_share(mean, 0.0, int(counts.sum()))
        inside, between = (np.nan_to_num(spreads) / of) ** 2, (means / of - mean) ** 2
        return _of_share(mean, math.sqrt(float(np.average(inside + between, weights=counts))), int(counts.sum()))

    return Measure(name, "%", cases, (column, count, *([spread] if spread else [])), summarise)


def median_of(column: str, name: str, cases: str) -> Measure:
    """Measure the median of a column (dB), with the distribution-free interval of a median."""

    def summarise(values: Numbers) -> Value:
        # An image that was lost has −∞ dB; some records keep the lowest float instead.
        ordered = np.sort(np.where(np.isnan(values) | (values < -1e300), -math.inf, values))
        interval = quantile_test(ordered, p=0.5).confidence_interval()
        lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        # There is no mean of two infinities with different signs.
        middle = lower if math.isinf(lower) else (lower + upper) / 2
        return Value(float(middle), float(interval.low), float(interval.high), len(ordered))

    return Measure(name, "dB", cases, (column,), summarise)


def _of_share(mean: float, spread: float, count: int) -> Value:
    """Return a share (%): with Student's interval of a mean; where all cases agree or are coins, with Wilson's."""
    coin = count == 1 or math.isclose(spread**2 * (count - 1), count * mean * (1 - mean), rel_tol=1e-6)
    if spread > 0 and not coin:
        half = float(t.ppf(0.975, count - 1)) * spread / math.sqrt(count)
        low, high = max(0.0, mean - half), min(1.0, mean + half)
    else:
        low, high = wilson(round(mean * count), count)
    return Value(100 * mean, 100 * min(low, mean), 100 * max(high, mean), count)


def wilson_interval(values: pd.Series[Any]) -> tuple[float, float]:
    """Return the 95 % confidence interval (Wilson) of the success probability."""
    return wilson(int(values.sum()), len(values))


@functools.cache
def wilson(successes: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval (Wilson) of a probability after so many successes in `count` trials."""
    found = binomtest(successes, count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


PSNR = median_of("psnr", "PSNR", "images")
# The columns of label counts on wainakh2021's pages.
FOUND = average_of("success", "labels found", "batches", spread="spread")


def collected(
    record: Record,
    rows: pd.DataFrame,
    leak: Kind,
    measure: Measure,
    *,
    chance: pd.Series[float] | float = 0.0,
    cosine: pd.Series[float] | float = math.nan,
    **axes: Axis,
) -> list[Outcome]:
    """Return one outcome for each group of rows that agree on all of `AXES`.

    Args:
        record: The record that the rows are from.
        rows: The rows.
        leak: What leaks.
        measure: The measure of success.
        chance: The share (%) that guessing reaches.
        cosine: The cosine of the sent gradient with the true one.
        axes: The rows' values on axes of `AXES`: one for all rows, or one for each. What follows a comma in the name of
            an attack or a client is a variant, which becomes a part of the detail.
    """
    if wrong := axes.keys() - AXES.keys():
        raise InputError(f"no axis of outcomes: {', '.join(sorted(wrong))}; known: {', '.join(AXES)}")
    keys = pd.DataFrame(AXES | axes, index=rows.index)
    chances, cosines = (pd.Series(own, index=rows.index, dtype=float).to_numpy() for own in (chance, cosine))
    columns = [rows[column].astype(float).to_numpy() for column in measure.columns]
    found = []
    groups: dict[Any, Any] = keys.groupby(list(AXES), sort=False).indices
    for values, places in groups.items():
        own: dict[str, Any] = dict(zip(AXES, map(str, values), strict=True))
        family(own["defense"])  # an unknown defence is an error where it is declared
        attack, _, variant = own["attack"].partition(", ")
        client, _, setting = own["client"].partition(", ")
        own |= {
            "attack": attack,
            "network": network_in_words(own["network"]),
            "data": data.title(own["data"]) if own["data"] in data.names() else own["data"],
            "batch": int(own["batch"]),
            "defense": "none" if own["defense"] == "none/0" else own["defense"],
            "client": client,
            "detail": ", ".join(filter(None, (variant, setting, own["detail"]))),
            "chance": float(chances[places].mean()),
            "cosine": float(np.median(cosines[places])),
        }
        summary = measure.summarise(*(column[places] for column in columns))
        own |= {"measure": measure.name, "unit": measure.unit, "cases": measure.cases}
        found.append(Outcome(leak=leak, page=record.study, **own, **vars(summary)))
    return found


def network_in_words(network: str) -> str:
    """Return a network's name as papers write it; what follows a comma stays."""
    name, comma, rest = network.partition(",")
    return NAMES.get(name, name) + comma + rest


def guessed(rows: pd.DataFrame, column: str, by: list[str]) -> pd.Series[float]:
    """Return for each row what the attack "guess" reaches where the columns `by` have the same values."""
    chances = rows[rows["attack"] == "guess"].groupby(by)[column].mean().rename("chance")
    return rows.join(chances, on=by)["chance"].fillna(0.0)


def written(defense: pd.Series[str], level: pd.Series[float], words: Mapping[str, str]) -> list[str]:
    """Return defences written name/level, with a record's names of defences replaced by those in `words`."""
    return [f"{words.get(name, name)}/{own:g}" for name, own in zip(defense, level, strict=True)]


def stages(trained: pd.Series[Any]) -> list[str]:
    """Return "trained" for rows whose number of epochs or steps is not 0."""
    return ["trained" if one else "untrained" for one in trained]
