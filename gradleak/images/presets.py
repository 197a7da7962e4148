"""Run the published attacks on images by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

L2, COSINE = Distance("l2"), Distance("cosine")
PLAIN, DECAYING = LBFGS(steps=300, search=False), LBFGS(steps=300, search=False, decay=DECAY)
SMOOTH = ImagePrior(variation=1e-2)
# `match` runs these presets; `restore_batches` runs those of `SETTINGS`.
MATCHING: dict[str, dict[str, Any]] = {
    "dlg": {"labels": "dlg", "distance": L2, "optimizer": PLAIN},
    "idlg": {"labels": "idlg", "distance": L2, "optimizer": PLAIN, "enough": 1e-6},
    "inverting-gradients": {"labels": "idlg", "distance": COSINE, "optimizer": Adam(steps=24_000, signed=True)},
    "wang2024-l2": {"labels": "recovered", "distance": L2, "optimizer": DECAYING, "prior": SMOOTH},
    "wang2024-cosine": {"labels": "recovered", "distance": COSINE, "optimizer": Adam(steps=4800), "prior": SMOOTH},
}
PRESETS = (*MATCHING, *SETTINGS)


class Preset(dict[str, Any]):
    """A published attack: the keyword arguments of the function `engine` that runs it.

    `preset("dlg").run(leak)` runs the attack; `match(leak, **preset("dlg"))` does the same.
    """

    def __init__(self, engine: Callable[..., Reconstruction], options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.engine = engine

    def run(self, leaks: Leak | Sequence[Leak], labels: Tensor | str | None = None, **changes: Any) -> Reconstruction:
        """Run the attack on one leak or several; `labels` and `changes` override the options of the attack."""
        given = {} if labels is None else {"labels": labels}
        return self.engine(leaks, **self | changes | given)


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
        return Preset(restore_batches, {"labels": labels, "settings": SETTINGS[name]})
    if name not in MATCHING:
        raise unknown("preset", name, PRESETS)
    options = MATCHING[name]
    if name == "inverting-gradients":
        low, high = (normalise(torch.full((1, channels, 1, 1), edge))[0] for edge in (0.0, 1.0))
        options = options | {"prior": ImagePrior(variation=1e-4, box=(low, high))}
    return Preset(match, options)
