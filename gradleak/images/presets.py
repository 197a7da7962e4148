"""The published attacks as settings of the one engine."""

from __future__ import annotations

from typing import Any

import torch

from gradleak.data import normalise
from gradleak.errors import unknown
from gradleak.images.matching.objective import Distance, ImagePrior
from gradleak.images.matching.optimizers import DECAY, LBFGS, Adam

PRESETS = ("dlg", "idlg", "inverting-gradients", "wang2024-l2", "wang2024-cosine")


def preset(name: str, *, channels: int = 3) -> dict[str, Any]:
    """Return what `match` is called with to run a published attack: `match(leak, **preset("dlg"))`.

    dlg (zhu2019) and idlg (zhao2020): L2, whole L-BFGS steps, 300 of 20; iDLG ends at a loss of 1e-6.
    inverting-gradients (geiping2020): cosine, Adam on the gradient's sign, total variation, pixels kept in range;
    `channels` of the images, for that range. wang2024: total variation of 1e-2 for an untrained network; its code takes
    1e-3 for a trained one.
    """
    whole = LBFGS(steps=300, search=False)
    if name == "dlg":
        return {"labels": "dlg", "distance": Distance("l2"), "optimizer": whole}
    if name == "idlg":
        return {"labels": "idlg", "distance": Distance("l2"), "optimizer": whole, "enough": 1e-6}
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
    if name == "wang2024-cosine":
        return {"labels": "recovered", "distance": Distance("cosine"), "optimizer": Adam(steps=4800), "prior": prior}
    raise unknown("preset", name, PRESETS)
