"""Defences against LLG, and an attacker who knows of them

wainakh2021, section 6.5: Figure 5.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field

from gradleak import defenses, studies
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.leak import observe
from gradleak.studies.fitting import Sees
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.defended import Defended, named
from gradleak.studies.shared.tally import (
    ATTACKS,
    SIZES,
    Tally,
    attack,
    draw_success,
    drawn,
    load,
    others,
)

PLACE = "Section 6.5, Figure 5"
SMALLEST: dict[str, Any] = {"repeats": 2, "sizes": [1, 8], "defenses": ["none/0", "noise/0.1"]}
# The paper's attack, the same for an attacker who knows, what needs no sign, and nothing.
SHOWN = {name: ATTACKS[name] for name in ("LLG+", "guess")} | {
    "shadow": ("shadow", {}),
    "posterior": ("posterior", {}),
}
# The paper's words for defences: the level of "noise" is a variance.
WORDS = {name: name for name in ("none", "dp", "prune", "grad-drop", "sign", "quantize")} | {
    "noise": "gaussian-variance"
}
# Panels side by side.
COLUMNS = 3


class Behind(Defended):
    """A defence of the paper, or of ours."""

    words: ClassVar = WORDS


class Parameters(studies.Parameters):
    """What a rerun may change."""

    repeats: int = Field(5, ge=1, le=10_000, description="networks, each with a batch of every size and defence")
    sizes: list[int] = Field([1, 4, 16, 64], description="samples in a batch")
    defenses: list[Behind] = Field(
        [
            "none/0",
            *(f"noise/{variance}" for variance in (0.01, 0.1, 1)),
            *(f"dp/{norm}" for norm in (1, 5, 10)),
            *(f"prune/{share}" for share in (0.2, 0.4, 0.8)),
            "grad-drop/0.8",
            "sign/0",
            "quantize/4",
        ],
        validate_default=True,
        description="defence/level",
    )
    auxiliary: int = Field(10, ge=1, le=1000, description="samples of a class that LLG+ has, test split")
    dataset: str = Field("digits", description="private images, training split")

    paper: ClassVar[dict[str, Any]] = {"repeats": 100, "sizes": SIZES, "dataset": "mnist"}

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees("llg-cnn", self.dataset)]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a defence and level."""
    common = parameters.model_dump(include={"repeats", "sizes", "auxiliary", "dataset", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    return [dict(one) | common for one in parameters.defenses]


def trial(
    *,
    defense: str,
    level: float,
    repeats: int,
    sizes: list[int],
    auxiliary: int,
    dataset: str,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Count the labels of many batches whose gradients are defended, and say what the defence costs."""
    private, public = load(dataset, "train"), load(dataset, "test")
    generator = torch.Generator().manual_seed(seed)
    tally, clean_tally, utilities = Tally(), Tally(), []
    for number in range(repeats):
        model = built("llg-cnn", private, seed + number, device)
        own = named(WORDS, defense, level, generator)
        given = others(public, auxiliary, generator)
        same: dict[str, Any] = {"sizes": sizes, "balance": "unbalanced", "generator": generator, "attacks": SHOWN}
        attack(tally, model, private, given, defense=own, **same)
        attack(clean_tally, model, private, given, **same)
        chosen = drawn(private.labels, 8, "unbalanced", generator)
        whole = observe(model, private.images[chosen].to(device), private.labels[chosen].to(device)).gradients
        utilities.append(defenses.utility(whole, own(whole)))
    clean = {(row["attack"], row["size"]): row["success"] for row in clean_tally.rows()}
    rows = tally.rows(utility=sum(utilities) / len(utilities))
    return [row | {"lost": clean[row["attack"], row["size"]] - row["success"]} for row in rows]


def _named(defense: Any, level: Any) -> str:
    return defenses.shown(f"{WORDS[defense]}/{level}")


def table(record: Record) -> pd.DataFrame:
    """Return what each defence leaves of every attack, means over the batch sizes, and of the gradient."""
    lines = []
    for (defense, level), group in record.frame().groupby(["defense", "level"], sort=False):
        means = group.groupby("attack")["success"].mean()
        lines.append(
            {"defence": _named(defense, level), "cosine to the clean": f"{group['utility'].iloc[0]:.3f}"}
            | {f"{name}, %": f"{means[name]:.1f}" for name in SHOWN}
            | {"n a size": f"{group['count'].iloc[0]:.0f}"}
        )
    return pd.DataFrame(lines)


def size_table(record: Record) -> pd.DataFrame:
    """Return what the best of the attackers has over the guess, a line a defence and a column a batch size."""
    lines = []
    for (defense, level), group in record.frame().groupby(["defense", "level"], sort=False):
        best = group.groupby("size")["over_guess"].max()
        lines.append(
            {"defence": _named(defense, level)} | {f"B = {size:.0f}": f"{best[size]:+.1f}" for size in best.index}
        )
    return pd.DataFrame(lines)


def figure_defenses(record: Record) -> Figure:
    """Draw success against the batch size, a panel a defence and level."""
    frame = record.frame()
    groups = list(frame.groupby(["defense", "level"], sort=False))
    figure, axes = figures.grid(len(groups), COLUMNS, height=2.3, sharey=True)
    for axis, ((defense, level), group) in zip(axes, groups, strict=True):
        draw_success(axis, group, list(SHOWN))
        axis.set_title(_named(defense, level), fontsize=10)
    for axis in axes[::COLUMNS]:
        axis.set_ylabel("labels found, %")
    figures.legend_below(figure, len(SHOWN))
    return figure
