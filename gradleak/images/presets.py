"""The published attacks on images by their names, whatever engine runs them."""

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

# Presets that the matching engine runs; those of `SETTINGS` are run by `restore_batches`.
MATCHING = ("dlg", "idlg", "inverting-gradients", "wang2024-l2", "wang2024-cosine")
PRESETS = (*MATCHING, *SETTINGS)


@dataclass(frozen=True)
class Preset(Mapping[str, Any]):
    """A published attack: the function that runs it, and the options that this function is called with.

    `preset("dlg").run(leak)` runs the attack; `match(leak, **preset("dlg"))` does the same.
    """

    name: str
    engine: Callable[..., Reconstruction]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, leaks: Leak | Sequence[Leak], labels: Tensor | str | None = None, **changes: Any) -> Reconstruction:
        """Run the attack on a leak or several, with known labels and with some options changed, if these are given."""
        known = {} if labels is None else {"labels": labels}
        return self.engine(leaks, **self.options | changes | known)

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)


def preset(name: str, *, channels: int = 3) -> Preset:
    """Return a published attack by its name.

    dlg (zhu2019) and idlg (zhao2020): L2, whole L-BFGS steps, 300 of 20; iDLG ends at a loss of 1e-6.
    inverting-gradients (geiping2020): cosine, Adam on the gradient's sign, total variation, pixels kept in range;
    `channels` of the images, for that range. wang2024-l2, wang2024-cosine: total variation of 1e-2 for an untrained
    network; the paper's code takes 1e-3 for a trained one. gradinversion (yin2021) as printed; gradinversion+pyramid,
    gradinversion+features: ours; deepinversion: without any gradient.
    """
    if name in SETTINGS:
        labels = "recovered" if SETTINGS[name].feature else "counted"
        return Preset(name, restore_batches, {"labels": labels, "settings": SETTINGS[name]})
    if name not in MATCHING:
        raise unknown("preset", name, PRESETS)
    return Preset(name, match, _matching(name, channels))


def _matching(name: str, channels: int) -> dict[str, Any]:
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
    return {"labels": "recovered", "distance": Distance("cosine"), "optimizer": Adam(steps=4800), "prior": prior}
