"""What precision protects

Beyond wang2024, section 4: clients that compute in TF32, bfloat16 or float16, as most clients with a GPU do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

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
from gradleak.studies.shared.read import judge, private_of
from gradleak.studies.shared.samples import random_layer, soft_labels

PLACE = "Beyond section 4"
# Of an exact batch, the least PSNR in dB says how large the rounding errors are.
COLUMNS = {"least": kinds.rounding(decibels=True)}
SMALLEST: dict[str, Any] = {
    "precisions": ["float32", "bfloat16"],
    "samples": 2,
    "heads": 1,
    "batches": 1,
    "images": ["connected", "matching"],
    "steps": 3,
}
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
    """Parameters of the page."""

    precisions: list[Literal["float64", "float32", "tf32", "tf32-matmul", "bfloat16", "float16"]] = Field(
        ["float32", "bfloat16"], min_length=1, description="what the client computes in"
    )
    networks: list[Network] = Field(
        ["lenet/0"],
        validate_default=True,
        description="networks whose single labels are recovered, as network/epochs",
    )
    samples: int = Field(5, ge=1, le=100_000, description="single samples a network and kind of label")
    heads: int = Field(4, ge=1, le=100_000, description="random last layers, each with samples of its own")
    batches: int = Field(1, ge=1, le=10_000, description="batches a setting of every other attack")
    images: list[Literal["connected", "convolutional", "peeling", "matching"]] = Field(
        ["connected"], description="image attacks"
    )
    steps: int = Field(
        10, ge=1, le=100_000, description="steps of matching, and ten times as many in front of a peeled map"
    )
    dataset: str = Field("photos", description="private images, test split")

    paper: ClassVar[dict[str, Any]] = {
        "precisions": list(PRECISIONS),
        "networks": ["lenet/0", "lenet/10", "resnet20/0", "resnet18-cifar/0"],
        "samples": 100,
        "heads": 100,
        "batches": 10,
        "images": ["connected", "convolutional", "peeling", "matching"],
        "steps": 40,
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they are shown."""
        # Labels of batches are counted in LeNet-5, whatever the networks of single samples, by auxiliary samples that
        # are drawn from all classes: of twenty a class none is left out.
        counted = Fixed("lenet5", self.dataset, classes=OTHERS // 20)
        return [Sees(one.network, self.dataset) for one in self.networks] + [counted]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return (
        f"{len(parameters.precisions)} precisions, {parameters.samples} single samples a cell, "
        f"{parameters.batches} batches a cell, {data.title(parameters.dataset)}"
    )


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets and texts that this study reads."""
    return [parameters.dataset, TEXT]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one attack on clients of one precision each."""
    common = {"dataset": parameters.dataset, "seed": parameters.seed}
    common |= {"device": studies.resolve_device(parameters.device)}
    found: list[dict[str, Any]] = []
    for precision in parameters.precisions:
        own = {"precision": precision} | common
        found += [{"part": "labels", "samples": parameters.samples} | dict(one) | own for one in parameters.networks]
        found.append({"part": "heads", "heads": parameters.heads} | own)
        many = {"batches": parameters.batches} | own
        found += [{"part": part} | many for part in ("batches", "counts", "sentences")]
        for attack in parameters.images:
            steps = {"matching": parameters.steps, "peeling": 10 * parameters.steps}.get(attack, 0)
            found.append({"part": "images", "attack": attack, "steps": steps} | many)
    return found


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Attack clients of one precision; a row a setting and attacker, or a row a batch of images."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]] = {
        "labels": _labels,
        "heads": _heads,
        "batches": _batches,
        "counts": _counts,
        "sentences": _sentences,
        "images": _images,
    }
    return parts[part](**inputs)


def attackers(precision: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the attackers of a client of this precision, and what each tells an attack."""
    yield "not told", {}
    if precision not in ("float32", "float64"):
        yield "told", {"precision": precision}


def sent(model: nn.Module, inputs: Tensor, labels: Tensor, precision: str) -> Leak:
    """Return what a client of this precision sends; one of float64 has a model of float64."""
    if precision != "float64":
        return observe(model, inputs, labels, precision=precision)
    return observe(model.double(), inputs.double(), labels.double())


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


def _labels(
    network: str, epochs: int, samples: int, precision: str, dataset: str, seed: int, device: str
) -> list[dict[str, Any]]:
    classes = data.load(dataset, "test").classes
    if epochs:
        recipe = training.Recipe(network=network, dataset=dataset, epochs=epochs, labels="smoothing", seed=seed)
        model = training.train(recipe, device=device).model.to(device)
    else:
        channels, side = data.shape(dataset)
        model = models.build(network, classes=classes, in_channels=channels, image_size=side, seed=seed).to(device)
    rows = []
    for labels in KINDS:
        images, soft = _private(dataset, labels, samples, classes, seed)
        rows += _attacked_labels(model, images.to(device), soft.to(device), labels, precision)
    return rows


def _attacked_labels(
    model: nn.Module, inputs: Tensor, soft: Tensor, labels: str, precision: str
) -> list[dict[str, Any]]:
    """Return what three attackers know of the labels of single samples, a row an attacker."""
    each = zip(inputs.split(1), soft.split(1), strict=True)
    leaks = [sent(model, one, label, precision) for one, label in each]
    gradients = torch.stack([leak.weight_gradient for leak in leaks])
    errors = [one for leak in leaks if (one := leak.bias_gradient) is not None]
    bias: dict[str, Any] = {"bias": leaks[0].bias, "bias_gradient": torch.stack(errors)} if errors else {}
    classes, rows = soft.argmax(dim=1), []
    for attacker, knows in [*attackers(precision), ("noise", {"noise": None})]:
        found = recover_soft_labels(gradients, leaks[0].weight, prior=labels, **bias, **knows)
        error = (found.labels - soft.to(found.labels)).abs().sum(dim=1)
        unique, failed = found.where("unique"), found.where("failed")
        known = error[~failed]
        rows.append(
            {"labels": labels, "attacker": attacker, "cases": len(soft)}
            | {name: int(found.where(name).sum()) for name in ("unique", "ambiguous", "failed")}
            | {
                "unique_share": 100 * float(unique.double().mean()),
                "wrong": int((unique & ~(error <= KNOWN)).sum()),
                "right": 100 * int((found.labels.argmax(dim=1) == classes)[~failed].sum()) / len(soft),
                "error": float(known.median()) if len(known) else math.nan,
                "largest": float(known.max()) if len(known) else math.nan,
            }
        )
    return rows


def _heads(heads: int, precision: str, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    """Attack single samples of random last layers, from flat logits to saturated ones, which no dataset has."""
    generator, rows = torch.Generator().manual_seed(seed), []
    low, high = (math.log(spread) for spread in SPREADS)
    for number in range(heads):
        draw = torch.rand(4, generator=generator).tolist()
        labels = KINDS[number % len(KINDS)]
        sizes = [size for size in HEADS if size > 3 or labels != "mixup"]
        classes, features = sizes[int(draw[0] * len(sizes))], FEATURES[int(draw[1] * len(FEATURES))]
        spread = math.exp(low + (high - low) * draw[2])
        weight, hidden = random_layer(classes, features, OWN, spread, generator)
        soft = soft_labels(labels, torch.randint(classes, (OWN,), generator=generator), classes, generator)
        model = nn.Linear(features, classes, bias=draw[3] < 0.3, device=device)
        with torch.no_grad():
            model.weight.copy_(weight)
        own = _attacked_labels(model, hidden.float().to(device), soft.to(device), labels, precision)
        rows += [{"classes": classes, "features": features, "spread": spread} | row for row in own]
    return rows


def _batches(precision: str, batches: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    channels, side = data.shape(dataset)
    model = models.build("resnet20", classes=CLASSES, in_channels=channels, image_size=side, seed=seed).to(device)
    rows = []
    for size in SIZES:
        for labels in ("smoothing", "onehot"):
            tried: dict[str, list[dict[str, Any]]] = {}
            for number in range(batches):
                images, soft = _private(dataset, labels, size, CLASSES, seed + 1000 * size + number)
                leak = sent(model, images.to(device), soft.to(device), precision)
                for attacker, knows in attackers(precision):
                    found = recover_batch(
                        leak.weight_gradient,
                        leak.weight,
                        batch_size=size,
                        prior=labels,
                        bias=leak.bias,
                        bias_gradient=leak.bias_gradient,
                        **knows,
                    )
                    error = torch.cdist(found.labels.cpu().nan_to_num(nan=9.0), soft, p=1).amin(dim=1)
                    right = [int(one) for one in found.labels.cpu().nan_to_num(nan=-1.0).argmax(dim=1)[error < 1]]
                    tried.setdefault(attacker, []).append(
                        {
                            "status": found.status,
                            "wrong": found.status == "unique" and not bool((error <= KNOWN).all()),
                            "right": len(right) / size,
                            "error": float(error.max()),
                        }
                    )
            rows += [
                {"size": size, "labels": labels, "attacker": attacker} | _summed(own) for attacker, own in tried.items()
            ]
    return rows


def _summed(own: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how often each status was said, how often wrongly, and what was right on average."""
    statuses = [one["status"] for one in own]
    known = torch.tensor([one["error"] for one in own if one["status"] != "failed"], dtype=torch.float64)
    return {
        "cases": len(own),
        **{name: statuses.count(name) for name in ("unique", "ambiguous", "failed")},
        "wrong": sum(one["wrong"] for one in own),
        "right": 100 * sum(one["right"] for one in own) / len(own),
        "error": float(known.median()) if len(known) else math.nan,
    }


def _counts(precision: str, batches: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    private, public = data.load(dataset, "test"), data.load(dataset, "train")
    channels, side = data.shape(dataset)
    model = models.build(
        "lenet5",
        classes=private.classes,
        in_channels=channels,
        image_size=side,
        activation="relu",
        init="torch",
        seed=seed,
    ).to(device)
    model = model.double() if precision == "float64" else model
    generator = torch.Generator().manual_seed(seed)
    others = torch.randperm(len(public), generator=generator)[:OTHERS]
    given = data.normalise(public.images[others]).to(next(model.parameters())), public.labels[others].to(device)
    shares: dict[str, list[float]] = {}
    for _ in range(batches):
        chosen = torch.randint(len(private), (COUNTED,), generator=generator)
        classes = private.labels[chosen]
        hot = one_hot(classes, private.classes)
        leak = sent(model, data.normalise(private.images[chosen]).to(device), hot.to(device), precision)
        truth = classes.bincount(minlength=private.classes)[None]
        for method in COUNTS:
            counts = count_labels(leak, method, auxiliary=given if method == "posterior" else None)
            shares.setdefault(method, []).append(100 * float(metrics.count_overlap(counts.cpu()[None], truth)[0]))
    rows = []
    for method, own in shares.items():
        values = torch.tensor(own, dtype=torch.float64)
        spread = float(values.std()) if len(values) > 1 else 0.0
        rows.append({"method": method, "batches": len(own), "share": float(values.mean()), "spread": spread})
    return rows


def _sentences(precision: str, batches: int, dataset: str, seed: int, device: str) -> list[dict[str, Any]]:
    rows = []
    for kind in LANGUAGE:
        model = LanguageRecipe(text=TEXT, kind=kind, width=64, layers=1, epochs=1, seed=seed).build().to(device)
        if precision == "float64":
            model = model.double()
        tried = []
        for number in range(batches):
            private = private_of(TEXT, 2, number, seed)
            leak = observe(model, *batch_of(private, device=device), precision=precision)
            read = judge(read_sentences(leak), private)
            tried.append(
                {"status": read["status"], "wrong": read["wrongly_sure"], "right": read["right"], "error": math.nan}
            )
        rows.append({"network": kind, "attacker": "not told"} | _summed(tried))
    return rows


def _images(
    attack: str, steps: int, precision: str, batches: int, dataset: str, seed: int, device: str
) -> list[dict[str, Any]]:
    """Restore images of one-hot labels, of which an attacker in any precision can be certain."""
    rows = []
    for size in {"connected": (1, 4), "peeling": (1, 2)}.get(attack, (1,)):
        for number in range(batches):
            images, soft = _private(dataset, "onehot", size, CLASSES, seed + 1000 * size + number)
            images = F.adaptive_avg_pool2d(images, FEW) if attack == "peeling" else images
            model = _attacked(attack, images, seed + number).to(device)
            leak = sent(model, images.to(device), soft.to(device), precision)
            for attacker, knows in attackers(precision):
                if attack == "matching" and attacker == "told":
                    continue
                found, status, vouched = _restored(attack, leak, steps, seed, knows)
                row = {"size": size, "batch": number, "attacker": attacker, "cases": 1, "status": status}
                rows.append(row | _measured(found.cpu().double().reshape(images.shape), images, status, vouched))
    return rows


def _attacked(attack: str, images: Tensor, seed: int) -> nn.Module:
    name = {"connected": "fcn4", "peeling": "resnet18-cifar"}.get(attack, "lenet")
    channels, side = images.shape[1], images.shape[-1]
    return models.build(name, classes=CLASSES, in_channels=channels, image_size=side, seed=seed)


def _restored(
    attack: str, leak: Leak, steps: int, seed: int, knows: dict[str, Any]
) -> tuple[Tensor, str, float | None]:
    """Return the images, what the attack says of them, and the relative error that it vouches for."""
    if attack == "peeling":
        peeled = peel(leak, prior="onehot", steps=steps, seed=seed, **knows)
        # An image that no map certifies is shown all the same: it is the nearest one.
        worst = float(peeled.errors.max())
        return peeled.nearest, peeled.status, worst if math.isfinite(worst) else None
    if attack == "matching":
        matched = match(leak, "idlg", optimizer=LBFGS(steps=steps), seed=seed)
        return matched.images, "found", None
    found: Inversion
    if attack == "connected":
        found = trace_fully_connected(leak, prior="onehot", **knows)
    else:
        found = trace_convolutional(leak, prior="onehot", **knows)
    return found.inputs, found.status, found.layers[-1].claimed if found.layers else None


def _measured(found: Tensor, inputs: Tensor, status: str, vouched: float | None) -> dict[str, Any]:
    """Return how near images are to the truth in their best order, and whether a certificate is wrong."""
    true = inputs.double()
    order = metrics.match_batch(found.nan_to_num(nan=0.0), true)
    lost = ~found.isfinite().flatten(1).all(dim=1)
    psnr = metrics.psnr(data.denormalise(found[order]), data.denormalise(true))
    psnr = psnr.where(~lost[order], -math.inf)
    error = (found[order] - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)
    worst = float(error.max()) if not lost.any() else math.nan
    certain = status in ("exact", "unique")
    return {
        "psnr": float(psnr.mean()),
        "least": float(psnr.min()),
        "lost": int(lost.sum()),
        "error": worst,
        "vouched": vouched,
        "certain": certain,
        "wrong": int(certain and not worst <= HONEST * max(vouched or 0.0, VOUCHED)),
    }


# ------------------------------------------------------------------------------------------------- tables and figures
IMAGES = {
    "connected": "fully connected network, closed form",
    "convolutional": "LeNet, closed form",
    "peeling": "ResNet18, peeling",
    "matching": "LeNet, gradient matching",
}


def precisions_table() -> pd.DataFrame:
    """Return what each precision rounds, and by how much."""
    lines = []
    for name, one in PRECISIONS.items():
        lines.append(
            {
                "precision": name,
                "Linear layers": f"{one.products:.0e}",
                "convolutions": f"{one.convolutions:.0e}",
                "smallest gradient": f"{one.least:.0e}" if one.least else "–",
            }
        )
    return pd.DataFrame(lines)


def _parts(record: Record, part: str) -> pd.DataFrame:
    frame = record.part(part)
    order = {name: place for place, name in enumerate(record.parameters["precisions"])}
    return frame.sort_values("precision", key=lambda column: column.map(order), kind="stable")


def labels_table(record: Record, part: str = "labels") -> pd.DataFrame:
    """Return what is known of single labels, a line a precision and attacker, all networks and kinds together.

    `part`: "labels" of images, or "heads", random last layers.
    """
    lines = []
    for (precision, attacker), own in _parts(record, part).groupby(["precision", "attacker"], sort=False):
        lines.append(
            {
                "precision": precision,
                "attacker": ATTACKERS[str(attacker)],
                **_status_cells(own),
                "class right": f"{own['right'].mean():.0f} %",
                "median label error (L1)": _scientific(own["error"].median()),
                "largest": _scientific(own["largest"].max()),
                "wrong certificates": f"{own['wrong'].sum():.0f}",
            }
        )
    return pd.DataFrame(lines)


def batches_table(record: Record) -> pd.DataFrame:
    """Return what is known of a batch's labels and of sentences, a line a precision and attacker."""
    lines = []
    for precision in record.parameters["precisions"]:
        for part, what in (("batches", "labels of a batch"), ("sentences", "sentences")):
            frame = record.part(part)
            for attacker, own in frame[frame["precision"] == precision].groupby("attacker", sort=False):
                lines.append(
                    {
                        "precision": precision,
                        "attack": what,
                        "attacker": ATTACKERS[str(attacker)],
                        **_status_cells(own),
                        "right": f"{own['right'].mean():.0f} %",
                        "wrong certificates": f"{own['wrong'].sum():.0f}",
                    }
                )
    return pd.DataFrame(lines)


def counts_table(record: Record) -> pd.DataFrame:
    """Return the mean share of labels that is counted right, a line a precision, a column an attack."""
    frame = _parts(record, "counts")
    lines = []
    for precision, own in frame.groupby("precision", sort=False):
        line = {"precision": precision, "batches": f"{own['batches'].iloc[0]:.0f}"}
        cells = {
            str(row["method"]): f"{row['share']:.1f} ± {row['spread']:.1f}" for row in own.to_dict(orient="records")
        }
        lines.append(line | cells)
    return pd.DataFrame(lines)


def images_table(record: Record) -> pd.DataFrame:
    """Return how well images come back, a line an attack, batch size, precision and attacker."""
    lines = []
    keys = ["attack", "size", "precision", "attacker"]
    for (attack, size, precision, attacker), own in _parts(record, "images").groupby(keys, sort=False):
        whole = own[own["lost"] == 0]
        lines.append(
            {
                "attack": IMAGES[str(attack)],
                "B": f"{size:.0f}",
                "precision": precision,
                "attacker": ATTACKERS[str(attacker)],
                "n": f"{len(own)}",
                "certified": f"{own['certain'].sum():.0f}",
                "restored": f"{len(whole)}",
                "median PSNR (dB)": f"{whole['psnr'].median():.1f}" if len(whole) else "–",
                "least PSNR (dB)": f"{whole['least'].min():.1f}" if len(whole) else "–",
                "wrong certificates": f"{own['wrong'].sum():.0f}",
            }
        )
    frame = pd.DataFrame(lines)
    return frame.sort_values(["attack", "B"], kind="stable").reset_index(drop=True)


def _status_cells(rows: pd.DataFrame) -> dict[str, str]:
    """Return the number of cases of some rows, and the share of them that has each status."""
    cases = rows["cases"].sum()
    shares = {name: f"{100 * rows[name].sum() / cases:.0f} %" for name in ("unique", "ambiguous", "failed")}
    return {"n": f"{cases:.0f}"} | shares


def _scientific(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0e}"


def figure_digits(record: Record) -> Figure:
    """Draw the error of single labels, and the PSNR of images, against the precision of the client."""
    names = list(record.parameters["precisions"])
    figure, axes = figures.panels(1, 2, height=3.6)
    left, right = axes[0]
    frame = record.part("labels")
    for place, attacker in enumerate(("told", "not told")):
        own = frame[(frame["attacker"] == attacker) & frame["error"].notna()]
        middle = own.groupby("precision")["error"].median().reindex(names).clip(lower=1e-17)
        left.plot(names, middle, marker="os"[place], linestyle=figures.DASHES[place], label=ATTACKERS[attacker])
    left.axhline(KNOWN, color=figures.TRUTH, linewidth=1.0, linestyle=(0, (4, 2)))
    left.set(yscale="log", ylabel="median label error (L1)", title="labels of single samples")
    left.legend(fontsize=8)
    frame = record.part("images")
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
    names = list(record.parameters["precisions"])
    frame = record.part("labels")
    figure, axes = figures.panels(1, 2, height=3.2, sharey=True)
    for axis, attacker in zip(axes[0], ("told", "not told"), strict=True):
        # Where nothing is coarser than the gradients, there is nothing to be told.
        own = frame[frame["attacker"] == attacker]
        plain = frame[(frame["attacker"] == "not told") & frame["precision"].isin(("float32", "float64"))]
        own = pd.concat([own, plain]) if attacker == "told" else own
        sums = own.groupby("precision")[["unique", "ambiguous", "failed", "cases"]].sum().reindex(names)
        bottom = torch.zeros(len(names), dtype=torch.float64).numpy()
        for place, status in enumerate(("unique", "ambiguous", "failed")):
            share = (100 * sums[status] / sums["cases"]).to_numpy()
            axis.bar(names, share, bottom=bottom, label=status, color=figures.COLOURS[2 * place])
            bottom = bottom + share
        axis.set(title=f"attacker {ATTACKERS[attacker]}", ylim=(0, 100))
        axis.tick_params(axis="x", rotation=30)
    axes[0][0].set_ylabel("share of single labels (%)")
    figures.legend_below(figure, 3)
    return figure
