"""Restored batches as tables and strips: what several pages show of their records in one way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.restored_batches import DRAWS, gained, interval_of, values_of

# The measures whose gains are shown, what they are called, and their digits.
MEASURES = {"psnr": ("PSNR, dB", 2), "lpips": ("LPIPS", 3), "identified": ("IIP, %", 0)}


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


def quality_line(images: pd.DataFrame, size: int, seed: int) -> dict[str, str]:
    """Return the cells of a table's line: every measure of some images, what is sure of PSNR, and how many they are."""
    rows: list[Any] = images.to_dict("records")
    run = rows[0]["run"]
    psnr = values_of(rows, run, "psnr")
    lpips = values_of(rows, run, "lpips")
    assert psnr is not None
    low, high = interval_of(psnr, size, seed)
    return {
        "FFT2D": f"{images['fft2d'].astype(float).median():.2f}",
        "PSNR, dB": f"{psnr.mean():.1f} ({low:.1f} … {high:.1f})",
        "SSIM": f"{images['ssim'].astype(float).mean():.3f}",
        "LPIPS": "n/a" if lpips is None else f"{lpips.mean():.3f}",
        "IIP, %": f"{100 * images['identified'].astype(float).mean():.0f}",
        "n": f"{len(images)}",
    }


def gain_table(images: pd.DataFrame, pairs: Sequence[tuple[str, str]], size: int, seed: int) -> pd.DataFrame:
    """Return what the first of each pair gains, measure by measure, and by which of them it is decided."""
    known = set(images["run"])
    rows: list[Any] = images.to_dict("records")
    lines: dict[str, dict[str, Any]] = {}
    decided: dict[str, list[str]] = {}
    for row in gained(rows, [pair for pair in pairs if known.issuperset(pair)], size, seed):
        if row["measure"] not in MEASURES:
            continue
        line = lines.setdefault(row["run"], {"compared": row["run"], "n": row["count"]})
        name, digits = MEASURES[row["measure"]]
        line[name] = f"{row['gain']:+.{digits}f} ({row['low']:+.{digits}f} … {row['high']:+.{digits}f})"
        if row["low"] > 0 or row["high"] < 0:
            decided.setdefault(row["run"], []).append(f"{name.split(',')[0]} {'better' if row['low'] > 0 else 'worse'}")
    return pd.DataFrame([line | {"decided": ", ".join(decided.get(run, ["–"]))} for run, line in lines.items()])


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
    figure.set_layout_engine("compressed")
    show(axes[0][0], list(own), list(own.index))
    return figure
