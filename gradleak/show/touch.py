"""Interactive figures: their data, which the book's script `touch.js` turns into a figure with controls."""

from __future__ import annotations

import html
import json
from dataclasses import asdict, dataclass
from typing import ClassVar


@dataclass(frozen=True)
class LabelSlider:
    """The pseudo label of one gradient as a function of λ, with a slider over λ.

    The script computes labels as `LabelPath.labels` does for a layer without a bias, and the loss as `label_loss` does.

    Attributes:
        logits: W g_r (C,).
        ratios: gᵢ / g_r (C,).
        free: The number of largest entries that the variance loss leaves out.
        truth: The true scalar λ*.
        low: The end nearer to zero of the interval in which every label is valid.
        high: The other end, or None if the interval has none.
        first: The end of the slider that is nearer to zero.
        last: The other end of the slider.
    """

    kind: ClassVar[str] = "label-slider"
    logits: list[float]
    ratios: list[float]
    free: int
    truth: float
    low: float
    high: float | None
    first: float
    last: float


@dataclass(frozen=True)
class WordStep:
    """The distances of words from the span at one step of a reading, relative to the norms of their vectors.

    Attributes:
        piece: The word piece that is read at this step, "" if the sentence is over.
        miss: The distance of this piece; None if the sentence is over.
        others: The distances of the nearest other pieces, in ascending order.
        names: The nearest pieces of the whole vocabulary with their distances.
    """

    piece: str
    miss: float | None
    others: list[float]
    names: list[tuple[str, float]]


@dataclass(frozen=True)
class ReadingReplay:
    """The reading of a sentence, replayed step by step.

    Attributes:
        steps: The steps; the last one finds no word.
        fits: The relative distance below which a word counts as lying in the span.
        sentence: The whole sentence.
    """

    kind: ClassVar[str] = "reading-replay"
    steps: list[WordStep]
    fits: float
    sentence: str


@dataclass(frozen=True)
class InteractiveFigure:
    """An interactive figure, on a page that has a static figure of the same.

    The book's script replaces the text `instead` by the figure. Without the script, as in JupyterLab, this text
    remains, and refers to the static figure. In print only the static figure appears.

    Attributes:
        data: The numbers and words that the script draws.
        title: The name of the figure for a screen reader.
        says: The text above the figure: how to use it and what to look for.
        instead: The text for a page without the script.
    """

    data: LabelSlider | ReadingReplay
    title: str
    says: str
    instead: str = "The rendered book has an interactive form of this page's static figure here; it needs JavaScript."

    def _repr_html_(self) -> str:
        # A "<" in the data could end the script element.
        data = json.dumps(asdict(self.data), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
        return (
            f'<div class="gradleak-touch" data-kind="{self.data.kind}" role="group" '
            f'aria-label="{html.escape(self.title)}">'
            f'<p class="gradleak-touch-instead">{html.escape(self.instead)}</p>'
            f'<p class="gradleak-touch-says" hidden>{html.escape(self.says)}</p>'
            f'<script type="application/json">{data}</script></div>'
        )

    def __repr__(self) -> str:
        return f"{self.title}: {self.instead}"
