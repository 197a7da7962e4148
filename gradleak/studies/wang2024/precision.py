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

from gradleak import claims, data, metrics, models, studies
from gradleak.augment import one_hot
from gradleak.images import LBFGS, match, peel
from gradleak.images.inversion.convolutional import trace_convolutional
from gradleak.images.inversion.fully_connected import Inversion, trace_fully_connected
from gradleak.labels import count_labels, recover_batch, recover_soft_labels
from gradleak.labels.verdict import KNOWN
from gradleak.leak import Leak, observe
from gradleak.metrics import SCALE
from gradleak.models import training
from gradleak.models.language_training import LanguageRecipe
from gradleak.precision import PRECISIONS
from gradleak.runs import kinds
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences import batch_of, read_sentences
from gradleak.show import figures
from gradleak.show.drawn import drawn, level, lines, stacked
from gradleak.show.headline import Headline
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
    select,
    summary,
    total,
)
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.outcomes import Outcome, average_of, collected, median_of, stages
from gradleak.studies.shared.read import private_of, reading_of
from gradleak.studies.shared.restored import graded
from gradleak.studies.shared.samples import random_layer, soft_labels

PLACE = "Beyond section 4"
# The lowest PSNR (dB) of an exactly restored batch measures only rounding errors.
COLUMNS = {"least": kinds.rounding(decibels=True)}
TEXT = "sentences"
# Classes and sizes of the batches whose soft labels are recovered, and size of the batches whose labels are counted.
CLASSES, SIZES, COUNTED = 100, (2, 4), 32
COUNTS = ("llg", "llg*", "ilrg", "posterior")
COUNTING = {"llg": "LLG", "llg*": "LLG*", "ilrg": "iLRG", "posterior": "posterior attack"}
# Number of auxiliary samples for the posterior attack.
OTHERS = 500
LANGUAGE = ("lstm", "transformer")
# Random last layers: numbers of classes and of features, samples per layer, and range of the logits' deviations.
HEADS, FEATURES, OWN, SPREADS = (3, 4, 5, 10, 100), (8, 64, 256), 20, (0.03, 100.0)
KINDS = ("smoothing", "mixup", "onehot")
# The statuses of a label or a batch.
STATUSES = ("unique", "ambiguous", "failed")
# Side (pixels) of images that are peeled.
FEW = 16
# A certificate is wrong if an image's error exceeds the certified error by more than this factor.
HONEST = 3.0
# The relative error that counts as certified if a certificate states none.
VOUCHED = 1e-3
ATTACKERS = {
    "told": "knows the precision",
    "not told": "does not know the precision",
    "noise": "takes rounding for Gaussian noise",
}


class Network(Form):
    """A network for single samples, and the number of its training epochs."""

    network: str
    epochs: Whole = Field(0, ge=0)


class Parameters(studies.Parameters):
    """Parameters of the page: the clients' precisions, networks, attacks and numbers of samples."""

    precisions: list[Literal["float64", "float32", "tf32", "tf32-matmul", "bfloat16", "float16"]] = setting(
        ["float32", "bfloat16"], paper=list(PRECISIONS), min_length=1, about="precisions in which the client computes"
    )
    networks: list[Network] = setting(
        ["lenet/0"],
        paper=["lenet/0", "lenet/10", "resnet20/0", "resnet18-cifar/0"],
        validate_default=True,
        about="networks for the labels of single samples, written network/epochs of training",
    )
    samples: int = setting(
        5, paper=100, smallest=2, ge=1, le=100_000, about="single samples per network and kind of label"
    )
    heads: int = setting(
        4, paper=100, smallest=1, ge=1, le=100_000, about="random last layers, each with its own samples"
    )
    batches: int = setting(1, paper=10, ge=1, le=10_000, about="batches per setting of every other attack")
    images: list[Literal["connected", "convolutional", "peeling", "matching"]] = setting(
        ["connected"],
        paper=["connected", "convolutional", "peeling", "matching"],
        smallest=["connected", "matching"],
        about="attacks on images",
    )
    steps: int = setting(
        10,
        paper=40,
        smallest=3,
        ge=1,
        le=100_000,
        about="steps of gradient matching; the search for images in peeling takes ten times as many",
    )
    dataset: str = setting("photos", paper="cifar10", about="dataset of the private images, test split")

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they see."""
        # Labels of batches are always counted in LeNet-5. The auxiliary samples are drawn from all classes; with twenty
        # per class on average, no class is left out.
        counted = Fixed("lenet5", self.dataset, classes=OTHERS // 20)
        return [Sees(one.network, self.dataset) for one in self.networks] + [counted]

    def experiments(self) -> Iterator[Experiment]:
        """Yield every attack on clients of each precision."""
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
        """Return a short text on the size of a run."""
        return (
            f"{len(self.precisions)} precisions, {self.samples} single samples per setting, "
            f"{self.batches} batches per setting, {data.title(self.dataset)}"
        )


class Outcomes(Row):
    """The results of an attack on `cases` samples or batches.

    Attributes:
        unique, ambiguous, failed: How often the attack gave each status.
        wrong: The number of certified answers that are not right.
        right: The percentage of right classes, labels or words.
        error: The median L1 error of a label.
    """

    cases: int
    unique: int
    ambiguous: int
    failed: int
    wrong: int
    right: float
    error: float


class LabelOutcomes(Outcomes):
    """The results on labels of single samples; `largest` is the largest L1 error of a label."""

    labels: str
    attacker: str
    unique_share: float
    largest: float


class HeadOutcomes(LabelOutcomes):
    """The results on single samples in one random last layer; `spread` is the standard deviation of its logits."""

    classes: int
    features: int
    spread: float


class BatchOutcomes(Outcomes):
    """The results on batches of one size and kind of label; `error` is the median of their largest label errors."""

    size: int
    labels: str
    attacker: str


class SentenceOutcomes(Outcomes):
    """The results on batches of sentences in one language model."""

    network: str
    attacker: str


class Counted(Row):
    """The percentage of labels that one method counts correctly: mean and standard deviation over batches."""

    method: str
    batches: int
    share: float
    spread: float


class Nearness(Row):
    """The similarity of restored images to the private images, in the best order.

    Attributes:
        psnr: The mean PSNR (dB).
        least: The lowest PSNR (dB).
        lost: The number of images that were not restored.
        error: The largest relative error of an image.
        vouched: The relative error that the attack certifies; None if the attack states no error.
        certain: Whether the attack gives a certificate.
        wrong: 1 if the certificate is wrong, else 0.
    """

    psnr: float
    least: float
    lost: int
    error: float
    vouched: float | None
    certain: bool
    wrong: int


class Restored(Nearness):
    """A batch of images that one attacker restored, with the attack's status."""

    size: int
    batch: int
    attacker: str
    cases: int
    status: str


class Attacker(NamedTuple):
    """An attacker's assumptions: the client's precision (None: unknown) and the noise level (None: estimate it)."""

    name: str
    precision: str | None = None
    noise: float | None = 0.0


class Tried(NamedTuple):
    """The result of one attack on a batch.

    Attributes:
        status: The attack's status.
        wrong: Whether the answer is certified and not right.
        right: The share of right labels or words.
        error: The largest L1 error of a label.
    """

    status: str
    wrong: bool
    right: float
    error: float = math.nan


def attackers(precision: str) -> list[Attacker]:
    """Return the attackers of a client: without its precision and, if it is coarser than float32, with it."""
    told = [] if precision in ("float32", "float64") else [Attacker("told", precision)]
    return [Attacker("not told"), *told]


def sent(model: nn.Module, inputs: Tensor, labels: Tensor, precision: str) -> Leak:
    """Return the leak of a client that computes in this precision; for float64 the model is converted too."""
    if precision != "float64":
        return observe(model, inputs, labels, precision=precision)
    return observe(model.double(), inputs.double(), labels.double())


class OfPrecision(Experiment):
    """An experiment on clients that compute in one precision."""

    precision: str
    dataset: str


class NetworkLabels(OfPrecision):
    """Recover labels of single samples in one network."""

    part: ClassVar[str] = "labels"
    network: str
    epochs: int
    samples: int

    def run(self) -> Iterator[LabelOutcomes]:
        """Recover the labels, for every kind of label."""
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
    """Recover labels of single samples in random last layers, whose logits vary more than in any dataset."""

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
    """Recover labels of batches, each from one averaged gradient."""

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
    """Count the labels of batches."""

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
    """Read batches of two sentences, as an attacker who does not know the precision."""

    part: ClassVar[str] = "sentences"
    batches: int

    def reads(self) -> list[str]:
        """Return the name of the dataset of sentences."""
        return [TEXT]

    def run(self) -> Iterator[SentenceOutcomes]:
        """Read every batch in each kind of language model."""
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
    """Restore images with one-hot labels, which can be certified in any precision."""

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
                    # Gradient matching does not use the client's precision.
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
        """Return the images, the attack's status, and the relative error that it certifies, if any."""
        if self.attack == "peeling":
            peeled = peel(leak, prior="onehot", steps=self.steps, seed=self.seed, precision=precision)
            # Without a certificate, take the nearest image all the same.
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
    """Return normalised images and soft labels of random classes; for mixup the images are mixed as well."""
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
    """Yield the results of each attacker on the labels of single samples."""
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
    """Recover the labels of a batch, and compare them with the true labels."""
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
    """Return the number of each status and of wrong certificates, the mean success, and the median error."""
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
    """Compare restored images with the private images in the best order, and check the certificate.

    Args:
        found: The restored images (B, C, H, W), normalised.
        inputs: The private images (B, C, H, W), normalised.
        status: The attack's status.
        vouched: The relative error that the attack certifies, if it states one.
    """
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


def headline(record: Record) -> Headline:
    """Return the finding: a coarse precision hides the labels of batches but not the class of a single sample."""
    known = claims.judgements(record)
    single, batch = known["precision-bf16-class"], known["precision-bf16-batches"]
    cases, wrong = known["precision-cases"], known["precision-wrong"]
    return Headline(
        f"From clients that compute in bfloat16, an attacker who knows this precision reads {single.text} of the "
        f"classes of single samples but {batch.text} of the labels in batches; in {cases.value or 0:,.0f} attacks, of "
        "all precisions and certified or not, no certified answer is wrong.",
        true=bool(single.agrees and batch.agrees and wrong.value == 0),
        claim="precision-bf16-class",
        what="classes of single samples read right in bfloat16, precision known (four networks, CIFAR-10)",
        of="pairs of a network and a kind of label, with 100 samples each,",
        figure=figure_digits,
    )


def precisions_table() -> pd.DataFrame:
    """Return the rounding errors of each precision.

    Rows: precisions. Columns: relative rounding errors in Linear layers and in convolutions, and the smallest gradient
    that is not rounded to zero.
    """
    return pd.DataFrame(
        {
            "precision": name,
            "relative error in Linear layers": f"{one.products:.0e}",
            "relative error in convolutions": f"{one.convolutions:.0e}",
            "smallest gradient that is not 0": f"{one.least:.0e}" if one.least else "–",
        }
        for name, one in PRECISIONS.items()
    )


def _in_words(record: Record, *kinds: type[Experiment]) -> pd.DataFrame:
    """Return rows with the attackers in words, sorted by precision."""
    order = {name: place for place, name in enumerate(record.stated(Parameters).precisions)}
    rows = pd.concat([record.rows(kind) for kind in kinds])
    rows = rows.assign(attacker=rows["attacker"].map(ATTACKERS))
    return rows.sort_values("precision", key=lambda column: column.map(order), kind="stable")


def _share_of_cases(status: str) -> Measure:
    return lambda rows: f"{100 * rows[status].sum() / rows['cases'].sum():.0f} %"


STATUS_SHARES: dict[str, Measure] = {status: _share_of_cases(status) for status in STATUSES}


def labels_table(record: Record) -> pd.DataFrame:
    """Return the results on labels of single samples, over all networks and kinds of label.

    Rows: the client's precision and the attacker. Columns: n samples, the share of each status, the share of right
    classes, median and largest L1 label error, and the number of wrong certificates.
    """
    return _single_labels(record, NetworkLabels)


def heads_table(record: Record) -> pd.DataFrame:
    """Return the results on labels of single samples, over all random last layers, with rows and columns as before."""
    return _single_labels(record, HeadLabels)


def _single_labels(record: Record, kind: type[Experiment]) -> pd.DataFrame:
    return summary(
        _in_words(record, kind),
        {"precision": "precision", "attacker": "attacker"},
        {
            "samples": total("cases", ",.0f"),
            **STATUS_SHARES,
            "classes right": mean("right", percent()),
            "median label error (L1)": median("error", _scientific),
            "largest label error (L1)": greatest("largest", _scientific),
            "wrong certificates": total("wrong", ".0f"),
        },
    )


def _batches(record: Record) -> pd.DataFrame:
    """Return the rows on labels of batches and on sentences, with the attack in words."""
    rows = _in_words(record, BatchLabels, ReadSentences)
    attacks = {BatchLabels.part: "labels of a batch", ReadSentences.part: "sentences"}
    return rows.assign(attack=rows["part"].map(attacks))


def batches_table(record: Record) -> pd.DataFrame:
    """Return the results on batches.

    Rows: the client's precision, the attack (on labels or on sentences), and the attacker. Columns: n batches, the
    share of each status, the share of right labels or words, and the number of wrong certificates.
    """
    return summary(
        _batches(record),
        {"precision": "precision", "attack": "attack", "attacker": "attacker"},
        {
            "batches": total("cases", ".0f"),
            **STATUS_SHARES,
            "labels or sentences right": mean("right", percent()),
            "wrong certificates": total("wrong", ".0f"),
        },
    )


def counts_table(record: Record) -> pd.DataFrame:
    """Return the percentage of labels that are counted correctly, mean ± standard deviation over batches.

    Rows: the client's precision. Columns: the number of batches, and the methods.
    """

    def counted(rows: pd.DataFrame) -> str:
        return f"{rows['share'].iloc[0]:.1f} ± {rows['spread'].iloc[0]:.1f}"

    methods = {f"{COUNTING[method]} (%)": among(counted, method=method) for method in COUNTS}
    return summary(
        _in_words(record, Counts), {"precision": "precision"}, {"batches": only("batches", ".0f"), **methods}
    )


def images_table(record: Record) -> pd.DataFrame:
    """Return the quality of restored images.

    Rows: attacks, batch sizes B, the client's precision, and attackers. Columns: n batches, batches certified, batches
    of which every image is found, or above each limit of the scale; the median of the mean PSNR (dB) and the
    lowest PSNR (dB) of batches of which every image is found, and the number of wrong certificates.
    """
    rows = _in_words(record, RestoredImages)
    rows = rows.assign(attack=rows["attack"].map(IMAGES), size=rows["size"].astype(int), whole=rows["lost"] == 0)
    lines = summary(
        rows,
        {"attack": "attack", "B": "size", "precision": "precision", "attacker": "attacker"},
        {
            "batches": total("cases", ".0f"),
            "certified": total("certain", ".0f"),
            "found": total("whole", ".0f"),
            **{f"≥ {decibels:.0f} dB": graded(word, "least") for word, decibels in SCALE.items()},
            "median PSNR (dB)": among(median("psnr", ".1f"), whole=True),
            "lowest PSNR (dB)": among(least("least", ".1f"), whole=True),
            "wrong certificates": total("wrong", ".0f"),
        },
    )
    return lines.sort_values(["attack", "B"], kind="stable").reset_index(drop=True)


def _scientific(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.0e}"


def figure_digits(record: Record) -> Figure:
    """Plot the quality of recovered labels and images against the client's precision.

    Left: the median L1 error of labels of single samples, one line for each attacker. Right: the median PSNR (dB) of
    single images, one line for each attack, with the better attacker.
    """
    # Categories keep their order, and precisions without a value leave a gap.
    precision = pd.CategoricalDtype(list(record.stated(Parameters).precisions))
    figure, ((left, right),) = figures.panels(1, 2, height=3.6)
    rows = record.rows(NetworkLabels).astype({"precision": precision, "error": float})
    errors = rows.groupby(["attacker", "precision"], observed=False)["error"].median().clip(lower=1e-17).reset_index()
    words = (ATTACKERS["told"], ATTACKERS["not told"])
    lines("precision", "error", by="attacker", label=ATTACKERS.__getitem__, order=words)(left, errors)
    level(KNOWN, linewidth=1.0)(left, errors)
    left.set(yscale="log", ylabel="median label error (L1)", title="labels of single samples")
    rows = select(record.rows(RestoredImages), size=1, lost=0).astype({"precision": precision})
    each = rows.groupby(["attack", "precision", "attacker"], sort=False, observed=False)["psnr"].median()
    best = each.groupby(["attack", "precision"], sort=False, observed=False).max().reset_index()
    lines("precision", "psnr", by="attack", label=IMAGES.__getitem__)(right, best)
    right.set(ylabel="median PSNR (dB)", title="single images, better attacker", ylim=(0, None))
    for axis in (left, right):
        axis.legend(fontsize=8)
        axis.tick_params(axis="x", rotation=30)
    return figure


def figure_batches(record: Record) -> Figure:
    """Plot the share of labels in batches and of sentences that are read right (%) against the client's precision."""
    precision = pd.CategoricalDtype(list(record.stated(Parameters).precisions))
    rows = _batches(record)
    known = ATTACKERS["told"]
    series = rows["attack"] + rows["attacker"].map(lambda attacker: ", precision known" if attacker == known else "")
    return drawn(
        rows.assign(series=series).astype({"precision": precision}),
        lines("precision", "right", by="series"),
        lambda axis, _: axis.tick_params(axis="x", rotation=30),
        height=3.0,
        legend=3,
        ylabel="read right (%)",
        ylim=(-4, 104),
    )


def figure_certificates(record: Record) -> Figure:
    """Plot the share of each status (%) of labels of single samples as stacked bars, one bar for each client precision.

    Left: attackers who know the precision. Right: attackers who do not.
    """
    rows = _in_words(record, NetworkLabels)
    # In float32 and float64, knowledge of the precision makes no difference.
    plain = rows[rows["attacker"].eq(ATTACKERS["not told"]) & rows["precision"].isin(("float32", "float64"))]
    rows = pd.concat([plain.assign(attacker=ATTACKERS["told"]), rows])
    return drawn(
        rows[rows["attacker"].isin([ATTACKERS["told"], ATTACKERS["not told"]])],
        stacked("precision", dict(zip(STATUSES, STATUSES, strict=True)), figures.COLOURS[::2], upright=True),
        lambda axis, _: axis.tick_params(axis="x", rotation=30),
        panels="attacker",
        title="attacker {}".format,
        height=3.2,
        legend=3,
        ylabel="share of single labels (%)",
    )


KNOWS = {"told": "known", "not told": "unknown", "noise": "taken for noise"}
METHODS = {"llg": "LLG", "llg*": "LLG*", "ilrg": "iLRG", "posterior": "posterior"}
RESTORED_BY = {
    "connected": ("closed form", "fcn4"),
    "convolutional": ("closed form", "lenet"),
    "peeling": ("peeling", "resnet18-cifar"),
    "matching": ("gradient matching", "lenet"),
}


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.part("labels")
    found = collected(
        record, rows, "soft labels", average_of("right", "labels recovered", "samples", count="cases"),
        attack="exact solver, precision " + rows["attacker"].map(KNOWS), network=rows["network"],
        training=stages(rows["epochs"]), data=rows["dataset"], client=rows["precision"],
        detail=rows["labels"] + " labels",
    )  # fmt: skip
    rows = record.part("batches")
    found += collected(
        record, rows, "soft labels", average_of("right", "labels recovered", "batches", count="cases"),
        attack="batch solver, precision " + rows["attacker"].map(KNOWS), network="resnet20", data=rows["dataset"],
        batch=rows["size"].astype(int), client=rows["precision"], detail=rows["labels"] + " labels",
    )  # fmt: skip
    rows = record.part("counts")
    found += collected(
        record, rows, "labels", average_of("share", "labels found", "batches", spread="spread", count="batches"),
        attack=rows["method"].map(METHODS), network="lenet5, relu", data=rows["dataset"], batch=COUNTED,
        client=rows["precision"],
    )  # fmt: skip
    rows = record.part("sentences")
    found += collected(
        record, rows, "text", average_of("right", "sentences read exactly", "batches", count="cases"),
        attack="words in the span", network=rows["network"], data=TEXT, batch=2, client=rows["precision"],
    )  # fmt: skip
    rows = record.part("images")
    return found + collected(
        record, rows, "images", median_of("least", "PSNR of a batch's worst image", "batches"),
        attack=[
            RESTORED_BY[attack][0] + ("" if attack == "matching" else f", precision {KNOWS[attacker]}")
            for attack, attacker in zip(rows["attack"], rows["attacker"], strict=True)
        ],
        network=[RESTORED_BY[attack][1] for attack in rows["attack"]], data=rows["dataset"],
        batch=rows["size"].astype(int), client=rows["precision"],
    )  # fmt: skip
