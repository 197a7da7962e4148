"""CNN inversion: an image from a convolutional network, in closed form

Beyond wang2024, section 4.3: invert LeNet layer by layer, then refine the image until only rounding errors remain.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.images import LBFGS, match, polished, trace_convolutional
from gradleak.leak import observe
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import DASHED, drawn, lines, places, scattered
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import cells, count, least, mean, median, only, select, spread_if_many, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import STAGES, AttackedNetwork, Stage
from gradleak.studies.shared.defended import BehindDefence, Defence, refused_table, sent_behind
from gradleak.studies.shared.matched_runs import OnLeNet, lenets
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, PSNR, Outcome, collected, written
from gradleak.studies.shared.samples import DTYPES, inputs_of, pooled_samples
from gradleak.studies.wang2024.columns import COLUMNS
from gradleak.wording import counted

PLACE = "Beyond section 4.3"
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3),
    "clip": (0.5,),
    "quantize": (16,),
    "half": (16,),
}
# The paper's best PSNR (dB) for smoothed labels: Table 4 (untrained) and Table 3 (trained).
PUBLISHED = {"untrained": 25.9, "trained": 20.4}
# The attacks, with the precision of the gradient, by their names in the figure.
ATTACKS = {
    "L2\nmatching": ("L2 matching", "float32"),
    "closed form,\nfloat32": ("closed form", "float32"),
    "polished,\nfloat32": ("polished", "float32"),
    "closed form,\nfloat64": ("closed form", "float64"),
}
# The names of attacks in outcomes, and what the closed form reports on a layer.
SHOWN_AS = {"polished": "closed form, polished", "L2 matching": "gradient matching, l2"}
REPORTED = ("equations", "unknowns", "rank", "claimed")


class Parameters(studies.Parameters):
    """Parameters of the page: numbers of images for each attack, networks and defences."""

    samples: int = setting(paper=30, ge=1, le=10_000)
    polishings: int = setting(paper=30, ge=0, le=10_000)
    compared: int = setting(paper=5, ge=0, le=1000)
    matching_steps: int = setting(paper=300, ge=1, le=100_000)
    defended: int = setting(paper=10, ge=1, le=1000)
    defenses: list[Defence] = setting(paper=list(DEFENSES), min_length=1)
    stages: list[Stage] = setting(paper=list(STAGES))
    dataset: str = setting(paper="cifar10")

    def sees(self) -> list[Sees]:
        """Return LeNet in each state, and the images that it sees."""
        return lenets(self.dataset, ["untrained", *self.stages])

    def experiments(self) -> Iterator[Experiment]:
        """Yield the closed form by network and precision, one experiment for each refined image, and the defences."""
        for stage, dtype in product(self.stages, DTYPES):
            yield ClosedForm.of(self, stage=stage, dtype=dtype)
        for stage, image in product(self.stages, range(min(self.polishings, self.samples))):
            matching = self.matching_steps if image < self.compared else 0
            yield Polish.of(self, stage=stage, image=image, matching=matching)
        for defense in self.defenses:
            for level in DEFENSES[defense]:
                yield DefendedImages.of(self, defense=defense, level=level, samples=self.defended)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{counted(self.samples, 'smoothed image')} per network, {data.title(self.dataset)}"


class ClosedForm(OnLeNet):
    """Invert LeNet for single images, with gradients in one precision."""

    part: ClassVar[str] = "closed"
    dtype: str
    samples: int

    def run(self) -> Iterator[Columns]:
        """Invert every image; yield a row for the image and for each layer."""
        model, inputs, targets = _shown(self.stage, self.dataset, self.samples, self.seed, self.device)
        dtype = DTYPES[self.dtype]
        model = model.to(dtype)
        double = copy.deepcopy(model).double()
        for n in range(self.samples):
            image = inputs[n : n + 1].to(dtype)
            leak = observe(model, image, targets[n : n + 1].to(dtype))
            started = time.perf_counter()
            found = trace_convolutional(leak)
            seconds = time.perf_counter() - started
            yield _judged(found.inputs, image, image=n, seconds=seconds, status=found.status, layer="image")
            truths = inputs_of(convolutions(double), double, image.double())
            for report, own in zip(reversed(found.layers), truths, strict=True):
                actual = math.nan
                if report.found is not None:
                    actual = float((report.found.cpu() - own[0].cpu()).norm() / own.cpu().norm())
                row: Columns = {"image": n, "layer": report.name, "actual": actual}
                yield row | {name: getattr(report, name) for name in REPORTED}


class Polish(OnLeNet):
    """Restore one image by the closed form and refine the result, with float32 gradients.

    Gradient matching is run as well if `matching`, its number of steps, is not 0.
    """

    part: ClassVar[str] = "polish"
    image: int
    matching: int

    def run(self) -> Iterator[Columns]:
        """Restore the image by these attacks; yield a picture if gradient matching was run."""
        model, inputs, targets = _shown(self.stage, self.dataset, self.image + 1, self.seed, self.device)
        sent, target = inputs[self.image :].float(), targets[self.image :].float()
        leak = observe(model, sent, target)
        started = time.perf_counter()
        closed = trace_convolutional(leak)
        between = time.perf_counter()
        better = polished(leak, closed.inputs, closed.labels)
        ended = time.perf_counter()
        yield _judged(closed.inputs, sent, attack="closed form", seconds=between - started)
        steps = len(better.misfits) - 1
        yield _judged(better.inputs, sent, attack="polished", seconds=ended - started, steps=steps)
        if self.matching:
            started = time.perf_counter()
            found = match(leak, target, optimizer=LBFGS(steps=self.matching), seed=self.seed + self.image)
            seconds = time.perf_counter() - started
            yield _judged(found.images, sent, attack="L2 matching", seconds=seconds, steps=self.matching)
            strip = torch.cat([sent.double(), found.images.double(), closed.inputs, better.inputs])
            yield {"attack": "picture", "picture": packed(data.denormalise(strip), len(strip))}


class DefendedImages(BehindDefence):
    """Invert single images behind a defence.

    One attacker expects no noise ("unaware"), the other knows its standard deviation ("aware").
    """

    samples: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Defend every gradient, and invert it as both attackers."""
        model, inputs, targets = _shown("untrained", self.dataset, self.samples, self.seed, self.device)
        for n in range(self.samples):
            image, target = inputs[n : n + 1], targets[n : n + 1].float()
            clean = observe(model, image, target)
            leak = replace(clean, gradients=sent_behind(self.defense, self.level, clean.gradients, self.seed + n))
            utility = defenses.utility(clean.gradients, leak.gradients)
            largest = max(float(value.abs().max()) for value in clean.gradients.values())
            step = largest / (2**15 - 1) if self.defense == "quantize" else 0.0
            known = self.level if self.defense == "gaussian" else step / math.sqrt(12)
            for attacker, noise in (("unaware", 0.0), ("aware", known)):
                found = trace_convolutional(leak, noise=noise)
                about = {"image": n, "attacker": attacker, "status": found.status, "utility": utility}
                yield _judged(found.inputs, image, **about)


def _shown(stage: str, dataset: str, samples: int, seed: int, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return LeNet in the given state, and the private inputs and labels."""
    private = data.load(dataset, "test")
    inputs, targets = pooled_samples(private, "smoothing", samples, seed)
    lenet = AttackedNetwork.of(f"{dataset}/lenet/{stage}")
    model, _ = attacked_networks.network(lenet, "smoothing", private, seed, device)
    return model.to(device), inputs.to(device), targets.to(device)


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    """Return a model's convolutions."""
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def _judged(inputs: Tensor, truth: Tensor, **about: Any) -> Columns:
    """Return a row: the similarity of restored inputs (1, C, H, W) to the true ones, both normalised, and `about`."""
    image, true = (data.denormalise(one.double()).cpu() for one in (inputs, truth))
    true = true.clamp(0, 1)
    return {"psnr": float(metrics.psnr(image, true)), "ssim": float(metrics.ssim(image, true))} | about


def _restored(record: Record) -> pd.DataFrame:
    """Return a row for each image that an attack restored, by state of LeNet, precision and attack."""
    closed, others = select(record.rows(ClosedForm), layer="image"), record.rows(Polish)
    if len(others):  # an image of the closed form is in both parts
        others = others[others["attack"].isin(SHOWN_AS)].assign(dtype="float32")
    rows = pd.concat([closed.assign(attack="closed form"), others])
    return rows.sort_values(["stage", "dtype", "attack"], ascending=[False, True, True])


def headline(record: Record) -> Headline:
    """Return the finding: a closed form restores images far better than the paper's gradient matching."""
    known = claims.judgements(record)
    untrained, trained = known["cnn-untrained-closed"], known["cnn-trained-closed"]
    return Headline(
        f"A closed form restores single images from the gradient of an untrained LeNet at {untrained.text} on average, "
        f"and of a trained LeNet at {trained.text}. The best means that the paper reports for gradient matching are "
        f"{PUBLISHED['untrained']} dB and {PUBLISHED['trained']} dB.",
        true=all((known[f"cnn-{stage}-closed"].value or 0) > 2 * best for stage, best in PUBLISHED.items()),
        claim="cnn-untrained-closed",
        what="mean PSNR of single images by the closed form (untrained LeNet, CIFAR-10, float32, smoothed labels)",
        of="images",
        figure=figure_psnr,
    )


def table(record: Record) -> pd.DataFrame:
    """Return the quality of images by every attack, by state of LeNet and precision, and the paper's best PSNR."""
    return summary(
        _restored(record),
        {"LeNet": "stage", "precision": "dtype", "attack": "attack"},
        {
            "images": count(),
            **cells(COLUMNS, "psnr", by=spread_if_many),
            **cells(COLUMNS, "psnr", by=least, head="lowest {}"),
            **cells(COLUMNS, "ssim", by=mean, head="mean {}"),
            "the paper's best PSNR (dB)": only("stage", lambda stage: f"{PUBLISHED[stage]}"),
            **cells(COLUMNS, "seconds", by=median, head="median {}"),
        },
    )


def batch_table() -> pd.DataFrame:
    """Count the equations and unknowns of each of LeNet's layers. Rows: batch sizes B. Columns: convolutions."""
    sides = (32, 16, 8, 8)
    layers = list(zip(convolutions(models.build("lenet")), sides[:-1], sides[1:], strict=True))
    return pd.DataFrame(
        {"images in the batch": f"{batch}"}
        | {
            f"convolution {number}: equations / unknowns": (
                f"{batch * layer.out_channels * after**2 + layer.weight.numel():,} / "
                f"{batch * layer.in_channels * before**2:,}"
            )
            for number, (layer, before, after) in enumerate(layers, 1)
        }
        for batch in (1, 2, 3, 4)
    )


def defense_table(record: Record) -> pd.DataFrame:
    """Return the effect of defences on the image and on the gradient, as `refused_table` shows it."""
    return refused_table(record.rows(DefendedImages), cosine=".5f")


def figure_images(record: Record) -> Figure:
    """Show the compared images, one panel for each network: private, matched, closed form, polished."""

    def strips(axis: Axes, rows: pd.DataFrame) -> None:
        show(axis, rows["picture"].tolist())
        columns = ["private", "L2 matching", "closed form", "polished"]
        side = axis.get_xlim()[1] / len(columns)
        axis.set_xticks([(index + 0.5) * side for index in range(len(columns))], columns)

    rows = record.rows(Polish)
    rows = rows[rows["picture"].notna()] if "picture" in rows else rows[:0]
    height = 1.06 * rows["image"].nunique() + 0.5
    title, empty = "{} LeNet".format, "No image was matched in this run: compared = 0"
    return drawn(rows, strips, panels="stage", title=title, height=height, sharey=False, empty=empty)


def figure_psnr(record: Record) -> Figure:
    """Plot the PSNR (dB) of every image by attack, one panel for each network; a line marks the paper's best PSNR."""

    def swarms(axis: Axes, rows: pd.DataFrame) -> None:
        groups = {name: select(rows, attack=attack, dtype=dtype) for name, (attack, dtype) in ATTACKS.items()}
        figures.swarms(axis, {name: group["psnr"].astype(float).clip(lower=0) for name, group in groups.items()})
        best = PUBLISHED[rows["stage"].iloc[0]]
        axis.axhline(best, color=figures.TRUTH, linestyle=DASHED, linewidth=1.2)
        axis.text(3.45, best + 5, "the paper's best (matching)", ha="right", fontsize=9, color=figures.TRUTH)

    title = "{} LeNet".format
    return drawn(_restored(record), swarms, panels="stage", title=title, height=3.2, ylabel="PSNR (dB)")


def figure_layers(record: Record) -> Figure:
    """Plot the relative error of every layer's recovered inputs against the layer, one panel for each precision.

    Points are the actual errors of single images; lines are the medians of the claimed bounds.
    """
    rows = record.rows(ClosedForm)
    rows = rows[rows["claimed"].notna()].astype({"claimed": float})
    # LeNet's convolutions are every second module of its body. The attack begins with the last.
    layer = rows["layer"].str.rpartition(".")[2].astype(int) // 2
    last = layer.max()
    place = last - layer
    aside = rows["stage"].map({"untrained": -0.14, "trained": 0.14})
    return drawn(
        rows.assign(place=place, beside=place + aside),
        scattered("beside", "actual", "stage", label="{}, actual".format, markersize=3),
        lines("place", "claimed", "stage", middle="median", label="{}, claimed".format, marker=""),
        places("place", lambda place: f"inputs of\nconvolution {last - place + 1}"),
        panels="dtype",
        title="{} gradients".format,
        height=3.2,
        yscale="log",
        ylabel="relative error of a layer's inputs",
        legend=4,
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    untrained, trained = (line(table(record), stage, "float32", "closed form") for stage in ("untrained", "trained"))
    return Leaks(
        "the image, layer by layer",
        "one image; LeNet, CIFAR-10",
        f"{untrained['PSNR (dB)']} dB untrained, {trained['PSNR (dB)']} dB trained ({trained['images']} images each)",
        f"{untrained['median time (s)']} s elapsed",
        kind="images",
        attack="closed form",
        network="LeNet",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows, behind = _restored(record), record.rows(DefendedImages)
    defense = written(behind["defense"], behind["level"], {"clip": "clip-share"})
    return [
        *collected(
            record, rows, "images", PSNR, attack=rows["attack"].replace(SHOWN_AS), network="lenet",
            training=rows["stage"], data=rows["dataset"], client=rows["dtype"],
        ),
        *collected(
            record, behind, "images", PSNR, attack="closed form, " + behind["attacker"].map(KNOWLEDGE),
            network="lenet", data=behind["dataset"], defense=defense, cosine=behind["utility"],
        ),
    ]  # fmt: skip
