"""LLG behind defences, and an attacker who knows the defence

wainakh2021, section 6.5: Figure 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure

from gradleak import claims, data, defenses, studies
from gradleak.leak import Gradients, observe
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show.drawn import arranged, lines, panel, powers_of_two
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, cell, cells, mean, only, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.defended import Defended, named
from gradleak.studies.shared.outcomes import FOUND, WORDS, Outcome, collected, written
from gradleak.studies.shared.tally import GUESS, SIZES, LabelAttack, Tally, attack, drawn, load, others, with_errors
from gradleak.studies.wainakh2021.columns import COLUMNS

PLACE = "Section 6.5, Figure 5"
# The paper's attack, the guess, an attack that knows the defence, and an attack that does not rely on signs.
# The name of an attack's method is that of the attack in lower case.
SHOWN = {name: LabelAttack(name.lower()) for name in ("LLG+", GUESS, "shadow", "posterior")}
# The defences of the paper, variants in the paper's code, and other defences.
OF_PAPER = ["noise/0.01", "noise/0.1", "noise/1", "dp/1", "dp/5", "dp/10", "prune/0.2", "prune/0.4", "prune/0.8"]
OF_CODE = ["noise-coded/1", "dp-coded/1", "prune-coded/0.2", "prune-coded/0.8"]
OTHERS = ["grad-drop/0.8", "sign/0", "quantize/4"]
# The groups of defences in the figure, and the defences' names there.
FAMILIES = {
    "noise": {"noise": "variance {:g}"},
    "clipping and noise": {"dp": "norm {:g}"},
    "fewer entries": {"prune": "prune {:.0%} of all", "grad-drop": "drop {:.0%} a tensor"},
    "fewer bits": {"sign": "signs only", "quantize": "{:.0f} bits"},
}


class Defence(Defended):
    """A defence in the paper's words: the level of "noise" is a variance.

    In the variants of the paper's code, the level of "noise-coded" is a standard deviation, and "dp-coded" and
    "prune-coded" treat each tensor separately.
    """

    words: ClassVar = {name: name for name in ("none", "dp", "prune", "grad-drop", "sign", "quantize")} | WORDS


class Parameters(studies.Parameters):
    """Parameters of the page: defences, networks, batch sizes and data."""

    repeats: int = setting(paper=100, ge=1, le=10_000)
    sizes: list[int] = setting(paper=SIZES, smallest=[1, 8])
    defenses: list[Defence] = setting(
        paper=["none/0", *OF_PAPER, *OF_CODE, *OTHERS], smallest=["none/0", "noise/0.1"], validate_default=True
    )
    auxiliary: int = setting(ge=1, le=1000)
    dataset: str = setting(paper="mnist")

    def sees(self) -> list[Sees]:
        """Return the network with its images."""
        return [Sees("llg-cnn", self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each defence and level."""
        for defence in self.defenses:
            yield AttackedBehind.of(self, **dict(defence))

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return f"{self.repeats} networks behind each defence and {data.title(self.dataset)}"


class AttackedBehind(Experiment):
    """Batches on many networks behind one defence, and further batches on the same networks without a defence."""

    defense: str
    level: float
    repeats: int
    sizes: list[int]
    auxiliary: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Count the labels of all batches, and measure how much the defence changes the gradient."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed)
        behind, without = Tally(), Tally()
        changes: list[tuple[float, float]] = []
        for number in range(self.repeats):
            model = built("llg-cnn", private, self.seed + number, self.device)
            defence = named(Defence.words, self.defense, self.level, generator)
            given = others(public, self.auxiliary, generator)
            for tally, own in ((behind, defence), (without, None)):
                attack(
                    tally, model, private, given,
                    sizes=self.sizes, balance="unbalanced", generator=generator, attacks=SHOWN, defense=own,
                )  # fmt: skip
            chosen = drawn(private.labels, 8, "unbalanced", generator)
            inputs, labels = private.images[chosen].to(self.device), private.labels[chosen].to(self.device)
            clean = observe(model, inputs, labels).gradients
            changes.append((defenses.utility(clean, defence(clean)), _clipped(self.defense, self.level, clean)))
        utility, clipped = (sum(values) / self.repeats for values in zip(*changes, strict=True))
        rows: list[dict[str, Any]] = behind.rows()
        unchanged: list[dict[str, Any]] = without.rows()
        for row, other in zip(rows, unchanged, strict=True):
            yield {"utility": utility, "clipped": clipped, **row, "lost": other["success"] - row["success"]}


def _clipped(defense: str, level: float, whole: Gradients) -> float:
    """Return the share, in percent, of the gradient or of its tensors whose norm is above the clipping norm."""
    sizes = torch.stack([value.norm() for value in whole.values()])
    if defense == "dp":
        return 100.0 * bool(sizes.norm() > level)
    return 100 * float((sizes > level).float().mean()) if defense == "dp-coded" else 0.0


def headline(record: Record) -> Headline:
    """Return the finding: noise alone hides few labels, and clipping to a small norm with noise hides most."""
    known = claims.judgements(record)
    noise = known["defenses-noise-1"]
    clipped = select(record.rows(AttackedBehind), defense="dp", level=1)
    knowing = select(clipped, attack="shadow")["success"].mean()
    cosine = clipped["utility"].iloc[0]
    return Headline(
        f"Noise of variance {noise.claim.measure.where['level']} still lets LLG+ find at least {noise.text} more "
        f"labels than a guess; strong clipping with noise leaves an attacker who knows it {knowing:.0f} % of the "
        f"labels, but destroys the gradient (cosine {cosine:.2f} with the clean one).",
        true=bool(noise.agrees and knowing < 50 and cosine < 0.1),
        claim="defenses-noise-1",
        what="labels that LLG+ finds beyond a guess, at the worst batch size (noise of variance 1, MNIST)",
        figure=figure_defenses,
        of="batches",
    )


def table(record: Record) -> pd.DataFrame:
    """Return the cosine with the clean gradient and the success of each attack, a mean over batch sizes, by defence."""
    rows = record.rows(AttackedBehind)
    texts = written(rows["defense"], rows["level"], Defence.words)
    lines = summary(
        rows.assign(shown=[defenses.shown(text) for text in texts]),
        {"defense": "defense", "level": "level"},
        {"defence": only("shown")}
        | cells(COLUMNS, "utility")
        | {name: among(mean("success", COLUMNS["success"].text), attack=name) for name in SHOWN}
        | {"best attack above the guess, worst batch size": _best_at_worst_size},
    )
    # Two levels of a defence may have the same name.
    return lines.drop(columns=["defense", "level"])


def _best_at_worst_size(rows: pd.DataFrame) -> str:
    """Measure how many labels the best attack finds above the guess, at the batch size where these are fewest."""
    return cell(rows.groupby("size")["over_guess"].max().min(), COLUMNS["over_guess"].text)


def figure_defenses(record: Record) -> Figure:
    """Draw the share of labels found (%) against the batch size behind each defence.

    One row of panels for each attack, one column for each kind of defence, one line for each strength.
    """
    frame = with_errors(record.rows(AttackedBehind))
    guess = select(frame, attack=GUESS, defense=frame["defense"].iloc[0]).assign(line="guess", error=0.0)
    families = {title: own for title, own in FAMILIES.items() if frame["defense"].isin(own).any()} or {"": {}}
    looks: dict[str, dict[str, Any]] = {
        "no defence": {"color": "0.2"},
        "guess": {"color": "0.6", "linestyle": "-", "marker": "", "linewidth": 1.2},
    }
    success = lines("size", "success", by="line", band="error", looks=looks, marker="o")
    panels = []
    for name, (title, family) in product([name for name in SHOWN if name != GUESS], families.items()):
        rows = select(frame[frame["defense"].isin(["none", *family])], attack=name)
        levels = zip(rows["defense"], rows["level"], strict=True)
        rows = rows.assign(line=[family.get(defense, "no defence").format(level) for defense, level in levels])
        settings = {"title": title, "ylabel": f"{name} (%)", "xlabel": "batch size", "ylim": (0, 105)}
        panels.append(panel(pd.concat([rows, guess]), success, powers_of_two("size"), **settings))
    figure = arranged(panels, len(families), height=2.0, sharex=True)
    for axis in figure.axes[-len(families) :]:
        axis.tick_params("x", labelsize=8.5)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.36), fontsize=9, handlelength=2.6)
    return figure


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["attack"] != "guess"]
    return collected(
        record, rows, "labels", FOUND, chance=rows["success"] - rows["over_guess"], cosine=rows["utility"],
        attack=rows["attack"], network="llg-cnn", data=rows["dataset"], batch=rows["size"],
        defense=written(rows["defense"], rows["level"], WORDS),
    )  # fmt: skip
