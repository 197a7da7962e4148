"""Defences as studies name them in parameters and trials, mapped to the package's defences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pandas as pd
import torch

from gradleak import defenses
from gradleak.errors import unknown
from gradleak.leak import Defense, Gradients
from gradleak.runs.forms import Form
from gradleak.show.summaries import among, decibels, mean, median, percent, summary
from gradleak.studies import Experiment

# The defences of wang2024's pages. The level of "clip" is a share of the gradient's norm.
Defence = Literal["gaussian", "clip", "quantize", "half"]
WORDS = {"gaussian": "gaussian", "clip": "clip-share", "quantize": "quantize", "half": "half"}


def named(words: Mapping[str, str], defense: str, level: float, generator: torch.Generator | None = None) -> Defense:
    """Return a defence by a study's name for it; `words` maps a study's names to the package's."""
    if defense not in words:
        raise unknown("defence", defense, words)
    return defenses.named(f"{words[defense]}/{level}", generator=generator)


class Defended(Form):
    """A defence and its level, written "defence/level"; `words` maps the study's names to the package's."""

    words: ClassVar[Mapping[str, str]] = {}
    defense: str
    level: float

    @classmethod
    def form(cls) -> str:
        """Return how each defence is written: its name and the meaning of its level."""
        levels = {word: defenses.KINDS[kind].level or "0" for word, kind in cls.words.items()}
        return "defence/level, one of " + "; ".join(f"{word}/{level}" for word, level in levels.items())

    def check(self) -> None:
        """Raise an error if there is no such defence or its level is not allowed."""
        named(self.words, self.defense, self.level, torch.Generator())


def sent_behind(defense: str, level: float, clean: Gradients, seed: int) -> Gradients:
    """Return a gradient after a defence of wang2024's pages was applied to it."""
    return named(WORDS, defense, level, torch.Generator().manual_seed(seed))(clean)


class BehindDefence(Experiment):
    """Gradients that are sent through one defence; `defense` and `level` are named as on wang2024's pages."""

    part: ClassVar[str] = "defense"
    defense: str
    level: float


def with_defence_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with two more columns for tables: the name of their defence and its strength."""
    cells = [defense_cells(*values) for values in zip(rows["defense"], rows["level"], strict=True)]
    return rows.assign(**{head: [cell[head] for cell in cells] for head in ("defence", "strength")})


def refused_table(rows: pd.DataFrame, cosine: str) -> pd.DataFrame:
    """Return a table of defences against attackers that do not expect noise ("unaware") and that do ("aware").

    One row for each defence and level. Columns: the cosine of the sent gradient with the clean one, the share of images
    for which the unaware attacker returns nothing, and the aware attacker's median PSNR.

    Args:
        rows: The rows of both attackers.
        cosine: The number format of the cosine.
    """
    rows = with_defence_cells(rows).assign(refused=100.0 * rows["psnr"].eq(-math.inf))
    return summary(
        rows,
        {"defence": "defence", "strength": "strength"},
        {
            "cosine": mean("utility", cosine),
            "unaware attacker returns no image": among(mean("refused", percent()), attacker="unaware"),
            "aware attacker: median PSNR (dB)": among(median("psnr", decibels), attacker="aware"),
        },
    )


def defense_cells(defense: Any, level: Any) -> dict[str, str]:
    """Return a defence's name and strength as table cells."""
    if defense == "half":
        return {"defence": "float16 numbers", "strength": "–"}
    return {"defence": str(defense), "strength": f"{level:g}"}
