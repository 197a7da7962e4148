"""What precision protects

Beyond wang2024, section 4: clients that compute in TF32, bfloat16 or float16, as most clients with a GPU do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data, metrics, models, studies
from gradleak.augment import one_hot
from gradleak.images import LBFGS, match, peel
from gradleak.images.inversion.convolutional import trace_convolutional
from gradleak.images.inversion.fully_connected import Inversion, trace_fully_connected
from gradleak.labels import count_labels, recover_batch, recover_soft_labels
from gradleak.labels.verdict import KNOWN
from gradleak.leak import Leak, observe
from gradleak.models import training
from gradleak.models.language_training import LanguageRecipe
from gradleak.precision import PRECISIONS
from gradleak.runs import kinds
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences import batch_of, read_sentences
from gradleak.show import figures
from gradleak.show.summaries import (
    NOTHING,
    Measure,
    among,
    greatest,
    least,
    mean,
    median,
    only,
    percent,
    summary,
    total,
)
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.read import private_of, reading_of
from gradleak.studies.shared.samples import random_layer, soft_labels

PLACE = "Beyond section 4"
# Of an exact batch, the least PSNR in dB says how large the rounding errors are.
COLUMNS = {"least": kinds.rounding(decibels=True)}
TEXT = "sentences"
# Classes and samples of the batches whose soft labels are recovered, and of those whose labels are counted.
CLASSES, SIZES, COUNTED = 100, (2, 4), 32
COUNTS = ("llg", "llg*", "ilrg", "posterior")
# Samples of the same kind that the posterior attack is given.
OTHERS = 500
LANGUAGE = ("lstm", "transformer")
# Random last layers: how many classes and features, samples of each, and how far their logits spread.
HEADS, FEATURES, OWN, SPREADS = (3, 4, 5, 10, 100), (8, 64, 256), 20, (0.03, 100.0)
KINDS = ("smoothing", "mixup", "onehot")
# What an attack says of a label or of a batch.
STATUSES = ("unique", "ambiguous", "failed")
# Images are peeled at so many pixels a side.
FEW = 16
# An image's error may be so many times the one that its certificate vouches for.
HONEST = 3.0
# A certificate that states no error vouches for this relative one.
VOUCHED = 1e-3
ATTACKERS = {
    "told": "knows the precision",
    "not told": "does not know the precision",
    "noise": "takes rounding for Gaussian noise",
}


class Network(Form):
    """A network of single samples, and for how many epochs it was trained."""

    network: str
    epochs: Whole = Field(0, ge=0)


class Parameters(studies.Parameters):
    """What clients compute in, which networks are attacked, and with how many samples."""

    precisions: list[Literal["float64", "float32", "tf32", "tf32-matmul", "bfloat16", "float16"]] = setting(
        ["float32", "bfloat16"], paper=list(PRECISIONS), min_length=1, about="what the client computes in"
    )
    networks: list[Network] = setting(
        ["lenet/0"],
        paper=["lenet/0", "lenet/10", "resnet20/0", "resnet18-cifar/0"],
        validate_default=True,
        about="networks whose single labels are recovered, as network/epochs",
    )
    samples: int = setting(
        5, paper=100, smallest=2, ge=1, le=100_000, about="single samples a network and kind of label"
    )
    heads: int = setting(
        4, paper=100, smallest=1, ge=1, le=100_000, about="random last layers, each with samples of its own"
    )
    batches: int = setting(1, paper=10, ge=1, le=10_000, about="batches a setting of every other attack")
    images: list[Literal["connected", "convolutional", "peeling", "matching"]] = setting(
        ["connected"],
        paper=["connected", "convolutional", "peeling", "matching"],
        smallest=["connected", "matching"],
        about="image attacks",
    )
    steps: int = setting(
        10,
        paper=40,
        smallest=3,
        ge=1,
        le=100_000,
        about="steps of matching, and ten times as many in front of a peeled map",
    )
    dataset: str = setting("photos", paper="cifar10", about="private images, test split")

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they are shown."""
        # Labels of batches are counted in LeNet-5, whatever the networks of single samples, by auxiliary samples that
        # are drawn from all classes: of twenty a class none is left out.
        counted = Fixed("lenet5", self.dataset, classes=OTHERS // 20)
        return [Sees(one.network, self.dataset) for one in self.networks] + [counted]

    def experiments(self) -> Iterator[Experiment]:
        """Give every attack on the clients of each precision."""
        steps = {"matching": self.steps, "peeling": 10 * self.steps}
        for name in self.precisions:
            for one in self.networks:
                yield NetworkLabels.of(self, precision=name, network=one.network, epochs=one.epochs)
            yield HeadLabels.of(self, precision=name)
            yield BatchLabels.of(self, precision=name)
            yield Counts.of(self, precision=name)
            yield ReadSentences.of(self, precision=name)
            for attack in self.images:
                yield RestoredImages.of(self, precision=name, attack=attack, steps=steps.get(attack, 0))

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        return (
            f"{len(self.precisions)} precisions, {self.samples} single samples a cell, "
            f"{self.batches} batches a cell, {data.title(self.dataset)}"
        )


class Outcomes(Row):
    """How often an attack said each status, and how much of its answers was right.

    `wrong`: certified answers that are not right; `right`: in percent; `error`: the median L1 error of a label.
    """

    cases: int
    unique: int
    ambiguous: int
    failed: int
    wrong: int
    right: float
    error: float


class LabelOutcomes(Outcomes):
    """The same of the labels of single samples; `largest`: the largest error of a label."""

    labels: str
    attacker: str
    unique_share: float
    largest: float


class HeadOutcomes(LabelOutcomes):
    """The same in one random last layer; `spread`: the standard deviation of its logits."""

    classes: int
    features: int
    spread: float


class BatchOutcomes(Outcomes):
    """The same of batches of one size and kind of label; `error`: of a batch's worst label."""

    size: int
    labels: str
    attacker: str


class SentenceOutcomes(Outcomes):
    """The same of batches of sentences, in one language model."""

    network: str
    attacker: str


class Counted(Row):
    """The share of labels that one method counts right, in percent, and its standard deviation over batches."""

    method: str
    batches: int
    share: float
    spread: float


class Nearness(Row):
    """How near images are to the private ones, in the order that fits best, and whether a certificate is wrong.

    `error`: the largest relative error of an image; `vouched`: the one that the attack vouches for.
    """

    psnr: float
    least: float
    lost: int
    error: float
    vouched: float | None
    certain: bool
    wrong: int


class Restored(Nearness):
    """A batch of images that one attacker restored."""

    size: int
    batch: int
    attacker: str
    cases: int
    status: str


class Attacker(NamedTuple):
    """What an attacker takes for granted: the client's precision, and the noise on the gradient, None for any."""

    name: str
    precision: str | None = None
    noise: float | None = 0.0


class Tried(NamedTuple):
    """What came of one attack on a batch; `wrong`: certified and not right; `right`: a share."""

    status: str
    wrong: bool
    right: float
    error: float = math.nan


def attackers(precision: str) -> list[Attacker]:
    """Return who attacks a client: one who is not told its precision and, where it is a coarse one, one who is."""
    told = [] if precision in ("float32", "float64") else [Attacker("told", precision)]
    return [Attacker("not told"), *told]


def sent(model: nn.Module, inputs: Tensor, labels: Tensor, precision: str) -> Leak:
    """Return what a client of this precision sends; one of float64 has a model of float64."""
    if precision != "float64":
        return observe(model, inputs, labels, precision=precision)
    return observe(model.double(), inputs.double(), labels.double())


class OfPrecision(Experiment):
    """An attack on clients that compute in one precision."""

    precision: str
    dataset: str


class NetworkLabels(OfPrecision):
    """Labels of single samples, in one network."""

    part: ClassVar[str] = "labels"
    network: str
    epochs: int
    samples: int

    def run(self) -> Iterator[LabelOutcomes]:
        """Recover labels of every kind."""
        classes = data.load(self.dataset, "test").classes
        model = self._network(classes)
        for labels in KINDS:
            images, soft = _private(self.dataset, labels, self.samples, classes, self.seed)
            yield from _attacked_labels(model, images.to(self.device), soft.to(self.device), labels, self.precision)

    def _network(self, classes: int) -> nn.Module:
        if self.epochs:
            recipe = training.Recipe(
                network=self.network, dataset=self.dataset, epochs=self.epochs, labels="smoothing", seed=self.seed
            )
            return training.train(recipe, device=self.device).model.to(self.device)
        channels, side = data.shape(self.dataset)
        return models.build(self.network, classes=classes, in_channels=channels, image_size=side, seed=self.seed).to(
            self.device
        )


class HeadLabels(OfPrecision):
    """Labels of single samples in random last layers, with logits from flat to saturated, which no dataset has."""

    part: ClassVar[str] = "heads"
    heads: int

    def run(self) -> Iterator[HeadOutcomes]:
        """Draw the layers and their samples, and recover the labels."""
        generator = torch.Generator().manual_seed(self.seed)
        low, high = (math.log(spread) for spread in SPREADS)
        for number in range(self.heads):
            draw = torch.rand(4, generator=generator).tolist()
            labels = KINDS[number % len(KINDS)]
            sizes = [size for size in HEADS if size > 3 or labels != "mixup"]
            classes, features = sizes[int(draw[0] * len(sizes))], FEATURES[int(draw[1] * len(FEATURES))]
            spread = math.exp(low + (high - low) * draw[2])
            weight, hidden = random_layer(classes, features, OWN, spread, generator)
            soft = soft_labels(labels, torch.randint(classes, (OWN,), generator=generator), classes, generator)
            model = nn.Linear(features, classes, bias=draw[3] < 0.3, device=self.device)
            with torch.no_grad():
                model.weight.copy_(weight)
            inputs = hidden.float().to(self.device)
            for row in _attacked_labels(model, inputs, soft.to(self.device), labels, self.precision):
                yield HeadOutcomes.of(row, classes=classes, features=features, spread=spread)


class BatchLabels(OfPrecision):
    """Labels of whole batches, out of one averaged gradient each."""

    part: ClassVar[str] = "batches"
    batches: int

    def run(self) -> Iterator[BatchOutcomes]:
        """Recover the labels of batches of every size."""
        channels, side = data.shape(self.dataset)
        model = models.build("resnet20", classes=CLASSES, in_channels=channels, image_size=side, seed=self.seed).to(
            self.device
        )
        for size in SIZES:
            for labels in ("smoothing", "onehot"):
                tried: dict[str, list[Tried]] = {}
                for number in range(self.batches):
                    seed = self.seed + 1000 * size + number
                    images, soft = _private(self.dataset, labels, size, CLASSES, seed)
                    leak = sent(model, images.to(self.device), soft.to(self.device), self.precision)
                    for attacker in attackers(self.precision):
                        found = _recovered(leak, soft, labels, attacker)
                        tried.setdefault(attacker.name, []).append(found)
                for name, own in tried.items():
                    yield BatchOutcomes.of(summed(own), size=size, labels=labels, attacker=name)


class Counts(OfPrecision):
    """Classes of the samples of a batch, counted."""

    part: ClassVar[str] = "counts"
    batches: int

    def run(self) -> Iterator[Counted]:
        """Count the labels of every batch by every method."""
        private, public = data.load(self.dataset, "test"), data.load(self.dataset, "train")
        channels, side = data.shape(self.dataset)
        model = models.build(
            "lenet5",
            classes=private.classes,
            in_channels=channels,
            image_size=side,
            activation="relu",
            init="torch",
            seed=self.seed,
        ).to(self.device)
        model = model.double() if self.precision == "float64" else model
        generator = torch.Generator().manual_seed(self.seed)
        others = torch.randperm(len(public), generator=generator)[:OTHERS]
        auxiliary = data.normalise(public.images[others]).to(next(model.parameters()))
        given = auxiliary, public.labels[others].to(self.device)
        shares: dict[str, list[float]] = {}
        for _ in range(self.batches):
            chosen = torch.randint(len(private), (COUNTED,), generator=generator)
            classes = private.labels[chosen]
            hot = one_hot(classes, private.classes).to(self.device)
            leak = sent(model, data.normalise(private.images[chosen]).to(self.device), hot, self.precision)
            truth = classes.bincount(minlength=private.classes)[None]
            for method in COUNTS:
                counts = count_labels(leak, method, auxiliary=given if method == "posterior" else None)
                right = float(metrics.count_overlap(counts.cpu()[None], truth)[0])
                shares.setdefault(method, []).append(100 * right)
        for method, own in shares.items():
            values = torch.tensor(own, dtype=torch.float64)
            spread = float(values.std()) if len(values) > 1 else 0.0
            yield Counted(method=method, batches=len(own), share=float(values.mean()), spread=spread)


class ReadSentences(OfPrecision):
    """Batches of two sentences, by an attacker who does not know the precision."""

    part: ClassVar[str] = "sentences"
    batches: int

    def reads(self) -> list[str]:
        """Return the name of the sentences."""
        return [TEXT]

    def run(self) -> Iterator[SentenceOutcomes]:
        """Read every batch, in either kind of language model."""
        for kind in LANGUAGE:
            recipe = LanguageRecipe(text=TEXT, kind=kind, width=64, layers=1, epochs=1, seed=self.seed)
            model = recipe.build().to(self.device)
            if self.precision == "float64":
                model = model.double()
            tried = []
            for number in range(self.batches):
                private = private_of(TEXT, 2, number, self.seed)
                leak = observe(model, *batch_of(private, device=self.device), precision=self.precision)
                read = reading_of(read_sentences(leak), private)
                tried.append(Tried(read.status, read.wrongly_sure, read.right))
            yield SentenceOutcomes.of(summed(tried), network=kind, attacker="not told")


class RestoredImages(OfPrecision):
    """Images of one-hot labels, of which an attacker in any precision can be certain."""

    part: ClassVar[str] = "images"
    attack: str
    steps: int
    batches: int

    def run(self) -> Iterator[Restored]:
        """Restore every batch."""
        for size in {"connected": (1, 4), "peeling": (1, 2)}.get(self.attack, (1,)):
            for number in range(self.batches):
                images, soft = _private(self.dataset, "onehot", size, CLASSES, self.seed + 1000 * size + number)
                images = F.adaptive_avg_pool2d(images, FEW) if self.attack == "peeling" else images
                model = self._network(images, self.seed + number)
                leak = sent(model, images.to(self.device), soft.to(self.device), self.precision)
                for attacker in attackers(self.precision):
                    # Gradient matching has no use for the precision.
                    if self.attack == "matching" and attacker.name == "told":
                        continue
                    found, status, vouched = self._restored(leak, attacker.precision)
                    yield Restored.of(
                        nearness(found.cpu().double().reshape(images.shape), images, status, vouched),
                        size=size,
                        batch=number,
                        attacker=attacker.name,
                        cases=1,
                        status=status,
                    )

    def _network(self, images: Tensor, seed: int) -> nn.Module:
        name = {"connected": "fcn4", "peeling": "resnet18-cifar"}.get(self.attack, "lenet")
        channels, side = images.shape[1], images.shape[-1]
        model = models.build(name, classes=CLASSES, in_channels=channels, image_size=side, seed=seed)
        return model.to(self.device)

    def _restored(self, leak: Leak, precision: str | None) -> tuple[Tensor, str, float | None]:
        """Return the images, what the attack says of them, and the relative error that it vouches for."""
        if self.attack == "peeling":
            peeled = peel(leak, prior="onehot", steps=self.steps, seed=self.seed, precision=precision)
            # An image that no map certifies is shown all the same: it is the nearest one.
            worst = float(peeled.errors.max())
            return peeled.nearest, peeled.status, worst if math.isfinite(worst) else None
        if self.attack == "matching":
            matched = match(leak, "idlg", optimizer=LBFGS(steps=self.steps), seed=self.seed)
            return matched.images, "found", None
        found: Inversion
        if self.attack == "connected":
            found = trace_fully_connected(leak, prior="onehot", precision=precision)
        else:
            found = trace_convolutional(leak, prior="onehot", precision=precision)
        return found.inputs, found.status, found.layers[-1].claimed if found.layers else None


def _private(dataset: str, labels: str, count: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return normalised images and soft labels of random classes, mixup's images mixed as well."""
    private, generator = data.load(dataset, "test"), torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(private), generator=generator)[:count]
    images = data.normalise(private.images[chosen])
    first = torch.randint(classes, (count,), generator=generator)
    soft = soft_labels(labels, first, classes, generator)
    if labels == "mixup":
        share = soft.gather(1, first[:, None])[:, :, None, None].to(images)
        images = share * images + (1 - share) * images.roll(1, dims=0)
    return images, soft


def _attacked_labels(
    model: nn.Module, inputs: Tensor, soft: Tensor, labels: str, precision: str
) -> Iterator[LabelOutcomes]:
    """Give what each of three attackers knows of the labels of single samples."""
    each = zip(inputs.split(1), soft.split(1), strict=True)
    leaks = [sent(model, one, label, precision) for one, label in each]
    gradients = torch.stack([leak.weight_gradient for leak in leaks])
    errors = [one for leak in leaks if (one := leak.bias_gradient) is not None]
    classes = soft.argmax(dim=1)
    for attacker in [*attackers(precision), Attacker("noise", noise=None)]:
        found = recover_soft_labels(
            gradients,
            leaks[0].weight,
            bias=leaks[0].bias if errors else None,
            bias_gradient=torch.stack(errors) if errors else None,
            prior=labels,
            noise=attacker.noise,
            precision=attacker.precision,
        )
        error = (found.labels - soft.to(found.labels)).abs().sum(dim=1)
        unique, failed = found.where("unique"), found.where("failed")
        known = error[~failed]
        yield LabelOutcomes(
            labels=labels,
            attacker=attacker.name,
            cases=len(soft),
            unique=int(unique.sum()),
            ambiguous=int(found.where("ambiguous").sum()),
            failed=int(failed.sum()),
            unique_share=100 * float(unique.double().mean()),
            wrong=int((unique & ~(error <= KNOWN)).sum()),
            right=100 * int((found.labels.argmax(dim=1) == classes)[~failed].sum()) / len(soft),
            error=float(known.median()) if len(known) else math.nan,
            largest=float(known.max()) if len(known) else math.nan,
        )


def _recovered(leak: Leak, soft: Tensor, labels: str, attacker: Attacker) -> Tried:
    """Return what came of recovering the labels of a batch."""
    found = recover_batch(
        leak.weight_gradient,
        leak.weight,
        batch_size=len(soft),
        prior=labels,
        bias=leak.bias,
        bias_gradient=leak.bias_gradient,
        precision=attacker.precision,
    )
    error = torch.cdist(found.labels.cpu().nan_to_num(nan=9.0), soft, p=1).amin(dim=1)
    wrong = found.status == "unique" and not bool((error <= KNOWN).all())
    return Tried(found.status, wrong, int((error < 1).sum()) / len(soft), float(error.max()))


def summed(tried: list[Tried]) -> Outcomes:
    """Return how often each status was said, how often wrongly, and what was right on average."""
    statuses = [one.status for one in tried]
    known = torch.tensor([one.error for one in tried if one.status != "failed"], dtype=torch.float64)
    return Outcomes(
        cases=len(tried),
        unique=statuses.count("unique"),
        ambiguous=statuses.count("ambiguous"),
        failed=statuses.count("failed"),
        wrong=sum(one.wrong for one in tried),
        right=100 * sum(one.right for one in tried) / len(tried),
        error=float(known.median()) if len(known) else math.nan,
    )


def nearness(found: Tensor, inputs: Tensor, status: str, vouched: float | None) -> Nearness:
    """Return how near images are to the truth in their best order, and whether a certificate is wrong."""
    true = inputs.double()
    order = metrics.match_batch(found.nan_to_num(nan=0.0), true)
    lost = ~found.isfinite().flatten(1).all(dim=1)
    psnr = metrics.psnr(data.denormalise(found[order]), data.denormalise(true))
    psnr = psnr.where(~lost[order], -math.inf)
    error = (found[order] - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)
    worst = float(error.max()) if not lost.any() else math.nan
    certain = status in ("exact", "unique")
    return Nearness(
        psnr=float(psnr.mean()),
        least=float(psnr.min()),
        lost=int(lost.sum()),
        error=worst,
        vouched=vouched,
        certain=certain,
        wrong=int(certain and not worst <= HONEST * max(vouched or 0.0, VOUCHED)),
    )


# ------------------------------------------------------------------------------------------------- tables and figures
IMAGES = {
    "connected": "fully connected network, closed form",
    "convolutional": "LeNet, closed form",
    "peeling": "ResNet18, peeling",
    "matching": "LeNet, gradient matching",
}


def precisions_table() -> pd.DataFrame:
    """Return what each precision rounds, and by how much."""
    return pd.DataFrame(
        {
            "precision": name,
            "Linear layers": f"{one.products:.0e}",
            "convolutions": f"{one.convolutions:.0e}",
            "smallest gradient": f"{one.least:.0e}" if one.least else "–",
        }
        for name, one in PRECISIONS.items()
    )


def _in_words(record: Record, *kinds: type[Experiment]) -> pd.DataFrame:
    """Return rows with the attackers in words, in the order of the precisions."""
    order = {name: place for place, name in enumerate(record.stated(Parameters).precisions)}
    rows = pd.concat([record.rows(kind) for kind in kinds])
    rows = rows.assign(attacker=rows["attacker"].map(ATTACKERS))
    return rows.sort_values("precision", key=lambda column: column.map(order), kind="stable")


def _share_of_cases(status: str) -> Measure:
    return lambda rows: f"{100 * rows[status].sum() / rows['cases'].sum():.0f} %"


STATUS_SHARES: dict[str, Measure] = {status: _share_of_cases(status) for status in STATUSES}


def labels_table(record: Record) -> pd.DataFrame:
    """Return what is known of single labels, all networks and kinds of label together."""
    return _single_labels(record, NetworkLabels)


def heads_table(record: Record) -> pd.DataFrame:
    """Return what is known of single labels, all random last layers together."""
    return _single_labels(record, HeadLabels)


def _single_labels(record: Record, kind: type[Experiment]) -> pd.DataFrame:
    return summary(
        _in_words(record, kind),
        {"precision": "precision", "attacker": "attacker"},
        {
            "n": total("cases", ".0f"),
            **STATUS_SHARES,
            "class right": mean("right", percent()),
            "median label error (L1)": median("error", _scientific),
            "largest": greatest("largest", _scientific),
            "wrong certificates": total("wrong", ".0f"),
        },
    )


def batches_table(record: Record) -> pd.DataFrame:
    """Return what is known of a batch's labels and of sentences."""
    rows = _in_words(record, BatchLabels, ReadSentences)
    attacks = {BatchLabels.part: "labels of a batch", ReadSentences.part: "sentences"}
    return summary(
        rows.assign(attack=rows["part"].map(attacks)),
        {"precision": "precision", "attack": "attack", "attacker": "attacker"},
        {
            "n": total("cases", ".0f"),
            **STATUS_SHARES,
            "right": mean("right", percent()),
            "wrong certificates": total("wrong", ".0f"),
        },
    )


def counts_table(record: Record) -> pd.DataFrame:
    """Return the mean share of labels that is counted right, a line a precision, a column a method."""

    def counted(rows: pd.DataFrame) -> str:
        return f"{rows['share'].iloc[0]:.1f} ± {rows['spread'].iloc[0]:.1f}"

    methods = {method: among(counted, method=method) for method in COUNTS}
    return summary(
        _in_words(record, Counts), {"precision": "precision"}, {"batches": only("batches", ".0f"), **methods}
    )


def images_table(record: Record) -> pd.DataFrame:
    """Return how well images come back, by the attack, the batch size, the precision and the attacker."""
    rows = _in_words(record, RestoredImages)
    rows = rows.assign(attack=rows["attack"].map(IMAGES), size=rows["size"].astype(int), whole=rows["lost"] == 0)
    lines = summary(
        rows,
        {"attack": "attack", "B": "size", "precision": "precision", "attacker": "attacker"},
        {
            "n": total("cases", ".0f"),
            "certified": total("certain", ".0f"),
            "restored": total("whole", ".0f"),
            "median PSNR (dB)": among(median("psnr", ".1f"), whole=True),
            "least PSNR (dB)": among(least("least", ".1f"), whole=True),
            "wrong certificates": total("wrong", ".0f"),
        },
    )
    return lines.sort_values(["attack", "B"], kind="stable").reset_index(drop=True)


def _scientific(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.0e}"


def figure_digits(record: Record) -> Figure:
    """Draw the error of single labels, and the PSNR of images, against the precision of the client."""
    names = list(record.stated(Parameters).precisions)
    figure, axes = figures.panels(1, 2, height=3.6)
    left, right = axes[0]
    frame = record.rows(NetworkLabels)
    for place, attacker in enumerate(("told", "not told")):
        own = frame[(frame["attacker"] == attacker) & frame["error"].notna()]
        middle = own.groupby("precision")["error"].median().reindex(names).clip(lower=1e-17)
        left.plot(names, middle, marker="os"[place], linestyle=figures.DASHES[place], label=ATTACKERS[attacker])
    left.axhline(KNOWN, color=figures.TRUTH, linewidth=1.0, linestyle=(0, (4, 2)))
    left.set(yscale="log", ylabel="median label error (L1)", title="labels of single samples")
    left.legend(fontsize=8)
    frame = record.rows(RestoredImages)
    for place, attack in enumerate(dict.fromkeys(frame["attack"])):
        own = frame[(frame["attack"] == attack) & (frame["size"] == 1) & (frame["lost"] == 0)]
        best = own.groupby(["precision", "attacker"])["psnr"].median().groupby("precision").max().reindex(names)
        right.plot(
            names,
            best,
            marker="osD^"[place],
            linestyle=figures.DASHES[place % len(figures.DASHES)],
            label=IMAGES[attack],
        )
    right.set(ylabel="median PSNR (dB), better attacker", title="single images", ylim=(0, None))
    right.legend(fontsize=8)
    for axis in (left, right):
        axis.tick_params(axis="x", rotation=30)
    return figure


def figure_certificates(record: Record) -> Figure:
    """Draw what the attack on single labels says, a bar a precision, for attackers who are told it and who are not."""
    names = list(record.stated(Parameters).precisions)
    frame = record.rows(NetworkLabels)
    figure, axes = figures.panels(1, 2, height=3.2, sharey=True)
    for axis, attacker in zip(axes[0], ("told", "not told"), strict=True):
        # Where nothing is coarser than the gradients, there is nothing to be told.
        own = frame[frame["attacker"] == attacker]
        plain = frame[(frame["attacker"] == "not told") & frame["precision"].isin(("float32", "float64"))]
        own = pd.concat([own, plain]) if attacker == "told" else own
        sums = own.groupby("precision")[[*STATUSES, "cases"]].sum().reindex(names)
        bottom = torch.zeros(len(names), dtype=torch.float64).numpy()
        for place, status in enumerate(STATUSES):
            share = (100 * sums[status] / sums["cases"]).to_numpy()
            axis.bar(names, share, bottom=bottom, label=status, color=figures.COLOURS[2 * place])
            bottom = bottom + share
        axis.set(title=f"attacker {ATTACKERS[attacker]}", ylim=(0, 100))
        axis.tick_params(axis="x", rotation=30)
    axes[0][0].set_ylabel("share of single labels (%)")
    figures.legend_below(figure, 3)
    return figure
