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
from typing import ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.images import LBFGS, match, polished, trace_convolutional
from gradleak.leak import observe
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import count, least, mean, median, only, ranged, select, spread_if_many, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import STAGES, AttackedNetwork, Stage
from gradleak.studies.shared.defended import BehindDefence, Defence, refused_table, sent_behind
from gradleak.studies.shared.matched_runs import OnLeNet, lenets
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, PSNR, Outcome, collected, written
from gradleak.studies.shared.samples import DTYPES, inputs_of, pooled_samples
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


class Parameters(studies.Parameters):
    """Parameters of the page: numbers of images for each attack, networks and defences."""

    samples: int = setting(
        1, paper=30, ge=1, le=10_000, about="single images per network and precision, with smoothed labels"
    )
    polishings: int = setting(
        0,
        paper=30,
        ge=0,
        le=10_000,
        about="number of these images that are refined after the closed form, float32 gradients",
    )
    compared: int = setting(
        0, paper=5, ge=0, le=1000, about="number of these images on which gradient matching is run as well"
    )
    matching_steps: int = setting(
        1, paper=300, ge=1, le=100_000, about="L-BFGS steps of L2 matching, 20 gradient evaluations each"
    )
    defended: int = setting(1, paper=10, ge=1, le=1000, about="images per defence, untrained network")
    defenses: list[Defence] = setting(["clip"], paper=list(DEFENSES), min_length=1, about="defences of these images")
    stages: list[Stage] = setting(["untrained"], paper=list(STAGES), about="states of LeNet: untrained, trained")
    dataset: str = setting("photos", paper="cifar10", about="dataset of the private images, test split")

    def sees(self) -> list[Sees]:
        """Return LeNet in each state, and the images that it sees."""
        return lenets(self.dataset, ["untrained", *self.stages])

    def experiments(self) -> Iterator[Experiment]:
        """Yield the closed form by network and precision, one experiment for each refined image, and the defences."""
        for stage, dtype in product(self.stages, DTYPES):
            yield ClosedForm.of(self, stage=stage, dtype=dtype)
        for stage, image in product(self.stages, range(min(self.polishings, self.samples))):
            yield Polish.of(
                self, stage=stage, image=image, matching=self.matching_steps if image < self.compared else 0
            )
        for defense in self.defenses:
            for level in DEFENSES[defense]:
                yield DefendedImages.of(self, defense=defense, level=level, samples=self.defended)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{counted(self.samples, 'smoothed image')} per network, {data.title(self.dataset)}"


class Nearness(Row):
    """The similarity of a restored image to the private image: PSNR (dB) and SSIM."""

    psnr: float
    ssim: float


class ClosedFormImage(Nearness):
    """An image that was inverted through all layers; its `layer` is "image"."""

    image: int
    seconds: float
    status: str
    layer: str


class LayerInputs(Row):
    """The recovered inputs of one layer, with their equations and their relative error, claimed and actual."""

    image: int
    layer: str
    equations: int
    unknowns: int
    rank: int
    claimed: float | None
    actual: float


class RestoredImage(Nearness):
    """An image that one attack restored; `steps` is 0 if the attack is not iterative."""

    attack: str
    seconds: float
    steps: int = 0


class Strip(Row):
    """The private image and the three attacks' results as one picture; its `attack` is "picture"."""

    attack: str
    picture: str


class DefendedImage(Nearness):
    """An image restored from a defended gradient; `utility` is the cosine with the undefended gradient."""

    image: int
    attacker: str
    status: str
    utility: float


class ClosedForm(OnLeNet):
    """Invert LeNet for single images, with gradients in one precision."""

    part: ClassVar[str] = "closed"
    dtype: str
    samples: int

    def run(self) -> Iterator[ClosedFormImage | LayerInputs]:
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
            near = _nearness(data.denormalise(found.inputs), data.denormalise(image.double()))
            yield ClosedFormImage.of(near, image=n, seconds=seconds, status=found.status, layer="image")
            truths = inputs_of(convolutions(double), double, image.double())
            for report, own in zip(reversed(found.layers), truths, strict=True):
                actual = math.nan
                if report.found is not None:
                    actual = float((report.found.cpu() - own[0].cpu()).norm() / own.cpu().norm())
                yield LayerInputs(
                    image=n,
                    layer=report.name,
                    equations=report.equations,
                    unknowns=report.unknowns,
                    rank=report.rank,
                    claimed=report.claimed,
                    actual=actual,
                )


class Polish(OnLeNet):
    """Restore one image by the closed form and refine the result, with float32 gradients.

    Gradient matching is run as well if `matching`, its number of steps, is not 0.
    """

    part: ClassVar[str] = "polish"
    image: int
    matching: int

    def run(self) -> Iterator[RestoredImage | Strip]:
        """Restore the image by these attacks; yield a picture if gradient matching was run."""
        model, inputs, targets = _shown(self.stage, self.dataset, self.image + 1, self.seed, self.device)
        sent, target = inputs[self.image :].float(), targets[self.image :].float()
        truth = data.denormalise(sent.double())
        leak = observe(model, sent, target)
        started = time.perf_counter()
        closed = trace_convolutional(leak)
        between = time.perf_counter()
        better = polished(leak, closed.inputs, closed.labels)
        ended = time.perf_counter()
        steps = len(better.misfits) - 1
        first, second = (data.denormalise(found.inputs) for found in (closed, better))
        yield RestoredImage.of(_nearness(first, truth), attack="closed form", seconds=between - started)
        yield RestoredImage.of(_nearness(second, truth), attack="polished", seconds=ended - started, steps=steps)
        if self.matching:
            started = time.perf_counter()
            found = match(leak, target, optimizer=LBFGS(steps=self.matching), seed=self.seed + self.image)
            seconds = time.perf_counter() - started
            matched = data.denormalise(found.images.double())
            near = _nearness(matched, truth)
            yield RestoredImage.of(near, attack="L2 matching", seconds=seconds, steps=self.matching)
            strip = [truth, matched, first, second]
            yield Strip(attack="picture", picture=packed(torch.cat(strip), len(strip)))


class DefendedImages(BehindDefence):
    """Invert single images behind a defence.

    One attacker expects no noise ("unaware"), the other knows its standard deviation ("aware").
    """

    samples: int
    dataset: str

    def run(self) -> Iterator[DefendedImage]:
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
                near = _nearness(data.denormalise(found.inputs), data.denormalise(image.double()))
                yield DefendedImage.of(near, image=n, attacker=attacker, status=found.status, utility=utility)


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


def _nearness(image: Tensor, truth: Tensor) -> Nearness:
    image, truth = image.cpu(), truth.cpu().clamp(0, 1)
    return Nearness(psnr=float(metrics.psnr(image, truth)), ssim=float(metrics.ssim(image, truth)))


def _images(record: Record) -> pd.DataFrame:
    return select(record.rows(ClosedForm), layer="image")


def _layers(record: Record) -> pd.DataFrame:
    """Return the rows of layers with a claimed error."""
    rows = record.rows(ClosedForm)
    rows = rows[rows["claimed"].notna()]
    return rows.astype({"claimed": float, "actual": float})


def _restored(record: Record) -> pd.DataFrame:
    """Return the rows of refined and matched images; there may be none."""
    rows = record.rows(Polish)
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, "attack", "matching"])))
    return rows[rows["attack"] != "picture"]


def _named(layer: str) -> str:
    """Return a layer's name in tables; LeNet's convolutions are every second module of its body."""
    return f"convolution {int(layer.rpartition('.')[2]) // 2 + 1}"


def headline(record: Record) -> Headline:
    """Return the finding: a closed form restores images far better than the paper's gradient matching."""
    known = claims.judgements(record)
    untrained, trained = known["cnn-untrained-closed"], known["cnn-trained-closed"]
    return Headline(
        f"A closed form restores single images from the gradient of an untrained LeNet at {untrained.text} on average, "
        f"and of a trained LeNet at {trained.text}. The best means that the paper reports for gradient matching are "
        f"{PUBLISHED['untrained']} dB and {PUBLISHED['trained']} dB.",
        true=all(
            one.value is not None and one.value > 2 * best
            for one, best in ((untrained, PUBLISHED["untrained"]), (trained, PUBLISHED["trained"]))
        ),
        claim="cnn-untrained-closed",
        what="mean PSNR of single images by the closed form (untrained LeNet, CIFAR-10, float32, smoothed labels)",
        of="images",
        figure=figure_psnr,
    )


def table(record: Record) -> pd.DataFrame:
    """Return the quality of images by the closed form, and after refinement.

    Rows: states of LeNet, gradient precisions and attacks. Columns: n images, mean PSNR (dB), lowest PSNR, mean SSIM,
    the paper's best PSNR, and the median time (s).
    """
    polish, parts = select(_restored(record), attack="polished"), []
    for (stage, dtype), group in _images(record).groupby(["stage", "dtype"], sort=False):
        parts.append(group.assign(attack="closed form"))
        if dtype == "float32":
            parts.append(select(polish, stage=stage).assign(dtype="float32"))
    return summary(
        pd.concat([part for part in parts if len(part)]),
        {"LeNet": "stage", "precision": "dtype", "attack": "attack"},
        {
            "images": count(),
            "PSNR (dB)": spread_if_many("psnr", ".1f"),
            "lowest PSNR (dB)": least("psnr", ".1f"),
            "mean SSIM": mean("ssim", ".4f"),
            "the paper's best PSNR (dB)": only("stage", lambda stage: f"{PUBLISHED[stage]}"),
            "median time (s)": median("seconds", ".2g"),
        },
    )


def layer_table(record: Record) -> pd.DataFrame:
    """Return the accuracy of every layer's recovered inputs.

    Rows: states of LeNet, gradient precisions and layers. Columns: equations, unknowns, the median relative error, and
    the median and range of the claimed error divided by the actual error.
    """
    rows = _layers(record)
    return summary(
        rows.assign(ratio=rows["claimed"] / rows["actual"], layer=rows["layer"].map(_named)),
        {"LeNet": "stage", "precision": "dtype", "inputs of": "layer"},
        {
            "equations": only("equations", ".0f"),
            "unknowns": only("unknowns", ".0f"),
            "median relative error": median("actual", ".1e"),
            "claimed error / actual error": ranged(median("ratio", ".2f"), "ratio", ".2f"),
        },
    )


def batch_table() -> pd.DataFrame:
    """Count the equations and unknowns of each of LeNet's layers. Rows: batch sizes B. Columns: convolutions."""
    sides, lines = [32, 16, 8, 8], []
    for batch in (1, 2, 3, 4):
        line = {"images in the batch": f"{batch}"}
        for index, module in enumerate(convolutions(models.build("lenet"))):
            unknowns = module.in_channels * sides[index] ** 2
            equations = batch * module.out_channels * sides[index + 1] ** 2 + module.weight.numel()
            line[f"convolution {index + 1}: equations / unknowns"] = f"{equations:,} / {batch * unknowns:,}"
        lines.append(line)
    return pd.DataFrame(lines)


def comparison_table(record: Record) -> pd.DataFrame:
    """Compare gradient matching, the closed form and its refinement on the same images.

    Rows: states of LeNet and attacks. Columns: n images, mean and lowest PSNR (dB), and time per image (s).
    """
    rows = _restored(record)
    return summary(
        rows[rows["matching"] > 0],
        {"LeNet": "stage", "attack": "attack"},
        {
            "images": count(),
            "mean PSNR (dB)": mean("psnr", ".1f"),
            "lowest PSNR (dB)": least("psnr", ".1f"),
            "mean time per image (s)": mean("seconds", ".2g"),
        },
    )


def defense_table(record: Record) -> pd.DataFrame:
    """Return the effect of defences on the image and on the gradient, as `refused_table` shows it."""
    return refused_table(record.rows(DefendedImages), cosine=".5f")


def figure_images(record: Record) -> Figure:
    """Show the compared images, one panel for each network: private, matched, closed form, refined."""
    rows = record.rows(Polish)
    if "picture" not in rows:
        return figures.nothing("No image was matched in this run: compared = 0")
    pictures = rows[rows["picture"].notna()]
    stages = list(dict.fromkeys(pictures["stage"]))
    most = int(pictures.groupby("stage").size().max())
    figure, axes = figures.panels(1, len(stages), height=1.06 * most + 0.5)
    for axis, stage in zip(axes[0], stages, strict=True):
        show(axis, pictures[pictures["stage"] == stage]["picture"].tolist())
        columns = ["private", "L2 matching", "closed form", "polished"]
        side = axis.get_xlim()[1] / len(columns)
        axis.set_xticks([(index + 0.5) * side for index in range(len(columns))], columns)
        axis.set_title(f"{stage} LeNet")
    return figure


def figure_psnr(record: Record) -> Figure:
    """Plot the PSNR (dB) of every image by attack, one panel for each network; a line marks the paper's best PSNR."""
    closed, polish = _images(record), _restored(record)
    stages = list(dict.fromkeys(closed["stage"]))
    figure, axes = figures.panels(1, len(stages), height=3.2, sharey=True)
    for axis, stage in zip(axes[0], stages, strict=True):
        own, better = closed[closed["stage"] == stage], polish[polish["stage"] == stage]
        groups = {
            "L2\nmatching": better[better["attack"] == "L2 matching"]["psnr"],
            "closed form,\nfloat32": own[own["dtype"] == "float32"]["psnr"],
            "polished,\nfloat32": better[better["attack"] == "polished"]["psnr"],
            "closed form,\nfloat64": own[own["dtype"] == "float64"]["psnr"],
        }
        figures.swarms(axis, {name: values.astype(float).clip(lower=0) for name, values in groups.items()})
        axis.axhline(PUBLISHED[stage], color=figures.TRUTH, linestyle=(0, (4, 2)), linewidth=1.2)
        axis.text(
            3.45, PUBLISHED[stage] + 5, "the paper's best (matching)", ha="right", fontsize=9, color=figures.TRUTH
        )
        axis.set_title(f"{stage} LeNet")
    axes[0][0].set_ylabel("PSNR (dB)")
    return figure


def figure_layers(record: Record) -> Figure:
    """Plot the relative error of every layer's recovered inputs against the layer, one panel for each precision.

    Points are the actual errors of single images; lines are the medians of the claimed errors.
    """
    frame = _layers(record)
    names = list(dict.fromkeys(frame["layer"]))[::-1]
    stages = list(dict.fromkeys(frame["stage"]))
    figure, axes = figures.panels(1, 2, height=3.2, sharey=True)
    for axis, dtype in zip(axes[0], DTYPES, strict=True):
        for index, stage in enumerate(stages):
            own = frame[(frame["dtype"] == dtype) & (frame["stage"] == stage)]
            places = own["layer"].map(names.index) + 0.14 * (2 * index + 1 - len(stages))
            colour = figures.COLOURS[2 * index]
            axis.plot(places, own["actual"], "o", color=colour, markersize=3, label=f"{stage}, actual")
            medians = own.groupby("layer")["claimed"].median()[names]
            axis.plot(range(len(names)), medians, color=colour, label=f"{stage}, claimed (median)")
        axis.set_xticks(range(len(names)), [f"inputs of\n{_named(name)}" for name in names])
        axis.set(yscale="log", title=f"{dtype} gradients", xlim=(-0.4, len(names) - 0.6))
    axes[0][0].set_ylabel("relative error of a layer's inputs")
    figures.legend_below(figure, 2 * len(stages))
    return figure


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


SHOWN_AS = {"polished": "closed form, polished", "L2 matching": "gradient matching, l2"}


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.rows(ClosedForm)
    rows = rows[rows["layer"] == "image"]
    found = collected(
        record, rows, "images", PSNR, attack="closed form", network="lenet", training=rows["stage"],
        data=rows["dataset"], client=rows["dtype"],
    )  # fmt: skip
    rows = record.rows(Polish)
    rows = rows[rows["attack"].isin(["polished", "L2 matching"]) & rows["psnr"].notna()]
    found += collected(
        record, rows, "images", PSNR, attack=rows["attack"].map(SHOWN_AS), network="lenet", training=rows["stage"],
        data=rows["dataset"],
    )  # fmt: skip
    rows = record.part("defense")
    return found + collected(
        record, rows, "images", PSNR, cosine=rows["utility"], attack="closed form, " + rows["attacker"].map(KNOWLEDGE),
        network="lenet", data=rows["dataset"], defense=written(rows["defense"], rows["level"], {"clip": "clip-share"}),
    )  # fmt: skip
