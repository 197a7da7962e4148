"""LLG during training

wainakh2021, section 6.4: Figure 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, claims, data, studies
from gradleak.leak import evaluating
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show.drawn import arranged, lines, panel
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, cells, mean, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.outcomes import FOUND, Outcome, collected, stages
from gradleak.studies.shared.tally import DRAWN, GUESS, LOOKS, LabelAttack, Tally, attack, load, others, with_errors
from gradleak.studies.wainakh2021.columns import COLUMNS
from gradleak.wording import counted

PLACE = "Section 6.4, Figure 4"
# The learning rate, and the number of images for measuring the model's accuracy.
RATE = 0.1
TESTED = 1000
Clients = Literal["skewed", "even"]
# The number of steps after which skewed clients change their two classes.
BLOCK = 100
# The name of an attack's method is that of the attack in lower case.
SHOWN = {name: LabelAttack(name.lower()) for name in ("LLG", "LLG*", "LLG+", GUESS, "shadow", "posterior")} | {
    DRAWN: LabelAttack("draw")
}


class Parameters(studies.Parameters):
    """Parameters of the page: training steps, clients, attacked batches and data."""

    iterations: int = setting(paper=10_000, smallest=40, ge=1, le=1_000_000)
    every: int = setting(paper=500, smallest=20, ge=1, le=1_000_000)
    size: int = setting(ge=1, le=1024)
    batches: int = setting(paper=100, smallest=2, ge=1, le=10_000)
    clients: list[Clients] = setting(paper=["skewed"], smallest=["skewed"])
    runs: int = setting(ge=1, le=1000)
    auxiliary: int = setting(paper=80, ge=1, le=1000)
    dataset: str = setting(paper="mnist")

    def sees(self) -> list[Sees]:
        """Return the network with its images."""
        return [Sees("llg-cnn", self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each kind of client and network."""
        for clients, number in product(self.clients, range(self.runs)):
            yield AttackedTraining.of(self, clients=clients, number=number)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return (
            f"{counted(self.runs, 'network')}, {self.iterations:,} steps, {self.batches} batches at each stop, "
            f"{' and '.join(self.clients)} clients, {data.title(self.dataset)}"
        )


class AttackedTraining(Experiment):
    """One network that is trained by gradient descent, and attacked at regular intervals."""

    clients: str
    number: int = Field(alias="run")
    iterations: int
    every: int
    size: int
    batches: int
    auxiliary: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Train, and attack some batches before the first step and after every `every` steps."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed + self.number)
        model = built("llg-cnn", private, self.seed + self.number, self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        before: dict[str, float] = {}
        pair = torch.randperm(private.classes, generator=generator)[:2]
        for step in range(self.iterations + 1):
            if step % self.every == 0:
                tally = Tally()
                given = others(public, self.auxiliary, generator)
                for _ in range(self.batches):
                    attack(
                        tally, model, private, given,
                        sizes=[self.size], balance="unbalanced", generator=generator, attacks=SHOWN,
                    )  # fmt: skip
                own = self._batch(private, TESTED // self.size * self.size, pair, generator)
                stop: Columns = {
                    "step": step,
                    "accuracy": _accuracy(model, public.images[:TESTED], public.labels[:TESTED], self.device),
                    "own_accuracy": _accuracy(model, private.images[own], private.labels[own], self.device),
                }
                rows: list[dict[str, Any]] = tally.rows()
                success = {row["attack"]: row["success"] for row in rows}
                before = before or success
                for row in rows:
                    found = row["success"]
                    lost = before[row["attack"]] - found
                    yield {**stop, **row, "lost": lost, "over_llg": found - success["LLG"]}
            if step % BLOCK == 0:
                pair = torch.randperm(private.classes, generator=generator)[:2]
            chosen = self._batch(private, self.size, pair, generator)
            inputs, labels = private.images[chosen].to(self.device), private.labels[chosen].to(self.device)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

    def _batch(self, private: data.Dataset, size: int, pair: Tensor, generator: torch.Generator) -> Tensor:
        """Return the indices (B,) of a training batch.

        Even clients draw from all samples. Skewed clients take half of the batch from the first class of a pair and a
        quarter from the second.
        """
        if self.clients == "even":
            return torch.randint(len(private), (size,), generator=generator)
        own = pair.repeat_interleave(torch.tensor([size // 2, size // 4]))
        rest = torch.randint(private.classes, (size - len(own),), generator=generator)
        return augment.samples_of(private.labels, torch.cat([own, rest]), generator)


def _accuracy(model: nn.Module, images: Tensor, labels: Tensor, device: str) -> float:
    with torch.no_grad(), evaluating(model):
        found = model(images.to(device)).argmax(dim=1).cpu()
    return 100 * float((found == labels).double().mean())


def headline(record: Record) -> Headline:
    """Return the finding: LLG finds fewer labels as the model learns, but still most of them."""
    known = claims.judgements(record)
    llg, plus = known["training-llg"], known["training-llg-plus"]
    return Headline(
        f"As the CNN learns, LLG finds fewer labels, but at every stop of training at least {llg.text} on average, "
        f"more than the paper’s bound; LLG+, which has labelled samples of its own, falls to {plus.text}, below this "
        "bound.",
        true=bool(llg.agrees and plus.agrees is False),
        claim="training-llg",
        what="labels that LLG finds at the worst stop of training (CNN, skewed batches of MNIST)",
        figure=figure_training,
        of="batches",
    )


def table(record: Record) -> pd.DataFrame:
    """Return the model's accuracy and the labels that each attack finds, by kind of client and training step."""
    return summary(
        record.rows(AttackedTraining),
        {"clients": "clients", COLUMNS["step"].head: "step"},
        cells(COLUMNS, "accuracy", "own_accuracy", by=mean)
        | {name: among(mean("success", COLUMNS["success"].text), attack=name) for name in SHOWN},
    )


def figure_training(record: Record) -> Figure:
    """Draw the share of labels found, with standard errors, and the model's accuracy (%) against the training steps.

    One row of panels for each kind of client: the attacks on the left, the model on the right.
    """
    # There are many steps, so lines have no markers.
    plain = {name: look | {"marker": ""} for name, look in LOOKS.items()}
    attacks = lines("step", "success", by="attack", band="error", order=SHOWN, looks=plain)
    model = [
        lines("step", column, label=lambda head=COLUMNS[column].head: head, color="0.2", marker="", linestyle=dash)
        for column, dash in (("accuracy", "-"), ("own_accuracy", ":"))
    ]
    shown = {"xlabel": COLUMNS["step"].head, "ylim": (0, 105)}
    panels = []
    for clients, rows in with_errors(record.rows(AttackedTraining)).groupby("clients", sort=False):
        panels += [
            panel(rows, attacks, title=f"the attacks, {clients} clients", ylabel="labels found (%)", **shown),
            panel(rows, *model, title="the model", ylabel="accuracy (%)", **shown),
        ]
    figure = arranged(panels, 2, height=2.8, legend=4, sharey=False, sharex=True, width_ratios=(2.4, 1))
    for axis in figure.axes:
        axis.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    return figure


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[~rows["attack"].str.startswith("guess") & rows["step"].isin([0, rows["step"].max()])]
    return collected(
        record, rows, "labels", FOUND, chance=rows["success"] - rows["over_guess"], attack=rows["attack"],
        network="llg-cnn", training=stages(rows["step"]), data=rows["dataset"], batch=rows["size"],
        detail=[f"after {step:,} steps" for step in rows["step"]],
    )  # fmt: skip
