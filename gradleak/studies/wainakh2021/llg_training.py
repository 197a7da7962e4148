"""LLG during training

wainakh2021, section 6.4: Figure 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal, get_args

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
from gradleak.runs.records import Record
from gradleak.show.drawn import arranged, lines, panel
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, joined, mean, only, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.outcomes import FOUND, Outcome, collected, stages
from gradleak.studies.shared.tally import (
    ATTACKS,
    DRAWN,
    GUESS,
    LOOKS,
    LabelAttack,
    Success,
    Tally,
    attack,
    load,
    others,
)
from gradleak.wording import counted

PLACE = "Section 6.4, Figure 4"
# The learning rate, and the number of images for measuring the model's accuracy.
RATE = 0.1
TESTED = 1000
Clients = Literal["skewed", "even"]
CLIENTS: tuple[Clients, ...] = get_args(Clients)
# The number of steps after which skewed clients change their two classes.
BLOCK = 100
SHOWN = {name: ATTACKS[name] for name in ("LLG", "LLG*", "LLG+", "guess")} | {
    "shadow": LabelAttack("shadow"),
    "posterior": LabelAttack("posterior"),
    DRAWN: LabelAttack("draw"),
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


class SuccessAtStop(Success):
    """The success of an attack after a number of training steps.

    Attributes:
        step: The number of training steps.
        accuracy: The model's accuracy on test images, in percent.
        own_accuracy: The model's accuracy on images drawn like the clients' training batches, in percent.
        lost: The success before training minus this success.
        over_llg: This success minus that of LLG.
    """

    step: int
    accuracy: float
    own_accuracy: float
    lost: float
    over_llg: float


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

    def run(self) -> Iterator[SuccessAtStop]:
        """Train, and attack some batches before the first step and after every `every` steps."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed + self.number)
        model = built("llg-cnn", private, self.seed + self.number, self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        before: dict[str, float] = {}
        pair = _pair(private, generator)
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
                accuracy = _accuracy(model, public.images[:TESTED], public.labels[:TESTED], self.device)
                own_accuracy = _accuracy(model, private.images[own], private.labels[own], self.device)
                rows = tally.rows()
                success = {row.attack: row.success for row in rows}
                before = before or success
                for row in rows:
                    yield SuccessAtStop.of(
                        row,
                        step=step,
                        accuracy=accuracy,
                        own_accuracy=own_accuracy,
                        lost=before[row.attack] - row.success,
                        over_llg=row.success - success["LLG"],
                    )
            if step % BLOCK == 0:
                pair = _pair(private, generator)
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
        first, second = pair.repeat_interleave(torch.tensor([size // 2, size // 4])).split([size // 2, size // 4])
        rest = torch.randint(private.classes, (size - len(first) - len(second),), generator=generator)
        return augment.samples_of(private.labels, torch.cat([first, second, rest]), generator)


def _pair(private: data.Dataset, generator: torch.Generator) -> Tensor:
    return torch.randperm(private.classes, generator=generator)[:2]


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
    """Return the share of labels (%) that each attack finds in the course of training.

    One row for each kind of client and some of the training steps. Columns: the model's accuracy on test images and on
    images drawn like the training batches, then the attacks.
    """
    rows = record.rows(AttackedTraining)
    steps = sorted(rows["step"].unique())
    shown = {steps[0], *steps[:: max(1, len(steps) // 5)], steps[-1]}
    return summary(
        rows[rows["step"].isin(shown)],
        {"clients": "clients", "training steps": "step"},
        {
            "accuracy on test images (%)": among(mean("accuracy", ".1f"), attack=GUESS),
            "accuracy on the clients’ batches (%)": among(mean("own_accuracy", ".1f"), attack=GUESS),
        }
        | {f"{name} (%)": among(mean("success", ".1f"), attack=name) for name in SHOWN},
    )


def end_table(record: Record) -> pd.DataFrame:
    """Return the share of labels (%) that each attack finds at the end of training, ± the deviation over batches.

    One row for each kind of client and network. Columns: the model's test accuracy, the number n of batches, then the
    attacks.
    """
    rows = record.rows(AttackedTraining)
    rows = select(rows, step=rows["step"].max())
    success = joined(" ± ", only("success", ".1f"), only("spread", ".1f"))
    return summary(
        rows.assign(network=rows["run"] + 1),
        {"clients": "clients", "network": "network"},
        {"accuracy on test images (%)": only("accuracy", ".1f"), "batches": only("count", ".0f")}
        | {f"{name} (%)": among(success, attack=name) for name in SHOWN},
    )


def figure_training(record: Record) -> Figure:
    """Draw the share of labels found and the model's accuracy (%) against the training steps, with standard deviations.

    One row of panels for each kind of client: the attacks on the left, the model on the right.
    """
    shown = {"xlabel": "steps of training", "ylim": (0, 105)}
    accuracies = {"accuracy": "test images", "own_accuracy": "the clients’ batches"}
    looks = {"test images": {"linestyle": "-"}, "the clients’ batches": {"linestyle": ":"}}
    panels = []
    for clients, rows in record.rows(AttackedTraining).groupby("clients", sort=False):
        # There are many steps, so lines have no markers.
        plain = {name: look | {"marker": ""} for name, look in LOOKS.items()}
        attacks = lines("step", "success", by="attack", band="deviation", order=SHOWN, looks=plain)
        model = select(rows, attack=GUESS).rename(columns=accuracies)
        model = model.melt("step", list(accuracies.values()), value_name="share")
        accuracy = lines("step", "share", by="variable", band="deviation", looks=looks, color="0.2", marker="")
        panels += [
            panel(rows, attacks, title=f"the attacks, {clients} clients", ylabel="labels found (%)", **shown),
            panel(model, accuracy, title="the model", ylabel="accuracy (%)", **shown),
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
