"""FCN inversion: images from a fully connected network

wang2024, section 4.2, Figures 3 to 5, Table 6: restore single images in closed form; what determines the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import claims, data, metrics, models, studies
from gradleak.errors import InputError
from gradleak.images import LBFGS, Adam, Distance, Inversion, Prior, trace_fully_connected
from gradleak.images.inversion.fully_connected import Rule
from gradleak.images.matching.factored import FactoredObjective, factored, match_factored
from gradleak.images.matching.objective import Kind, Objective
from gradleak.images.matching.optimizers import DECAY
from gradleak.labels import recover_soft_labels
from gradleak.leak import Leak, observe
from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared.attempts import clock, timed
from gradleak.studies.shared.defended import BehindDefence, Defence, outcomes_behind
from gradleak.studies.shared.mosaics import as_jpeg, packed, show
from gradleak.studies.shared.outcomes import PSNR, collected
from gradleak.studies.shared.restored import quality
from gradleak.studies.shared.samples import DTYPES, pooled_samples
from gradleak.wording import counted

PLACE = "Figures 3–5, Table 6"
# A ratio of times varies between runs as times do.
TIMES = ("times_faster",)
SIZE = 64
LABELS = ("smoothing", "mixup")
OURS = "ours"
VARIANTS: dict[str, Rule] = {OURS: "least-squares", "mean over rows": "mean", "as published": "published"}
# Sources of the label in matching: searched with the image, as in the demo of the paper's code, or recovered first.
SOURCES = ("searched", "recovered")
TIMED = 3
# Images side by side in a mosaic.
ACROSS = 20
DEFENSES = [*(f"gaussian/1e-{power}" for power in range(6, 1, -1)), "clip/0.5", "quantize/16", "quantize/8", "half/16"]


class Parameters(studies.Parameters):
    """Parameters of the page: numbers of images for each attack, steps of matching, and defences."""

    samples: int = setting(paper=100, ge=1, le=100_000)
    doubles: int = setting(paper=20, ge=1, le=100_000)
    compared: int = setting(paper=5, ge=0, le=1000)
    l2_steps: int = setting(paper=300, ge=1, le=100_000)
    cosine_steps: int = setting(paper=7000, ge=1, le=100_000)
    defended: int = setting(paper=10, ge=1, le=1000)
    defenses: list[Defence] = setting(paper=DEFENSES, min_length=1)
    dataset: str = setting(paper="flowers17")

    def sees(self) -> list[Sees]:
        """Return the network and the images that it sees."""
        return [Sees("fcn4", self.dataset, size=SIZE, channels=3)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the closed form by kind of label and precision, gradient matching and its cost, and the defences."""
        samples = {"float32": self.samples, "float64": min(self.doubles, self.samples)}
        for labels, dtype in product(LABELS, samples):
            yield ClosedForm.of(self, labels=labels, dtype=dtype, samples=samples[dtype])
        yield StoredImages.of(self, labels="smoothing", samples=self.samples)
        if self.compared:
            yield Matching.of(self, distance="l2", steps=self.l2_steps, samples=self.compared)
            yield Matching.of(self, distance="cosine", steps=self.cosine_steps, samples=self.compared)
            yield EngineCost.of(self, attacks=len(SOURCES) * self.compared)
        for defense in self.defenses:
            yield DefendedImages.of(self, samples=self.defended, **dict(defense))

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{counted(self.samples, 'image')} for each kind of label, {data.title(self.dataset)}"


class ClosedForm(Experiment, part="closed"):
    """Restore single images by all variants of the recursion, for one kind of label and one gradient precision."""

    labels: str
    dtype: str
    samples: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Restore every image, and yield a picture of all; float64 gradients are inverted by our variant only."""
        dtype, variants = DTYPES[self.dtype], list(VARIANTS) if self.dtype == "float32" else [OURS]
        model, inputs, targets = _shown(self.dataset, self.labels, self.samples, self.seed, self.device)
        inputs, restored, now = inputs.to(dtype), [], clock(self.device)
        leaks = _leaks(model.to(dtype), inputs, targets.to(dtype))
        for n, (leak, truth) in enumerate(zip(leaks, _pixels(inputs).clamp(0, 1).split(1), strict=True)):
            for variant in variants:
                options = {"prior": self.labels, "rule": VARIANTS[variant]}
                found, seconds = timed(trace_fully_connected, leak, clock=now, **options)
                image = _image(found)
                about = {"image": n, "variant": variant, "seconds": seconds, "status": found.status}
                yield quality(image, truth)[0] | about
                if variant == OURS:
                    restored.append(image)
        if len(variants) > 1:
            yield {"variant": "picture", "picture": packed(torch.cat(restored), min(ACROSS, self.samples))}


class StoredImages(Experiment, part="stored"):
    """Compare images as JPEG files, in which the paper's code stores them before it computes LPIPS."""

    labels: str
    samples: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Restore every image by the published attack, and compare its file with that of the private image."""
        model, inputs, targets = _shown(self.dataset, self.labels, self.samples, self.seed, self.device)
        leaks, truths = _leaks(model, inputs, targets.float()), _pixels(inputs).clamp(0, 1).split(1)
        for n, (leak, truth) in enumerate(zip(leaks, truths, strict=True)):
            image = _image(trace_fully_connected(leak, prior=self.labels, rule="published"))
            (near,) = quality(as_jpeg(image), as_jpeg(truth))
            yield {"image": n, "variant": "as published", "dtype": "float32", "lpips": near["lpips"]}


class Matching(Experiment, part="matching"):
    """Match the gradients of single smoothed images from the same start, with the label searched and recovered."""

    distance: Kind
    steps: int
    samples: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Match all gradients together, and compare each image with that of the closed form."""
        samples, both = self.samples, len(SOURCES)
        model, inputs, targets = _shown(self.dataset, "smoothing", samples, self.seed, self.device)
        truth = _pixels(inputs).clamp(0, 1)
        leaks = list(_leaks(model, inputs, targets.float()))
        labels = list(map(_recovered, leaks))
        closed = [_image(trace_fully_connected(leak, prior="smoothing", rule="published")) for leak in leaks]
        start = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(self.seed)).repeat(both, 1, 1, 1)
        curves: list[tuple[int, Tensor]] = []

        def watch(_attacks: Tensor, step: int, best: Tensor) -> None:
            curves.append((step, metrics.psnr(_pixels(best[:, 0]).cpu(), truth.repeat(both, 1, 1, 1))))

        # The optimisers of the demo of the paper's code, whose learning rates decay.
        options: dict[str, Any] = {"optimizer": Adam(steps=self.steps, rate=0.02, decay=DECAY)}
        options |= {"prior": Prior(variation=1e-6), "distance": Distance(self.distance), "seed": self.seed}
        if self.distance == "l2":
            options |= {"optimizer": LBFGS(steps=self.steps, rate=0.3, search=False, decay=DECAY), "prior": Prior()}
        sources = torch.stack([torch.full_like(label, torch.nan) for label in labels] + labels)
        leaked, now = list(map(factored, leaks)) * both, clock(self.device)
        found, seconds = timed(match_factored, leaked, sources, start=start, watch=watch, clock=now, **options)
        yield {"picture": packed(truth, samples), "shows": "private"}
        yield {"picture": packed(torch.cat(closed), samples), "shows": "closed form"}
        for k, (source, images) in enumerate(zip(SOURCES, found.images.cpu().split(samples), strict=True)):
            pictures = _pixels(images)
            yield {"picture": packed(pictures, samples), "shows": f"{self.distance}, label {source}"}
            for n in range(samples):
                which = k * samples + n
                (near,) = quality(pictures[n : n + 1], truth[n : n + 1])
                yield near | {
                    "image": n,
                    "label": source,
                    "seconds": seconds / len(start),
                    "status": found.status[which][0],
                    "loss": float(found.losses[which, 0]),
                    "scaled": _scaled(images[n], inputs[n]),
                    "label_error": float((found.labels[which].cpu() - targets[n]).abs().sum()),
                    "ahead": quality(closed[n], truth[n : n + 1])[0]["eight_bit"] - near["eight_bit"],
                    "at": [step for step, _ in curves],
                    "curve": [round(float(psnr[which]), 2) for _, psnr in curves],
                }


class EngineCost(Experiment, part="cost"):
    """Time the L2 loss and its gradient, computed from all gradients or from their factors; both results must agree."""

    attacks: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Time one attack with each engine, and many attacks together with factors."""
        model, inputs, targets = _shown(self.dataset, "smoothing", 1, self.seed, self.device)
        (leak,) = _leaks(model, inputs, targets.float())
        label, plain = _recovered(leak)[None, None], (Distance("l2"), Prior())
        engines: dict[tuple[str, int], Objective] = {("all gradients", 1): Objective([leak], label, None, *plain)}
        for together in (1, self.attacks):
            labels = label.repeat(together, 1, 1)
            engines["factors", together] = FactoredObjective([factored(leak)] * together, labels, *plain)
        generator = torch.Generator().manual_seed(self.seed)
        places = torch.randn(self.attacks, inputs[0].numel(), generator=generator).to(self.device)
        first, now = None, clock(self.device)
        for (engine, together), objective in engines.items():
            owners, seconds = torch.arange(together, device=places.device), []
            for _ in range(TIMED):
                (losses, slopes), taken = timed(objective.evaluate, places[:together], owners, clock=now)
                seconds.append(taken / together)
            found = min(seconds), float(losses[0]), slopes[0].double()
            slowest, loss, slope = first = first or found
            yield {
                "engine": engine,
                "at_once": together,
                "seconds_each": found[0],
                "times_faster": slowest / found[0],
                "loss_differs": abs(found[1] / loss - 1),
                "slope_differs": float((found[2] - slope).norm() / slope.norm()),
            }


class DefendedImages(BehindDefence):
    """Restore single smoothed images behind a defence, by an attacker who expects no noise and one who estimates it."""

    samples: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Defend every gradient, and invert it as both attackers."""
        shown = _shown(self.dataset, "smoothing", self.samples, self.seed, self.device)
        truths = _pixels(shown[1]).clamp(0, 1).split(1)
        for n, (leak, truth) in enumerate(zip(_leaks(*shown), truths, strict=True)):
            for about, found in self.inversions(leak, self.seed + n, trace_fully_connected, noise=None):
                yield about | {"image": n, "psnr": float(metrics.psnr(_image(found), truth))}


def _shown(dataset: str, labels: str, samples: int, seed: int, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the network on the device, and the private inputs and labels on the CPU."""
    private = data.load(dataset, "test", size=SIZE)
    model = models.build("fcn4", classes=private.classes, image_size=SIZE, seed=seed).to(device)
    return model, *pooled_samples(private, labels, samples, seed)


def _leaks(model: nn.Module, inputs: Tensor, targets: Tensor) -> Iterator[Leak]:
    """Yield the gradient of each sample."""
    device = next(model.parameters()).device
    for own, target in zip(inputs.split(1), targets.split(1), strict=True):
        yield observe(model, own.to(device), target.to(device))


def _pixels(inputs: Tensor) -> Tensor:
    return data.denormalise(inputs.double())


def _image(found: Inversion) -> Tensor:
    return data.denormalise(found.inputs.cpu().reshape(1, 3, SIZE, SIZE))


def _recovered(leak: Leak) -> Tensor:
    """Return the label (C,) that the server recovers from the last layer."""
    found = recover_soft_labels(leak)
    if found.status[0] != "unique":
        raise InputError(f"matching needs a unique label, but this label is {found.status[0]}: {found.reasons[0]}")
    return found.labels[0].to(leak.weight_gradient)


def _scaled(image: Tensor, truth: Tensor) -> float:
    """Return the PSNR of an image (C, H, W) rescaled to the length nearest to the truth, which no attacker knows."""
    image, truth = image.double(), truth.double()
    nearest = image * ((image * truth).sum() / image.square().sum())
    return float(metrics.psnr(data.denormalise(nearest[None]), data.denormalise(truth[None]).clamp(0, 1)))


def _closed(record: Record) -> pd.DataFrame:
    """Return the rows of images that the closed form restored, without the pictures.

    An 8-bit PSNR is infinite if all truncated pixels are equal; these values are replaced by NaN, so that means omit
    them.
    """
    rows = record.rows(ClosedForm)
    rows = rows[rows["variant"] != "picture"]
    return rows.assign(eight_bit=rows["eight_bit"].replace(math.inf, math.nan))


def summary(record: Record) -> Summary:
    """Return the finding: the closed form is exact, and the published PSNR measures the storage in eight bits."""
    known = claims.judgements(record)
    closed, matched = _closed(record), record.rows(Matching)
    matched = matched[matched["psnr"].notna()]
    least, published = known["fcn-ours-smoothing"], known["fcn-mean-smoothing"]
    stored = select(closed, dtype="float32", labels="smoothing").groupby("variant")["eight_bit"].mean()
    return Summary(
        f"From one gradient of a fully connected network the server restores every image, to at least {least.text}; "
        f"the paper's PSNR of {published.claim.published} dB for images with smoothed labels (here {published.text}) "
        "measures the truncation of pixels to eight bits, not the attack.",
        true=bool(least.agrees and published.agrees and stored.max() - stored.min() < 3),
        claim="fcn-mean-smoothing",
        what="mean PSNR of eight-bit pixels, the paper's attack on FCN-4, Flowers-17 images, smoothed labels",
        figure=figure_digits,
        of="images",
        leaks=leaks(record),
        outcomes=[
            *collected(
                record, closed, "images", PSNR, attack="closed form, " + closed["variant"], network="fcn4",
                data=closed["dataset"], client=closed["dtype"], detail=closed["labels"] + " labels",
            ),
            *collected(
                record, matched, "images", PSNR, attack="gradient matching, " + matched["distance"], network="fcn4",
                data=matched["dataset"], detail="label " + matched["label"],
            ),
            *outcomes_behind(record, record.rows(DefendedImages), "fcn4"),
        ],
    )  # fmt: skip


def figure_mosaics(record: Record) -> Figure:
    """Show every restored image, one panel for each kind of label, as Figures 4 and 5 do."""
    rows = select(record.rows(ClosedForm), variant="picture")
    images = int(rows["samples"].max())
    height = 0.3 + 8.4 * -(-images // ACROSS) / min(ACROSS, images)
    return drawn(rows, lambda axis, own: show(axis, own["picture"].iloc[0]), panels="labels", across=1, height=height)


def figure_matching(record: Record) -> Figure:
    """Show the private images and below them the images of each attack with their mean PSNR, as Figure 3 does."""
    rows = record.rows(Matching)
    if rows.empty:
        return figures.nothing("Not run with these parameters")
    pictures = rows[rows["shows"].notna()].drop_duplicates("shows").set_index("shows")["picture"]
    matched, closed = rows[rows["image"].notna()], _closed(record)
    closed = select(closed[closed["image"].isin(matched["image"])], dtype="float32", labels="smoothing")
    sources = matched["distance"] + ", label " + matched["label"]
    psnr = pd.concat([matched["psnr"].groupby(sources).mean(), closed.groupby("variant")["psnr"].mean()])
    means = psnr.rename({"as published": "closed form"}).map("\n{:.1f} dB".format)
    figure, axes = figures.panels(1, 1, height=1.2 * len(pictures))
    show(axes[0][0], list(pictures), [name.replace("l2", "L2") + means.get(name, "") for name in pictures.index])
    return figure


def figure_digits(record: Record) -> Figure:
    """Plot the PSNR (dB) of images by variant of the recursion, measured on floats or on truncated 8-bit pixels.

    The paper's code measures the latter. The widest box holds half of the images, each narrower pair half of the rest.
    """
    own = {"psnr": "floating-point pixels", "eight_bit": "truncated 8-bit pixels"}
    names = {OURS: "least\nsquares (ours)"} | {name: name.replace(" ", "\n", 1) for name in VARIANTS if name != OURS}
    rows = select(_closed(record), dtype="float32").melt(["labels", "variant"], list(own), "pixels", "decibels")

    def boxes(axis: Axes, rows: pd.DataFrame) -> None:
        sns.boxenplot(
            rows, x="variant", y="decibels", hue="pixels", ax=axis, order=list(names.values()),
            hue_order=list(own.values()), palette=[figures.COLOURS[2], figures.COLOURS[1]], width=0.7, gap=0.15,
            showfliers=False,
        )  # fmt: skip
        if legend := axis.get_legend():
            legend.remove()  # the figure has one for both panels

    rows = rows.replace({"pixels": own, "variant": names}).replace([math.inf, -math.inf], math.nan).dropna()
    return drawn(rows, boxes, panels="labels", height=3.3, ylabel="PSNR (dB)", legend=2)


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    rows = select(_closed(record), dtype="float32", labels="smoothing", variant=OURS)
    return Leaks(
        "the image, in closed form",
        "one image; fully connected, no biases",
        f"{rows['psnr'].mean():.1f} ± {rows['psnr'].std():.1f} dB (mean of {len(rows)} images)",
        f"{1e3 * rows['seconds'].median():.0f} ms",
        kind="images",
        attack="closed form",
        network="fully connected, 4 layers",
    )
