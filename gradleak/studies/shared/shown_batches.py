"""Restored batches as tables and strips: what several pages show of their records in one way."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.restored_batches import DRAWS


def rows_of(record: Record, what: str, part: str) -> pd.DataFrame:
    """Return a record's rows of one sort in one of its parts; there may be none.

    The picture drawn as an unrelated one may by chance be the private one, and is left out then.
    """
    frame = record.frame()
    own = frame[(frame["what"] == what) & (frame["part"] == part)]
    return own[~((own["run"] == "unrelated") & (own["psnr"].astype(float) == math.inf))] if what == "image" else own


def interval(values: pd.Series, seed: int) -> str:
    """Return a mean, and where 95 % of a bootstrap over images put it; what is lost counts as nothing."""
    own = values.astype(float).clip(0, 200).to_numpy()
    draws = own[np.random.default_rng(seed).integers(len(own), size=(DRAWS, len(own)))].mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return f"{own.mean():.1f} ({low:.1f} … {high:.1f})"


def strips(record: Record, part: str, **where: object) -> Figure:
    """Draw the first images of a part, the private ones above each attack's and the floors."""
    pictures = rows_of(record, "picture", part)
    for column, value in where.items():
        pictures = pictures[pictures[column] == value]
    if pictures.empty:
        return figures.nothing("Not run with these parameters")
    first = pictures[pictures["first"] == pictures["first"].min()]
    own = first.set_index("run")["picture"]
    figure, axes = figures.panels(1, 1, height=0.55 * len(own) + 0.4)
    show(axes[0][0], list(own), list(own.index))
    return figure
