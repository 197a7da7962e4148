"""Defences against LLG, and an attacker who knows of them

wainakh2021, section 6.5: Figure 5.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field

from gradleak import data, defenses, studies
from gradleak.leak import Gradients, observe
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.defended import Defended, named
from gradleak.studies.shared.tally import (
    ATTACKS,
    GUESS,
    SIZES,
    Tally,
    attack,
    draw_line,
    drawn,
    load,
    others,
    scale_sizes,
)

PLACE = "Section 6.5, Figure 5"
SMALLEST: dict[str, Any] = {"repeats": 2, "sizes": [1, 8], "defenses": ["none/0", "noise/0.1"]}
# The paper's attack, the same for an attacker who knows, what needs no sign, and nothing.
SHOWN = {name: ATTACKS[name] for name in ("LLG+", "guess")} | {
    "shadow": ("shadow", {}),
    "posterior": ("posterior", {}),
}
# The paper's words for defences: the level of "noise" is a variance. As its code has them: that of "noise-coded" is a
# standard deviation, and clipping and pruning go tensor by tensor.
WORDS = {name: name for name in ("none", "dp", "prune", "grad-drop", "sign", "quantize")} | {
    "noise": "gaussian-variance",
    "noise-coded": "gaussian",
    "dp-coded": "dp-tensors",
    "prune-coded": "prune-tensors",
}
PAPER = [
    *(f"noise/{variance}" for variance in (0.01, 0.1, 1)),
    *(f"dp/{norm}" for norm in (1, 5, 10)),
    *(f"prune/{share}" for share in (0.2, 0.4, 0.8)),
]
CODED = ["noise-coded/1", "dp-coded/1", "prune-coded/0.2", "prune-coded/0.8"]
OURS = ["grad-drop/0.8", "sign/0", "quantize/4"]
# How a figure sorts and names them.
FAMILIES = {
    "noise": ("noise",),
    "norm and noise": ("dp",),
    "few entries": ("prune", "grad-drop"),
    "few bits": ("sign", "quantize"),
}
SHORT = {
    "noise": "variance {:g}",
    "dp": "norm {:g}",
    "prune": "prune {:.0%}",
    "grad-drop": "drop {:.0%}",
    "sign": "sign",
    "quantize": "{:.0f} bits",
}


class Behind(Defended):
    """A defence of the paper, or of ours."""

    words: ClassVar = WORDS


class Parameters(studies.Parameters):
    """What a rerun may change."""

    repeats: int = Field(2, ge=1, le=10_000, description="networks, each with a batch of every size and defence")
    sizes: list[int] = Field([4, 32], description="samples in a batch")
    defenses: list[Behind] = Field(
        ["none/0", *PAPER, "dp-coded/1", "prune-coded/0.8", *OURS],
        validate_default=True,
        description="defence/level",
    )
    auxiliary: int = Field(10, ge=1, le=1000, description="samples of a class that LLG+ has, test split")
    dataset: str = Field("digits", description="private images, training split")

    paper: ClassVar[dict[str, Any]] = {
        "repeats": 100,
        "sizes": SIZES,
        "dataset": "mnist",
        "defenses": ["none/0", *PAPER, *CODED, *OURS],
    }

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
    tally, clean_tally, utilities, clipped = Tally(), Tally(), [], []
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
        clipped.append(_clipped(defense, level, whole))
    clean = {(row["attack"], row["size"]): row["success"] for row in clean_tally.rows()}
    rows = tally.rows(utility=sum(utilities) / repeats, clipped=sum(clipped) / repeats)
    return [row | {"lost": clean[row["attack"], row["size"]] - row["success"]} for row in rows]


def _clipped(defense: str, level: float, whole: Gradients) -> float:
    """Return which share, in percent, of what is clipped is larger than the norm it is clipped to."""
    sizes = torch.stack([value.norm() for value in whole.values()])
    if defense == "dp":
        return 100.0 * bool(sizes.norm() > level)
    return 100 * float((sizes > level).float().mean()) if defense == "dp-coded" else 0.0


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return f"{parameters.repeats} networks behind each defence and {data.title(parameters.dataset)}"


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
    """Draw success against the batch size, a row an attacker, a column a kind of defence, a line a strength."""
    frame = record.frame()
    plain, guessed = frame[frame["defense"] == "none"], frame[frame["attack"] == GUESS]
    shown = {title: own for title, own in FAMILIES.items() if frame["defense"].isin(own).any()} or {"": ()}
    attackers = [name for name in SHOWN if name != GUESS]
    figure, axes = figures.panels(len(attackers), len(shown), height=2.0, sharex=True, sharey=True)
    for row, name in zip(axes, attackers, strict=True):
        for axis, family in zip(row, shown.values(), strict=True):
            if len(plain):
                draw_line(axis, plain[plain["attack"] == name], "no defence", "0.2", figures.DASHES[0])
            behind = frame[(frame["attack"] == name) & frame["defense"].isin(family)]
            for index, ((defense, level), own) in enumerate(behind.groupby(["defense", "level"], sort=False)):
                label = SHORT[str(defense)].format(level)
                draw_line(axis, own, label, figures.COLOURS[1 + index % 5], figures.DASHES[1 + index % 4])
            some = guessed[guessed["defense"] == guessed["defense"].iloc[0]]
            axis.plot(some["size"], some["success"], color="0.6", linewidth=1.2, label="a guess")
            axis.set(xlabel="", ylim=(0, 105))
        row[0].set_ylabel(f"{name}, %")
    for axis, title in zip(axes[0], shown, strict=True):
        axis.set_title(title)
    for axis in axes[-1]:
        scale_sizes(axis, frame["size"])
        axis.tick_params("x", labelsize=8.5)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.36), fontsize=9, handlelength=2.6)
    return figure
