"""GradInversion, part by part: a batch of images from a deep network

yin2021, section 4: Tables 2 and 4, Figures 2, 4 and 5.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

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
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import dots, drawn, level, only_rows, points
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, joined, only, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.outcomes import Outcome, restored_images
from gradleak.studies.shared.restored_batches import (
    AVERAGED,
    FLOORS,
    Case,
    CaseRow,
    ImageRow,
    OnBatches,
    Scene,
    chosen,
    gained,
    scaled,
)
from gradleak.studies.shared.shown_batches import gain_table, quality, rows_of, strips

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
PAIRS = (
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
)
BEYOND_PAIRS = (
    ("+ features", EXACT),
    ("+ features, pyramid", "+ features"),
    ("+ features", "mean colour"),
)
GROUP_PAIRS = (
    ("lazy group", SEEDED),
    ("registered group", "lazy group"),
    (SEEDED + AVERAGED, SEEDED),
    ("lazy group" + AVERAGED, SEEDED + AVERAGED),
    ("registered group" + AVERAGED, SEEDED + AVERAGED),
)
ALONE_PAIRS = (
    (EXACT, "DeepInversion"),
    ("+ features", EXACT),
    ("+ features, pyramid", "+ features"),
)
COMPARED = {"rows": PAIRS, "few": BEYOND_PAIRS, "seeds": GROUP_PAIRS, "alone": ALONE_PAIRS}
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
NOT_RUN = {
    "latent projection (BigGAN)": "needs a generator trained on ImageNet, which is not available here; page "
    "gradinversion-baselines uses a small generator instead",
    "ResNet-50, MoCo v2 features": "its weights are not available here; a ResNet-20 with a retrained "
    "last layer replaces it",
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


class LoudnessRow(CaseRow):
    """The advantage of the half of the images with larger error norms ‖p − y‖ over the other half.

    Attributes:
        psnr_gain: The difference of the mean PSNR in dB.
        identified_gain: The difference of the share of identified images in percentage points.
    """

    psnr_gain: float
    identified_gain: float


class NoiseRow(CaseRow):
    """A measure of pure noise by one definition.

    Attributes:
        measure: The measure.
        definition: The definition.
        value: The mean over pictures.
        error: The standard error of the mean.
        of_eight: The standard error of the mean of eight pictures, as in one of the paper's batches.
        published: The paper's value.
        count: The number of pictures.
    """

    measure: str
    definition: str
    value: float
    error: float
    of_eight: float
    published: float
    count: int


class Table2(OnBatches):
    """Batches, restored by every row of Table 2 and by the baselines of Table 4."""

    part: ClassVar[str] = "rows"
    steps: int

    def run(self) -> list[CaseRow]:
        """Restore the batches, and compare the rows."""
        case = self.drawn()
        rows = [*case.private(), *case.floors()]
        for name, (settings, exact) in ROWS.items():
            own = scaled(settings, self.steps)
            rows += case.restored(name, own, exact=exact)
            if name == EXACT:
                rows += in_train_mode(case, self.size, self.batches).restored(TRAINING, own, exact=exact)
        for name in BASELINES:
            rows += case.matched(name, self.steps)
        return [*rows, *gained(rows, PAIRS, self.size, case.seed)]


def in_train_mode(case: Case, size: int, batches: int) -> Case:
    """Return the same batches sent by clients whose batch norms use the statistics of each batch."""
    scene: Scene = copy.copy(case.scene)
    scene.model = copy.deepcopy(case.model)
    replace_all_batch_norm_modules_(scene.model)
    return Case(scene, chosen(scene.private, size, batches, scene.seed))


class FewImages(OnBatches):
    """Batches so small that the features of all samples are recovered."""

    part: ClassVar[str] = "few"
    steps: int

    def run(self) -> list[CaseRow]:
        """Restore the batches with and without their features, and compare."""
        case = self.drawn()
        rows = [*case.private(), *case.floors()]
        for name, (settings, exact) in BEYOND.items():
            rows += case.restored(name, scaled(settings, self.steps), exact=exact)
        return [*rows, *gained(rows, BEYOND_PAIRS, case.size, case.seed), *loudness(rows, LOUD)]


class SeveralSeeds(OnBatches):
    """Batches that are restored with several seeds, with and without a group term."""

    part: ClassVar[str] = "seeds"
    steps: int
    seeds: int
    registrations: int

    def run(self) -> list[CaseRow]:
        """Restore the batches with each group term, and compare."""
        case = self.drawn()
        rows = case.private()
        for name, settings in GROUPS.items():
            own = replace(scaled(settings, self.steps), registrations=self.registrations)
            rows += case.restored(name, own, exact=True, seeds=self.seeds)
        return [*rows, *gained(rows, GROUP_PAIRS, case.size, case.seed)]


class ImagesAlone(OnBatches):
    """Images in batches of one."""

    part: ClassVar[str] = "alone"
    steps: int

    def run(self) -> list[CaseRow]:
        """Restore the images with and without their features, and compare."""
        case = self.drawn()
        rows = [*case.private(), *case.floors()]
        for name, (settings, exact) in {**BEYOND, "DeepInversion": ROWS["DeepInversion"]}.items():
            rows += case.restored(name, scaled(settings, self.steps), exact=exact)
        return [*rows, *gained(rows, ALONE_PAIRS, case.size, case.seed)]


def loudness(rows: Sequence[CaseRow], run: str) -> list[LoudnessRow]:
    """Compare the half of a run's images with the larger error norms ‖p − y‖ with the other half."""
    own = sorted((row for row in rows if isinstance(row, ImageRow) and row.run == run), key=lambda row: row.loud)
    half = len(own) // 2
    if not half:
        return []
    quiet, loud = own[:half], own[-half:]
    psnr = [float(np.mean([row.psnr for row in part])) for part in (loud, quiet)]
    identified = [float(np.mean([row.identified for row in part])) for part in (loud, quiet)]
    return [
        LoudnessRow(
            what="loudness",
            run=run,
            psnr_gain=psnr[0] - psnr[1],
            identified_gain=100.0 * (identified[0] - identified[1]),
        )
    ]


class PureNoise(Experiment):
    """Table 2's row of pure noise by several definitions of its measures, over ImageNet pictures."""

    part: ClassVar[str] = "noise"
    stays_on_cpu: ClassVar[str] = "they only compare images with each other, without an attack"
    device: str = "cpu"
    pictures: int

    def reads(self) -> list[str]:
        """Return the dataset of the pictures."""
        return [PICTURES]

    def run(self) -> list[NoiseRow]:
        """Measure noise against the pictures."""
        images = data.load(PICTURES, "test").images
        images = images[torch.linspace(0, len(images) - 1, self.pictures).round().long()]
        generator = torch.Generator().manual_seed(self.seed)
        found: dict[tuple[str, str], list[Tensor]] = {}
        for part in images.split(20):
            for key, values in definitions(part, torch.randn(part.shape, generator=generator)).items():
                found.setdefault(key, []).append(values.double())
        return [_noise_row(*key, torch.cat(parts)) for key, parts in found.items()]


def _noise_row(measure: str, definition: str, values: Tensor) -> NoiseRow:
    spread = float(values.std())
    return NoiseRow(
        what="noise",
        measure=measure,
        definition=definition,
        value=float(values.mean()),
        error=spread / math.sqrt(len(values)),
        of_eight=spread / math.sqrt(8),
        published=NOISE[measure],
        count=len(values),
    )


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


def table(record: Record, part: str = "rows") -> pd.DataFrame:
    """Return Tables 2 and 4: the quality of the restored images, beside the paper's values.

    One row for each part of the attack and each baseline. The columns are those of `quality`.
    """
    images = rows_of(record, "image", part)
    if images.empty:
        return pd.DataFrame()
    measures = quality(images, int(images["size"].iloc[0]), record.stated(Parameters).seed)
    if part == "rows":
        measures["paper: FFT2D / PSNR / LPIPS"] = only("run", lambda run: PUBLISHED.get(run, NOTHING))
    return summary(images, {"attack": "run"}, measures)


def not_run() -> pd.DataFrame:
    """Return the rows of the paper that are not run, and the reasons."""
    return pd.DataFrame([{"paper's row": name, "why": why} for name, why in NOT_RUN.items()])


def gains(record: Record, part: str = "rows") -> pd.DataFrame:
    """Return the gains of one attack over another on the same images of a part, one row for each pair."""
    images = rows_of(record, "image", part)
    if images.empty:
        return pd.DataFrame()
    return gain_table(images, COMPARED[part], int(images["size"].iloc[0]), record.stated(Parameters).seed)


def batch_table(record: Record) -> pd.DataFrame:
    """Return the share of labels that the paper's rule and the exact solver find, and the chance of an identification.

    One row for each batch size B. Columns: labels found by the lowest rows (%), labels recovered (%), images in the
    gallery, probability of identifying an image by chance (%), and the number n of images.
    """
    lines = []
    for part in ("alone", "few", "rows"):
        group = rows_of(record, "batches", part)
        if len(group):
            share = group["count"] / group["count"].sum()
            lines.append(
                {"B": f"{group['size'].iloc[0]:.0f}"}
                | {"labels found by the paper's rule (%)": f"{(group['counted'] * share).sum():.0f}"}
                | {"labels recovered (%)": f"{(group['recovered'] * share).sum():.0f}"}
                | {
                    "images in the gallery": f"{group['gallery'].iloc[0]:.0f}",
                    "identified by chance (%)": f"{group['chance'].iloc[0]:.2f}",
                }
                | {"images": f"{group['count'].sum():.0f}"}
            )
    return pd.DataFrame(lines)


def noise_table(record: Record) -> pd.DataFrame:
    """Return Table 2's row of pure noise by every definition tried, beside the paper's; empty if it was not measured.

    One row for each measure and definition. Columns: the mean ± standard error, the paper's value, the standard error
    for a batch of 8, and the number n of pictures.
    """
    return summary(
        rows_of(record, "noise", "noise"),
        {"measure": "measure", "definition": "definition"},
        {
            "here ± standard error": joined(" ± ", only("value", ".3f"), only("error", ".3f")),
            "paper": only("published", ".3f"),
            "standard error for a batch of 8": only("of_eight", "± {:.3f}"),
            "pictures": only("count", ".0f"),
        },
    )


def figure_images(record: Record, part: str = "rows") -> Figure:
    """Draw the first images of a part: the private ones above those of each attack and baseline."""
    return strips(record, part)


def figure_quality(record: Record) -> Figure:
    """Draw the PSNR (dB) of every image for each attack, with its mean; the dashed line is that of the mean colour."""
    images = rows_of(record, "image", "rows")
    # A lost image has a PSNR of minus infinity, and is drawn at the least finite value.
    psnr = images["psnr"].astype(float)
    images = images.assign(psnr=psnr.clip(lower=psnr[np.isfinite(psnr)].min()))
    return drawn(
        images,
        dots(
            "psnr",
            "run",
            lambda run: "0.6" if run in FLOORS else figures.COLOURS[1 if run in ("DeepInversion", *BASELINES) else 0],
        ),
        only_rows(level("psnr", "mean colour: lower values are no reconstruction", upright=True), run="mean colour"),
        height=0.33 * images["run"].nunique() + 0.8,
        legend=1,
        xlabel="PSNR (dB)",
    )


def figure_loudness(record: Record) -> Figure:
    """Draw the PSNR (dB) of every image against the norm of its error ‖p − y‖, marked by whether it was identified."""
    images = pd.concat([rows_of(record, "image", part) for part in ("alone", "few")])
    look: dict[str, Any] = {"s": 24, "linewidth": 1.5}
    return drawn(
        select(images, run=LOUD),
        only_rows(points("loud", "psnr", "identified", **look), identified=True),
        only_rows(points("loud", "psnr", "not identified", figures.COLOURS[1], marker="x", **look), identified=False),
        panels=["part", "size"],
        title=lambda _, size: f"batches of {size:.0f}",
        height=3.2,
        legend=2,
        xscale="log",
        xlabel="norm of the image's error ‖p − y‖",
        ylabel="PSNR (dB)",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    return restored_images(record, rows, network=rows["network"], batch=rows["size"].fillna(1).astype(int))
