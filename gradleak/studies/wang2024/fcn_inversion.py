"""FCN inversion: images from a fully connected network

wang2024, section 4.2, Figures 3 to 5, Table 6: restore single images in closed form; what determines the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import ClassVar

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.errors import InputError
from gradleak.images import LBFGS, Adam, Distance, Inversion, Prior, trace_fully_connected
from gradleak.images.inversion.fully_connected import Rule
from gradleak.images.matching.factored import FactoredObjective, factored, match_factored
from gradleak.images.matching.objective import Kind, Objective
from gradleak.images.matching.optimizers import DECAY
from gradleak.labels import recover_soft_labels
from gradleak.leak import Leak, observe
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import count, least, mean, median, ranged, select, spread_if_many, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.defended import BehindDefence, Defence, refused_table, sent_behind
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, PSNR, Outcome, collected, written
from gradleak.studies.shared.restored import Quality, clock, quality
from gradleak.studies.shared.samples import DTYPES, pooled_samples
from gradleak.wording import counted

PLACE = "Figures 3–5, Table 6"
# Above 40 dB only few of the 8-bit pixels are off, by one level: rounding decides on them.
COLUMNS = {"eight_bit": kinds.rounding(near=1e-2, decibels=True)}
# A ratio of times varies between runs as times do.
TIMES = ("times_faster",)
SIZE = 64
LABELS = ("smoothing", "mixup")
OURS = "ours"
VARIANTS: dict[str, Rule] = {OURS: "least-squares", "mean over rows": "mean", "as published": "published"}
# The variants' names in tables and figures.
NAMES = {OURS: "least squares (ours)", "mean over rows": "mean over rows", "as published": "as published"}
# Sources of the label in matching: searched with the image, as in the demo of the paper's code, or recovered first.
SOURCES = ("searched", "recovered")
# The settings of this demo except for the number of steps; both learning rates decay.
RATES = {"l2": 0.3, "cosine": 0.02}
VARIATION = {"l2": 0.0, "cosine": 1e-6}
TIMED = 3
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    "clip": (0.5,),
    "quantize": (16, 8),
    "half": (16,),
}


class Parameters(studies.Parameters):
    """Parameters of the page: numbers of images for each attack, steps of matching, and defences."""

    samples: int = setting(1, paper=100, ge=1, le=100_000, about="single images per kind of label, float32 gradients")
    doubles: int = setting(1, paper=20, ge=1, le=100_000, about="number of these images with float64 gradients as well")
    compared: int = setting(
        0, paper=5, ge=0, le=1000, about="number of these images on which gradient matching is run as well"
    )
    l2_steps: int = setting(
        1, paper=300, ge=1, le=100_000, about="L-BFGS steps of L2 matching, 20 gradient evaluations each"
    )
    cosine_steps: int = setting(1, paper=7000, ge=1, le=100_000, about="Adam steps of cosine matching")
    defended: int = setting(1, paper=10, ge=1, le=1000, about="images per defence")
    defenses: list[Defence] = setting(["clip"], paper=list(DEFENSES), min_length=1, about="defences of these images")
    dataset: str = setting(
        "photos", paper="flowers17", about="dataset of the private images, test split, at 64 × 64 pixels"
    )

    def sees(self) -> list[Sees]:
        """Return the network and the images that it sees."""
        return [Sees("fcn4", self.dataset, size=SIZE, channels=3)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the closed form by kind of label and precision, gradient matching and its cost, and the defences."""
        samples = {"float32": self.samples, "float64": min(self.doubles, self.samples)}
        for labels, dtype in product(LABELS, samples):
            yield ClosedForm.of(self, labels=labels, dtype=dtype, samples=samples[dtype])
        if self.compared:
            yield Matching.of(self, distance="l2", steps=self.l2_steps, samples=self.compared)
            yield Matching.of(self, distance="cosine", steps=self.cosine_steps, samples=self.compared)
            yield EngineCost.of(self, attacks=len(SOURCES) * self.compared)
        for defense in self.defenses:
            for level in DEFENSES[defense]:
                yield DefendedImages.of(self, defense=defense, level=level, samples=self.defended)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{counted(self.samples, 'image')} for each kind of label, {data.title(self.dataset)}"


class ClosedFormImage(Quality):
    """An image that one variant of the recursion restored, with its time (s) and status."""

    image: int
    variant: str
    seconds: float
    status: str


class Mosaic(Row):
    """All images that our variant of the recursion restored, as one picture; its `variant` is "picture"."""

    variant: str
    picture: str


class MatchedImage(Quality):
    """An image that gradient matching restored.

    Attributes:
        label: Whether the label was "searched" with the image or "recovered" first.
        scaled: The PSNR (dB) if the image is rescaled to the length that is nearest to the truth.
        label_error: The L1 error of the label.
        ahead: The closed form's 8-bit PSNR minus this image's 8-bit PSNR (dB).
        at: Steps of the curve.
        curve: The PSNR (dB) of the best iterate at these steps.
    """

    image: int
    label: str
    seconds: float
    status: str
    loss: float
    scaled: float
    label_error: float
    ahead: float
    at: list[int]
    curve: list[float]


class Strip(Row):
    """The images that one attack restored, or the private images, as one picture."""

    picture: str
    shows: str


class Cost(Row):
    """The cost of the loss and its gradient with one engine.

    Attributes:
        engine: "all gradients" or "factors".
        at_once: The number of attacks that run together.
        seconds_each: The time per attack (s).
        times_faster: The speedup over "all gradients".
        loss_differs: The relative difference of the loss from that of "all gradients".
        slope_differs: The relative difference of the loss's gradient from that of "all gradients".
    """

    engine: str
    at_once: int
    seconds_each: float
    times_faster: float
    loss_differs: float
    slope_differs: float


class DefendedImage(Row):
    """An image restored from a defended gradient; `utility` is the cosine with the undefended gradient."""

    image: int
    attacker: str
    status: str
    utility: float
    psnr: float


class ClosedForm(Experiment):
    """Restore single images by all variants of the recursion, for one kind of label and one gradient precision."""

    part: ClassVar[str] = "closed"
    labels: str
    dtype: str
    samples: int
    dataset: str

    def run(self) -> Iterator[ClosedFormImage | Mosaic]:
        """Restore every image, and yield a picture of all."""
        dtype, single = DTYPES[self.dtype], self.dtype == "float32"
        model, inputs, targets = _shown(self.dataset, self.labels, self.samples, self.seed, self.device)
        model, restored, now = model.to(dtype), [], clock(self.device)
        for n in range(self.samples):
            sent = inputs[n : n + 1].to(self.device, dtype)
            leak = observe(model, sent, targets[n : n + 1].to(self.device, dtype))
            truth = data.denormalise(sent.double()).cpu()
            for name, rule in VARIANTS.items() if single else [(OURS, VARIANTS[OURS])]:
                started = now()
                found = trace_fully_connected(leak, prior=self.labels, rule=rule)
                seconds = now() - started
                image = _image(found)
                yield ClosedFormImage.of(
                    judge(image, truth), image=n, variant=name, seconds=seconds, status=found.status
                )
                if name == OURS:
                    restored.append(image)
        if single:
            yield Mosaic(variant="picture", picture=packed(torch.cat(restored), min(20, self.samples)))


class Matching(Experiment):
    """Match the gradients of single smoothed images from the same start, with the label searched and recovered."""

    part: ClassVar[str] = "matching"
    distance: Kind
    steps: int
    samples: int
    dataset: str

    def run(self) -> Iterator[MatchedImage | Strip]:
        """Match all gradients together, and compare each image with that of the closed form."""
        samples, both = self.samples, len(SOURCES)
        model, inputs, targets = _shown(self.dataset, "smoothing", samples, self.seed, self.device)
        truth = data.denormalise(inputs.double())
        leaks, labels, closed = [], [], []
        for n in range(samples):
            leak = observe(model, inputs[n : n + 1].to(self.device), targets[n : n + 1].to(self.device, torch.float32))
            leaks.append(factored(leak))
            labels.append(_recovered(leak))
            closed.append(_image(trace_fully_connected(leak, prior="smoothing", rule="published")))
        start = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(self.seed)).repeat(both, 1, 1, 1)
        curves: list[tuple[int, Tensor]] = []

        def watch(step: int, best: Tensor) -> None:
            shown = data.denormalise(best.double()).cpu()
            curves.append((step, metrics.psnr(shown, truth.clamp(0, 1).repeat(both, 1, 1, 1))))

        now = clock(self.device)
        started = now()
        found = match_factored(
            leaks * both,
            torch.stack([torch.full_like(label, torch.nan) for label in labels] + labels),
            distance=Distance(self.distance),
            optimizer=_optimizer(self.distance, self.steps),
            prior=Prior(variation=VARIATION[self.distance]),
            seed=self.seed,
            start=start,
            watch=watch,
        )
        seconds = (now() - started) / len(start)
        yield Strip(picture=packed(truth, samples), shows="private")
        yield Strip(picture=packed(torch.cat(closed), samples), shows="closed form")
        for k, (source, images) in enumerate(zip(SOURCES, found.images.cpu().split(samples), strict=True)):
            pictures = data.denormalise(images.double())
            yield Strip(picture=packed(pictures, samples), shows=f"{self.distance}, label {source}")
            for n in range(samples):
                which = k * samples + n
                near = judge(pictures[n : n + 1], truth[n : n + 1])
                yield MatchedImage.of(
                    near,
                    image=n,
                    label=source,
                    seconds=seconds,
                    status=found.status[which][0],
                    loss=float(found.losses[which, 0]),
                    scaled=_scaled(images[n], inputs[n]),
                    label_error=float((found.labels[which].cpu() - targets[n]).abs().sum()),
                    ahead=judge(closed[n], truth[n : n + 1]).eight_bit - near.eight_bit,
                    at=[step for step, _ in curves],
                    curve=[round(float(psnr[which]), 2) for _, psnr in curves],
                )


class EngineCost(Experiment):
    """Time the L2 loss and its gradient, computed from all gradients or from their factors; both results must agree."""

    part: ClassVar[str] = "cost"
    attacks: int
    dataset: str

    def run(self) -> list[Cost]:
        """Time one attack with each engine, and many attacks together with factors."""
        model, inputs, targets = _shown(self.dataset, "smoothing", 1, self.seed, self.device)
        leak = observe(model, inputs.to(self.device), targets.to(self.device, torch.float32))
        label, sent = _recovered(leak)[None, None], factored(leak)
        generator = torch.Generator().manual_seed(self.seed)
        places = torch.randn(self.attacks, inputs[0].numel(), generator=generator).to(self.device)
        timed, now = [], clock(self.device)
        for engine, together in (("all gradients", 1), ("factors", 1), ("factors", self.attacks)):
            labels, plain = label.repeat(together, 1, 1), (Distance("l2"), Prior())
            objective: Objective = (
                FactoredObjective([sent] * together, labels, *plain)
                if engine == "factors"
                else Objective([leak], labels, None, *plain)
            )
            owners, seconds = torch.arange(together, device=places.device), []
            for _ in range(TIMED):
                started = now()
                loss, slope = objective.evaluate(places[:together], owners)
                seconds.append((now() - started) / together)
            timed.append((engine, together, min(seconds), float(loss[0]), slope[0].double()))
        _, _, slowest, plain_loss, plain_slope = timed[0]
        return [
            Cost(
                engine=engine,
                at_once=together,
                seconds_each=each,
                times_faster=slowest / each,
                loss_differs=abs(value / plain_loss - 1),
                slope_differs=float((line - plain_slope).norm() / plain_slope.norm()),
            )
            for engine, together, each, value, line in timed
        ]


class DefendedImages(BehindDefence):
    """Restore single smoothed images behind a defence, by an attacker who expects no noise and one who estimates it."""

    samples: int
    dataset: str

    def run(self) -> Iterator[DefendedImage]:
        """Defend every gradient, and invert it as both attackers."""
        model, inputs, targets = _shown(self.dataset, "smoothing", self.samples, self.seed, self.device)
        for n in range(self.samples):
            sent, target = inputs[n : n + 1].to(self.device), targets[n : n + 1].to(self.device)
            clean = observe(model, sent, target)
            leak = replace(clean, gradients=sent_behind(self.defense, self.level, clean.gradients, self.seed + n))
            utility = defenses.utility(clean.gradients, leak.gradients)
            truth = data.denormalise(sent.double()).cpu()
            for attacker, noise in (("unaware", 0.0), ("aware", None)):
                found = trace_fully_connected(leak, noise=noise)
                psnr = float(metrics.psnr(_image(found), truth.clamp(0, 1)))
                yield DefendedImage(image=n, attacker=attacker, status=found.status, utility=utility, psnr=psnr)


def _shown(dataset: str, labels: str, samples: int, seed: int, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the network on the device, and the private inputs and labels on the CPU."""
    private = data.load(dataset, "test", size=SIZE)
    model = models.build("fcn4", classes=private.classes, image_size=SIZE, seed=seed).to(device)
    return model, *pooled_samples(private, labels, samples, seed)


def _image(found: Inversion) -> Tensor:
    return data.denormalise(found.inputs.cpu().reshape(1, 3, SIZE, SIZE))


def judge(image: Tensor, truth: Tensor) -> Quality:
    """Compare an image (1, C, H, W) with the true image by all measures; an image with NaN has a PSNR of −∞."""
    return quality(image, truth.clamp(0, 1))[0]


def _recovered(leak: Leak) -> Tensor:
    """Return the label (C,) that the server recovers from the last layer."""
    found = recover_soft_labels(leak.weight_gradient, leak.weight, prior="smoothing")
    if found.status[0] != "unique":
        raise InputError(f"matching needs a unique label, but this label is {found.status[0]}: {found.reasons[0]}")
    return found.labels[0].to(leak.weight_gradient)


def _optimizer(distance: Kind, steps: int) -> LBFGS | Adam:
    if distance == "l2":
        return LBFGS(steps=steps, rate=RATES["l2"], search=False, decay=DECAY)
    return Adam(steps=steps, rate=RATES["cosine"], decay=DECAY)


def _scaled(image: Tensor, truth: Tensor) -> float:
    """Return the PSNR of an image that is rescaled to the length nearest to the truth, which no attacker knows."""
    image, truth = image.double().flatten(), truth.double().flatten()
    nearest = (image * ((image @ truth) / (image @ image))).reshape(1, 3, SIZE, SIZE)
    shown, wanted = (data.denormalise(part) for part in (nearest, truth.reshape(1, 3, SIZE, SIZE)))
    return float(metrics.psnr(shown, wanted.clamp(0, 1)))


def _closed(record: Record) -> pd.DataFrame:
    """Return the rows of images that the closed form restored, without the pictures.

    An 8-bit PSNR is infinite if all truncated pixels are equal; these values are replaced by NaN, so that means omit
    them.
    """
    rows = record.rows(ClosedForm)
    rows = rows[rows["variant"] != "picture"]
    return rows.assign(eight_bit=rows["eight_bit"].replace(math.inf, math.nan), lpips=rows["lpips"].astype(float))


def _matched(record: Record) -> pd.DataFrame:
    """Return the rows of images that gradient matching restored; there may be none."""
    rows = record.rows(Matching)
    columns = ["distance", "steps", "label", "scaled", "loss", "at", "curve"]
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *columns])))
    return rows[rows["image"].notna()]


def headline(record: Record) -> Headline:
    """Return the finding: the closed form is exact, and the published PSNR measures the storage in eight bits."""
    known = claims.judgements(record)
    least, published = known["fcn-ours-smoothing"], known["fcn-mean-smoothing"]
    rows = select(_closed(record), dtype="float32", labels="smoothing")
    stored = rows.groupby("variant")["eight_bit"].mean()
    return Headline(
        f"From one gradient of a fully connected network the server restores every image, to at least {least.text}; "
        f"the PSNR of {published.claim.published} dB that the paper reports for smoothed images (here "
        f"{published.text}) measures the truncation of pixels to eight bits, not the attack.",
        true=bool(least.agrees and published.agrees and stored.max() - stored.min() < 3),
        claim="fcn-mean-smoothing",
        what="mean PSNR of eight-bit pixels, the paper's attack on FCN-4, Flowers-17 images, smoothed labels",
        figure=figure_digits,
        of="images",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 6: the quality of images by the closed form.

    Rows: kinds of label, gradient precisions and variants of the recursion. Columns: n images, mean and lowest PSNR
    (dB), mean 8-bit PSNR, SSIM and LPIPS, and the median time (ms).
    """
    return summary(
        _closed(record).replace({"variant": NAMES}),
        {"labels": "labels", "precision": "dtype", "variant": "variant"},
        {
            "images": count(),
            "mean PSNR (dB)": spread_if_many("psnr", ".1f"),
            "lowest PSNR (dB)": least("psnr", ".1f"),
            "mean PSNR of 8-bit pixels (dB)": mean("eight_bit", _known),
            "SSIM": mean("ssim", ".4f"),
            "LPIPS": mean("lpips", lambda value: "n/a" if math.isnan(value) else f"{value:.1e}"),
            "time per image (ms)": median("seconds", lambda value: f"{1e3 * value:.0f}"),
        },
    )


def _known(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"


def comparison_table(record: Record) -> pd.DataFrame:
    """Compare gradient matching with the closed form on the same images (Figure 3).

    Rows: attacks and sources of the label. Columns: n images, mean 8-bit PSNR, mean PSNR (dB) and its range, mean PSNR
    of images rescaled to the best length, mean SSIM, and time per image (s).
    """
    matched, closed = _matched(record), select(_closed(record), dtype="float32", labels="smoothing")
    if len(matched):
        closed = closed[closed["image"].isin(matched["image"])]
    named = []
    if len(matched):
        steps = matched["steps"].map("{:.0f}".format)
        named.append(matched.assign(attack="matching, " + matched["distance"].map(_distance) + ", " + steps + " steps"))
    for variant in ("as published", OURS):
        own = select(closed, variant=variant)
        named.append(own.assign(attack=f"closed form, {NAMES[variant]}", label="recovered", scaled=math.nan))
    return summary(
        pd.concat(named),
        {"attack": "attack", "label": "label"},
        {
            "images": count(),
            "mean PSNR of 8-bit pixels (dB)": mean("eight_bit", _known),
            "mean PSNR, range (dB)": ranged(mean("psnr", ".1f"), "psnr", ".1f"),
            "mean PSNR at the best scale (dB)": mean("scaled", _known),
            "SSIM": mean("ssim", ".3f"),
            "time per image (s)": mean("seconds", ".3g"),
        },
    )


def cost_table(record: Record) -> pd.DataFrame:
    """Return the cost of the matching loss and its gradient.

    Rows: engines and attacks at once. Columns: time per attack (ms), speedup, and relative differences from the results
    of the engine that computes all gradients.
    """
    return pd.DataFrame(
        {
            "engine": row["engine"],
            "attacks at once": f"{row['at_once']:.0f}",
            "time per loss and gradient (ms)": f"{1e3 * row['seconds_each']:.0f}",
            "speed-up": f"{row['times_faster']:.0f}",
            "loss, relative difference": _difference(row["loss_differs"]),
            "gradient, relative difference": _difference(row["slope_differs"]),
        }
        for _, row in record.rows(EngineCost).iterrows()
    )


def _difference(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def defense_table(record: Record) -> pd.DataFrame:
    """Return the effect of defences on the image and on the gradient, as `refused_table` shows it."""
    return refused_table(record.rows(DefendedImages), cosine=".4f")


def figure_mosaic(record: Record, labels: str) -> Figure:
    """Show every restored image, as Figure 4 (smoothing) or Figure 5 (mixup) does."""
    mosaic = select(record.rows(ClosedForm), variant="picture", labels=labels).iloc[0]
    images = int(mosaic["samples"])
    rows = -(-images // 20)
    figure, axes = figures.panels(1, 1, height=max(1.0, 8.4 * rows / min(20, images)))
    show(axes[0][0], mosaic["picture"])
    return figure


def figure_matching(record: Record) -> Figure:
    """Show the private images and below them the images of each attack, as Figure 3 does."""
    rows = record.rows(Matching)
    if rows.empty:
        return figures.nothing("Not run with these parameters")
    pictures = rows[rows["shows"].notna()].drop_duplicates("shows").set_index("shows")["picture"]
    order = ["private", "closed form", *(name for name in pictures.index if name not in ("private", "closed form"))]
    figure, axes = figures.panels(1, 1, height=1.2 * len(order))
    show(axes[0][0], [pictures[name] for name in order], [_distance(name) for name in order])
    return figure


def _distance(name: str) -> str:
    """Return the name of a distance, or of an attack that begins with it, as it is shown."""
    return name.replace("l2", "L2", 1)


def figure_curves(record: Record) -> Figure:
    """Plot the PSNR (dB) of the best iterate against the step, one line for each image and source of the label."""
    frame = _matched(record)
    if frame.empty:
        return figures.nothing("Not run with these parameters")
    figure, axes = figures.panels(1, 2, height=3.0, sharey=True)
    looks = dict(zip(SOURCES, ((figures.COLOURS[1], figures.DASHES[1]), (figures.COLOURS[0], "-")), strict=True))
    for axis, (distance, group) in zip(axes[0], frame.groupby("distance", sort=False), strict=True):
        for _, row in group.iterrows():
            colour, dashes = looks[row["label"]]
            label = f"label {row['label']}"
            axis.plot(row["at"], row["curve"], color=colour, linestyle=dashes, linewidth=1.2, label=label)
        axis.set(title=_distance(str(distance)), xlabel="step")
    axes[0][0].set_ylabel("PSNR (dB)")
    figures.legend_below(figure, 2)
    return figure


def figure_digits(record: Record) -> Figure:
    """Plot the PSNR (dB) of images by variant of the recursion, measured on floats or on truncated 8-bit pixels.

    The paper's code measures the latter.
    """
    frame = select(_closed(record), dtype="float32")
    own = {"psnr": "floating-point pixels", "eight_bit": "truncated 8-bit pixels"}
    names = {name: label.replace(" ", "\n", 1) for name, label in NAMES.items()}
    long = frame.melt(["labels", "variant"], list(own), "column", "PSNR, dB")
    long = long.replace({"column": own, "variant": names})
    # The PSNR is infinite if all truncated pixels are equal; leave it out.
    long["PSNR, dB"] = long["PSNR, dB"].astype(float).replace([math.inf, -math.inf], math.nan)
    figure, axes = figures.panels(1, 2, height=3.3, sharey=True)
    palette = [figures.COLOURS[2], figures.COLOURS[1]]
    for axis, labels in zip(axes[0], LABELS, strict=True):
        sns.boxenplot(
            long[long["labels"] == labels].dropna(), x="variant", y="PSNR, dB", hue="column", ax=axis,
            order=list(names.values()), hue_order=list(own.values()), palette=palette, width=0.7, gap=0.15,
            showfliers=False,
        )  # fmt: skip
        axis.set(title=labels, xlabel="")
        axis.get_legend().remove()
    figures.legend_below(figure, 2)
    return figure


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    own = line(table(record), "smoothing", "float32", "least squares (ours)")
    return Leaks(
        "the image, in closed form",
        "one image; fully connected, no biases",
        f"{own['mean PSNR (dB)']} dB (mean of {own['images']} images)",
        f"{own['time per image (ms)']} ms",
        kind="images",
        attack="closed form",
        network="fully connected, 4 layers",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.rows(ClosedForm)
    rows = rows[rows["psnr"].notna()]
    found = collected(
        record, rows, "images", PSNR, attack="closed form, " + rows["variant"], network="fcn4", data=rows["dataset"],
        client=rows["dtype"], detail=rows["labels"] + " labels",
    )  # fmt: skip
    rows = record.rows(Matching)
    rows = rows[rows["psnr"].notna()]
    found += collected(
        record, rows, "images", PSNR, attack="gradient matching, " + rows["distance"], network="fcn4",
        data=rows["dataset"], detail="label " + rows["label"],
    )  # fmt: skip
    rows = record.part("defense")
    return found + collected(
        record, rows, "images", PSNR, cosine=rows["utility"], attack="closed form, " + rows["attacker"].map(KNOWLEDGE),
        network="fcn4",
        data=rows["dataset"], defense=written(rows["defense"], rows["level"], {"clip": "clip-share"}),
    )  # fmt: skip
