"""Run the published attacks on images by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradleak.data import normalise
from gradleak.errors import unknown
from gradleak.images.gradinversion.attack import restore_batches
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.images.matching.engine import Reconstruction, match
from gradleak.images.matching.objective import Distance, ImagePrior
from gradleak.images.matching.optimizers import DECAY, LBFGS, Adam
from gradleak.leak import Leak

# `match` runs these presets; `restore_batches` runs those of `SETTINGS`.
MATCHING = ("dlg", "idlg", "inverting-gradients", "wang2024-l2", "wang2024-cosine")
PRESETS = (*MATCHING, *SETTINGS)


@dataclass(frozen=True)
class Preset(Mapping[str, Any]):
    """A published attack.

    `preset("dlg").run(leak)` runs the attack; `match(leak, **preset("dlg"))` does the same.

    Attributes:
        name: The attack's name, one of `PRESETS`.
        engine: The function that runs the attack, `match` or `restore_batches`.
        options: The keyword arguments of this function.
    """

    name: str
    engine: Callable[..., Reconstruction]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, leaks: Leak | Sequence[Leak], labels: Tensor | str | None = None, **changes: Any) -> Reconstruction:
        """Run the attack on one leak or several; `labels` and `changes` override the options of the attack."""
        given = {} if labels is None else {"labels": labels}
        return self.engine(leaks, **self.options | changes | given)

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)


def preset(name: str, *, channels: int = 3) -> Preset:
    """Return a published attack by its name.

    dlg (zhu2019), idlg (zhao2020): squared L2 distance, 300 steps of 20 L-BFGS iterations without a line search. iDLG
        stops at a loss of 1e-6.
    inverting-gradients (geiping2020): cosine distance, Adam on the gradient's sign, total variation, pixels clamped to
        their range.
    wang2024-l2, wang2024-cosine: total variation with a weight of 1e-2, as for an untrained network. The paper's code
        uses 1e-3 for a trained network.
    gradinversion (yin2021): as printed in the paper.
    gradinversion+pyramid, gradinversion+features: our variants of it.
    deepinversion: the same without any gradient.

    Args:
        name: One of `PRESETS`.
        channels: The number of channels of the images, which sets the range of their pixels.
    """
    if name in SETTINGS:
        labels = "recovered" if SETTINGS[name].feature else "counted"
        return Preset(name, restore_batches, {"labels": labels, "settings": SETTINGS[name]})
    if name not in MATCHING:
        raise unknown("preset", name, PRESETS)
    return Preset(name, match, _matching(name, channels))


def _matching(name: str, channels: int) -> dict[str, Any]:
    plain_lbfgs = LBFGS(steps=300, search=False)
    if name == "dlg":
        return {"labels": "dlg", "distance": Distance("l2"), "optimizer": plain_lbfgs}
    if name == "idlg":
        return {"labels": "idlg", "distance": Distance("l2"), "optimizer": plain_lbfgs, "enough": 1e-6}
    if name == "inverting-gradients":
        low, high = (normalise(torch.full((1, channels, 1, 1), edge))[0] for edge in (0.0, 1.0))
        return {
            "labels": "idlg",
            "distance": Distance("cosine"),
            "optimizer": Adam(steps=24_000, signed=True),
            "prior": ImagePrior(variation=1e-4, box=(low, high)),
        }
    prior = ImagePrior(variation=1e-2)
    if name == "wang2024-l2":
        decaying = LBFGS(steps=300, search=False, decay=DECAY)
        return {"labels": "recovered", "distance": Distance("l2"), "optimizer": decaying, "prior": prior}
    return {"labels": "recovered", "distance": Distance("cosine"), "optimizer": Adam(steps=4800), "prior": prior}
