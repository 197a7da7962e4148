"""GradInversion and its baselines: what a learned prior makes plausible

yin2021, Table 4 and Figure 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import model_validator

from gradleak import claims, data
from gradleak.images import project_batches, restore_batches, restore_denoised
from gradleak.images.gradinversion.learned import PROJECTION
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.models.picture_training import PictureRecipe, learned, trained_generator
from gradleak.runs.records import Record
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, only, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.outcomes import Outcome, restored_images
from gradleak.studies.shared.restored_batches import LATENT, OF_ANOTHER, OnBatches, Rows, gained, marked, scaled
from gradleak.studies.shared.shown_batches import draw_runs, quality, rows_of, strips
from gradleak.studies.yin2021.columns import COLUMNS

PLACE = "Table 4, Figure 4"
PYRAMID = SETTINGS["gradinversion+pyramid"]
FIDELITY = replace(PYRAMID, levels=1)
DEEP, INVERTING, DLG = "DeepInversion", "inverting gradients", "DLG"
RUNNING, EXACT, COARSE, DENOISED = "ours, BN running", "ours, BN exact", "BN exact, pyramid", "BN exact, denoiser"
# A grey image, every attack's start.
GREY = "grey"
PAIRS = (
    (EXACT, RUNNING),
    (EXACT, INVERTING),
    (EXACT, LATENT),
    (EXACT, DEEP),
    (INVERTING, DLG),
    (DLG, "noise"),
    (LATENT, "noise"),
    (RUNNING, DEEP),
    (COARSE, EXACT),
    (DENOISED, EXACT),
    (LATENT, LATENT + OF_ANOTHER),
    (EXACT, EXACT + OF_ANOTHER),
    (DENOISED, DENOISED + OF_ANOTHER),
    (EXACT, GREY),
    (DENOISED, "mean colour"),
)
# FFT2D / PSNR / LPIPS of Table 4: ImageNet, ResNet-50, batches of 8, 20,000 steps.
PUBLISHED = {
    "noise": ".706 / 9.964 / 1.351",
    LATENT: ".275 / 10.149 / .722, by BigGAN",
    DEEP: ".238 / 10.131 / .728",
    INVERTING: ".365 / 11.703 / .749",
    DLG: ".602 / 10.252 / 1.319",
    RUNNING: ".232 / 11.235 / .633",
    EXACT: ".175 / 12.929 / .484",
}


class Parameters(restored_batches.Parameters):
    """Parameters of the page: batches, steps, and the size and training of the learned priors."""

    network: str
    dataset: str = setting(paper="cifar10")
    size: int = setting(paper=8, ge=1, le=64)
    batches: int = setting(paper=4, ge=2, le=10_000)
    together: int = setting(paper=4, ge=2, le=1000)
    steps: int = setting(paper=500, smallest=2, ge=2, le=1_000_000)
    epochs: int = setting(paper=8, ge=1, le=1000)
    depth: int = setting(paper=24, smallest=4, ge=4, le=512)
    width: int = setting(ge=2, le=1024)

    channels: ClassVar[int] = 3

    @model_validator(mode="after")
    def _together(self) -> Self:
        restored_batches.check_together(self.together, self.batches, "batches", least=2)
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield experiments of some batches each."""
        for first in range(0, self.batches, self.together):
            yield RowsOfTable4.of(self, first=first, batches=self.together)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return f"{self.batches} batches of {self.size}, {self.steps} steps, {data.title(self.dataset)}, {self.network}"


class RowsOfTable4(OnBatches):
    """Some batches, restored by every row of Table 4."""

    size: int
    steps: int
    epochs: int
    depth: int
    width: int

    def run(self) -> Rows:
        """Restore the batches, measure the results, and compare the rows."""
        case, steps = self.drawn(self.size), self.steps
        rows = [*case.private(), *case.floors()]
        rows += case.measured(GREY, data.denormalise(torch.zeros_like(case.truth)))
        recipe = PictureRecipe(
            kind="generator", dataset=self.dataset, epochs=self.epochs, depth=self.depth, width=self.width
        )
        generator, labels = trained_generator(recipe).to(case.device), case.known.labels.flatten(0, 1)
        settings = replace(PROJECTION, steps=steps)
        found = project_batches(
            case.leaks, labels, generator=generator, width=self.width, settings=settings, seed=case.seed
        )
        rows += [*case.judged(LATENT, found), *case.of_another(LATENT + OF_ANOTHER, found)]
        rows += case.restored(DEEP, scaled(SETTINGS["deepinversion"], steps), exact=False)
        for name in (INVERTING, DLG):
            rows += case.matched(name, steps)
        fidelity, statistics = scaled(FIDELITY, steps), case.statistics
        rows += case.restored(RUNNING, fidelity, exact=False)
        found = restore_batches(case.leaks, labels, settings=fidelity, statistics=statistics, seed=case.seed)
        rows += [*case.judged(EXACT, found), *case.of_another(EXACT + OF_ANOTHER, found)]
        rows += case.restored(COARSE, scaled(PYRAMID, steps), exact=True)
        denoiser = learned(recipe.model_copy(update={"kind": "denoiser"})).to(case.device)
        found = restore_denoised(
            case.leaks, labels, denoiser=denoiser, settings=fidelity, statistics=statistics, seed=case.seed
        )
        rows += [*case.judged(DENOISED, found), *case.of_another(DENOISED + OF_ANOTHER, found)]
        return [*marked(rows, part="rows"), *gained(rows, PAIRS, case.size, case.seed)]


def headline(record: Record) -> Headline:
    """Return the finding: GradInversion beats its baselines, and what it shows was leaked by the gradient."""
    known = claims.judgements(record)
    inverting, latent, leaked = known["gb-exact-inverting"], known["gb-exact-latent"], known["gb-exact-leaked"]
    size = record.stated(Parameters).size
    return Headline(
        f"With the private batch's exact batch-norm statistics, GradInversion restores batches of {size} of a small "
        f"network better than inverting gradients (at least {inverting.value or 0:.1f} dB) and a trained generator "
        f"({latent.value or 0:.1f} dB); another batch's gradient and statistics cost at least {leaked.value or 0:.1f} "
        "dB.",
        true=bool(inverting.agrees and latent.agrees and leaked.agrees),
        claim="gb-exact-inverting",
        what="lower 95 % bound of the mean PSNR gain over inverting gradients (small network, CIFAR-10, 500 steps)",
        figure=figure_images,
        of="images",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 4: the quality of the restored images, beside the paper's values.

    One row for each attack, baseline and control. The columns are those of `quality`.
    """
    images, stated = rows_of(record, "image", "rows"), record.stated(Parameters)
    paper = {"paper: FFT2D / PSNR / LPIPS": only("run", lambda run: PUBLISHED.get(run, NOTHING))}
    return summary(images, {COLUMNS["run"].head: "run"}, quality(COLUMNS, images, stated.size, stated.seed) | paper)


def figure_images(record: Record) -> Figure:
    """Draw the first images: the private ones above those of the baselines and attacks."""
    return strips(record, "rows")


def figure_quality(record: Record) -> Figure:
    """Draw the PSNR (dB) and LPIPS of every image for each attack, with means; baselines and controls are grey."""
    return draw_runs(rows_of(record, "image", "rows"), {"psnr": "PSNR (dB)", "lpips": "LPIPS"})


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    return restored_images(record, rows, network=rows["network"], batch=rows["size"])
