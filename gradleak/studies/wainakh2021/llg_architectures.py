"""LLG on other architectures

wainakh2021, section 6.3: Figure 3.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from matplotlib.figure import Figure

from gradleak import claims, data, studies
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show.headline import Headline
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import tally
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.outcomes import FOUND, Outcome, collected
from gradleak.studies.wainakh2021.columns import COLUMNS

__all__ = ["COLUMNS"]

PLACE = "Section 6.3, Figure 3"
# LLG+ gets several batches of each class, each as large as the attacked batch. For slow networks the number of samples
# per class is limited to this.
MOST = {"llg-resnet20": 32, "llg-resnet20-batch": 32}
# Networks whose batch norm uses the statistics of each batch. Their auxiliary batches are run one by one.
BY_BATCH = ("llg-resnet20-batch",)
# The attack of the paper's figure, three others, and two attacks that also use the gradient of the bias.
SHOWN = {name: tally.ATTACKS[name] for name in ("LLG+", "LLG*", "LLG", "guess")} | {
    "iLRG": tally.LabelAttack("ilrg"),
    "posterior": tally.LabelAttack("posterior"),
}
# The networks by their names in tables and figures.
TITLES = {
    "llg-cnn": "CNN",
    "llg-lenet": "LeNet, kernel as coded",
    "llg-lenet-3x3": "LeNet, kernel 3×3",
    "llg-resnet20": "ResNet20, eval mode",
    "llg-resnet20-batch": "ResNet20, train mode",
}


class Parameters(studies.Parameters):
    """Parameters of the page: kinds of networks, their number, batch sizes and data."""

    repeats: int = setting(paper=100, ge=1, le=10_000)
    repeats_by_batch: int = setting(paper=50, ge=1, le=10_000)
    sizes: list[int] = setting(paper=tally.SIZES, smallest=[1, 4])
    networks: list[str] = setting(
        paper=["llg-cnn", "llg-lenet", "llg-lenet-3x3", "llg-resnet20", "llg-resnet20-batch"], smallest=["llg-cnn"]
    )
    rounds: int = setting(paper=10, ge=1, le=1000)
    dataset: str = setting(paper="mnist")

    def sees(self) -> list[Sees]:
        """Return the networks with their images."""
        return [Sees(network, self.dataset) for network in self.networks]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each kind of network."""
        for network in self.networks:
            repeats = self.repeats_by_batch if network in BY_BATCH else self.repeats
            yield AttackedArchitecture.of(self, network=network, repeats=repeats)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return f"{self.repeats} networks of each kind and {data.title(self.dataset)}"


class AttackedArchitecture(Experiment):
    """Many networks of one kind, each attacked with a batch of every size."""

    network: str
    repeats: int
    sizes: list[int]
    rounds: int
    dataset: str

    def run(self) -> list[Columns]:
        """Count the labels of all batches by every attack."""
        private, public = tally.load(self.dataset, "train"), tally.load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed)
        counted = tally.Tally()
        for number in range(self.repeats):
            model = built(self.network, private, self.seed + number, self.device)
            for size in self.sizes:
                rounds = min(self.rounds, max(1, MOST.get(self.network, self.rounds * size) // size))
                tally.attack(
                    counted, model, private, tally.others(public, rounds * size, generator),
                    sizes=[size], balance="unbalanced", generator=generator, attacks=SHOWN,
                    chunk=size if self.network in BY_BATCH else 250,
                )  # fmt: skip
        return counted.rows()


def headline(record: Record) -> Headline:
    """Return the finding: LLG+ finds nearly all labels on the CNN and fewer on the LeNet."""
    known = claims.judgements(record)
    cnn, lenet = known["architectures-llg-cnn"], known["architectures-llg-lenet"]
    return Headline(
        f"At every batch size LLG+ finds on average at least {cnn.text} of the labels on the paper’s CNN, as the paper "
        f"says, but only {lenet.text} on its LeNet, where the paper’s figure shows nearly all.",
        true=bool(cnn.agrees and lenet.agrees is False),
        claim="architectures-llg-lenet",
        what="labels that LLG+ finds on LeNet at its worst batch size (untrained, unbalanced batches of MNIST)",
        figure=figure_architectures,
        of="batches",
    )


def figure_architectures(record: Record) -> Figure:
    """Draw the share of labels found (%) against the batch size, a panel per network and a line per attack."""
    rows = record.rows(AttackedArchitecture)
    rows = rows.assign(network=rows["network"].replace(TITLES))
    return tally.draw_success(rows, list(SHOWN), "network", across=3, height=2.7, legend=len(SHOWN))


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["attack"] != "guess"]
    return collected(
        record, rows, "labels", FOUND, chance=rows["success"] - rows["over_guess"], attack=rows["attack"],
        network=rows["network"], data=rows["dataset"], batch=rows["size"],
    )  # fmt: skip
