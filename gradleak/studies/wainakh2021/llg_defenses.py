"""LLG during training and behind defences

wainakh2021, section 6.4: Figure 4; section 6.5: Figure 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, claims, data, defenses, studies
from gradleak.leak import Gradients, evaluating, observe
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn, lines
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.defended import Defended, named
from gradleak.studies.shared.outcomes import FOUND, WORDS, collected, defense_in_words, stages, written
from gradleak.studies.shared.tally import DRAWN, GUESS, LOOKS, SIZES, Batches, averaged, draw_success, with_errors

PLACE = "Sections 6.4 and 6.5, Figures 4 and 5"
# The attacks during training. Behind defences: the paper's attack, the guess, an attack that knows the defence, and one
# that does not rely on signs.
ATTACKS = ("LLG", "LLG*", "LLG+", GUESS, "shadow", "posterior", DRAWN)
BEHIND = ("LLG+", GUESS, "shadow", "posterior")
# The learning rate, and the number of images for measuring the model's accuracy.
RATE = 0.1
TESTED = 1000
Clients = Literal["skewed", "even"]
# The number of steps after which skewed clients change their two classes.
BLOCK = 100
# The defences of the paper, variants in the paper's code, and other defences.
OF_PAPER = ["noise/0.01", "noise/0.1", "noise/1", "dp/1", "dp/5", "dp/10", "prune/0.2", "prune/0.4", "prune/0.8"]
OF_CODE = ["noise-coded/1", "dp-coded/1", "prune-coded/0.2", "prune-coded/0.8"]
OTHERS = ["grad-drop/0.8", "sign/0", "quantize/4"]
# The defences behind which the paper compares LLG+ with the guess.
COMPARED = [name for name in (*OF_PAPER, *OF_CODE) if not name.endswith("/0.2")]


class Defence(Defended):
    """A defence in the paper's words: the level of "noise" is a variance.

    In the variants of the paper's code, the level of "noise-coded" is a standard deviation, and "dp-coded" and
    "prune-coded" treat each tensor separately.
    """

    words: ClassVar = {name: name for name in ("none", "dp", "prune", "grad-drop", "sign", "quantize")} | WORDS


class Parameters(studies.Parameters):
    """Parameters of the page: the training, the defences, the attacked batches and the data."""

    iterations: int = setting(paper=10_000, smallest=40, ge=1, le=1_000_000)
    every: int = setting(paper=500, smallest=20, ge=1, le=1_000_000)
    training_size: int = setting(ge=1, le=1024)
    batches: int = setting(paper=1000, smallest=2, ge=1, le=10_000)
    clients: list[Clients] = setting(paper=["skewed"], smallest=["skewed"])
    runs: int = setting(ge=1, le=1000)
    training_auxiliary: int = setting(paper=80, ge=1, le=1000)
    repeats: int = setting(paper=100, ge=1, le=10_000)
    sizes: list[int] = setting(paper=SIZES, smallest=[1, 8])
    defenses: list[Defence] = setting(paper=["none/0", *OF_PAPER, *OF_CODE, *OTHERS], smallest=["none/0", "noise/0.1"])
    auxiliary: int = setting(ge=1, le=1000)
    bounded: int = setting(paper=500, smallest=2, ge=1, le=100_000)
    dataset: str = setting(paper="mnist")

    def sees(self) -> list[Sees]:
        """Return the network with its images."""
        return [Sees("llg-cnn", self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each kind of client and trained network, and one or two for each defence."""
        for clients, number in product(self.clients, range(self.runs)):
            yield AttackedTraining.of(self, clients=clients, number=number, auxiliary=self.training_auxiliary)
        for defence in self.defenses:
            yield AttackedBehind.of(self, **dict(defence))
            if str(defence) in COMPARED:
                yield BoundedBehind.of(self, **dict(defence), repeats=self.bounded)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return (
            f"{self.iterations:,} training steps, {self.batches} batches at each stop, {' and '.join(self.clients)} "
            f"clients; {self.repeats} networks behind each defence; {data.title(self.dataset)}"
        )


class AttackedTraining(Experiment, part="training"):
    """One network that is trained by gradient descent, and attacked at regular intervals."""

    clients: str
    number: int = Field(alias="run")
    iterations: int
    every: int
    training_size: int
    batches: int
    auxiliary: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Train, and attack some batches before the first step and after every `every` steps."""
        drawn = Batches.of(self.dataset, self.seed + self.number)
        private, public, generator = drawn.private, drawn.public, drawn.generator
        model = built("llg-cnn", private, self.seed + self.number, self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        before: dict[str, float] = {}
        pair = torch.randperm(private.classes, generator=generator)[:2]
        for step in range(self.iterations + 1):
            if step % self.every == 0:
                found = drawn.attacked(
                    model, drawn.others(self.auxiliary), [self.training_size] * self.batches, ATTACKS
                )
                trained = self._batch(private, TESTED // self.training_size * self.training_size, pair, generator)
                stop: Columns = {
                    "step": step,
                    "accuracy": _accuracy(model, public.images[:TESTED], public.labels[:TESTED], self.device),
                    "own_accuracy": _accuracy(model, private.images[trained], private.labels[trained], self.device),
                }
                rows = averaged(found)
                success = {row["attack"]: row["success"] for row in rows}
                before = before or success
                for row in rows:
                    own = row["success"]
                    yield {**stop, **row, "lost": before[row["attack"]] - own, "over_llg": own - success["LLG"]}
            if step % BLOCK == 0:
                pair = torch.randperm(private.classes, generator=generator)[:2]
            chosen = self._batch(private, self.training_size, pair, generator)
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


class Behind(Experiment):
    """Batches on many networks behind one defence."""

    defense: str
    level: float
    repeats: int
    sizes: list[int]
    auxiliary: int
    dataset: str


class AttackedBehind(Behind, part="defense"):
    """Batches that every attack attacks, and further batches on the same networks without a defence."""

    def run(self) -> Iterator[Columns]:
        """Count the labels of all batches, and measure how much the defence changes the gradient."""
        drawn, behind, without = Batches.of(self.dataset, self.seed), [], []
        changes: list[tuple[float, float]] = []
        for number in range(self.repeats):
            model = built("llg-cnn", drawn.private, self.seed + number, self.device)
            defence = named(Defence.words, self.defense, self.level, drawn.generator)
            given = drawn.others(self.auxiliary)
            behind += drawn.attacked(model, given, self.sizes, BEHIND, defense=defence)
            without += drawn.attacked(model, given, self.sizes, BEHIND)
            clean = observe(model, *drawn.batch(8, "unbalanced", self.device)).gradients
            changes.append((defenses.utility(clean, defence(clean)), _clipped(self.defense, self.level, clean)))
        utility, clipped = (sum(values) / self.repeats for values in zip(*changes, strict=True))
        for row, other in zip(averaged(behind), averaged(without), strict=True):
            yield {"utility": utility, "clipped": clipped, **row, "lost": other["success"] - row["success"]}


class BoundedBehind(Behind, part="bounds"):
    """Batches on more networks, which LLG+ alone attacks, for bounds of its lead over the guess."""

    def run(self) -> Iterator[Columns]:
        """Count the labels of all batches."""
        drawn, found = Batches.of(self.dataset, self.seed), []
        for number in range(self.repeats):
            model = built("llg-cnn", drawn.private, self.seed + number, self.device)
            defence = named(Defence.words, self.defense, self.level, drawn.generator)
            found += drawn.attacked(model, drawn.others(self.auxiliary), self.sizes, BEHIND[:2], defense=defence)
        kept = ("attack", "size", "count", "over_guess_least", "over_guess_most")
        for row in averaged(found):
            if row["attack"] != GUESS:
                yield {name: row[name] for name in kept}


def _clipped(defense: str, level: float, whole: Gradients) -> float:
    """Return the share (%) of gradients ("dp") or tensors ("dp-coded") whose norm is above the clipping norm."""
    norms = torch.stack([value.norm() for value in whole.values()])
    if defense == "dp":
        norms = norms.norm(keepdim=True)
    return 100 * float((norms > level).float().mean()) if defense.startswith("dp") else 0.0


def summary(record: Record) -> Summary:
    """Return the finding: neither training nor noise hides the labels, and clipping with much noise hides most."""
    known = claims.judgements(record)
    llg, noise = known["training-llg"], known["defenses-noise-1"]
    clipped = select(record.rows(AttackedBehind), defense="dp", level=1, attack="shadow")
    knowing, cosine = clipped["success"].mean(), clipped["utility"].mean()
    guessed = knowing - clipped["over_guess"].mean()
    rows = record.frame()
    stops = rows["step"].isna() | rows["step"].isin([0, rows["step"].max()])
    rows = rows[stops & rows["success"].notna() & ~rows["attack"].str.startswith("guess")]
    return Summary(
        f"Neither training nor noise hides the labels: LLG finds at least {llg.text} during training, LLG+ at least "
        f"{noise.text} over a guess behind noise. Clipping with noise leaves {knowing:.0f} % (guess: "
        f"{guessed:.0f} %) to an attacker knowing it, but destroys the gradient (cosine {cosine:.2f}).",
        true=bool(llg.agrees and noise.agrees and knowing < 50 and cosine < 0.1),
        claim="defenses-noise-1",
        what="labels that LLG+ finds beyond a guess, lower 95 % bound, worst batch size (noise of variance 1, MNIST)",
        figure=figure_defenses,
        of="batches",
        outcomes=collected(
            record, rows, "labels", FOUND, chance=rows["success"] - rows["over_guess"], cosine=rows["utility"],
            attack=rows["attack"], network="llg-cnn", training=stages(rows["step"].fillna(0)), data=rows["dataset"],
            batch=rows["size"], defense=written(rows["defense"].fillna("none"), rows["level"].fillna(0), WORDS),
            detail=["" if pd.isna(step) else f"after {step:,.0f} steps" for step in rows["step"]],
        ),
    )  # fmt: skip


def figure_training(record: Record) -> Figure:
    """Draw the share of labels found, with standard errors, and the model's accuracy (%) against the training steps.

    One panel for each kind of client. Accuracies, on test images and on the clients' batches, are black. A
    guess gives all classes the same share; a drawn guess draws every label at random.
    """
    # There are many steps, so lines have no markers.
    plain = {name: look | {"marker": ""} for name, look in LOOKS.items()}
    model = [
        lines("step", column, label=f"accuracy on {images}".format, color="0", marker="", linestyle=dash)
        for column, images, dash in (("accuracy", "test images", "-"), ("own_accuracy", "the clients’ batches", ":"))
    ]
    return drawn(
        with_errors(record.rows(AttackedTraining)),
        lines("step", "success", by="attack", band="error", order=ATTACKS, looks=plain),
        *model,
        panels="clients",
        title=lambda clients: f"{clients} clients",
        xlabel="training steps",
        ylabel="labels, accuracy (%)",
        ylim=(0, 105),
        across=2,
        legend=3,
    )


def figure_defenses(record: Record) -> Figure:
    """Draw the share of labels found (%) against the batch size, a panel for each defence and a line for each attack.

    In brackets: the cosine of the sent gradient with the clean one. Variants of the paper's code are left out.
    """
    rows = record.rows(AttackedBehind)
    rows = rows[~rows["defense"].str.endswith("-coded")]
    words = map(defense_in_words, written(rows["defense"], rows["level"], WORDS))
    parts = [(*text.partition(" "), cosine) for text, cosine in zip(words, rows["utility"], strict=True)]
    titles = [f"{name} ({cosine:.2f})\n{level.replace('variance', 'σ²')}" for name, _, level, cosine in parts]
    return draw_success(rows.assign(title=titles), BEHIND, "title", across=4, height=1.7, legend=4, ylabel="found (%)")
