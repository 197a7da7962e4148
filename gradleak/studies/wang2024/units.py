"""Samples that one unit shows: records and images of a batch, by division

Beyond wang2024, section 2: the bias attack of aono2017 on batches and on updates of several local steps, unit by unit.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, defenses, metrics, studies
from gradleak.images import Prior, bias_attack, invert_units, match, match_span
from gradleak.leak import Leak, observe
from gradleak.show.aggregate import aggregate, among, joined, mean, select
from gradleak.show.drawn import drawn, lines, powers_of_two
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Group, Record, setting
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.outcomes import average_of, collected, median_of
from gradleak.studies.shared.samples import DTYPES
from gradleak.studies.wang2024.columns import COLUMNS

PLACE = "Beyond section 2"
Source = Literal["wine", "breast cancer", "digits", "photos"]
Stage = Literal["untrained", "trained"]
# Tables of scikit-learn; the rest are datasets of images.
TABLES = ("wine", "breast cancer")
# A sample is shown by a quotient with at most this relative error.
NEAR = 1e-2
# The units of each hidden layer, and Adam's steps and rate for a trained network.
HIDDEN, TRAINING, TRAINING_RATE = (256, 64), 100, 1e-3
ONE_STEP = "one step"


class Client(Group):
    """How a client trains: `epochs` passes over its batch in so many `parts`; one step of one part is a gradient."""

    epochs: int = Field(1, ge=1)
    parts: int = Field(1, ge=1)
    rate: float = Field(0.01, gt=0)

    @property
    def title(self) -> str:
        """The client in words."""
        if self.epochs * self.parts == 1:
            return ONE_STEP
        steps = f"{self.epochs * self.parts} steps" + (f", {self.parts} mini-batches" if self.parts > 1 else "")
        return f"{steps}, rate {self.rate:g}"


class Parameters(studies.Parameters):
    """Parameters of the page: data, networks, batch sizes, and how clients train."""

    sources: list[Source] = setting(paper=["wine", "breast cancer", "digits", "photos"], smallest=["wine"])
    stages: list[Stage] = setting(paper=["untrained", "trained"])
    sizes: list[PositiveInt] = setting(paper=[2, 4, 8, 16, 32], smallest=[4])
    precisions: list[str] = setting(paper=["float32"])
    clients: list[Client] = setting(
        paper=[{}, {"epochs": 2}, {"parts": 2}, {"epochs": 2, "rate": 0.001}, {"epochs": 2, "rate": 0.1}],
        smallest=[{}, {"epochs": 2}],
    )
    long: list[Client] = setting(
        paper=[{"epochs": 5, "rate": rate} for rate in (0.01, 0.03, 0.1, 0.3, 1)],
        smallest=[{"epochs": 5, "rate": 0.3}],
    )
    long_sizes: list[PositiveInt] = setting(paper=[4, 8], smallest=[4])
    batches: int = setting(paper=5, smallest=1, ge=1, le=10_000)
    defenses: list[str] = setting(
        paper=["gaussian/0.001", "gaussian/0.01", "gaussian/0.03", "prune/0.9", "prune/0.99", "quantize/4"],
        smallest=["gaussian/0.01"],
    )
    defended: list[Stage] = setting(paper=["untrained", "trained"], smallest=["untrained"])
    images: int = setting(paper=16, smallest=2, ge=1, le=100)
    together: list[PositiveInt] = setting(paper=[2, 4, 8], smallest=[2])
    together_behind: list[str] = setting(
        paper=["gaussian/0.001", "gaussian/0.01", "quantize/8"], smallest=["gaussian/0.001"]
    )
    groups: int = setting(paper=8, smallest=1, ge=1, le=100)
    steps: int = setting(paper=400, smallest=5, ge=1)

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each network and its clients, one for clients that train for long, and defences."""
        for source, stage, dtype in product(self.sources, self.stages, self.precisions):
            for sizes, clients in ((self.sizes, self.clients), (self.long_sizes, self.long)):
                own = {"sizes": sizes, "clients": [dict(one) for one in clients]}
                yield Shown.of(self, source=source, stage=stage, dtype=dtype, **own)
        for stage, defense in product(self.defended, self.defenses):
            yield Defended.of(self, stage=stage, defense=defense)
        for stage, defense, size in product(self.defended, self.together_behind, self.together):
            yield DefendedBatches.of(self, stage=stage, defense=defense, size=size)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        photos = f"{self.images} photos and {self.groups} batches behind each defence"
        return f"{self.batches} batches of each size; {', '.join(self.sources)}; {photos}"


class Shown(Experiment):
    """Batches of one network, whose units are read."""

    source: Source
    stage: Stage
    dtype: str
    sizes: list[int]
    clients: list[dict[str, Any]]
    batches: int

    def reads(self) -> list[str]:
        """Return the dataset, none for a table."""
        return [] if self.source in TABLES else [self.source]

    def run(self) -> Iterator[Columns]:
        """Read the units for batches of every size, which all clients have."""
        (known, known_labels), (inputs, labels) = self._data()
        model = network(known, known_labels, self.stage, self.seed).to(self.device, DTYPES[self.dtype])
        inputs, labels = inputs.to(self.device, DTYPES[self.dtype]), labels.to(self.device)
        generator = torch.Generator().manual_seed(self.seed)
        for size, number in product(self.sizes, range(self.batches)):
            chosen = torch.randperm(len(inputs), generator=generator)[:size]
            for client in (Client(**settings) for settings in self.clients):
                if size % client.parts == 0:
                    leak = _sent(model, inputs[chosen], labels[chosen], client)
                    found, seconds = timed(invert_units, leak)
                    about: Columns = {"size": size, "batch": number, "client_trains": client.title}
                    nearness = compared(found.inputs, found.guaranteed, inputs[chosen])
                    yield about | {"status": found.status, "seconds": seconds} | nearness

    def _data(self) -> list[tuple[Tensor, Tensor]]:
        """Return inputs and labels that the network is trained on, and those of clients."""
        if self.source in TABLES:
            from sklearn.datasets import load_breast_cancer, load_wine

            table = load_wine() if self.source == "wine" else load_breast_cancer()
            inputs, labels = torch.tensor(table.data, dtype=torch.float64), torch.tensor(table.target)
            inputs = (inputs - inputs.mean(dim=0)) / inputs.std(dim=0)
            order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(self.seed))
            return [(inputs[half], labels[half]) for half in order.chunk(2)]
        splits = (data.load(self.source, "train"), data.load(self.source, "test"))
        return [(data.normalise(split.images).flatten(1).double(), split.labels) for split in splits]


class Defended(Experiment, part="one image behind a defence"):
    """Single photos behind a defence: what one unit, all units and a search show of them."""

    dataset: ClassVar[str] = "photos"
    stage: Stage
    defense: str
    images: int
    steps: int

    def run(self) -> Iterator[Columns]:
        """Attack every image, with all ways, and compare."""
        images, labels = photos(self.images, self.seed, self.device)
        leaks = list(_defended(self.stage, self.defense, images.split(1), labels.split(1), self.seed))
        # The level of the noise is public.
        name, _, level = self.defense.partition("/")
        noise, box = float(level) if name == "gaussian" else None, Prior(box=tuple(images.new_tensor((0, 1))))
        read = [(invert_units(leak, noise=noise), invert_units(leak, noise=noise, box=(0.0, 1.0))) for leak in leaks]
        found = {
            "median of all units": torch.cat([_median(leak) for leak in leaks]).view_as(images),
            "closest to all units": torch.cat([one.inputs for one, _ in read]),
            "the same, as an image": torch.cat([one.inputs for _, one in read]),
            "gradient matching": match(leaks, labels, budget=self.steps, prior=box).images,
        }
        psnr = {way: metrics.psnr(inputs, images) for way, inputs in found.items()}
        certified = torch.tensor([bool(one.guaranteed.any()) for _, one in read])
        for way, inputs in found.items():
            wrong = certified.to(self.device) & (psnr[way] < metrics.EXACT) if way == "the same, as an image" else None
            rows = zip(
                psnr[way], metrics.ssim(inputs, images), psnr[way] - psnr["gradient matching"],
                [None] * len(images) if wrong is None else wrong.long(), strict=True,
            )  # fmt: skip
            for number, (quality, similar, over, own) in enumerate(rows):
                about: Columns = {"image": number, "method": way, "psnr": float(quality), "ssim": float(similar)}
                yield about | {"over_matching": float(over), "wrong": None if own is None else int(own)}


class DefendedBatches(Experiment, part="a batch behind a defence"):
    """Batches of photos behind a defence: what units, the span of all units and a search show of them."""

    dataset: ClassVar[str] = Defended.dataset
    stage: Stage
    defense: str
    size: int
    groups: int
    steps: int

    def run(self) -> Iterator[Columns]:
        """Attack every batch in three ways, and compare each photo with the nearest that was found."""
        drawn, classes = photos(self.size * self.groups, self.seed, self.device)
        images, labels = drawn.split(self.size), classes.split(self.size)
        leaks = _defended(self.stage, self.defense, images, labels, self.seed)
        box = Prior(box=tuple(drawn.new_tensor((0, 1))))
        for number, (leak, own, truth) in enumerate(zip(leaks, labels, images, strict=True)):
            found = {
                "units of a batch": invert_units(leak, noise=None).inputs,
                "span of a batch": match_span(leak, own, seed=self.seed, box=(0.0, 1.0)).inputs,
                "matching of a batch": match(leak, own, budget=self.steps, prior=box, seed=self.seed).images,
            }
            psnr = {way: _nearest(inputs.to(truth), truth) for way, inputs in found.items()}
            for way, qualities in psnr.items():
                for place, quality in enumerate(qualities.tolist()):
                    about: Columns = {
                        "size": self.size,
                        "batch": number,
                        "image": place,
                        "method": way,
                        "psnr": quality,
                    }
                    yield about | {"over_matching": quality - float(psnr["matching of a batch"][place])}


def _nearest(found: Tensor, truth: Tensor) -> Tensor:
    """Return for each image (B, …) the PSNR (dB) of the nearest of those that were found (M, …)."""
    return torch.stack([metrics.psnr(found, image.expand_as(found)).max() for image in truth])


def photos(count: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """Return photos of clients and their classes."""
    split = data.load(Defended.dataset, "test")
    chosen = torch.randperm(len(split.images), generator=torch.Generator().manual_seed(seed))[:count]
    return split.images[chosen].to(device), split.labels[chosen].to(device)


def _defended(stage: Stage, name: str, images: Iterable[Tensor], labels: Iterable[Tensor], seed: int) -> Iterator[Leak]:
    """Yield what clients of one network send behind a defence, a leak for each batch."""
    model = copy.deepcopy(_of_photos(stage, seed))
    for number, (inputs, own) in enumerate(zip(images, labels, strict=True)):
        leak = observe(model.to(inputs.device), inputs, own)
        defense = defenses.named(name, generator=torch.Generator().manual_seed(seed + number))
        yield replace(leak, gradients=defense(leak.gradients))


@functools.cache
def _of_photos(stage: Stage, seed: int) -> nn.Module:
    """Return a network for photos with pixels from 0 to 1."""
    known = data.load(Defended.dataset, "train")
    return nn.Sequential(nn.Flatten(), *network(known.images.flatten(1), known.labels, stage, seed))


def _median(leak: Leak) -> Tensor:
    """Return the median of the quotients of all units that have one, or 0 where none has."""
    quotients = bias_attack(leak)
    own = quotients[quotients.isfinite().all(dim=1)]
    return own.median(dim=0).values if len(own) else torch.zeros_like(quotients[0])


def network(inputs: Tensor, labels: Tensor, stage: Stage, seed: int) -> nn.Sequential:
    """Return a network with two hidden layers, untrained or trained on these samples."""
    sizes = (inputs.shape[1], *HIDDEN, int(labels.max()) + 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:3]), nn.ReLU(), nn.Linear(*sizes[2:])
        )
    optimiser = torch.optim.Adam(model.parameters(), TRAINING_RATE)
    for _ in range(TRAINING if stage == "trained" else 0):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs.float()), labels).backward()
        optimiser.step()
    return model


def _sent(model: nn.Module, inputs: Tensor, labels: Tensor, client: Client) -> Leak:
    """Return what the server sees: a gradient, or the weights after training."""
    if client.title == ONE_STEP:
        return observe(model, inputs, labels)
    after = copy.deepcopy(model)
    optimiser = torch.optim.SGD(after.parameters(), client.rate)
    for _ in range(client.epochs):
        for part, own in zip(inputs.chunk(client.parts), labels.chunk(client.parts), strict=True):
            optimiser.zero_grad()
            F.cross_entropy(after(part), own).backward()
            optimiser.step()
    return Leak.from_update(
        model, model.state_dict(), after.state_dict(), rate=client.rate, batch_size=len(inputs) // client.parts,
        local_steps=client.epochs * client.parts, input_shape=tuple(inputs.shape[1:]),
    )  # fmt: skip


def compared(found: Tensor, guaranteed: Tensor, truth: Tensor) -> Columns:
    """Compare quotients (M, D), some of which are guaranteed, with the samples (B, D)."""
    truth = truth.double()
    errors = (found[:, None] - truth).norm(dim=2) / truth.norm(dim=1)
    near = errors <= NEAR
    return {
        "quotients": len(found),
        "shown": 100 * float(near.any(dim=0).double().mean()),
        "guaranteed": 100 * float(near[guaranteed].any(dim=0).double().mean()),
        "wrong": int((~near[guaranteed].any(dim=1)).sum()),
    }


def summary(record: Record) -> Summary:
    """Return the finding: units show samples of small batches and images behind noise, and no guarantee is wrong."""
    known = claims.judgements(record)
    rows = _shown(record).assign(one=1)
    steps = rows[rows["client_trains"].isin([ONE_STEP, Client(epochs=2).title])]
    defended = select(record.rows(Defended), method="the same, as an image")
    together = select(record.rows(DefendedBatches), method="span of a batch")
    shown, large, wrong, noisy, gained = (
        known[f"units-{name}"] for name in ("shown", "large", "wrong", "defended-noise", "defended-gain")
    )
    sizes = [one.claim.measure.where["size"] for one in (shown, large)]
    behind = defenses.shown(str(noisy.claim.measure.where["defense"]))
    return Summary(
        f"Single units show {shown.text} of the samples in batches of {sizes[0]} and {large.text} in batches of "
        f"{sizes[1]}; {wrong.text} guarantees in {len(rows):,} batches are wrong. Behind {behind}, all units give one "
        f"photo at {noisy.text}, {gained.text} more than a search.",
        true=wrong.value == 0 and all(one.agrees for one in (shown, large, noisy, gained)),
        claim="units-shown",
        what=f"samples of a batch of {sizes[0]} that single units show (ReLU network, one step, float32)",
        of="batches",
        figure=figure_shown,
        outcomes=collected(
            record, steps, "features", average_of("guaranteed", "inputs that are guaranteed", "batches", count="one"),
            attack="unit by unit", network="mlp", training=steps["stage"], data=steps["source"],
            batch=steps["size"], client=steps["dtype"], detail=steps["client_trains"],
        ) + collected(
            record, defended, "images", median_of("psnr", "PSNR of the image", "images"),
            attack="unit by unit", network="mlp", training=defended["stage"], data=Defended.dataset, batch=1,
            defense=defended["defense"],
        ) + collected(
            record, together, "images", median_of("psnr", "PSNR of the image", "images"),
            attack="matching in the first layer's span", network="mlp", training=together["stage"],
            data=Defended.dataset, batch=together["size"].astype(int), defense=together["defense"],
        ),
    )  # fmt: skip


def _shown(record: Record) -> pd.DataFrame:
    """Return the rows of batches, without those of single images, which have no size."""
    rows = record.rows(Shown)
    return rows[rows["size"].notna()].astype({"size": int})


def figure_shown(record: Record) -> Figure:
    """Plot the share of samples that units show, and the share that is guaranteed, against the batch size; one step."""
    rows = select(_shown(record), client_trains=ONE_STEP)
    rows = rows.melt(["source", "stage", "size"], ["shown", "guaranteed"], var_name="samples", value_name="share")
    return drawn(
        rows.assign(title=rows["source"] + ",\n" + rows["stage"]),
        lines("size", "share", by="samples"),
        powers_of_two("size"),
        panels="title",
        legend=2,
        xlabel=COLUMNS["size"].head,
        ylabel="samples (%)",
        ylim=(-4, 104),
    )


def table_long(record: Record) -> pd.DataFrame:
    """Return the share of samples that units show after long training, a column for each rate."""
    rows, titles = _shown(record), [one.title for one in record.stated(Parameters).long]
    return aggregate(
        rows[rows["client_trains"].isin(titles)],
        {"data": "source", "network": "stage", "samples in a batch": "size"},
        {title: among(mean("shown", "{:.0f} %"), client_trains=title) for title in titles},
    )


def figure_clients(record: Record) -> Figure:
    """Plot the share of samples that units show against the batch size, a line for each way to train."""
    rows, titles = _shown(record), [one.title for one in record.stated(Parameters).clients]
    return drawn(
        rows[rows["client_trains"].isin(titles)],
        lines("size", "shown", by="client_trains"),
        powers_of_two("size"),
        panels="stage",
        legend=3,
        xlabel=COLUMNS["size"].head,
        ylabel=COLUMNS["shown"].head,
        ylim=(-4, 104),
    )


def table_defended(record: Record) -> pd.DataFrame:
    """Return the quality of single images behind each defence, a column for each way to restore them."""
    rows = record.rows(Defended)
    quality = {
        f"{way} (dB; SSIM)": joined(
            "; ", *(among(one, method=way) for one in (mean("psnr", ".1f"), mean("ssim", ".2f")))
        )
        for way in rows["method"].unique()
    }
    return aggregate(
        rows.assign(shown=rows["defense"].map(defenses.shown)), {"defence": "shown", "network": "stage"}, quality
    )


def table_batches(record: Record) -> pd.DataFrame:
    """Return the PSNR of batches of images behind each defence, a column for each way to restore them."""
    rows = record.rows(DefendedBatches)
    return aggregate(
        rows.assign(shown=rows["defense"].map(defenses.shown), own=rows["size"].astype(int)),
        {"defence": "shown", "network": "stage", "photos in a batch": "own"},
        {f"{way} (dB)": among(mean("psnr", ".1f"), method=way) for way in rows["method"].unique()},
    )
