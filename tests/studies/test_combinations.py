"""Every page with every dataset and network that its parameters can name: refused at once, or the network takes it."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

from gradleak import data, models, studies
from gradleak.errors import GradleakError
from gradleak.runs.fitting import Sees


def replaced(value: Any, known: tuple[str, ...], name: str) -> Any:
    """Return a parameter with every dataset or network in it replaced, also within a text of several parts."""
    if isinstance(value, list):
        found = [replaced(one, known, name) for one in value]
        return list(dict.fromkeys(found)) if all(isinstance(one, str) for one in found) else found
    if isinstance(value, dict):
        return {key: replaced(one, known, name) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    return "/".join(name if part in known else part for part in value.split("/"))


@functools.lru_cache
def logits(network: str, channels: int, side: int, activation: str) -> tuple[int, ...]:
    """Return the shape of what a network makes of one image, on the meta device: nothing is computed."""
    with torch.device("meta"), torch.no_grad():
        model = models.build(network, in_channels=channels, image_size=side, activation=activation or None)
        return tuple(model(torch.zeros(1, channels, side, side)).shape)


def takes(sees: Sees) -> bool:
    """Whether a network takes a dataset's images; one that is not in the registry is not built."""
    channels, side = data.shape(sees.dataset, size=sees.size)
    return sees.network not in models.names() or logits(sees.network, channels, side, sees.activation) == (1, 10)


@pytest.mark.parametrize("study", studies.names())
def test_a_combination_is_refused_at_once_or_runs(study: str) -> None:
    quick = studies.parameters(study).model_dump()
    known = {"dataset": data.names(), "network": models.names()}
    for kind, names in known.items():
        for name in names:
            chosen = {key: replaced(value, names, name) for key, value in quick.items()}
            if chosen == quick:
                continue
            try:
                accepted = studies.parameters(study, "quick", chosen)
            except GradleakError as error:
                text = str(error)
                assert "\n" not in text
                # What would be right is named: datasets, networks, recipes or the texts that are taken.
                right = "that fit: |Known: |there is one for |choose one of |there is a choice for |such as|need|be '"
                assert re.search(right, text), (kind, text)
                continue
            for sees in set(accepted.sees()):
                assert takes(sees), (kind, name, sees)
