"""Write the explorer, what was measured in which setting: an overview, a table of all outcomes, and a CSV file."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from gradleak.defenses import DP_VARIANCE
from gradleak.metrics import SCALE
from gradleak.show.tables import Cell, Table, badge
from gradleak.studies import paper_of
from gradleak.studies.shared.outcomes import FAMILIES, KINDS, LEVELS, SHARES, Outcome, defense_in_words

UNMEASURED = "not measured"
# Kinds of models, by words in the names of networks, and ranges of batch sizes.
MODELS = {
    "fully connected": ("fully connected", "digits"),
    "convolutional": ("LeNet", "CNN", "AlexNet", "VGG", "EfficientNet"),
    "residual": ("ResNet",),
    "recurrent": ("LSTM", "GRU", "recogniser"),
    "transformer": ("transformer",),
    "vision transformer": ("ViT",),
}
LAYER = "random last layer and features"
# What readers look for in the tables of models and of clients, whether or not it was measured.
SOUGHT = {
    "model": ("vision transformer",),
    "client": ("several epochs", "adapters", "batch norm in train mode", "secure sum of clients", "several rounds"),
}
BATCHES = {"one sample": 2.0, "2 to 8 samples": 9.0, "9 to 64 samples": 65.0, "more samples": math.inf}
# Strengths of noise: standard deviations from which on the next one begins; after clipping, as a share of the norm that
# gradients are clipped to.
NOISES = {"below 1e-6": 1e-6, "1e-6 to 1e-4": 1e-4, "1e-4 to 1e-2": 1e-2, "1e-2 and more": math.inf}
CLIPPED = {"below 1e-3": 1e-3, "1e-3 to 1e-1": 1e-1, "1e-1 and more": math.inf}


def text(outcomes: Sequence[Outcome]) -> str:
    """Return what the words for severities mean, and the tables by model, defence and client, in Markdown."""
    bounds = ", ".join(
        f"*{level}* (at least {100 * share:g} %, or {word} images: {decibels:g} dB)"
        for level, share, (word, decibels) in zip(LEVELS[:0:-1], SHARES[::-1], reversed(SCALE.items()), strict=True)
    )
    undefended = [one for one in outcomes if one.family == "none"]
    precise = [one for one in outcomes if one.client == "float32"]
    plain = [one for one in undefended if one.client == "float32"]
    tables = (
        _table(
            sorted(plain, key=lambda one: ([*MODELS, LAYER].index(_kind(one)), one.batch)),
            "model",
            lambda one: f"{_kind(one)}, {_range(one.batch, BATCHES)}",
            "By the model and the batch size, from clients that take one step in float32 and have no defence",
        ),
        _table(
            sorted(precise, key=lambda one: (list(FAMILIES.values()).index(one.family), strength(one))),
            "defence",
            lambda one: strength(one)[1],
            "By the defence and its strength (the standard deviation of noise; after clipping, divided by the clipped "
            "norm), over all models and batch sizes",
        ),
        _table(
            sorted(undefended, key=lambda one: (one.client != "float32", one.client)),
            "client",
            lambda one: one.client,
            "By the client’s precision or local steps, and by what the server sees, over all models and batch sizes, "
            "without a defence",
        ),
    )
    return (
        f"{len(outcomes):,} outcomes of {len({one.attack for one in outcomes})} attacks, from "
        f"{len({one.page for one in outcomes})} pages. Colours show the severity: {bounds} or *{LEVELS[0]}*, as a "
        "share of what a guess misses ({doc}`reading` explains the words for images). *Lost*: no image.\n\n"
        + "\n\n".join(table._repr_markdown_() for table in tables if len(table.frame))
    )


def _table(outcomes: Sequence[Outcome], name: str, line_of: Callable[[Outcome], str], caption: str) -> Table:
    """Return the most severe outcome of each kind of data, linked to its page, for each line of a table.

    Lines that a reader looks for and that no outcome has say that nothing was measured.
    """
    lines = list(dict.fromkeys(map(line_of, outcomes)))
    lines += [line for line in SOUGHT.get(name, ()) if not any(one.startswith(line) for one in lines)]
    # The last outcome with a key is the most severe; of equally severe ones, one with an interval if there is any.
    severe = sorted(outcomes, key=lambda one: (one.severity, not math.isnan(one.low), one.value, one.count))
    worst = {(line_of(one), one.leak): one for one in severe}
    cells = [[worst.get((line, leak)) for leak in KINDS] for line in lines]
    frame = pd.DataFrame(
        [[line, *map(_cell, own)] for line, own in zip(lines, cells, strict=True)], columns=[name, *KINDS]
    )
    caption += ": the most severe outcome. In brackets: 95 % interval; number of cases."
    return Table(frame, caption, f"tab-leaks-by-{name}", kind="cells")


def _cell(one: Outcome | None) -> Cell:
    if one is None:
        return Cell(UNMEASURED, UNMEASURED)
    interval = "" if math.isnan(one.low) else f"{_number(one.low)}–{_number(one.high)}; "
    link = f"doc:executed/{paper_of(one.page)}/{one.page}"
    of = " identified" if (one.leak, one.unit) == ("images", "%") else ""
    return Cell(f"{_value(one)}{of} ({interval}{one.count:,})", LEVELS[one.severity], link)


def _kind(one: Outcome) -> str:
    return next((kind for kind, words in MODELS.items() if any(word in one.network for word in words)), LAYER)


def strength(one: Outcome) -> tuple[float, str]:
    """Return how strong the defence of an outcome is, and the line of the outcome in the table of defences."""
    name, *levels = one.defense.split("/")
    size = float(levels[-1]) if levels and one.family != "layers not sent" else 0.0
    if one.family == "noise" and name != "noise-share":
        size = {"gaussian-variance": math.sqrt(size), "laplace": math.sqrt(2) * size}.get(name, size)
        return size, f"noise {_range(size, NOISES)}"
    if one.family == "clipping and noise":
        size = {"dp": math.sqrt(DP_VARIANCE) / size, "dp-tensors": 0.1}.get(name, size)
        return size, f"clipping, noise {_range(size, CLIPPED)}"
    if one.family == "pruning":
        return size, f"pruning, {'up to' if size <= 0.5 else 'more than'} half of the entries"
    if one.family == "rounding":
        return -one.bits, f"{one.bits:g} significant bits"
    return math.inf, "noise, as a share of a tensor's root mean square" if name == "noise-share" else one.family


def _range(size: float, ranges: Mapping[str, float]) -> str:
    return next(words for words, end in ranges.items() if size < end)


def _value(one: Outcome) -> str:
    return _number(one.value) + ("" if math.isinf(one.value) else f" {one.unit}")


def _number(value: float) -> str:
    if math.isinf(value):
        return "lost" if value < 0 else "exact"
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def rows(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return the table of all outcomes, the most severe first; texts are HTML, and each row links to its page."""
    low = {one: -math.inf if math.isnan(one.low) else one.low for one in outcomes}
    return pd.DataFrame(map(_row, sorted(outcomes, key=lambda one: (-one.severity, -low[one], -one.value))))


def _row(one: Outcome) -> dict[str, str | int]:
    interval = "too few cases for an interval"
    if not math.isnan(one.low):
        interval = f"95 %: {_number(one.low)} to {_number(one.high)}"
    guessing = f"; guessing: {_number(one.chance)} %" if one.chance > 0 else ""
    defense = "no defence" if one.family == "none" else defense_in_words(one.defense)
    texts = [defense, "" if one.client == "float32" else one.client, one.detail]
    return {
        "leaks": f'<span class="{badge(LEVELS[one.severity])}">{LEVELS[one.severity]}</span>',
        "attack": html.escape(one.attack),
        "success": f"<strong>{_value(one)}</strong> {html.escape(one.measure)} "
        f"({interval}; n = {one.count:,} {html.escape(one.cases)}{guessing})",
        "network": html.escape(one.network),
        "training": one.training,
        "batch size": one.batch,
        "defence": html.escape("; ".join(filter(None, texts))),
        "data": html.escape(one.data),
        "measured on": f'<a href="executed/{paper_of(one.page)}/{one.page}.html">{one.page}</a>',
        # The table is filtered by what follows, and does not show it.
        "what leaks": one.leak,
        "kind of defence": "no defence" if one.family == "none" else one.family,
        "client": one.client,
    }


def table(outcomes: Sequence[Outcome]) -> str:
    """Return all outcomes as a CSV file, with the defence in words and the severity."""
    rows = [
        vars(one) | {"defense_in_words": defense_in_words(one.defense), "leaks": LEVELS[one.severity]}
        for one in outcomes
    ]
    return pd.DataFrame(rows).to_csv(index=False, float_format="%.5g", na_rep="nan")
