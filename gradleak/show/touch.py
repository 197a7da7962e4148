"""Interactive figures: their data, which the book's script `touch.js` turns into a figure with controls.

The data of a "label-slider", the pseudo label of one gradient as a function of λ. The script computes labels as
`LabelPath.labels` does for a layer without a bias, and the loss as `label_loss` does.

    logits: W g_r (C,).
    ratios: gᵢ / g_r (C,).
    free: The number of largest entries that the variance loss leaves out.
    truth: The true scalar λ*.
    low, high: The ends of the interval in which every label is valid, the nearer to zero first; `high` may be None.
    first, last: The ends of the slider, the nearer to zero first.

The data of a "reading-replay", the reading of a sentence, replayed step by step:

    fits: The relative distance below which a word counts as lying in the span.
    sentence: The whole sentence.
    steps: The steps; the last one finds no word. All distances are relative to the norms of the words' vectors.
        piece: The word piece that is read at this step, "" if the sentence is over.
        miss: The distance of this piece from the span; None if the sentence is over.
        others: The distances of the nearest other pieces, in ascending order.
        names: The nearest pieces of the whole vocabulary with their distances.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class InteractiveFigure:
    """An interactive figure, on a page that has a static figure of the same.

    The book's script replaces the text `instead` by the figure. Without the script, as in JupyterLab, this text
    remains, and refers to the static figure. In print only the static figure appears.

    Attributes:
        kind: The function of the script that draws the figure.
        data: The numbers and words that the script draws.
        title: The name of the figure for a screen reader.
        says: The text above the figure: how to use it and what to look for.
        instead: The text for a page without the script.
    """

    kind: Literal["label-slider", "reading-replay"]
    data: Mapping[str, Any]
    title: str
    says: str
    instead: str = "The rendered book has an interactive form of this page's static figure here; it needs JavaScript."

    def _repr_html_(self) -> str:
        # A "<" in the data could end the script element.
        data = json.dumps(self.data, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
        return (
            f'<div class="gradleak-touch" data-kind="{self.kind}" role="group" '
            f'aria-label="{html.escape(self.title)}">'
            f'<p class="gradleak-touch-instead">{html.escape(self.instead)}</p>'
            f'<p class="gradleak-touch-says" hidden>{html.escape(self.says)}</p>'
            f'<script type="application/json">{data}</script></div>'
        )

    def __repr__(self) -> str:
        return f"{self.title}: {self.instead}"
