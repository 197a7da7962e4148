"""GradInversion, part by part: priors, baselines, networks and batch sizes

yin2021, section 4: Tables 2 to 4, Figures 2 and 4 to 8.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import model_validator
from torch import Tensor
from torch.nn import functional as F

from gradleak import claims, data, metrics
from gradleak.images import GradInversion, Reconstruction, project_batches, restore_denoised
from gradleak.images.gradinversion.learned import PROJECTION
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.leak import in_train_mode
from gradleak.models import training
from gradleak.models.picture_training import PictureRecipe, learned
from gradleak.models.pictures import Autoencoder
from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.show.drawn import arranged, dots, level, only_rows, panel
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Record, setting
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.deep_networks import SMALL
from gradleak.studies.shared.restored_batches import (
    AVERAGED,
    DEEP,
    DLG,
    FLOORS,
    GREY,
    INVERTING,
    KINDS,
    LATENT,
    OF_ANOTHER,
    PSNRS,
    PUBLISHED,
    Case,
    OnBatches,
    Rows,
    gained,
    named,
    restored_images,
    scaled,
)
from gradleak.studies.shared.shown_batches import draw_sizes, rows_of

PLACE = "Section 4, Tables 2 to 4 and Figures 5 to 8"
PYRAMID, FEATURES = SETTINGS["gradinversion+pyramid"], SETTINGS["gradinversion+features"]
FIDELITY = replace(PYRAMID, levels=1)
PLAIN = replace(FIDELITY, variation=0.0, statistics=0.0)
RUNNING, EXACT, TRAINING = "+ BN, running", "+ BN, exact", "+ BN, exact, train mode"
# Settings beyond the paper. The features of all samples are recovered only in very small batches.
FEATURED, BOTH = "+ features", "+ features, pyramid"
COARSE, DENOISED = "+ BN, exact, pyramid", "+ BN, exact, denoiser"
SEEDED, LAZY, REGISTERED = "independent seeds", "lazy group", "registered group"
# The settings of each attack, and whether the attacker has the batch norm statistics of the batch itself.
ATTACKS: dict[str, tuple[GradInversion, bool]] = {
    "gradient": (PLAIN, False),
    "+ TV": (replace(PLAIN, variation=PYRAMID.variation), False),
    RUNNING: (FIDELITY, False),
    EXACT: (FIDELITY, True),
    TRAINING: (FIDELITY, True),
    "as printed": (replace(SETTINGS["gradinversion"], group="none", consistency=0.0), True),
    DEEP: (SETTINGS["deepinversion"], False),
    FEATURED: (replace(FIDELITY, feature=FEATURES.feature), True),
    BOTH: (FEATURES, True),
    COARSE: (PYRAMID, True),
    SEEDED: (FIDELITY, True),
    LAZY: (replace(FIDELITY, group="mean", consistency=0.01), True),
    REGISTERED: (replace(FIDELITY, group="registered", consistency=0.01), True),
}


def _steps(*runs: str) -> list[tuple[str, str]]:
    """Return the pairs of each run and the run before it."""
    return [(own, before) for before, own in itertools.pairwise(runs)]


def _over(run: str, *others: str) -> list[tuple[str, str]]:
    """Return the pairs of one run and each of some other runs."""
    return [(run, other) for other in others]


# The runs of each part, and the pairs of runs that are compared.
RUNS = {
    "rows": ("gradient", "+ TV", RUNNING, EXACT, TRAINING, "as printed", DEEP, INVERTING, DLG),
    "seeds": (SEEDED, LAZY, REGISTERED),
    "baselines": (LATENT, DEEP, INVERTING, DLG, RUNNING, EXACT, COARSE, DENOISED),
    "few": (EXACT, FEATURED, BOTH),
    "alone": (EXACT, FEATURED, BOTH, DEEP),
}
PAIRS = {
    "rows": [
        *_steps("noise", "gradient", "+ TV", RUNNING, EXACT),
        *_over(EXACT, "as printed", INVERTING),
        (INVERTING, DLG),
        *_over(EXACT, DEEP, TRAINING, "mean colour"),
    ],
    "seeds": [
        *_steps(SEEDED, LAZY, REGISTERED),
        (SEEDED + AVERAGED, SEEDED),
        *((name + AVERAGED, SEEDED + AVERAGED) for name in (LAZY, REGISTERED)),
    ],
    "baselines": [
        *_over(EXACT, RUNNING, INVERTING, LATENT, DEEP),
        (INVERTING, DLG),
        (DLG, "noise"),
        (LATENT, "noise"),
        (RUNNING, DEEP),
        (COARSE, EXACT),
        (DENOISED, EXACT),
        *((name, name + OF_ANOTHER) for name in (LATENT, EXACT, DENOISED)),
        (EXACT, GREY),
        (DENOISED, "mean colour"),
    ],
    "few": [*_steps(EXACT, FEATURED, BOTH), (FEATURED, "mean colour")],
    "alone": _steps(DEEP, EXACT, FEATURED, BOTH),
}
# The networks of Table 3, the most accurate first.
BY_ACCURACY = ["cifar10-resnet56+head", "cifar10-resnet20+head", SMALL]
# The row of pure noise in Table 2, and ImageNet's pixel statistics.
NOISE = {"FFT2D": 0.706, "PSNR": 9.964, "LPIPS": 1.351}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PICTURES = "imagenet-sample"


class Parameters(restored_batches.Parameters):
    """Parameters of the page: the images of each part, the networks of Tables 3 and 4, and the steps."""

    size: int = setting(paper=8, ge=1, le=64)
    batches: int = setting(paper=4, ge=2, le=10_000)
    steps: int = setting(paper=500, smallest=2, ge=2, le=1_000_000)
    group_batches: int = setting(paper=4, ge=1, le=10_000)
    seeds: int = setting(paper=4, ge=2, le=100)
    registrations: int = setting(paper=6, ge=1, le=1000)
    networks: list[str] = setting(paper=BY_ACCURACY)
    network_batches: int = setting(paper=4, ge=1, le=10_000)
    baseline_network: str
    epochs: int = setting(paper=8, ge=1, le=1000)
    depth: int = setting(paper=24, smallest=4, ge=4, le=512)
    width: int = setting(ge=2, le=1024)
    sizes: list[int] = setting(paper=[1, 2, 4, 8], min_length=1)
    groups: int = setting(paper=4, ge=1, le=10_000)
    few: int = setting(paper=4, ge=1, le=64)
    few_batches: int = setting(paper=8, ge=1, le=10_000)
    singles: int = setting(paper=8, ge=1, le=10_000)
    pictures: int = setting(paper=1000, ge=0, le=1000)

    channels: ClassVar[int] = 3

    @property
    def every(self) -> list[str]:
        """The names of all networks."""
        return [self.network, self.judge, self.baseline_network, *self.networks]

    @model_validator(mode="after")
    def _divided(self) -> Self:
        restored_batches.check_sizes(self.sizes, max(self.sizes))
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield one experiment for each table or figure, because all batches of a table are compared."""
        if self.pictures:
            yield PureNoise.of(self)
        yield Table2.of(self, first=0)
        yield SeveralSeeds.of(self, first=0, batches=self.group_batches)
        yield FromNetworks.of(self, size=self.few, batches=self.network_batches)
        yield Table4.of(self, network=self.baseline_network, first=0)
        yield SizesOfBatches.of(self, first=0, batches=self.groups)
        yield FewImages.of(self, size=self.few, first=0, batches=self.few_batches)
        yield ImagesAlone.of(self, size=1, first=0, batches=self.singles)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return (
            f"{self.batches} batches of {self.size} for Tables 2 and 4, batches of {', '.join(map(str, self.sizes))} "
            f"for the figures, {self.steps} steps, {data.title(self.dataset)}, {self.network}"
        )


class RestoredBatches(OnBatches):
    """Batches that are restored by the attacks of a part, which are then compared.

    Attributes:
        floors: The baselines, which show nothing of the private images.
        size: The number of images in a batch.
        steps: The number of gradient evaluations of an attack.
    """

    floors: ClassVar[tuple[str, ...]] = FLOORS
    size: int
    steps: int

    def run(self) -> Rows:
        """Restore the batches by every attack of the part, and compare the attacks."""
        case, pairs = self.drawn(self.size), PAIRS[self.part]
        rows = case.private(self.floors)
        for name in RUNS[self.part]:
            own = of_training_clients(case) if name == TRAINING else case
            found = self.found(own, name)
            rows += own.judged(name, found)
            if (name, name + OF_ANOTHER) in pairs:
                rows += own.of_another(name + OF_ANOTHER, found)
        return [*rows, *gained(rows, pairs, self.size, self.seed)]

    def found(self, case: Case, name: str) -> Reconstruction:
        """Return the images that an attack finds."""
        if name not in ATTACKS:
            return case.matched(name, self.steps)
        settings, exact = ATTACKS[name]
        return case.attacked(settings, self.steps, exact=exact)


def of_training_clients(case: Case) -> Case:
    """Return the same batches sent by clients whose batch norms use the statistics of each batch."""
    scene = copy.copy(case.scene)
    scene.model = in_train_mode(case.model)
    return Case(scene, case.places.reshape(-1, case.size))


class Table2(RestoredBatches, part="rows"):
    """Batches, restored with more and more parts of the objective, and by baselines of Table 4."""


class SeveralSeeds(RestoredBatches, part="seeds"):
    """Batches that are restored with several seeds, with and without a group term."""

    floors: ClassVar[tuple[str, ...]] = ()  # the batches are those of Table 2
    seeds: int
    registrations: int

    def found(self, case: Case, name: str) -> Reconstruction:
        """Return the images that every seed finds."""
        settings, exact = ATTACKS[name]
        own = replace(settings, registrations=self.registrations)
        return case.attacked(own, self.steps, exact=exact, seeds=self.seeds)


class Table4(RestoredBatches, part="baselines"):
    """Batches, restored by every row of Table 4, by learned priors, and for another batch."""

    floors: ClassVar[tuple[str, ...]] = (*FLOORS, GREY)
    epochs: int
    depth: int
    width: int

    def found(self, case: Case, name: str) -> Reconstruction:
        """Return the images that an attack finds, some with a prior that is learned from public pictures."""
        if name not in (LATENT, DENOISED):
            return super().found(case, name)
        learning = self.model_dump(include={"dataset", "epochs", "depth", "width"})
        recipe = PictureRecipe(kind="denoiser" if name == DENOISED else "generator", **learning)
        labels, prior = case.known.labels.flatten(0, 1), learned(recipe).to(case.device)
        if isinstance(prior, Autoencoder):
            generator, settings = prior.generator, replace(PROJECTION, steps=self.steps)
            return project_batches(
                case.leaks, labels, generator=generator, width=self.width, settings=settings, seed=case.seed
            )
        fidelity = scaled(FIDELITY, self.steps)
        return restore_denoised(
            case.leaks, labels, denoiser=prior, settings=fidelity, statistics=case.statistics, seed=case.seed
        )


class FewImages(RestoredBatches, part="few"):
    """Batches so small that the features of all samples are recovered."""

    def run(self) -> Rows:
        """Compare the attacks, and the half of the images with the larger error norms ‖p − y‖ with the other half."""
        rows = super().run()
        own = select(pd.DataFrame(rows), what="image", run=FEATURED).sort_values("loud")
        images, half = own[["psnr", "identified"]].astype(float), len(own) // 2
        if half:
            gain = images.tail(half).mean() - images.head(half).mean()
            gains = {"psnr_gain": gain["psnr"], "identified_gain": 100 * gain["identified"]}
            rows.append({"what": "loudness", "run": FEATURED, **gains})
        return rows


class ImagesAlone(RestoredBatches, part="alone"):
    """Images in batches of one."""


class FromNetworks(Experiment, part="networks"):
    """The same batches on several networks, the one with the best features first."""

    networks: list[str]
    judge: str
    dataset: str
    size: int
    batches: int
    steps: int

    def run(self) -> Rows:
        """Restore the batches on every network, and compare the networks."""
        rows: Rows = []
        for name in self.networks:
            same = self.model_dump(include={"judge", "dataset", "batches", "seed", "device"})
            case = OnBatches(network=name, first=0, **same).drawn(self.size)
            accuracy = 100 * training.accuracy(case.model, case.scene.private, case.device)
            found = case.judged(name, case.attacked(PYRAMID, self.steps))
            baselines = [] if rows else case.private()
            rows += [row | {"test_accuracy": accuracy} for row in baselines + found]
        return [*rows, *gained(rows, list(itertools.pairwise(self.networks)), self.size, self.seed)]


class SizesOfBatches(OnBatches, part="sizes"):
    """The same images, in batches of every size; `batches` counts those of the largest size."""

    sizes: list[int]
    steps: int

    def run(self) -> Rows:
        """Restore random images and vulnerable ones, and compare the batch sizes."""
        scene, ordered = self.scene(), sorted(self.sizes)
        most, images = ordered[-1], (self.batches, ordered[-1], self.sizes)
        rows = [row for kind in KINDS for row in scene.in_batches(kind, *images, {"": PYRAMID}, self.steps)]
        steps = [*itertools.pairwise(ordered), *([(ordered[0], most)] if len(ordered) > 2 else [])]
        pairs = [
            *((named("random", small), named("random", large)) for small, large in steps),
            *((named("vulnerable", size), named("random", size)) for size in ordered),
        ]
        return [*rows, *gained(rows, pairs, most, self.seed)]


class PureNoise(Experiment, part="noise"):
    """Table 2's row of pure noise by several definitions of its measures, over ImageNet pictures."""

    stays_on_cpu: ClassVar[str] = "they only compare images with each other, without an attack"
    pictures: int

    def reads(self) -> list[str]:
        """Return the dataset of the pictures."""
        return [PICTURES]

    def run(self) -> Iterator[Columns]:
        """Measure noise against the pictures: the mean, its standard error, and that of a batch of eight pictures."""
        images = data.load(PICTURES, "test").images
        images = images[torch.linspace(0, len(images) - 1, self.pictures).round().long()]
        generator = torch.Generator().manual_seed(self.seed)
        parts = [definitions(own, torch.randn(own.shape, generator=generator)) for own in images.split(20)]
        for measure, definition in parts[0]:
            values = torch.cat([part[measure, definition] for part in parts]).double()
            yield {
                "what": "noise",
                "measure": measure,
                "definition": definition,
                "value": float(values.mean()),
                "error": float(values.std()) / math.sqrt(len(values)),
                "of_eight": float(values.std()) / math.sqrt(8),
                "published": NOISE[measure],
                "count": len(values),
            }


def definitions(images: Tensor, noise: Tensor) -> dict[tuple[str, str], Tensor]:
    """Return FFT2D, PSNR and LPIPS (N,) of standard normal noise in normalised pixel units, by each definition."""
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (MEAN, STD))
    shown, units = noise * std + mean, (images - mean) / std
    ours, theirs = (torch.fft.fft2(side, norm="ortho").flatten(1) for side in (shown.clamp(0, 1), images))
    sizes = [ours.abs(), theirs.abs()]
    logs = [side.log1p() for side in sizes]
    span = units.amax(dim=(1, 2, 3)) - units.amin(dim=(1, 2, 3))
    error = (noise - units).square().mean(dim=(1, 2, 3))
    found = {
        ("FFT2D", "1 − cosine, amplitudes"): metrics.fft2d(shown, images),
        ("FFT2D", "relative L2, clipped pixels"): metrics.relative_l2(shown, images),
        ("FFT2D", "relative L2, amplitudes"): (sizes[0] - sizes[1]).norm(dim=1) / sizes[1].norm(dim=1),
        ("FFT2D", "1 − cosine, real and imaginary parts"): 1
        - (ours.conj() * theirs).real.sum(dim=1) / (sizes[0].norm(dim=1) * sizes[1].norm(dim=1)),
        ("FFT2D", "1 − cosine, log amplitudes"): 1 - F.cosine_similarity(*logs),
        ("PSNR", "clipped pixels, range 1, registered by shifts"): metrics.registered_psnr(shown, images),
        ("PSNR", "clipped pixels, range 1"): metrics.psnr(shown, images),
        ("PSNR", "unclipped pixels, range 1"): -10 * (shown - images).square().mean(dim=(1, 2, 3)).log10(),
        ("PSNR", "normalised units, range of the picture"): 10 * (span.square() / error).log10(),
    }
    for trunk, name in (("alex", "AlexNet"), ("squeeze", "SqueezeNet")):
        values = metrics.lpips(shown, images, trunk).values
        if values is not None:
            found["LPIPS", f"{name}, clipped pixels"] = values
    return found


def summary(record: Record) -> Summary:
    """Return the finding: GradInversion beats its baselines, but large batches give less than a flat image."""
    known = claims.judgements(record)
    gain, smooth = known["gi-over-inverting"], known["gi-variation"]
    images = rows_of(record, "image", "rows").astype({"psnr": float})
    psnr = images.groupby("run")["psnr"].mean()
    others = [known[name].value or 0 for name in ("gi-gradient", "gi-running", "gi-exact")]
    most = max(record.stated(Parameters).sizes)
    seen = rows_of(record, "image", "sizes").groupby("run")["identified"]
    alone, shared = (seen.get_group(named("random", size)) for size in (1, most))
    frame = record.frame()
    return Summary(
        f"On a ResNet-20, GradInversion's PSNR in batches of {images['size'].iloc[0]:.0f} is at least "
        f"{gain.value or 0:.1f} dB above Inverting Gradients (smoothness adds most), yet below flat images in the mean "
        f"colour; another network identifies {alone.sum():.0f} of {len(alone)} images restored alone, and "
        f"{shared.sum():.0f} of {len(shared)} in batches of {most}.",
        true=bool(gain.agrees and smooth.agrees and known["gs-alone"].agrees)
        and (smooth.value or 0) > max(others)
        and bool(psnr[EXACT] < psnr["mean colour"]),
        claim="gi-over-inverting",
        what="lower 95 % bound of the mean PSNR gain over inverting gradients (ResNet-20, CIFAR-10, 500 steps)",
        figure=figure_quality,
        of="images",
        # A run of Table 3 is named after its network.
        outcomes=restored_images(record, frame, network=frame["network"].fillna(frame["run"])),
    )


def figure_quality(record: Record, part: str = "rows") -> Figure:
    """Draw the PSNR (dB) and LPIPS of every image for each attack or network, with means; dashed: the mean colour.

    Runs of ours are blue, other attacks red; baselines and controls, which show nothing of the image, are grey.
    """

    def colour(run: str) -> str:
        if run in (*FLOORS, GREY) or run.endswith(OF_ANOTHER):
            return "0.6"
        return figures.COLOURS[1 if run in (*PUBLISHED, LATENT) else 0]

    images = rows_of(record, "image", part).astype({"psnr": float, "lpips": float})
    images = images.assign(psnr=images["psnr"].clip(*PSNRS))
    panels = []
    for column, title in {"psnr": "PSNR (dB)", "lpips": "LPIPS"}.items():
        dashed = only_rows(level(column, "mean colour", upright=True), run="mean colour")
        panels.append(panel(images, dots(column, "run", colour), dashed, xlabel=title))
    return arranged(panels, 2, height=0.3 * images["run"].nunique() + 0.9, legend=2)


def figure_sizes(record: Record) -> Figure:
    """Draw the share of identified images (%) and the PSNR (dB) for each batch size, with 95 % intervals."""
    return draw_sizes(record, "sizes", "identified", "identified_by_own", "psnr")
