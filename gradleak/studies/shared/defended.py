"""Defences in the words of a study: how its parameters and trials name them, and which of the package's they are."""

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

# wang2024's pages: the level of their "clip" is a share of the gradient's own norm.
Defence = Literal["gaussian", "clip", "quantize", "half"]
WORDS = {"gaussian": "gaussian", "clip": "clip-share", "quantize": "quantize", "half": "half"}


def named(words: Mapping[str, str], defense: str, level: float, generator: torch.Generator | None = None) -> Defense:
    """Return the defence that a study calls so, by its `words` for those of the package."""
    if defense not in words:
        raise unknown("defence", defense, words)
    return defenses.named(f"{words[defense]}/{level}", generator=generator)


class Defended(Form):
    """A defence and its level, in a study's `words`."""

    words: ClassVar[Mapping[str, str]] = {}
    defense: str
    level: float

    @classmethod
    def form(cls) -> str:
        """Return how each defence is written: its name, and what its level is."""
        levels = {word: defenses.KINDS[kind].level or "0" for word, kind in cls.words.items()}
        return "defence/level, one of " + "; ".join(f"{word}/{level}" for word, level in levels.items())

    def check(self) -> None:
        """Say so where there is no such defence, or not at this level."""
        named(self.words, self.defense, self.level, torch.Generator())


def sent_behind(defense: str, level: float, clean: Gradients, seed: int) -> Gradients:
    """Return a gradient as it is sent behind a defence of wang2024's pages."""
    return named(WORDS, defense, level, torch.Generator().manual_seed(seed))(clean)


class BehindDefence(Experiment):
    """What is left of gradients behind one defence; `defense` and `level` as wang2024's pages name them."""

    part: ClassVar[str] = "defense"
    defense: str
    level: float


def with_defence_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the name of their defence and its strength as a table shows them."""
    cells = [defense_cells(*values) for values in zip(rows["defense"], rows["level"], strict=True)]
    return rows.assign(**{head: [cell[head] for cell in cells] for head in ("defence", "strength")})


def refused_table(rows: pd.DataFrame, cosine: str) -> pd.DataFrame:
    """Return what defences leave of gradients, and of images by who does not expect noise and by who does.

    `cosine`: the format of the cosine with the clean gradient.
    """
    rows = with_defence_cells(rows).assign(refused=100.0 * rows["psnr"].eq(-math.inf))
    return summary(
        rows,
        {"defence": "defence", "strength": "strength"},
        {
            "cosine": mean("utility", cosine),
            "unaware: refused": among(mean("refused", percent()), attacker="unaware"),
            "aware: median PSNR": among(median("psnr", decibels), attacker="aware"),
        },
    )


def defense_cells(defense: Any, level: Any) -> dict[str, str]:
    """Return how a table names a defence and its strength."""
    if defense == "half":
        return {"defence": "float16 numbers", "strength": "–"}
    return {"defence": str(defense), "strength": f"{level:g}"}
