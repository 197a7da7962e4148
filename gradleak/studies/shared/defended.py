"""Defences as studies name them in parameters and trials, mapped to the package's defences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure

from gradleak import defenses
from gradleak.errors import unknown
from gradleak.images import Inversion
from gradleak.leak import Defense, Leak
from gradleak.runs.forms import Form
from gradleak.show.drawn import drawn, named_lines, scattered
from gradleak.studies import Columns, Experiment, Record
from gradleak.studies.shared.outcomes import KNOWLEDGE, PSNR, Axis, Measure, Outcome, collected, written

# The defences of wang2024's pages. The level of "clip" is a share of the gradient's norm.
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


class Defence(Defended):
    """A defence of wang2024's pages and its level."""

    words: ClassVar[Mapping[str, str]] = WORDS


class BehindDefence(Experiment, part="defense"):
    """Gradients that are sent through one defence; `defense` and `level` are named as on wang2024's pages."""

    defense: str
    level: float

    def inversions(
        self, clean: Leak, seed: int, invert: Callable[..., Inversion], noise: float | None
    ) -> Iterator[tuple[Columns, Inversion]]:
        """Invert a gradient behind the defence, as an attacker who expects no noise ("unaware") and one who does.

        Args:
            clean: The gradient before the defence.
            seed: The seed of the defence.
            invert: The attack.
            noise: The standard deviation of the noise that the "aware" attacker expects; None to estimate it.

        Yields:
            For each attacker, the columns that describe the attack, and its result.
        """
        defense = named(WORDS, self.defense, self.level, torch.Generator().manual_seed(seed))
        leak = replace(clean, gradients=defense(clean.gradients))
        utility = defenses.utility(clean.gradients, leak.gradients)
        for attacker, expected in (("unaware", 0.0), ("aware", noise)):
            found = invert(leak, noise=expected)
            yield {"attacker": attacker, "status": found.status, "utility": utility}, found


def outcomes_behind(
    record: Record, rows: pd.DataFrame, network: str, measure: Measure = PSNR, batch: Axis = 1
) -> list[Outcome]:
    """Return what a closed form reached behind each defence, for the rows of `inversions`."""
    return collected(
        record, rows, "images", measure, cosine=rows["utility"], network=network, data=rows["dataset"],
        attack="closed form, " + rows["attacker"].map(KNOWLEDGE), batch=batch,
        defense=written(rows["defense"], rows["level"], WORDS),
    )  # fmt: skip


def draw_inversions(rows: pd.DataFrame) -> Figure:
    """Draw the PSNR (dB) of every image behind each defence, for the rows of `inversions`.

    One line for each defence, with the cosine of the sent and the clean gradient. An image that an attacker does not
    return is drawn at 0 dB.
    """
    cosine = rows.groupby(["defense", "level"])["utility"].transform("mean")
    texts = [
        defenses.shown(f"{WORDS[kind]}/{level}") for kind, level in zip(rows["defense"], rows["level"], strict=True)
    ]
    places, names = pd.factorize(texts + cosine.map(" (cosine {:.4f})".format))
    return drawn(
        rows.assign(place=places, psnr=rows["psnr"].astype(float).clip(lower=0)),
        scattered("psnr", "place", by="attacker", label="{} attacker".format, alpha=0.6),
        lambda axis, _: named_lines(axis, list(names)),
        height=0.3 * len(names) + 1,
        legend=2,
        xlabel="PSNR of every image (dB)",
    )
