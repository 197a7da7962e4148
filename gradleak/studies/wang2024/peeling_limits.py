"""How far peeling goes

Beyond wang2024, section 4.2: peeling of trained networks, larger batches, other networks and defended gradients.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data, defenses, metrics, models, studies
from gradleak.errors import MissingData
from gradleak.images import Adam, Peeled, match, peel, restore_batches
from gradleak.images.gradinversion.settings import preset
from gradleak.images.peeling.attack import counts_of
from gradleak.images.peeling.network import Network
from gradleak.leak import Leak, head_inputs, observe
from gradleak.models import training
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.peeled import BACK, decibels, judged, layers_of, short
from gradleak.studies.shared.samples import DTYPES

PLACE = "Beyond section 4.2"
# Of an exact image, a PSNR in dB says how large the rounding errors are, and the ratio compares these with what the
# attack claims. `unsure` is 1 − p, which float32 rounds as it rounds p.
COLUMNS = {
    "least": kinds.rounding(decibels=True),
    "sure": kinds.rounding(decibels=True),
    "other": kinds.rounding(decibels=True),
    "images_ratio": kinds.rounding(near=10.0),
    "unsure": kinds.measured(relative=1e-5),
}
SMALLEST: dict[str, Any] = {}
NETWORK = "resnet18-cifar"
SIDE, CLASSES = 32, 100
# Pixels a side where many batches are peeled: no convolution has more positions than equations there.
FEW = 16
# What the network is trained on, and how; an epoch is all of that once.
LEARNS: dict[str, Any] = {"dataset": "flowers17", "batch_size": 32, "learning_rate": 1e-3}
# A defence and its levels; what the attacker who is aware of it tells `peel`.
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-9, 1e-8, 1e-7),
    "clip-share": (0.5,),
    "prune": (0.01, 0.1),
    "local": (1e-6, 1e-3),
}
NAMES = {
    "resnet18-cifar": "ResNet18, CIFAR form",
    "resnet18": "ResNet18, 7×7 stem",
    "resnet20": "ResNet20",
    "resnet50-cifar": "ResNet50, CIFAR form",
    "lenet": "LeNet, sigmoid",
    "efficientnet-lite0": "EfficientNet-Lite0",
}
COUNTED = range(1, 17)


class Stage(Form):
    """The network trained on images of a size, and batches of its own images."""

    side: Whole = Field(ge=8)
    epochs: Whole = Field(ge=1)
    size: Whole = Field(ge=1)
    batches: Whole = Field(1, ge=1)


class Race(Form):
    """A batch that other attacks are given too, and for how many steps."""

    size: Whole = Field(ge=1)
    steps: Whole = Field(ge=1)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    trained: list[Stage] = Field(
        [], validate_default=True, description="trained networks, as pixels a side/epochs/batch size/batches"
    )
    large: list[int] = Field([], description="batch sizes of an untrained network, one batch each, small images")
    confident: list[float] = Field([1e-1], description="1 − p of a sample beside one that the network has wrong")
    precisions: list[str] = Field(["float32"], description="what those gradients are computed in")
    defenses: list[str] = Field(["clip-share"], description="defences, at the page's levels")
    repeats: int = Field(1, ge=1, le=1000, description="batches of one that are defended")
    networks: list[str] = Field(["resnet20"], description="networks that are peeled without a search in front")
    sizes: list[int] = Field([1], description="their batch sizes")
    rivals: list[Race] = Field(
        [], validate_default=True, description="batches for other attacks too, as batch size/steps"
    )
    steps: int = Field(50, ge=1, le=100_000, description="steps of the search in front of the last layer reached")
    dataset: str = Field("photos", description="private images, test split; trained networks see Flowers-17")

    paper: ClassVar[dict[str, Any]] = {
        "trained": [
            *(f"16/{epochs}/{form}" for epochs in (1, 5, 20) for form in ("1/3", "4/1")),
            "32/5/1/1",
        ],
        "large": [8],
        "confident": [1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10],
        "precisions": list(DTYPES),
        "defenses": list(DEFENSES),
        "repeats": 1,
        "networks": list(NAMES),
        "sizes": [1, 2, 4, 8],
        "rivals": ["4/100", "1/1000"],
        "steps": 1200,
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees(NETWORK, self.dataset)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"single batches of 1 to {max([1, *parameters.large])}, {data.title(parameters.dataset)} and Flowers-17"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset] + ([str(LEARNS["dataset"])] if parameters.trained else [])


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a batch each, or a defence at one level."""
    common = {"seed": parameters.seed, "device": studies.resolve_device(parameters.device)}
    shown = common | {"dataset": parameters.dataset}
    steps = {"steps": parameters.steps}
    found = [
        {"part": "trained", "stage": str(stage), "batch": batch} | steps | common
        for stage in parameters.trained
        for batch in range(stage.batches)
    ]
    found += [{"part": "large", "size": size} | steps | shown for size in parameters.large]
    found += [
        {"part": "confident", "level": float(level), "dtype": dtype} | shown
        for dtype in parameters.precisions
        for level in parameters.confident
    ]
    found += [
        {"part": "defended", "defense": name, "level": float(level), "repeats": parameters.repeats} | shown
        for name in parameters.defenses
        for level in DEFENSES[name]
    ]
    found += [
        {"part": "reach", "network": name, "size": size} | shown
        for name in parameters.networks
        for size in parameters.sizes
    ]
    return found + [{"part": "rival", "size": race.size, "steps": race.steps} | shown for race in parameters.rivals]


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Peel what a part is about; a row a batch, and one a layer that was reached."""
    return PARTS[part](**inputs)


def _drawn(dataset: str, size: int, seed: int, side: int = SIDE) -> Tensor:
    private = data.load(dataset, "test")
    generator = torch.Generator().manual_seed(seed)
    images = private.images[torch.randperm(len(private), generator=generator)[:size]].double()
    return F.adaptive_avg_pool2d(images, side)


def _network(images: Tensor, seed: int, name: str = NETWORK) -> nn.Module:
    if name == "efficientnet-lite0":
        return models.plain_lite0()
    channels, side = images.shape[1], images.shape[-1]
    return models.build(
        name, classes=CLASSES, bias=False, init="torch", in_channels=channels, image_size=side, seed=seed
    )


def _sent(model: nn.Module, images: Tensor, labels: Tensor, device: str, dtype: str = "float32", **told: Any) -> Leak:
    inputs = data.normalise(images).to(device, DTYPES[dtype])
    return observe(model.to(device, DTYPES[dtype]), inputs, labels.to(device), **told)


def _classes(size: int, seed: int) -> Tensor:
    return torch.randint(CLASSES, (size,), generator=torch.Generator().manual_seed(seed))


def _rows(leak: Leak, found: Peeled, images: Tensor, **facts: Any) -> list[dict[str, Any]]:
    inputs = data.normalise(images).to(found.images.device)
    layers = layers_of(leak.model, found, inputs)
    deepest = next((layer["layer"] for layer in reversed(layers) if not layer["reason"]), "")
    return [facts | judged(found, images, inputs) | {"deepest": deepest}, *(facts | layer for layer in layers)]


def _timed(leak: Leak, steps: int) -> tuple[Peeled, float]:
    cpu = time.process_time()
    found = peel(leak, steps=steps)
    return found, time.process_time() - cpu


def _trained(stage: str, batch: int, steps: int, seed: int, device: str) -> list[dict[str, Any]]:
    own = Stage.of(stage)
    recipe = training.Recipe(network=NETWORK, bias=False, image_size=own.side, epochs=own.epochs, seed=seed, **LEARNS)
    trained = training.train(recipe, device=device)
    private = data.load(recipe.dataset, "test", size=own.side)
    chosen = torch.randperm(len(private), generator=torch.Generator().manual_seed(seed + batch))[: own.size]
    images, labels = private.images[chosen].double(), private.labels[chosen]
    leak = _sent(trained.model, images, labels, device)
    with torch.no_grad():
        logits = trained.model(data.normalise(images).to(device).float()).double().cpu()
    unsure = _unsure(logits, labels)
    found, seconds = _timed(leak, steps)
    facts = {"cpu_seconds": seconds, "accuracy": trained.accuracy, "loss": trained.losses[-1]}
    facts |= {"side": own.side, "epochs": own.epochs, "size": own.size}
    facts |= {"surest": float(unsure.min()), "least_sure": float(unsure.max())}
    first, *layers = _rows(leak, found, images)
    return [first | facts, *layers]


def _unsure(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 − p of the labels (B,), without taking p from one."""
    rest = (logits - logits.gather(1, labels[:, None])).scatter(1, labels[:, None], -torch.inf)
    return rest.logsumexp(dim=1).sigmoid()


def _large(size: int, steps: int, seed: int, device: str, dataset: str) -> list[dict[str, Any]]:
    images = _drawn(dataset, size, seed, FEW)
    leak = _sent(_network(images, seed), images, _classes(size, seed), device)
    found, seconds = _timed(leak, steps)
    first, *layers = _rows(leak, found, images)
    return [first | {"cpu_seconds": seconds}, *layers]


def _confident(level: float, dtype: str, seed: int, device: str, dataset: str) -> list[dict[str, Any]]:
    """Peel a sample that the network is nearly sure of, 1 − p = `level`, beside one that it is not."""
    images = _drawn(dataset, 2, seed, FEW)
    model = _network(images, seed).double()
    labels = _classes(2, seed)
    with torch.no_grad():
        _sure_of(model, images, int(labels[0]), level)
        model.to(DTYPES[dtype])
        unsure = _unsure(model(data.normalise(images).to(DTYPES[dtype])).double(), labels)
    leak = _sent(model, images, labels, device, dtype)
    found = peel(leak)
    restored = data.denormalise(found.images.cpu())
    own = metrics.psnr(restored[metrics.match_batch(restored, images)], images).nan_to_num(-float("inf"))
    first, *layers = _rows(leak, found, images)
    return [first | {"sure": float(own[0]), "other": float(own[1]), "unsure": float(unsure[0])}, *layers]


def _sure_of(model: nn.Module, images: Tensor, label: int, level: float) -> None:
    """Add to the last layer what makes the network sure of the first image, and changes nothing for the second."""
    features, logits = head_inputs(model, data.normalise(images))
    own, other = features
    apart = own - (own @ other) / (other @ other) * other
    weight = next(layer for layer in reversed([*model.modules()]) if isinstance(layer, nn.Linear)).weight
    others = logits[0][torch.arange(len(logits[0])) != label].logsumexp(dim=0)
    wanted = others + math.log((1 - level) / level)
    weight[label] += (wanted - logits[0, label]) * apart / (apart @ own)


def _defended(defense: str, level: float, repeats: int, seed: int, device: str, dataset: str) -> list[dict[str, Any]]:
    rows = []
    for batch in range(repeats):
        own = seed + batch
        if defense == "local":
            rows += _local(level, batch, own, device, dataset)
            continue
        images = _drawn(dataset, 1, own, FEW)
        clean = _sent(_network(images, own), images, _classes(1, own), device)
        change = defenses.named(f"{defense}/{level}", generator=torch.Generator().manual_seed(own))
        leak = replace(clean, gradients=change(clean.gradients))
        aware: dict[str, dict[str, Any]] = {
            "gaussian": {"noise": level},
            "clip-share": {"scale": None},
            "prune": {"noise": None},
        }
        attackers: tuple[tuple[str, dict[str, Any]], ...] = (("unaware", {}), ("aware", aware[defense]))
        for attacker, told in attackers:
            rows += _rows(leak, peel(leak, **told), images, attacker=attacker, batch=batch)
    return rows


def _local(rate: float, batch: int, seed: int, device: str, dataset: str) -> list[dict[str, Any]]:
    """Peel what two steps of one sample each send, as if it were one step of two."""
    images = _drawn(dataset, 2, seed, FEW)
    sent = _sent(_network(images, seed), images, _classes(2, seed), device, local_steps=2, rate=rate)
    halved = {name: value / 2 for name, value in sent.gradients.items()}
    leak = replace(sent, gradients=halved, batch_size=2, local_steps=1)
    return _rows(leak, peel(leak), images, attacker="as one step", batch=batch)


def _reach(network: str, size: int, seed: int, device: str, dataset: str) -> list[dict[str, Any]]:
    """Go down as far as equations reach; the images in front of that are not searched for."""
    images = _drawn(dataset, size, seed)
    model = _network(images, seed, network)
    with torch.no_grad():
        classes = model(data.normalise(images).float()).shape[1]
    leak = _sent(model, images, torch.randperm(classes, generator=torch.Generator().manual_seed(seed))[:size], device)
    cpu = time.process_time()
    found = peel(leak, steps=0)
    seconds = time.process_time() - cpu
    first, *layers = _rows(leak, found, images)
    return [first | {"cpu_seconds": seconds}, *layers]


def _rival(size: int, steps: int, seed: int, device: str, dataset: str) -> list[dict[str, Any]]:
    """Give matching and GradInversion the batch that peeling gets, and so many steps."""
    images = _drawn(dataset, size, seed, FEW)
    leak = _sent(_network(images, seed), images, _classes(size, seed), device)
    settings = replace(preset("gradinversion+pyramid"), steps=steps)
    rows, own = list[dict[str, Any]](), 0.0
    for attack in ("peeling", "GradInversion", "matching"):
        cpu = time.process_time()
        if attack == "peeling":
            inputs = peel(leak, steps=1200).images
        elif attack == "GradInversion":
            inputs = restore_batches(leak, "recovered", settings=settings, seed=seed).images
        else:
            inputs = match(leak, distance="cosine", optimizer=Adam(steps=steps, signed=True), seed=seed).images
        seconds = time.process_time() - cpu
        restored = data.denormalise(inputs.flatten(0, -4).cpu().double())
        restored = restored[metrics.match_batch(restored, images)]
        psnr = metrics.psnr(restored, images).nan_to_num(-float("inf"))
        row = {"attack": attack, "cpu_seconds": seconds, "psnr": float(psnr.mean()), "least": float(psnr.min())}
        own = own or seconds
        rows.append(row | {"times": seconds / own, "picture": packed(restored, size)})
    return [{"attack": "private", "picture": packed(images, size)}, *rows]


PARTS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "trained": _trained,
    "large": _large,
    "confident": _confident,
    "defended": _defended,
    "reach": _reach,
    "rival": _rival,
}


def batch_rows(record: Record, part: str) -> pd.DataFrame:
    """Return a part's rows of batches."""
    frame = record.part(part)
    return frame[frame["what"] == "batch"]


def trained_table(record: Record) -> pd.DataFrame:
    """Return how deep batches of a trained network were peeled, a line a stage and batch size."""
    lines = []
    for (side, epochs, size), group in batch_rows(record, "trained").groupby(["side", "epochs", "size"]):
        least = group.sort_values("layers").iloc[0]
        lines.append(
            {
                "pixels, epochs": f"{side:.0f}, {epochs:.0f}",
                "right": f"{100 * group['accuracy'].mean():.0f} %",
                "B": f"{size:.0f}",
                "n": len(group),
                "1 − p": f"{group['surest'].min():.2g}",
                "unique": f"{(group['status'] == 'unique').sum()}",
                "above 60 dB": f"{group['back'].sum():.0f}",
                "wrong": f"{group['silently'].sum():.0f}",
                "least dB": decibels(group["least"].min()),
                "layers": f"{least['layers']:.0f}",
                "CPU s": f"{group['cpu_seconds'].median():.0f}",
            }
        )
    return pd.DataFrame(lines)


def confident_table(record: Record) -> pd.DataFrame:
    """Return from where on a sample that the network is sure of sinks below the rounding of the one beside it."""
    frame = batch_rows(record, "confident")
    lines = []
    for level, group in frame.groupby("level", sort=False):
        line: dict[str, Any] = {"1 − p": f"{level:.0e}"}
        for dtype, own in group.groupby("dtype", sort=False):
            row = own.iloc[0]
            line |= {f"{dtype} says": row["status"], f"{dtype}, dB": decibels(row["sure"])}
            line[f"{dtype}, beside it"] = decibels(row["other"])
        lines.append(line)
    return pd.DataFrame(lines)


def defended_table(record: Record) -> pd.DataFrame:
    """Return what defences leave, a line a defence, level and attacker."""
    frame = batch_rows(record, "defended")
    lines = []
    for (defense, level, attacker), group in frame.groupby(["defense", "level", "attacker"], sort=False):
        shown = f"local steps, rate {level:g}" if defense == "local" else defenses.shown(f"{defense}/{level}")
        lines.append(
            {
                "defence": shown,
                "attacker": attacker,
                "n": len(group),
                "layers": f"{group['layers'].min():.0f}",
                "unique": f"{(group['status'] == 'unique').sum()}",
                "above 60 dB": f"{group['back'].sum():.0f}",
                "wrong": f"{group['silently'].sum():.0f}",
                "least dB": decibels(group["least"].min()),
            }
        )
    return pd.DataFrame(lines)


def rival_table(record: Record) -> pd.DataFrame:
    """Return what three attacks make of the same batches, and in how many times peeling's time."""
    frame = record.part("rival")
    frame = frame[frame["psnr"].notna()]
    return pd.DataFrame(
        [
            {
                "B": f"{row['size']:.0f}",
                "attack": row["attack"],
                "steps": "–" if row["attack"] == "peeling" else f"{row['steps']:.0f}",
                "CPU s": f"{row['cpu_seconds']:.0f}",
                "of peeling's": f"{row['times']:.1f}",
                "mean dB": decibels(row["psnr"]),
                "least dB": decibels(row["least"]),
            }
            for _, row in frame.iterrows()
        ]
    )


def reach_table(record: Record) -> pd.DataFrame:
    """Return how far down each network was peeled, and what ended it."""
    lines = []
    frame = record.part("reach")
    for (network, size), group in frame.groupby(["network", "size"], sort=False):
        batch, layers = group[group["what"] == "batch"].iloc[0], group[(group["what"] == "layer")]
        own = layers[layers["reason"] == ""]
        stops = layers.loc[layers["reason"] != "", "reason"]
        searched = "maps were not matched" in str(batch["reason"])
        ends = stops.iloc[0] if len(stops) else f"search from {batch['matched']}" if searched else batch["reason"]
        lines.append(
            {
                "network": NAMES[str(network)],
                "B": f"{size:.0f}",
                "layers": f"{len(own)}",
                "claimed": f"{own['claimed'].max():.0e}" if len(own) else "–",
                "true": f"{own['off'].max():.0e}" if len(own) else "–",
                "then": ends,
            }
        )
    return pd.DataFrame(lines)


def large_table(record: Record) -> pd.DataFrame:
    """Return the batches too large for the count at full size, peeled to their images at half of it."""
    return pd.DataFrame(
        [
            {
                "B": f"{row['size']:.0f}",
                "says": row["status"],
                "layers": f"{row['layers']:.0f}",
                "deepest": short(str(row["deepest"])) or "–",
                "least dB": decibels(row["least"]),
                "wrong": f"{row['silently']:.0f}",
                "CPU s": f"{row['cpu_seconds']:.0f}",
            }
            for _, row in batch_rows(record, "large").iterrows()
        ]
    )


def counted(network: str) -> pd.DataFrame:
    """Return how many of a network's layers the count lets pass before the first that gives up, and which that is."""
    images = torch.zeros(1, 3, SIDE, SIDE)
    traced, lines = Network(_network(images, 0, network).to("meta"), (3, SIDE, SIDE)), []
    for size in COUNTED:
        counts = counts_of(traced, size)
        stops = next((n for n, count in enumerate(counts) if count.reason), len(counts))
        last = counts[stops] if stops < len(counts) else None
        row = {"size": size, "passes": stops, "layers": sum(count.unknowns > 0 for count in counts)}
        lines.append(row | {"stops": last.name if last else "", "reason": last.reason if last else ""})
    return pd.DataFrame(lines)


def figure_counts(record: Record) -> Figure:
    """Draw layers against the batch size, a panel a network: what the count says, and what was reached."""
    own, names = batch_rows(record, "reach"), [name for name in NAMES if name in record.parameters["networks"]]
    figure, axes = figures.grid(len(names), 3, height=2.6)
    for axis, name in zip(axes, names, strict=True):
        found = own[own["network"] == name]
        axis.plot(found["size"], found["layers"], "o", color=figures.COLOURS[1], label="reached")
        # A trained network's count needs the network, which not everybody has installed.
        with contextlib.suppress(MissingData):
            said, dashes = counted(name), figures.DASHES[1]
            axis.step(said["size"], said["passes"], where="mid", color=figures.COLOURS[0], label="the count lets pass")
            most = said["layers"].max()
            axis.axhline(most, color=figures.TRUTH, linewidth=1.0, linestyle=dashes, label="all its layers")
        axis.set(title=NAMES[name], ylim=(-0.6, None), xlim=(0.5, COUNTED[-1] + 0.5), xlabel="batch size B")
        axis.set_ylabel("layers")
    figures.legend_below(figure, 3)
    return figure


def figure_rival(record: Record) -> Figure:
    """Draw the largest batch: private, peeled, and what the others make of it."""
    frame = record.part("rival")
    frame = frame[frame["size"] == frame["size"].max()]
    figure, axes = figures.panels(1, 1, height=4.4)
    show(axes[0][0], list(frame["picture"]), list(frame["attack"]))
    return figure


def figure_layers(record: Record) -> Figure:
    """Draw claimed errors of layers from the last to the first, a curve a level of noise that the attacker knows."""
    frame = record.part("defended")
    frame = frame[(frame["defense"] == "gaussian") & (frame["attacker"] == "aware") & (frame["what"] == "layer")]
    frame = frame[frame["reason"] == ""]
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    for index, (level, group) in enumerate(frame.groupby("level")):
        off = group.groupby("number")["off"]
        axis.plot(
            off.median().index + 1,
            off.median(),
            color=figures.COLOURS[index],
            marker="o",
            markersize=3,
            label=f"noise {level:.0e}",
        )
        axis.fill_between(off.median().index + 1, off.min(), off.max(), color=figures.COLOURS[index], alpha=0.2)
    axis.set(yscale="log", xlabel="layer, from the last", ylabel="true error of its inputs")
    figures.legend_below(figure, 4)
    return figure


def sinks(record: Record, dtype: str) -> float:
    """Return the least 1 − p at which, and above which, every sure sample came back."""
    frame = batch_rows(record, "confident")
    frame = frame[frame["dtype"] == dtype].sort_values("level", ascending=False)
    back = frame[(frame["sure"] > BACK).cummin()]
    return float(back["level"].min()) if len(back) else float("nan")
