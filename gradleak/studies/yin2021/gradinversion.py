"""GradInversion, part by part: a batch of images from a deep network

yin2021, section 4: Tables 2 and 4, Figures 2, 4 and 5.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import replace_all_batch_norm_modules_
from torch.nn import functional as F

from gradleak import claims, data, metrics
from gradleak.images import GradInversion
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, among, cells, only, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.outcomes import Outcome, restored_images
from gradleak.studies.shared.restored_batches import AVERAGED, Case, OnBatches, Rows, gained, scaled
from gradleak.studies.shared.shown_batches import draw_runs, quality_table, rows_of, strips
from gradleak.studies.yin2021.columns import COLUMNS

PLACE = "Section 4, Tables 2 and 4"
OURS = SETTINGS["gradinversion+pyramid"]
PLAIN = replace(OURS, levels=1, variation=0.0, statistics=0.0)
FIDELITY = replace(OURS, levels=1)
EXACT, TRAINING = "+ BN, exact", "+ BN, exact, train mode"
# The settings of each row of Table 2, and whether the attacker has the batch norm statistics of the batch itself.
ROWS: dict[str, tuple[GradInversion, bool]] = {
    "gradient": (PLAIN, False),
    "+ TV": (replace(PLAIN, variation=OURS.variation), False),
    "+ BN, running": (FIDELITY, False),
    EXACT: (FIDELITY, True),
    "as printed": (replace(SETTINGS["gradinversion"], group="none", consistency=0.0), True),
    "DeepInversion": (SETTINGS["deepinversion"], False),
}
BASELINES = ("inverting gradients", "DLG")
# Settings beyond the table, for batches so small that the features of all samples are recovered.
BEYOND: dict[str, tuple[GradInversion, bool]] = {
    EXACT: (FIDELITY, True),
    "+ features": (replace(FIDELITY, feature=SETTINGS["gradinversion+features"].feature), True),
    "+ features, pyramid": (SETTINGS["gradinversion+features"], True),
}
SEEDED = "independent seeds"
GROUPS: dict[str, GradInversion] = {
    SEEDED: FIDELITY,
    "lazy group": replace(FIDELITY, group="mean", consistency=0.01),
    "registered group": replace(FIDELITY, group="registered", consistency=0.01),
}
# The pairs of runs that are compared in each part.
PAIRS = {
    "rows": (
        ("gradient", "noise"),
        ("+ TV", "gradient"),
        ("+ BN, running", "+ TV"),
        (EXACT, "+ BN, running"),
        (EXACT, "as printed"),
        (EXACT, "inverting gradients"),
        ("inverting gradients", "DLG"),
        (EXACT, "DeepInversion"),
        (EXACT, TRAINING),
        (EXACT, "mean colour"),
    ),
    "few": (
        ("+ features", EXACT),
        ("+ features, pyramid", "+ features"),
        ("+ features", "mean colour"),
    ),
    "seeds": (
        ("lazy group", SEEDED),
        ("registered group", "lazy group"),
        (SEEDED + AVERAGED, SEEDED),
        ("lazy group" + AVERAGED, SEEDED + AVERAGED),
        ("registered group" + AVERAGED, SEEDED + AVERAGED),
    ),
    "alone": (
        (EXACT, "DeepInversion"),
        ("+ features", EXACT),
        ("+ features, pyramid", "+ features"),
    ),
}
# The row of pure noise in Table 2, and ImageNet's pixel statistics.
NOISE = {"FFT2D": 0.706, "PSNR": 9.964, "LPIPS": 1.351}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PICTURES = "imagenet-sample"
# The attack whose images are compared with the norm of their errors p − y.
LOUD = "+ features"
# FFT2D / PSNR / LPIPS of Tables 2 and 4: ImageNet, ResNet-50, batches of 8, 20,000 steps.
PUBLISHED = {
    "noise": ".706 / 9.964 / 1.351",
    "gradient": ".404 / 10.753 / .919",
    "+ BN, running": ".232 / 11.235 / .633, with the group",
    "+ BN, exact": ".279 / 12.058 / .655",
    "DeepInversion": ".238 / 10.131 / .728",
    "inverting gradients": ".365 / 11.703 / .749",
    "DLG": ".602 / 10.252 / 1.319",
}


class Parameters(restored_batches.Parameters):
    """Parameters of the page: batches for each table, batch sizes, seeds and steps."""

    size: int = setting(paper=8, ge=1, le=64)
    batches: int = setting(paper=4, ge=1, le=10_000)
    few: int = setting(paper=4, ge=1, le=64)
    few_batches: int = setting(paper=8, ge=0, le=10_000)
    group_batches: int = setting(paper=4, ge=0, le=10_000)
    seeds: int = setting(paper=4, ge=2, le=100)
    registrations: int = setting(paper=6, ge=1, le=1000)
    singles: int = setting(paper=8, ge=0, le=10_000)
    steps: int = setting(paper=500, smallest=2, ge=2, le=1_000_000)
    alone_steps: int = setting(paper=500, smallest=2, ge=2, le=1_000_000)
    pictures: int = setting(paper=1000, ge=0, le=1000)

    channels: ClassVar[int] = 3

    def experiments(self) -> Iterator[Experiment]:
        """Yield Table 2's noise, then one experiment for each table, because all batches of a table are compared."""
        if self.pictures:
            yield PureNoise(pictures=self.pictures, seed=self.seed)
        yield Table2.of(self, first=0)
        if self.singles:
            yield ImagesAlone.of(self, size=1, first=0, batches=self.singles, steps=self.alone_steps)
        if self.few_batches:
            yield FewImages.of(self, size=self.few, first=0, batches=self.few_batches)
        if self.group_batches:
            yield SeveralSeeds.of(self, first=0, batches=self.group_batches)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return (
            f"{self.batches} batches of {self.size}, {self.few_batches} of {self.few}, "
            f"{self.steps} steps, and {self.singles} images alone, {self.alone_steps} steps, "
            f"{data.title(self.dataset)}, {self.network}"
        )


class Table2(OnBatches):
    """Batches, restored by every row of Table 2 and by the baselines of Table 4."""

    part: ClassVar[str] = "rows"
    size: int
    steps: int

    def run(self) -> Rows:
        """Restore the batches, and compare the rows."""
        case = self.drawn(self.size)
        rows = [*case.private(), *case.floors()]
        for name, (settings, exact) in ROWS.items():
            own = scaled(settings, self.steps)
            rows += case.restored(name, own, exact=exact)
            if name == EXACT:
                rows += in_train_mode(case).restored(TRAINING, own, exact=exact)
        for name in BASELINES:
            rows += case.matched(name, self.steps)
        return [*rows, *gained(rows, PAIRS[self.part], self.size, self.seed)]


def in_train_mode(case: Case) -> Case:
    """Return the same batches sent by clients whose batch norms use the statistics of each batch."""
    scene = copy.copy(case.scene)
    scene.model = copy.deepcopy(case.model)
    replace_all_batch_norm_modules_(scene.model)
    return Case(scene, case.places.reshape(-1, case.size))


class SmallBatches(OnBatches):
    """Batches so small that the features of all samples are recovered."""

    size: int
    steps: int

    def restored(self, attacks: Mapping[str, tuple[GradInversion, bool]]) -> Rows:
        """Restore the batches with and without their features, and compare."""
        case = self.drawn(self.size)
        rows = [*case.private(), *case.floors()]
        for name, (settings, exact) in attacks.items():
            rows += case.restored(name, scaled(settings, self.steps), exact=exact)
        return [*rows, *gained(rows, PAIRS[self.part], self.size, self.seed)]


class FewImages(SmallBatches):
    """Batches of a few images."""

    part: ClassVar[str] = "few"

    def run(self) -> Rows:
        """Compare the attacks, and also images with large and with small errors."""
        rows = self.restored(BEYOND)
        return rows + loudness(rows, LOUD)


class ImagesAlone(SmallBatches):
    """Images in batches of one."""

    part: ClassVar[str] = "alone"

    def run(self) -> Rows:
        """Compare the attacks, and also DeepInversion."""
        return self.restored({**BEYOND, "DeepInversion": ROWS["DeepInversion"]})


class SeveralSeeds(OnBatches):
    """Batches that are restored with several seeds, with and without a group term."""

    part: ClassVar[str] = "seeds"
    size: int
    steps: int
    seeds: int
    registrations: int

    def run(self) -> Rows:
        """Restore the batches with each group term, and compare."""
        case = self.drawn(self.size)
        rows = case.private()
        for name, settings in GROUPS.items():
            own = replace(scaled(settings, self.steps), registrations=self.registrations)
            rows += case.restored(name, own, exact=True, seeds=self.seeds)
        return [*rows, *gained(rows, PAIRS[self.part], self.size, self.seed)]


def loudness(rows: Rows, run: str) -> Rows:
    """Return the advantage of the half of a run's images with the larger error norms ‖p − y‖ over the other half."""
    own = sorted((row for row in rows if row["what"] == "image" and row["run"] == run), key=lambda row: row["loud"])
    half = len(own) // 2
    if not half:
        return []
    psnr, identified = (
        float(np.mean([row[name] for row in own[-half:]])) - float(np.mean([row[name] for row in own[:half]]))
        for name in ("psnr", "identified")
    )
    return [{"what": "loudness", "run": run, "psnr_gain": psnr, "identified_gain": 100 * identified}]


class PureNoise(Experiment):
    """Table 2's row of pure noise by several definitions of its measures, over ImageNet pictures."""

    part: ClassVar[str] = "noise"
    stays_on_cpu: ClassVar[str] = "they only compare images with each other, without an attack"
    device: str = "cpu"
    pictures: int

    def reads(self) -> list[str]:
        """Return the dataset of the pictures."""
        return [PICTURES]

    def run(self) -> Iterator[Columns]:
        """Measure noise against the pictures: the mean, its standard error, and that of a batch of eight pictures."""
        images = data.load(PICTURES, "test").images
        images = images[torch.linspace(0, len(images) - 1, self.pictures).round().long()]
        generator = torch.Generator().manual_seed(self.seed)
        found: dict[tuple[str, str], list[Tensor]] = {}
        for part in images.split(20):
            for key, values in definitions(part, torch.randn(part.shape, generator=generator)).items():
                found.setdefault(key, []).append(values.double())
        for (measure, definition), parts in found.items():
            values = torch.cat(parts)
            spread = float(values.std())
            yield {
                "what": "noise",
                "measure": measure,
                "definition": definition,
                "value": float(values.mean()),
                "error": spread / math.sqrt(len(values)),
                "of_eight": spread / math.sqrt(8),
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


def headline(record: Record) -> Headline:
    """Return the finding: GradInversion beats its baselines, but a flat image has a higher PSNR at this scale."""
    known = claims.judgements(record)
    gain, smooth = known["gi-over-inverting"], known["gi-variation"]
    images = rows_of(record, "image", "rows").astype({"psnr": float})
    psnr = images.groupby("run")["psnr"].mean()
    others = [known[name].value or 0 for name in ("gi-gradient", "gi-running", "gi-exact")]
    return Headline(
        f"On a ResNet-20, in batches of {images['size'].iloc[0]:.0f}, GradInversion beats inverting gradients by at "
        f"least {gain.value or 0:.1f} dB of PSNR, mostly because it prefers smooth images; but its {psnr[EXACT]:.1f} "
        f"dB stay below the {psnr['mean colour']:.1f} dB of a flat image in the mean colour.",
        true=bool(gain.agrees and smooth.agrees)
        and (smooth.value or 0) > max(others)
        and bool(psnr[EXACT] < psnr["mean colour"]),
        claim="gi-over-inverting",
        what="lower 95 % bound of the mean PSNR gain over inverting gradients (ResNet-20, CIFAR-10, 500 steps)",
        figure=figure_quality,
        of="images",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Tables 2 and 4: the quality of the restored images of every part, beside the paper's values."""
    stated = record.stated(Parameters)
    parts = {
        f"batches of {stated.size}": ("rows", stated.size),
        f"batches of {stated.size}, several seeds": ("seeds", stated.size),
        f"small batches of {stated.few}": ("few", stated.few),
        "single images": ("alone", 1),
    }
    groups = {name: (rows_of(record, "image", part), size) for name, (part, size) in parts.items()}
    paper = among(only("run", lambda run: PUBLISHED.get(run, NOTHING)), part="rows")
    return quality_table(COLUMNS, groups, stated.seed, {"paper: FFT2D / PSNR / LPIPS": paper})


def noise_table(record: Record) -> pd.DataFrame:
    """Return Table 2's row of pure noise by every definition tried, beside the paper's; empty if it was not measured.

    One row for each measure and definition.
    """
    rows = rows_of(record, "noise", "noise")
    return summary(
        rows,
        {"measure": "measure", "definition": "definition"},
        cells(COLUMNS, "value", "error", "published", "of_eight") | {"pictures": only("count", "{:.0f}")},
    )


def figure_images(record: Record, part: str = "rows") -> Figure:
    """Draw the first images of a part: the private ones above those of each attack and baseline."""
    return strips(record, part)


def figure_quality(record: Record) -> Figure:
    """Draw the PSNR (dB) of every image for each attack, with its mean; the dashed line is that of the mean colour."""
    return draw_runs(rows_of(record, "image", "rows"), {"psnr": "PSNR (dB)"})


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    return restored_images(record, rows, network=rows["network"], batch=rows["size"].fillna(1).astype(int))
