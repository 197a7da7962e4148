"""One image of a vision transformer

Beyond wang2024, section 4.3: closed forms for networks that are no chain of layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.errors import InputError
from gradleak.images import trace_transformer
from gradleak.images.inversion.fully_connected import SURE
from gradleak.images.inversion.tokens import embedding_of
from gradleak.images.inversion.transformer import ATTACK
from gradleak.leak import observe
from gradleak.models.ready import TRANSFORMERS
from gradleak.models.transformer import VisionTransformer
from gradleak.show.aggregate import aggregate, count, decibels, least, mean, median
from gradleak.show.drawn import drawn, lines, places
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.outcomes import PSNR, collected, network_in_words

PLACE = "Beyond section 4.3"
# A small network and torchvision's, both with random weights. torchvision's last layer starts at zero, so that a fresh
# client's gradient is zero below it; here it is drawn anew.
SMALL, LARGE = "vit", "vit_b_16"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
POSITIONS = {True: "learned", False: "frozen"}


class Cell(Group):
    """A network and its private images."""

    dataset: str
    network: str

    def check(self) -> None:
        """Raise an error if there is no such network."""
        if self.network not in (SMALL, LARGE, *TRANSFORMERS):
            raise InputError(f"networks are {', '.join((SMALL, LARGE, *TRANSFORMERS))}; got '{self.network}'")


class Parameters(studies.Parameters):
    """Parameters of the page: networks with their images, numbers of images, and levels of noise."""

    cells: list[Cell] = setting(
        paper=[
            {"dataset": "cifar10", "network": "cifar10-vit-8"},
            {"dataset": "cifar10", "network": "cifar10-vit-16"},
            {"dataset": "cifar10", "network": SMALL},
            {"dataset": "imagenet-sample", "network": LARGE},
        ],
        smallest=[{"dataset": "photos", "network": SMALL}],
        min_length=1,
    )
    samples: int = setting(paper=20, smallest=1, ge=1, le=1000)
    large: int = setting(paper=3, ge=1, le=1000)
    noises: list[float] = setting(paper=[1e-7, 1e-6, 1e-5, 1e-4, 1e-3], smallest=[1e-5])

    def sees(self) -> list[Sees]:
        """Return the networks with their images, which are in colour."""
        return [Sees(cell.network, cell.dataset, channels=3) for cell in self.cells]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each network, precision and kind of positions, and for each level of noise."""
        for cell in self.cells:
            samples = self.large if cell.network == LARGE else self.samples
            for dtype, learned in product(DTYPES, POSITIONS):
                yield Restored.of(self, **dict(cell), dtype=dtype, learned=learned, std=0.0, samples=samples)
            if cell.network != LARGE:
                for std in self.noises:
                    yield Restored.of(self, **dict(cell), dtype="float32", learned=True, std=std, samples=samples)

    def about(self) -> str:
        """Return the size of a run in a few words."""
        return f"{len(self.cells)} networks, {self.samples} images each ({self.large} for {LARGE})"


class Restored(Experiment):
    """Restore single images from gradients of one network.

    Attributes:
        learned: Whether the client trains the positions; otherwise it sends no gradient of them.
        std: The standard deviation of the noise that the client adds to every entry, which the attacker knows.
    """

    dataset: str
    network: str
    dtype: str
    learned: bool
    std: float
    samples: int

    def run(self) -> Iterator[Columns]:
        """Observe each image alone and restore it; times are CPU times."""
        private = data.load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(len(private), generator=generator)[: self.samples]
        images = data.normalise(private.images[chosen]).to(self.device, DTYPES[self.dtype])
        classes = private.labels[chosen].to(self.device)
        model = built(self.network, private, self.seed).to(self.device, DTYPES[self.dtype])
        if not self.learned:
            name = embedding_of(observe(model, images[:1], classes[:1])).positions
            model.get_parameter(name).requires_grad_(False)
        defense = defenses.gaussian(self.std, generator) if self.std else None
        for number, (image, label) in enumerate(zip(images.split(1), classes.split(1), strict=True)):
            leak, client = timed(observe, model, image, label, defense=defense)
            found, attack = timed(trace_transformer, leak, noise=self.std)
            actual = float((found.inputs - image).norm() / image.double().norm())
            psnr = metrics.psnr(data.denormalise(found.inputs), data.denormalise(image.double()))
            yield {
                "image": number,
                "status": found.status,
                "psnr": -math.inf if math.isnan(actual) else float(psnr),
                "claimed": found.claimed,
                "actual": actual,
                "wrong": int(found.status == "exact" and not actual <= min(SURE, found.claimed)),
                "extra_seconds": attack - client,
            }


def built(network: str, private: data.Dataset, seed: int) -> nn.Module:
    """Return a network in eval mode: a trained one, or one with random weights from a seed."""
    if network in TRANSFORMERS:
        return models.pretrained(network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if network == SMALL:
            side = private.images.shape[-1]
            return VisionTransformer(side, side // 4, classes=private.classes).eval()
        from torchvision.models import vit_b_16

        model: nn.Module = vit_b_16(weights=None).eval()
        nn.init.normal_(model.get_parameter("heads.head.weight"), std=0.02)
        return model


# ------------------------------------------------------------------------------------------------- tables and figures
def restored(record: Record) -> pd.DataFrame:
    """Return the rows with a title of their network and the kind of their client."""
    rows = record.rows(Restored)
    kinds = rows["learned"].map(POSITIONS)
    stages = ["trained" if name in TRANSFORMERS else "untrained" for name in rows["network"]]
    return rows.assign(
        title=[f"{network_in_words(name)}, {stage}" for name, stage in zip(rows["network"], stages, strict=True)],
        stage=stages,
        client=kinds + " positions, " + rows["dtype"],
        positions=kinds,
        place=[list(DTYPES).index(dtype) for dtype in rows["dtype"]],
    )


def summary(record: Record) -> Summary:
    """Return the finding: one image follows from the gradient of a vision transformer, trained or not."""
    known = claims.judgements(record)
    trained, large, wrong = (known[f"vit-{name}"] for name in ("trained-8", "large", "wrong"))
    rows = restored(record)
    return Summary(
        f"One image of a vision transformer follows from its gradient by one linear equation: at {large.text} or more "
        f"for torchvision's base ViT and at {trained.text} or more for a trained small one; {wrong.text} certificates "
        "are wrong.",
        true=bool(trained.agrees and wrong.agrees),
        claim="vit-trained-8",
        what="lowest PSNR of single CIFAR-10 images (trained ViT with patches of 8 pixels, learned positions, float32)",
        figure=figure_psnr,
        of="images",
        leaks=Leaks(
            "one image of a vision transformer",
            "one image; ViT-B/16 and smaller ones",
            f"{large.text} or more (ViT-B/16, untrained, {large.count} images), {trained.text} or more (trained, "
            f"{trained.count} images), learned positions",
            f"{known['vit-large-seconds'].text} (ViT-B/16), beyond that of the gradient",
            kind="images",
            attack=ATTACK.name,
        ),
        outcomes=collected(
            record, rows, "images", PSNR, attack=ATTACK.name,
            network=rows["network"], training=rows["stage"], data=rows["dataset"], client=rows["dtype"],
            defense=[f"gaussian/{std:g}" if std else "none" for std in rows["std"]],
            detail=rows["positions"] + " positions",
        ),
    )  # fmt: skip


def table(record: Record) -> pd.DataFrame:
    """Return how well images are restored without noise, and how often the attack certifies them."""
    rows = restored(record)
    rows = rows[rows["std"] == 0]
    return aggregate(
        rows.assign(exact=100.0 * rows["status"].eq("exact")),
        {"network": "title", "client": "client"},
        {
            "images": count(),
            "median PSNR (dB)": median("psnr", decibels),
            "lowest PSNR (dB)": least("psnr", decibels),
            "certified": mean("exact", "{:.0f} %"),
            "largest actual / claimed error": lambda group: f"{(group['actual'] / group['claimed']).max():.2g}",
            "CPU time beyond the gradient (s)": mean("extra_seconds", ".2g"),
        },
    )


def figure_psnr(record: Record) -> Figure:
    """Draw the PSNR without noise in each precision, a panel for each network and a line for each kind of positions."""
    rows = restored(record)
    return drawn(
        rows[rows["std"] == 0],
        lines("place", "psnr", by="positions", band="range"),
        places("dtype", str),
        panels="title",
        across=2,
        height=2.5,
        legend=2,
        xlabel="precision of the gradient",
        ylabel="PSNR (dB)",
    )


def figure_noise(record: Record) -> Figure:
    """Draw the PSNR against the standard deviation of the noise, a line for each network."""
    rows = restored(record)
    return drawn(
        rows[rows["std"] > 0],
        lines("std", "psnr", by="title", band="range"),
        legend=3,
        xlabel="standard deviation of the noise on every entry",
        ylabel="PSNR (dB)",
        xscale="log",
    )
