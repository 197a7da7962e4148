"""What precision protects

Beyond wang2024, section 4: clients that compute in TF32, bfloat16 or float16, as most clients with a GPU do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, metrics, studies
from gradleak.augment import one_hot
from gradleak.images import LBFGS, Inversion, match, peel, trace_convolutional, trace_fully_connected
from gradleak.labels import count_labels, recover_batch, recover_soft_labels
from gradleak.labels.priors import KNOWN
from gradleak.leak import Leak, observe
from gradleak.models import training
from gradleak.models.language_training import LanguageRecipe
from gradleak.precision import PRECISIONS
from gradleak.sequences import batch_of, read_sentences
from gradleak.show import figures
from gradleak.show.aggregate import aggregate, among, mean, select
from gradleak.show.drawn import arranged, drawn, level, lines, panel, stacked
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.outcomes import Outcome, average_of, collected, median_of, network_in_words, stages
from gradleak.studies.shared.read import private_of, reading_of
from gradleak.studies.shared.samples import LABELS, random_layer, soft_labels
from gradleak.studies.shared.searched import percentage

PLACE = "Beyond section 4"
TEXT = "sentences"
# Classes and sizes of the batches whose soft labels are recovered, and size of the batches whose labels are counted.
CLASSES, SIZES, COUNTED = 100, (2, 4), 32
METHODS = {"llg": "LLG", "llg*": "LLG*", "ilrg": "iLRG", "posterior": "posterior"}
# Number of auxiliary samples for the posterior attack.
OTHERS = 500
# Random last layers: numbers of classes and of features, samples per layer, and range of the logits' deviations.
HEADS, FEATURES, OWN, SPREADS = (3, 4, 5, 10, 100), (8, 64, 256), 20, (0.03, 100.0)
# The statuses of a label or a batch.
STATUSES = ("unique", "ambiguous", "failed")
# The result of an attack on a sample or a batch: its status, whether the answer is certified and not right, the share
# of right labels or sentences, and the largest L1 error of a label.
Case = tuple[str, bool, float, float]
# What attackers know of the client's precision; the third takes rounding for Gaussian noise of unknown size.
ATTACKERS = {
    "told": "precision known",
    "not told": "precision unknown",
    "noise": "rounding taken for noise",
}
# The attacks on images: the network, and the attack's name.
RESTORING = {
    "connected": ("fcn4", "closed form"),
    "convolutional": ("lenet", "closed form"),
    "peeling": ("resnet18-cifar", "peeling"),
    "matching": ("lenet", "gradient matching"),
}


class Network(Group):
    """A network for single samples, and the number of its training epochs."""

    network: str
    epochs: int = Field(0, ge=0)


class Parameters(studies.Parameters):
    """Parameters of the page: the clients' precisions, networks, attacks and numbers of samples."""

    precisions: list[str] = setting(paper=list(PRECISIONS), min_length=1)
    networks: list[Network] = setting(
        paper=[
            {"network": "lenet"},
            {"network": "lenet", "epochs": 10},
            {"network": "resnet20"},
            {"network": "resnet18-cifar"},
        ]
    )
    samples: int = setting(paper=100, smallest=2, ge=1, le=100_000)
    heads: int = setting(paper=100, smallest=1, ge=1, le=100_000)
    batches: int = setting(paper=10, ge=1, le=10_000)
    images: list[Literal["connected", "convolutional", "peeling", "matching"]] = setting(
        paper=["connected", "convolutional", "peeling", "matching"], smallest=["connected", "matching"]
    )
    steps: int = setting(paper=40, smallest=3, ge=1, le=100_000)
    dataset: str = setting(paper="cifar10")

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they see."""
        # Labels of batches are always counted in LeNet-5. The auxiliary samples are drawn from all classes; with twenty
        # per class on average, no class is left out.
        counted = Sees("lenet5", self.dataset, classes=OTHERS // 20)
        return [Sees(one.network, self.dataset) for one in self.networks] + [counted]

    def experiments(self) -> Iterator[Experiment]:
        """Yield every attack on clients of each precision."""
        steps = {"matching": self.steps, "peeling": 10 * self.steps}
        for name in self.precisions:
            for one in self.networks:
                yield NetworkLabels.of(self, precision=name, **dict(one))
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
            f"{self.batches} batch{'es' * (self.batches != 1)} per setting, {data.title(self.dataset)}"
        )


def attackers(precision: str) -> dict[str, str | None]:
    """Return the attackers of a client, with the precision that each assumes, None if it is unknown.

    The precision makes no difference to an attacker if it is float32 or finer.
    """
    return {"not told": None} if precision in ("float32", "float64") else {"not told": None, "told": precision}


def sent(model: nn.Module, inputs: Tensor, labels: Tensor, precision: str) -> Leak:
    """Return the leak of a client that computes in this precision; for float64 the model is converted too."""
    if precision != "float64":
        return observe(model, inputs, labels, precision=precision)
    return observe(model.double(), inputs.double(), labels.double())


class OfPrecision(Experiment):
    """An experiment on clients that compute in one precision."""

    precision: str
    dataset: str


class NetworkLabels(OfPrecision, part="labels"):
    """Recover labels of single samples in one network."""

    network: str
    epochs: int
    samples: int

    def run(self) -> Iterator[Columns]:
        """Recover the labels, for every kind of label."""
        private = data.load(self.dataset, "test")
        if self.epochs:
            recipe = training.Recipe(
                network=self.network, dataset=self.dataset, epochs=self.epochs, labels="smoothing", seed=self.seed
            )
            model = training.train(recipe, device=self.device).model.to(self.device)
        else:
            model = built(self.network, private, self.seed, self.device)
        for labels in LABELS:
            images, soft = _private(self.dataset, labels, self.samples, private.classes, self.seed)
            yield from _attacked_labels(model, images.to(self.device), soft.to(self.device), labels, self.precision)


class HeadLabels(OfPrecision, part="heads"):
    """Recover labels of single samples in random last layers, whose logits vary more than in any dataset."""

    heads: int

    def run(self) -> Iterator[Columns]:
        """Draw the layers and their samples, and recover the labels."""
        generator = torch.Generator().manual_seed(self.seed)
        low, high = (math.log(spread) for spread in SPREADS)
        for number in range(self.heads):
            draw = torch.rand(4, generator=generator).tolist()
            labels = LABELS[number % len(LABELS)]
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
                yield row | {"classes": classes, "features": features, "spread": spread}


class BatchLabels(OfPrecision, part="batches"):
    """Recover labels of batches, each from one averaged gradient."""

    batches: int

    def run(self) -> Iterator[Columns]:
        """Recover the labels of batches of every size."""
        model = built("resnet20", data.load(self.dataset, "test"), self.seed, self.device, classes=CLASSES)
        known = attackers(self.precision)
        for size, labels in product(SIZES, ("smoothing", "onehot")):
            tried: dict[str, list[Case]] = {attacker: [] for attacker in known}
            for number in range(self.batches):
                images, soft = _private(self.dataset, labels, size, CLASSES, self.seed + 1000 * size + number)
                leak = sent(model, images.to(self.device), soft.to(self.device), self.precision)
                for attacker, cases in tried.items():
                    cases.append(_recovered(leak, soft, labels, known[attacker]))
            for attacker, cases in tried.items():
                yield summed(cases) | {"size": size, "labels": labels, "attacker": attacker}


class Counts(OfPrecision, part="counts"):
    """Count the labels of batches."""

    batches: int

    def run(self) -> Iterator[Columns]:
        """Count the labels of every batch by every method."""
        private, public = data.load(self.dataset, "test"), data.load(self.dataset, "train")
        model = built("lenet5", private, self.seed, self.device, activation="relu", init="torch")
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
            for method in METHODS:
                counts = count_labels(leak, method, auxiliary=given if method == "posterior" else None)
                right = float(metrics.count_overlap(counts.cpu()[None], truth)[0])
                shares.setdefault(method, []).append(100 * right)
        for method, own in shares.items():
            values = torch.tensor(own, dtype=torch.float64)
            spread = float(values.std()) if len(values) > 1 else 0.0
            yield {"method": method, "batches": len(own), "share": float(values.mean()), "share_spread": spread}


class ReadSentences(OfPrecision, part="sentences"):
    """Read batches of two sentences, as an attacker who does not know the precision."""

    batches: int

    def reads(self) -> list[str]:
        """Return the name of the dataset of sentences."""
        return [TEXT]

    def run(self) -> Iterator[Columns]:
        """Read every batch in each kind of language model."""
        for kind in ("lstm", "transformer"):
            recipe = LanguageRecipe(text=TEXT, kind=kind, width=64, layers=1, epochs=1, seed=self.seed)
            model = recipe.build().to(self.device)
            model = model.double() if self.precision == "float64" else model
            tried = []
            for number in range(self.batches):
                private = private_of(TEXT, 2, number, self.seed)
                leak = observe(model, *batch_of(private, device=self.device), precision=self.precision)
                read = reading_of(read_sentences(leak), private)
                tried.append((read["status"], read["wrongly_sure"], read["right"], math.nan))
            yield summed(tried) | {"network": kind, "attacker": "not told"}


class RestoredImages(OfPrecision, part="images"):
    """Restore images with one-hot labels, which can be certified in any precision."""

    attack: str
    steps: int
    batches: int

    def run(self) -> Iterator[Columns]:
        """Restore every batch."""
        private = data.load(self.dataset, "test")
        for size in {"connected": (1, 4), "peeling": (1, 2)}.get(self.attack, (1,)):
            for number in range(self.batches):
                images, soft = _private(self.dataset, "onehot", size, CLASSES, self.seed + 1000 * size + number)
                images = F.adaptive_avg_pool2d(images, 16) if self.attack == "peeling" else images
                fitting = {"classes": CLASSES, "image_size": images.shape[-1]}
                model = built(RESTORING[self.attack][0], private, self.seed + number, self.device, **fitting)
                leak = sent(model, images.to(self.device), soft.to(self.device), self.precision)
                for attacker, known in attackers(self.precision).items():
                    # Gradient matching does not use the client's precision.
                    if self.attack == "matching" and known:
                        continue
                    found, status, claimed = self._restored(leak, known)
                    row = compared(found.cpu().double().reshape(images.shape), images, status, claimed)
                    yield row | {"size": size, "batch": number, "attacker": attacker}

    def _restored(self, leak: Leak, precision: str | None) -> tuple[Tensor, str, float | None]:
        """Return the images, the attack's status, and the relative error that it claims, if any."""
        if self.attack == "peeling":
            peeled = peel(leak, prior="onehot", steps=self.steps, seed=self.seed, precision=precision)
            # Without a certificate, take the nearest image all the same.
            worst = float(peeled.errors.max())
            return peeled.nearest, peeled.status, worst if math.isfinite(worst) else None
        if self.attack == "matching":
            matched = match(leak, "idlg", optimizer=LBFGS(steps=self.steps), seed=self.seed)
            return matched.images, "found", None
        trace = {"connected": trace_fully_connected, "convolutional": trace_convolutional}[self.attack]
        found: Inversion = trace(leak, prior="onehot", precision=precision)
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


def _attacked_labels(model: nn.Module, inputs: Tensor, soft: Tensor, labels: str, precision: str) -> Iterator[Columns]:
    """Yield the results of each attacker on the labels of single samples."""
    each = zip(inputs.split(1), soft.split(1), strict=True)
    leaks = [sent(model, one, label, precision) for one, label in each]
    gradients = torch.stack([leak.weight_gradient for leak in leaks])
    errors = [one for leak in leaks if (one := leak.bias_gradient) is not None]
    known: dict[str, Any] = {"bias": leaks[0].bias, "bias_gradient": torch.stack(errors)} if errors else {}
    classes = soft.argmax(dim=1)
    for attacker, assumed in {**attackers(precision), "noise": None}.items():
        known |= {"precision": assumed, "noise": None if attacker == "noise" else 0.0}
        found = recover_soft_labels(gradients, leaks[0].weight, prior=labels, **known)
        error = (found.labels - soft.to(found.labels)).abs().sum(dim=1)
        unique, failed = found.where("unique"), found.where("failed")
        wrong, right = unique & ~(error <= KNOWN), (found.labels.argmax(dim=1) == classes) & ~failed
        cases = zip(found.status, wrong.tolist(), right.tolist(), error.tolist(), strict=True)
        yield summed(cases) | {
            "labels": labels,
            "attacker": attacker,
            "unique_share": percentage(unique),
            "largest": math.nan if failed.all() else float(error[~failed].max()),
        }


def _recovered(leak: Leak, soft: Tensor, labels: str, precision: str | None) -> Case:
    """Recover the labels of a batch, and compare them with the true labels."""
    found = recover_batch(leak, prior=labels, precision=precision)
    error = torch.cdist(found.labels.cpu().nan_to_num(nan=9.0), soft, p=1).amin(dim=1)
    wrong = found.status == "unique" and not bool((error <= KNOWN).all())
    return found.status, wrong, int((error < 1).sum()) / len(soft), float(error.max())


def summed(cases: Iterable[Case]) -> Columns:
    """Return the number of each status and of wrong certificates, the mean success (%), and the median error."""
    rows = pd.DataFrame(cases, columns=["status", "wrong", "right", "error"])
    return {
        "cases": len(rows),
        **{f"{name}_count": int(rows["status"].eq(name).sum()) for name in STATUSES},
        "wrong": int(rows["wrong"].sum()),
        "right": 100 * float(rows["right"].mean()),
        "label_error": float(rows["error"][rows["status"] != "failed"].quantile(interpolation="lower")),
    }


def compared(found: Tensor, inputs: Tensor, status: str, claimed: float | None) -> Columns:
    """Compare restored images with the private images in the best order, and check the certificate.

    Args:
        found: The restored images (B, C, H, W), normalised.
        inputs: The private images (B, C, H, W), normalised.
        status: The attack's status.
        claimed: The relative error that the attack claims, if it states one.
    """
    true = inputs.double()
    found = found[metrics.match_batch(found.nan_to_num(nan=0.0), true)]
    lost = ~found.isfinite().flatten(1).all(dim=1)
    psnr = metrics.psnr(data.denormalise(found), data.denormalise(true)).where(~lost, -math.inf)
    error = (found - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)
    worst = float(error.max()) if not lost.any() else math.nan
    certified = status in ("exact", "unique")
    return {
        "cases": 1,
        "status": status,
        "psnr": float(psnr.mean()),
        "lowest_psnr": float(psnr.min()),
        "not_restored": int(lost.sum()),
        "image_error": worst,
        "vouched": claimed,
        "certified": certified,
        # The error may be three times the certified error, which is at least a thousandth.
        "wrong": int(certified and not worst <= 3.0 * max(claimed or 0.0, 1e-3)),
    }


# ------------------------------------------------------------------------------------------------- tables and figures
def summary(record: Record) -> Summary:
    """Return the finding: a coarse precision hides the labels of batches but not the class of a single sample."""
    known = claims.judgements(record)
    single, batch = known["precision-bf16-class"], known["precision-bf16-batches"]
    cases, wrong = known["precision-cases"], known["precision-wrong"]
    tried = record.frame()
    certified = tried["unique_count"][tried["attacker"].isin(["told", "not told"])].sum()
    return Summary(
        f"From clients that compute in bfloat16, an attacker who knows this precision reads {single.text} of the "
        f"classes of single samples but {batch.text} of the labels in batches; in {cases.value or 0:,.0f} attacks at "
        f"all precisions, none of {certified:,.0f} certified answers is wrong.",
        true=bool(single.agrees and batch.agrees and wrong.value == 0),
        claim="precision-bf16-class",
        what="classes of single samples read right in bfloat16, precision known (four networks, CIFAR-10)",
        of="pairs of a network and a kind of label, with 100 samples each,",
        figure=figure_digits,
        outcomes=outcomes(record),
    )


def figure_digits(record: Record) -> Figure:
    """Plot the quality of recovered labels and images against the client's precision.

    Left: the median L1 error of labels of single samples, one line for each attacker. Right: the median PSNR (dB) of
    single images, one line for each attack; of each image, the result of the better attacker.
    """
    labels, images = _in_words(record, NetworkLabels), _in_words(record, RestoredImages)
    labels = labels.assign(label_error=labels["label_error"].astype(float).clip(lower=1e-17))
    # A precision without a restored image leaves a gap.
    images = select(images.assign(psnr=images["psnr"].where(images["not_restored"] == 0)), size=1)
    best = images.groupby(["attack", "precision", "batch"], sort=False)["psnr"].max().reset_index()
    names = {attack: f"{network_in_words(network)}: {name}" for attack, (network, name) in RESTORING.items()}
    order = [ATTACKERS["not told"], ATTACKERS["told"]]
    of_attackers = lines("precision", "label_error", by="attacker", middle="median", order=order)
    of_attacks = lines("precision", "psnr", by="attack", middle="median", label=names.__getitem__)

    def legend(axis: Axes, _: pd.DataFrame) -> None:
        axis.legend(fontsize=8)

    left = {"yscale": "log", "ylabel": "median label error (L1)", "title": "labels of single samples"}
    right = {"ylabel": "median PSNR (dB)", "title": "single images, better attacker", "ylim": (0, None)}
    left_panel = panel(labels, of_attackers, level(KNOWN, linewidth=1.0), _slanted, legend, **left)
    return arranged([left_panel, panel(best, of_attacks, _slanted, legend, **right)], 2, height=3.6, sharey=False)


def _in_words(record: Record, *kinds: type[Experiment]) -> pd.DataFrame:
    """Return rows with attackers in words, and with precisions that keep their order."""
    rows = pd.concat([record.rows(kind) for kind in kinds])
    precisions = pd.CategoricalDtype(list(record.stated(Parameters).precisions))
    rows = rows.assign(attacker=rows["attacker"].map(ATTACKERS), precision=rows["precision"].astype(precisions))
    return rows.sort_values("precision", kind="stable")


def _slanted(axis: Axes, _: pd.DataFrame) -> None:
    axis.tick_params(axis="x", rotation=45, labelsize=8)


def batches_table(record: Record) -> pd.DataFrame:
    """Return the shares of a batch's labels and sentences that are read or counted right, by the client's precision."""
    right, share = mean("right", "{:.0f} %"), mean("share", "{:.1f} %")
    return aggregate(
        _in_words(record, BatchLabels, ReadSentences, Counts).astype({"precision": str}),
        {"precision": "precision"},
        {
            "labels": among(right, part=BatchLabels.part, attacker=ATTACKERS["not told"]),
            "labels, precision known": among(right, part=BatchLabels.part, attacker=ATTACKERS["told"]),
            "sentences": among(right, part=ReadSentences.part),
            **{f"counts, {METHODS[name]}": among(share, part=Counts.part, method=name) for name in METHODS},
        },
    )


def figure_certificates(record: Record) -> Figure:
    """Plot the share of each status (%) of labels of single samples as stacked bars, one bar for each client precision.

    Rows of panels: networks and random last layers. Columns: attackers.
    """
    parts = {NetworkLabels.part: "networks", HeadLabels.part: "random layers"}
    rows = _in_words(record, NetworkLabels, HeadLabels)
    return drawn(
        rows.sort_values(["part", "attacker", "precision"], ascending=[False, True, True]).astype({"precision": str}),
        stacked("precision", {name: f"{name}_count" for name in STATUSES}, figures.COLOURS[::2], upright=True),
        _slanted,
        panels=["part", "attacker"],
        title=lambda part, attacker: f"{parts[part]},\n{attacker}",
        across=3,
        height=2.6,
        legend=3,
        ylabel="share of labels (%)",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    parts = ("labels", "batches", "counts", "sentences", "images")
    labels, batches, counts, text, images = (record.part(name) for name in parts)
    right = average_of("right", "labels recovered", "samples", count="cases")
    found = collected(
        record, labels, "soft labels", right, attack="exact solver, " + labels["attacker"].map(ATTACKERS),
        network=labels["network"], training=stages(labels["epochs"]), data=labels["dataset"],
        client=labels["precision"], detail=labels["labels"] + " labels",
    )  # fmt: skip
    found += collected(
        record, batches, "soft labels", replace(right, cases="batches"),
        attack="batch solver, " + batches["attacker"].map(ATTACKERS), network="resnet20", data=batches["dataset"],
        batch=batches["size"].astype(int), client=batches["precision"], detail=batches["labels"] + " labels",
    )  # fmt: skip
    counted = average_of("share", "labels found", "batches", spread="share_spread", count="batches")
    found += collected(
        record, counts, "labels", counted, attack=counts["method"].map(METHODS), network="lenet5, relu",
        data=counts["dataset"], batch=COUNTED, client=counts["precision"],
    )  # fmt: skip
    found += collected(
        record, text, "text", average_of("right", "sentences read exactly", "batches", count="cases"),
        attack="words in the span", network=text["network"], data=TEXT, batch=2, client=text["precision"],
    )  # fmt: skip
    restoring = images["attack"].map(RESTORING)
    told = (", " + images["attacker"].map(ATTACKERS)).mask(images["attack"] == "matching", "")
    return found + collected(
        record, images, "images", median_of("lowest_psnr", "PSNR of a batch's worst image", "batches"),
        attack=restoring.str[1] + told, network=restoring.str[0], data=images["dataset"],
        batch=images["size"].astype(int), client=images["precision"],
    )  # fmt: skip
