"""A batch of images from a deep network: GradInversion, part by part

yin2021, section 4: Tables 2 and 4, Figures 2, 4 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, data, metrics, studies
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.images import GradInversion, match, observe_statistics, restore_batches
from gradleak.images.gradinversion.attack import Known, known_of
from gradleak.images.gradinversion.settings import preset
from gradleak.images.presets import preset as published
from gradleak.leak import observe
from gradleak.studies.fitting import Sees
from gradleak.studies.shared.deep_networks import NAMES, SMALL, made, pooled
from gradleak.studies.shared.matched_runs import paired
from gradleak.studies.shared.mosaics import packed, show

PLACE = "Section 4, Tables 2 and 4"
SMALLEST: dict[str, Any] = {"steps": 2, "alone_steps": 2, "group_batches": 1, "singles": 2}

OURS = preset("gradinversion+pyramid")
PLAIN = replace(OURS, levels=1, variation=0.0, statistics=0.0)
FIDELITY = replace(OURS, levels=1)
# What each row of Table 2 adds to the one before, and what goes beyond it; True: with the batch's own statistics.
ROWS: dict[str, tuple[GradInversion, bool]] = {
    "gradient": (PLAIN, False),
    "+ TV": (replace(PLAIN, variation=OURS.variation), False),
    "+ BN, running": (FIDELITY, False),
    "+ BN, exact": (FIDELITY, True),
    "+ features": (replace(FIDELITY, feature=preset("gradinversion+features").feature), True),
    "+ features, pyramid": (preset("gradinversion+features"), True),
    "as printed": (replace(preset("gradinversion"), group="none", consistency=0.0), True),
    "DeepInversion": (preset("deepinversion"), False),
}
BASELINES = ("inverting gradients", "DLG")
FLOORS = ("noise", "unrelated", "mean colour")
SEEDED = "independent seeds"
GROUPS: dict[str, GradInversion] = {
    SEEDED: FIDELITY,
    "lazy group": replace(FIDELITY, group="mean", consistency=0.01),
    "registered group": replace(FIDELITY, group="registered", consistency=0.01),
}
ALONE = ("+ BN, exact", "+ features", "+ features, pyramid", "DeepInversion")
PAIRS = (
    ("gradient", "noise"),
    ("+ TV", "gradient"),
    ("+ BN, running", "+ TV"),
    ("+ BN, exact", "+ BN, running"),
    ("+ features", "+ BN, exact"),
    ("+ features, pyramid", "+ features"),
    ("+ BN, exact", "as printed"),
    ("+ BN, exact", "inverting gradients"),
    ("inverting gradients", "DLG"),
    ("+ BN, exact", "DeepInversion"),
    ("+ features", "mean colour"),
)
AVERAGED = ", averaged"
GROUP_PAIRS = (
    ("lazy group", SEEDED),
    ("registered group", "lazy group"),
    (SEEDED + AVERAGED, SEEDED),
    ("lazy group" + AVERAGED, SEEDED + AVERAGED),
    ("registered group" + AVERAGED, SEEDED + AVERAGED),
)
ALONE_PAIRS = (
    ("+ BN, exact", "DeepInversion"),
    ("+ features", "+ BN, exact"),
    ("+ features, pyramid", "+ features"),
)
# Batches that run as one program, images side by side in a strip, and how many times LPIPS sees them enlarged.
TOGETHER, SHOWN, ENLARGED = 4, 8, 4
# The least share of `steps` that warms up, in the published schedule: 50 of 20,000.
PRINTED_WARMUP = 50 / 20_000
# The row of pure noise in Table 2, and ImageNet's pixel statistics.
NOISE = {"FFT2D": 0.706, "PSNR": 9.964, "LPIPS": 1.351}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PICTURES = "imagenet-sample"
# The attack whose images are held against how loud each is in its batch's gradient.
LOUD = "+ features"
DRAWS = 4000
# FFT2D / PSNR / LPIPS of Tables 2 and 4: ImageNet, ResNet-50, batches of 8, 20,000 steps.
PUBLISHED = {
    "noise": ".706 / 9.964 / 1.351",
    "gradient": ".404 / 10.753 / .919",
    "+ BN, running": ".232 / 11.235 / .633, with the group",
    "+ BN, exact": ".279 / 12.058 / .655",
    "DeepInversion": ".238 / 10.131 / .728",
    "inverting gradients": ".365 / 11.703 / .749",
    "DLG": ".602 / 10.252 / 1.319",
}
NOT_RUN = {
    "latent projection (BigGAN)": "needs a generator trained on ImageNet, which is not at hand",
    "ResNet-50, MoCo v2 features": "its weights are not at hand; a head tuned anew on ResNet-20 stands in",
}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    network: str = Field(SMALL, description=f"the network that is attacked: {', '.join(NAMES)}")
    judge: str = Field(SMALL, description="the network whose features tell images apart")
    dataset: str = Field("photos", description="private images, test split")
    size: int = Field(2, ge=1, le=64, description="images in a batch, no class twice")
    batches: int = Field(1, ge=1, le=10_000, description="batches of each row of Table 2")
    group_batches: int = Field(1, ge=0, le=10_000, description="of these, how many are restored from several seeds")
    seeds: int = Field(2, ge=2, le=100, description="seeds a batch then")
    registrations: int = Field(2, ge=1, le=1000, description="how often seeds are registered")
    singles: int = Field(2, ge=0, le=10_000, description="images restored alone, B = 1")
    steps: int = Field(6, ge=2, le=1_000_000, description="gradients an attack may ask for")
    alone_steps: int = Field(6, ge=2, le=1_000_000, description="the same for an image alone")
    pictures: int = Field(0, ge=0, le=1000, description="ImageNet pictures that Table 2's noise is measured against")

    paper: ClassVar[dict[str, Any]] = {
        "network": "cifar10-resnet20+head",
        "judge": "cifar10-resnet56",
        "dataset": "cifar10",
        "size": 4,
        "batches": 8,
        "group_batches": 2,
        "seeds": 4,
        "registrations": 6,
        "singles": 8,
        "steps": 200,
        "alone_steps": 500,
        "pictures": 1000,
    }

    def sees(self) -> list[Sees]:
        """Return the network that is built here, and the images that it is shown."""
        return [Sees(SMALL, self.dataset, learns=self.dataset)] if SMALL in (self.network, self.judge) else []

    @model_validator(mode="after")
    def _together(self) -> Self:
        for name in (self.network, self.judge):
            if name not in NAMES:
                raise ValueError(f"'{name}' is none of the networks: {', '.join(NAMES)}")
            if name != SMALL and self.dataset != "cifar10":
                raise ValueError(f"'{name}' knows CIFAR-10's classes, and is shown '{self.dataset}'")
        return self


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset, *([PICTURES] if parameters.pictures else [])]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return (
        f"{parameters.batches} batches of {parameters.size}, {parameters.steps} steps, and {parameters.singles} images "
        f"alone, {parameters.alone_steps} steps, {data.title(parameters.dataset)}, {parameters.network}"
    )


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: Table 2's noise, and a few batches at a time by every row, or from seeds."""
    common = parameters.model_dump(include={"network", "judge", "dataset", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    steps, alone = {"steps": parameters.steps}, {"steps": parameters.alone_steps}
    pins = [{"part": "noise", "pictures": parameters.pictures, "seed": parameters.seed}] if parameters.pictures else []
    many = parameters.model_dump(include={"seeds", "registrations"})
    return [
        *pins,
        *(
            {"part": "rows", "size": parameters.size} | few | steps | common
            for few in _few(parameters.batches, TOGETHER)
        ),
        *({"part": "alone", "size": 1} | few | alone | common for few in _few(parameters.singles, 2 * TOGETHER)),
        *(
            {"part": "seeds", "size": parameters.size} | few | many | steps | common
            for few in _few(min(parameters.group_batches, parameters.batches), TOGETHER)
        ),
    ]


def _few(count: int, together: int) -> list[dict[str, int]]:
    return [{"first": n, "batches": min(together, count - n)} for n in range(0, count, together)]


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Restore a few batches by every row of a table, and measure what came out; or measure noise."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]]
    parts = {"noise": _noise, "alone": _alone, "rows": _rows, "seeds": _seeds}
    return parts[part](**inputs)


class Case:
    """Private batches, what is sent of them, and what tells restored images from each other."""

    def __init__(
        self, network: str, judge: str, dataset: str, size: int, first: int, batches: int, seed: int, device: str
    ) -> None:
        private = data.load(dataset, "test")
        self.seed, self.size, self.device = seed, size, device
        self.model = made(network, dataset, seed).to(device)
        self.places = chosen(private, size, first + batches, seed)[first:].flatten()
        self.truth, labels = private.images[self.places], private.labels[self.places]
        self.numbers = range(first * size, (first + batches) * size)
        inputs = data.normalise(self.truth).to(device)
        parts = list(zip(inputs.split(size), labels.to(device).split(size), strict=True))
        self.leaks = [observe(self.model, *part) for part in parts]
        self.statistics = [observe_statistics(self.model, part) for part, _ in parts]
        self.known: Known = known_of(self.leaks, "recovered")
        hot = augment.one_hot(labels, private.classes)
        self.order = torch.cat(
            [
                n * size + metrics.match_batch(own.cpu(), theirs)
                for n, (own, theirs) in enumerate(zip(self.known.labels, hot.split(size), strict=True))
            ]
        )
        self.right = (self.known.labels.flatten(0, 1).cpu()[self.order] * hot).sum(dim=1) > 0.5
        counted = known_of(self.leaks, "counted").labels.sum(dim=1).cpu()
        self.counted = metrics.count_overlap(counted, torch.stack([part.sum(dim=0) for part in hot.split(size)]))
        with torch.no_grad():
            self.loud = (self.model(inputs).softmax(dim=1).cpu() - hot).norm(dim=1)
        # Who is asked which image it was: another network, for the attacked one's features may be a target.
        judges = {"identified": made(judge, dataset, seed), "identified_by_own": self.model.cpu()}
        self.judges: dict[str, tuple[nn.Module, Tensor]] = {
            name: (one, pooled(one, private.images)) for name, one in judges.items()
        }
        self.model.to(device)
        self.colours = self.truth.mean(dim=(2, 3), keepdim=True).expand_as(self.truth)
        others = torch.randperm(len(private), generator=torch.Generator().manual_seed(seed + 1))
        self.others = private.images[others[first * size :][: len(self.places)]]

    def measured(self, run: str, images: Tensor, losses: Tensor | None = None) -> list[dict[str, Any]]:
        """Return a row an image (N·B, C, H, W), in the batches' order, and a strip of the first ones."""
        images = images.detach().cpu()
        columns = {
            "psnr": metrics.psnr(images, self.truth),
            "ssim": metrics.ssim(images, self.truth),
            "fft2d": metrics.fft2d(images, self.truth),
        }
        shown = images.nan_to_num(0.5, 0.5, 0.5).clamp(0, 1)
        for name, (judge, gallery) in self.judges.items():
            features = pooled(judge.cpu(), shown)
            columns[name] = metrics.identified(features, gallery, self.places)
        self.model.to(self.device)
        lpips = metrics.lpips(enlarged(shown), enlarged(self.truth)).values
        rows = []
        for n, number in enumerate(self.numbers):
            row: dict[str, Any] = {"what": "image", "run": run, "image": number}
            row |= {name: values[n].item() for name, values in columns.items()}
            row |= {"lpips": None if lpips is None else float(lpips[n]), "loud": float(self.loud[n])}
            row |= {"right_label": bool(self.right[n]), "known_feature": bool(self.known.there[n // self.size])}
            row["loss"] = None if losses is None else float(losses[n // self.size])
            rows.append(row)
        picture = packed(shown[:SHOWN], min(SHOWN, len(shown)))
        return [*rows, {"what": "picture", "run": run, "picture": picture}]

    def floors(self) -> list[dict[str, Any]]:
        """Return the rows of what is no reconstruction: noise, another image, and the image's own mean colour."""
        noise = torch.randn(self.truth.shape, generator=torch.Generator().manual_seed(self.seed))
        images = (data.denormalise(noise), self.others, self.colours)
        return [row for name, own in zip(FLOORS, images, strict=True) for row in self.measured(name, own)]

    def restored(self, name: str, settings: GradInversion, *, exact: bool, seeds: int = 1) -> list[dict[str, Any]]:
        """Return the rows of an attack: of its first seed and, where there are several, of their mean."""
        found = restore_batches(
            self.leaks,
            "recovered",
            settings=settings,
            statistics=self.statistics if exact else None,
            seeds=seeds,
            seed=self.seed,
        )
        attempts = data.denormalise(found.attempts.flatten(0, 2)).cpu().unflatten(0, found.attempts.shape[:3])
        rows = self.measured(name, attempts[:, 0].flatten(0, 1)[self.order], found.losses[:, 0])
        if seeds > 1:
            rows += self.measured(name + AVERAGED, attempts.mean(dim=1).flatten(0, 1)[self.order])
        return rows

    def matched(self, name: str, steps: int) -> list[dict[str, Any]]:
        """Return the rows of a published attack that the matching engine runs, labels recovered as for all others."""
        if name == "DLG":
            own = published("dlg")
            own["optimizer"] = replace(own["optimizer"], steps=max(1, steps // own["optimizer"].inner))
        else:
            own = published("inverting-gradients")
            own["optimizer"] = replace(own["optimizer"], steps=steps)
        own["labels"] = self.known.labels.flatten(0, 1)
        found = match(self.leaks, seed=self.seed, **own)
        return self.measured(name, data.denormalise(found.images.cpu())[self.order], found.losses[:, 0])

    def private(self) -> list[dict[str, Any]]:
        """Return the private images' strip, and how many labels the paper's rule finds."""
        picture = packed(self.truth[:SHOWN], min(SHOWN, len(self.truth)))
        gallery = len(self.judges["identified"][1])
        labels = {"counted": 100 * float(self.counted.mean()), "recovered": 100 * float(self.right.double().mean())}
        return [
            {"what": "picture", "run": "private", "picture": picture},
            {"what": "batches", "chance": 100 / gallery, "gallery": gallery, "count": len(self.truth)} | labels,
        ]


def chosen(private: data.Dataset, size: int, count: int, seed: int) -> Tensor:
    """Return which images make up so many batches (count, size): no class twice in one, classes in rising order."""
    generator = torch.Generator().manual_seed(seed)
    # Every class's images in an order of their own, so that more batches leave the first ones what they are.
    orders = [
        (members := (private.labels == label).nonzero()[:, 0])[torch.randperm(len(members), generator=generator)]
        for label in range(private.classes)
    ]
    taken = [0] * private.classes
    places = []
    for _ in range(count):
        for label in torch.randperm(private.classes, generator=generator)[:size].sort().values.tolist():
            places.append(orders[label][taken[label] % len(orders[label])])
            taken[label] += 1
    return torch.stack(places).reshape(count, size)


def enlarged(images: Tensor) -> Tensor:
    """Return images (N, C, H, W) so large that LPIPS tells them apart."""
    return F.interpolate(images, scale_factor=ENLARGED, mode="bilinear")


def scaled(settings: GradInversion, steps: int) -> GradInversion:
    """Return an attack with so many steps, its warm-up as long a part of them."""
    warmup = math.ceil(PRINTED_WARMUP * steps) if settings.warmup else 0
    return replace(settings, steps=steps, warmup=warmup)


def _rows(steps: int, **inputs: Any) -> list[dict[str, Any]]:
    case = Case(**inputs)
    rows = [*case.private(), *case.floors()]
    for name, (settings, exact) in ROWS.items():
        rows += case.restored(name, scaled(settings, steps), exact=exact)
    for name in BASELINES:
        rows += case.matched(name, steps)
    return [*rows, *paired(rows, PAIRS, case.seed), *loudness(rows, LOUD)]


def _seeds(steps: int, seeds: int, registrations: int, **inputs: Any) -> list[dict[str, Any]]:
    case = Case(**inputs)
    rows = case.private()
    for name, settings in GROUPS.items():
        own = replace(scaled(settings, steps), registrations=registrations)
        rows += case.restored(name, own, exact=True, seeds=seeds)
    return [*rows, *paired(rows, GROUP_PAIRS, case.seed)]


def _alone(steps: int, **inputs: Any) -> list[dict[str, Any]]:
    case = Case(**inputs)
    rows = [*case.private(), *case.floors()]
    for name in ALONE:
        settings, exact = ROWS[name]
        rows += case.restored(name, scaled(settings, steps), exact=exact)
    return [*rows, *paired(rows, ALONE_PAIRS, case.seed)]


def loudness(rows: list[dict[str, Any]], run: str) -> list[dict[str, Any]]:
    """Return what the louder half of the images, by ‖p − y‖, has before the quieter: PSNR, and share identified."""
    own = sorted((row for row in rows if row["what"] == "image" and row["run"] == run), key=lambda row: row["loud"])
    half = len(own) // 2
    if not half:
        return []
    quiet, loud = own[:half], own[-half:]
    return [
        {
            "what": "loudness",
            "run": run,
            "psnr_gain": float(np.mean([row["psnr"] for row in loud]) - np.mean([row["psnr"] for row in quiet])),
            "identified_gain": 100.0
            * float(np.mean([row["identified"] for row in loud]) - np.mean([row["identified"] for row in quiet])),
        }
    ]


def _noise(pictures: int, seed: int) -> list[dict[str, Any]]:
    """Return what Table 2's row of pure noise is by several definitions of its measures, over ImageNet pictures."""
    images = data.load(PICTURES, "test").images
    images = images[torch.linspace(0, len(images) - 1, pictures).round().long()]
    generator = torch.Generator().manual_seed(seed)
    found: dict[tuple[str, str], list[Tensor]] = {}
    for part in images.split(20):
        for key, values in definitions(part, torch.randn(part.shape, generator=generator)).items():
            found.setdefault(key, []).append(values.double())
    rows = []
    for (measure, definition), many in found.items():
        values = torch.cat(many)
        rows.append(
            {"what": "noise", "measure": measure, "definition": definition, "value": float(values.mean())}
            | {"error": float(values.std()) / math.sqrt(len(values)), "of_eight": float(values.std()) / math.sqrt(8)}
            | {"published": NOISE[measure], "count": len(values)}
        )
    return rows


def definitions(images: Tensor, noise: Tensor) -> dict[tuple[str, str], Tensor]:
    """Return FFT2D, PSNR and LPIPS (N,) of noise N(0, 1) in the network's pixel units, by each definition tried."""
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (MEAN, STD))
    shown, units = noise * std + mean, (images - mean) / std
    ours, theirs = (torch.fft.fft2(side, norm="ortho").flatten(1) for side in (shown.clamp(0, 1), images))
    sizes = [ours.abs(), theirs.abs()]
    logs = [side.log1p() for side in sizes]
    span = units.amax(dim=(1, 2, 3)) - units.amin(dim=(1, 2, 3))
    error = (noise - units).square().mean(dim=(1, 2, 3))
    found = {
        ("FFT2D", "relative L2, clipped pixels"): metrics.fft2d(shown, images),
        ("FFT2D", "relative L2, amplitudes"): (sizes[0] - sizes[1]).norm(dim=1) / sizes[1].norm(dim=1),
        ("FFT2D", "1 − cosine, real and imaginary parts"): 1
        - (ours.conj() * theirs).real.sum(dim=1) / (sizes[0].norm(dim=1) * sizes[1].norm(dim=1)),
        ("FFT2D", "1 − cosine, amplitudes"): 1 - F.cosine_similarity(*sizes),
        ("FFT2D", "1 − cosine, log amplitudes"): 1 - F.cosine_similarity(*logs),
        ("PSNR", "clipped pixels, range 1"): metrics.psnr(shown, images),
        ("PSNR", "unclipped pixels, range 1"): -10 * (shown - images).square().mean(dim=(1, 2, 3)).log10(),
        ("PSNR", "normalised units, range of the picture"): 10 * (span.square() / error).log10(),
    }
    for trunk, name in (("alex", "AlexNet"), ("squeeze", "SqueezeNet")):
        values = metrics.lpips(shown, images, trunk).values
        if values is not None:
            found["LPIPS", f"{name}, clipped pixels"] = values
    return found


def rows_of(record: Record, what: str, part: str) -> pd.DataFrame:
    """Return a record's rows of one sort in one of its parts; there may be none.

    The picture drawn as an unrelated one may by chance be the private one, and is left out then.
    """
    frame = record.frame()
    own = frame[(frame["what"] == what) & (frame["part"] == part)]
    return own[~((own["run"] == "unrelated") & (own["psnr"].astype(float) == math.inf))] if what == "image" else own


def interval(values: pd.Series, seed: int) -> str:
    """Return a mean, and where 95 % of a bootstrap over images put it; what is lost counts as nothing."""
    own = values.astype(float).clip(0, 200).to_numpy()
    draws = own[np.random.default_rng(seed).integers(len(own), size=(DRAWS, len(own)))].mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return f"{own.mean():.1f} ({low:.1f} … {high:.1f})"


def table(record: Record, part: str = "rows") -> pd.DataFrame:
    """Return Tables 2 and 4: a line a part of the attack, a baseline or a floor, and the paper's line beside it."""
    lines = []
    for run, group in rows_of(record, "image", part).groupby("run", sort=False):
        lpips = group["lpips"].dropna().astype(float)
        line = {
            "attack": run,
            "FFT2D": f"{group['fft2d'].astype(float).median():.2f}",
            "PSNR, dB": interval(group["psnr"], record.parameters["seed"]),
            "SSIM": f"{group['ssim'].astype(float).mean():.3f}",
            "LPIPS": f"{lpips.mean():.3f}" if len(lpips) else "n/a",
            "IIP, %": f"{100 * group['identified'].astype(float).mean():.0f}",
            "by the attacked network, %": f"{100 * group['identified_by_own'].astype(float).mean():.0f}",
            "n": len(group),
        }
        if part == "rows":
            line["paper: FFT2D / PSNR / LPIPS"] = PUBLISHED.get(str(run), "–")
        lines.append(line)
    return pd.DataFrame(lines)


def not_run() -> pd.DataFrame:
    """Return the rows of the paper that are not run, and why."""
    return pd.DataFrame([{"paper's row": name, "why": why} for name, why in NOT_RUN.items()])


def paired_table(record: Record) -> pd.DataFrame:
    """Return the differences in PSNR between two attacks on the same images, over all images of a part."""
    lines: list[dict[str, Any]] = []
    for part, pairs in (("rows", PAIRS), ("seeds", GROUP_PAIRS), ("alone", ALONE_PAIRS)):
        images: list[Any] = rows_of(record, "image", part).to_dict("records")
        lines += [
            {"B": f"{images[0]['size']:.0f}", "compared": row["run"], "difference, dB": f"{row['difference']:+.2f}"}
            | {"95 %": f"{row['low']:+.2f} … {row['high']:+.2f}", "n": int(row["images"])}
            for row in (paired(images, pairs, record.parameters["seed"]) if images else [])
        ]
    return pd.DataFrame(lines)


def batch_table(record: Record) -> pd.DataFrame:
    """Return how many labels the paper's rule and the exact solver find in the batches, and what chance identifies."""
    lines = []
    for part in ("alone", "rows"):
        group = rows_of(record, "batches", part)
        if len(group):
            share = group["count"] / group["count"].sum()
            lines.append(
                {"B": f"{group['size'].iloc[0]:.0f}"}
                | {"labels by the lowest rows, %": f"{(group['counted'] * share).sum():.0f}"}
                | {"labels recovered, %": f"{(group['recovered'] * share).sum():.0f}"}
                | {"gallery": f"{group['gallery'].iloc[0]:.0f}", "chance, %": f"{group['chance'].iloc[0]:.2f}"}
                | {"n": f"{group['count'].sum():.0f}"}
            )
    return pd.DataFrame(lines)


def noise_table(record: Record) -> pd.DataFrame:
    """Return Table 2's row of pure noise by every definition tried, beside the paper's; empty where not measured."""
    return pd.DataFrame(
        [
            {
                "measure": row["measure"],
                "definition": row["definition"],
                "here": f"{row['value']:.3f} ± {row['error']:.3f}",
                "paper": f"{row['published']:.3f}",
                "spread of a batch of 8": f"± {row['of_eight']:.3f}",
                "n": int(row["count"]),
            }
            for row in rows_of(record, "noise", "noise").to_dict("records")
        ],
        columns=["measure", "definition", "here", "paper", "spread of a batch of 8", "n"],
    )


def figure_images(record: Record, part: str = "rows") -> Figure:
    """Draw the first images of a part, the private ones above each attack's and the floors."""
    pictures = rows_of(record, "picture", part)
    if pictures.empty:
        return figures.nothing("Not run with these parameters")
    first = pictures[pictures["first"] == pictures["first"].min()]
    strips = first.set_index("run")["picture"]
    figure, axes = figures.panels(1, 1, height=0.55 * len(strips) + 0.4)
    show(axes[0][0], list(strips), list(strips.index))
    return figure


def figure_quality(record: Record) -> Figure:
    """Draw the PSNR of every image by every attack, and the floor of its mean colour."""
    images = rows_of(record, "image", "rows")
    # What is lost has no PSNR, and is drawn at the least of all others.
    psnr = images["psnr"].astype(float)
    images = images.assign(psnr=psnr.clip(lower=psnr[np.isfinite(psnr)].min()))
    groups = {str(run): group["psnr"] for run, group in images.groupby("run", sort=False)}
    floor = groups["mean colour"].mean()
    figure, axes = figures.panels(1, 1, height=0.33 * len(groups) + 0.8)
    axis = axes[0][0]
    for place, (run, values) in enumerate(groups.items()):
        colour = "0.6" if run in FLOORS else figures.COLOURS[0] if run in ROWS else figures.COLOURS[1]
        axis.scatter(values, np.full(len(values), place), s=9, color=colour, alpha=0.55)
        axis.scatter(values.mean(), place, s=190, marker="|", color=colour, linewidth=2.4)
    style = {"color": figures.TRUTH, "linestyle": (0, (4, 2)), "linewidth": 1.4}
    axis.axvline(floor, label="mean colour: no reconstruction below", **style)
    axis.set_yticks(range(len(groups)), list(groups))
    axis.invert_yaxis()
    axis.set_xlabel("PSNR, dB")
    figures.legend_below(figure, 1)
    return figure


def figure_loudness(record: Record) -> Figure:
    """Draw the PSNR of every image against the length of its error ‖p − y‖, and which were identified."""
    drawn = [(part, rows_of(record, "image", part)) for part in ("alone", "rows")]
    drawn = [(part, images[images["run"] == LOUD]) for part, images in drawn if len(images)]
    figure, axes = figures.panels(1, len(drawn), height=3.2, sharey=True)
    for axis, (_, images) in zip(axes[0], drawn, strict=True):
        for named, group in images.groupby("identified"):
            style = {"color": figures.COLOURS[0 if named else 1], "marker": "o" if named else "x"}
            axis.scatter(group["loud"], group["psnr"], s=24, label="identified" if named else "not identified", **style)
        axis.set_xscale("log")
        axis.set_xlabel("length of its error p − y")
        axis.set_title(f"batches of {images['size'].iloc[0]:.0f}")
    axes[0][0].set_ylabel("PSNR, dB")
    figures.legend_below(figure, 2)
    return figure
