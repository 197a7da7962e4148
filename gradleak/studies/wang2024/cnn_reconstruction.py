"""Images from LeNet by gradient matching, label by label

wang2024, section 4.3: Table 3.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field

from gradleak import data, studies
from gradleak.errors import unknown
from gradleak.images import LevenbergMarquardt, match, trace_convolutional
from gradleak.leak import observe
from gradleak.runs.fitting import Fixed, Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import matched_runs
from gradleak.studies.shared.attacked_networks import Stage
from gradleak.studies.shared.matched_runs import (
    compared,
    detail_table,
    draw_curves,
    draw_strips,
    interval_table,
    lenets,
    mean_text,
    optimizer,
    paired,
    paired_table,
    prior,
    private,
    psnr_table,
    read_by,
    row_trials,
    rows_of,
)
from gradleak.studies.shared.restored import quality

__all__ = ["detail_table", "paired_table", "table"]
PLACE = "Section 4.3, Table 3"
SMALLEST: dict[str, Any] = {}
# The paper's columns: where the label comes from.
MODES: dict[str, str | None] = {
    "GT": None,
    "iDLG": "idlg",
    "DLG": "dlg",
    "Ours": "recovered",
    "DLG + Ours": "recovered-start",
}
WHOLE = {name: f"{name}, whole steps" for name in MODES}
EXACT = 100.0  # dB: an image to its last digit
STARTS = ("untrained/random", "trained/random", "trained/closed form")
PAIRS = (("Ours", "GT"), ("GT", "iDLG"), ("DLG + Ours", "GT"), ("Ours", "DLG"))
WHOLE_PAIRS = tuple((WHOLE[first], WHOLE[second]) for first, second in (("Ours", "iDLG"), ("Ours", "DLG")))


class Start(Form):
    """A network in its state, the start of second-order matching on it, and how many images get it at most."""

    stage: Stage
    start: str
    images: Whole = Field(sys.maxsize, ge=1)

    def check(self) -> None:
        """Say so where nothing starts like this."""
        if f"{self.stage}/{self.start}" not in STARTS:
            raise unknown("network and start", f"{self.stage}/{self.start}", STARTS)


class Parameters(matched_runs.Parameters):
    """What a rerun may change."""

    again: int = Field(0, ge=0, le=10_000, description="images of each row that are tried from many starts")
    again_restarts: int = Field(2, ge=2, le=100, description="how many starts those get")
    second_order: int = Field(0, ge=0, le=10_000, description="of the smoothed images, how many get second order")
    second_order_steps: int = Field(1, ge=1, le=1000, description="Levenberg-Marquardt's Jacobians")
    second_order_starts: list[Start] = Field(
        ["untrained/random"],
        validate_default=True,
        description=f"network and start: {', '.join(STARTS)}; /N after it: of N images alone",
    )

    paper: ClassVar[dict[str, Any]] = matched_runs.Parameters.paper | {
        "again": 3,
        "again_restarts": 5,
        "second_order": 30,
        "second_order_steps": 40,
        "second_order_starts": ["untrained/random", "trained/closed form", "trained/random/2"],
    }

    def sees(self) -> list[Sees]:
        """Return LeNet in its states, and the images that it is shown."""
        stages = [*self.stages, *(start.stage for start in self.second_order_starts)]
        return [Fixed(**vars(one), lpips=1) for one in lenets(self.dataset, stages)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return matched_runs.scale(parameters)


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    starts = [start.stage for start in parameters.second_order_starts]
    return read_by(parameters.dataset, [*parameters.stages, *starts])


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: rows of Table 3, once, again and in whole steps, and second order's."""
    every = row_trials(parameters)
    rows = [{"part": "row"} | inputs for inputs in every]
    starts = {"part": "restarts", "again": parameters.again, "restarts": parameters.again_restarts}
    again = [inputs | starts for inputs in every] if parameters.again else []
    taken = {"part": "whole", "whole": parameters.whole, "restarts": parameters.whole_starts}
    # How the paper trained its networks is unpublished: what whole steps lose there could not be compared.
    whole = [
        inputs | taken
        for inputs in every
        if parameters.whole and (inputs["distance"], inputs["stage"]) == ("l2", "untrained")
    ]
    device = studies.resolve_device(parameters.device)
    common = {"dataset": parameters.dataset, "seed": parameters.seed, "device": device}
    second = [
        {"part": "second order", "stage": one.stage, "place": n, "samples": parameters.images, "start": one.start}
        | {"steps": parameters.second_order_steps}
        | common
        for one in parameters.second_order_starts
        for n in range(min(parameters.second_order, parameters.images, one.images))
    ]
    return rows + again + whole + second


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Match one row of the table with every kind of label, some of it many times or in whole steps, or one to second
    order."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]]
    parts = {"row": _row, "restarts": _restarts, "whole": _whole, "second order": _second}
    return parts[part](**inputs)


def _row(
    labels: str,
    distance: str,
    stage: str,
    samples: int,
    steps: int,
    restarts: int,
    dataset: str,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    model, accuracy, inputs, targets = private(labels, stage, samples, dataset, seed, device)
    common = {"distance": distance, "prior": prior(stage), "optimizer": optimizer(distance, steps)}
    runs: dict[str, dict[str, Any]] = {
        name: common | ({} if mode is None else {"labels": mode}) for name, mode in MODES.items()
    }
    if distance == "l2":
        runs[WHOLE["GT"]] = common | {"optimizer": optimizer(distance, steps, whole=True)}
    rows = compared(model, inputs, targets, runs, label_prior=labels, restarts=restarts, seed=seed)
    rows += paired(rows, PAIRS, seed)
    return [*rows, {"what": "network", "accuracy": accuracy}]


def _restarts(
    labels: str,
    distance: str,
    stage: str,
    samples: int,
    steps: int,
    restarts: int,
    dataset: str,
    seed: int,
    device: str,
    again: int,
) -> list[dict[str, Any]]:
    model, _, inputs, targets = private(labels, stage, samples, dataset, seed, device)
    run = {"distance": distance, "prior": prior(stage), "optimizer": optimizer(distance, steps)}
    own = inputs[:again], targets[:again]
    rows = compared(model, *own, {"GT": run}, label_prior=labels, restarts=restarts, seed=seed)
    return [row | {"what": "restart"} for row in rows if row["what"] == "image"]


def _whole(
    labels: str,
    distance: str,
    stage: str,
    samples: int,
    steps: int,
    restarts: int,
    dataset: str,
    seed: int,
    device: str,
    whole: int,
) -> list[dict[str, Any]]:
    """Match the first images of a row in whole steps with every label that is not known; the row has the known one."""
    model, _, inputs, targets = private(labels, stage, samples, dataset, seed, device)
    common = {"distance": distance, "prior": prior(stage), "optimizer": optimizer(distance, steps, whole=True)}
    runs = {WHOLE[name]: common | {"labels": mode} for name, mode in MODES.items() if mode is not None}
    own = inputs[:whole], targets[:whole]
    rows = compared(model, *own, runs, label_prior=labels, restarts=restarts, seed=seed)
    return [row for row in rows if row["run"] != "private"] + paired(rows, WHOLE_PAIRS, seed)


def _second(
    stage: str, place: int, samples: int, start: str, steps: int, dataset: str, seed: int, device: str
) -> list[dict[str, Any]]:
    model, _, inputs, targets = private("smoothing", stage, samples, dataset, seed, device)
    own, target = inputs[place : place + 1], targets[place : place + 1]
    leak = observe(model, own, target.to(own))
    first = trace_convolutional(leak).inputs if start == "closed form" else None
    started = time.perf_counter()
    chosen = LevenbergMarquardt(steps=steps)
    found = match(leak, "recovered", optimizer=chosen, seed=seed + place, start=first, label_prior="smoothing")
    row: dict[str, Any] = {"image": place, "seconds": time.perf_counter() - started, "status": found.status[0][0]}
    truth = data.denormalise(own.double()).clamp(0, 1)
    judged = quality(data.denormalise(found.images.double()), truth)[0]
    about = {"loss": float(found.losses[0, 0]), "steps": int(found.history[-1]), "exact": judged["psnr"] >= EXACT}
    return [row | about | judged]


def _seconds(record: Record) -> pd.DataFrame:
    frame = record.frame()
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, "start"])))
    return frame[frame["part"] == "second order"]


def table(record: Record) -> pd.DataFrame:
    """Return Table 3's PSNR."""
    return psnr_table(record, list(MODES))


def whole_table(record: Record) -> pd.DataFrame:
    """Return Table 3's rows of L2 with whole steps: where a mean of all images lies, and the published one.

    On trained networks the known label alone was tried.
    """
    return interval_table(record, list(WHOLE.values()))


def all_table(record: Record) -> pd.DataFrame:
    """Return the same for every cell of Table 3."""
    return interval_table(record, list(MODES))


def second_order_table(record: Record) -> pd.DataFrame:
    """Return what Levenberg-Marquardt reaches, its label recovered, beside what first order reached."""
    images = rows_of(record, "image")
    lines = []
    for (stage, start), group in _seconds(record).groupby(["stage", "start"], sort=False):
        first = images[(images["stage"] == stage) & (images["labels"] == "smoothing") & (images["run"] == "Ours")]
        line = {"LeNet": stage, "start": start, "n": len(group)}
        line |= {f"{name}, mean": mean_text(own["psnr"]) for name, own in first.groupby("distance", sort=False)}
        values = group["psnr"].astype(float)
        spread = f" ± {values.clip(0, 200).std():.1f}" if len(group) > 1 else ""
        line |= {
            "second order, mean": f"{mean_text(values)}{spread}",
            "median": f"{values.median():.1f}",
            "over 100 dB": f"{100 * group['exact'].mean():.0f} %",
            "Jacobians": f"{group['steps'].mean():.0f}",
            "s": f"{group['seconds'].mean():.0f}",
        }
        lines.append(line)
    return pd.DataFrame(lines)


def restart_table(record: Record) -> pd.DataFrame:
    """Return how far restarts spread, the label known, and what choosing by the loss gains."""
    lines = []
    for keys, group in rows_of(record, "restart").groupby(["labels", "distance", "stage"], sort=False):
        psnr = group.pivot(index="image", columns="restart", values="psnr").astype(float).clip(0, 200)
        chosen = group.groupby("image")["loss"].idxmin()
        lines.append(
            dict(zip(("labels", "distance", "LeNet"), keys, strict=True))
            | {
                "images": len(psnr),
                "starts": psnr.shape[1],
                "mean PSNR": f"{psnr.to_numpy().mean():.1f}",
                "spread of images": f"{psnr.mean(axis=1).std():.1f}",
                "spread of starts": f"{psnr.std(axis=1).mean():.1f}",
                "least loss": mean_text(group.loc[chosen, "psnr"]),
                "best": f"{psnr.max(axis=1).mean():.1f}",
            }
        )
    return pd.DataFrame(lines)


def figure_losses(record: Record) -> Figure:
    """Draw the loss over the steps of every row, a line a kind of label."""
    return draw_curves(record, list(MODES), "loss")


def figure_images(record: Record) -> Figure:
    """Draw the first images of every row as each kind of label restored them."""
    return draw_strips(record, list(MODES))


def figure_curves(record: Record) -> Figure:
    """Draw PSNR over the steps of every row, a line a kind of label."""
    return draw_curves(record, list(MODES))


def figure_second_order(record: Record) -> Figure:
    """Draw every smoothed image's PSNR by first and second order."""
    images, second = rows_of(record, "image"), _seconds(record)
    stages = list(dict.fromkeys(second["stage"]))
    if not stages:
        return figures.nothing("Second order was not run: second_order = 0")
    figure, axes = figures.panels(1, len(stages), height=3.2, sharey=True)
    for axis, stage in zip(axes[0], stages, strict=True):
        first = images[(images["stage"] == stage) & (images["labels"] == "smoothing") & (images["run"] == "Ours")]
        own = second[second["stage"] == stage]
        groups = {f"{name},\nfirst order": part["psnr"] for name, part in first.groupby("distance", sort=False)}
        groups |= {f"second order,\n{start}": part["psnr"] for start, part in own.groupby("start", sort=False)}
        figures.swarms(axis, {name: values.astype(float).clip(0, 200) for name, values in groups.items()})
        axis.tick_params(axis="x", labelsize=8.5)
        axis.set_title(f"{stage} LeNet")
    axes[0][0].set_ylabel("PSNR, dB")
    return figure
